/* A context's listeners, links and bell as one: open and close, the poll loop, sleeping. */
#include "worker/backend/host/net.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include <xxhash.h>

#include "common/log.h"

#define NET_LINGER_NS (2 * PSD_NS_PER_S) /* without progress */
#define EVENTS        64                 /* of one poll */

uint64_t net_random(void)
{
    uint64_t value;
    if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
        value =
            (uint64_t)psd_now_ns() * UINT64_C(0x9e3779b97f4a7c15); /* never happens: getrandom of 8 bytes */
    return value;
}

bool net_watch(host_net *net, int fd, uint32_t events, source *owner)
{
    struct epoll_event event = {.events = events, .data.ptr = owner};
    return epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void net_watch_change(host_net *net, int fd, uint32_t events, source *owner)
{
    struct epoll_event event = {.events = events, .data.ptr = owner};
    (void)epoll_ctl(net->epoll_fd, EPOLL_CTL_MOD, fd, &event); /* cannot fail for a watched fd */
}

bool net_is_ours(const host_net *net)
{
    return net->pid == getpid();
}

void net_unwatch(host_net *net, int fd)
{
    if (fd >= 0 && net_is_ours(net))
        (void)epoll_ctl(net->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

void net_refuse(host_net *net, const char *who, const char *why)
{
    net->refused++;
    /* Powers of two: a flood does not fill the log. */
    if ((net->refused & (net->refused - 1)) == 0)
        psd_log("host", PSD_LOG_WARN, "dropped %s on a data port: %s (%llu so far)", who, why,
                (unsigned long long)net->refused);
}

void net_identify(const host_net *net, handshake_frame *frame, handshake_kind kind, uint64_t to,
                  uint64_t nonce, uint64_t echo)
{
    memset(frame, 0, sizeof *frame);
    frame->kind = kind;
    frame->version = HANDSHAKE_VERSION;
    frame->job = net->job_hash;
    frame->from = net->address.incarnation;
    frame->to = to;
    frame->nonce = nonce;
    frame->echo = echo;
    frame->probe_address = (uint64_t)(uintptr_t)&net->probe_value;
    frame->probe_value = net->probe_value;
}

static psd_status read_config(host_net *net, const host_net_config *config, char *why, size_t why_bytes)
{
    const char *transport = config->transport ? config->transport : "auto";
    bool known = !strcmp(transport, "auto") || !strcmp(transport, "shm") || !strcmp(transport, "tcp");
    size_t ring = config->ring_bytes;
    if (!config->job || config->incarnation == 0) {
        snprintf(why, why_bytes, "a net needs a job and an incarnation");
        return PSD_ERR_INVAL;
    }
    if (!known) {
        snprintf(why, why_bytes, "transport \"%.32s\" is none of auto, shm, tcp", transport);
        return PSD_ERR_INVAL;
    }
    if (ring != 0 && (ring < HOST_RING_MIN || ring > HOST_RING_MAX || (ring & (ring - 1)) != 0)) {
        snprintf(why, why_bytes, "a ring of %zu bytes: it must be a power of two from 4 KiB to 1 GiB", ring);
        return PSD_ERR_INVAL;
    }
    net->want_shm = strcmp(transport, "tcp") != 0;
    net->want_tcp = strcmp(transport, "shm") != 0;
    unix_path_dir(config->run_dir, net->run_dir);
    net->ring_bytes = ring;
    net->single_copy = !config->no_single_copy;
    net->job_hash = XXH64(config->job, strlen(config->job), 0);
    net->address.incarnation = config->incarnation;
    net->probe_value = net_random();
    return PSD_OK;
}

/* Without shared memory there is still TCP, if that is allowed. */
static psd_status open_bell(host_net *net, char *why, size_t why_bytes)
{
    psd_status status = bell_open(&net->bell, net->want_shm, why, why_bytes);
    if (status == PSD_OK || !net->want_shm || !net->want_tcp)
        return status;
    psd_log("host", PSD_LOG_WARN, "all links use TCP: %s", why);
    net->want_shm = false;
    return bell_open(&net->bell, false, why, why_bytes);
}

/* Without it tensors go through the rings: slower, and all the same otherwise. */
static void open_arena(host_net *net)
{
    char why[160];
    net->arena.fd = -1;
    if (net->want_shm && arena_open(&net->arena, why, sizeof why) != PSD_OK)
        psd_log("host", PSD_LOG_WARN, "no tensor memory that peers can map: %s", why);
}

psd_status host_net_open(const host_net_config *config, host_net **out, char *why, size_t why_bytes)
{
    psd_status status = PSD_ERR_NOMEM;
    host_net *net = calloc(1, sizeof *net);
    if (!net) {
        snprintf(why, why_bytes, "out of memory for a net");
        goto none;
    }
    net->pid = getpid();
    net->unix_fd = -1;
    net->path_fd = -1;
    net->tcp_fd = -1;
    status = read_config(net, config, why, why_bytes);
    if (status != PSD_OK)
        goto net;
    net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (net->epoll_fd < 0) {
        snprintf(why, why_bytes, "cannot make an epoll: %s", strerror(errno));
        status = PSD_ERR_IO;
        goto net;
    }
    status = open_bell(net, why, why_bytes);
    if (status != PSD_OK)
        goto epoll;
    open_arena(net);
    net->bell_source = (source){SOURCE_BELL, net};
    if (!net_watch(net, net->bell.event_fd, EPOLLIN, &net->bell_source)) {
        snprintf(why, why_bytes, "cannot watch the bell: %s", strerror(errno));
        status = PSD_ERR_IO;
        goto bell;
    }
    status = listen_open(net, config->bind_host, why, why_bytes);
    if (status != PSD_OK)
        goto bell;
    *out = net;
    return PSD_OK;
bell:
    arena_close(&net->arena);
    bell_close(&net->bell);
epoll:
    close(net->epoll_fd);
net:
    free(net);
none:
    return status;
}

/* A socket that is closed with something unread, or that is sent something afterwards, resets the connection, and the
 * kernel forgets what has not been acknowledged: the peer would lose the end of a transfer that is complete here. So
 * wait until it is acknowledged, as long as it gets less. */
static void linger(const host_net *net)
{
    size_t before = 0;
    psd_time_ns deadline = psd_now_ns() + NET_LINGER_NS;
    for (;;) {
        size_t left = 0;
        for (const host_link *link = net->first; link; link = link->next)
            if (link->state == HOST_LINK_READY && !link->is_shm)
                left += tcp_stream_unacknowledged(&link->tcp);
        psd_time_ns now = psd_now_ns();
        if (left < before)
            deadline = now + NET_LINGER_NS;
        if (left == 0 || now >= deadline)
            return;
        before = left;
        (void)poll(NULL, 0, 1);
    }
}

void host_net_close(host_net *net)
{
    if (!net)
        return;
    if (net_is_ours(net))
        linger(net);
    while (net->first)
        link_free(net->first);
    accept_close_all(net);
    listen_close(net);
    arena_close(&net->arena);
    bell_close(&net->bell);
    close(net->epoll_fd);
    free(net);
}

psd_status host_net_address(const host_net *net, char *out, size_t bytes)
{
    return host_address_format(&net->address, out, bytes) ? PSD_OK : PSD_ERR_LIMIT;
}

static bool dispatch(host_net *net, const struct epoll_event *event, psd_time_ns now)
{
    source *from = event->data.ptr;
    host_link *link;
    switch (from->kind) {
    case SOURCE_UNIX_LISTENER:
    case SOURCE_PATH_LISTENER:
    case SOURCE_TCP_LISTENER:
        return listen_event(net, from->kind, now);
    case SOURCE_PENDING:
        return accept_event((pending *)from); /* its first field */
    case SOURCE_LINK:
        link = from->owner;
        return link->dial ? connect_event(link, event->events, now) : link_event(link, event->events);
    case SOURCE_BELL:
        bell_silence(&net->bell);
        break;
    }
    return false;
}

static void wait_tick(host_link *link, psd_time_ns now)
{
    char mine[PSD_MAX_ADDR] = "";
    char theirs[PSD_MAX_ADDR] = "";
    if (now < link->wait_deadline)
        return;
    (void)host_address_format(&link->net->address, mine, sizeof mine); /* both came from text that fits */
    (void)host_address_format(&link->peer, theirs, sizeof theirs);
    link_break(link, PSD_ERR_UNREACHABLE, "the peer %s has not connected to us at %s within %d s", theirs,
               mine, (int)(link->wait_ns / PSD_NS_PER_S));
}

static bool tick(host_net *net, psd_time_ns now)
{
    bool any = false;
    if (net->pending_count > 0)
        accept_expire(net, now);
    if (!net->listening && now >= net->listen_at)
        listen_resume(net);
    for (host_link *link = net->first; link && net->connecting > 0; link = link->next) {
        if (link->state != HOST_LINK_CONNECTING)
            continue;
        if (link->dial)
            connect_tick(link, now);
        else
            wait_tick(link, now);
        any |= link->state != HOST_LINK_CONNECTING;
    }
    return any;
}

static bool needs_clock(const host_net *net)
{
    return net->connecting > 0 || net->pending_count > 0 || !net->listening;
}

bool host_net_poll(host_net *net)
{
    struct epoll_event events[EVENTS];
    bool any = false;
    int count = epoll_wait(net->epoll_fd, events, EVENTS, 0);
    if (count <= 0 && !needs_clock(net)) {
        link_reap(net);
        return false;
    }
    psd_time_ns now = psd_now_ns();
    for (int i = 0; i < count; i++)
        any |= dispatch(net, &events[i], now);
    if (needs_clock(net))
        any |= tick(net, now);
    link_reap(net);
    return any;
}

psd_time_ns host_net_deadline(const host_net *net)
{
    psd_time_ns deadline = accept_deadline(net);
    if (!net->listening && net->listen_at < deadline)
        deadline = net->listen_at;
    if (net->connecting == 0)
        return deadline;
    for (const host_link *link = net->first; link; link = link->next) {
        if (link->state != HOST_LINK_CONNECTING)
            continue;
        psd_time_ns at = link->dial ? connect_deadline(link) : link->wait_deadline;
        if (at < deadline)
            deadline = at;
    }
    return deadline;
}

arena *host_net_arena(host_net *net)
{
    return &net->arena;
}

bool host_net_needs_kernel(const host_net *net)
{
    return net->connecting > 0 || net->tcp_links > 0 || net->pending_count > 0;
}

void host_net_arm(host_net *net)
{
    bell_arm(&net->bell);
}

void host_net_disarm(host_net *net)
{
    bell_disarm(&net->bell);
}

/* poll on the epoll itself: it does not take the edge-triggered events away from host_net_poll. */
void host_net_sleep(host_net *net, psd_time_ns deadline)
{
    struct pollfd waits = {.fd = net->epoll_fd, .events = POLLIN};
    struct timespec timeout;
    psd_time_ns left = deadline == PSD_NEVER ? PSD_NEVER : deadline - psd_now_ns();
    if (left < 0)
        left = 0;
    timeout.tv_sec = left / PSD_NS_PER_S;
    timeout.tv_nsec = left % PSD_NS_PER_S;
    (void)ppoll(&waits, 1, deadline == PSD_NEVER ? NULL : &timeout, NULL); /* waking early is allowed */
}

void host_net_wake(host_net *net)
{
    bell_wake(&net->bell);
}

int host_net_fd(const host_net *net)
{
    return net->epoll_fd;
}

uint64_t host_net_refused(const host_net *net)
{
    return net->refused;
}
