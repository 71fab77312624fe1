/* scatter, gather, all_gather, all_to_all and barrier: data goes straight from the sender's tensor to the
 * receiver's. */
#include "worker/backend/host/coll_schedule.h"

static size_t block_bytes(const coll *c)
{
    return (size_t)c->op.count * psd_dtype_bytes(c->op.dtype);
}

static size_t block_at(const coll *c, int32_t rank)
{
    return block_bytes(c) * (size_t)rank;
}

static uint32_t one_round(const coll *c)
{
    (void)c;
    return 1;
}

static void scatter_messages(const coll *c, uint32_t round, coll_messages *out)
{
    (void)round;
    if (c->rank != c->op.root) {
        coll_recv(out, c->op.root, c->op.out, block_bytes(c));
        return;
    }
    for (int32_t d = 1; d < c->size; d++) {
        int32_t to = coll_after(c, d);
        coll_send(out, to, coll_const_at(c->op.in, block_at(c, to)), block_bytes(c));
    }
}

static void scatter_finish(const coll *c, uint32_t round)
{
    (void)round;
    if (c->rank == c->op.root)
        coll_copy_block(c, c->op.out, coll_const_at(c->op.in, block_at(c, c->rank)), block_bytes(c));
}

static void gather_messages(const coll *c, uint32_t round, coll_messages *out)
{
    (void)round;
    if (c->rank != c->op.root) {
        coll_send(out, c->op.root, c->op.in, block_bytes(c));
        return;
    }
    for (int32_t d = 1; d < c->size; d++) {
        int32_t from = coll_before(c, d);
        coll_recv(out, from, coll_at(c->op.out, block_at(c, from)), block_bytes(c));
    }
}

static void own_block_to_out(const coll *c)
{
    coll_copy_block(c, coll_at(c->op.out, block_at(c, c->rank)), c->op.in, block_bytes(c));
}

static void gather_finish(const coll *c, uint32_t round)
{
    (void)round;
    if (c->rank == c->op.root)
        own_block_to_out(c);
}

const coll_schedule coll_scatter_flat = {one_round, scatter_messages, scatter_finish, NULL, NULL};
const coll_schedule coll_gather_flat = {one_round, gather_messages, gather_finish, NULL, NULL};

/* Pairwise: at distance d a rank sends to the d-th after it and receives from the d-th before it, so no rank
 * is every other's target at once. A round takes COLL_WINDOW distances. */

static uint32_t pairwise_rounds(const coll *c)
{
    return (uint32_t)((c->size - 1 + COLL_WINDOW - 1) / COLL_WINDOW);
}

static int32_t window_begin(uint32_t round)
{
    return (int32_t)round * COLL_WINDOW + 1;
}

static int32_t window_end(const coll *c, uint32_t round)
{
    int32_t end = window_begin(round) + COLL_WINDOW;
    return end < c->size ? end : c->size;
}

static void all_gather_messages(const coll *c, uint32_t round, coll_messages *out)
{
    for (int32_t d = window_begin(round); d < window_end(c, round); d++) {
        int32_t from = coll_before(c, d);
        coll_send(out, coll_after(c, d), c->op.in, block_bytes(c));
        coll_recv(out, from, coll_at(c->op.out, block_at(c, from)), block_bytes(c));
    }
}

static void all_gather_meanwhile(const coll *c, uint32_t round)
{
    if (round == 0)
        own_block_to_out(c);
}

const coll_schedule coll_all_gather_pairwise = {pairwise_rounds, all_gather_messages, NULL, NULL,
                                                all_gather_meanwhile};

/* The block that belongs to a rank on one side of an all_to_all, even or by splits. */
static coll_span rank_block(const coll *c, const int64_t *splits, int32_t rank)
{
    coll_span even = {block_at(c, rank), block_bytes(c)};
    if (c->op.kind != PSD_OP_ALL_TO_ALL_V)
        return even;
    size_t element = psd_dtype_bytes(c->op.dtype), before = 0;
    for (int32_t i = 0; i < rank; i++)
        before += (size_t)splits[i];
    coll_span uneven = {before * element, (size_t)splits[rank] * element};
    return uneven;
}

static void all_to_all_messages(const coll *c, uint32_t round, coll_messages *out)
{
    for (int32_t d = window_begin(round); d < window_end(c, round); d++) {
        int32_t to = coll_after(c, d), from = coll_before(c, d);
        coll_span sent = rank_block(c, c->op.in_splits, to);
        coll_span received = rank_block(c, c->op.out_splits, from);
        coll_send(out, to, coll_const_at(c->op.in, sent.at), sent.bytes);
        coll_recv(out, from, coll_at(c->op.out, received.at), received.bytes);
    }
}

static void all_to_all_meanwhile(const coll *c, uint32_t round)
{
    if (round != 0)
        return;
    coll_span own = rank_block(c, c->op.in_splits, c->rank);
    coll_span to = rank_block(c, c->op.out_splits, c->rank);
    /* A rank that disagrees with itself on its own block is refused before; never write past the smaller. */
    coll_copy_block(c, coll_at(c->op.out, to.at), coll_const_at(c->op.in, own.at),
                    own.bytes < to.bytes ? own.bytes : to.bytes);
}

const coll_schedule coll_all_to_all_pairwise = {pairwise_rounds, all_to_all_messages, NULL, NULL,
                                                all_to_all_meanwhile};

/* Dissemination barrier (Hensgen, Finkel, Manber 1988): after round k a rank has heard, directly or not, of
 * the 2^(k+1) ranks up to and including itself. Few ranks tell each other directly: with more of them than cores
 * each round would cost a turn of all. */

static uint32_t barrier_rounds(const coll *c)
{
    uint32_t rounds = 0;
    if (c->size <= COLL_SMALL_RANKS)
        return 1;
    while ((INT64_C(1) << rounds) < c->size)
        rounds++;
    return rounds;
}

static void barrier_messages(const coll *c, uint32_t round, coll_messages *out)
{
    for (int32_t d = 1; c->size <= COLL_SMALL_RANKS && d < c->size; d++) {
        coll_send(out, coll_after(c, d), NULL, 0);
        coll_recv(out, coll_before(c, d), NULL, 0);
    }
    if (c->size <= COLL_SMALL_RANKS)
        return;
    int32_t distance = (int32_t)(INT64_C(1) << round);
    coll_send(out, coll_after(c, distance), NULL, 0);
    coll_recv(out, coll_before(c, distance), NULL, 0);
}

const coll_schedule coll_barrier_dissemination = {barrier_rounds, barrier_messages, NULL, NULL, NULL};
