/* Operations: made by the thread that calls, started, advanced and ended by the communication thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/tensor.h"
#include "worker/backend/mpi/engine.h"

#define NOTICE_NS       (100 * PSD_NS_PER_MS) /* a collective this old tells the ranks it waits for what it is */
#define NOTICE_AGAIN_NS PSD_NS_PER_S
#define MOST_NAMED      8 /* ranks that an error names */

/* --------------------------------------------------------------------------------------------- starting */

static void post_receive(mgroup *g, xfer *x)
{
    if (group_status(g) == PSD_OK)
        match_post(g, x);
}

static void post_send(mgroup *g, xfer *x)
{
    frame f = wire_frame(g, FRAME_EAGER);
    f.channel = FRAME_P2P;
    f.kind = PSD_OP_SEND;
    f.dtype = (uint8_t)x->dtype;
    f.count = x->count;
    f.tag = x->tag;
    f.ordinal = g->member[x->rank].sent++;
    x->request->result.ordinal = f.ordinal;
    if (group_status(g) == PSD_OK)
        transfer_send(g, x, &f, g->engine->eager_limit);
}

static bool add_transfers(psd_request *r)
{
    for (int32_t i = 0; i < r->op.p2p_count; i++) {
        const psd_op_p2p *op = &r->op.p2p[i];
        xfer *x = xfer_new(r);
        if (x == NULL)
            return false;
        x->is_send = op->is_send;
        x->channel = FRAME_P2P;
        x->dtype = op->dtype;
        x->rank = op->peer;
        x->tag = op->tag;
        x->count = op->count;
        x->data = op->data;
        x->bytes = (uint64_t)op->count * psd_dtype_bytes(op->dtype);
        if (!op->is_send)
            r->last_receive = x;
    }
    return true;
}

static void start_p2p(psd_request *r)
{
    mgroup *g = r->group;
    r->pending = 1; /* it does not end before all are posted */
    if (!add_transfers(r))
        group_break(g, PSD_ERR_NOMEM, -1, true, "out of memory for a batch");
    LIST_EACH(&r->xfers, node, after)
    {
        /* Posting one may end an earlier one, never a later one. */
        xfer *x = LIST_ENTRY(node, xfer, in_request);
        if (x->state == XFER_POSTED && x->is_send)
            post_send(g, x);
        else if (x->state == XFER_POSTED)
            post_receive(g, x);
    }
    r->pending--;
    request_advance(r);
}

static void start(command *c)
{
    psd_request *r = LIST_ENTRY(c, psd_request, starting);
    mgroup *g = r->group;
    list_append(&g->requests, &r->in_group);
    g->engine->active++;
    r->notice_at = psd_now_ns() + NOTICE_NS;
    if (group_status(g) != PSD_OK)
        request_fail(r);
    else if (r->is_coll)
        coll_run_start(r);
    else
        start_p2p(r);
}

/* -------------------------------------------------------------------------------------------- new, free */

static bool is_p2p(psd_op_kind kind)
{
    return kind == PSD_OP_SEND || kind == PSD_OP_RECV || kind == PSD_OP_BATCH;
}

static bool take_memory(psd_request *r, int32_t size)
{
    if (!r->is_coll)
        return true;
    r->items = malloc((size_t)coll_max_messages(size) * sizeof *r->items);
    size_t scratch = coll_scratch_bytes(&r->op, size);
    r->scratch = scratch > 0 ? malloc(scratch) : NULL;
    return r->items != NULL && (r->scratch != NULL || scratch == 0);
}

/* What the operation points to, copied behind the request. */
static void copy_op(psd_request *r, const psd_op *op, int32_t size)
{
    r->op = *op;
    r->op.label = r->label;
    snprintf(r->label, sizeof r->label, "%s", op->label != NULL ? op->label : psd_op_name(op->kind));
    if (op->kind == PSD_OP_ALL_TO_ALL_V) {
        memcpy(r->tail, op->in_splits, (size_t)size * sizeof(int64_t));
        memcpy(r->tail + size, op->out_splits, (size_t)size * sizeof(int64_t));
        r->op.in_splits = r->tail;
        r->op.out_splits = r->tail + size;
    } else if (!r->is_coll && op->p2p_count > 0) {
        memcpy(r->tail, op->p2p, (size_t)op->p2p_count * sizeof *op->p2p);
        r->op.p2p = (const psd_op_p2p *)(const void *)r->tail;
    }
}

