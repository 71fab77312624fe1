#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POOL_LIMIT    (64u << 20)
#define FLUSH_LIMIT   (2 * PSD_NS_PER_S) /* a closing context waits this long for its last frames to leave */
#define READY_AT_ONCE 16

/* ----------------------------------------------------------------------------------------------- the lock */

void engine_lock(engine *e)
{
    if (pthread_mutex_trylock(&e->lock) == 0)
        return;
    atomic_fetch_add(&e->contenders, 1); /* so that a spinning driver makes room */
    pthread_mutex_lock(&e->lock);
    atomic_fetch_sub(&e->contenders, 1);
}

void engine_unlock(engine *e)
{
    pthread_mutex_unlock(&e->lock);
}

/* -------------------------------------------------------------------------------------------- open, close */

static void engine_init(engine *e, const psd_backend_config *config)
{
    e->incarnation = config->incarnation;
    e->eager_limit = config->eager_limit < 0 ? 0 : (uint64_t)config->eager_limit;
    if (e->eager_limit > FRAME_MAX_EAGER)
        e->eager_limit = FRAME_MAX_EAGER;
    e->on_group_broken = config->on_group_broken;
    e->on_disagreement = config->on_disagreement;
    e->owner = config->owner;
    list_init(&e->peers);
    list_init(&e->groups);
    list_init(&e->active);
    list_init(&e->ready);
    list_init(&e->copies);
    list_init(&e->early_pings);
    list_init(&e->inbox);
    list_init(&e->free_xfers);
    blocks_init(&e->pool, POOL_LIMIT);
    e->next_timer = PSD_NEVER;
    e->sleep_until = PSD_NEVER;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    e->cores = cores < 1 ? 1 : (uint32_t)cores;
}

psd_status engine_open(const psd_backend_config *config, engine **out, char *why, size_t why_bytes)
{
    psd_status status = PSD_ERR_NOMEM;
    snprintf(why, why_bytes, "out of memory for the host backend");
    engine *e = calloc(1, sizeof(*e));
    if (e == NULL)
        goto fail;
    engine_init(e, config);
    e->waste = malloc(FRAME_MAX_SLICE);
    if (e->waste == NULL)
        goto fail_engine;
    if (pthread_mutex_init(&e->lock, NULL) != 0)
        goto fail_waste;
    host_net_config net = {
        .job = config->job,
        .incarnation = config->incarnation,
        .bind_host = config->bind_host,
        .transport = config->transport,
        .ring_bytes = config->ring_bytes,
        .run_dir = config->run_dir,
    };
    status = host_net_open(&net, &e->net, why, why_bytes);
    if (status != PSD_OK)
        goto fail_lock;
    tensor_memory_init(&e->huge, host_net_arena(e->net));
    status = progress_start(e);
    if (status != PSD_OK) {
        snprintf(why, why_bytes,
                 "cannot start the progress thread: a limit on threads or memory was reached");
        goto fail_net;
    }
    *out = e;
    return PSD_OK;
fail_net:
    host_net_close(e->net);
fail_lock:
    pthread_mutex_destroy(&e->lock);
fail_waste:
    free(e->waste);
fail_engine:
    free(e);
fail:
    return status;
}

static bool output_is_out(void *arg)
{
    const engine *e = arg;
    return e->queued == 0;
}

static void free_records(engine *e)
{
    list *node;
    request_put_released(e);
    for (uint32_t i = 0; i < e->xfer_count; i++)
        free(e->xfers[i]);
    free(e->xfers);
    while ((node = list_take(&e->inbox)) != NULL)
        blocks_put(&e->pool, LIST_ENTRY(node, inbox_item, node), sizeof(inbox_item));
    while ((node = list_take(&e->peers)) != NULL)
        peer_free(LIST_ENTRY(node, peer, node));
    blocks_destroy(&e->pool);
}

void engine_close(engine *e)
{
    if (e == NULL)
        return;
    engine_lock(e);
    (void)progress_wait(e, output_is_out, e, psd_now_ns() + FLUSH_LIMIT);
    engine_unlock(e);
    progress_stop(e);
    free_records(e);
    host_net_close(e->net);
    pthread_mutex_destroy(&e->lock);
    free(e->world);
    free(e->waste);
    free(e);
}

hgroup *engine_group(engine *e, uint32_t id)
{
    hgroup **cached = &e->group_cache[id % ENGINE_GROUP_CACHE];
    if (*cached != NULL && (*cached)->id == id)
        return *cached;
    for (list *node = e->groups.next; node != &e->groups; node = node->next) {
        hgroup *g = LIST_ENTRY(node, hgroup, node);
        if (g->id != id)
            continue;
        *cached = g;
        return g;
    }
    return NULL;
}

