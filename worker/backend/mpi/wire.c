/* What goes to MPI: frames, and pieces of data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/backend/mpi/engine.h"

#define CREDIT_STEP (ENGINE_CREDIT / 4)

/* --------------------------------------------------------------------------------------------------- out */

static bool make_room(engine *e)
{
    if (e->work_count < e->work_capacity)
        return true;
    int capacity = e->work_capacity == 0 ? 64 : e->work_capacity * 2;
    size_t n = (size_t)capacity;
    MPI_Request *requests = realloc(e->requests, n * sizeof(MPI_Request));
    if (requests != NULL)
        e->requests = requests;
    mpi_work **works = realloc(e->works, n * sizeof(mpi_work *));
    if (works != NULL)
        e->works = works;
    int *indices = realloc(e->indices, n * sizeof *indices);
    if (indices != NULL)
        e->indices = indices;
    MPI_Status *statuses = realloc(e->statuses, n * sizeof *statuses);
    if (statuses != NULL)
        e->statuses = statuses;
    if (requests == NULL || works == NULL || indices == NULL || statuses == NULL)
        return false;
    e->work_capacity = capacity;
    return true;
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

static mpi_work *new_work(engine *e, xfer *piece_of, size_t bytes, size_t frame_bytes)
{
    mpi_work *w = make_room(e) ? malloc(sizeof *w + frame_bytes) : NULL;
    if (w == NULL)
        return NULL;
    w->next = NULL;
    w->piece_of = piece_of;
    w->bytes = bytes;
    w->is_cancelled = false;
    w->is_short = false;
    return w;
}

/* MPI has it now, unless it said no. */
static bool add_work(engine *e, mpi_work *w, const char *call, int code)
{
    if (code == MPI_SUCCESS) {
        e->works[e->work_count++] = w;
        return true;
    }
    free(w);
    engine_failed(e, call, code);
    return false;
}

void wire_send(engine *e, int to, const frame *f, const void *payload)
{
    size_t bytes = sizeof *f + f->payload;
    int code = MPI_ERR_NO_MEM;
    mpi_work *w = new_work(e, NULL, bytes, bytes);
    if (w != NULL) {
        memcpy(w->frame, f, sizeof *f);
        if (f->payload > 0)
            memcpy(w->frame + sizeof *f, payload, f->payload);
        code =
            MPI_Isend(w->frame, (int)bytes, MPI_BYTE, to, TAG_FRAMES, e->comm, &e->requests[e->work_count]);
    }
    if (add_work(e, w, "MPI_Isend", code))
        atomic_fetch_add_explicit(&e->bytes_sent, bytes, memory_order_relaxed);
}

bool wire_give(engine *e, xfer *x, uint8_t *data, size_t bytes)
{
    int code = MPI_ERR_NO_MEM;
    mpi_work *w = new_work(e, x, bytes, 0);
    MPI_Request *request = e->requests + e->work_count;
    if (w != NULL && x->is_send)
        code = MPI_Isend(data, (int)bytes, MPI_BYTE, x->mpi_rank, x->mpi_tag, e->comm, request);
    else if (w != NULL)
        code = MPI_Irecv(data, (int)bytes, MPI_BYTE, x->mpi_rank, x->mpi_tag, e->comm, request);
    if (!add_work(e, w, x->is_send ? "MPI_Isend" : "MPI_Irecv", code))
        return false;
    if (x->is_send)
        atomic_fetch_add_explicit(&e->bytes_sent, bytes, memory_order_relaxed);
    return true;
}

void wire_cancel(engine *e, const xfer *x)
{
    for (int i = 0; i < e->work_count; i++)
        if (e->works[i]->piece_of == x)
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
