/* Point-to-point operations: batches of sends and receives, and their matching by (source, tag), first come
 * first served. */
#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <string.h>

#include "common/tensor.h"
#include "worker/backend/host/reduce.h"

/* ----------------------------------------------------------------------------------------------- matching */

static bool tag_fits(int32_t wanted, int32_t tag)
{
    return wanted == PSD_ANY_TAG || wanted == tag;
}

static xfer *first_fitting(list *posted, int32_t tag)
{
    for (list *node = posted->next; node != posted; node = node->next) {
        xfer *r = LIST_ENTRY(node, xfer, node);
        if (tag_fits(r->tag, tag))
            return r;
    }
    return NULL;
}

xfer *p2p_find_posted(hgroup *g, const frame *f)
{
    xfer *named = first_fitting(&g->member[f->source].posted, f->tag);
    xfer *any = first_fitting(&g->posted_any, f->tag);
    if (named == NULL || any == NULL)
        return named != NULL ? named : any;
    return named->posted < any->posted ? named : any;
}

message *p2p_find_message(hgroup *g, const xfer *r)
{
    if (r->rank != PSD_ANY_SOURCE) {
        list *head = &g->member[r->rank].messages;
        for (list *node = head->next; node != head; node = node->next) {
            message *m = LIST_ENTRY(node, message, node);
            if (tag_fits(r->tag, m->header.tag))
                return m;
        }
        return NULL;
    }
    for (list *node = g->arrivals.next; node != &g->arrivals; node = node->next) {
        message *m = LIST_ENTRY(node, message, arrival);
        if (tag_fits(r->tag, m->header.tag))
            return m;
    }
    return NULL;
}

bool p2p_agrees(const xfer *r, const frame *f)
{
    return r->dtype == f->dtype && r->count == f->count;
}

/* --------------------------------------------------------------------------------------------- mismatches */

typedef struct side {
    int32_t rank;
    uint8_t dtype;
    int64_t count;
    const char *label;
} side;

static void format_mismatch(const hgroup *g, const side *from, const side *to, uint64_t ordinal, int32_t tag,
                            char *out, size_t bytes)
{
    snprintf(out, bytes,
             "group %u message %llu from rank %d to rank %d, tag %d: rank %d called send %s count %lld (%s), "
             "rank %d "
             "called recv %s count %lld (%s)",
             g->id, (unsigned long long)ordinal, from->rank, to->rank, tag, from->rank,
             psd_dtype_name((psd_dtype)from->dtype), (long long)from->count, from->label, to->rank,
             psd_dtype_name((psd_dtype)to->dtype), (long long)to->count, to->label);
}

static void add_sides(const hgroup *g, op_sides *out, const side *from, const side *to, uint64_t ordinal)
{
    sides_add_message(g, out, true, from->rank, to->rank, ordinal, from->dtype, from->count, from->label);
    sides_add_message(g, out, false, to->rank, from->rank, ordinal, to->dtype, to->count, to->label);
}

static const past_op *find_past(const hgroup *g, int32_t dst, uint64_t ordinal)
{
    for (uint32_t i = 0; i < ENGINE_P2P_PAST; i++) {
        const past_op *past = &g->p2p_past[i];
        if (past->ordinal == ordinal + 1 && past->peer == dst)
            return past;
    }
    return NULL;
}

void p2p_dispute(hgroup *g, const xfer *r, peer *p, const frame *f)
{
    char text[PSD_MAX_TEXT];
    const past_op *past = p == NULL ? find_past(g, g->rank, f->ordinal) : NULL;
    side from = {(int32_t)f->source, f->dtype, f->count, past != NULL ? past->label : "place not known"};
    side to = {g->rank, r->dtype, r->count, r->request->label};
    format_mismatch(g, &from, &to, f->ordinal, f->tag, text, sizeof(text));
    op_sides sides = {.count = 0};
    add_sides(g, &sides, &from, &to, f->ordinal);
    if (p == NULL) {
        host_group_break_by(g, PSD_ERR_MISMATCH, -1, text, &sides);
        return;
    }
    frame compare = peer_frame(g, FRAME_COMPARE);
    compare.channel = FRAME_P2P;
    compare.dtype = r->dtype;
    compare.count = r->count;
    compare.tag = f->tag;
    compare.ordinal = f->ordinal;
    compare.other = f->dtype;
    compare.word = (uint64_t)f->count;
    host_group_dispute(g, p, &compare, r->request->label, text, &sides);
}

