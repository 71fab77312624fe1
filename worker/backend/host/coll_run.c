/* Runs collectives: posts the messages of each round of a schedule (coll.h), and compares what the ranks
 * called. */
#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <string.h>

#include "common/tensor.h"
#include "worker/backend/host/reduce.h"

/* --------------------------------------------------------------------------------------------- mismatches */

static fingerprint fingerprint_in(const frame *f)
{
    fingerprint fp = {
        .kind = f->kind, .dtype = f->dtype, .redop = f->redop, .root = f->tag, .count = f->count};
    return fp;
}

frame coll_run_frame(const hgroup *g, frame_type type, uint64_t ordinal, const fingerprint *what)
{
    frame f = peer_frame(g, type);
    f.channel = FRAME_COLL;
    f.kind = what->kind;
    f.dtype = what->dtype;
    f.redop = what->redop;
    f.tag = what->root;
    f.count = what->count;
    f.ordinal = ordinal;
    return f;
}

static void format_mismatch(const hgroup *g, uint64_t ordinal, const past_op *mine, int32_t other,
                            const fingerprint *theirs, const char *their_label, char *out, size_t bytes)
{
    fingerprint_call here = {g->rank, &mine->what, mine->label}, there = {other, theirs, their_label};
    fingerprint_format_mismatch(g->id, ordinal, here, there, out, bytes);
}

static void break_long_ago(hgroup *g, const frame *f)
{
    char text[PSD_MAX_TEXT];
    fingerprint theirs = fingerprint_in(f);
    fingerprint_call call = {(int32_t)f->source, &theirs, NULL};
    fingerprint_format_long_ago(g->id, f->ordinal, call, g->rank, g->next_ordinal, text, sizeof(text));
    op_sides sides = {.count = 0};
    sides_add_collective(g, &sides, (int32_t)f->source, f->ordinal, &theirs, "");
    host_group_break_by(g, PSD_ERR_MISMATCH, -1, text, &sides);
}

static void remember(const psd_request *r, past_op *past)
{
    past->ordinal = r->ordinal + 1;
    past->what = r->what;
    memcpy(past->label, r->label, sizeof(past->label));
}

past_op *coll_run_remember(hgroup *g, const psd_request *r, const char *label)
{
    past_op *past = &g->coll_past[r->ordinal % ENGINE_COLL_PAST];
    past->ordinal = r->ordinal + 1;
    past->what = r->what;
    request_label(past->label, label);
    return past;
}

const past_op *coll_run_find_past(const hgroup *g, uint64_t ordinal, past_op *room)
{
    const past_op *past = &g->coll_past[ordinal % ENGINE_COLL_PAST];
    if (past->ordinal == ordinal + 1)
        return past;
    for (const list *node = g->requests.next; node != &g->requests; node = node->next) {
        const psd_request *r = LIST_ENTRY(node, psd_request, in_group);
        if (r->is_coll && r->ordinal == ordinal) {
            remember(r, room);
            return room;
        }
    }
    return NULL;
}

static void dispute(hgroup *g, peer *p, const frame *f, const past_op *mine)
{
    char text[PSD_MAX_TEXT];
    fingerprint theirs = fingerprint_in(f);
    format_mismatch(g, f->ordinal, mine, (int32_t)f->source, &theirs, "place not known", text, sizeof(text));
    op_sides sides = {.count = 0};
    sides_add_collective(g, &sides, g->rank, f->ordinal, &mine->what, mine->label);
    sides_add_collective(g, &sides, (int32_t)f->source, f->ordinal, &theirs, "");
    frame compare = coll_run_frame(g, FRAME_COMPARE, f->ordinal, &mine->what);
    host_group_dispute(g, p, &compare, mine->label, text, &sides);
}

bool coll_run_compare(hgroup *g, peer *p, const frame *f, bool *is_early)
{
    *is_early = f->ordinal >= g->next_ordinal;
    if (*is_early)
        return true;
    past_op room;
    const past_op *mine = coll_run_find_past(g, f->ordinal, &room);
    fingerprint theirs = fingerprint_in(f);
    if (mine == NULL)
        break_long_ago(g, f);
    else if (fingerprint_equal(&mine->what, &theirs))
        return true;
    else
        dispute(g, p, f, mine);
    return false;
}

