/* Handshakes that we begin: the connector's side of handshake.h. The unix socket first: as abstract, which
 * works if and only if the peer is in our network namespace, then as a file, which works if it shares our
 * run directory; then the peer's TCP addresses one after the other, again and
 * again until the deadline (a refused connection may be a race, a lost packet is not the end). */
#include "worker/backend/host/net.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/conf.h"
#include "common/log.h"

#define PAUSE_FIRST_NS   (20 * PSD_NS_PER_MS)
#define PAUSE_MOST_NS    (400 * PSD_NS_PER_MS)
#define ATTEMPT_LEAST_NS (500 * PSD_NS_PER_MS)

static void close_attempt(host_link *link)
{
    dial *d = link->dial;
    net_unwatch(link->net, d->channel.fd);
    handshake_channel_close(&d->channel);
    shm_drop(&d->shm);
}

void connect_end(host_link *link)
{
    if (!link->dial)
        return;
    if (link->dial->has_turn)
        link->net->dialing--;
    close_attempt(link);
    free(link->dial);
    link->dial = NULL;
}

/* Everything that was tried, and what came of it. */
static void give_up(host_link *link)
{
    const dial *d = link->dial;
    char text[NET_TEXT] = "";
    if (d->unix_note[0])
        psd_append(text, sizeof text, " shared memory: %s;", d->unix_note);
    for (uint32_t i = 0; i < link->peer.tcp_count && link->net->want_tcp; i++) {
        char to[ENDPOINT_TEXT];
        endpoint_format(&link->peer.tcp[i], to, sizeof to);
        psd_append(text, sizeof text, " tcp %s: %s;", to,
                   d->tcp_notes[i][0] ? d->tcp_notes[i] : "not tried in time");
    }
    if (text[0])
        text[strlen(text) - 1] = '\0';
    link_break(link, PSD_ERR_UNREACHABLE, "cannot connect to the peer:%s",
               text[0] ? text : " it has no address that this transport can use");
}

/* What came of the attempt at work. */
static void note(host_link *link, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(host_link *link, const char *format, ...)
{
    dial *d = link->dial;
    char *out = d->is_unix ? d->unix_note : d->tcp_notes[d->target];
    size_t bytes = d->is_unix ? sizeof d->unix_note : sizeof d->tcp_notes[0];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out, bytes, format, arguments);
    va_end(arguments);
    if (d->is_unix || d->channel.fd < 0)
        return;
    char from[ENDPOINT_TEXT];
    psd_append(out, bytes, " (from %s)", endpoint_format_local(d->channel.fd, from, sizeof from));
}

static void begin_attempt(host_link *link, psd_time_ns now);

static void pause_dial(dial *d, psd_time_ns now)
{
    d->stage = DIAL_PAUSE;
    d->retry_at = now + d->pause;
    d->pause = d->pause * 2 < PAUSE_MOST_NS ? d->pause * 2 : PAUSE_MOST_NS;
}

/* After a failed attempt, noted already. */
static void next_attempt(host_link *link, psd_time_ns now)
{
    dial *d = link->dial;
    host_net *net = link->net;
    close_attempt(link);
    bool tcp = net->want_tcp && link->peer.tcp_count > 0;
    if (now >= d->deadline || (d->unix_over && !tcp)) {
        give_up(link);
        return;
    }
    if (!d->unix_over || (!d->is_unix && ++d->target == link->peer.tcp_count)) {
        d->target = 0;
        pause_dial(d, now);
        return;
    }
    begin_attempt(link, now);
}

/* Shared memory does not work with this peer: the reason is noted. */
static void unix_over(host_link *link, psd_time_ns now)
{
    link->dial->unix_over = true;
    next_attempt(link, now);
}

static int open_unix(const host_link *link, struct sockaddr_storage *to, socklen_t *length)
{
    struct sockaddr_un *name = (struct sockaddr_un *)to;
    size_t text = strlen(link->peer.unix_name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->dial->by_path) {
        (void)unix_path_address(link->net->run_dir, link->peer.unix_name,
                                name); /* try_path has seen that it fits */
        *length = sizeof *name;
        return fd;
    }
    memset(to, 0, sizeof *to);
    name->sun_family = AF_UNIX;
    memcpy(name->sun_path + 1, link->peer.unix_name, text);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + text);
    return fd;
}

