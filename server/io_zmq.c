#include "server/io_zmq.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "common/log.h"

#define ROUTING_ID_BYTES  5 /* of a DEALER without an identity of its own: 0, then a number of ZeroMQ's */
#define QUEUE_MESSAGES    4096
#define BACKLOG           4096
#define HANDSHAKE_MS      5000 /* then a connection that has not spoken ZMTP is closed */
#define HEARTBEAT_MS      2000
#define HEARTBEAT_LOST_MS 6000
#define MONITOR_ADDRESS   "inproc://psd-monitor"
#define MONITOR_PER_TURN  4096
#define ACCEPT_TOLD_NS    (60 * PSD_NS_PER_S)
#define ZAP_ADDRESS       "inproc://zeromq.zap.01"
#define ZAP_DOMAIN        "psd"
#define ZAP_PER_TURN      1024
#define ENDPOINT_BYTES    256

struct psd_io {
    void *context;
    void *router;
    void *monitor;
    void *zap;
    zmq_msg_t message; /* the one that the last packet points into */
    char endpoint[ENDPOINT_BYTES];
    psd_peers peers;
    psd_io_stats stats;
    bool handshake_warned;
    psd_time_ns accept_told; /* when a connection that could not be accepted was logged; 0: never */
};

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

static bool configure(void *router, const char *endpoint)
{
    /* With IPv6 on, an IPv4 address would be bound, and printed, as ::ffff:127.0.0.1. */
    int v6 = strpbrk(endpoint, "[*") != NULL;
    int64_t max_frame = PSD_MAX_FRAME;
    return set_int(router, ZMQ_ROUTER_MANDATORY, 1) && set_int(router, ZMQ_LINGER, 0) &&
           set_int(router, ZMQ_SNDHWM, QUEUE_MESSAGES) && set_int(router, ZMQ_RCVHWM, QUEUE_MESSAGES) &&
           set_int(router, ZMQ_BACKLOG, BACKLOG) && set_int(router, ZMQ_IPV6, v6) &&
           set_int(router, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) &&
           set_int(router, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS) &&
           set_int(router, ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_LOST_MS) &&
           set_int(router, ZMQ_HEARTBEAT_TTL, HEARTBEAT_LOST_MS) &&
           zmq_setsockopt(router, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) == 0 &&
           zmq_setsockopt(router, ZMQ_MAXMSGSIZE, &max_frame, sizeof(max_frame)) == 0;
}

static bool open_monitor(psd_io *io)
{
    int events = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_ACCEPT_FAILED;
    if (zmq_socket_monitor(io->router, MONITOR_ADDRESS, events) != 0)
        return false;
    io->monitor = zmq_socket(io->context, ZMQ_PAIR);
    /* No limit on this queue: ZeroMQ's own thread would block on a full one. It is emptied each turn. */
    return io->monitor != NULL && set_int(io->monitor, ZMQ_RCVHWM, 0) &&
           set_int(io->monitor, ZMQ_LINGER, 0) && zmq_connect(io->monitor, MONITOR_ADDRESS) == 0;
}

/* The ZMTP handshake asks here whether a peer may come (rfc.zeromq.org/spec/27). All may; but with somebody to ask,
 * ZeroMQ turns away peers of ZMTP 1.0, which has no greeting, so that any bytes are taken for one, and libzmq 4.3.4 may
 * abort on them. */
static bool open_zap(psd_io *io)
{
    io->zap = zmq_socket(io->context, ZMQ_REP);
    return io->zap != NULL && set_int(io->zap, ZMQ_LINGER, 0) && set_int(io->zap, ZMQ_RCVHWM, 0) &&
           zmq_bind(io->zap, ZAP_ADDRESS) == 0;
}

