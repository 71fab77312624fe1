/* all_reduce, reduce and reduce_scatter: direct exchange, reduced in rank order by the owner of each piece.
 */
#include "worker/backend/host/coll_schedule.h"
#include "worker/backend/host/reduce.h"

static void *peer_slot(const coll *c, int32_t peer)
{
    return coll_slot(c, peer < c->rank ? peer : peer - 1);
}

/* Where this rank's reduced chunk goes, given where it lies in the whole tensor. */
static void *result_at(const coll *c, size_t offset)
{
    bool has_tensor = c->op.kind != PSD_OP_REDUCE || c->rank == c->op.root;
    return has_tensor ? coll_at(c->op.out, offset) : coll_slot(c, c->size - 1);
}

/* dst = all ranks' parts in rank order; `own` is this rank's, the others' are in their slots. */
static void reduce_slots(const coll *c, void *dst, const void *own, size_t bytes)
{
    const void **inputs = coll_inputs(c);
    for (int32_t i = 0; i < c->size; i++)
        inputs[i] = i == c->rank ? own : peer_slot(c, i);
    reduce_n(c->op.dtype, c->op.redop, dst, inputs, c->size, bytes / psd_dtype_bytes(c->op.dtype));
}

/* Small: every input goes whole to every rank that wants the result. */

static size_t whole_bytes(const coll *c)
{
    return (size_t)c->op.count * psd_dtype_bytes(c->op.dtype);
}

static uint32_t one_round(const coll *c)
{
    (void)c;
    return 1;
}

static void all_reduce_small_messages(const coll *c, uint32_t round, coll_messages *out)
{
    (void)round;
    for (int32_t d = 1; d < c->size; d++) {
        int32_t from = coll_before(c, d);
        coll_send(out, coll_after(c, d), c->op.in, whole_bytes(c));
        coll_recv(out, from, peer_slot(c, from), whole_bytes(c));
    }
}

static void small_finish(const coll *c, uint32_t round)
{
    (void)round;
    if (c->op.kind == PSD_OP_ALL_REDUCE || c->rank == c->op.root)
        reduce_slots(c, c->op.out, c->op.in, whole_bytes(c));
}

static void reduce_flat_messages(const coll *c, uint32_t round, coll_messages *out)
{
    (void)round;
    if (c->rank != c->op.root) {
        coll_send(out, c->op.root, c->op.in, whole_bytes(c));
        return;
    }
    for (int32_t d = 1; d < c->size; d++) {
        int32_t from = coll_before(c, d);
        coll_recv(out, from, peer_slot(c, from), whole_bytes(c));
    }
}

const coll_schedule coll_all_reduce_small = {one_round, all_reduce_small_messages, small_finish, NULL, NULL};
const coll_schedule coll_reduce_flat = {one_round, reduce_flat_messages, small_finish, NULL, NULL};

/* Large: rank i owns piece i. Round k exchanges chunk k of the inputs and passes on the reduced chunk k - 1,
 * whose inputs have all left by then: so the result may overwrite them. */

static coll_span owned(const coll *c, int32_t rank, uint32_t k)
{
    return coll_chunk(c, coll_piece(c, rank, c->size), k);
}

static uint32_t exchange_rounds(const coll *c)
{
    return coll_chunks(c, coll_piece(c, 0, c->size).bytes);
}

static uint32_t exchange_and_pass_rounds(const coll *c)
{
    return exchange_rounds(c) + 1;
}

static void exchange_chunk(const coll *c, uint32_t k, coll_messages *out)
{
    size_t mine = owned(c, c->rank, k).bytes;
    for (int32_t d = 1; d < c->size; d++) {
        int32_t to = coll_after(c, d), from = coll_before(c, d);
        coll_span theirs = owned(c, to, k);
        coll_send(out, to, coll_const_at(c->op.in, theirs.at), theirs.bytes);
        coll_recv_input(c, out, from, peer_slot(c, from), mine);
    }
}

