/* Collectives that read and write the other ranks' tensors: see direct.h. */
#include "worker/backend/host/direct.h"

#include <stdio.h>
#include <string.h>

#include "worker/backend/host/coll_schedule.h"
#include "worker/backend/host/engine.h"
#include "worker/backend/host/reduce.h"

#define SLICE_BYTES ((size_t)1 << 20) /* of all inputs together: how long a slice holds the lock */
#define SLICE_LEAST ((size_t)32 << 10)
#define SLICE_UNIT  ((size_t)64)

/* -------------------------------------------------------------------------------------------- what is wanted */

static size_t count_bytes(const psd_op *op)
{
    return (size_t)op->count * psd_dtype_bytes(op->dtype);
}

static size_t in_bytes(const psd_op *op, int32_t size)
{
    return op->kind == PSD_OP_REDUCE_SCATTER ? count_bytes(op) * (size_t)size : count_bytes(op);
}

/* Depends on nothing but the operation and the size, so that all ranks choose the same. */
static bool is_wanted(const psd_op *op, int32_t size)
{
    bool fits = op->kind == PSD_OP_ALL_REDUCE || op->kind == PSD_OP_REDUCE ||
                op->kind == PSD_OP_REDUCE_SCATTER || op->kind == PSD_OP_BROADCAST;
    return fits && size > 1 && size <= DIRECT_RANKS && count_bytes(op) >= DIRECT_MIN_BYTES;
}

/* Does this rank's memory have to be reached by that one? In a broadcast only the root's by the others. */
static bool exposes_to(const coll *c, int32_t from, int32_t to)
{
    return from != to && (c->op.kind != PSD_OP_BROADCAST || from == c->op.root);
}

static bool exposes_in(const coll *c)
{
    return c->op.kind != PSD_OP_BROADCAST;
}

/* Is the result, or what is broadcast, in this rank's output, for others to reach? */
static bool exposes_out(const coll *c, int32_t rank)
{
    return c->op.kind == PSD_OP_ALL_REDUCE || (c->op.kind != PSD_OP_REDUCE_SCATTER && rank == c->op.root);
}

static uint8_t needed_reach(const coll *c, int32_t rank)
{
    return (uint8_t)(DIRECT_ALL_LINKS | (exposes_in(c) ? DIRECT_IN : 0) |
                     (exposes_out(c, rank) ? DIRECT_OUT : 0));
}

static bool is_reachable(const coll *c, const direct *d, int32_t rank)
{
    uint8_t needed = needed_reach(c, rank);
    return (d->ranks[rank].reach & needed) == needed;
}

/* The bytes that a rank works on; offsets are those in the tensor that is cut in pieces. */
static coll_span share_of(const coll *c, int32_t rank)
{
    coll_span whole = {0, count_bytes(&c->op)};
    if (c->op.kind == PSD_OP_BROADCAST)
        whole.bytes = rank == c->op.root ? 0 : whole.bytes;
    else if (c->op.kind == PSD_OP_REDUCE_SCATTER)
        whole.at = whole.bytes * (size_t)rank;
    else
        whole = coll_piece(c, rank, c->size);
    return whole;
}

/* ------------------------------------------------------------------------------------------------- exposing */

static bool link_is_direct(const hgroup *g, int32_t rank)
{
    return host_link_is_direct(g->member[rank].peer->link);
}

static void expose_own(psd_request *r)
{
    const hgroup *g = r->group;
    const coll *c = &r->schedule;
    const arena *memory = g->engine->huge.shared;
    exposure *own = &r->direct->ranks[g->rank];
    own->reach = DIRECT_ALL_LINKS;
    for (int32_t i = 0; i < g->size; i++) {
        if ((exposes_to(c, g->rank, i) || exposes_to(c, i, g->rank)) && !link_is_direct(g, i))
            own->reach = 0;
    }
    if (exposes_in(c) && arena_place(memory, c->op.in, in_bytes(&c->op, g->size), &own->in))
        own->reach |= DIRECT_IN;
    if (exposes_out(c, g->rank) && arena_place(memory, c->op.out, count_bytes(&c->op), &own->out))
        own->reach |= DIRECT_OUT;
}

