/* Requests and their transfers: where they come from, how they end. */
#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"

/* ----------------------------------------------------------------------------------------------- requests */

void request_label(char *out, const char *label)
{
    if (label == NULL)
        label = "";
    size_t length = strnlen(label, FRAME_MAX_LABEL);
    bool is_cut = length == FRAME_MAX_LABEL;
    length -= is_cut;
    memcpy(out, label, length);
    out[length] = '\0';
    if (is_cut)
        text_clean(out);
}

psd_request *request_get(hgroup *g, const psd_op *op)
{
    engine *e = g->engine;
    request_put_released(e);
    psd_request *r = blocks_get(&e->pool, sizeof(*r));
    if (r == NULL)
        return NULL;
    memset(r, 0, offsetof(psd_request, next_released));
    list_init(&r->node);
    list_init(&r->in_group);
    list_init(&r->ready);
    list_init(&r->xfers);
    list_init(&r->posted);
    atomic_init(&r->is_done, false);
    r->group = g;
    r->kind = op->kind;
    r->record = op->record;
    r->result.source = PSD_ANY_SOURCE;
    r->result.tag = PSD_ANY_TAG;
    request_label(r->label, op->label != NULL ? op->label : psd_op_name(op->kind));
    return r;
}

void request_put(engine *e, psd_request *r)
{
    if (r->is_coll)
        coll_run_release(e, r);
    blocks_put(&e->pool, r, sizeof(*r));
}

void request_release(psd_request *r)
{
    engine *e = r->group->engine;
    psd_request *top = atomic_load_explicit(&e->released, memory_order_relaxed);
    do
        r->next_released = top;
    while (!atomic_compare_exchange_weak_explicit(&e->released, &top, r, memory_order_release,
                                                  memory_order_relaxed));
}

void request_put_released(engine *e)
{
    if (atomic_load_explicit(&e->released, memory_order_relaxed) == NULL)
        return;
    psd_request *r = atomic_exchange_explicit(&e->released, NULL, memory_order_acquire);
    while (r != NULL) {
        psd_request *next = r->next_released;
        request_put(e, r);
        r = next;
    }
}

/* Most operations end before anybody needs the time of their start: who waits long enough to read the clock
 * sets it. */
void request_activate(psd_request *r, psd_time_ns deadline)
{
    engine *e = r->group->engine;
    r->deadline = deadline;
    e->has_unseen = true;
    list_append(&e->active, &r->node);
    list_append(&r->group->requests, &r->in_group);
    engine_timer_at(e, deadline);
    if (e->driver_is_asleep)
        request_see(e, psd_now_ns());
}

void request_see(engine *e, psd_time_ns now)
{
    bool has_coll = false;
    if (!e->has_unseen)
        return;
    e->has_unseen = false;
    for (list *node = e->active.prev; node != &e->active; node = node->prev) {
        psd_request *r = LIST_ENTRY(node, psd_request, node);
        if (r->notice_at != 0)
            break;
        r->notice_at = r->is_coll ? now + ENGINE_NOTICE_NS : PSD_NEVER;
        has_coll |= r->is_coll;
    }
    if (has_coll)
        engine_timer_at(e, now + ENGINE_NOTICE_NS);
}

void request_finish(psd_request *r, psd_status status)
{
    engine *e = r->group->engine;
    list_remove(&r->node);
    list_remove(&r->in_group);
    list_remove(&r->ready);
    if (r->is_coll)
        coll_run_release(e, r);
    r->result.status = status;
    atomic_store_explicit(&r->is_done, true, memory_order_release);
    progress_notify(e);
}

void request_fail(psd_request *r)
{
    engine *e = r->group->engine;
    if (r->is_failed)
        return;
    r->is_failed = true;
    list_remove(&r->ready);
    LIST_EACH(&r->xfers, node, after)
    {
        xfer_cancel(e, LIST_ENTRY(node, xfer, in_request));
    }
    if (list_empty(&r->xfers))
        request_finish(r, r->group->status);
}

/* ---------------------------------------------------------------------------------------------- transfers */

