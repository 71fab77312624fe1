/* What the files coll*.c share: a schedule is one algorithm of one kind of operation, as functions of the
 * round.
 *
 * Every message has its partner in the other rank's list with the same number of bytes, and, pair by pair, in
 * the same order. Rounds cannot deadlock even if no send completes before its receive is posted: partners are
 * in rounds of the same number, or the sender's round follows the receive from its parent in a tree. */
#ifndef PSD_HOST_COLL_SCHEDULE_H
#define PSD_HOST_COLL_SCHEDULE_H

#include <string.h>

#include "common/tensor.h"
#include "worker/backend/host/coll.h"
#include "worker/backend/host/reduce.h"

/* Up to here one round in which whole inputs travel beats cutting them up. */
#define COLL_SMALL_BYTES ((size_t)8 << 10)
/* Up to this many ranks everybody can send a small input to everybody. */
#define COLL_SMALL_RANKS 8
/* Up to this many ranks the root of a small broadcast sends to each by itself; above, a binomial tree. */
#define COLL_FLAT_RANKS 4
/* Peers, each way, of one round of a pairwise exchange. */
#define COLL_WINDOW 8

/* Where a round's reduction goes, and this rank's input of it. */
typedef struct coll_target {
    void *result;
    const void *own;
} coll_target;

typedef struct coll_schedule {
    uint32_t (*rounds)(const coll *c); /* c->chunk is set */
    void (*messages)(const coll *c, uint32_t round, coll_messages *out);
    void (*finish)(const coll *c, uint32_t round); /* NULL: no local work */
    /* For messages that may_combine: nothing that this round sends lies there. NULL: there are none. */
    coll_target (*target)(const coll *c, uint32_t round);
    /* Local work that needs nothing that is received, while the messages are on their way. NULL: none. */
    void (*meanwhile)(const coll *c, uint32_t round);
} coll_schedule;

/* coll_reduce.c */
extern const coll_schedule coll_all_reduce_small, coll_all_reduce_chunked;
extern const coll_schedule coll_reduce_flat, coll_reduce_chunked;
extern const coll_schedule coll_reduce_scatter_chunked;
/* coll_broadcast.c */
extern const coll_schedule coll_broadcast_tree, coll_broadcast_chunked;
/* coll_move.c */
extern const coll_schedule coll_scatter_flat, coll_gather_flat, coll_all_gather_pairwise,
    coll_all_to_all_pairwise;
extern const coll_schedule coll_barrier_dissemination;

/* coll.c: places in scratch. The array of size pointers that reduce_n takes, and slots of one chunk each: 0
 * to size - 2 for the peers, size - 1 for the result on a rank that has no tensor for it. */
const void **coll_inputs(const coll *c);
void *coll_slot(const coll *c, int32_t index);

/* Bytes at an offset of a tensor or of scratch. */
typedef struct coll_span {
    size_t at;
    size_t bytes;
} coll_span;

/* Piece `index` when c->op.count elements are cut in `parts`; the first pieces are one element longer where
 * it does not divide. */
static inline coll_span coll_piece(const coll *c, int32_t index, int32_t parts)
{
    size_t element = psd_dtype_bytes(c->op.dtype);
    size_t count = (size_t)c->op.count, n = (size_t)parts, i = (size_t)index;
    size_t base = count / n, longer = count % n;
    coll_span piece = {(base * i + (i < longer ? i : longer)) * element, (base + (i < longer)) * element};
    return piece;
}

/* Chunk k of a piece; empty beyond its end. */
static inline coll_span coll_chunk(const coll *c, coll_span piece, uint32_t k)
{
    size_t from = (size_t)k * c->chunk;
    coll_span none = {piece.at, 0};
    if (from >= piece.bytes)
        return none;
    size_t left = piece.bytes - from;
    coll_span chunk = {piece.at + from, left < c->chunk ? left : c->chunk};
    return chunk;
}

/* Rounds of at most c->chunk bytes each in which the longest of the pieces travels: at least one, so that
 * empty operations exchange their fingerprints too. */
static inline uint32_t coll_chunks(const coll *c, size_t longest)
{
    return longest == 0 ? 1 : (uint32_t)((longest + c->chunk - 1) / c->chunk);
}

static inline const void *coll_const_at(const void *base, size_t offset)
{
    return base == NULL ? NULL : (const unsigned char *)base + offset;
}

static inline void *coll_at(void *base, size_t offset)
{
    return base == NULL ? NULL : (unsigned char *)base + offset;
}

static inline void coll_copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0 && to != from)
        memmove(to, from, bytes);
}

/* The same, of a block of this collective. */
static inline void coll_copy_block(const coll *c, void *to, const void *from, size_t bytes)
{
    if (to != from && exceeds_cache(coll_touched_bytes(c)))
        copy_past_cache(to, from, bytes);
    else
        coll_copy(to, from, bytes);
}

/* The rank at this distance after, and before, this rank. */
static inline int32_t coll_after(const coll *c, int32_t distance)
{
    return (int32_t)(((int64_t)c->rank + distance) % c->size);
}

static inline int32_t coll_before(const coll *c, int32_t distance)
{
    return (int32_t)(((int64_t)c->rank + c->size - distance) % c->size);
}

static inline void coll_push(coll_messages *out, bool is_send, int32_t peer, void *data, size_t bytes)
{
    coll_message message = {is_send, peer, data, bytes, false};
    out->items[out->count++] = message;
}

/* A message's data is read only when it is sent, though its type cannot say so. */
static inline void coll_send(coll_messages *out, int32_t peer, const void *data, size_t bytes)
{
    coll_push(out, true, peer, (void *)(uintptr_t)data, bytes);
}

static inline void coll_recv(coll_messages *out, int32_t peer, void *data, size_t bytes)
{
    coll_push(out, false, peer, data, bytes);
}

/* One of the inputs of a reduction. With more than two ranks it must wait for the others: the order counts. On a
 * rank without a tensor for the result the one before is still being sent from the same slot. */
static inline void coll_recv_input(const coll *c, coll_messages *out, int32_t peer, void *data, size_t bytes)
{
    coll_push(out, false, peer, data, bytes);
    bool has_tensor = c->op.kind != PSD_OP_REDUCE || c->rank == c->op.root;
    out->items[out->count - 1].may_combine = c->size == 2 && has_tensor;
}

#endif