/* NULL: out of memory, and the group is broken. */
static xfer *add_exposure(psd_request *r, int32_t rank, bool is_send)
{
    hgroup *g = r->group;
    xfer *x = xfer_get(g->engine, r);
    if (x == NULL) {
        host_group_break(g, PSD_ERR_NOMEM, -1, true, "out of memory in a collective");
        return NULL;
    }
    x->is_send = is_send;
    x->is_exposure = true;
    x->channel = FRAME_COLL;
    x->dtype = r->what.dtype;
    x->rank = rank;
    x->ordinal = r->ordinal;
    x->data = NULL;
    x->bytes = 0;
    x->peer = g->member[rank].peer;
    r->pending++;
    return x;
}

/* What a rank takes from, and gives to, one that exposes its memory to it. */
static void count_share(const coll *c, xfer *x)
{
    uint64_t share = share_of(c, x->rank).bytes;
    x->bytes = share;
    x->remote_data = exposes_out(c, c->rank) && exposes_in(c) ? share : 0;
}

/* Who cannot be reached by all only says so: nobody will touch its memory. */
static void expose_to(psd_request *r, int32_t rank)
{
    hgroup *g = r->group;
    const exposure *own = &r->direct->ranks[g->rank];
    frame f = coll_run_frame(g, FRAME_EXPOSE, r->ordinal, &r->what);
    f.other = own->reach;
    if (!is_reachable(&r->schedule, r->direct, g->rank)) {
        peer_send_control(g->member[rank].peer, &f, NULL);
        return;
    }
    xfer *x = add_exposure(r, rank, true);
    if (x == NULL)
        return;
    count_share(&r->schedule, x);
    f.word = own->in;
    f.bytes = own->out;
    f.id = xfer_id(x);
    x->may_be_read = true;
    if (g->member[rank].has_closed) {
        x->state = XFER_OFFERED; /* to nobody */
        host_group_check_closed(g, x);
        return;
    }
    x->state = XFER_QUEUED;
    if (peer_send(x->peer, &f, NULL, x))
        x->state = XFER_OFFERED;
}

static bool has_direct_partner(const psd_request *r)
{
    const hgroup *g = r->group;
    for (int32_t i = 0; i < g->size; i++) {
        bool is_partner = exposes_to(&r->schedule, g->rank, i) || exposes_to(&r->schedule, i, g->rank);
        if (is_partner && link_is_direct(g, i))
            return true;
    }
    return false;
}

psd_status direct_begin(psd_request *r)
{
    hgroup *g = r->group;
    const coll *c = &r->schedule;
    if (!is_wanted(&c->op, g->size) || !has_direct_partner(r))
        return PSD_OK;
    size_t bytes = sizeof(direct) + (size_t)g->size * sizeof(exposure);
    direct *d = blocks_get(&g->engine->pool, bytes);
    if (d == NULL)
        return PSD_ERR_NOMEM; /* others may count on this rank */
    memset(d, 0, bytes);
    d->bytes = bytes;
    r->direct = d;
    expose_own(r);
    for (int32_t i = 0; i < g->size; i++) {
        if (exposes_to(c, i, g->rank) && link_is_direct(g, i))
            d->missing++;
    }
    r->pending = 1; /* the share */
    for (int32_t i = 0; i < g->size; i++) {
        xfer *x = exposes_to(c, i, g->rank) && link_is_direct(g, i) ? add_exposure(r, i, false) : NULL;
        if (x != NULL)
            match_post(g->engine, x);
    }
    for (int32_t i = 0; i < g->size; i++) {
        if (exposes_to(c, g->rank, i) && link_is_direct(g, i))
            expose_to(r, i);
    }
    return PSD_OK;
}

/* Its turn comes with the others', so that slices do not keep the lock. */
static void queue_up(psd_request *r)
{
    list_remove(&r->ready);
    list_append(&r->group->engine->ready, &r->ready);
}

