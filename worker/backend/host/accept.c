/* Handshakes that peers begin: the acceptor's side of handshake.h. A link exists once CONFIRM has come. */
#include "worker/backend/host/net.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static void end(host_net *net, pending *p)
{
    net_unwatch(net, p->channel.fd);
    handshake_channel_close(&p->channel);
    shm_drop(&p->shm);
    p->used = false;
    net->pending_count--;
    listen_resume(net);
}

static void drop_stranger(host_net *net, pending *p, const char *why)
{
    char who[ENDPOINT_TEXT];
    if (p->is_unix)
        snprintf(who, sizeof who, "a process of this host");
    else
        endpoint_format_peer(p->channel.fd, who, sizeof who);
    net_refuse(net, who, why);
    end(net, p);
}

/* Says why before it goes, to somebody who speaks the protocol. */
static void answer_refuse(host_net *net, pending *p, const handshake_frame *to, handshake_reason reason,
                          const char *text)
{
    handshake_frame frame;
    net_identify(net, &frame, HANDSHAKE_REFUSE, to->from, p->nonce, to->nonce);
    frame.reason = reason;
    snprintf(frame.text, sizeof frame.text, "%.*s", HANDSHAKE_TEXT - 1, text);
    (void)handshake_send(&p->channel, &frame, NULL, 0); /* it is given up anyway */
}

/* The oldest of those that have not said who they are. */
static pending *evictable(const host_net *net)
{
    pending *oldest = NULL;
    for (pending *p = net->pendings; p; p = p->next)
        if (p->used && p->expects == HANDSHAKE_HELLO && (!oldest || p->since < oldest->since))
            oldest = p;
    return oldest;
}

bool accept_has_place(host_net *net, psd_time_ns now)
{
    while (net->pending_count >= mesh_places(net->peers)) {
        pending *p = evictable(net);
        if (!p || now - p->since < NET_PENDING_EVICT_NS)
            return false;
        if (!accept_event(p)) /* else it had said something, and we had not listened */
            drop_stranger(net, p, "it said nothing while others waited");
    }
    return true;
}

psd_time_ns accept_next_place(const host_net *net)
{
    const pending *p = evictable(net);
    return p ? p->since + NET_PENDING_EVICT_NS : accept_deadline(net);
}

/* NULL: out of memory. */
static pending *free_place(host_net *net)
{
    pending *p = net->pendings;
    while (p && p->used)
        p = p->next;
    if (p)
        return p;
    p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->next = net->pendings;
    net->pendings = p;
    return p;
}

void accept_begin(host_net *net, int fd, bool is_unix, psd_time_ns now)
{
    pending *p = free_place(net);
    if (!p) {
        close(fd); /* the peer tries again */
        return;
    }
    *p = (pending){.source = {SOURCE_PENDING, net}, .next = p->next};
    p->is_unix = is_unix;
    p->expects = HANDSHAKE_HELLO;
    p->since = now;
    p->nonce = net_random();
    p->shm.fd = -1;
    handshake_channel_init(&p->channel, fd);
    p->used = true;
    net->pending_count++;
    if (!is_unix)
        tcp_configure(fd);
    if (!net_watch(net, fd, EPOLLIN | EPOLLRDHUP, &p->source))
        end(net, p);
    else
        (void)accept_event(p); /* a peer has mostly said HELLO already */
}

/* NULL if this is a peer of ours. */
static const char *check_hello(const host_net *net, const handshake_frame *hello, handshake_reason *reason)
{
    *reason = HANDSHAKE_STRANGER;
    if (hello->version != HANDSHAKE_VERSION) {
        *reason = HANDSHAKE_OTHER_VERSION;
        return "another protocol version";
    }
    if (hello->job != net->job_hash)
        return "another job";
    if (hello->to != net->address.incarnation)
        return "not the context looked for";
    if (hello->from == 0 || hello->from >= net->address.incarnation)
        return "the other side has to connect";
    return NULL;
}

static void on_hello(host_net *net, pending *p, const handshake_frame *hello)
{
    handshake_reason reason;
    handshake_frame frame;
    const char *why = check_hello(net, hello, &reason);
    if (why) {
        answer_refuse(net, p, hello, reason, why);
        drop_stranger(net, p, why);
        return;
    }
    p->incarnation = hello->from;
    p->peer_nonce = hello->nonce;
    if (p->is_unix && net->single_copy) {
        peer_memory_permit();
        peer_memory_probe(&p->shm.memory, p->channel.fd, hello->probe_address, hello->probe_value);
    }
    net_identify(net, &frame, HANDSHAKE_WELCOME, p->incarnation, p->nonce, p->peer_nonce);
    if (handshake_send(&p->channel, &frame, NULL, 0) != PSD_OK)
        end(net, p);
    else
        p->expects = p->is_unix ? HANDSHAKE_OFFER : HANDSHAKE_CONFIRM;
}