static void format_cell(const hgroup *g, const frame *f, int32_t from, int32_t to, const char *from_label,
                        const char *to_label, uint64_t sent, uint64_t wanted, char *out, size_t bytes)
{
    size_t size = psd_dtype_bytes((psd_dtype)f->dtype);
    size = size == 0 ? 1 : size;
    snprintf(out, bytes,
             "group %u collective %llu: %s cell %d to %d: rank %d sends %llu elements (%s), rank %d expects "
             "%llu (%s)",
             g->id, (unsigned long long)f->ordinal, psd_op_name((psd_op_kind)f->kind), from, to, from,
             (unsigned long long)(sent / size), from_label, to, (unsigned long long)(wanted / size),
             to_label);
}

/* Both ends of a cell, with its elements for their counts. */
static void add_cell(const hgroup *g, op_sides *out, const frame *f, int32_t from, int32_t to,
                     const char *from_label, const char *to_label, uint64_t sent, uint64_t wanted)
{
    fingerprint what = fingerprint_in(f);
    size_t size = psd_dtype_bytes((psd_dtype)f->dtype);
    size = size == 0 ? 1 : size;
    what.count = (int64_t)(sent / size);
    sides_add_collective(g, out, from, f->ordinal, &what, from_label);
    what.count = (int64_t)(wanted / size);
    sides_add_collective(g, out, to, f->ordinal, &what, to_label);
}

/* The fingerprints agree and the sizes do not: the splits of all_to_all_v. */
void coll_run_dispute_bytes(hgroup *g, const xfer *r, peer *p, const frame *f)
{
    char text[PSD_MAX_TEXT];
    const char *label = r->request->label;
    format_cell(g, f, (int32_t)f->source, g->rank, "place not known", label, f->bytes, r->bytes, text,
                sizeof(text));
    frame compare = coll_run_frame(g, FRAME_COMPARE, f->ordinal, &r->request->what);
    compare.other = 1;
    compare.bytes = f->bytes;
    compare.word = r->bytes;
    op_sides sides = {.count = 0};
    add_cell(g, &sides, f, (int32_t)f->source, g->rank, "", label, f->bytes, r->bytes);
    host_group_dispute(g, p, &compare, label, text, &sides);
}

/* A comparison for a collective that this rank has not started: kept, once for each rank. */
static void keep_comparison(hgroup *g, peer *p, const frame *f, const char *label)
{
    for (list *node = g->early.next; node != &g->early; node = node->next) {
        const frame *kept = &LIST_ENTRY(node, message, node)->header;
        if (kept->type == FRAME_COMPARE && kept->source == f->source && kept->ordinal == f->ordinal)
            return;
    }
    message *m = message_new(g->engine, p, f, f->payload > 0 ? label : NULL);
    if (m == NULL)
        return; /* it is sent again */
    m->is_complete = true;
    g->kept++;
    list_append(&g->early, &m->node);
}

static void compare_labelled(hgroup *g, const frame *f, const char *label)
{
    char text[PSD_MAX_TEXT];
    past_op room;
    const past_op *mine = coll_run_find_past(g, f->ordinal, &room);
    fingerprint theirs = fingerprint_in(f);
    if (mine == NULL)
        return; /* its messages are on their way, or it finds out by itself that they do not come */
    op_sides sides = {.count = 0};
    if (f->other != 0) {
        format_cell(g, f, g->rank, (int32_t)f->source, mine->label, label, f->bytes, f->word, text,
                    sizeof(text));
        add_cell(g, &sides, f, g->rank, (int32_t)f->source, mine->label, label, f->bytes, f->word);
    } else if (!fingerprint_equal(&mine->what, &theirs)) {
        format_mismatch(g, f->ordinal, mine, (int32_t)f->source, &theirs, label, text, sizeof(text));
        sides_add_collective(g, &sides, g->rank, f->ordinal, &mine->what, mine->label);
        sides_add_collective(g, &sides, (int32_t)f->source, f->ordinal, &theirs, label);
    } else {
        return;
    }
    host_group_break_by(g, PSD_ERR_MISMATCH, -1, text, &sides);
}

void coll_run_on_compare(hgroup *g, peer *p, const frame *f, const char *label)
{
    if (f->ordinal >= g->next_ordinal)
        keep_comparison(g, p, f, label);
    else
        compare_labelled(g, f, label);
}