void direct_on_expose(xfer *x, const frame *f)
{
    psd_request *r = x->request;
    engine *e = r->group->engine;
    direct *d = r->direct;
    const coll *c = &r->schedule;
    const exposure told = {.reach = f->other, .in = f->word, .out = f->bytes, .id = f->id};
    const host_link *link = x->peer->link;
    bool has_in = (told.reach & DIRECT_IN) != 0, has_out = (told.reach & DIRECT_OUT) != 0;
    if ((has_in && host_link_map(link, told.in, in_bytes(&c->op, c->size)) == NULL) ||
        (has_out && host_link_map(link, told.out, count_bytes(&c->op)) == NULL)) {
        x->state = XFER_DISPUTED;
        peer_break(x->peer, PSD_ERR_LINK, "garbage on the link: a tensor outside of its sender's memory");
        return;
    }
    d->ranks[x->rank] = told;
    d->missing--;
    xfer_complete(e, x);
    if (d->missing == 0)
        queue_up(r);
}

/* -------------------------------------------------------------------------------------------------- the work */

/* Bytes [at, at + bytes) of a rank's input, or output; NULL: its link has broken. */
static void *reach(const psd_request *r, int32_t rank, bool is_out, size_t at, size_t bytes)
{
    const coll *c = &r->schedule;
    const exposure *where = &r->direct->ranks[rank];
    if (rank == c->rank)
        return is_out ? coll_at(c->op.out, at) : (void *)(uintptr_t)coll_const_at(c->op.in, at);
    return host_link_map(r->group->member[rank].peer->link, (is_out ? where->out : where->in) + at, bytes);
}

/* Memory that an operation touches on all ranks, and that is not read before it is written. */
static bool goes_past_cache(const psd_request *r, const void *in, const void *out)
{
    const coll *c = &r->schedule;
    return in != out && exceeds_cache(coll_touched_bytes(c));
}

static bool reduce_slice(psd_request *r, size_t at, size_t bytes)
{
    const coll *c = &r->schedule;
    engine *e = r->group->engine;
    const void *in[DIRECT_RANKS];
    reduce_target to[DIRECT_RANKS];
    int32_t targets = 0;
    for (int32_t i = 0; i < c->size; i++) {
        in[i] = reach(r, i, false, at, bytes);
        if (in[i] == NULL)
            return false;
        if (!exposes_out(c, i))
            continue;
        to[targets].data = reach(r, i, true, at, bytes);
        if (to[targets].data == NULL)
            return false;
        to[targets].past_cache = goes_past_cache(r, in[i], to[targets].data);
        targets++;
    }
    if (c->op.kind == PSD_OP_REDUCE_SCATTER) {
        to[0].data = coll_at(c->op.out, at - share_of(c, c->rank).at);
        to[0].past_cache = goes_past_cache(r, in[c->rank], to[0].data);
        targets = 1;
    }
    reduce_spread(c->op.dtype, c->op.redop, to, targets, in, c->size, bytes / psd_dtype_bytes(c->op.dtype));
    engine_count(&e->bytes_received, bytes * (uint64_t)(c->size - 1));
    engine_count(&e->bytes_sent, bytes * (uint64_t)(targets - (exposes_out(c, c->rank) ? 1 : 0)));
    return true;
}

static bool broadcast_slice(psd_request *r, size_t at, size_t bytes)
{
    const coll *c = &r->schedule;
    const void *from = reach(r, c->op.root, true, at, bytes);
    void *to = coll_at(c->op.out, at);
    if (from == NULL)
        return false;
    if (exceeds_cache(coll_touched_bytes(c)))
        copy_past_cache(to, from, bytes);
    else
        memcpy(to, from, bytes);
    engine_count(&r->group->engine->bytes_received, bytes);
    return true;
}

static size_t slice_bytes(const coll *c)
{
    size_t slice = SLICE_BYTES / (size_t)c->size / SLICE_UNIT * SLICE_UNIT;
    return slice < SLICE_LEAST ? SLICE_LEAST : slice;
}

/* What was read of the others is what they have exposed. */
static bool reads_hold(const psd_request *r)
{
    const coll *c = &r->schedule;
    for (int32_t i = 0; i < c->size; i++) {
        if (exposes_to(c, i, c->rank) && !host_link_read_holds(r->group->member[i].peer->link))
            return false;
    }
    return true;
}

