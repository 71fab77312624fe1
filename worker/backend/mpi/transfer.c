/* How one message moves, see engine.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/backend/mpi/engine.h"

/* ------------------------------------------------------------------------------------------- transfers */

static bool make_room(engine *e)
{
    if (e->free_count > 0)
        return true;
    uint32_t capacity = e->xfer_capacity == 0 ? 256 : e->xfer_capacity * 2;
    xfer **xfers = realloc(e->xfers, capacity * sizeof(xfer *));
    if (xfers != NULL)
        e->xfers = xfers;
    uint32_t *generations = realloc(e->generations, capacity * sizeof *generations);
    if (generations != NULL)
        e->generations = generations;
    uint32_t *spare = realloc(e->free_xfers, capacity * sizeof *spare);
    if (spare != NULL)
        e->free_xfers = spare;
    if (xfers == NULL || generations == NULL || spare == NULL)
        return false;
    for (uint32_t i = capacity; i-- > e->xfer_capacity;) {
        e->xfers[i] = NULL;
        e->generations[i] = 1;
        e->free_xfers[e->free_count++] = i;
    }
    e->xfer_capacity = capacity;
    return true;
}

xfer *xfer_new(psd_request *r)
{
    engine *e = r->group->engine;
    xfer *x = calloc(1, sizeof *x);
    if (x == NULL || !make_room(e)) {
        free(x);
        return NULL;
    }
    x->index = e->free_xfers[--e->free_count];
    x->generation = e->generations[x->index];
    e->xfers[x->index] = x;
    x->request = r;
    x->state = XFER_POSTED;
    list_init(&x->node);
    list_init(&x->in_request);
    list_append(&r->xfers, &x->in_request);
    r->pending++;
    return x;
}

uint64_t xfer_id(const xfer *x)
{
    return (uint64_t)x->generation << 32 | x->index;
}

xfer *xfer_find(engine *e, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    xfer *x = index < e->xfer_capacity ? e->xfers[index] : NULL;
    return x != NULL && x->generation == (uint32_t)(id >> 32) ? x : NULL;
}

static void xfer_free(xfer *x)
{
    engine *e = x->request->group->engine;
    list_remove(&x->node);
    list_remove(&x->in_request);
    e->xfers[x->index] = NULL;
    e->generations[x->index]++;
    e->free_xfers[e->free_count++] = x->index;
    if (x->request->last_receive == x)
        x->request->last_receive = NULL;
    x->request->pending--;
    free(x);
}

void xfer_complete(xfer *x)
{
    psd_request *r = x->request;
    xfer_free(x);
    request_advance(r);
}

void xfer_drop(xfer *x)
{
    if (x->state != XFER_MOVING)
        xfer_free(x);
}

/* --------------------------------------------------------------------------------------------- sending */

static void send_to_self(mgroup *g, xfer *s, frame *f, bool is_eager)
{
    f->type = (uint8_t)(is_eager ? FRAME_EAGER : FRAME_RTS);
    f->payload = is_eager ? (uint32_t)s->bytes : 0;
    s->state = XFER_OFFERED;
    match_arrived(g, g->engine->rank, f, s->data, is_eager ? NULL : s);
    if (is_eager)
        xfer_complete(s);
}

void transfer_send(mgroup *g, xfer *s, frame *f, uint64_t eager_limit)
{
    engine *e = g->engine;
    int to = (int)g->members[s->rank];
    uint64_t cost = sizeof *f + s->bytes;
    bool is_self = s->rank == g->rank;
    bool is_eager = s->bytes <= eager_limit && s->bytes <= FRAME_MAX_PAYLOAD;
    f->id = xfer_id(s);
    f->bytes = s->bytes;
    memcpy(f->label, s->request->label, sizeof f->label);
    if (is_self) {
        send_to_self(g, s, f, is_eager);
        return;
    }
    is_eager = is_eager && e->peers[to].credit >= cost;
    f->type = (uint8_t)(is_eager ? FRAME_EAGER : FRAME_RTS);
    f->payload = is_eager ? (uint32_t)s->bytes : 0;
    if (is_eager)
        e->peers[to].credit -= cost;
    wire_send(e, to, f, s->data);
    s->state = XFER_OFFERED;
    if (is_eager)
        xfer_complete(s);
    else
        group_check_closed(g, s);
}

/* -------------------------------------------------------------------------------------------- the data */

