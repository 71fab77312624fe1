/* Links once they are up, and the list of them. */
#include "worker/backend/host/net.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/conf.h"
#include "common/log.h"

host_link *link_new(host_net *net, const host_address *peer)
{
    host_link *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    link->source = (source){SOURCE_LINK, link};
    link->net = net;
    link->peer = *peer;
    link->state = HOST_LINK_CONNECTING;
    link->shm.fd = -1;
    link->tcp.fd = -1;
    snprintf(link->text, sizeof link->text, "connecting");
    link->previous = net->last;
    if (net->last)
        net->last->next = link;
    else
        net->first = link;
    net->last = link;
    net->connecting++;
    return link;
}

host_link *link_find(host_net *net, uint64_t incarnation)
{
    for (host_link *link = net->first; link; link = link->next)
        if (link->peer.incarnation == incarnation && link->state != HOST_LINK_BROKEN)
            return link;
    return NULL;
}

/* Out of CONNECTING or READY. */
static void leave_state(host_link *link)
{
    if (link->state == HOST_LINK_CONNECTING)
        link->net->connecting--;
    if (link->state == HOST_LINK_READY && !link->is_shm)
        link->net->tcp_links--;
}

/* For the peer too, even where a forked child has a copy of the socket. */
static void end_socket(host_net *net, int fd)
{
    if (fd < 0 || !net_is_ours(net))
        return;
    net_unwatch(net, fd);
    (void)shutdown(fd, SHUT_RDWR);
}

static void close_streams(host_link *link)
{
    connect_end(link);
    if (net_is_ours(link->net))
        shm_leave(&link->shm);
    end_socket(link->net, link->shm.fd);
    shm_drop(&link->shm);
    end_socket(link->net, link->tcp.fd);
    if (link->tcp.fd >= 0)
        tcp_stream_close(&link->tcp);
}

void link_free(host_link *link)
{
    host_net *net = link->net;
    leave_state(link);
    close_streams(link);
    if (link->previous)
        link->previous->next = link->next;
    else
        net->first = link->next;
    if (link->next)
        link->next->previous = link->previous;
    else
        net->last = link->previous;
    free(link);
}

void link_break(host_link *link, psd_status status, const char *format, ...)
{
    char text[NET_TEXT];
    va_list arguments;
    if (link->state == HOST_LINK_BROKEN)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    leave_state(link);
    link->state = HOST_LINK_BROKEN;
    link->status = status;
    link->net->may_reap = true;
    memcpy(link->text, text, sizeof link->text);
    close_streams(link);
    psd_log("host", PSD_LOG_INFO, "link to %016" PRIx64 ": %s", link->peer.incarnation, link->text);
}

void link_reap(host_net *net)
{
    host_link *next;
    if (!net->may_reap)
        return;
    net->may_reap = false;
    for (host_link *link = net->first; link; link = next) {
        next = link->next;
        if (link->state != HOST_LINK_BROKEN)
            continue;
        if (link->seen_broken && link->references == 0)
            link_free(link);
        else if (!link->seen_broken)
            net->may_reap = link->seen_broken = true;
    }
}

static void now_ready(host_link *link)
{
    leave_state(link);
    link->state = HOST_LINK_READY;
    connect_end(link);
    psd_log("host", PSD_LOG_INFO, "link to %016" PRIx64 ": %s", link->peer.incarnation, link->text);
}

void link_up_shm(host_link *link, shm_stream *shm)
{
    char size[32];
    link->shm = *shm;
    link->is_shm = true;
    net_watch_change(link->net, link->shm.fd, EPOLLIN | EPOLLRDHUP, &link->source);
    const peer_memory *memory = &link->shm.memory;
    snprintf(link->text, sizeof link->text, "shared memory, rings of %s, %s%s",
             psd_format_bytes((int64_t)shm->tx.size, size, sizeof size),
             memory->allowed ? "single copy" : "no single copy: ",
             memory->allowed           ? ""
             : !link->net->single_copy ? "switched off"
                                       : memory->reason);
    now_ready(link);
}

void link_up_tcp(host_link *link, int fd)
{
    char from[ENDPOINT_TEXT];
    char to[ENDPOINT_TEXT];
    endpoint_format_local(fd, from, sizeof from);
    endpoint_format_peer(fd, to, sizeof to);
    if (tcp_stream_open(&link->tcp, fd) != PSD_OK) {
        close(fd);
        link_break(link, PSD_ERR_NOMEM, "out of memory for a TCP link to %s", to);
        return;
    }
    net_watch_change(link->net, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &link->source);
    const char *why_not = link->dial ? link->dial->unix_note : "";
    snprintf(link->text, sizeof link->text, "TCP, %s to %s%s%s", from, to,
             why_not[0] ? "; not shared memory: " : "", why_not);
    now_ready(link);
    link->net->tcp_links++;
}

static void break_shm(host_link *link, psd_status status, const char *what)
{
    link_break(link, status, "the shared-memory link to process %d broke: %s", (int)link->shm.memory.pid,
               what);
}

