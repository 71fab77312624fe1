/* What comes out of MPI: frames, handed to who they are for, and the ends of what MPI was given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/backend/mpi/engine.h"

#define FRAME_BYTES     (sizeof(frame) + FRAME_MAX_PAYLOAD)
#define FRAMES_PER_POLL 64

/* --------------------------------------------------------------------------------------- open and close */

static uint8_t *ring_slot(const engine *e, uint32_t index)
{
    return e->ring + (size_t)index * FRAME_BYTES;
}

static int post_ring(engine *e, uint32_t index)
{
    return MPI_Irecv(ring_slot(e, index), (int)FRAME_BYTES, MPI_BYTE, MPI_ANY_SOURCE, TAG_FRAMES, e->comm,
                     &e->ring_requests[index]);
}

bool wire_open(engine *e)
{
    e->ring = malloc(ENGINE_RING * FRAME_BYTES);
    e->peers = calloc((size_t)e->size, sizeof *e->peers);
    if (e->ring == NULL || e->peers == NULL)
        return false;
    for (int i = 0; i < e->size; i++)
        e->peers[i].credit = ENGINE_CREDIT;
    for (uint32_t i = 0; i < ENGINE_RING; i++) {
        int code = post_ring(e, i);
        if (code != MPI_SUCCESS) {
            engine_failed(e, "MPI_Irecv", code);
            return false;
        }
    }
    return true;
}

void wire_close(engine *e)
{
    bool is_free = true;
    for (uint32_t i = 0; i < ENGINE_RING; i++) {
        int is_done = 0;
        if (e->ring_requests[i] == MPI_REQUEST_NULL)
            continue;
        MPI_Cancel(&e->ring_requests[i]);
        MPI_Test(&e->ring_requests[i], &is_done, MPI_STATUS_IGNORE);
        is_free = is_free && is_done;
    }
    if (is_free)
        free(e->ring);
}

/* ---------------------------------------------------------------------------------------------------- in */

static void on_credit(engine *e, int source, const frame *f)
{
    mpi_peer *p = &e->peers[source];
    uint64_t missing = ENGINE_CREDIT - p->credit;
    p->credit += f->bytes < missing ? f->bytes : missing;
}

/* A frame of a group: from who it says? */
static mgroup *sender_group(engine *e, int source, const frame *f)
{
    mgroup *g = engine_group(e, f->group);
    bool is_member = g != NULL && f->source < (uint32_t)g->size && g->members[f->source] == (uint32_t)source;
    return is_member ? g : NULL;
}

static void on_compare(mgroup *g, int source, const frame *f)
{
    bool is_early = false;
    if (group_status(g) != PSD_OK || !coll_run_compare(g, f, &is_early) || !is_early)
        return;
    for (list *node = g->early.next; node != &g->early; node = node->next) {
        const frame *kept = &LIST_ENTRY(node, message, node)->header;
        if (kept->type == FRAME_COMPARE && kept->source == f->source && kept->ordinal == f->ordinal)
            return;
    }
    message *m = match_keep(g, source, f, NULL, NULL);
    if (m != NULL)
        list_append(&g->early, &m->node);
}

static void on_message(engine *e, mgroup *g, int source, const frame *f, const uint8_t *payload)
{
    if (g != NULL && group_status(g) == PSD_OK)
        match_arrived(g, source, f, payload, NULL);
    else if (f->type == FRAME_EAGER)
        wire_give_credit(e, source, sizeof *f + f->payload);
}

static void frame_arrived(engine *e, int source, frame *f, const uint8_t *payload)
{
    mgroup *g = sender_group(e, source, f);
    switch ((frame_type)f->type) {
    case FRAME_EAGER:
    case FRAME_RTS:
        on_message(e, g, source, f, payload);
        break;
    case FRAME_CTS:
        transfer_on_cts(e, source, f);
        break;
    case FRAME_GONE:
        transfer_on_gone(e, source, f);
        break;
    case FRAME_HERE:
        group_on_here(e, source, f);
        break;
    case FRAME_CLOSED:
        if (g != NULL)
            group_on_closed(g, (int32_t)f->source);
        break;
    case FRAME_COMPARE:
        if (g != NULL)
            on_compare(g, source, f);
        break;
    case FRAME_CREDIT:
        on_credit(e, source, f);
        break;
    case FRAME_TYPES:
        break;
    }
}

/* MPI matches receives in the order in which they were posted, so frames of one rank are in order if the slots are
 * looked at in turn. */
static bool poll_ring(engine *e)
{
    bool happened = false;
    for (int i = 0; i < FRAMES_PER_POLL; i++) {
        MPI_Status st;
        int is_done = 0, bytes = 0;
        uint32_t head = e->ring_head;
        frame f;
        char why[160];
        int code = MPI_Test(&e->ring_requests[head], &is_done, &st);
        if (code == MPI_SUCCESS && !is_done)
            break;
        if (code == MPI_SUCCESS)
            MPI_Get_count(&st, MPI_BYTE, &bytes);
        else
            engine_failed(e, "MPI_Irecv", code);
        atomic_fetch_add_explicit(&e->bytes_received, (uint64_t)bytes, memory_order_relaxed);
        memcpy(&f, ring_slot(e, head), sizeof f);
        if (code == MPI_SUCCESS && frame_check(&f, (size_t)bytes, why, sizeof why))
            frame_arrived(e, st.MPI_SOURCE, &f, ring_slot(e, head) + sizeof f);
        else if (code == MPI_SUCCESS)
            group_break_all(e, PSD_ERR_PROTOCOL, st.MPI_SOURCE, why);
        e->ring_head = (head + 1) % ENGINE_RING;
        code = post_ring(e, head);
        if (code != MPI_SUCCESS)
            engine_failed(e, "MPI_Irecv", code);
        happened = true;
    }
    return happened;
}

/* Takes what MPI has ended out of the arrays, as a list. */
static mpi_work *take_ended(engine *e)
{
    mpi_work *first = NULL;
    int done = 0, kept = 0;
    if (e->work_count == 0)
        return NULL;
    int code = MPI_Testsome(e->work_count, e->requests, &done, e->indices, e->statuses);
    if (code != MPI_SUCCESS)
        engine_failed(e, "MPI_Testsome", code);
    if (done == MPI_UNDEFINED || done <= 0)
        return NULL;
    for (int i = done; i-- > 0;) {
        int is_cancelled = 0;
        mpi_work *w = e->works[e->indices[i]];
        MPI_Test_cancelled(&e->statuses[i], &is_cancelled);
        w->is_cancelled = is_cancelled != 0;
        if (w->piece_of != NULL && !w->piece_of->is_send && !w->is_cancelled) {
            int bytes = 0;
            MPI_Get_count(&e->statuses[i], MPI_BYTE, &bytes);
            w->is_short = bytes < 0 || (uint64_t)bytes != w->bytes;
        }
        w->next = first;
        first = w;
        e->works[e->indices[i]] = NULL;
    }
    for (int i = 0; i < e->work_count; i++) {
        if (e->works[i] == NULL)
            continue;
        e->works[kept] = e->works[i];
        e->requests[kept++] = e->requests[i];
    }
    e->work_count = kept;
    return first;
}

bool wire_poll(engine *e)
{
    bool happened = poll_ring(e);
    mpi_work *next = take_ended(e);
    happened = happened || next != NULL;
    while (next != NULL) {
        mpi_work *w = next;
        next = w->next;
        if (w->piece_of != NULL)
            transfer_piece_done(e, w->piece_of, w);
        free(w);
    }
    return happened;
}