static coll_target exchange_target(const coll *c, uint32_t round)
{
    coll_span mine = owned(c, c->rank, round);
    coll_target target = {result_at(c, mine.at), coll_const_at(c->op.in, mine.at)};
    return target;
}

static void reduce_chunk(const coll *c, uint32_t k)
{
    coll_target target = exchange_target(c, k);
    reduce_slots(c, target.result, target.own, owned(c, c->rank, k).bytes);
}

static void all_reduce_messages(const coll *c, uint32_t round, coll_messages *out)
{
    if (round + 1 < c->rounds)
        exchange_chunk(c, round, out);
    if (round == 0)
        return;
    coll_span mine = owned(c, c->rank, round - 1);
    for (int32_t d = 1; d < c->size; d++) {
        int32_t from = coll_before(c, d);
        coll_span theirs = owned(c, from, round - 1);
        coll_send(out, coll_after(c, d), coll_at(c->op.out, mine.at), mine.bytes);
        coll_recv(out, from, coll_at(c->op.out, theirs.at), theirs.bytes);
    }
}

static void reduce_messages(const coll *c, uint32_t round, coll_messages *out)
{
    if (round + 1 < c->rounds)
        exchange_chunk(c, round, out);
    if (round == 0)
        return;
    if (c->rank != c->op.root) {
        coll_send(out, c->op.root, result_at(c, 0), owned(c, c->rank, round - 1).bytes);
        return;
    }
    for (int32_t d = 1; d < c->size; d++) {
        int32_t from = coll_before(c, d);
        coll_span theirs = owned(c, from, round - 1);
        coll_recv(out, from, coll_at(c->op.out, theirs.at), theirs.bytes);
    }
}

static void exchange_finish(const coll *c, uint32_t round)
{
    if (round + 1 < c->rounds && !c->is_combined)
        reduce_chunk(c, round);
}

const coll_schedule coll_all_reduce_chunked = {exchange_and_pass_rounds, all_reduce_messages, exchange_finish,
                                               exchange_target, NULL};
const coll_schedule coll_reduce_chunked = {exchange_and_pass_rounds, reduce_messages, exchange_finish,
                                           exchange_target, NULL};

/* reduce_scatter: the pieces are the blocks of the input. In place the result goes into this rank's own
 * block, which nobody else is sent. */

static coll_span block_chunk(const coll *c, int32_t rank, uint32_t k)
{
    coll_span block = {whole_bytes(c) * (size_t)rank, whole_bytes(c)};
    return coll_chunk(c, block, k);
}

static uint32_t block_rounds(const coll *c)
{
    return coll_chunks(c, whole_bytes(c));
}

static void reduce_scatter_messages(const coll *c, uint32_t round, coll_messages *out)
{
    for (int32_t d = 1; d < c->size; d++) {
        int32_t to = coll_after(c, d), from = coll_before(c, d);
        coll_span theirs = block_chunk(c, to, round);
        coll_send(out, to, coll_const_at(c->op.in, theirs.at), theirs.bytes);
        coll_recv_input(c, out, from, peer_slot(c, from), theirs.bytes);
    }
}

static coll_target reduce_scatter_target(const coll *c, uint32_t round)
{
    coll_span mine = block_chunk(c, c->rank, round);
    coll_target target = {coll_at(c->op.out, (size_t)round * c->chunk), coll_const_at(c->op.in, mine.at)};
    return target;
}

static void reduce_scatter_finish(const coll *c, uint32_t round)
{
    coll_target target = reduce_scatter_target(c, round);
    if (!c->is_combined)
        reduce_slots(c, target.result, target.own, block_chunk(c, c->rank, round).bytes);
}

const coll_schedule coll_reduce_scatter_chunked = {block_rounds, reduce_scatter_messages,
                                                   reduce_scatter_finish, reduce_scatter_target, NULL};