/* A reset is what the kernel sends for a process that ended with something unread. */
static void break_tcp(host_link *link)
{
    int error = link->tcp.error;
    bool gone = error == 0 || error == ECONNRESET || error == EPIPE;
    char route[NET_TEXT / 2];
    snprintf(route, sizeof route, "%.*s", (int)strcspn(link->text, ";"), link->text);
    link_break(link, gone ? PSD_ERR_PEER_FAILED : PSD_ERR_LINK, "the link broke: %s: %s%s%s", route,
               error ? strerror(error) : "", error && gone ? ": " : "",
               gone ? "the peer's process has ended, or it has closed the context" : "");
}

/* After the end of a stream, once everything that arrived has been read. */
static void settle(host_link *link)
{
    if (link->state != HOST_LINK_READY)
        return;
    if (link->is_shm) {
        if (link->shm.rx.corrupt || link->shm.tx.corrupt)
            break_shm(link, PSD_ERR_LINK, "the peer wrote an impossible index into its ring");
        else if (link->shm.lane_rx.corrupt || link->shm.lane_tx.corrupt)
            break_shm(link, PSD_ERR_LINK, "the peer wrote nonsense into its lane of small messages");
        else if (link->shm.ended && !ring_readable(&link->shm.rx) && !lane_readable(&link->shm.lane_rx))
            break_shm(link, PSD_ERR_PEER_FAILED,
                      "the peer's process has ended, or it has closed the context");
    } else if (tcp_stream_drained(&link->tcp)) {
        break_tcp(link);
    }
}

/* The unix socket carries nothing after the handshake: it can only end. */
static void shm_event(host_link *link)
{
    char byte;
    ssize_t got = recv(link->shm.fd, &byte, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0) {
        break_shm(link, PSD_ERR_LINK, "the peer sent bytes where none belong");
        return;
    }
    link->shm.ended = true;
    /* Nothing more to be told; and an ended socket would wake every sleep while the ring is being read. */
    net_unwatch(link->net, link->shm.fd);
}

bool link_event(host_link *link, uint32_t events)
{
    if (link->state != HOST_LINK_READY)
        return false;
    if (link->is_shm)
        shm_event(link);
    else
        tcp_stream_event(&link->tcp, events);
    settle(link);
    return true;
}

psd_status host_link_get(host_net *net, const char *address, host_link **out, char *why, size_t why_bytes)
{
    host_address peer;
    psd_time_ns now = psd_now_ns();
    if (!host_address_parse(address, &peer)) {
        snprintf(why, why_bytes, "not an address of the host backend: \"%.200s\"",
                 address ? address : "(null)");
        return PSD_ERR_FORMAT;
    }
    if (peer.incarnation == net->address.incarnation) {
        snprintf(why, why_bytes, "a context has no link to itself");
        return PSD_ERR_INVAL;
    }
    host_link *link = link_find(net, peer.incarnation);
    if (link)
        goto found;
    link = link_new(net, &peer);
    if (!link) {
        snprintf(why, why_bytes, "out of memory for a link");
        return PSD_ERR_NOMEM;
    }
    if (net->address.incarnation < peer.incarnation && connect_begin(link, now) != PSD_OK) {
        link_free(link);
        snprintf(why, why_bytes, "out of memory for a link");
        return PSD_ERR_NOMEM;
    }
    link->wait_ns = mesh_patience(NET_WAIT_NS, net->peers);
    link->wait_deadline = now + link->wait_ns;
found:
    link->references++;
    *out = link;
    return PSD_OK;
}

void host_link_put(host_net *net, host_link **link)
{
    if (*link)
        (*link)->references--;
    *link = NULL;
    net->may_reap = true;
}

host_link_state host_link_get_state(const host_link *link)
{
    return link->state;
}

const char *host_link_text(const host_link *link)
{
    return link->text;
}

psd_status host_link_status(const host_link *link)
{
    return link->state == HOST_LINK_BROKEN ? link->status : PSD_OK;
}

void host_link_break(host_link *link, const char *text)
{
    link_break(link, PSD_ERR_LINK, "%s", text);
}

bool host_link_is_shm(const host_link *link)
{
    return link->is_shm;
}

uint64_t host_link_incarnation(const host_link *link)
{
    return link->peer.incarnation;
}

void host_link_set_owner(host_link *link, void *owner)
{
    link->owner = owner;
}

void *host_link_owner(const host_link *link)
{
    return link->owner;
}

host_link *host_net_first(host_net *net)
{
    return net->first;
}

host_link *host_net_next(host_net *net, host_link *link)
{
    (void)net;
    return link->next;
}

size_t host_link_write(host_link *link, const struct iovec *iov, int count)
{
    size_t written;
    if (link->state != HOST_LINK_READY)
        return 0;
    if (!link->is_shm) {
        written = tcp_stream_write(&link->tcp, iov, count);
        if (link->tcp.ended)
            settle(link);
        return written;
    }
    if (link->shm.ended)
        return 0;
    written = ring_write(&link->shm.tx, iov, count);
    link->shm.moved |= written > 0;
    if (link->shm.tx.corrupt)
        settle(link);
    return written;
}