void p2p_on_compare(hgroup *g, peer *p, const frame *f, const char *label)
{
    char text[PSD_MAX_TEXT];
    (void)p;
    const past_op *past = find_past(g, (int32_t)f->source, f->ordinal);
    side from = {g->rank, f->other, (int64_t)f->word, "place not known"};
    if (past != NULL) {
        from.dtype = past->what.dtype;
        from.count = past->what.count;
        from.label = past->label;
    }
    side to = {(int32_t)f->source, f->dtype, f->count, label};
    format_mismatch(g, &from, &to, f->ordinal, f->tag, text, sizeof(text));
    op_sides sides = {.count = 0};
    add_sides(g, &sides, &from, &to, f->ordinal);
    host_group_break_by(g, PSD_ERR_MISMATCH, -1, text, &sides);
}

/* ----------------------------------------------------------------------------------------------- starting */

void p2p_remember(hgroup *g, const psd_op_p2p *send, uint64_t ordinal, const char *label)
{
    past_op *past = &g->p2p_past[g->p2p_past_next++ % ENGINE_P2P_PAST];
    past->ordinal = ordinal + 1;
    past->peer = send->peer;
    past->what.dtype = (uint8_t)send->dtype;
    past->what.count = send->count;
    request_label(past->label, label);
}

static void post_send(hgroup *g, xfer *s)
{
    member *to = &g->member[s->rank];
    s->ordinal = to->sent++;
    s->peer = to->peer;
    psd_op_p2p send = {.dtype = (psd_dtype)s->dtype, .count = s->count, .peer = s->rank};
    p2p_remember(g, &send, s->ordinal, s->request->label);
    frame f = peer_frame(g, FRAME_EAGER);
    f.channel = FRAME_P2P;
    f.kind = PSD_OP_SEND;
    f.dtype = s->dtype;
    f.count = s->count;
    f.tag = s->tag;
    f.ordinal = s->ordinal;
    f.bytes = s->bytes;
    if (s->rank == g->rank) {
        match_send_self(g, s, &f);
        return;
    }
    transfer_send(g->engine, s, &f, g->engine->eager_limit);
}

static bool add_transfer(engine *e, psd_request *r, const psd_op_p2p *op)
{
    xfer *x = xfer_get(e, r);
    if (x == NULL)
        return false;
    x->is_send = op->is_send;
    x->channel = FRAME_P2P;
    x->dtype = (uint8_t)op->dtype;
    x->rank = op->peer;
    x->tag = op->tag;
    x->count = op->count;
    x->data = op->data;
    x->bytes = (uint64_t)op->count * psd_dtype_bytes(op->dtype);
    x->past_cache = !op->is_send && exceeds_cache(2 * x->bytes); /* here and at the sender */
    return true;
}

static void drop_request(engine *e, psd_request *r)
{
    LIST_EACH(&r->xfers, node, after)
    {
        xfer_release(e, LIST_ENTRY(node, xfer, in_request));
    }
    request_put(e, r);
}

psd_status p2p_start(hgroup *g, const psd_op *op, psd_request **out)
{
    engine *e = g->engine;
    psd_request *r = request_get(g, op);
    if (r == NULL)
        return PSD_ERR_NOMEM;
    for (int32_t i = 0; i < op->p2p_count; i++) {
        if (!add_transfer(e, r, &op->p2p[i])) {
            drop_request(e, r);
            return PSD_ERR_NOMEM;
        }
    }
    request_activate(r, op->deadline);
    r->pending =
        (uint32_t)op->p2p_count + 1; /* one for this function: none is advanced before all are posted */
    LIST_EACH(&r->xfers, node, after)
    {
        xfer *x = LIST_ENTRY(node, xfer, in_request);
        if (!x->is_send) {
            match_post(e, x);
            continue;
        }
        post_send(g, x);
    }
    for (list *node = r->xfers.next; node != &r->xfers; node = node->next) {
        const xfer *x = LIST_ENTRY(node, xfer, in_request);
        if (x->rank == PSD_ANY_SOURCE)
            host_group_check_closed(g, x);
    }
    r->pending--;
    if (r->pending == 0)
        list_append(&e->ready, &r->ready);
    *out = r;
    return PSD_OK;
}