psd_status request_new(mgroup *g, const psd_op *op, psd_request **out)
{
    bool is_coll = !is_p2p(op->kind);
    size_t tail = op->kind == PSD_OP_ALL_TO_ALL_V ? 2 * (size_t)g->size * sizeof(int64_t) : 0;
    if (!is_coll)
        tail = (size_t)op->p2p_count * sizeof *op->p2p;
    psd_request *r = calloc(1, sizeof *r + tail);
    if (r == NULL)
        return PSD_ERR_NOMEM;
    r->group = g;
    r->is_coll = is_coll;
    r->starting.run = start;
    r->result.source = -1;
    list_init(&r->in_group);
    list_init(&r->xfers);
    list_init(&r->posted);
    copy_op(r, op, g->size);
    r->what = fingerprint_of(op);
    if (!take_memory(r, g->size)) {
        request_free(r);
        return PSD_ERR_NOMEM;
    }
    *out = r;
    return PSD_OK;
}

void request_free(psd_request *r)
{
    if (r == NULL)
        return;
    free(r->items);
    free(r->scratch);
    free(r);
}

/* ----------------------------------------------------------------------------------------------- ending */

void request_finish(psd_request *r, psd_status status)
{
    engine *e = r->group->engine;
    list_remove(&r->in_group);
    e->active--;
    e->has_done = true;
    r->result.status = status;
    atomic_store_explicit(&r->is_done, true, memory_order_release); /* its owner may free it from here on */
}

void request_advance(psd_request *r)
{
    if (r->pending > 0)
        return;
    if (r->is_failed)
        request_finish(r, group_status(r->group));
    else if (r->is_coll)
        coll_run_advance(r);
    else if (group_status(r->group) == PSD_OK)
        request_finish(r, PSD_OK);
}

void request_fail(psd_request *r)
{
    if (r->is_failed)
        return;
    r->is_failed = true;
    LIST_EACH(&r->xfers, node, after)
    {
        xfer_drop(LIST_ENTRY(node, xfer, in_request));
    }
    if (r->pending == 0)
        request_finish(r, group_status(r->group));
}

/* ----------------------------------------------------------------------------------------------- timers */

/* "waits for rank 1, 3". */
static void format_missing(const psd_request *r, char *out, size_t bytes)
{
    int named = 0;
    snprintf(out, bytes, "it waits for");
    for (const list *node = r->xfers.next; node != &r->xfers && named < MOST_NAMED; node = node->next) {
        const xfer *x = LIST_ENTRY(node, xfer, in_request);
        if (x->rank >= 0)
            psd_append(out, bytes, "%s rank %d", named > 0 ? "," : "", x->rank);
        else
            psd_append(out, bytes, "%s any rank", named > 0 ? "," : "");
        named++;
    }
    if (named == MOST_NAMED)
        psd_append(out, bytes, ", ...");
    else if (named == 0)
        psd_append(out, bytes, " nobody");
}

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
    char missing[256], text[PSD_MAX_TEXT], which[48] = "";
    mgroup *g = r->group;
    format_missing(r, missing, sizeof missing);
    if (r->is_coll)
        snprintf(which, sizeof which, " collective %llu", (unsigned long long)r->result.ordinal);
    snprintf(text, sizeof text, "group %u%s: rank %d's deadline passed in %s: %s", g->id, which, g->rank,
             r->label, missing);
    group_break(g, PSD_ERR_DEADLINE, culprit_of(r), true, text);
}

void request_timers(psd_request *r, psd_time_ns now)
{
    if (now >= r->op.deadline) {
        pass_deadline(r);
        return;
    }
    if (r->is_coll && now >= r->notice_at) {
        r->notice_at = now + NOTICE_AGAIN_NS;
        coll_run_notice(r);
    }
}