/* Maps what is offered; takes the fds that it keeps out of the channel. */
static psd_status take_offer(pending *p, const handshake_frame *offer, char *why, size_t why_bytes)
{
    int *fds = p->channel.fds;
    if (p->channel.fd_count != (offer->memory_bytes > 0 ? 4 : 3)) {
        snprintf(why, why_bytes, "wrong number of fds");
        return PSD_ERR_FORMAT;
    }
    psd_status status = shm_take_offer(&p->shm, offer->ring_bytes, fds[0], why, why_bytes);
    if (status != PSD_OK)
        return status;
    status = peer_bell_open(&p->shm.bell, &((const host_net *)p->source.owner)->bell, fds[1], fds[2], why,
                            why_bytes);
    if (status != PSD_OK)
        return status;
    const host_net *net = p->source.owner;
    if (net->arena.bytes > 0)
        shm_take_arena(&p->shm, fds[3], offer->memory_bytes);
    close(fds[0]);
    if (fds[3] >= 0)
        close(fds[3]);
    for (int i = 0; i < HANDSHAKE_FDS; i++)
        fds[i] = -1;
    p->channel.fd_count = 0;
    return PSD_OK;
}

static void on_offer(host_net *net, pending *p, const handshake_frame *offer)
{
    char why[256];
    handshake_frame frame;
    const int fds[3] = {net->bell.page_fd, net->bell.event_fd, net->arena.fd};
    psd_status status = take_offer(p, offer, why, sizeof why);
    if (status != PSD_OK) {
        answer_refuse(net, p, offer, HANDSHAKE_NO_MEMORY, why);
        if (status == PSD_ERR_FORMAT)
            drop_stranger(net, p, why);
        else
            end(net, p);
        return;
    }
    net_identify(net, &frame, HANDSHAKE_ACCEPT, p->incarnation, p->nonce, p->peer_nonce);
    frame.memory_bytes = p->shm.arena.base != NULL ? net->arena.bytes : 0;
    if (handshake_send(&p->channel, &frame, fds, frame.memory_bytes > 0 ? 3 : 2) != PSD_OK)
        end(net, p);
    else
        p->expects = HANDSHAKE_CONFIRM;
}

/* A newer connection of the same peer wins: the peer has given the older one up. */
static host_link *link_for(host_net *net, uint64_t incarnation)
{
    host_address peer;
    host_link *link = link_find(net, incarnation);
    if (link && link->state == HOST_LINK_CONNECTING)
        return link;
    if (link)
        link_break(link, PSD_ERR_LINK, "the peer has connected anew");
    memset(&peer, 0, sizeof peer);
    peer.incarnation = incarnation;
    return link_new(net, &peer);
}

static void on_confirm(host_net *net, pending *p, const handshake_frame *confirm)
{
    int fd = p->channel.fd;
    if (p->channel.fd_count > 0) {
        drop_stranger(net, p, "its handshake is out of order");
        return;
    }
    host_link *link = link_for(net, p->incarnation);
    if (!link) {
        end(net, p); /* out of memory */
        return;
    }
    p->channel.fd = -1;
    if (p->is_unix) {
        p->shm.fd = fd;
        if (confirm->memory_bytes == 0)
            peer_arena_close(&p->shm.arena);
        link_up_shm(link, &p->shm);
        memset(&p->shm, 0, sizeof p->shm);
        p->shm.fd = -1;
    } else {
        link_up_tcp(link, fd);
    }
    end(net, p);
}

static bool follows(const pending *p, const host_net *net, const handshake_frame *frame)
{
    return frame->version == HANDSHAKE_VERSION && frame->job == net->job_hash &&
           frame->from == p->incarnation && frame->to == net->address.incarnation &&
           frame->nonce == p->peer_nonce && frame->echo == p->nonce;
}

bool accept_event(pending *p)
{
    host_net *net = p->source.owner;
    handshake_frame frame;
    if (!p->used)
        return false;
    psd_status status = handshake_receive(&p->channel, &frame);
    if (status == PSD_INPROGRESS)
        return false;
    if (status == PSD_ERR_FORMAT)
        drop_stranger(net, p, "it does not speak the protocol of data links");
    else if (status != PSD_OK && p->expects == HANDSHAKE_HELLO)
        drop_stranger(net, p, "it closed before it said who it is");
    else if (status != PSD_OK)
        end(net, p);
    else if (frame.kind != p->expects || (p->expects != HANDSHAKE_HELLO && !follows(p, net, &frame)))
        drop_stranger(net, p, "its handshake is out of order");
    else if (p->expects == HANDSHAKE_HELLO)
        on_hello(net, p, &frame);
    else if (p->expects == HANDSHAKE_OFFER)
        on_offer(net, p, &frame);
    else
        on_confirm(net, p, &frame);
    return true;
}

void accept_expire(host_net *net, psd_time_ns now)
{
    psd_time_ns patience = mesh_patience(NET_HANDSHAKE_NS, net->peers);
    for (pending *p = net->pendings; p && net->pending_count > 0; p = p->next) {
        if (!p->used || now - p->since < patience)
            continue;
        if (p->expects == HANDSHAKE_HELLO)
            drop_stranger(net, p, "it did not say who it is");
        else
            end(net, p);
    }
}

void accept_close_all(host_net *net)
{
    for (pending *p = net->pendings, *next; p; p = next) {
        next = p->next;
        if (p->used)
            end(net, p);
        free(p);
    }
    net->pendings = NULL;
}

psd_time_ns accept_deadline(const host_net *net)
{
    psd_time_ns patience = mesh_patience(NET_HANDSHAKE_NS, net->peers);
    psd_time_ns deadline = PSD_NEVER;
    for (const pending *p = net->pendings; p && net->pending_count > 0; p = p->next)
        if (p->used && p->since + patience < deadline)
            deadline = p->since + patience;
    return deadline;
}
