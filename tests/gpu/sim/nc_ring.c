/* Ring algorithms, as NCCL's src/device/all_reduce.h and its neighbours run them: who sends what when. */
#include "nc.h"

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements per step. */
static size_t chunk_of(const nc_op *op)
{
    return SEG_STEP / nc_type_size(op->dtype);
}

/* The piece [at, at + *count) of `total` elements. */
static size_t piece(size_t total, size_t at, size_t chunk)
{
    return at >= total ? 0 : min_size(chunk, total - at);
}

static bool all_reduce(const nc_op *op, int rank, int n, uint64_t number, ring_step *s)
{
    size_t ranks = (size_t)n, chunk = chunk_of(op);
    uint64_t steps = 2 * ranks - 1;
    size_t loop = (size_t)(number / steps), step = (size_t)(number % steps);
    if (loop * ranks * chunk >= op->count)
        return false;
    size_t base = loop * ranks * chunk;
    size_t left = min_size(op->count - base, ranks * chunk);
    size_t part = (left + ranks - 1) / ranks; /* the last loop is cut evenly */
    size_t index;
    if (step < ranks) { /* reduce: chunk rank - 1 first, own chunk last */
        index = ((size_t)rank + 2 * ranks - 1 - step) % ranks;
        s->receives = s->reduces = step > 0;
        s->copies = s->is_result = step == ranks - 1;
        s->sends = true;
    } else { /* pass the results around */
        index = ((size_t)rank + 2 * ranks - 1 - (step - ranks)) % ranks;
        s->receives = s->copies = true;
        s->sends = step < steps - 1;
    }
    size_t at = index * part;
    s->in = s->out = base + min_size(at, left);
    s->count = piece(left, at, part);
    return true;
}

static bool reduce_scatter(const nc_op *op, int rank, int n, uint64_t number, ring_step *s)
{
    size_t ranks = (size_t)n, chunk = chunk_of(op), step = (size_t)(number % ranks);
    size_t at = (size_t)(number / ranks) * chunk;
    if (at >= op->count)
        return false;
    size_t index = ((size_t)rank + 2 * ranks - 1 - step) % ranks;
    s->receives = s->reduces = step > 0;
    s->copies = s->is_result = step == ranks - 1;
    s->sends = !s->copies;
    s->in = index * op->count + at;
    s->out = at;
    s->count = piece(op->count, at, chunk);
    return true;
}

static bool all_gather(const nc_op *op, int rank, int n, uint64_t number, ring_step *s)
{
    size_t ranks = (size_t)n, chunk = chunk_of(op), step = (size_t)(number % ranks);
    size_t at = (size_t)(number / ranks) * chunk;
    if (at >= op->count)
        return false;
    size_t index = ((size_t)rank + ranks - step) % ranks;
    s->receives = step > 0;
    s->copies = true;
    s->sends = step < ranks - 1;
    s->in = at;
    s->out = index * op->count + at;
    s->count = piece(op->count, at, chunk);
    return true;
}

/* From the root around the ring, chunk by chunk. */
static bool broadcast(const nc_op *op, int rank, int ranks, uint64_t number, ring_step *s)
{
    size_t chunk = chunk_of(op), at = (size_t)number * chunk;
    if (at >= op->count)
        return false;
    s->receives = rank != op->root;
    s->copies = true;
    s->sends = (rank + 1) % ranks != op->root;
    s->in = s->out = at;
    s->count = piece(op->count, at, chunk);
    return true;
}

/* Around the ring towards the root. */
static bool reduce(const nc_op *op, int rank, int ranks, uint64_t number, ring_step *s)
{
    size_t chunk = chunk_of(op), at = (size_t)number * chunk;
    if (at >= op->count)
        return false;
    s->receives = s->reduces = (op->root + 1) % ranks != rank;
    s->copies = s->is_result = rank == op->root;
    s->sends = rank != op->root;
    s->in = s->out = at;
    s->count = piece(op->count, at, chunk);
    return true;
}

/* One rank: a copy. */
static bool alone(const nc_op *op, uint64_t number, ring_step *s)
{
    size_t chunk = chunk_of(op), at = (size_t)number * chunk;
    if (at >= op->count)
        return false;
    s->copies = s->is_result = true;
    s->in = s->out = at;
    s->count = piece(op->count, at, chunk);
    return true;
}

bool nc_ring_step(const nc_op *op, int rank, int ranks, uint64_t number, ring_step *out)
{
    *out = (ring_step){0};
    if (ranks == 1)
        return alone(op, number, out);
    switch (op->kind) {
    case NC_ALL_REDUCE:
        return all_reduce(op, rank, ranks, number, out);
    case NC_REDUCE_SCATTER:
        return reduce_scatter(op, rank, ranks, number, out);
    case NC_ALL_GATHER:
        return all_gather(op, rank, ranks, number, out);
    case NC_BROADCAST:
        return broadcast(op, rank, ranks, number, out);
    case NC_REDUCE:
        return reduce(op, rank, ranks, number, out);
    case NC_SEND:
    case NC_RECV:
        break;
    }
    return false;
}
