/* Host time per operation: raw NCCL calls beside psd's, on the same devices, in turns.
 *
 *     PSD_BACKEND=nccl psrun -n 2 -- raw_nccl [--json]
 *
 * "raw" is ncclAllReduce and the like on a blocking communicator, "raw, non-blocking" on one as psd makes them, with the poll
 * until the call has left ncclInProgress; "psd" is the asynchronous call and psd_wait, which comes back once the operation
 * is queued. None waits for the device: after each turn the stream is drained outside of the time. The median of the turns
 * of rank 0 is printed. The goal: psd within 2 us of the raw call on a communicator of its kind. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker/backend/nccl/libs.h"
#include "worker/psd.h"

#define TURNS  11
#define ROUNDS 100 /* operations of a turn */
#define GOAL   2.0

typedef enum way { RAW_BLOCKING, RAW_NONBLOCKING, PSD, WAYS } way;

typedef struct bench {
    psd_ctx *ctx;
    int rank, size;
    nccl_libs libs;
    ncclComm_t comm[2]; /* blocking, not */
    cudaStream_t stream;
    psd_tensor in, out;
    bool json;
    double worst; /* of psd's times over the raw ones, us */
} bench;

typedef struct operation {
    const char *name;
    int64_t count; /* of f32 */
    bool is_ring;  /* sendrecv with the neighbours; else all_reduce */
} operation;

static void check_psd(psd_status status)
{
    if (status == PSD_OK)
        return;
    fprintf(stderr, "raw_nccl: %s\n", psd_last_error());
    exit(1);
}

static void check_cuda(const bench *b, const char *what, cudaError_t error)
{
    char text[LIBS_TEXT];
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "raw_nccl: %s\n", libs_cuda_text(&b->libs.cuda, what, error, text, sizeof text));
    exit(1);
}

static void check_nccl(const bench *b, const char *what, ncclResult_t result)
{
    char text[LIBS_TEXT];
    if (result == ncclSuccess || result == ncclInProgress)
        return;
    fprintf(stderr, "raw_nccl: %s\n", libs_nccl_text(&b->libs.nccl, what, result, text, sizeof text));
    exit(1);
}

static double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* ------------------------------------------------------------------------------------------------- raw NCCL */

/* Until the communicator's last call has left ncclInProgress. */
static void settle(const bench *b, ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        check_nccl(b, "ncclCommGetAsyncError", b->libs.nccl.ncclCommGetAsyncError(comm, &state));
    check_nccl(b, "a call", state);
}

static void raw_once(const bench *b, const operation *op, ncclComm_t comm)
{
    const nccl_api *nccl = &b->libs.nccl;
    size_t count = (size_t)op->count;
    int next = (b->rank + 1) % b->size, before = (b->rank + b->size - 1) % b->size;
    if (!op->is_ring) {
        check_nccl(
            b, "ncclAllReduce",
            nccl->ncclAllReduce(b->in.data, b->out.data, count, ncclFloat32, ncclSum, comm, b->stream));
        return;
    }
    check_nccl(b, "ncclGroupStart", nccl->ncclGroupStart());
    check_nccl(b, "ncclSend", nccl->ncclSend(b->in.data, count, ncclFloat32, next, comm, b->stream));
    check_nccl(b, "ncclRecv", nccl->ncclRecv(b->out.data, count, ncclFloat32, before, comm, b->stream));
    check_nccl(b, "ncclGroupEnd", nccl->ncclGroupEnd());
}

