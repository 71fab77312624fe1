/* broadcast: a tree for small data; for large data the root cuts it into one piece for each other rank, who
 * pass their pieces on: the root sends the data once, everybody else receives it once and sends it less than
 * once. */
#include "worker/backend/host/coll_schedule.h"

static size_t whole_bytes(const coll *c)
{
    return (size_t)c->op.count * psd_dtype_bytes(c->op.dtype);
}

/* Ranks counted from the root: the root is 0. */
static int32_t relative(const coll *c)
{
    return (int32_t)(((int64_t)c->rank + c->size - c->op.root) % c->size);
}

static int32_t absolute(const coll *c, int32_t from_root)
{
    return (int32_t)(((int64_t)c->op.root + from_root) % c->size);
}

/* Binomial tree: the parent of v is v without its lowest set bit; its children are v + b for the powers b
 * below that bit (flat: all are children of the root). */
static int32_t lowest_bit(int32_t v)
{
    return v & -v;
}

static bool is_leaf(const coll *c)
{
    int32_t v = relative(c);
    return v != 0 && (c->size <= COLL_FLAT_RANKS || lowest_bit(v) == 1 || v + 1 >= c->size);
}

static uint32_t tree_rounds(const coll *c)
{
    return relative(c) == 0 || is_leaf(c) ? 1 : 2;
}

static void send_to_children(const coll *c, coll_messages *out)
{
    int32_t v = relative(c);
    if (c->size <= COLL_FLAT_RANKS) {
        for (int32_t child = 1; child < c->size; child++)
            coll_send(out, absolute(c, child), c->op.out, whole_bytes(c));
        return;
    }
    /* The largest subtree first: it has the longest way to go. */
    int64_t bit = v == 0 ? INT64_C(1) << 31 : lowest_bit(v);
    for (bit >>= 1; bit > 0; bit >>= 1) {
        if (v + bit < c->size)
            coll_send(out, absolute(c, (int32_t)(v + bit)), c->op.out, whole_bytes(c));
    }
}

static void tree_messages(const coll *c, uint32_t round, coll_messages *out)
{
    int32_t v = relative(c);
    if (v == 0 || round == 1) {
        send_to_children(c, out);
        return;
    }
    int32_t parent = c->size <= COLL_FLAT_RANKS ? 0 : v - lowest_bit(v);
    coll_recv(out, absolute(c, parent), c->op.out, whole_bytes(c));
}

const coll_schedule coll_broadcast_tree = {tree_rounds, tree_messages, NULL, NULL, NULL};

/* Chunk k of the piece of the rank at this distance from the root. */
static coll_span piece_chunk(const coll *c, int32_t from_root, uint32_t k)
{
    return coll_chunk(c, coll_piece(c, from_root - 1, c->size - 1), k);
}

/* Chunks; everybody but the root needs one round more to pass the last one on. */
static uint32_t chunks(const coll *c)
{
    return coll_chunks(c, coll_piece(c, 0, c->size - 1).bytes);
}

static uint32_t chunked_rounds(const coll *c)
{
    return chunks(c) + (relative(c) != 0 && c->size > 2);
}

static void pass_on(const coll *c, uint32_t k, coll_messages *out)
{
    int32_t v = relative(c), others = c->size - 1;
    coll_span mine = piece_chunk(c, v, k);
    for (int32_t d = 1; d < others; d++) {
        int32_t to = (v - 1 + d) % others + 1, from = (v - 1 + others - d) % others + 1;
        coll_span theirs = piece_chunk(c, from, k);
        coll_send(out, absolute(c, to), coll_at(c->op.out, mine.at), mine.bytes);
        coll_recv(out, absolute(c, from), coll_at(c->op.out, theirs.at), theirs.bytes);
    }
}

static void chunked_messages(const coll *c, uint32_t round, coll_messages *out)
{
    int32_t v = relative(c);
    if (v == 0) {
        for (int32_t to = 1; to < c->size; to++) {
            coll_span theirs = piece_chunk(c, to, round);
            coll_send(out, absolute(c, to), coll_at(c->op.out, theirs.at), theirs.bytes);
        }
        return;
    }
    if (round < chunks(c)) {
        coll_span mine = piece_chunk(c, v, round);
        coll_recv(out, c->op.root, coll_at(c->op.out, mine.at), mine.bytes);
    }
    if (round > 0)
        pass_on(c, round - 1, out);
}

const coll_schedule coll_broadcast_chunked = {chunked_rounds, chunked_messages, NULL, NULL, NULL};
