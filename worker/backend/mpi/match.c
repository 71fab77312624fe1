/* Bringing messages and receives together: point-to-point by source and tag, first come first served; messages of
 * collectives by source and ordinal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "worker/backend/mpi/engine.h"

static bool tag_fits(int32_t wanted, int32_t tag)
{
    return wanted == PSD_ANY_TAG || wanted == tag;
}

/* --------------------------------------------------------------------------------------------- messages */

message *match_keep(mgroup *g, int source, const frame *f, const uint8_t *payload, xfer *self)
{
    size_t bytes = f->type == FRAME_EAGER ? f->payload : 0;
    message *m = g->kept < ENGINE_MESSAGES ? malloc(sizeof *m + bytes) : NULL;
    if (m == NULL) {
        char text[160];
        snprintf(text, sizeof text, "group %u: rank %d has no room for a message from rank %u (%u are held)",
                 g->id, g->rank, f->source, g->kept);
        group_break(g, PSD_ERR_LIMIT, -1, true, text);
        if (f->type == FRAME_EAGER)
            wire_give_credit(g->engine, source, sizeof *f + f->payload);
        return NULL;
    }
    m->arrived = g->engine->arrivals++;
    m->source = source;
    m->header = *f;
    m->self = self;
    list_init(&m->node);
    if (bytes > 0)
        memcpy(m->payload, payload, bytes);
    g->kept++;
    return m;
}

void match_free(mgroup *g, message *m)
{
    list_remove(&m->node);
    g->kept--;
    free(m);
}

static void drop_list(mgroup *g, list *head)
{
    LIST_EACH(head, node, after)
    {
        message *m = LIST_ENTRY(node, message, node);
        if (m->header.type == FRAME_EAGER)
            wire_give_credit(g->engine, m->source, sizeof m->header + m->header.payload);
        match_free(g, m);
    }
}

void match_drop(mgroup *g)
{
    drop_list(g, &g->early);
    for (int32_t i = 0; i < g->size; i++) {
        drop_list(g, &g->member[i].messages);
        drop_list(g, &g->member[i].coll_messages);
    }
}

/* ------------------------------------------------------------------------------------------ mismatches */

static void dispute(mgroup *g, const xfer *r, const frame *f)
{
    char text[PSD_MAX_TEXT];
    snprintf(text, sizeof text,
             "group %u message %llu from rank %u to rank %d, tag %d: rank %u called send %s count %lld (%s), "
             "rank %d "
             "called recv %s count %lld (%s)",
             g->id, (unsigned long long)f->ordinal, f->source, g->rank, f->tag, f->source,
             psd_dtype_name((psd_dtype)f->dtype), (long long)f->count, f->label, g->rank,
             psd_dtype_name(r->dtype), (long long)r->count, r->request->label);
    group_break(g, PSD_ERR_MISMATCH, -1, true, text);
}

/* The receive and this message belong together; do they fit? */
static bool agrees(mgroup *g, const xfer *r, const frame *f)
{
    bool fits = r->channel == FRAME_P2P ? r->dtype == (psd_dtype)f->dtype && r->count == f->count
                                        : r->bytes == f->bytes;
    if (!fits && r->channel == FRAME_P2P)
        dispute(g, r, f);
    else if (!fits)
        coll_run_dispute_bytes(g, r, f);
    return fits;
}

/* ------------------------------------------------------------------------------------- a message comes */

static xfer *first_fitting(list *posted, int32_t tag)
{
    for (list *node = posted->next; node != posted; node = node->next) {
        xfer *r = LIST_ENTRY(node, xfer, node);
        if (tag_fits(r->tag, tag))
            return r;
    }
    return NULL;
}

static xfer *find_posted(mgroup *g, const frame *f)
{
    if (f->channel == FRAME_COLL)
        return coll_run_find_posted(g, f);
    xfer *named = first_fitting(&g->member[f->source].posted, f->tag);
    xfer *any = first_fitting(&g->posted_any, f->tag);
    if (named == NULL || any == NULL)
        return named != NULL ? named : any;
    return named->posted < any->posted ? named : any;
}

void match_arrived(mgroup *g, int source, const frame *f, const uint8_t *payload, xfer *self)
{
    bool is_early = false;
    bool agree = f->channel == FRAME_P2P || coll_run_compare(g, f, &is_early);
    xfer *r = agree && !is_early ? find_posted(g, f) : NULL;
    if (agree && r == NULL) {
        message *m = match_keep(g, source, f, payload, self);
        member *from = &g->member[f->source];
        list *to = is_early ? &g->early : f->channel == FRAME_P2P ? &from->messages : &from->coll_messages;
        if (m != NULL)
            list_append(to, &m->node);
    } else if (agree && agrees(g, r, f)) {
        transfer_take(r, f, source, payload, self);
    } else if (f->type == FRAME_EAGER) {
        wire_give_credit(g->engine, source, sizeof *f + f->payload);
    }
}

/* ---------------------------------------------------------------------------------- a receive is posted */

static message *find_in(list *head, const xfer *r)
{
    for (list *node = head->next; node != head; node = node->next) {
        message *m = LIST_ENTRY(node, message, node);
        bool fits =
            r->channel == FRAME_P2P ? tag_fits(r->tag, m->header.tag) : m->header.ordinal == r->ordinal;
        if (fits)
            return m;
    }
    return NULL;
}

static message *find_message(mgroup *g, const xfer *r)
{
    message *first = NULL;
    if (r->channel == FRAME_COLL)
        return find_in(&g->member[r->rank].coll_messages, r);
    if (r->rank != PSD_ANY_SOURCE)
        return find_in(&g->member[r->rank].messages, r);
    for (int32_t i = 0; i < g->size; i++) {
        message *m = find_in(&g->member[i].messages, r);
        if (m != NULL && (first == NULL || m->arrived < first->arrived))
            first = m;
    }
    return first;
}

void match_post(mgroup *g, xfer *r)
{
    message *m = find_message(g, r);
    r->posted = g->posted++;
    if (m == NULL) {
        list *head = r->channel == FRAME_COLL    ? &r->request->posted
                     : r->rank == PSD_ANY_SOURCE ? &g->posted_any
                                                 : &g->member[r->rank].posted;
        list_append(head, &r->node);
        group_check_closed(g, r);
    } else if (agrees(g, r, &m->header)) {
        list_remove(&m->node);
        transfer_take(r, &m->header, m->source, m->payload, m->self);
        match_free(g, m);
    }
}
