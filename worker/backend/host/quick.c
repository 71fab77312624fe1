/* Small blocking operations on shared memory without a request: the caller itself writes its messages into the lanes
 * and takes what comes from them, for some microseconds. What moves is the same as otherwise (the rounds of the same
 * schedules, the same headers), so the other ranks need not do likewise.
 *
 * It is for a context that has nothing else to do. As soon as there is anything unusual (a message that is not the
 * expected one, a full lane, another thread, a peer that is late) the operation goes on as a request like others,
 * from where it is: what has come is done, the rest is posted. */
#include "worker/backend/host/engine.h"

#include <string.h>

#include "common/tensor.h"

#define QUICK_RANKS    16   /* whose messages of one round have a bit each */
#define QUICK_BYTES    8192 /* of a tensor, or of each rank's part of it */
#define LOOKS          150  /* at a lane without a pause: about half a microsecond */
#define LOOKS_CROWDED  10   /* with more ranks than cores */
#define LOOKS_PAUSED   100  /* and with one, each 10 to 30 ns */
#define QUICK_YIELD_NS (50 * INT64_C(1000))

typedef enum found {
    FOUND_NOTHING = 0,
    FOUND_TAKEN,
    FOUND_OTHER, /* than what was expected */
} found;

typedef struct quick {
    hgroup *group;
    psd_request *request;   /* collective: its schedule, round and items */
    lane_message head;      /* of all its messages; but for the bytes */
    coll_messages messages; /* of the round */
    uint64_t done;          /* a bit for each of them */
    uint32_t looks;         /* without success */
    psd_time_ns since;      /* the first yield; 0: none yet */
} quick;

/* ------------------------------------------------------------------------------------------------ waiting */

/* Nothing is in flight, nobody else drives or waits. */
static bool is_quiet(const engine *e)
{
    return list_empty(&e->active) && e->queued == 0 && e->waiters == 0 && !e->has_driver && !e->has_quick &&
           !e->has_broken;
}

/* Gives the core away. False if somebody else was here meanwhile, or it has lasted too long. */
static bool yield_core(quick *q)
{
    engine *e = q->group->engine;
    psd_time_ns now = psd_now_ns();
    uint32_t polls = e->polls;
    if (q->since == 0)
        q->since = now;
    if (now - q->since > QUICK_YIELD_NS)
        return false;
    e->has_quick = true;
    progress_yield(e);
    e->has_quick = false;
    return e->polls == polls && q->group->status == PSD_OK && !host_group_in_dispute(q->group) &&
           !e->has_broken;
}

/* Before the next look at a lane; false: no more of them. */
static bool wait_for_look(quick *q)
{
    engine *e = q->group->engine;
    q->looks++;
    if (q->looks < LOOKS_CROWDED)
        return true;
    if (atomic_load_explicit(&e->contenders, memory_order_relaxed) > 0)
        return false;
    if (q->looks == LOOKS_CROWDED && progress_is_crowded(e))
        q->looks = LOOKS + LOOKS_PAUSED;
    if (q->looks < LOOKS)
        return true;
    if (q->looks < LOOKS + LOOKS_PAUSED) {
        progress_pause();
        return true;
    }
    return yield_core(q);
}

/* --------------------------------------------------------------------------------------------- one message */

static bool send_small(quick *q, int32_t to, const void *data, uint64_t bytes)
{
    const member *m = &q->group->member[to];
    uint64_t cost = bytes + sizeof(frame);
    lane_message head = q->head;
    head.bytes = (uint32_t)bytes;
    /* A frame may be half out, of this call's own (credit) or of another thread's that came while the core was given
     * away: small messages begin where frames end. */
    if (m->has_closed || m->peer->is_broken || cost > m->peer->credit || !list_empty(&m->peer->out) ||
        !host_link_write_small(m->peer->link, &head, data))
        return false;
    m->peer->credit -= cost;
    m->peer->frames_sent++;
    engine_count(&q->group->engine->bytes_sent, bytes);
    host_link_flush(m->peer->link);
    return true;
}

/* The payload of the next message of a peer, if it may be the expected one. */
static const void *peek(const peer *p, lane_message *m, found *what)
{
    *what = FOUND_OTHER;
    if (p->in.have > 0 || p->is_broken)
        return NULL;
    bool has_stream = host_link_readable_stream(p->link); /* first, see link.h */
    const void *payload = host_link_peek_small(p->link, m);
    bool is_silent = !has_stream && host_link_get_state(p->link) == HOST_LINK_READY;
    *what = payload != NULL ? FOUND_TAKEN : is_silent ? FOUND_NOTHING : FOUND_OTHER;
    return payload;
}

static void take(peer *p, uint32_t bytes)
{
    host_link_take_small(p->link);
    p->frames_received++;
    engine_count(&p->engine->bytes_received, bytes);
    peer_give_credit(p, bytes + sizeof(frame), 0);
    if (p->needs_flush)
        host_link_flush(p->link);
    p->needs_flush = false;
}

/* --------------------------------------------------------------------------------------------- collectives */