static void drain(const bench *b)
{
    cudaEvent_t event = NULL;
    cudaError_t error = cudaErrorNotReady;
    check_cuda(b, "cudaEventCreateWithFlags",
               b->libs.cuda.cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    check_cuda(b, "cudaEventRecord", b->libs.cuda.cudaEventRecord(event, b->stream));
    while ((error = b->libs.cuda.cudaEventQuery(event)) == cudaErrorNotReady)
        continue;
    check_cuda(b, "cudaEventQuery", error);
    check_cuda(b, "cudaEventDestroy", b->libs.cuda.cudaEventDestroy(event));
}

static double raw_turn(const bench *b, const operation *op, bool blocking)
{
    ncclComm_t comm = b->comm[blocking ? 0 : 1];
    double begun = now_us();
    for (int i = 0; i < ROUNDS; i++) {
        raw_once(b, op, comm);
        if (!blocking)
            settle(b, comm);
    }
    double took = now_us() - begun;
    drain(b);
    return took / ROUNDS;
}

/* ------------------------------------------------------------------------------------------------------- psd */

static double psd_turn(bench *b, const operation *op)
{
    psd_tensor in = psd_tensor_1d(b->in.data, op->count, PSD_F32, NULL);
    psd_tensor out = psd_tensor_1d(b->out.data, op->count, PSD_F32, NULL);
    psd_work work;
    psd_opts opts;
    psd_p2p ring[2] = {{PSD_OP_SEND, in, (b->rank + 1) % b->size, 0},
                       {PSD_OP_RECV, out, (b->rank + b->size - 1) % b->size, 0}};
    psd_opts_init(&opts);
    opts.stream = b->stream;
    in.device = out.device = b->in.device;
    in.device_index = out.device_index = b->in.device_index;
    ring[0].tensor = in;
    ring[1].tensor = out;
    double begun = now_us();
    for (int i = 0; i < ROUNDS; i++) {
        if (op->is_ring)
            check_psd(psd_ibatch(b->ctx, PSD_WORLD, ring, 2, &opts, &work));
        else
            check_psd(psd_iall_reduce(b->ctx, PSD_WORLD, &in, &out, PSD_SUM, &opts, &work));
        check_psd(psd_wait(b->ctx, work, 0));
    }
    double took = now_us() - begun;
    drain(b);
    return took / ROUNDS;
}

/* ---------------------------------------------------------------------------------------------------- table */

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void print_row(bench *b, const operation *op, const double *us)
{
    double over = us[PSD] - us[RAW_NONBLOCKING];
    b->worst = over > b->worst ? over : b->worst;
    if (b->rank != 0)
        return;
    if (b->json)
        printf(
            "{\"operation\":\"%s\",\"bytes\":%lld,\"ranks\":%d,\"raw_us\":%.2f,\"raw_nonblocking_us\":%.2f,"
            "\"psd_us\":%.2f,\"over_us\":%.2f,\"goal_us\":%.1f}\n",
            op->name, (long long)op->count * 4, b->size, us[RAW_BLOCKING], us[RAW_NONBLOCKING], us[PSD], over,
            GOAL);
    else
        printf("%-12s %10lld %12.2f %12.2f %12.2f %+12.2f\n", op->name, (long long)op->count * 4,
               us[RAW_BLOCKING], us[RAW_NONBLOCKING], us[PSD], over);
}

static void measure(bench *b, const operation *op)
{
    double turns[WAYS][TURNS], median[WAYS];
    for (int turn = -1; turn < TURNS; turn++) { /* the first warms */
        double us[WAYS] = {raw_turn(b, op, true), raw_turn(b, op, false), psd_turn(b, op)};
        for (int w = 0; w < WAYS && turn >= 0; w++)
            turns[w][turn] = us[w];
    }
    for (int w = 0; w < WAYS; w++) {
        qsort(turns[w], TURNS, sizeof turns[w][0], by_size);
        median[w] = turns[w][TURNS / 2];
    }
    print_row(b, op, median);
}

/* An id of rank 0's, by way of the device. */
static ncclUniqueId share_id(bench *b)
{
    ncclUniqueId id;
    int64_t bytes = NCCL_UNIQUE_ID_BYTES;
    psd_tensor device, host = psd_tensor_1d(id.internal, bytes, PSD_U8, "id");
    memset(&id, 0, sizeof id);
    if (b->rank == 0)
        check_nccl(b, "ncclGetUniqueId", b->libs.nccl.ncclGetUniqueId(&id));
    check_psd(psd_tensor_alloc(b->ctx, &bytes, 1, PSD_U8, "id on the device", &device));
    check_psd(psd_tensor_copy(b->ctx, &device, &host, NULL));
    check_psd(psd_broadcast(b->ctx, PSD_WORLD, &device, 0, NULL));
    check_psd(psd_tensor_copy(b->ctx, &host, &device, NULL));
    check_psd(psd_tensor_free(b->ctx, &device));
    return id;
}

static void open_bench(bench *b, int64_t most)
{
    char why[1024] = "";
    check_psd(psd_init(NULL, &b->ctx));
    b->rank = psd_rank(b->ctx);
    b->size = psd_world_size(b->ctx);
    if (libs_open(&b->libs, why, sizeof why) != PSD_OK || strcmp(psd_backend_name(b->ctx), "nccl") != 0) {
        fprintf(stderr, "raw_nccl: backend %s: %s\n", psd_backend_name(b->ctx),
                why[0] != '\0' ? why : "set PSD_BACKEND=nccl");
        exit(1);
    }
    check_psd(psd_tensor_alloc(b->ctx, &most, 1, PSD_F32, "in", &b->in));
    check_psd(psd_tensor_alloc(b->ctx, &most, 1, PSD_F32, "out", &b->out));
    check_cuda(b, "cudaSetDevice", b->libs.cuda.cudaSetDevice(b->in.device_index));
    check_cuda(b, "cudaStreamCreateWithFlags",
               b->libs.cuda.cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclUniqueId id = share_id(b);
        config.blocking = i == 0;
        check_nccl(b, "ncclCommInitRankConfig",
                   b->libs.nccl.ncclCommInitRankConfig(&b->comm[i], b->size, id, b->rank, &config));
        settle(b, b->comm[i]);
    }
}

static void close_bench(bench *b)
{
    for (int i = 0; i < 2; i++) {
        check_nccl(b, "ncclCommFinalize", b->libs.nccl.ncclCommFinalize(b->comm[i]));
        settle(b, b->comm[i]);
        check_nccl(b, "ncclCommDestroy", b->libs.nccl.ncclCommDestroy(b->comm[i]));
    }
    check_cuda(b, "cudaStreamDestroy", b->libs.cuda.cudaStreamDestroy(b->stream));
    check_psd(psd_tensor_free(b->ctx, &b->in));
    check_psd(psd_tensor_free(b->ctx, &b->out));
    check_psd(psd_finalize(&b->ctx));
}

int main(int argc, char **argv)
{
    static const operation operations[] = {
        {"all_reduce", 2, false}, {"all_reduce", 16384, false}, {"all_reduce", 262144, false},
        {"sendrecv", 2, true},    {"sendrecv", 16384, true},
    };
    bench b = {.json = argc > 1 && strcmp(argv[1], "--json") == 0, .worst = -1e9};
    open_bench(&b, 262144);
    if (b.rank == 0 && !b.json)
        printf("host time per operation, us, %d ranks, NCCL %d\n%-12s %10s %12s %12s %12s %12s\n", b.size,
               b.libs.nccl.version, "operation", "bytes", "raw", "raw, non-bl.", "psd", "psd over");
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
        measure(&b, &operations[i]);
    if (b.rank == 0 && !b.json)
        printf("raw_nccl: worst_over_us=%.2f goal_us=%.0f %s\n", b.worst, GOAL,
               b.worst <= GOAL ? "met" : "missed");
    close_bench(&b);
    return 0;
}