/* ----------------------------------------------------------------------------------------------- progress */

static void flush(engine *e)
{
    for (list *node = e->peers.next; node != &e->peers; node = node->next) {
        peer *p = LIST_ENTRY(node, peer, node);
        if (p->needs_flush) {
            p->needs_flush = false;
            host_link_flush(p->link);
        }
    }
}

/* Links come up by themselves when a peer connects. */
static bool follow_links(engine *e)
{
    bool did = false;
    for (host_link *link = host_net_first(e->net); link != NULL; link = host_net_next(e->net, link)) {
        peer *p = host_link_owner(link);
        if (p == NULL) {
            p = peer_new(e, link);
            if (p == NULL)
                continue; /* out of memory: seen again at the next poll */
        }
        if (p->is_broken)
            continue;
        host_link_state state = host_link_get_state(link);
        if (state == HOST_LINK_READY) {
            did |= peer_progress(p);
        } else if (state == HOST_LINK_BROKEN) {
            peer_break(p, host_link_status(link), host_link_text(link));
            did = true;
        }
    }
    return did;
}

static void run_ready(engine *e)
{
    for (int i = 0; i < READY_AT_ONCE; i++) {
        list *node = list_take(&e->ready);
        if (node == NULL)
            break;
        psd_request *r = LIST_ENTRY(node, psd_request, ready);
        if (r->is_coll)
            coll_run_advance(r);
        else if (!host_group_in_dispute(r->group)) /* otherwise it ends when the group is taken down */
            request_finish(r, PSD_OK);
    }
}

/* Taking one down may break others, so this goes on until none is left. */
static void take_down_broken(engine *e)
{
    while (e->has_broken) {
        e->has_broken = false;
        for (list *node = e->peers.next; node != &e->peers; node = node->next) {
            peer *p = LIST_ENTRY(node, peer, node);
            if (p->is_broken && !p->is_settled) {
                p->is_settled = true;
                e->may_drop = true;
                host_chan_peer_gone(e, p);
                host_group_peer_gone(p);
            }
        }
        for (list *node = e->groups.next; node != &e->groups; node = node->next) {
            hgroup *g = LIST_ENTRY(node, hgroup, node);
            if (g->status != PSD_OK && !g->is_settled)
                host_group_settle(g);
        }
    }
}

static bool has_group(const engine *e, const peer *p)
{
    for (const list *node = e->groups.next; node != &e->groups; node = node->next) {
        const hgroup *g = LIST_ENTRY(node, hgroup, node);
        for (int32_t i = 0; i < g->size; i++) {
            if (g->member[i].peer == p)
                return true;
        }
    }
    return false;
}

/* A broken link that no group refers to is freed by the net at one of its next polls: no peer may be left on
 * it. */
static void drop_broken_peers(engine *e)
{
    if (!e->may_drop)
        return;
    e->may_drop = false;
    LIST_EACH(&e->peers, node, after)
    {
        peer *p = LIST_ENTRY(node, peer, node);
        if (p->is_settled && !has_group(e, p))
            peer_free(p);
    }
}

void engine_settle(engine *e)
{
    take_down_broken(e);
    run_ready(e);
    take_down_broken(e); /* what was advanced may have broken something */
    flush(e);
    drop_broken_peers(e);
}

bool engine_has_news(const engine *e)
{
    if (host_net_needs_kernel(e->net))
        return true;
    for (const list *node = e->peers.next; node != &e->peers; node = node->next) {
        const peer *p = LIST_ENTRY(node, peer, node);
        if (host_link_readable(p->link))
            return true;
        if ((!list_empty(&p->out) || !list_empty(&p->streams)) && host_link_writable(p->link))
            return true;
    }
    return false;
}

bool engine_poll(engine *e, bool with_kernel)
{
    bool did = false;
    e->polls++;
    if (with_kernel || host_net_needs_kernel(e->net))
        did = host_net_poll(e->net);
    did |= follow_links(e);
    did |= transfer_copy(e);
    did |= !list_empty(&e->ready) || e->has_broken;
    engine_settle(e);
    return did;
}

/* ------------------------------------------------------------------------------------------------- timers */

void engine_timer_at(engine *e, psd_time_ns when)
{
    if (when < e->next_timer)
        e->next_timer = when;
    if (e->driver_is_asleep && when < e->sleep_until)
        host_net_wake(e->net);
}

