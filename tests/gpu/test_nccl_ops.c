/* Every operation of the NCCL backend over the device simulator, against what it should give. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "tests/gpu/nccl_ranks.h"

#define COUNT 1000 /* elements for each rank */

/* What rank `rank` has at element i, as bytes of a moved dtype. */
static unsigned char moved(int rank, int64_t i)
{
    return (unsigned char)(rank * 61 + i * 7 + 3);
}

static void fill_moved(rank_run *r, unsigned char *device, int rank, size_t bytes)
{
    unsigned char *host = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        host[i] = moved(rank, (int64_t)i);
    ranks_put(r, device, host, bytes);
    free(host);
}

/* The bytes of `device` are rank's from element `from` on. */
static void check_moved(rank_run *r, const unsigned char *device, int rank, size_t from, size_t bytes)
{
    unsigned char *host = malloc(bytes + 1);
    ranks_get(r, host, device, bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK_SAYS(host[i] == moved(rank, (int64_t)(from + i)), "byte %zu of rank %d's", i, rank);
    free(host);
}

static psd_status run(rank_run *r, psd_backend_group *g, psd_op_kind kind, psd_dtype dtype, int64_t count,
                      int root, const void *in, void *out)
{
    psd_op op = ranks_op(kind, dtype, count, in, out);
    op.root = root;
    return ranks_do(r, g, &op);
}

/* -------------------------------------------------------------------------------------------------- moving */

static void move_one_dtype(rank_run *r, psd_backend_group *g, psd_dtype dtype, unsigned char *in,
                           unsigned char *out)
{
    size_t bytes = COUNT * psd_dtype_bytes(dtype);
    size_t n = (size_t)r->size, me = (size_t)r->rank;
    int root = r->size - 1;
    fill_moved(r, out, r->rank, bytes);
    CHECK(run(r, g, PSD_OP_BROADCAST, dtype, COUNT, root, NULL, out) == PSD_OK);
    check_moved(r, out, root, 0, bytes);

    fill_moved(r, in, r->rank, n * bytes);
    CHECK(run(r, g, PSD_OP_ALL_GATHER, dtype, COUNT, -1, in, out) == PSD_OK);
    for (size_t i = 0; i < n; i++)
        check_moved(r, out + i * bytes, (int)i, 0, bytes);

    CHECK(run(r, g, PSD_OP_GATHER, dtype, COUNT, root, in, r->rank == root ? out : NULL) == PSD_OK);
    for (size_t i = 0; i < n && r->rank == root; i++)
        check_moved(r, out + i * bytes, (int)i, 0, bytes);

    CHECK(run(r, g, PSD_OP_SCATTER, dtype, COUNT, root, r->rank == root ? in : NULL, out) == PSD_OK);
    check_moved(r, out, root, me * bytes, bytes);

    CHECK(run(r, g, PSD_OP_ALL_TO_ALL, dtype, COUNT, -1, in, out) == PSD_OK);
    for (size_t i = 0; i < n; i++)
        check_moved(r, out + i * bytes, (int)i, me * bytes, bytes);
}

static void moving(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    size_t most = (size_t)r->size * COUNT * 8;
    unsigned char *in = ranks_alloc(r, most), *out = ranks_alloc(r, most);
    for (int dtype = PSD_I8; dtype <= PSD_F8E5M2; dtype++)
        move_one_dtype(r, g, (psd_dtype)dtype, in, out);
    r->ops->mem_free(r->backend, in, most);
    r->ops->mem_free(r->backend, out, most);
    r->ops->group_close(g);
    ranks_close(r);
}

/* Rank a sends a + b + 1 elements to rank b, and none at all to itself if it is the last. */
static int64_t split(const rank_run *r, int from, int to)
{
    return from == to && from == r->size - 1 ? 0 : from + to + 1;
}

static void uneven(rank_run *r)
{
    int64_t in_splits[RANKS_MOST], out_splits[RANKS_MOST];
    size_t in_bytes = 0, at = 0;
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    unsigned char *in = ranks_alloc(r, 4096), *out = ranks_alloc(r, 4096);
    fill_moved(r, in, r->rank, 4096);
    for (int i = 0; i < r->size; i++) {
        in_splits[i] = split(r, r->rank, i);
        out_splits[i] = split(r, i, r->rank);
        in_bytes += (size_t)in_splits[i] * 2;
    }
    psd_op op = ranks_op(PSD_OP_ALL_TO_ALL_V, PSD_I16, (int64_t)in_bytes / 2, in, out);
    op.in_splits = in_splits;
    op.out_splits = out_splits;
    CHECK(ranks_do(r, g, &op) == PSD_OK);
    for (int i = 0; i < r->size; i++) {
        size_t skip = 0;
        for (int j = 0; j < r->rank; j++)
            skip += (size_t)split(r, i, j) * 2;
        check_moved(r, out + at, i, skip, (size_t)out_splits[i] * 2);
        at += (size_t)out_splits[i] * 2;
    }
    r->ops->group_close(g);
    ranks_close(r);
}

/* ------------------------------------------------------------------------------------------------ reducing */

static int64_t expect(const rank_run *r, psd_redop redop, int64_t i)
{
    int64_t first = i % 3 + 1, total = redop == PSD_PROD ? 1 : 0;
    for (int rank = 0; rank < r->size; rank++) {
        int64_t x = first + rank;
        if (redop == PSD_PROD)
            total *= x;
        else if (redop == PSD_MIN)
            total = first;
        else if (redop == PSD_MAX)
            total = x;
        else
            total += x;
    }
    return redop == PSD_AVG ? total / r->size : total;
}

/* Integers that fit every dtype; f16 and bf16 by their bits, for small integers only. */
static double read_element(psd_dtype dtype, const void *data, int64_t i)
{
    const unsigned char *at = (const unsigned char *)data + (size_t)i * psd_dtype_bytes(dtype);
    int8_t i8;
    int32_t i32;
    int64_t i64;
    float f32;
    double f64;
    switch (psd_dtype_bytes(dtype)) {
    case 1:
        memcpy(&i8, at, 1);
        return i8;
    case 4:
        memcpy(&i32, at, 4);
        memcpy(&f32, at, 4);
        return dtype == PSD_F32 ? (double)f32 : (double)i32;
    default:
        memcpy(&i64, at, 8);
        memcpy(&f64, at, 8);
        return dtype == PSD_F64 ? f64 : (double)i64;
    }
}

static void write_element(psd_dtype dtype, void *data, int64_t i, int64_t value)
{
    unsigned char *at = (unsigned char *)data + (size_t)i * psd_dtype_bytes(dtype);
    int8_t i8 = (int8_t)value;
    int32_t i32 = (int32_t)value;
    float f32 = (float)value;
    double f64 = (double)value;
    switch (psd_dtype_bytes(dtype)) {
    case 1:
        memcpy(at, &i8, 1);
        break;
    case 4:
        memcpy(at, dtype == PSD_F32 ? (void *)&f32 : (void *)&i32, 4);
        break;
    default:
        memcpy(at, dtype == PSD_F64 ? (void *)&f64 : (void *)&value, 8);
        break;
    }
}

static void check_reduced(rank_run *r, psd_dtype dtype, psd_redop redop, const void *device, int64_t from)
{
    char *host = malloc(COUNT * 8);
    ranks_get(r, host, device, COUNT * psd_dtype_bytes(dtype));
    for (int64_t i = 0; i < COUNT; i++) {
        int64_t sum = expect(r, PSD_SUM, from + i);
        double whole = (double)expect(r, redop, from + i);
        double want =
            redop == PSD_AVG && (dtype == PSD_F32 || dtype == PSD_F64) ? (double)sum / r->size : whole;
        double have = read_element(dtype, host, i);
        CHECK_SAYS(have > want - 1e-5 && have < want + 1e-5, "%s %s[%lld]: %g for %g", psd_redop_name(redop),
                   psd_dtype_name(dtype), (long long)i, have, want);
    }
    free(host);
}

static void reduce_one(rank_run *r, psd_backend_group *g, psd_dtype dtype, psd_redop redop, void *in,
                       void *out)
{
    int64_t all = r->size * COUNT;
    char *host = malloc((size_t)all * 8);
    for (int64_t i = 0; i < all; i++)
        write_element(dtype, host, i, i % 3 + 1 + r->rank);
    ranks_put(r, in, host, (size_t)all * psd_dtype_bytes(dtype));
    free(host);
    psd_op op = ranks_op(PSD_OP_ALL_REDUCE, dtype, COUNT, in, out);
    op.redop = redop;
    CHECK(ranks_do(r, g, &op) == PSD_OK);
    check_reduced(r, dtype, redop, out, 0);
    op.kind = PSD_OP_REDUCE;
    op.root = 0;
    op.out = r->rank == 0 ? out : NULL;
    CHECK(ranks_do(r, g, &op) == PSD_OK);
    if (r->rank == 0)
        check_reduced(r, dtype, redop, out, 0);
    op.kind = PSD_OP_REDUCE_SCATTER;
    op.root = -1;
    op.out = out;
    CHECK(ranks_do(r, g, &op) == PSD_OK);
    check_reduced(r, dtype, redop, out, r->rank * COUNT);
}

static void reducing(rank_run *r)
{
    static const psd_dtype dtypes[] = {PSD_I8, PSD_I32, PSD_I64, PSD_U32, PSD_U64, PSD_F32, PSD_F64};
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    size_t most = (size_t)r->size * COUNT * 8;
    void *in = ranks_alloc(r, most), *out = ranks_alloc(r, most);
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (int redop = PSD_SUM; redop <= PSD_AVG; redop++)
            reduce_one(r, g, dtypes[d], (psd_redop)redop, in, out);
    }
    r->ops->group_close(g);
    ranks_close(r);
}

