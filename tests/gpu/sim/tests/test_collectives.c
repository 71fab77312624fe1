/* Collectives: results, order, connection. */
#include "check.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 40000 /* per rank: several steps of every type */

static size_t type_size(ncclDataType_t type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

/* Small whole numbers are exact in every type: 0 to 3, so that a sum of 4 ranks is at most 12 and a product
 * 81. */
static int value_at(int rank, size_t i)
{
    return (int)((i * 7 + i / 251 + (size_t)rank * 5 + 1) % 4);
}

static uint16_t half_of(double v)
{
    int exponent = 0;
    if (v == 0)
        return 0;
    while (v >= 2) {
        v /= 2;
        exponent++;
    }
    while (v < 1) {
        v *= 2;
        exponent--;
    }
    return (uint16_t)((exponent + 15) << 10 | (int)((v - 1) * 1024));
}

static uint16_t bfloat_of(double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16);
}

static void put(ncclDataType_t type, void *at, size_t i, double v)
{
    switch ((int)type) {
    case ncclInt8:
    case ncclUint8:
        ((uint8_t *)at)[i] = (uint8_t)v;
        break;
    case ncclInt32:
    case ncclUint32:
        ((uint32_t *)at)[i] = (uint32_t)v;
        break;
    case ncclInt64:
    case ncclUint64:
        ((uint64_t *)at)[i] = (uint64_t)v;
        break;
    case ncclFloat16:
        ((uint16_t *)at)[i] = half_of(v);
        break;
    case ncclBfloat16:
        ((uint16_t *)at)[i] = bfloat_of(v);
        break;
    case ncclFloat32:
        ((float *)at)[i] = (float)v;
        break;
    case ncclFloat64:
        ((double *)at)[i] = v;
        break;
    case ncclFloat8e4m3: /* 4 bits of exponent: as a half with 3 bits of mantissa and another bias */
        ((uint8_t *)at)[i] = v == 0 ? 0 : (uint8_t)((half_of(v) - (8 << 10)) >> 7);
        break;
    case ncclFloat8e5m2:
        ((uint8_t *)at)[i] = (uint8_t)(half_of(v) >> 8);
        break;
    }
}

static double combined(ncclRedOp_t op, int ranks, size_t i)
{
    double out = value_at(0, i);
    for (int r = 1; r < ranks; r++) {
        double v = value_at(r, i);
        out = op == ncclProd  ? out * v
              : op == ncclMax ? (v > out ? v : out)
              : op == ncclMin ? (v < out ? v : out)
                              : out + v;
    }
    return op == ncclAvg ? out / ranks : out;
}

static void *inputs(ncclDataType_t type, int rank, size_t from, size_t count)
{
    char *host = calloc(count, type_size(type));
    CHECK(host != NULL);
    for (size_t i = 0; i < count; i++)
        put(type, host, i, value_at(rank, from + i));
    void *out = device_copy(host, count * type_size(type));
    free(host);
    return out;
}

/* Is the device's memory at `out` that of the combined elements from, from + 1...? */
static void check_combined(ncclDataType_t type, ncclRedOp_t op, int ranks, const void *out, size_t from,
                           size_t count)
{
    size_t bytes = count * type_size(type);
    char *got = malloc(bytes), *wanted = malloc(bytes);
    CHECK(got != NULL && wanted != NULL);
    read_back(got, out, bytes);
    for (size_t i = 0; i < count; i++)
        put(type, wanted, i, combined(op, ranks, from + i));
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != wanted[i]) {
            fprintf(stderr, "type %d op %d byte %zu\n", (int)type, (int)op, i);
            CHECK_EQ(got[i], wanted[i]);
        }
    free(got);
    free(wanted);
}

static bool is_exact(ncclDataType_t type, ncclRedOp_t op, int ranks)
{
    bool is_integer = type <= ncclUint64;
    if (op == ncclAvg)
        return ranks == 1 || ranks == 2 || ranks == 4 || is_integer;
    return type_size(type) > 1 || is_integer || op == ncclMax || op == ncclMin ||
           (op == ncclSum && ranks < 4);
}

static void reductions(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, ncclRedOp_t op)
{
    cudaStream_t stream = make_stream();
    size_t size = type_size(type), n = (size_t)ranks;
    char *in = inputs(type, rank, 0, n * COUNT), *out = device_bytes(n * COUNT * size, 0xEE);
    OK(ncclAllReduce(in, out, COUNT, type, op, comm, stream));
    OK(finish(stream));
    check_combined(type, op, ranks, out, 0, COUNT);
    OK(ncclReduceScatter(in, out, COUNT, type, op, comm, stream));
    OK(finish(stream));
    check_combined(type, op, ranks, out, (size_t)rank * COUNT, COUNT);
    OK(ncclReduce(in, out, COUNT, type, op, ranks - 1, comm, stream));
    OK(finish(stream));
    if (rank == ranks - 1)
        check_combined(type, op, ranks, out, 0, COUNT);
    OK(ncclAllReduce(in, in, 3, type, op, comm, stream)); /* in place, fewer elements than ranks */
    OK(finish(stream));
    check_combined(type, op, ranks, in, 0, 3);
    OK(cudaFree(in));
    OK(cudaFree(out));
    OK(cudaStreamDestroy(stream));
}

