/* Every collective of the host backend between contexts of one process, against values computed here. */
#include "tests/lib/psd_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/host_ranks.h"

/* The element that rank `rank` contributes at position `i`: small, so that sums and products of i32 are
 * exact. */
static int32_t value(int32_t rank, int64_t i)
{
    return (int32_t)((i * 7 + rank * 3) % 11) - 4;
}

static int32_t *buffer(int64_t count, int32_t fill)
{
    int32_t *data = malloc((size_t)(count > 0 ? count : 1) * sizeof(*data));
    cr_assert_not_null(data);
    for (int64_t i = 0; i < count; i++)
        data[i] = fill;
    return data;
}

static int32_t *contribution(int32_t rank, int64_t count)
{
    int32_t *data = buffer(count, 0);
    for (int64_t i = 0; i < count; i++)
        data[i] = value(rank, i);
    return data;
}

static int32_t reduced(int32_t size, int64_t i, psd_redop redop)
{
    int32_t x = value(0, i);
    for (int32_t rank = 1; rank < size; rank++) {
        int32_t y = value(rank, i);
        if (redop == PSD_MAX)
            x = y > x ? y : x;
        else
            x = redop == PSD_BXOR ? x ^ y : x + y;
    }
    return redop == PSD_AVG ? x / size : x;
}

static int64_t wrong_reduced(const int32_t *out, int32_t size, int64_t from, int64_t count, psd_redop redop)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += out[i] != reduced(size, from + i, redop);
    return wrong;
}

static int64_t wrong_values(const int32_t *out, int32_t rank, int64_t from, int64_t count)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += out[i] != value(rank, from + i);
    return wrong;
}

static void check_all_reduce(host_rank *r, int64_t n, psd_redop redop)
{
    int32_t *in = contribution(r->rank, n);
    int32_t *out = buffer(n, -77);
    psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_I32, n, in, out);
    op.redop = redop;
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    HOST_CHECK(r, wrong_reduced(out, r->size, 0, n, redop) == 0);
    op.out = in; /* in place */
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    HOST_CHECK(r, wrong_reduced(in, r->size, 0, n, redop) == 0);
    free(in);
    free(out);
}

static void check_reduce(host_rank *r, int64_t n, int32_t root)
{
    int32_t *in = contribution(r->rank, n);
    int32_t *out = r->rank == root ? buffer(n, -77) : NULL;
    psd_op op = host_op(PSD_OP_REDUCE, PSD_I32, n, in, out);
    op.redop = PSD_SUM;
    op.root = root;
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    HOST_CHECK(r, out == NULL || wrong_reduced(out, r->size, 0, n, PSD_SUM) == 0);
    free(in);
    free(out);
}

static void check_broadcast(host_rank *r, int64_t n, int32_t root)
{
    int32_t *out = r->rank == root ? contribution(root, n) : buffer(n, -77);
    psd_op op = host_op(PSD_OP_BROADCAST, PSD_I32, n, NULL, out);
    op.root = root;
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    HOST_CHECK(r, wrong_values(out, root, 0, n) == 0);
    free(out);
}

static void check_scatter_gather(host_rank *r, int64_t n, int32_t root)
{
    bool is_root = r->rank == root;
    int32_t *all = is_root ? contribution(root, n * r->size) : NULL;
    int32_t *mine = buffer(n, -77);
    psd_op op = host_op(PSD_OP_SCATTER, PSD_I32, n, all, mine);
    op.root = root;
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    HOST_CHECK(r, wrong_values(mine, root, n * r->rank, n) == 0);
    int32_t *back = is_root ? buffer(n * r->size, -77) : NULL;
    op = host_op(PSD_OP_GATHER, PSD_I32, n, mine, back);
    op.root = root;
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    HOST_CHECK(r, !is_root || wrong_values(back, root, 0, n * r->size) == 0);
    free(all);
    free(mine);
    free(back);
}