/* From the address that we are bound to, if we are. */
static void bind_source(const host_net *net, int fd, sa_family_t family)
{
    for (uint32_t i = 0; net->restricted && i < net->address.tcp_count; i++) {
        endpoint mine = net->address.tcp[i];
        struct sockaddr_storage storage;
        if (mine.family != family)
            continue;
        mine.port = 0;
        socklen_t length = endpoint_to_sockaddr(&mine, &storage);
        (void)bind(fd, (struct sockaddr *)&storage, length); /* else the kernel chooses */
        return;
    }
}

static int open_tcp(const host_link *link, struct sockaddr_storage *to, socklen_t *length)
{
    const endpoint *peer = &link->peer.tcp[link->dial->target];
    *length = endpoint_to_sockaddr(peer, to);
    int fd = socket(peer->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    tcp_configure(fd);
    bind_source(link->net, fd, peer->family);
    return fd;
}

static void say_hello(host_link *link, psd_time_ns now)
{
    dial *d = link->dial;
    handshake_frame frame;
    d->nonce = net_random();
    if (d->is_unix && link->net->single_copy)
        peer_memory_permit(); /* before the acceptor tries */
    net_identify(link->net, &frame, HANDSHAKE_HELLO, link->peer.incarnation, d->nonce, 0);
    if (handshake_send(&d->channel, &frame, NULL, 0) != PSD_OK) {
        note(link, "%s", strerror(errno));
        next_attempt(link, now);
        return;
    }
    d->stage = DIAL_WELCOME;
    net_watch_change(link->net, d->channel.fd, EPOLLIN | EPOLLRDHUP, &link->source);
}

/* Nobody has that abstract name in our network namespace. Is there a file of that name? */
static void try_path(host_link *link, psd_time_ns now)
{
    struct sockaddr_un address;
    link->dial->by_path = true;
    if (unix_path_address(link->net->run_dir, link->peer.unix_name, &address)) {
        close_attempt(link);
        begin_attempt(link, now);
        return;
    }
    note(link, "the peer is not on this host, or in another network namespace");
    unix_over(link, now);
}

static void connect_failed(host_link *link, int error, psd_time_ns now)
{
    const dial *d = link->dial;
    note(link, "%s", strerror(error));
    if (d->is_unix && d->by_path && error != EAGAIN) {
        note(link, "the peer is not on this host, or shares neither network namespace nor %s with us (%s)",
             link->net->run_dir, strerror(error));
        unix_over(link, now);
    } else if (d->is_unix && error == ECONNREFUSED) {
        try_path(link, now);
    } else {
        next_attempt(link, now);
    }
}

static psd_time_ns attempt_deadline(const host_link *link, psd_time_ns now)
{
    const dial *d = link->dial;
    if (d->is_unix)
        return d->deadline; /* connected: it is the peer, however slow */
    psd_time_ns share = (d->deadline - now) / (psd_time_ns)(link->peer.tcp_count - d->target);
    psd_time_ns end = now + (share > ATTEMPT_LEAST_NS ? share : ATTEMPT_LEAST_NS);
    return end < d->deadline ? end : d->deadline;
}

static void begin_attempt(host_link *link, psd_time_ns now)
{
    dial *d = link->dial;
    struct sockaddr_storage to;
    socklen_t length;
    d->is_unix = !d->unix_over;
    int fd = d->is_unix ? open_unix(link, &to, &length) : open_tcp(link, &to, &length);
    handshake_channel_init(&d->channel, fd);
    if (fd < 0 || !net_watch(link->net, fd, EPOLLOUT, &link->source)) {
        note(link, "no socket: %s", strerror(errno));
        close_attempt(link);
        pause_dial(d, now);
        return;
    }
    d->attempt_deadline = attempt_deadline(link, now);
    d->stage = DIAL_CONNECTING;
    if (connect(fd, (struct sockaddr *)&to, length) == 0)
        say_hello(link, now);
    else if (errno != EINPROGRESS)
        connect_failed(link, errno, now);
}

psd_status connect_begin(host_link *link, psd_time_ns now)
{
    const host_net *net = link->net;
    dial *d = calloc(1, sizeof *d);
    if (!d)
        return PSD_ERR_NOMEM;
    link->dial = d;
    d->deadline = PSD_NEVER; /* begins with its turn */
    d->pause = PAUSE_FIRST_NS;
    d->shm.fd = -1;
    handshake_channel_init(&d->channel, -1);
    d->is_unix = true;
    d->unix_over = !net->want_shm || net->no_room[0] != '\0' || link->peer.unix_name[0] == '\0';
    if (d->unix_over)
        snprintf(d->unix_note, sizeof d->unix_note, "%s",
                 !net->want_shm    ? "switched off here"
                 : net->no_room[0] ? net->no_room
                                   : "the peer does not offer it");
    /* Attempts may break the link at once; a link under construction must not: so the first is made by the
     * next poll. */
    d->stage = DIAL_QUEUED;
    d->retry_at = now;
    return PSD_OK;
}

/* Few at a time: a hundred ranks that all began with everybody at once would keep each other from answering. */
static void take_turn(host_link *link, psd_time_ns now)
{
    dial *d = link->dial;
    host_net *net = link->net;
    if (net->dialing == NET_DIALS)
        return;
    net->dialing++;
    d->has_turn = true;
    d->deadline = now + mesh_patience(NET_CONNECT_NS, net->peers);
    begin_attempt(link, now);
}

static bool is_peer(const host_link *link, const handshake_frame *frame)
{
    const host_net *net = link->net;
    return frame->version == HANDSHAKE_VERSION && frame->job == net->job_hash &&
           frame->from == link->peer.incarnation && frame->to == net->address.incarnation &&
           frame->echo == link->dial->nonce;
}

static bool send_or_next(host_link *link, handshake_kind kind, const int *fds, uint32_t fd_count,
                         psd_time_ns now)
{
    dial *d = link->dial;
    handshake_frame frame;
    net_identify(link->net, &frame, kind, link->peer.incarnation, d->nonce, d->peer_nonce);
    frame.ring_bytes = d->shm.tx.size; /* of an offer; else 0 */
    bool may_map = kind == HANDSHAKE_OFFER || d->shm.arena.base != NULL;
    frame.memory_bytes = d->is_unix && may_map ? link->net->arena.bytes : 0;
    if (handshake_send(&d->channel, &frame, fds, fd_count) == PSD_OK)
        return true;
    note(link, "%s", strerror(errno));
    next_attempt(link, now);
    return false;
}

static void offer_memory(host_link *link, psd_time_ns now)
{
    dial *d = link->dial;
    host_net *net = link->net;
    char why[sizeof d->unix_note];
    int segment_fd;
    uint64_t ring_bytes = net->ring_bytes ? net->ring_bytes : mesh_ring_bytes(net->peers);
    if (shm_offer(&d->shm, &net->room, ring_bytes, &segment_fd, why, sizeof why) != PSD_OK) {
        note(link, "%s", why);
        if (net->want_tcp)
            psd_log("host", PSD_LOG_WARN, "link to %016" PRIx64 " uses TCP on the same host: %s",
                    link->peer.incarnation, why);
        unix_over(link, now);
        return;
    }
    const int fds[4] = {segment_fd, net->bell.page_fd, net->bell.event_fd, net->arena.fd};
    bool sent = send_or_next(link, HANDSHAKE_OFFER, fds, net->arena.bytes > 0 ? 4 : 3, now);
    close(segment_fd);
    if (sent)
        d->stage = DIAL_ACCEPT;
}

static void on_welcome(host_link *link, const handshake_frame *frame, psd_time_ns now)
{
    dial *d = link->dial;
    d->peer_nonce = frame->nonce;
    if (d->is_unix) {
        if (link->net->single_copy)
            peer_memory_probe(&d->shm.memory, d->channel.fd, frame->probe_address, frame->probe_value);
        offer_memory(link, now);
        return;
    }
    if (!send_or_next(link, HANDSHAKE_CONFIRM, NULL, 0, now))
        return;
    int fd = d->channel.fd;
    d->channel.fd = -1;
    link_up_tcp(link, fd);
}

static void on_accept(host_link *link, const handshake_frame *frame, psd_time_ns now)
{
    dial *d = link->dial;
    char why[256];
    int *fds = d->channel.fds;
    bool is_complete = d->channel.fd_count == (frame->memory_bytes > 0 ? 3 : 2);
    if (!is_complete ||
        peer_bell_open(&d->shm.bell, &link->net->bell, fds[0], fds[1], why, sizeof why) != PSD_OK) {
        note(link, "%s", !is_complete ? "the peer sent no bell" : why);
        unix_over(link, now);
        return;
    }
    fds[0] = fds[1] = -1;
    if (fds[2] >= 0 && link->net->arena.bytes > 0)
        shm_take_arena(&d->shm, fds[2], frame->memory_bytes);
    if (fds[2] >= 0)
        close(fds[2]);
    fds[2] = -1;
    d->channel.fd_count = 0;
    if (!send_or_next(link, HANDSHAKE_CONFIRM, NULL, 0, now))
        return;
    shm_stream shm = d->shm;
    shm.fd = d->channel.fd;
    d->channel.fd = -1;
    memset(&d->shm, 0, sizeof d->shm);
    d->shm.fd = -1;
    link_up_shm(link, &shm);
}

static void on_refuse(host_link *link, const handshake_frame *frame, psd_time_ns now)
{
    dial *d = link->dial;
    note(link, "refused: %s", frame->text);
    if (frame->reason == HANDSHAKE_OTHER_VERSION)
        link_break(
            link, PSD_ERR_UNREACHABLE,
            "the peer speaks protocol version %u of data links, we speak %d: build both from one source",
            frame->version, HANDSHAKE_VERSION);
    else if (d->is_unix)
        unix_over(link, now);
    else
        next_attempt(link, now);
}

static void on_frame(host_link *link, const handshake_frame *frame, psd_time_ns now)
{
    const dial *d = link->dial;
    if (frame->kind == HANDSHAKE_REFUSE && frame->from == link->peer.incarnation) {
        on_refuse(link, frame, now);
    } else if (!is_peer(link, frame)) {
        note(link, "somebody else answers there");
        next_attempt(link, now);
    } else if (d->stage == DIAL_WELCOME && frame->kind == HANDSHAKE_WELCOME) {
        on_welcome(link, frame, now);
    } else if (d->stage == DIAL_ACCEPT && frame->kind == HANDSHAKE_ACCEPT && frame->nonce == d->peer_nonce) {
        on_accept(link, frame, now);
    } else {
        note(link, "its handshake is out of order");
        next_attempt(link, now);
    }
}

static void receive(host_link *link, psd_time_ns now)
{
    dial *d = link->dial;
    handshake_frame frame;
    psd_status status = handshake_receive(&d->channel, &frame);
    if (status == PSD_INPROGRESS)
        return;
    if (status == PSD_OK) {
        on_frame(link, &frame, now);
        return;
    }
    if (status == PSD_ERR_FORMAT)
        note(link, "somebody else answers there");
    else
        note(link, "%s", errno ? strerror(errno) : "closed in the handshake");
    next_attempt(link, now);
}

bool connect_event(host_link *link, uint32_t events, psd_time_ns now)
{
    dial *d = link->dial;
    if (d->stage == DIAL_CONNECTING) {
        int error = 0;
        socklen_t length = sizeof error;
        if (!(events & (EPOLLOUT | EPOLLHUP | EPOLLERR)))
            return false;
        if (getsockopt(d->channel.fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
            error = errno;
        if (error != 0)
            connect_failed(link, error, now);
        else
            say_hello(link, now);
        return true;
    }
    if (d->stage == DIAL_WELCOME || d->stage == DIAL_ACCEPT)
        receive(link, now);
    return true;
}

void connect_tick(host_link *link, psd_time_ns now)
{
    dial *d = link->dial;
    if (d->stage == DIAL_QUEUED) {
        take_turn(link, now);
    } else if (d->stage == DIAL_PAUSE) {
        if (now >= d->deadline)
            give_up(link);
        else if (now >= d->retry_at)
            begin_attempt(link, now);
    } else if (now >= d->attempt_deadline) {
        note(link, "%s", d->stage == DIAL_CONNECTING ? "timed out connecting" : "connected, then no answer");
        next_attempt(link, now);
    }
}

psd_time_ns connect_deadline(const host_link *link)
{
    const dial *d = link->dial;
    if (d->stage == DIAL_QUEUED)
        return link->net->dialing < NET_DIALS ? d->retry_at : PSD_NEVER;
    if (d->stage != DIAL_PAUSE)
        return d->attempt_deadline;
    return d->retry_at < d->deadline ? d->retry_at : d->deadline;
}