static void every_reduction(int rank, int ranks, shared *s)
{
    ncclComm_t comm = make_comm(rank, ranks, s, true);
    for (int type = 0; type < ncclNumTypes; type++)
        for (int op = 0; op < ncclNumOps; op++)
            if (is_exact((ncclDataType_t)type, (ncclRedOp_t)op, ranks))
                reductions(comm, rank, ranks, (ncclDataType_t)type, (ncclRedOp_t)op);
    OK(ncclCommDestroy(comm));
}

static void reductions_of_1(int rank, shared *s)
{
    every_reduction(rank, 1, s);
}

static void reductions_of_2(int rank, shared *s)
{
    every_reduction(rank, 2, s);
}

static void reductions_of_3(int rank, shared *s)
{
    every_reduction(rank, 3, s);
}

/* Also in place: user guide, "In-place Operations". */
static void movement(int rank, shared *s)
{
    const int ranks = 4;
    ncclComm_t comm = make_comm(rank, ranks, s, true);
    cudaStream_t stream = make_stream();
    size_t bytes = 200000;
    char *out = device_bytes(bytes * (size_t)ranks, 0), *own = device_bytes(bytes, rank + 1);
    for (int in_place = 0; in_place < 2; in_place++) {
        char *in = in_place ? out + (size_t)rank * bytes : own;
        OK(cudaMemset(out, 0, bytes * (size_t)ranks));
        OK(cudaMemset(in, rank + 1, bytes));
        OK(cudaDeviceSynchronize());
        OK(ncclAllGather(in, out, bytes, ncclUint8, comm, stream));
        OK(finish(stream));
        for (int r = 0; r < ranks; r++)
            CHECK(all_bytes(out + (size_t)r * bytes, bytes, r + 1));
    }
    for (int root = 0; root < ranks; root++) {
        OK(ncclBroadcast(own, out, bytes, ncclUint8, root, comm, stream));
        OK(finish(stream));
        CHECK(all_bytes(out, bytes, root + 1));
    }
    OK(ncclCommDestroy(comm));
}

/* User guide, "Group Operation Ordering Semantics": another order is wrong results or a hang. */
static void another_order_hangs(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, false);
    cudaStream_t stream = make_stream();
    size_t bytes = 1 << 20;
    char *data = device_bytes(2 * bytes, rank);
    ncclAllReduce(data, data, 1, ncclInt8, ncclSum, comm, stream);
    OK(settle(comm));
    ncclAllGather(data, data, 1, ncclInt8, comm, stream);
    OK(settle(comm));
    OK(finish(stream));
    OK(ncclGroupStart());
    if (rank == 0)
        ncclAllReduce(data, data, bytes, ncclInt8, ncclSum, comm, stream);
    ncclAllGather(data, data, rank == 0 ? 1 : 1 << 19, ncclInt8, comm, stream);
    if (rank == 1)
        ncclAllReduce(data, data, 1, ncclInt8, ncclSum, comm, stream);
    ncclGroupEnd();
    OK(settle(comm));
    if (rank == 0) /* rank 1 takes fewer steps: it is done, with other bytes than it wanted */
        CHECK(stays_pending(stream));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
    OK(finish(stream));
}

/* Different counts: the ranks take different numbers of steps. */
static void another_count_hangs(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(1 << 20, rank);
    OK(ncclAllReduce(data, data, rank == 0 ? 1 << 20 : 1 << 10, ncclInt8, ncclSum, comm, stream));
    if (rank == 0)
        CHECK(stays_pending(stream));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
}

/* A rank that does not come holds the others: the reduced data needs everyone's. */
static void missing_rank_holds(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 3, s, true);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(64, rank);
    OK(ncclAllReduce(data, data, 64, ncclInt8, ncclSum, comm, stream));
    OK(finish(stream));
    if (rank != 2) {
        OK(ncclAllReduce(data, data, 64, ncclInt8, ncclSum, comm, stream));
        CHECK(stays_pending(stream));
        say_step(s, rank, 1);
    } else {
        wait_step(s, 0, 1);
        wait_step(s, 1, 1);
        OK(ncclAllReduce(data, data, 64, ncclInt8, ncclSum, comm, stream));
    }
    OK(finish(stream));
    OK(ncclCommDestroy(comm));
}

/* NCCL, src/enqueue.cc: "Empty collectives can be discarded": nobody waits for anybody. */
static void empty_collective(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    if (rank == 0) {
        OK(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, comm, stream));
        OK(finish(stream));
        say_step(s, 0, 1);
    }
    wait_step(s, 0, 1);
    OK(ncclCommDestroy(comm));
}

