#include "worker/backend/host/tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define IOV_MOST 16

static void set(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

void tcp_configure(int fd)
{
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, TCP_SILENCE_MS);
}

psd_status tcp_stream_open(tcp_stream *t, int fd)
{
    uint8_t *buffer = malloc(TCP_BUFFER_BYTES);
    if (!buffer)
        return PSD_ERR_NOMEM;
    memset(t, 0, sizeof *t);
    t->fd = fd;
    t->buffer = buffer;
    t->readable = true;
    t->writable = true;
    return PSD_OK;
}

void tcp_stream_close(tcp_stream *t)
{
    close(t->fd);
    free(t->buffer);
    t->buffer = NULL;
    t->fd = -1;
}

static void end(tcp_stream *t, int error)
{
    if (!t->ended)
        t->error = error;
    t->ended = true;
    t->writable = false;
}

size_t tcp_stream_write(tcp_stream *t, const struct iovec *iov, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, /* not written to */
                             .msg_iovlen = (size_t)(count < IOV_MOST ? count : IOV_MOST)};
    if (!t->writable || count <= 0)
        return 0;
    ssize_t sent = sendmsg(t->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0)
        return (size_t)sent;
    if (errno == EAGAIN)
        t->writable = false; /* until epoll says otherwise */
    else if (errno != EINTR && errno != ENOBUFS && errno != ENOMEM)
        end(t, errno);
    if (t->ended)
        t->readable = true; /* a read finds what is left, and the end */
    return 0;
}

static size_t take_buffered(tcp_stream *t, uint8_t *to, size_t bytes)
{
    size_t have = t->end - t->start;
    size_t take = have < bytes ? have : bytes;
    memcpy(to, t->buffer + t->start, take);
    t->start += take;
    return take;
}

size_t tcp_stream_read(tcp_stream *t, void *to, size_t bytes)
{
    size_t done = take_buffered(t, to, bytes);
    if (done == bytes || !t->readable)
        return done;
    /* Straight to where it belongs, and what is beyond into the buffer, which is empty now. */
    struct iovec iov[2] = {{.iov_base = (uint8_t *)to + done, .iov_len = bytes - done},
                           {.iov_base = t->buffer, .iov_len = TCP_BUFFER_BYTES}};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
    ssize_t got = recvmsg(t->fd, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR)
        return done;
    if (got <= 0) {
        t->readable = false;
        if (got == 0)
            end(t, 0);
        else if (errno != EAGAIN)
            end(t, errno);
        return done;
    }
    size_t direct = (size_t)got < bytes - done ? (size_t)got : bytes - done;
    t->start = 0;
    t->end = (size_t)got - direct;
    return done + direct;
}

void tcp_stream_event(tcp_stream *t, uint32_t events)
{
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        t->readable = true;
    if ((events & EPOLLOUT) && !t->ended)
        t->writable = true;
    if (!(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
        return;
    /* The peer ends whole links, never one direction. */
    int error = 0;
    socklen_t length = sizeof error;
    if ((events & EPOLLERR) && getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    char byte;
    ssize_t left = recv(t->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (left < 0 && errno == EAGAIN && error == 0)
        return;
    end(t, left < 0 && error == 0 && errno != EAGAIN ? errno : error);
    if (left <= 0)
        t->readable = false;
}

bool tcp_stream_drained(const tcp_stream *t)
{
    return t->ended && !t->readable && t->start == t->end;
}

size_t tcp_stream_unacknowledged(const tcp_stream *t)
{
    int left = 0;
    if (t->fd < 0 || t->ended || ioctl(t->fd, SIOCOUTQ, &left) != 0)
        return 0;
    return left > 0 ? (size_t)left : 0;
}
