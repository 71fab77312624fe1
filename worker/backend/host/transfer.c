/* How one message moves: eager, streamed after a rendezvous, or read by the receiver. */
#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <string.h>

#include "worker/backend/host/reduce.h"

#define COPIES_AT_ONCE 4
#define READ_LEAST     ((uint64_t)32 << 10)

/* ------------------------------------------------------------------------------------------------ sending */

/* How the receiver may read this memory: where both map it, or through the kernel if it is in huge pages. In small
 * ones that takes the kernel longer than the copies of both sides through the ring take, together. */
static frame_access access_to(const engine *e, const xfer *s, uint64_t *word)
{
    const host_link *link = s->peer->link;
    if (host_link_is_direct(link) && arena_place(e->huge.shared, s->data, s->bytes, word))
        return FRAME_ACCESS_PLACE;
    if (!host_link_is_shm(link) || !tensor_memory_is_huge(&e->huge, s->data, s->bytes))
        return FRAME_ACCESS_NONE;
    *word = (uint64_t)(uintptr_t)s->data;
    return FRAME_ACCESS_ADDRESS;
}

/* Is it read faster where it lies than it goes through the ring? Blocks of collectives that only move data: what is
 * reduced is reduced as it comes, and small sends are complete before their receive is there. */
static bool is_better_read(const engine *e, const xfer *s, const frame *f)
{
    uint64_t word;
    bool only_moves = f->kind == PSD_OP_ALL_GATHER || f->kind == PSD_OP_ALL_TO_ALL ||
                      f->kind == PSD_OP_ALL_TO_ALL_V || f->kind == PSD_OP_SCATTER || f->kind == PSD_OP_GATHER;
    return only_moves && s->bytes >= READ_LEAST && access_to(e, s, &word) == FRAME_ACCESS_PLACE;
}

void transfer_send(engine *e, xfer *s, frame *f, uint64_t eager_limit)
{
    peer *p = s->peer;
    hgroup *g = s->request->group;
    uint64_t cost = s->bytes + sizeof(frame);
    if (g->member[s->rank].has_closed) {
        s->state = XFER_OFFERED; /* to nobody */
        host_group_check_closed(g, s);
        return;
    }
    s->state = XFER_QUEUED;
    f->bytes = s->bytes;
    if (s->bytes <= eager_limit && cost <= p->credit && !is_better_read(e, s, f)) {
        p->credit -= cost;
        f->type = FRAME_EAGER;
        f->payload = (uint32_t)s->bytes;
        if (peer_send(p, f, s->data, s))
            xfer_complete(e, s);
        return;
    }
    f->type = FRAME_RTS;
    f->payload = 0;
    f->id = xfer_id(s);
    f->other = (uint8_t)access_to(e, s, &f->word);
    s->may_be_read = f->other != FRAME_ACCESS_NONE;
    if (peer_send(p, f, NULL, s))
        s->state = XFER_OFFERED;
}

void transfer_sent(engine *e, xfer *s, frame_type type)
{
    s->out = NULL;
    if (type == FRAME_EAGER)
        xfer_complete(e, s);
    else if (type == FRAME_RTS || type == FRAME_EXPOSE)
        s->state = XFER_OFFERED;
    else if (s->done == s->bytes)
        xfer_complete(e, s);
}

/* Late or forged ids are ignored: a cancelled send looks the same. */
static xfer *find_offered(peer *p, uint64_t id)
{
    xfer *s = xfer_find(p->engine, id);
    bool is_offered = s != NULL && s->is_send && s->peer == p;
    return is_offered && (s->state == XFER_OFFERED || s->state == XFER_DRAINING) ? s : NULL;
}

static void finish_draining(engine *e, xfer *s)
{
    psd_request *r = s->request;
    xfer_release(e, s);
    if (list_empty(&r->xfers) && r->is_failed)
        request_finish(r, r->group->status);
}

void transfer_on_cts(peer *p, const frame *f)
{
    xfer *s = find_offered(p, f->id);
    if (s == NULL)
        return;
    if (s->is_exposure) {
        peer_break(p, PSD_ERR_LINK, "garbage on the link: an answer where a collective has none");
        return;
    }
    if (s->state == XFER_DRAINING) {
        finish_draining(p->engine, s);
        return;
    }
    s->remote = f->word;
    s->done = 0;
    s->may_be_read = false;
    s->state = XFER_STREAMING;
    list_append(&p->streams, &s->node);
}

void transfer_on_fin(peer *p, const frame *f)
{
    xfer *s = find_offered(p, f->id);
    if (s == NULL)
        return;
    if (s->state == XFER_DRAINING) {
        finish_draining(p->engine, s);
        return;
    }
    engine_count(&p->engine->bytes_sent, s->bytes);
    if (s->is_exposure)
        engine_count(&p->engine->bytes_received, s->remote_data);
    xfer_complete(p->engine, s);
}