/* Makes room in the table of all transfers, whose positions are their ids. */
static xfer *xfer_new(engine *e)
{
    if (e->xfer_count == e->xfer_capacity) {
        uint32_t capacity = e->xfer_capacity == 0 ? 64 : e->xfer_capacity * 2;
        xfer **grown = capacity > e->xfer_capacity ? realloc(e->xfers, capacity * sizeof(xfer *)) : NULL;
        if (grown == NULL)
            return NULL;
        e->xfers = grown;
        e->xfer_capacity = capacity;
    }
    xfer *x = calloc(1, sizeof(*x));
    if (x == NULL)
        return NULL;
    x->index = e->xfer_count;
    e->xfers[e->xfer_count++] = x;
    return x;
}

xfer *xfer_get(engine *e, psd_request *r)
{
    list *node = list_take(&e->free_xfers);
    xfer *x = node != NULL ? LIST_ENTRY(node, xfer, node) : xfer_new(e);
    if (x == NULL)
        return NULL;
    x->generation++;
    list_init(&x->node);
    list_append(&r->xfers, &x->in_request);
    x->request = r;
    x->peer = NULL;
    x->state = XFER_POSTED;
    x->tag = 0;
    x->ordinal = 0;
    x->count = 0;
    x->done = 0;
    x->remote = 0;
    x->remote_data = 0;
    x->self = NULL;
    x->out = NULL;
    x->may_be_read = false;
    x->is_direct = false;
    x->is_exposure = false;
    x->past_cache = false;
    x->may_combine = false;
    return x;
}

uint64_t xfer_id(const xfer *x)
{
    return (uint64_t)x->generation << 32 | x->index;
}

xfer *xfer_find(engine *e, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    if (index >= e->xfer_count)
        return NULL;
    xfer *x = e->xfers[index];
    return x->state != XFER_FREE && x->generation == (uint32_t)(id >> 32) ? x : NULL;
}

void xfer_release(engine *e, xfer *x)
{
    list_remove(&x->node);
    list_remove(&x->in_request);
    x->state = XFER_FREE;
    list_append(&e->free_xfers, &x->node);
}

void xfer_complete(engine *e, xfer *x)
{
    psd_request *r = x->request;
    if (!r->is_coll) {
        r->result.ordinal = x->ordinal;
        if (!x->is_send) {
            r->result.source = x->rank;
            r->result.tag = x->tag;
        }
    }
    xfer_release(e, x);
    r->pending--;
    if (r->pending == 0 && !r->is_failed)
        list_append(&e->ready, &r->ready);
}

/* What arrives for it from now on is thrown away. */
static void forget_receive(engine *e, xfer *x)
{
    for (list *node = e->peers.next; node != &e->peers; node = node->next) {
        peer *p = LIST_ENTRY(node, peer, node);
        if (p->in.receive == x) {
            p->in.receive = NULL;
            p->in.to = NULL;
            p->in.combines = false;
        }
    }
    if (x->self != NULL)
        x->self = NULL;
}

/* A receive that waits for a message still arriving is referred to by that message: match_drop(), which the
 * breaking of a group calls first, has cut that. */
void xfer_cancel(engine *e, xfer *x)
{
    if (x->state == XFER_DRAINING)
        return;
    /* Part of the frame that tells where it lies may be out already, and the rest follows. */
    bool is_told =
        x->state == XFER_OFFERED || (x->state == XFER_QUEUED && x->out != NULL && x->out->sent > 0);
    bool may_be_read = x->is_send && is_told && x->may_be_read && !x->peer->is_broken &&
                       !x->request->group->member[x->rank].is_drained;
    if (x->is_exposure && is_told && x->peer->is_broken && x->peer->status != PSD_ERR_PEER_FAILED)
        direct_revoke(x);
    if (!x->is_send)
        forget_receive(e, x);
    else if (x->peer != NULL)
        peer_forget_send(x->peer, x);
    list_remove(&x->node);
    if (may_be_read)
        x->state = XFER_DRAINING;
    else
        xfer_release(e, x);
}