static bool is_of_round(const quick *q, const lane_message *m, const coll_message *item)
{
    const lane_message *h = &q->head;
    return m->ordinal == h->ordinal && m->group == h->group && m->bytes == item->bytes &&
           m->source == (uint32_t)item->peer && m->channel == h->channel && m->kind == h->kind &&
           m->dtype == h->dtype && m->redop == h->redop && m->tag == h->tag && m->count == h->count;
}

static found take_item(quick *q, const coll_message *item)
{
    psd_request *r = q->request;
    peer *p = q->group->member[item->peer].peer;
    lane_message m;
    found what;
    const void *payload = peek(p, &m, &what);
    if (payload == NULL)
        return what;
    if (!is_of_round(q, &m, item))
        return FOUND_OTHER;
    if (item->may_combine && m.bytes > 0)
        coll_combine(&r->schedule, r->round, 0, payload, m.bytes);
    else if (m.bytes > 0)
        memcpy(item->data, payload, m.bytes);
    take(p, m.bytes);
    return FOUND_TAKEN;
}

static bool send_round(quick *q)
{
    for (int32_t i = 0; i < q->messages.count; i++) {
        const coll_message *item = &q->messages.items[i];
        if (!item->is_send)
            continue;
        if (!send_small(q, item->peer, item->data, item->bytes))
            return false;
        q->done |= UINT64_C(1) << i;
    }
    return true;
}

/* In the order of the list, so that two of one peer keep theirs. */
static bool receive_round(quick *q)
{
    for (int32_t i = 0; i < q->messages.count; i++) {
        const coll_message *item = &q->messages.items[i];
        if (item->is_send)
            continue;
        found what;
        while ((what = take_item(q, item)) == FOUND_NOTHING) {
            if (!wait_for_look(q))
                return false;
        }
        if (what != FOUND_TAKEN)
            return false;
        q->done |= UINT64_C(1) << i;
        q->looks = 0;
    }
    return true;
}

/* False: it has come to a round that is not complete. */
static bool run_rounds(quick *q)
{
    psd_request *r = q->request;
    while (coll_round(&r->schedule, r->round, &q->messages)) {
        q->done = 0;
        bool is_sent = send_round(q);
        coll_meanwhile(&r->schedule, r->round);
        if (!is_sent || !receive_round(q))
            return false;
        coll_finish(&r->schedule, r->round++);
    }
    return true;
}

static bool fits_coll(const hgroup *g, const psd_op *op)
{
    bool is_small =
        op->kind == PSD_OP_BARRIER || (uint64_t)op->count <= QUICK_BYTES / psd_dtype_bytes(op->dtype);
    return is_small && op->kind != PSD_OP_ALL_TO_ALL_V && g->size <= QUICK_RANKS && list_empty(&g->early);
}

/* A request with memory for any small collective, used again until one is needed for good. */
static psd_request *get_request(hgroup *g)
{
    psd_request *r = g->spare;
    g->spare = NULL;
    if (r != NULL) {
        r->round = 0;
        return r;
    }
    psd_op largest = {.kind = PSD_OP_REDUCE_SCATTER, .dtype = PSD_U8, .count = QUICK_BYTES};
    r = request_get(g, &largest);
    if (r == NULL)
        return NULL;
    r->is_coll = true;
    if (coll_run_take_memory(r, &largest))
        return r;
    request_put(g->engine, r);
    return NULL;
}

static psd_status go_on_as_request(quick *q, const psd_op *op, const past_op *past, psd_request **out)
{
    hgroup *g = q->group;
    psd_request *r = q->request;
    if (g->status != PSD_OK) { /* its requests have been ended already */
        g->spare = r;
        return g->status;
    }
    memcpy(r->label, past->label, sizeof(r->label));
    r->kind = op->kind;
    r->record = op->record;
    r->result.ordinal = r->ordinal;
    request_activate(r, op->deadline);
    coll_run_post(r, &q->messages, q->done);
    *out = r;
    return PSD_INPROGRESS;
}

static psd_status run_coll(hgroup *g, const psd_op *op, psd_op_result *result, psd_request **out)
{
    quick q = {.group = g, .request = get_request(g)};
    psd_request *r = q.request;
    if (r == NULL)
        return PSD_ERR_NOMEM;
    r->what = fingerprint_of(op);
    r->ordinal = g->next_ordinal++;
    past_op *past = coll_run_remember(g, r, op->label);
    coll_begin(&r->schedule, op, g->rank, g->size, r->scratch);
    r->schedule.op.label = r->label;
    q.messages.items = r->items;
    q.messages.capacity = coll_max_messages(g->size);
    frame f = coll_run_frame(g, FRAME_EAGER, r->ordinal, &r->what);
    q.head = frame_to_small(&f);
    if (!run_rounds(&q))
        return go_on_as_request(&q, op, past, out);
    g->spare = r;
    result->ordinal = r->ordinal;
    return PSD_OK;
}

/* -------------------------------------------------------------------------------------------- send, receive */