void coll_run_notice(psd_request *r)
{
    hgroup *g = r->group;
    frame f = coll_run_frame(g, FRAME_COMPARE, r->ordinal, &r->what);
    f.payload = (uint32_t)strlen(r->label);
    for (list *node = r->posted.next; node != &r->posted; node = node->next) {
        const xfer *x = LIST_ENTRY(node, xfer, node);
        peer_send_control(g->member[x->rank].peer, &f, r->label);
    }
}

/* ----------------------------------------------------------------------------------------------- matching */

xfer *coll_run_find_posted(hgroup *g, const frame *f)
{
    for (list *node = g->requests.next; node != &g->requests; node = node->next) {
        psd_request *r = LIST_ENTRY(node, psd_request, in_group);
        if (!r->is_coll || r->ordinal != f->ordinal)
            continue;
        for (list *at = r->posted.next; at != &r->posted; at = at->next) {
            xfer *x = LIST_ENTRY(at, xfer, node);
            if (x->rank == (int32_t)f->source)
                return x;
        }
        return NULL;
    }
    return NULL;
}

message *coll_run_find_message(hgroup *g, const xfer *r)
{
    list *head = &g->member[r->rank].coll_messages;
    for (list *node = head->next; node != head; node = node->next) {
        message *m = LIST_ENTRY(node, message, node);
        if (m->header.ordinal == r->ordinal)
            return m;
    }
    return NULL;
}

/* Messages that came before this rank started the collective. */
static void sort_early(psd_request *r)
{
    hgroup *g = r->group;
    LIST_EACH(&g->early, node, after)
    {
        message *m = LIST_ENTRY(node, message, node);
        const frame *f = &m->header;
        if (f->ordinal != r->ordinal)
            continue;
        bool is_early;
        list_remove(node);
        if (f->type == FRAME_COMPARE) {
            char label[FRAME_MAX_LABEL + 1] = "";
            if (f->payload > 0)
                memcpy(label, m->data, f->payload);
            compare_labelled(g, f, label);
            g->kept--;
            message_free(g->engine, m);
        } else if (coll_run_compare(g, m->peer, f, &is_early)) {
            list_append(&g->member[f->source].coll_messages, node);
        } else {
            list_append(&g->early, node); /* goes when the group is taken down */
            break;
        }
    }
}

/* ------------------------------------------------------------------------------------------------- rounds */

/* Will what is received have left the cache before anybody reads it? Not what is reduced or passed on, and in place the
 * input that was sent from there is in the cache anyway. */
static bool goes_past_cache(const psd_request *r, const coll_message *item)
{
    const coll *c = &r->schedule;
    bool is_scratch = (uintptr_t)item->data - (uintptr_t)r->scratch < r->scratch_bytes;
    bool is_in_place = c->op.in == c->op.out && c->op.kind != PSD_OP_ALL_GATHER;
    bool is_passed_on = c->op.kind == PSD_OP_BROADCAST && c->size > 2;
    return !item->is_send && !is_scratch && !is_in_place && !is_passed_on &&
           exceeds_cache(coll_touched_bytes(c));
}

static xfer *add_transfer(psd_request *r, const coll_message *item)
{
    hgroup *g = r->group;
    xfer *x = xfer_get(g->engine, r);
    if (x == NULL) {
        host_group_break(g, PSD_ERR_NOMEM, -1, true, "out of memory in a collective");
        return NULL;
    }
    x->is_send = item->is_send;
    x->channel = FRAME_COLL;
    x->dtype = r->what.dtype;
    x->rank = item->peer;
    x->ordinal = r->ordinal;
    x->data = item->data;
    x->bytes = item->bytes;
    x->may_combine = item->may_combine;
    x->past_cache = goes_past_cache(r, item);
    x->peer = g->member[item->peer].peer;
    r->pending++;
    return x;
}

static bool is_done(uint64_t done, int32_t i)
{
    return i < 64 && (done >> i & 1) != 0;
}

static void post_receives(psd_request *r, const coll_messages *messages, uint64_t done)
{
    for (int32_t i = 0; i < messages->count; i++) {
        if (messages->items[i].is_send || is_done(done, i))
            continue;
        xfer *x = add_transfer(r, &messages->items[i]);
        if (x == NULL)
            return;
        match_post(r->group->engine, x);
    }
}

