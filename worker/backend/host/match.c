/* Brings messages and receives together, on both channels. */
#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <string.h>

#define MAX_KEPT (1u << 20) /* messages that a group holds: more is a flood */

/* ----------------------------------------------------------------------------------------------- messages */

static uint64_t eager_cost(const frame *f)
{
    return f->type == FRAME_EAGER ? f->payload + sizeof(frame) : 0;
}

message *message_new(engine *e, peer *p, const frame *f, const void *data)
{
    message *m = blocks_get(&e->pool, sizeof(*m));
    uint8_t *copy = f->payload > 0 ? blocks_get(&e->pool, f->payload) : NULL;
    if (m == NULL || (f->payload > 0 && copy == NULL)) {
        blocks_put(&e->pool, m, sizeof(*m));
        blocks_put(&e->pool, copy, f->payload);
        return NULL;
    }
    memset(m, 0, sizeof(*m));
    list_init(&m->node);
    list_init(&m->arrival);
    m->header = *f;
    m->peer = p;
    m->data = copy;
    if (data != NULL)
        memcpy(copy, data, f->payload);
    return m;
}

void message_free(engine *e, message *m)
{
    list_remove(&m->node);
    list_remove(&m->arrival);
    if (m->peer != NULL)
        peer_give_credit(m->peer, eager_cost(&m->header), 0);
    blocks_put(&e->pool, m->data, m->header.payload);
    blocks_put(&e->pool, m, sizeof(*m));
}

static void drop_list(engine *e, list *head)
{
    LIST_EACH(head, node, after)
    {
        message_free(e, LIST_ENTRY(node, message, node));
    }
}

void match_drop(hgroup *g)
{
    engine *e = g->engine;
    for (list *node = e->peers.next; node != &e->peers; node = node->next) {
        rx *in = &LIST_ENTRY(node, peer, node)->in;
        if (in->message == NULL || in->message->header.group != g->id)
            continue;
        message *m = in->message; /* its payload is still coming */
        in->message = NULL;
        in->to = NULL;
        message_free(e, m);
    }
    for (int32_t i = 0; i < g->size; i++) {
        drop_list(e, &g->member[i].messages);
        drop_list(e, &g->member[i].coll_messages);
    }
    drop_list(e, &g->early);
    g->kept = 0;
}

/* ------------------------------------------------------------------------------------------------ arrival */

/* Records the match; false, and the group is disputed or the peer broken, if the two sides disagree. */
static bool agree(hgroup *g, xfer *r, peer *p, const frame *f)
{
    list_remove(&r->node);
    r->rank = (int32_t)f->source;
    r->peer = p;
    if (r->is_exposure && f->type == FRAME_EXPOSE)
        return true;
    if (r->is_exposure || f->type == FRAME_EXPOSE) {
        r->state = XFER_DISPUTED;
        peer_break(p, PSD_ERR_LINK, "garbage on the link: a message where a collective has none");
        return false;
    }
    bool is_p2p = f->channel == FRAME_P2P;
    if (is_p2p ? p2p_agrees(r, f) : f->bytes == r->bytes) {
        if (is_p2p) {
            r->tag = f->tag;
            r->ordinal = f->ordinal;
        }
        return true;
    }
    r->state = XFER_DISPUTED;
    if (is_p2p)
        p2p_dispute(g, r, p, f);
    else
        coll_run_dispute_bytes(g, r, p, f);
    return false;
}

static void deliver(hgroup *g, xfer *r, peer *p, const frame *f)
{
    engine *e = g->engine;
    peer_give_credit(p, eager_cost(f), 0);
    if (!agree(g, r, p, f))
        return;
    if (f->type == FRAME_EAGER) {
        r->state = XFER_ARRIVING;
        p->in.receive = r;
        p->in.to = r->data;
        p->in.combines = r->may_combine && host_link_is_shm(p->link);
    } else if (f->type == FRAME_EXPOSE) {
        direct_on_expose(r, f);
    } else {
        transfer_accept(e, r, p, f);
    }
}

static void keep(hgroup *g, peer *p, const frame *f, bool is_early)
{
    message *m = g->kept < MAX_KEPT ? message_new(g->engine, p, f, NULL) : NULL;
    if (m == NULL) {
        char text[160];
        snprintf(text, sizeof(text),
                 "group %u: no memory for a message of rank %u that nobody has asked for yet (%u held)",
                 g->id, f->source, g->kept);
        peer_give_credit(p, eager_cost(f), 0);
        host_group_break(g, PSD_ERR_NOMEM, -1, true, text);
        return;
    }
    member *from = &g->member[f->source];
    g->kept++;
    if (f->channel == FRAME_P2P) {
        list_append(&from->messages, &m->node);
        list_append(&g->arrivals, &m->arrival);
    } else {
        list_append(is_early ? &g->early : &from->coll_messages, &m->node);
    }
    m->is_complete = f->type != FRAME_EAGER;
    if (f->type == FRAME_EAGER) {
        p->in.message = m;
        p->in.to = m->data;
    }
}