static void describe(quick *q, const psd_op_p2p *op, uint64_t ordinal)
{
    lane_message head = {.kind = PSD_OP_SEND,
                         .dtype = (uint8_t)op->dtype,
                         .channel = FRAME_P2P,
                         .group = q->group->id,
                         .source = (uint32_t)q->group->rank,
                         .tag = op->tag,
                         .count = (uint32_t)op->count,
                         .ordinal = ordinal};
    q->head = head;
}

static bool send_one(quick *q, const psd_op_p2p *op, const char *label, psd_op_result *result)
{
    hgroup *g = q->group;
    member *to = &g->member[op->peer];
    uint64_t bytes = (uint64_t)op->count * psd_dtype_bytes(op->dtype);
    if (bytes > g->engine->eager_limit)
        return false;
    describe(q, op, to->sent);
    if (!send_small(q, op->peer, op->data, bytes))
        return false;
    p2p_remember(g, op, to->sent, label);
    result->ordinal = to->sent++;
    return true;
}

static found take_one(quick *q, const psd_op_p2p *op, psd_op_result *result)
{
    hgroup *g = q->group;
    peer *p = g->member[op->peer].peer;
    lane_message m;
    found what;
    const void *payload = peek(p, &m, &what);
    if (payload == NULL)
        return what;
    bool is_it = m.channel == FRAME_P2P && m.kind == PSD_OP_SEND && m.group == g->id &&
                 m.source == (uint32_t)op->peer && m.dtype == op->dtype && m.count == op->count &&
                 m.bytes == (uint64_t)op->count * psd_dtype_bytes(op->dtype) && m.tag >= 0 &&
                 (op->tag == PSD_ANY_TAG || op->tag == m.tag);
    if (!is_it)
        return FOUND_OTHER;
    if (m.bytes > 0)
        memcpy(op->data, payload, m.bytes);
    take(p, m.bytes);
    result->source = op->peer;
    result->tag = m.tag;
    result->ordinal = m.ordinal;
    return FOUND_TAKEN;
}

static bool receive_one(quick *q, const psd_op_p2p *op, psd_op_result *result)
{
    found what;
    while ((what = take_one(q, op, result)) == FOUND_NOTHING) {
        if (!wait_for_look(q))
            return false;
    }
    return what == FOUND_TAKEN;
}

static bool fits_p2p(const hgroup *g, const psd_op_p2p *op)
{
    return op->peer >= 0 && op->peer != g->rank &&
           (uint64_t)op->count <= QUICK_BYTES / psd_dtype_bytes(op->dtype) &&
           (op->is_send || list_empty(&g->member[op->peer].messages));
}

/* One send, one receive, or one of each, of which the send comes first. What of it is still to be done. */
static psd_op run_p2p(hgroup *g, const psd_op *op, psd_op_result *result)
{
    quick q = {.group = g};
    psd_op rest = *op;
    int32_t first = op->p2p_count == 2 && op->p2p[1].is_send;
    for (int32_t i = 0; i < op->p2p_count; i++) {
        const psd_op_p2p *one = &op->p2p[i ^ first];
        rest.p2p = one;
        rest.p2p_count = op->p2p_count - i;
        if (!(one->is_send ? send_one(&q, one, op->label, result) : receive_one(&q, one, result)))
            return i == 0 ? *op : rest;
    }
    rest.p2p_count = 0;
    return rest;
}

static bool is_quick_p2p(const hgroup *g, const psd_op *op)
{
    bool is_pair = op->p2p_count == 2 && op->p2p[0].is_send != op->p2p[1].is_send;
    return (op->p2p_count == 1 || is_pair) && fits_p2p(g, &op->p2p[0]) &&
           fits_p2p(g, &op->p2p[op->p2p_count - 1]);
}

/* ---------------------------------------------------------------------------------------------------- both */

psd_status quick_run(hgroup *g, const psd_op *op, psd_op_result *result, psd_request **out)
{
    bool is_p2p = op->kind == PSD_OP_SEND || op->kind == PSD_OP_RECV || op->kind == PSD_OP_BATCH;
    bool is_quick = g->is_flat && is_quiet(g->engine) && !host_group_in_dispute(g);
    psd_op rest = *op;
    psd_status status = PSD_INPROGRESS;
    psd_op_result all = {.status = PSD_OK, .source = PSD_ANY_SOURCE, .tag = PSD_ANY_TAG};
    if (is_quick && is_p2p && is_quick_p2p(g, op)) {
        rest = run_p2p(g, op, &all);
        status = rest.p2p_count == 0 ? PSD_OK : g->status == PSD_OK ? PSD_INPROGRESS : g->status;
        if (status == PSD_INPROGRESS)
            status = p2p_start(g, &rest, out) == PSD_OK ? PSD_INPROGRESS : PSD_ERR_NOMEM;
    } else if (is_quick && !is_p2p && fits_coll(g, op)) {
        status = run_coll(g, op, &all, out);
    } else {
        status = is_p2p ? p2p_start(g, op, out) : coll_run_start(g, op, out);
        status = status == PSD_OK ? PSD_INPROGRESS : status;
    }
    if (status == PSD_OK)
        *result = all;
    return status;
}
