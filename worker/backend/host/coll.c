/* Collectives as rounds: the choice of the schedule, of the chunk and of the scratch. */
#include "worker/backend/host/coll_schedule.h"
#include "worker/backend/host/reduce.h"

/* The incoming pieces of one chunk, all ranks together, should stay in a core's second-level cache. */
#define CACHE_BYTES     ((size_t)512 << 10)
#define CHUNK_MIN_BYTES ((size_t)16 << 10)
#define CHUNK_MAX_BYTES ((size_t)128 << 10)
#define LINE_BYTES      ((size_t)64)

static size_t round_up(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) & ~(LINE_BYTES - 1);
}

/* Bytes of the operation's count; fits, as the tensors were checked. */
static size_t count_bytes(const psd_op *op)
{
    return (size_t)op->count * psd_dtype_bytes(op->dtype);
}

static const coll_schedule *choose(const psd_op *op, int32_t size)
{
    bool is_small = op->kind != PSD_OP_BARRIER && count_bytes(op) <= COLL_SMALL_BYTES;
    switch (op->kind) {
    case PSD_OP_BROADCAST:
        return is_small ? &coll_broadcast_tree : &coll_broadcast_chunked;
    case PSD_OP_ALL_REDUCE:
        return is_small && size <= COLL_SMALL_RANKS ? &coll_all_reduce_small : &coll_all_reduce_chunked;
    case PSD_OP_REDUCE:
        return is_small ? &coll_reduce_flat : &coll_reduce_chunked;
    case PSD_OP_SCATTER:
        return &coll_scatter_flat;
    case PSD_OP_GATHER:
        return &coll_gather_flat;
    case PSD_OP_ALL_GATHER:
        return &coll_all_gather_pairwise;
    case PSD_OP_REDUCE_SCATTER:
        return &coll_reduce_scatter_chunked;
    case PSD_OP_ALL_TO_ALL:
    case PSD_OP_ALL_TO_ALL_V:
        return &coll_all_to_all_pairwise;
    case PSD_OP_BARRIER:
        return &coll_barrier_dissemination;
    case PSD_OP_SEND:
    case PSD_OP_RECV:
    case PSD_OP_BATCH:
    case PSD_OP_GROUP_NEW:
    case PSD_OP_GROUP_SPLIT:
    case PSD_OP_GROUP_DUP:
        break;
    }
    return NULL;
}

/* Bytes of the longest piece that a rank owns in a schedule that goes in chunks; of the input where it goes
 * whole. */
static size_t longest_piece(const coll_schedule *schedule, const psd_op *op, int32_t size)
{
    size_t parts = 1;
    if (schedule == &coll_all_reduce_chunked || schedule == &coll_reduce_chunked)
        parts = (size_t)size;
    else if (schedule == &coll_broadcast_chunked)
        parts = (size_t)size - 1;
    return parts == 1 ? count_bytes(op)
                      : ((size_t)op->count + parts - 1) / parts * psd_dtype_bytes(op->dtype);
}

/* Depends on nothing but the operation and the size, so that all ranks choose the same. A multiple of every
 * element. */
static size_t choose_chunk(const coll_schedule *schedule, const psd_op *op, int32_t size)
{
    if (op->kind == PSD_OP_BARRIER)
        return 0;
    size_t piece = longest_piece(schedule, op, size);
    if (piece <= CHUNK_MIN_BYTES)
        return piece == 0 ? LINE_BYTES : piece;
    size_t limit = CACHE_BYTES / (size_t)(size - 1) & ~(LINE_BYTES - 1);
    limit = limit < CHUNK_MIN_BYTES ? CHUNK_MIN_BYTES : limit > CHUNK_MAX_BYTES ? CHUNK_MAX_BYTES : limit;
    return piece < limit ? piece : limit;
}