/* False: a link has broken, or is about to be seen broken, and its group with it. */
static bool do_slice(psd_request *r)
{
    direct *d = r->direct;
    const coll *c = &r->schedule;
    coll_span share = share_of(c, c->rank);
    size_t left = share.bytes - (size_t)d->done;
    size_t bytes = left < slice_bytes(c) ? left : slice_bytes(c);
    size_t at = share.at + (size_t)d->done;
    if (bytes == 0)
        return true;
    bool is_broadcast = c->op.kind == PSD_OP_BROADCAST;
    if (!(is_broadcast ? broadcast_slice(r, at, bytes) : reduce_slice(r, at, bytes)) || !reads_hold(r))
        return false;
    d->done += bytes;
    return true;
}

/* ---------------------------------------------------------------------------------------------------- stages */

static bool all_are_reachable(const psd_request *r)
{
    const coll *c = &r->schedule;
    for (int32_t i = 0; i < c->size; i++) {
        bool matters = c->op.kind != PSD_OP_BROADCAST || i == c->op.root;
        if (matters && !is_reachable(c, r->direct, i))
            return false;
    }
    return true;
}

/* Nobody will touch the memory that this rank has exposed. The others still have to be told of it, by what may be in
 * the queue: each waits for all. */
static void give_up(psd_request *r)
{
    engine *e = r->group->engine;
    LIST_EACH(&r->xfers, node, after)
    {
        xfer *x = LIST_ENTRY(node, xfer, in_request);
        peer_disown_send(x);
        xfer_release(e, x);
    }
    r->pending = 0;
    direct_release(e, r);
}

static void say_done(psd_request *r)
{
    const coll *c = &r->schedule;
    for (int32_t i = 0; i < c->size; i++) {
        if (!exposes_to(c, i, c->rank))
            continue;
        frame f = peer_frame(r->group, FRAME_FIN);
        f.id = r->direct->ranks[i].id;
        peer_send_control(r->group->member[i].peer, &f, NULL);
    }
}

bool direct_advance(psd_request *r)
{
    direct *d = r->direct;
    if (d->missing > 0)
        return true;
    list_remove(&r->ready); /* this is its turn */
    if (d->stage == DIRECT_EXPOSING && !all_are_reachable(r)) {
        give_up(r);
        return false;
    }
    if (d->stage != DIRECT_AWAITING) {
        d->stage = DIRECT_WORKING;
        if (!do_slice(r))
            return true;
        if (d->done < share_of(&r->schedule, r->schedule.rank).bytes) {
            queue_up(r);
            return true;
        }
        say_done(r);
        d->stage = DIRECT_AWAITING;
        r->pending--;
    }
    if (r->pending == 0)
        request_finish(r, PSD_OK);
    return true;
}

bool direct_is_exposing(const psd_request *r)
{
    return r->direct != NULL && r->direct->missing > 0;
}

/* Other ranks write the output of this operation, by itself or as part of a page. */
static bool is_written(const xfer *x)
{
    const coll *c = &x->request->schedule;
    return x->state != XFER_FREE && x->is_exposure && x->is_send && exposes_in(c) && exposes_out(c, c->rank);
}

/* What other groups' ranks write into pages that were detached would be lost without anybody's knowing. */
static void break_neighbours(const psd_request *r)
{
    engine *e = r->group->engine;
    const psd_op *op = &r->schedule.op;
    char text[160];
    for (uint32_t i = 0; i < e->xfer_count; i++) {
        const xfer *y = e->xfers[i];
        if (!is_written(y) || y->request->group == r->group)
            continue;
        hgroup *g = y->request->group;
        const psd_op *other = &y->request->schedule.op;
        snprintf(text, sizeof(text),
                 "group %u: rank %d's %.60s shares memory with an operation of group %u that was given up",
                 g->id, g->rank, y->request->label, r->group->id);
        if (arena_share_page(op->out, count_bytes(op), other->out, count_bytes(other)))
            host_group_break(g, PSD_ERR_LINK, -1, true, text);
    }
}

void direct_revoke(const xfer *x)
{
    const psd_request *r = x->request;
    if (!is_written(x))
        return;
    arena_detach(r->group->engine->huge.shared, r->schedule.op.out, count_bytes(&r->schedule.op));
    break_neighbours(r);
}

void direct_release(engine *e, psd_request *r)
{
    if (r->direct != NULL)
        blocks_put(&e->pool, r->direct, r->direct->bytes);
    r->direct = NULL;
}