static void check_all_gather(host_rank *r, int64_t n)
{
    int32_t *in = contribution(r->rank, n);
    int32_t *out = buffer(n * r->size, -77);
    psd_op op = host_op(PSD_OP_ALL_GATHER, PSD_I32, n, in, out);
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    for (int32_t i = 0; i < r->size; i++)
        HOST_CHECK(r, wrong_values(out + n * i, i, 0, n) == 0);
    free(in);
    free(out);
}

static void check_reduce_scatter(host_rank *r, int64_t n)
{
    int32_t *in = contribution(r->rank, n * r->size);
    int32_t *out = buffer(n, -77);
    psd_op op = host_op(PSD_OP_REDUCE_SCATTER, PSD_I32, n, in, out);
    op.redop = PSD_SUM;
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    HOST_CHECK(r, wrong_reduced(out, r->size, n * r->rank, n, PSD_SUM) == 0);
    free(in);
    free(out);
}

static void check_all_to_all(host_rank *r, int64_t n)
{
    int32_t *in = contribution(r->rank, n * r->size);
    int32_t *out = buffer(n * r->size, -77);
    psd_op op = host_op(PSD_OP_ALL_TO_ALL, PSD_I32, n, in, out);
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    for (int32_t i = 0; i < r->size; i++)
        HOST_CHECK(r, wrong_values(out + n * i, i, n * r->rank, n) == 0);
    free(in);
    free(out);
}

/* Rank i sends n + i + j elements to rank j. */
static void check_all_to_all_v(host_rank *r, int64_t n)
{
    int64_t in_splits[HOST_RANKS_MAX];
    int64_t out_splits[HOST_RANKS_MAX];
    int64_t total = 0;
    for (int32_t i = 0; i < r->size; i++) {
        in_splits[i] = n + i + r->rank;
        out_splits[i] = n + i + r->rank;
        total += in_splits[i];
    }
    int32_t *in = contribution(r->rank, total);
    int32_t *out = buffer(total, -77);
    psd_op op = host_op(PSD_OP_ALL_TO_ALL_V, PSD_I32, 0, in, out);
    op.in_splits = in_splits;
    op.out_splits = out_splits;
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    int64_t at = 0;
    for (int32_t i = 0; i < r->size; i++) {
        int64_t from = 0; /* where rank i's block for this rank begins in its input */
        for (int32_t j = 0; j < r->rank; j++)
            from += n + i + j;
        HOST_CHECK(r, wrong_values(out + at, i, from, out_splits[i]) == 0);
        at += out_splits[i];
    }
    free(in);
    free(out);
}

static void all_collectives(host_rank *r)
{
    static const int64_t counts[] = {0, 1, 3, 1000, 70001};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        int64_t n = counts[c];
        int32_t root = (int32_t)c % r->size;
        check_all_reduce(r, n, PSD_SUM);
        check_all_reduce(r, n, PSD_MAX);
        check_all_reduce(r, n, PSD_BXOR);
        check_all_reduce(r, n, PSD_AVG);
        check_reduce(r, n, root);
        check_broadcast(r, n, root);
        check_scatter_gather(r, n, root);
        check_all_gather(r, n);
        check_reduce_scatter(r, n);
        check_all_to_all(r, n);
        check_all_to_all_v(r, n);
        psd_op barrier = host_op(PSD_OP_BARRIER, (psd_dtype)0, 0, NULL, NULL);
        HOST_CHECK(r, host_run(r, &barrier, NULL) == PSD_OK);
    }
}

static void run_sizes(const char *transport, int32_t most)
{
    for (int32_t size = 1; size <= most; size++) {
        host_ranks all = {
            .size = size, .transport = transport, .eager_limit = 65536, .body = all_collectives};
        cr_assert_eq(host_ranks_run(&all), 0, "%d ranks over %s", size, transport);
    }
}

PSD_TEST(host_coll, every_collective_over_shared_memory_1_to_5_ranks)
{
    run_sizes("shm", 5);
}

PSD_TEST(host_coll, every_collective_over_tcp_1_to_3_ranks)
{
    run_sizes("tcp", 3);
}

