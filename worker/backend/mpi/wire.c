/* Frames and pieces of data in and out of MPI. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/backend/mpi/engine.h"

#define FRAME_BYTES     (sizeof(frame) + FRAME_MAX_PAYLOAD)
#define FRAMES_PER_POLL 64
#define CREDIT_STEP     (ENGINE_CREDIT / 4)

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

/* --------------------------------------------------------------------------------------------------- out */

static void *grow(void *old, int capacity, size_t size, bool *fine)
{
    void *grown = realloc(old, (size_t)capacity * size);
    *fine = *fine && grown != NULL;
    return grown != NULL ? grown : old;
}

static bool make_room(engine *e)
{
    bool fine = true;
    if (e->work_count < e->work_capacity)
        return true;
    int capacity = e->work_capacity == 0 ? 64 : e->work_capacity * 2;
    e->requests = grow(e->requests, capacity, sizeof *e->requests, &fine);
    e->works = grow(e->works, capacity, sizeof *e->works, &fine);
    e->indices = grow(e->indices, capacity, sizeof *e->indices, &fine);
    e->statuses = grow(e->statuses, capacity, sizeof *e->statuses, &fine);
    e->finished = grow(e->finished, capacity, sizeof *e->finished, &fine);
    if (fine)
        e->work_capacity = capacity;
    return fine;
}

frame wire_frame(const mgroup *g, frame_type type)
{
    frame f;
    memset(&f, 0, sizeof f);
    f.magic = FRAME_MAGIC;
    f.type = (uint8_t)type;
    f.group = g != NULL ? g->id : 0;
    f.source = g != NULL ? (uint32_t)g->rank : 0;
    return f;
}

void wire_send(engine *e, int to, const frame *f, const void *payload)
{
    size_t bytes = sizeof *f + f->payload;
    int code = MPI_ERR_NO_MEM;
    uint8_t *buffer = malloc(bytes);
    if (buffer == NULL || !make_room(e))
        goto fail;
    memcpy(buffer, f, sizeof *f);
    if (f->payload > 0)
        memcpy(buffer + sizeof *f, payload, f->payload);
    code = MPI_Isend(buffer, (int)bytes, MPI_BYTE, to, TAG_FRAMES, e->comm, &e->requests[e->work_count]);
    if (code != MPI_SUCCESS)
        goto fail;
    e->works[e->work_count++] = (mpi_work){NULL, buffer, bytes};
    atomic_fetch_add_explicit(&e->bytes_sent, bytes, memory_order_relaxed);
    return;
fail:
    free(buffer);
    engine_failed(e, "MPI_Isend", code);
}

bool wire_give(engine *e, xfer *x, uint8_t *data, size_t bytes)
{
    int code = MPI_ERR_NO_MEM;
    if (!make_room(e))
        goto fail;
    MPI_Request *request = &e->requests[e->work_count];
    if (x->is_send)
        code = MPI_Isend(data, (int)bytes, MPI_BYTE, x->mpi_rank, x->mpi_tag, e->comm, request);
    else
        code = MPI_Irecv(data, (int)bytes, MPI_BYTE, x->mpi_rank, x->mpi_tag, e->comm, request);
    if (code != MPI_SUCCESS)
        goto fail;
    e->works[e->work_count++] = (mpi_work){x, NULL, bytes};
    if (x->is_send)
        atomic_fetch_add_explicit(&e->bytes_sent, bytes, memory_order_relaxed);
    return true;
fail:
    engine_failed(e, x->is_send ? "MPI_Isend" : "MPI_Irecv", code);
    return false;
}

void wire_cancel(engine *e, const xfer *x)
{
    for (int i = 0; i < e->work_count; i++)
        if (e->works[i].piece_of == x)
            MPI_Cancel(&e->requests[i]);
}

void wire_give_credit(engine *e, int to, uint64_t bytes)
{
    if (to == e->rank)
        return;
    e->peers[to].owed += bytes;
    if (e->peers[to].owed < CREDIT_STEP)
        return;
    frame f = wire_frame(NULL, FRAME_CREDIT);
    f.bytes = e->peers[to].owed;
    e->peers[to].owed = 0;
    wire_send(e, to, &f, NULL);
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

/* Takes what MPI has ended out of the arrays; how many. */
static int collect_finished(engine *e)
{
    int done = 0, kept = 0;
    if (e->work_count == 0)
        return 0;
    int code = MPI_Testsome(e->work_count, e->requests, &done, e->indices, e->statuses);
    if (code != MPI_SUCCESS)
        engine_failed(e, "MPI_Testsome", code);
    if (done == MPI_UNDEFINED || done <= 0)
        return 0;
    for (int i = 0; i < done; i++) {
        int is_cancelled = 0;
        MPI_Test_cancelled(&e->statuses[i], &is_cancelled);
        e->finished[i] = (mpi_finished){e->works[e->indices[i]], is_cancelled != 0};
        e->works[e->indices[i]].bytes = UINT64_MAX; /* marks it */
    }
    for (int i = 0; i < e->work_count; i++) {
        if (e->works[i].bytes == UINT64_MAX)
            continue;
        e->works[kept] = e->works[i];
        e->requests[kept++] = e->requests[i];
    }
    e->work_count = kept;
    return done;
}

bool wire_poll(engine *e)
{
    bool happened = poll_ring(e);
    int done = collect_finished(e);
    for (int i = 0; i < done; i++) {
        mpi_finished f = e->finished[i]; /* the array may move */
        if (f.work.piece_of != NULL)
            transfer_piece_done(e, f.work.piece_of, f.work.bytes, f.is_cancelled);
        else
            free(f.work.buffer);
    }
    return happened || done > 0;
}