/* Keeps a few pieces with MPI until all have been given, and ends the transfer after the last. */
static void give_pieces(engine *e, xfer *x)
{
    bool fine = true;
    while (fine && x->pieces < ENGINE_PIECES && x->given < x->bytes && !x->is_cancelled) {
        uint64_t left = x->bytes - x->given;
        size_t bytes = left < x->piece ? (size_t)left : x->piece;
        fine = wire_give(e, x, x->data + x->given, bytes);
        if (fine) {
            x->given += bytes;
            x->pieces++;
        }
    }
    if (x->pieces > 0)
        return;
    if (x->given == x->bytes || x->request->is_failed)
        xfer_complete(x);
    else
        x->state = XFER_POSTED; /* no sender any more, or MPI failed: its group is about to break */
}

static void break_short(const xfer *x)
{
    mgroup *g = x->request->group;
    char text[PSD_MAX_TEXT];
    snprintf(text, sizeof text, "group %u: rank %d sent less data than it offered, for rank %d's %s", g->id,
             x->rank, g->rank, x->request->label);
    group_break(g, PSD_ERR_PROTOCOL, (int32_t)x->mpi_rank, true, text);
}

void transfer_piece_done(engine *e, xfer *x, const mpi_work *piece)
{
    x->pieces--;
    if (piece->is_short)
        break_short(x);
    else if (!x->is_send && !piece->is_cancelled)
        atomic_fetch_add_explicit(&e->bytes_received, piece->bytes, memory_order_relaxed);
    if (group_status(x->request->group) != PSD_OK)
        x->request->group->moved_at = psd_now_ns();
    give_pieces(e, x);
}

void transfer_on_cts(engine *e, int source, const frame *f)
{
    xfer *x = xfer_find(e, f->id);
    bool is_mine = x != NULL && x->is_send && x->state == XFER_OFFERED &&
                   x->request->group->members[x->rank] == (uint32_t)source && f->tag >= TAG_DATA &&
                   f->tag <= e->tag_limit;
    if (!is_mine) {
        frame answer = wire_frame(NULL, FRAME_GONE);
        answer.id = f->word;
        wire_send(e, source, &answer, NULL);
        return;
    }
    x->state = XFER_MOVING;
    x->mpi_rank = source;
    x->mpi_tag = f->tag;
    x->piece = (size_t)f->bytes;
    give_pieces(e, x);
}

void transfer_on_gone(engine *e, int source, const frame *f)
{
    xfer *x = xfer_find(e, f->id);
    if (x == NULL || x->is_send || x->state != XFER_MOVING || x->mpi_rank != source)
        return;
    x->is_cancelled = true;
    wire_cancel(e, x);
    if (x->pieces == 0)
        give_pieces(e, x);
}

/* ------------------------------------------------------------------------------------------- receiving */

static void accept(xfer *r, const frame *f, int source)
{
    mgroup *g = r->request->group;
    engine *e = g->engine;
    frame answer = wire_frame(g, FRAME_CTS);
    r->state = XFER_MOVING;
    r->mpi_rank = source;
    r->mpi_tag = e->next_tag;
    r->piece = e->piece;
    e->next_tag = e->next_tag == e->tag_limit ? TAG_DATA : e->next_tag + 1;
    answer.id = f->id;
    answer.word = xfer_id(r);
    answer.tag = r->mpi_tag;
    answer.bytes = r->piece;
    /* The memory first: what it answers to is then never without a receive. */
    give_pieces(e, r);
    wire_send(e, source, &answer, NULL);
}

static void note_result(xfer *r, const frame *f)
{
    psd_request *q = r->request;
    if (r->channel != FRAME_P2P || q->last_receive != r)
        return;
    q->result.source = (int32_t)f->source;
    q->result.tag = f->tag;
    q->result.ordinal = f->ordinal;
}

void transfer_take(xfer *r, const frame *f, int source, const uint8_t *payload, xfer *self)
{
    engine *e = r->request->group->engine;
    list_remove(&r->node);
    note_result(r, f);
    if (self != NULL) {
        memcpy(r->data, self->data, r->bytes);
        xfer_complete(self);
        xfer_complete(r);
    } else if (f->type == FRAME_EAGER) {
        if (r->bytes > 0)
            memcpy(r->data, payload, r->bytes);
        wire_give_credit(e, source, sizeof *f + f->payload);
        xfer_complete(r);
    } else {
        accept(r, f, source);
    }
}