void match_arrived(peer *p, const frame *f)
{
    hgroup *g = engine_group(p->engine, f->group);
    if (g != NULL && host_group_member(g, p, f) == NULL)
        return;
    bool is_early = false;
    bool is_wanted = g != NULL && g->status == PSD_OK;
    if (is_wanted && f->channel == FRAME_COLL)
        is_wanted = coll_run_compare(g, p, f, &is_early);
    if (!is_wanted) {
        peer_give_credit(p, eager_cost(f), 0); /* of a closed or broken group: thrown away */
        return;
    }
    xfer *r = NULL;
    if (f->channel == FRAME_P2P)
        r = p2p_find_posted(g, f);
    else if (!is_early)
        r = coll_run_find_posted(g, f);
    if (r != NULL)
        deliver(g, r, p, f);
    else
        keep(g, p, f, is_early);
}

static void copy_message(engine *e, xfer *r, message *m)
{
    if (r->bytes > 0)
        memcpy(r->data, m->data, r->bytes);
    message_free(e, m);
    xfer_complete(e, r);
}

void match_payload_arrived(peer *p)
{
    engine *e = p->engine;
    xfer *r = p->in.receive;
    message *m = p->in.message;
    p->in.receive = NULL;
    p->in.message = NULL;
    if (r != NULL) {
        r->done = r->bytes;
        xfer_complete(e, r);
    } else if (m != NULL) {
        m->is_complete = true;
        if (m->receiver != NULL)
            copy_message(e, m->receiver, m);
    }
}

/* ------------------------------------------------------------------------------------------------ posting */

void match_take(engine *e, xfer *r, message *m)
{
    hgroup *g = r->request->group;
    list_remove(&m->node);
    list_remove(&m->arrival);
    g->kept--;
    if (!agree(g, r, m->peer, &m->header)) {
        if (!m->is_complete) {
            m->peer->in.message = NULL; /* the rest of its payload is thrown away */
            m->peer->in.to = NULL;
        }
        message_free(e, m);
        return;
    }
    if (m->self != NULL) {
        transfer_accept_self(e, r, m->self);
        message_free(e, m);
    } else if (m->header.type == FRAME_EXPOSE) {
        frame told = m->header;
        message_free(e, m);
        direct_on_expose(r, &told);
    } else if (m->header.type == FRAME_RTS) {
        frame rts = m->header;
        peer *p = m->peer;
        message_free(e, m);
        transfer_accept(e, r, p, &rts);
    } else if (m->is_complete) {
        copy_message(e, r, m);
    } else {
        r->state = XFER_ARRIVING;
        m->receiver = r;
    }
}

void match_post(engine *e, xfer *r)
{
    hgroup *g = r->request->group;
    r->state = XFER_POSTED;
    r->posted = g->posted++;
    message *m = r->channel == FRAME_P2P ? p2p_find_message(g, r) : coll_run_find_message(g, r);
    if (m != NULL) {
        match_take(e, r, m);
        return;
    }
    if (r->channel == FRAME_COLL)
        list_append(&r->request->posted, &r->node);
    else
        list_append(r->rank == PSD_ANY_SOURCE ? &g->posted_any : &g->member[r->rank].posted, &r->node);
    if (r->rank != PSD_ANY_SOURCE) /* otherwise its own batch may hold the send */
        host_group_check_closed(g, r);
}

void match_send_self(hgroup *g, xfer *s, const frame *f)
{
    s->state = XFER_QUEUED;
    xfer *r = p2p_find_posted(g, f);
    if (r != NULL) {
        if (agree(g, r, NULL, f))
            transfer_accept_self(g->engine, r, s);
        return;
    }
    message *m = message_new(g->engine, NULL, f, NULL);
    if (m == NULL) {
        host_group_break(g, PSD_ERR_NOMEM, -1, true, "out of memory for a send to oneself");
        return;
    }
    m->self = s;
    m->is_complete = true;
    g->kept++;
    list_append(&g->member[g->rank].messages, &m->node);
    list_append(&g->arrivals, &m->arrival);
}
