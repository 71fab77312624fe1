/* Collectives: rounds of a schedule (host/coll.h), each message compared with what this rank's collective of that
 * ordinal is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "worker/backend/mpi/engine.h"

static frame frame_of(const psd_request *r, frame_type type)
{
    frame f = wire_frame(r->group, type);
    f.channel = FRAME_COLL;
    f.kind = r->what.kind;
    f.dtype = r->what.dtype;
    f.redop = r->what.redop;
    f.tag = r->what.root;
    f.count = r->what.count;
    f.ordinal = r->result.ordinal;
    memcpy(f.label, r->label, sizeof f.label);
    return f;
}

/* ---------------------------------------------------------------------------------------- comparing */

static void dispute(mgroup *g, const frame *f, const past_op *mine)
{
    char text[PSD_MAX_TEXT];
    fingerprint theirs = fingerprint_of_frame(f);
    fingerprint_call here = {g->rank, &mine->what, mine->label},
                     there = {(int32_t)f->source, &theirs, f->label};
    fingerprint_format_mismatch(g->id, f->ordinal, here, there, text, sizeof text);
    group_break(g, PSD_ERR_MISMATCH, -1, true, text);
}

static void break_long_ago(mgroup *g, const frame *f)
{
    char text[PSD_MAX_TEXT];
    fingerprint theirs = fingerprint_of_frame(f);
    fingerprint_call call = {(int32_t)f->source, &theirs, f->label};
    fingerprint_format_long_ago(g->id, f->ordinal, call, g->rank, g->next_ordinal, text, sizeof text);
    group_break(g, PSD_ERR_MISMATCH, -1, true, text);
}

static psd_request *find_active(mgroup *g, uint64_t ordinal)
{
    for (list *node = g->requests.next; node != &g->requests; node = node->next) {
        psd_request *r = LIST_ENTRY(node, psd_request, in_group);
        if (r->is_coll && r->result.ordinal == ordinal)
            return r;
    }
    return NULL;
}

static void remember(const psd_request *r, past_op *past)
{
    past->ordinal = r->result.ordinal + 1;
    past->what = r->what;
    memcpy(past->label, r->label, sizeof past->label);
}

bool coll_run_compare(mgroup *g, const frame *f, bool *is_early)
{
    past_op room;
    const past_op *mine = &g->past[f->ordinal % ENGINE_PAST];
    *is_early = f->ordinal >= g->next_ordinal;
    if (*is_early)
        return true;
    if (mine->ordinal != f->ordinal + 1) {
        const psd_request *r = find_active(g, f->ordinal);
        if (r == NULL) {
            if (f->type != FRAME_COMPARE) /* else its messages tell, or it finds out by itself */
                break_long_ago(g, f);
            return false;
        }
        remember(r, &room);
        mine = &room;
    }
    fingerprint theirs = fingerprint_of_frame(f);
    if (fingerprint_equal(&mine->what, &theirs))
        return true;
    dispute(g, f, mine);
    return false;
}

/* The fingerprints agree and the sizes do not: the splits of all_to_all_v. */
void coll_run_dispute_bytes(mgroup *g, const xfer *r, const frame *f)
{
    char text[PSD_MAX_TEXT];
    size_t size = psd_dtype_bytes((psd_dtype)f->dtype);
    size = size == 0 ? 1 : size;
    snprintf(text, sizeof text,
             "group %u collective %llu: %s cell %u to %d: rank %u sends %llu elements (%s), rank %d expects "
             "%llu (%s)",
             g->id, (unsigned long long)f->ordinal, psd_op_name((psd_op_kind)f->kind), f->source, g->rank,
             f->source, (unsigned long long)(f->bytes / size), f->label, g->rank,
             (unsigned long long)(r->bytes / size), r->request->label);
    group_break(g, PSD_ERR_MISMATCH, -1, true, text);
}

void coll_run_notice(psd_request *r)
{
    mgroup *g = r->group;
    frame f = frame_of(r, FRAME_COMPARE);
    for (list *node = r->posted.next; node != &r->posted; node = node->next)
        wire_send(g->engine, (int)g->members[LIST_ENTRY(node, xfer, node)->rank], &f, NULL);
}

/* ----------------------------------------------------------------------------------------- matching */

xfer *coll_run_find_posted(mgroup *g, const frame *f)
{
    psd_request *r = find_active(g, f->ordinal);
    if (r == NULL)
        return NULL;
    for (list *at = r->posted.next; at != &r->posted; at = at->next) {
        xfer *x = LIST_ENTRY(at, xfer, node);
        if (x->rank == (int32_t)f->source)
            return x;
    }
    return NULL;
}

/* Messages that came before this rank started the collective. */
static void sort_early(psd_request *r)
{
    mgroup *g = r->group;
    bool is_early = false;
    LIST_EACH(&g->early, node, after)
    {
        message *m = LIST_ENTRY(node, message, node);
        if (m->header.ordinal != r->result.ordinal)
            continue;
        if (!coll_run_compare(g, &m->header, &is_early))
            return; /* the rest goes with the group */
        list_remove(node);
        if (m->header.type == FRAME_COMPARE)
            match_free(g, m);
        else
            list_append(&g->member[m->header.source].coll_messages, node);
    }
}

/* ------------------------------------------------------------------------------------------- rounds */

static xfer *add_transfer(psd_request *r, const coll_message *item)
{
    xfer *x = xfer_new(r);
    if (x == NULL) {
        group_break(r->group, PSD_ERR_NOMEM, -1, true, "out of memory in a collective");
        return NULL;
    }
    x->is_send = item->is_send;
    x->channel = FRAME_COLL;
    x->dtype = (psd_dtype)r->what.dtype;
    x->rank = item->peer;
    x->ordinal = r->result.ordinal;
    x->data = item->data;
    x->bytes = item->bytes;
    return x;
}

static void post(psd_request *r, const coll_messages *messages, bool sends)
{
    for (int32_t i = 0; i < messages->count && group_status(r->group) == PSD_OK; i++) {
        const coll_message *item = &messages->items[i];
        xfer *x = item->is_send == sends ? add_transfer(r, item) : NULL;
        if (x == NULL)
            continue;
        if (sends) {
            frame f = frame_of(r, FRAME_EAGER);
            transfer_send(r->group, x, &f, FRAME_MAX_PAYLOAD);
        } else {
            match_post(r->group, x);
        }
    }
}

/* The next round, and those after it that have nothing to wait for. */
void coll_run_advance(psd_request *r)
{
    mgroup *g = r->group;
    while (r->pending == 0 && group_status(g) == PSD_OK) {
        coll_messages messages = {.capacity = coll_max_messages(g->size), .items = r->items};
        if (r->round > 0)
            coll_finish(&r->schedule, r->round - 1);
        if (!coll_round(&r->schedule, r->round, &messages)) {
            request_finish(r, PSD_OK);
            return;
        }
        r->round++;
        r->pending = 1; /* none of this round ends it while it is being posted */
        post(r, &messages, false);
        post(r, &messages, true);
        coll_meanwhile(&r->schedule, r->round - 1);
        r->pending--;
    }
}

void coll_run_start(psd_request *r)
{
    mgroup *g = r->group;
    r->result.ordinal = g->next_ordinal++;
    coll_begin(&r->schedule, &r->op, g->rank, g->size, r->scratch);
    remember(r, &g->past[r->result.ordinal % ENGINE_PAST]);
    sort_early(r);
    coll_run_advance(r);
}