/* ------------------------------------------------------------------------------------------ point to point */

static psd_op p2p_op(psd_op_kind kind, const psd_op_p2p *p2p, int32_t count)
{
    psd_op op = ranks_op(kind, p2p->dtype, p2p->count, NULL, NULL);
    op.p2p = p2p;
    op.p2p_count = count;
    return op;
}

static psd_request *begin(rank_run *r, psd_backend_group *g, bool is_send, void *data, int64_t count,
                          int32_t peer)
{
    psd_op_p2p p2p = {.is_send = is_send, .dtype = PSD_U8, .data = data, .count = count, .peer = peer};
    psd_op op = p2p_op(is_send ? PSD_OP_SEND : PSD_OP_RECV, &p2p, 1);
    psd_request *request = NULL;
    CHECK(r->ops->start(g, &op, &request) == PSD_OK);
    return request;
}

/* All send first and receive second, to the next of a ring: without being held together they would never end. */
static void ring(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    int32_t next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    size_t bytes = 1 << 20;
    unsigned char *in = ranks_alloc(r, bytes), *out = ranks_alloc(r, bytes);
    fill_moved(r, in, r->rank, bytes);
    for (int round = 0; round < 3; round++) {
        psd_op_result result;
        psd_request *send = begin(r, g, true, in, (int64_t)bytes, next);
        psd_request *receive = begin(r, g, false, out, (int64_t)bytes, before);
        psd_request *both[] = {send, receive};
        CHECK(r->ops->wait(r->backend, both, 2, false, psd_deadline_ns(psd_now_ns(), RANKS_WAIT_MS)) ==
              PSD_OK);
        CHECK(r->ops->test(receive, &result) == PSD_OK);
        CHECK(result.source == before && result.tag == 0 && result.ordinal == (uint64_t)round);
        r->ops->release(receive);
        CHECK(ranks_end(r, send) == PSD_OK);
        check_moved(r, out, before, 0, bytes);
    }
    r->ops->group_close(g);
    ranks_close(r);
}