/* What a transfer waits for; false if for nothing that can be named. */
static bool format_wait(const xfer *x, char *out, size_t bytes)
{
    if (x->is_exposure && x->is_send) {
        snprintf(out, bytes, "rank %d is not through with its part", x->rank);
        return !direct_is_exposing(x->request);
    }
    switch (x->state) {
    case XFER_POSTED:
        if (x->rank < 0)
            snprintf(out, bytes, "no message came from any rank");
        else
            snprintf(out, bytes, "no message came from rank %d", x->rank);
        return true;
    case XFER_OFFERED:
        snprintf(out, bytes, "rank %d did not receive", x->rank);
        return true;
    case XFER_QUEUED:
    case XFER_STREAMING:
        snprintf(out, bytes, "rank %d takes no more data", x->rank);
        return true;
    case XFER_ARRIVING:
    case XFER_COPYING:
        snprintf(out, bytes, "the message of rank %d is incomplete", x->rank);
        return true;
    default:
        return false;
    }
}

static void format_missing(const psd_request *r, char *out, size_t bytes)
{
    size_t at = 0;
    int named = 0;
    snprintf(out, bytes, "no rank is known to be missing");
    for (const list *node = r->xfers.next; node != &r->xfers && named < 8; node = node->next) {
        char part[80];
        if (!format_wait(LIST_ENTRY(node, xfer, in_request), part, sizeof(part)))
            continue;
        int n = snprintf(out + at, bytes - at, "%s%s", named > 0 ? ", " : "", part);
        at += (size_t)n;
        if (at >= bytes)
            break;
        named++;
    }
}

/* The world rank of the first rank that the request waits for; -1 if none is known. */
static int32_t culprit_of(const psd_request *r)
{
    for (const list *node = r->xfers.next; node != &r->xfers; node = node->next) {
        const xfer *x = LIST_ENTRY(node, xfer, in_request);
        if (x->rank >= 0 && x->rank != r->group->rank)
            return (int32_t)r->group->members[x->rank];
    }
    return -1;
}

static void pass_deadline(psd_request *r)
{
    char missing[512];
    char text[PSD_MAX_TEXT];
    hgroup *g = r->group;
    format_missing(r, missing, sizeof(missing));
    if (r->is_coll)
        snprintf(text, sizeof(text), "group %u collective %llu: rank %d's deadline passed in %s: %s", g->id,
                 (unsigned long long)r->ordinal, g->rank, r->label, missing);
    else
        snprintf(text, sizeof(text), "group %u: rank %d's deadline passed in %s: %s", g->id, g->rank,
                 r->label, missing);
    host_group_break(g, PSD_ERR_DEADLINE, culprit_of(r), true, text);
}

static psd_time_ns request_timers(engine *e, psd_time_ns now)
{
    psd_time_ns next = PSD_NEVER;
    for (list *node = e->active.next; node != &e->active; node = node->next) {
        psd_request *r = LIST_ENTRY(node, psd_request, node);
        if (r->is_failed || r->group->status != PSD_OK)
            continue;
        if (now >= r->deadline) {
            pass_deadline(r);
            continue;
        }
        if (now >= r->notice_at) {
            r->notice_at = now + ENGINE_NOTICE_AGAIN_NS;
            coll_run_notice(r);
        }
        psd_time_ns mine = r->notice_at < r->deadline ? r->notice_at : r->deadline;
        next = mine < next ? mine : next;
    }
    return next;
}

static psd_time_ns group_timers(engine *e, psd_time_ns now)
{
    psd_time_ns next = PSD_NEVER;
    for (list *node = e->groups.next; node != &e->groups; node = node->next) {
        hgroup *g = LIST_ENTRY(node, hgroup, node);
        if (g->status == PSD_OK && now >= g->dispute_deadline)
            host_group_break_disputed(g);
        if (now >= g->drain_deadline) {
            g->drain_deadline = PSD_NEVER;
            transfer_give_up(e, g);
        }
        psd_time_ns dispute = g->status == PSD_OK ? g->dispute_deadline : PSD_NEVER;
        psd_time_ns mine = dispute < g->drain_deadline ? dispute : g->drain_deadline;
        next = mine < next ? mine : next;
    }
    return next;
}

void engine_timers(engine *e, psd_time_ns now)
{
    request_see(e, now);
    if (now < e->next_timer)
        return;
    psd_time_ns requests = request_timers(e, now);
    psd_time_ns groups = group_timers(e, now);
    e->next_timer = requests < groups ? requests : groups;
    engine_settle(e);
}