size_t host_link_read(host_link *link, void *data, size_t bytes)
{
    size_t got;
    if (link->state != HOST_LINK_READY)
        return 0;
    if (!link->is_shm) {
        got = tcp_stream_read(&link->tcp, data, bytes);
        if (link->tcp.ended)
            settle(link);
        return got;
    }
    got = ring_read(&link->shm.rx, data, bytes);
    link->shm.took |= got > 0;
    if (link->shm.rx.corrupt || link->shm.ended)
        settle(link);
    return got;
}

const void *host_link_peek(host_link *link, size_t *bytes)
{
    *bytes = 0;
    if (link->state != HOST_LINK_READY || !link->is_shm)
        return NULL;
    const void *data = ring_peek(&link->shm.rx, bytes);
    if (link->shm.rx.corrupt || link->shm.ended)
        settle(link);
    return data;
}

void host_link_take(host_link *link, size_t bytes)
{
    if (link->state != HOST_LINK_READY || !link->is_shm || bytes == 0)
        return;
    ring_take(&link->shm.rx, bytes);
    link->shm.took = true;
    if (link->shm.ended)
        settle(link);
}

size_t host_link_small_max(const host_link *link)
{
    return link->state == HOST_LINK_READY && link->is_shm ? link->shm.lane_tx.most : 0;
}

bool host_link_write_small(host_link *link, lane_message *message, const void *payload)
{
    if (link->state != HOST_LINK_READY || !link->is_shm || link->shm.ended)
        return false;
    message->ring_at = (uint32_t)link->shm.tx.tail;
    bool done = lane_write(&link->shm.lane_tx, message, payload);
    link->shm.moved |= done;
    if (link->shm.lane_tx.corrupt)
        settle(link);
    return done;
}

const void *host_link_peek_small(host_link *link, lane_message *out)
{
    shm_stream *shm = &link->shm;
    if (link->state != HOST_LINK_READY || !link->is_shm || !lane_readable(&shm->lane_rx))
        return NULL;
    const void *payload = lane_peek(&shm->lane_rx, out);
    if (payload != NULL && out->ring_at != (uint32_t)shm->rx.head) {
        /* What was in the ring before it is visible too: an empty ring that is not there yet never will be. */
        shm->lane_rx.corrupt = !ring_readable(&shm->rx);
        payload = NULL;
    }
    if (shm->lane_rx.corrupt || shm->ended)
        settle(link);
    return payload;
}

void host_link_take_small(host_link *link)
{
    if (link->state != HOST_LINK_READY || !link->is_shm)
        return;
    lane_take(&link->shm.lane_rx);
    if (link->shm.ended)
        settle(link);
}

bool host_link_readable_stream(const host_link *link)
{
    if (link->state != HOST_LINK_READY)
        return false;
    if (link->is_shm)
        return ring_readable(&link->shm.rx);
    return link->tcp.readable || link->tcp.start != link->tcp.end;
}

bool host_link_readable(const host_link *link)
{
    if (link->state != HOST_LINK_READY)
        return false;
    if (link->is_shm)
        return lane_readable(&link->shm.lane_rx) || ring_readable(&link->shm.rx);
    return link->tcp.readable || link->tcp.start != link->tcp.end;
}

bool host_link_writable(const host_link *link)
{
    if (link->state != HOST_LINK_READY)
        return false;
    return link->is_shm ? !link->shm.ended && ring_writable(&link->shm.tx) : link->tcp.writable;
}

void host_link_flush(host_link *link)
{
    shm_stream *shm = &link->shm;
    if (!link->is_shm || link->state != HOST_LINK_READY || !(shm->moved || shm->took))
        return;
    peer_bell_fence(&shm->bell);
    if (shm->moved || ring_room_wanted(&shm->rx))
        peer_bell_ring(&shm->bell);
    shm->moved = false;
    shm->took = false;
}

bool host_link_single_copy(const host_link *link)
{
    return link->state == HOST_LINK_READY && link->is_shm && link->shm.memory.allowed;
}

psd_status host_link_read_remote(host_link *link, uint64_t remote_address, void *data, size_t bytes)
{
    if (link->state != HOST_LINK_READY)
        return PSD_ERR_LINK;
    if (!link->is_shm)
        return PSD_ERR_UNSUPPORTED;
    return peer_memory_read(&link->shm.memory, link->shm.fd, remote_address, data, bytes);
}

bool host_link_is_direct(const host_link *link)
{
    return link->state == HOST_LINK_READY && link->is_shm && link->shm.arena.base != NULL;
}

unsigned char *host_link_map(const host_link *link, uint64_t place, uint64_t bytes)
{
    return host_link_is_direct(link) ? peer_arena_at(&link->shm.arena, place, bytes) : NULL;
}

bool host_link_read_holds(const host_link *link)
{
    return host_link_is_direct(link) && !shm_peer_has_left(&link->shm);
}