static void batches(rank_run *r)
{
    psd_op_p2p list[2 * RANKS_MOST];
    int32_t count = 0;
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    unsigned char *in = ranks_alloc(r, 4096), *out = ranks_alloc(r, 4096);
    fill_moved(r, in, r->rank, 4096);
    for (int i = 0; i < r->size; i++) { /* this rank itself, too */
        psd_op_p2p receive = {false, PSD_U16, out + i * 200, 100, i, 0};
        psd_op_p2p send = {true, PSD_U16, in + i * 200, 100, i, 0};
        list[count++] = receive;
        list[count++] = send;
    }
    psd_op op = p2p_op(PSD_OP_BATCH, list, count);
    CHECK(ranks_do(r, g, &op) == PSD_OK);
    for (int i = 0; i < r->size; i++)
        check_moved(r, out + i * 200, i, (size_t)r->rank * 200, 200);
    psd_request *request = NULL;
    op = p2p_op(PSD_OP_BATCH, &list[2 * r->rank], 1); /* half of what it needs */
    CHECK(r->ops->start(g, &op, &request) == PSD_ERR_UNSUPPORTED);
    r->ops->group_close(g);
    ranks_close(r);
}

/* Alone with itself: held until both halves are there, while collectives pass. */
static void itself(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    unsigned char *in = ranks_alloc(r, 512), *out = ranks_alloc(r, 512);
    fill_moved(r, in, r->rank, 512);
    psd_request *send = begin(r, g, true, in, 512, r->rank);
    psd_op barrier = ranks_op(PSD_OP_BARRIER, 0, 0, NULL, NULL);
    CHECK(ranks_do(r, g, &barrier) == PSD_OK);
    psd_op_result result;
    CHECK(r->ops->test(send, &result) == PSD_INPROGRESS);
    psd_request *receive = begin(r, g, false, out, 512, r->rank);
    CHECK(ranks_end(r, receive) == PSD_OK);
    CHECK(ranks_end(r, send) == PSD_OK);
    check_moved(r, out, r->rank, 0, 512);
    r->ops->group_close(g);
    ranks_close(r);
}