void transfer_drained(engine *e, hgroup *g, peer *p)
{
    for (uint32_t i = 0; i < e->xfer_count; i++) {
        xfer *x = e->xfers[i];
        if (x->state != XFER_DRAINING || x->peer != p || (g != NULL && x->request->group != g))
            continue;
        if (g == NULL && p->status != PSD_ERR_PEER_FAILED)
            direct_revoke(x);
        finish_draining(e, x);
    }
}

void transfer_give_up(engine *e, hgroup *g)
{
    char text[160];
    snprintf(
        text, sizeof(text),
        "the peer is stopped or overloaded: it has not confirmed the end of group %u, whose memory it may "
        "be reading",
        g->id);
    for (uint32_t i = 0; i < e->xfer_count; i++) {
        const xfer *x = e->xfers[i];
        if (x->state == XFER_DRAINING && x->request->group == g)
            peer_break(x->peer, PSD_ERR_LINK, text); /* ends x when it is settled */
    }
}

/* ---------------------------------------------------------------------------------------------- receiving */

static void send_cts(xfer *r)
{
    frame f = peer_frame(r->request->group, FRAME_CTS);
    f.id = r->remote;
    f.word = xfer_id(r);
    r->done = 0;
    r->state = XFER_ARRIVING;
    peer_send_control(r->peer, &f, NULL);
}

/* All of a receive's data has been read from the sender's memory. */
static void finish_read(engine *e, xfer *r)
{
    frame f = peer_frame(r->request->group, FRAME_FIN);
    f.id = r->remote;
    peer_send_control(r->peer, &f, NULL);
    engine_count(&e->bytes_received, r->bytes);
    xfer_complete(e, r);
}

void transfer_accept(engine *e, xfer *r, peer *p, const frame *rts)
{
    r->peer = p;
    r->remote = rts->id;
    r->remote_data = rts->word;
    r->is_direct = rts->other == FRAME_ACCESS_PLACE;
    bool can_read = r->is_direct ? host_link_map(p->link, rts->word, r->bytes) != NULL
                                 : rts->other == FRAME_ACCESS_ADDRESS && host_link_single_copy(p->link);
    if (r->bytes == 0) {
        finish_read(e, r);
    } else if (can_read) {
        r->state = XFER_COPYING;
        list_append(&e->copies, &r->node);
    } else {
        send_cts(r);
    }
}

void transfer_accept_self(engine *e, xfer *r, xfer *s)
{
    r->self = s;
    r->state = XFER_COPYING;
    list_append(&e->copies, &r->node);
}

void transfer_on_data(peer *p, const frame *f)
{
    xfer *r = xfer_find(p->engine, f->id);
    p->in.receive = NULL;
    p->in.to = NULL;
    if (r == NULL || r->is_send || r->peer != p || r->state != XFER_ARRIVING)
        return; /* cancelled meanwhile */
    if (f->word != r->done || f->payload > r->bytes - r->done) {
        peer_break(p, PSD_ERR_LINK, "garbage on the link: data outside of its message");
        return;
    }
    p->in.receive = r;
    p->in.to = r->data + r->done;
}

void transfer_data_arrived(peer *p)
{
    xfer *r = p->in.receive;
    p->in.receive = NULL;
    if (r == NULL)
        return;
    r->done += p->in.header.payload;
    if (r->done == r->bytes)
        xfer_complete(p->engine, r);
}

static bool copy_mapped(xfer *r, size_t bytes)
{
    const uint8_t *theirs = host_link_map(r->peer->link, r->remote_data + r->done, bytes);
    if (theirs == NULL)
        return false; /* the link is gone */
    if (r->past_cache)
        copy_past_cache(r->data + r->done, theirs, bytes);
    else
        memcpy(r->data + r->done, theirs, bytes);
    return host_link_read_holds(r->peer->link);
}

/* Copies one slice; false if the sender's memory cannot be read after all. */
static bool copy_slice(xfer *r)
{
    size_t bytes = r->bytes - r->done < ENGINE_COPY_SLICE ? (size_t)(r->bytes - r->done) : ENGINE_COPY_SLICE;
    if (r->self != NULL) {
        if (bytes > 0)
            memmove(r->data + r->done, r->self->data + r->done, bytes);
    } else if (r->is_direct) {
        if (!copy_mapped(r, bytes))
            return false;
    } else if (host_link_read_remote(r->peer->link, r->remote_data + r->done, r->data + r->done, bytes) !=
               PSD_OK) {
        return false;
    }
    r->done += bytes;
    return true;
}

static void copy_done(engine *e, xfer *r)
{
    if (r->self == NULL) {
        finish_read(e, r);
        return;
    }
    xfer *s = r->self;
    r->self = NULL;
    xfer_complete(e, s);
    xfer_complete(e, r);
}

bool transfer_copy(engine *e)
{
    bool did = false;
    for (int i = 0; i < COPIES_AT_ONCE; i++) {
        list *node = list_take(&e->copies);
        if (node == NULL)
            break;
        xfer *r = LIST_ENTRY(node, xfer, node);
        did = true;
        if (!copy_slice(r))
            send_cts(r); /* streams it instead, from the start */
        else if (r->done == r->bytes)
            copy_done(e, r);
        else
            list_append(&e->copies, &r->node);
    }
    return did;
}