/* The first collective connects the ring: in progress until every rank has called it. */
static void first_collective_connects(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, false);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(64, 1);
    if (rank == 1)
        wait_step(s, 0, 1);
    CHECK_EQ(ncclAllReduce(data, data, 64, ncclInt8, ncclSum, comm, stream), ncclInProgress);
    if (rank == 0) {
        CHECK(stays_in_progress(comm));
        say_step(s, 0, 1);
    }
    OK(settle(comm));
    OK(finish(stream));
    CHECK(all_bytes(data, 64, 2));
    OK(ncclCommDestroy(comm));
}

/* Connects all that the next two use, and leaves both ranks before them. */
static ncclComm_t connected_pair(int rank, shared *s, char **data)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    *data = device_bytes(128, rank);
    OK(ncclAllReduce(*data, *data, 64, ncclInt8, ncclSum, comm, stream));
    if (rank == 0)
        OK(ncclSend(*data, 64, ncclInt8, 1, comm, stream));
    else
        OK(ncclRecv(*data, 64, ncclInt8, 0, comm, stream));
    OK(finish(stream));
    return comm;
}

static void abort_both(int rank, shared *s, ncclComm_t comm)
{
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
}

/* Kernels of one communicator run in the order they were issued, whatever streams they are on: another order
 * on another rank hangs. */
static void one_kernel_at_a_time(int rank, shared *s)
{
    char *data;
    ncclComm_t comm = connected_pair(rank, s, &data);
    cudaStream_t streams[2] = {make_stream(), make_stream()};
    if (rank == 0)
        OK(ncclSend(data, 64, ncclInt8, 1, comm, streams[0]));
    OK(ncclAllReduce(data + 64, data + 64, 64, ncclInt8, ncclSum, comm, streams[1]));
    if (rank == 1)
        OK(ncclRecv(data, 64, ncclInt8, 0, comm, streams[0]));
    CHECK(stays_pending(streams[0]));
    CHECK(stays_pending(streams[1]));
    abort_both(rank, s, comm);
}

/* NCCL, src/enqueue.cc: "only drain p2p tasks once colls are depleted": a receive before the collective waits
 * for a send of the group that the collective holds back. */
static void collectives_come_first(int rank, shared *s)
{
    char *data;
    ncclComm_t comm = connected_pair(rank, s, &data);
    cudaStream_t stream = make_stream();
    if (rank == 0) {
        OK(ncclGroupStart());
        OK(ncclSend(data, 64, ncclInt8, 1, comm, stream));
        OK(ncclAllReduce(data + 64, data + 64, 64, ncclInt8, ncclSum, comm, stream));
        OK(ncclGroupEnd());
    } else {
        OK(ncclRecv(data, 64, ncclInt8, 0, comm, stream));
        OK(ncclAllReduce(data + 64, data + 64, 64, ncclInt8, ncclSum, comm, stream));
    }
    CHECK(stays_pending(stream));
    abort_both(rank, s, comm);
}

/* User guide, "User Defined Reduction Operators". */
static void scaled_sum(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    float host[2] = {(float)rank + 1, 10}, scale = 0.5f;
    float *data = device_copy(host, sizeof host);
    ncclRedOp_t op;
    OK(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat, ncclScalarHostImmediate, comm));
    CHECK_EQ(ncclAllReduce(data, data, 1, ncclDouble, op, comm, stream), ncclInvalidArgument);
    OK(ncclAllReduce(data, data, 2, ncclFloat, op, comm, stream));
    OK(ncclRedOpDestroy(op, comm));
    CHECK_EQ(ncclAllReduce(data, data, 2, ncclFloat, op, comm, stream), ncclInvalidArgument);
    OK(finish(stream));
    read_back(host, data, sizeof host);
    CHECK(host[0] == 1.5f && host[1] == 10.0f);
    OK(ncclCommDestroy(comm));
}

static const check_case cases[] = {
    {.name = "every reduction, 1 rank", .run = reductions_of_1, .ranks = 1},
    {.name = "every reduction, 2 ranks", .run = reductions_of_2, .ranks = 2},
    {.name = "every reduction, 3 ranks", .run = reductions_of_3, .ranks = 3},
    {.name = "all_gather and broadcast, 4 ranks", .run = movement, .ranks = 4},
    {.name = "another order hangs", .run = another_order_hangs, .ranks = 2},
    {.name = "another count hangs", .run = another_count_hangs, .ranks = 2},
    {.name = "a missing rank holds the others", .run = missing_rank_holds, .ranks = 3},
    {.name = "an empty collective is nothing", .run = empty_collective, .ranks = 2},
    {.name = "the first collective connects", .run = first_collective_connects, .ranks = 2},
    {.name = "one kernel at a time", .run = one_kernel_at_a_time, .ranks = 2},
    {.name = "collectives come first", .run = collectives_come_first, .ranks = 2},
    {.name = "a scaled sum", .run = scaled_sum, .ranks = 2},
};

int main(void)
{
    return check_main("test_collectives", cases, sizeof cases / sizeof cases[0]);
}
