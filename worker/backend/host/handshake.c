#include "worker/backend/host/handshake.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x4b4e494c44535001) /* 1 "PSDLINK" */

static void put(uint8_t **at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *(*at)++ = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t **at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t) * (*at)++ << (8 * i);
    return value;
}

void handshake_encode(const handshake_frame *frame, uint8_t out[HANDSHAKE_BYTES])
{
    uint8_t *at = out;
    memset(out, 0, HANDSHAKE_BYTES);
    put(&at, MAGIC, 8);
    put(&at, frame->version, 2);
    put(&at, frame->kind, 2);
    put(&at, frame->reason, 4);
    put(&at, frame->job, 8);
    put(&at, frame->from, 8);
    put(&at, frame->to, 8);
    put(&at, frame->nonce, 8);
    put(&at, frame->echo, 8);
    put(&at, frame->probe_address, 8);
    put(&at, frame->probe_value, 8);
    put(&at, frame->ring_bytes, 8);
    put(&at, frame->memory_bytes, 8);
    memcpy(at, frame->text, HANDSHAKE_TEXT);
}

/* What a stranger says is shown to people: printable ASCII only. */
static void get_text(const uint8_t *at, char out[HANDSHAKE_TEXT])
{
    size_t i;
    for (i = 0; i < HANDSHAKE_TEXT - 1 && at[i]; i++)
        out[i] = at[i] >= 0x20 && at[i] < 0x7f ? (char)at[i] : '?';
    out[i] = '\0';
}

bool handshake_decode(const uint8_t in[HANDSHAKE_BYTES], handshake_frame *out)
{
    const uint8_t *at = in;
    handshake_frame f;
    memset(&f, 0, sizeof f);
    if (get(&at, 8) != MAGIC)
        return false;
    f.version = (uint16_t)get(&at, 2);
    uint64_t kind = get(&at, 2);
    if (kind < HANDSHAKE_HELLO || kind > HANDSHAKE_REFUSE)
        return false;
    f.kind = (handshake_kind)kind;
    f.reason = (uint32_t)get(&at, 4);
    f.job = get(&at, 8);
    f.from = get(&at, 8);
    f.to = get(&at, 8);
    f.nonce = get(&at, 8);
    f.echo = get(&at, 8);
    f.probe_address = get(&at, 8);
    f.probe_value = get(&at, 8);
    f.ring_bytes = get(&at, 8);
    f.memory_bytes = get(&at, 8);
    get_text(at, f.text);
    *out = f;
    return true;
}

void handshake_channel_init(handshake_channel *c, int fd)
{
    memset(c, 0, sizeof *c);
    c->fd = fd;
    for (int i = 0; i < HANDSHAKE_FDS; i++)
        c->fds[i] = -1;
}

static void close_received(handshake_channel *c)
{
    for (int i = 0; i < HANDSHAKE_FDS; i++) {
        if (c->fds[i] >= 0)
            close(c->fds[i]);
        c->fds[i] = -1;
    }
    c->fd_count = 0;
}

void handshake_channel_close(handshake_channel *c)
{
    close_received(c);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

psd_status handshake_send(handshake_channel *c, const handshake_frame *frame, const int *fds,
                          uint32_t fd_count)
{
    uint8_t bytes[HANDSHAKE_BYTES];
    struct iovec iov = {.iov_base = bytes, .iov_len = sizeof bytes};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * HANDSHAKE_FDS)];
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    handshake_encode(frame, bytes);
    memset(control, 0, sizeof control);
    if (fd_count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * fd_count);
    }
    ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == HANDSHAKE_BYTES)
        return PSD_OK;
    if (sent >= 0)
        errno = EAGAIN;
    return PSD_ERR_LINK;
}

/* Keeps the fds of one message; false, with all closed, if there are more than a handshake ever sends. */
static bool keep_fds(handshake_channel *c, struct msghdr *message)
{
    bool good = !(message->msg_flags & MSG_CTRUNC);
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (good && c->fd_count < HANDSHAKE_FDS) {
                c->fds[c->fd_count++] = fd;
            } else {
                good = false;
                close(fd);
            }
        }
    }
    if (!good)
        close_received(c);
    return good;
}

psd_status handshake_receive(handshake_channel *c, handshake_frame *out)
{
    struct iovec iov = {.iov_base = c->in + c->got, .iov_len = HANDSHAKE_BYTES - c->got};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * HANDSHAKE_FDS)];
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return PSD_INPROGRESS;
        return PSD_ERR_LINK;
    }
    if (!keep_fds(c, &message))
        return PSD_ERR_FORMAT;
    if (got == 0) {
        errno = 0;
        return PSD_ERR_LINK;
    }
    c->got += (uint32_t)got;
    if (c->got < HANDSHAKE_BYTES)
        return PSD_INPROGRESS;
    c->got = 0;
    return handshake_decode(c->in, out) ? PSD_OK : PSD_ERR_FORMAT;
}