static void post_sends(psd_request *r, const coll_messages *messages, uint64_t done)
{
    for (int32_t i = 0; i < messages->count; i++) {
        if (!messages->items[i].is_send || is_done(done, i))
            continue;
        xfer *x = add_transfer(r, &messages->items[i]);
        if (x == NULL)
            return;
        frame f = coll_run_frame(r->group, FRAME_EAGER, r->ordinal, &r->what);
        transfer_send(r->group->engine, x, &f, ENGINE_COLL_EAGER);
    }
}

void coll_run_post(psd_request *r, const coll_messages *messages, uint64_t done)
{
    r->round_is_posted = true;
    r->pending = 1;
    post_receives(r, messages, done);
    post_sends(r, messages, done);
    r->pending--;
    if (r->pending == 0)
        list_append(&r->group->engine->ready, &r->ready);
}

/* One round: local work of the one before, then its messages. With nothing to wait for it comes to the end of
 * the ready list, so that a long local operation does not hold the lock. */
void coll_run_advance(psd_request *r)
{
    if (r->group->status != PSD_OK || host_group_in_dispute(r->group))
        return; /* ended when the group is taken down */
    if (r->direct != NULL && direct_advance(r))
        return;
    if (r->round_is_posted)
        coll_finish(&r->schedule, r->round++);
    coll_messages messages = {.count = 0, .capacity = coll_max_messages(r->group->size), .items = r->items};
    if (!coll_round(&r->schedule, r->round, &messages)) {
        request_finish(r, PSD_OK);
        return;
    }
    coll_run_post(r, &messages, 0);
    coll_meanwhile(&r->schedule, r->round);
}

/* ----------------------------------------------------------------------------------------------- starting */

bool coll_run_take_memory(psd_request *r, const psd_op *op)
{
    hgroup *g = r->group;
    engine *e = g->engine;
    int32_t most = coll_max_messages(g->size);
    r->items_bytes = (size_t)(most > 0 ? most : 1) * sizeof(coll_message);
    r->scratch_bytes = coll_scratch_bytes(op, g->size);
    r->splits_bytes =
        op->in_splits != NULL && op->out_splits != NULL ? 2 * (size_t)g->size * sizeof(int64_t) : 0;
    r->items = blocks_get(&e->pool, r->items_bytes);
    r->scratch = blocks_get(&e->pool, r->scratch_bytes);
    r->splits = r->splits_bytes > 0 ? blocks_get(&e->pool, r->splits_bytes) : NULL;
    return r->items != NULL && r->scratch != NULL && (r->splits != NULL || r->splits_bytes == 0);
}

void coll_run_release(engine *e, psd_request *r)
{
    blocks_put(&e->pool, r->items, r->items_bytes);
    blocks_put(&e->pool, r->scratch, r->scratch_bytes);
    blocks_put(&e->pool, r->splits, r->splits_bytes);
    direct_release(e, r);
    r->items = NULL;
    r->scratch = NULL;
    r->splits = NULL;
}

psd_status coll_run_start(hgroup *g, const psd_op *op, psd_request **out)
{
    psd_request *r = request_get(g, op);
    if (r == NULL)
        return PSD_ERR_NOMEM;
    r->is_coll = true;
    if (!coll_run_take_memory(r, op)) {
        request_put(g->engine, r);
        return PSD_ERR_NOMEM;
    }
    psd_op copy = *op;
    copy.label = r->label;
    if (r->splits_bytes > 0) {
        size_t half = r->splits_bytes / 2;
        memcpy(r->splits, op->in_splits, half);
        memcpy(r->splits + g->size, op->out_splits, half);
        copy.in_splits = r->splits;
        copy.out_splits = r->splits + g->size;
    }
    r->what = fingerprint_of(op);
    r->ordinal = g->next_ordinal++;
    r->result.ordinal = r->ordinal;
    coll_begin(&r->schedule, &copy, g->rank, g->size, r->scratch);
    (void)coll_run_remember(g, r, r->label);
    request_activate(r, op->deadline);
    if (g->early.next != &g->early)
        sort_early(r);
    psd_status status = direct_begin(r);
    if (status != PSD_OK)
        host_group_break(g, status, -1, true, "out of memory in a collective");
    coll_run_advance(r);
    *out = r;
    return PSD_OK;
}