/* Empty collectives end; an empty message waits for its other side. */
static void empty(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    unsigned char *data = ranks_alloc(r, 64);
    for (int kind = PSD_OP_BROADCAST; kind <= PSD_OP_ALL_TO_ALL; kind++) {
        psd_op op = ranks_op((psd_op_kind)kind, PSD_F32, 0, data, data);
        op.redop = PSD_SUM;
        op.root = 0;
        CHECK_SAYS(ranks_do(r, g, &op) == PSD_OK, "%s", psd_op_name((psd_op_kind)kind));
    }
    if (r->rank == 0) {
        psd_op_result result;
        psd_request *receive = begin(r, g, false, NULL, 0, 1);
        psd_request *list[] = {receive};
        CHECK(r->ops->wait(r->backend, list, 1, false, psd_deadline_ns(psd_now_ns(), 50)) == PSD_ERR_TIMEOUT);
        CHECK(r->ops->test(receive, &result) == PSD_INPROGRESS);
        atomic_store(&r->shared->flags[0], 1);
        CHECK(ranks_end(r, receive) == PSD_OK);
    } else if (r->rank == 1) {
        ranks_await(&r->shared->flags[0], 1);
        CHECK(ranks_end(r, begin(r, g, true, NULL, 0, 0)) == PSD_OK);
    }
    r->ops->group_close(g);
    ranks_close(r);
}

/* A started operation ends though nobody asks: also held sends. */
static void unattended(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    unsigned char *data = ranks_alloc(r, 64);
    if (r->rank == 0) {
        fill_moved(r, data, 0, 64);
        psd_request *send = begin(r, g, true, data, 64, 1);
        ranks_await(&r->shared->flags[0], 1); /* nobody waits for the send */
        CHECK(ranks_end(r, send) == PSD_OK);
    } else {
        CHECK(ranks_end(r, begin(r, g, false, data, 64, 0)) == PSD_OK);
        check_moved(r, data, 0, 0, 64);
        atomic_store(&r->shared->flags[0], 1);
    }
    r->ops->group_close(g);
    ranks_close(r);
}

/* Groups within the world, closed in different orders. */
static void groups(rank_run *r)
{
    static const uint32_t pair[] = {2, 0};
    char why[PSD_MAX_TEXT] = "";
    psd_backend_usage usage;
    psd_backend_group *part = NULL;
    ranks_open(r);
    psd_backend_group *world = ranks_world(r, 1), *dup = ranks_world(r, 2);
    int32_t *data = ranks_alloc(r, 4);
    if (r->rank != 1) {
        int32_t mine = r->rank + 5, sum = 0;
        CHECK_SAYS(ranks_group(r, 3, pair, 2, RANKS_WAIT_MS, &part, why, sizeof why) == PSD_OK, "%s", why);
        ranks_put(r, data, &mine, 4);
        psd_op op = ranks_op(PSD_OP_ALL_REDUCE, PSD_I32, 1, data, data);
        op.redop = PSD_SUM;
        CHECK(ranks_do(r, part, &op) == PSD_OK);
        ranks_get(r, &sum, data, 4);
        CHECK_SAYS(sum == 12, "%d", sum);
    }
    r->ops->usage(r->backend, &usage);
    CHECK(usage.communicators == (r->rank != 1 ? 3 : 2) && usage.most_communicators == 64);
    psd_backend_group *order[] = {world, dup, part};
    for (int i = 0; i < 3; i++)
        r->ops->group_close(order[(i + r->rank) % 3]);
    ranks_close(r);
}

static void budget(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    static const uint32_t members[] = {0};
    psd_backend_group *g = NULL;
    ranks_open(r);
    psd_backend_group *world = ranks_world(r, 1);
    CHECK(ranks_group(r, 2, members, 1, RANKS_WAIT_MS, &g, why, sizeof why) == PSD_ERR_LIMIT);
    CHECK_SAYS(strstr(why, "1 communicators are open") != NULL && strstr(why, "PSD_NCCL_MAX_COMMS") != NULL,
               "%s", why);
    r->ops->group_close(world);
    ranks_close(r);
}

int main(int argc, char **argv)
{
    static const ranks_case cases[] = {
        {.name = "moving", .ranks = 3, .run = moving},
        {.name = "moving_alone", .ranks = 1, .run = moving},
        {.name = "uneven", .ranks = 3, .run = uneven},
        {.name = "reducing", .ranks = 3, .run = reducing},
        {.name = "reducing_inline", .ranks = 2, .run = reducing, .env = {"PSD_GPUSIM_INLINE_LAUNCH=1"}},
        {.name = "ring", .ranks = 3, .run = ring},
        {.name = "ring_alone", .ranks = 1, .run = ring},
        {.name = "batches", .ranks = 3, .run = batches},
        {.name = "itself", .ranks = 2, .run = itself},
        {.name = "empty", .ranks = 2, .run = empty},
        {.name = "unattended", .ranks = 2, .run = unattended},
        {.name = "groups", .ranks = 3, .run = groups},
        {.name = "budget", .ranks = 1, .run = budget, .env = {"PSD_NCCL_MAX_COMMS=1"}},
    };
    return ranks_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