static void answer_one(psd_io *io, const uint8_t *request, size_t bytes)
{
    const char *const answer[] = {"200", "OK", "", ""}; /* status, text, user, metadata */
    zmq_send(io->zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(io->zap, request, bytes, ZMQ_SNDMORE);
    for (int i = 0; i < 4; i++)
        zmq_send(io->zap, answer[i], strlen(answer[i]), i < 3 ? ZMQ_SNDMORE : 0);
}

/* Requests come from ZeroMQ itself: version, request id, domain, address, routing id, mechanism. */
static void answer_handshakes(psd_io *io)
{
    uint8_t part[256], request[256];
    for (int i = 0; i < ZAP_PER_TURN; i++) {
        size_t bytes = 0;
        int more = 1;
        int got = zmq_recv(io->zap, part, sizeof(part), ZMQ_DONTWAIT);
        if (got < 0)
            return;
        for (int at = 1; more; at++) {
            size_t size = sizeof(more);
            got = zmq_recv(io->zap, part, sizeof(part), 0);
            if (at == 1 && got >= 0 && (size_t)got <= sizeof(part)) {
                bytes = (size_t)got;
                memcpy(request, part, bytes);
            }
            if (got < 0 || zmq_getsockopt(io->zap, ZMQ_RCVMORE, &more, &size) != 0)
                break;
        }
        answer_one(io, request, bytes);
    }
}

/* Sockets first, then the context, which waits for them. Keeps errno. */
static void close_sockets(psd_io *io, int linger_ms)
{
    int saved = errno;
    if (io->router != NULL) {
        zmq_socket_monitor(io->router, NULL, 0);
        set_int(io->router, ZMQ_LINGER, linger_ms);
    }
    if (io->monitor != NULL)
        zmq_close(io->monitor);
    if (io->router != NULL)
        zmq_close(io->router);
    if (io->zap != NULL)
        zmq_close(io->zap);
    if (io->context != NULL)
        while (zmq_ctx_term(io->context) != 0 && errno == EINTR)
            continue;
    io->monitor = NULL;
    io->router = NULL;
    io->zap = NULL;
    io->context = NULL;
    errno = saved;
}

static psd_status open_sockets(psd_io *io, const char *endpoint, int *error)
{
    psd_status status = PSD_ERR_IO;
    size_t bytes = sizeof(io->endpoint);
    io->context = zmq_ctx_new();
    if (io->context == NULL || !open_zap(io))
        goto failed;
    io->router = zmq_socket(io->context, ZMQ_ROUTER);
    if (io->router == NULL || !configure(io->router, endpoint) || !open_monitor(io))
        goto failed;
    if (zmq_bind(io->router, endpoint) != 0)
        goto failed;
    if (zmq_getsockopt(io->router, ZMQ_LAST_ENDPOINT, io->endpoint, &bytes) != 0)
        goto failed;
    return PSD_OK;
failed:
    *error = errno;
    close_sockets(io, 0);
    return status;
}

psd_status psd_io_open(const char *endpoint, psd_io **out, int *error)
{
    psd_io *io = calloc(1, sizeof(*io));
    if (io == NULL) {
        *error = ENOMEM;
        return PSD_ERR_NOMEM;
    }
    *error = ENOMEM;
    psd_status status = psd_peers_init(&io->peers);
    if (status != PSD_OK)
        goto free_io;
    status = open_sockets(io, endpoint, error);
    if (status != PSD_OK)
        goto free_peers;
    zmq_msg_init(&io->message);
    *out = io;
    return PSD_OK;
free_peers:
    psd_peers_free(&io->peers);
free_io:
    free(io);
    return status;
}

void psd_io_close(psd_io *io, int linger_ms)
{
    if (io == NULL)
        return;
    zmq_msg_close(&io->message);
    close_sockets(io, linger_ms);
    psd_peers_free(&io->peers);
    free(io);
}

psd_status psd_io_reopen(psd_io *io, int *error)
{
    char endpoint[ENDPOINT_BYTES];
    snprintf(endpoint, sizeof(endpoint), "%s", io->endpoint);
    zmq_msg_close(&io->message);
    zmq_msg_init(&io->message);
    close_sockets(io, 0);
    psd_peers_clear(&io->peers);
    return open_sockets(io, endpoint, error);
}

const char *psd_io_endpoint(const psd_io *io)
{
    return io->endpoint;
}

psd_io_stats *psd_io_statistics(psd_io *io)
{
    return &io->stats;
}

psd_peers *psd_io_peers(psd_io *io)
{
    return &io->peers;
}

void psd_io_wait(psd_io *io, const int *fds, bool *readable, size_t count, int timeout_ms)
{
    enum { OWN = 3 };
    zmq_pollitem_t items[OWN + PSD_IO_MAX_FDS] = {{.socket = io->router, .events = ZMQ_POLLIN},
                                                  {.socket = io->monitor, .events = ZMQ_POLLIN},
                                                  {.socket = io->zap, .events = ZMQ_POLLIN}};
    if (count > PSD_IO_MAX_FDS)
        count = PSD_IO_MAX_FDS;
    for (size_t i = 0; i < count; i++)
        items[OWN + i] = (zmq_pollitem_t){.fd = fds[i], .events = ZMQ_POLLIN};
    int ready = zmq_poll(items, (int)(OWN + count), timeout_ms);
    if ((items[2].revents & ZMQ_POLLIN) != 0)
        answer_handshakes(io);
    for (size_t i = 0; i < count; i++)
        readable[i] = ready > 0 && (items[OWN + i].revents & ZMQ_POLLIN) != 0;
}

/* The routing id as a number: its 32 random-start bits, and a bit that keeps 0 free for "nobody". */
static psd_peer peer_of(const uint8_t *id)
{
    psd_peer peer = 1;
    for (int i = 1; i < ROUTING_ID_BYTES; i++)
        peer = peer << 8 | id[i];
    return peer;
}

static void routing_id_of(psd_peer peer, uint8_t *id)
{
    id[0] = 0;
    for (int i = ROUTING_ID_BYTES - 1; i > 0; i--) {
        id[i] = (uint8_t)(peer & 0xff);
        peer >>= 8;
    }
}

static bool receive_part(psd_io *io)
{
    zmq_msg_close(&io->message);
    zmq_msg_init(&io->message);
    return zmq_msg_recv(&io->message, io->router, ZMQ_DONTWAIT) >= 0;
}

/* Reads and drops the rest of a multipart message. */
static psd_status drop_parts(psd_io *io)
{
    while (zmq_msg_more(&io->message) && receive_part(io))
        continue;
    io->stats.bad_shape++;
    return PSD_ERR_FORMAT;
}

static int connection_fd(zmq_msg_t *message)
{
    return zmq_msg_get(message, ZMQ_SRCFD);
}

static psd_status note_sender(psd_io *io, psd_peer peer, size_t bytes, psd_time_ns now)
{
    psd_status status = PSD_OK;
    psd_peer_entry *entry = psd_peers_find(&io->peers, peer);
    if (entry == NULL) {
        const char *address = zmq_msg_gets(&io->message, "Peer-Address");
        status = psd_peers_add(&io->peers, peer, connection_fd(&io->message), address == NULL ? "?" : address,
                               now);
        entry = psd_peers_find(&io->peers, peer);
    }
    if (entry != NULL) {
        entry->messages++;
        entry->bytes += bytes;
    }
    return status;
}

psd_status psd_io_receive(psd_io *io, psd_time_ns now, psd_io_packet *out)
{
    uint8_t id[ROUTING_ID_BYTES];
    if (!receive_part(io))
        return PSD_AGAIN;
    const uint8_t *name = zmq_msg_data(&io->message);
    if (zmq_msg_size(&io->message) != sizeof(id) || name[0] != 0 || !zmq_msg_more(&io->message))
        return drop_parts(io);
    memcpy(id, name, sizeof(id));
    if (!receive_part(io) || zmq_msg_more(&io->message))
        return drop_parts(io);
    psd_peer peer = peer_of(id);
    size_t bytes = zmq_msg_size(&io->message);
    psd_status status = note_sender(io, peer, bytes, now);
    if (status != PSD_OK)
        return status;
    io->stats.received++;
    *out = (psd_io_packet){.peer = peer, .data = zmq_msg_data(&io->message), .bytes = bytes};
    return PSD_OK;
}

psd_status psd_io_send(psd_io *io, psd_peer peer, const void *data, size_t bytes)
{
    uint8_t id[ROUTING_ID_BYTES];
    routing_id_of(peer, id);
    if (zmq_send(io->router, id, sizeof(id), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(io->router, data, bytes, ZMQ_DONTWAIT) < 0) {
        if (errno == EAGAIN) {
            io->stats.full++;
            return PSD_AGAIN;
        }
        if (errno == EHOSTUNREACH) {
            io->stats.vanished++;
            return PSD_ERR_UNREACHABLE;
        }
        return PSD_ERR_IO;
    }
    io->stats.sent++;
    return PSD_OK;
}

/* One event: a frame with its number and value, a frame with the endpoint. False: none is there. */
static bool next_event(psd_io *io, uint16_t *event, int32_t *value)
{
    uint8_t head[6] = {0};
    char endpoint[ENDPOINT_BYTES];
    if (zmq_recv(io->monitor, head, sizeof(head), ZMQ_DONTWAIT) < 0)
        return false;
    zmq_recv(io->monitor, endpoint, sizeof(endpoint), ZMQ_DONTWAIT);
    memcpy(event, head, sizeof(*event));
    memcpy(value, head + sizeof(*event), sizeof(*value));
    return true;
}

/* ZeroMQ tries again at once, for ever. */
static void tell_accept_failed(psd_io *io, int error, psd_time_ns now)
{
    if (io->accept_told != 0 && now - io->accept_told < ACCEPT_TOLD_NS)
        return;
    io->accept_told = now;
    psd_log("psd", PSD_LOG_WARN, "a connection to %s cannot be accepted, with %zu open: %s%s", io->endpoint,
            io->peers.count, strerror(error),
            error == EMFILE ? ": raise the limit of open files (ulimit -n) and start psd again" : "");
}

void psd_io_monitor(psd_io *io, psd_time_ns now)
{
    uint16_t event = 0;
    int32_t value = 0;
    for (int i = 0; i < MONITOR_PER_TURN && next_event(io, &event, &value); i++) {
        if (event == ZMQ_EVENT_DISCONNECTED) {
            psd_peers_disconnected(&io->peers, value, now);
            continue;
        }
        if (event == ZMQ_EVENT_ACCEPT_FAILED) {
            tell_accept_failed(io, value, now);
            continue;
        }
        io->stats.handshakes++;
        if (!io->handshake_warned)
            psd_log(
                "psd", PSD_LOG_WARN,
                "a connection to %s does not speak the psd protocol (closed; further ones are only counted)",
                io->endpoint);
        io->handshake_warned = true;
    }
    /* Lets ZeroMQ take note of connections that its own thread has ended, so that a probe tells the truth. */
    int events = 0;
    size_t bytes = sizeof(events);
    zmq_getsockopt(io->router, ZMQ_EVENTS, &events, &bytes);
}