/* Those of all_to_all_v as if this rank's were everybody's. */
uint64_t coll_touched_bytes(const coll *c)
{
    const psd_op *op = &c->op;
    uint64_t size = (uint64_t)c->size, one = op->kind == PSD_OP_BARRIER ? 0 : count_bytes(op);
    switch (op->kind) {
    case PSD_OP_BROADCAST:
        return size * one;
    case PSD_OP_ALL_REDUCE:
        return 2 * size * one;
    case PSD_OP_REDUCE:
        return (size + 1) * one;
    case PSD_OP_SCATTER:
    case PSD_OP_GATHER:
        return 2 * size * one;
    case PSD_OP_ALL_GATHER:
    case PSD_OP_REDUCE_SCATTER:
        return size * (size + 1) * one;
    case PSD_OP_ALL_TO_ALL:
        return 2 * size * size * one;
    case PSD_OP_ALL_TO_ALL_V:
        for (int32_t i = 0; i < c->size; i++)
            one += (uint64_t)(op->in_splits[i] + op->out_splits[i]) * psd_dtype_bytes(op->dtype);
        return size * one;
    default:
        return 0;
    }
}

static bool reduces(psd_op_kind kind)
{
    return kind == PSD_OP_ALL_REDUCE || kind == PSD_OP_REDUCE || kind == PSD_OP_REDUCE_SCATTER;
}

int32_t coll_max_messages(int32_t size)
{
    /* coll_all_reduce_chunked: a chunk out to and in from every peer, the one before likewise. */
    int32_t most = 4 * (size - 1);
    return most > 0 ? most : 1;
}

/* Scratch: the list of a reduction's inputs, then one slot for each peer's chunk, then one for the result on
 * a rank that has no tensor for it. */
static size_t inputs_bytes(int32_t size)
{
    return round_up((size_t)size * sizeof(void *));
}

size_t coll_scratch_bytes(const psd_op *op, int32_t size)
{
    if (size <= 1 || !reduces(op->kind))
        return 0;
    size_t slot = round_up(choose_chunk(choose(op, size), op, size));
    return LINE_BYTES + inputs_bytes(size) + slot * (size_t)size;
}

const void **coll_inputs(const coll *c)
{
    return (const void **)(void *)c->scratch;
}

void *coll_slot(const coll *c, int32_t index)
{
    return c->scratch + inputs_bytes(c->size) + round_up(c->chunk) * (size_t)index;
}

static void copy_alone(const psd_op *op)
{
    const psd_op_kind kind = op->kind;
    if (kind == PSD_OP_ALL_TO_ALL_V)
        coll_copy(op->out, op->in, (size_t)op->in_splits[0] * psd_dtype_bytes(op->dtype));
    else if (kind != PSD_OP_BARRIER && kind != PSD_OP_BROADCAST)
        coll_copy(op->out, op->in, count_bytes(op));
}

void coll_begin(coll *c, const psd_op *op, int32_t rank, int32_t size, void *scratch)
{
    uintptr_t aligned = ((uintptr_t)scratch + LINE_BYTES - 1) & ~(uintptr_t)(LINE_BYTES - 1);
    c->op = *op;
    c->rank = rank;
    c->size = size;
    c->rounds = 0;
    c->chunk = 0;
    c->is_combined = false;
    c->schedule = size > 1 ? choose(op, size) : NULL;
    c->scratch = scratch == NULL ? NULL : (unsigned char *)scratch + (aligned - (uintptr_t)scratch);
    if (c->schedule != NULL) {
        c->chunk = choose_chunk(c->schedule, op, size);
        c->rounds = c->schedule->rounds(c);
    } else {
        copy_alone(op);
    }
}

bool coll_round(coll *c, uint32_t round, coll_messages *out)
{
    if (round >= c->rounds)
        return false;
    out->count = 0;
    c->is_combined = false;
    c->schedule->messages(c, round, out);
    return true;
}

void coll_combine(coll *c, uint32_t round, size_t at, const void *theirs, size_t bytes)
{
    coll_target target = c->schedule->target(c, round);
    const void *own = coll_const_at(target.own, at);
    const void *inputs[2] = {c->rank == 0 ? own : theirs, c->rank == 0 ? theirs : own};
    c->is_combined = true;
    reduce_n(c->op.dtype, c->op.redop, coll_at(target.result, at), inputs, 2,
             bytes / psd_dtype_bytes(c->op.dtype));
}

void coll_meanwhile(coll *c, uint32_t round)
{
    if (round < c->rounds && c->schedule->meanwhile != NULL)
        c->schedule->meanwhile(c, round);
}

void coll_finish(coll *c, uint32_t round)
{
    if (round < c->rounds && c->schedule->finish != NULL)
        c->schedule->finish(c, round);
}