/* Many in flight, more than are remembered once they are complete, started in one order and waited for in the other. */
static void pipelined(host_rank *r)
{
    enum { OPS = 1500, N = 300 };
    int32_t *in[OPS];
    int32_t *out[OPS];
    psd_request *requests[OPS];
    for (int k = 0; k < OPS; k++) {
        in[k] = contribution(r->rank + k, N);
        out[k] = buffer(N, 0);
        psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_I32, N, in[k], out[k]);
        op.redop = PSD_SUM;
        requests[k] = host_start(r, &op);
    }
    for (int k = OPS - 1; k >= 0; k--) {
        psd_op_result result;
        HOST_CHECK(r, host_finish(r, &requests[k], &result) == PSD_OK);
        HOST_CHECK(r, result.ordinal == (uint64_t)k);
        int64_t wrong = 0;
        for (int i = 0; i < N; i++) {
            int32_t sum = 0;
            for (int32_t rank = 0; rank < r->size; rank++)
                sum += value(rank + k, i);
            wrong += out[k][i] != sum;
        }
        HOST_CHECK(r, wrong == 0);
        free(in[k]);
        free(out[k]);
    }
}

PSD_TEST(host_coll, many_in_flight_complete_in_any_order_of_waiting)
{
    host_ranks all = {.size = 3, .transport = "shm", .eager_limit = 65536, .body = pipelined};
    cr_assert_eq(host_ranks_run(&all), 0);
}

/* Ranks enter one after the other; more operations than the engine remembers. */
static void staggered(host_rank *r)
{
    for (int k = 0; k < 600; k++) {
        int32_t out = r->rank == k % r->size ? k : -1;
        psd_op op = host_op(PSD_OP_BROADCAST, PSD_I32, 1, NULL, &out);
        op.root = k % r->size;
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK && out == k);
    }
}

PSD_TEST(host_coll, a_rank_may_be_many_collectives_ahead)
{
    host_ranks all = {.size = 4, .transport = "shm", .eager_limit = 0, .body = staggered};
    cr_assert_eq(host_ranks_run(&all), 0);
}

/* Between two ranks the input of a large reduction is reduced where it lies in the ring: in pieces that end
 * within an element, once an odd number of bytes has gone through the ring, and that go around its end. */
static void reduce_in_pieces(host_rank *r)
{
    enum { N = 300001 };
    double *in = malloc(2 * N * sizeof(*in));
    double *out = malloc(N * sizeof(*out));
    for (int64_t i = 0; i < 2 * N; i++)
        in[i] = value(r->rank, i) + 0.5;
    for (uint8_t turn = 0; turn < 12; turn++) {
        static const psd_op_kind kinds[3] = {PSD_OP_ALL_REDUCE, PSD_OP_REDUCE_SCATTER, PSD_OP_REDUCE};
        psd_op_kind kind = kinds[turn % 3];
        uint8_t bytes[8] = {0};
        psd_op shift = host_op(PSD_OP_BROADCAST, PSD_U8, 1 + turn % 7, NULL, bytes);
        shift.root = turn % 2;
        HOST_CHECK(r, host_run(r, &shift, NULL) == PSD_OK);
        psd_op op = host_op(kind, PSD_F64, N, in, out);
        op.redop = PSD_SUM;
        op.root = kind == PSD_OP_REDUCE ? turn % 2 : -1;
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
        int64_t from = kind == PSD_OP_REDUCE_SCATTER ? (int64_t)r->rank * N : 0;
        int64_t wrong = 0;
        for (int64_t i = 0; i < N && (kind != PSD_OP_REDUCE || op.root == r->rank); i++)
            wrong += out[i] != value(0, from + i) + value(1, from + i) + 1.0;
        HOST_CHECK(r, wrong == 0);
    }
    free(in);
    free(out);
}

PSD_TEST(host_coll, reductions_between_two_ranks_in_pieces_of_any_length)
{
    host_ranks all = {.size = 2, .transport = "shm", .eager_limit = 65536, .body = reduce_in_pieces};
    cr_assert_eq(host_ranks_run(&all), 0);
    all.transport = "tcp";
    cr_assert_eq(host_ranks_run(&all), 0);
}
