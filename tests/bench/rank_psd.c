/* psd as one of the systems that compare measures: psrun starts RANKS of this. */
#include <psd.h>
#include <stdio.h>

#include "tests/bench/rank.h"

static int run_ping_pong(psd_ctx *ctx, const bench_call *call, bool leads)
{
    psd_tensor in = psd_tensor_1d(call->in, (int64_t)call->count, PSD_F32, "bench in");
    psd_tensor out = psd_tensor_1d(call->out, (int64_t)call->count, PSD_F32, "bench out");
    psd_status status = PSD_OK;
    if (leads)
        status = psd_send(ctx, PSD_WORLD, &in, call->peer, NULL);
    if (status == PSD_OK)
        status = psd_recv(ctx, PSD_WORLD, &out, call->peer, NULL, NULL);
    if (status == PSD_OK && !leads)
        status = psd_send(ctx, PSD_WORLD, &in, call->peer, NULL);
    return status == PSD_OK ? 0 : 1;
}

static int run(void *self, const bench_call *call)
{
    psd_ctx *ctx = self;
    psd_status status = PSD_ERR_INVAL;
    bool is_root = psd_rank(ctx) == call->root;
    int64_t c = (int64_t)call->count, n = psd_world_size(ctx);
    bool in_whole =
        call->kind == BENCH_REDUCE_SCATTER || call->kind == BENCH_ALL_TO_ALL || call->kind == BENCH_SCATTER;
    bool out_whole =
        call->kind == BENCH_ALL_GATHER || call->kind == BENCH_ALL_TO_ALL || call->kind == BENCH_GATHER;
    psd_tensor in = psd_tensor_1d(call->in, in_whole ? n * c : c, PSD_F32, "bench in");
    psd_tensor out = psd_tensor_1d(call->out, out_whole ? n * c : c, PSD_F32, "bench out");
    switch (call->kind) {
    case BENCH_ALL_REDUCE:
        status = psd_all_reduce(ctx, PSD_WORLD, &in, &out, PSD_SUM, NULL);
        break;
    case BENCH_BROADCAST:
        status = psd_broadcast(ctx, PSD_WORLD, &out, call->root, NULL);
        break;
    case BENCH_REDUCE:
        status = psd_reduce(ctx, PSD_WORLD, &in, is_root ? &out : NULL, PSD_SUM, call->root, NULL);
        break;
    case BENCH_REDUCE_SCATTER:
        status = psd_reduce_scatter(ctx, PSD_WORLD, &in, &out, PSD_SUM, NULL);
        break;
    case BENCH_ALL_GATHER:
        status = psd_all_gather(ctx, PSD_WORLD, &in, &out, NULL);
        break;
    case BENCH_ALL_TO_ALL:
        status = psd_all_to_all(ctx, PSD_WORLD, &in, &out, NULL);
        break;
    case BENCH_GATHER:
        status = psd_gather(ctx, PSD_WORLD, &in, is_root ? &out : NULL, call->root, NULL);
        break;
    case BENCH_SCATTER:
        status = psd_scatter(ctx, PSD_WORLD, is_root ? &in : NULL, &out, call->root, NULL);
        break;
    case BENCH_PING_PONG:
        return run_ping_pong(ctx, call, psd_rank(ctx) % 2 == 0);
    case BENCH_BARRIER:
        status = psd_barrier(ctx, PSD_WORLD, NULL);
        break;
    case BENCH_KINDS:
        break;
    }
    return status == PSD_OK ? 0 : 1;
}

static const char *error(void *self)
{
    (void)self;
    return psd_last_error();
}

static void *allocate(void *self, size_t bytes)
{
    psd_tensor tensor;
    int64_t count = (int64_t)bytes;
    return psd_tensor_alloc(self, &count, 1, PSD_U8, "bench", &tensor) == PSD_OK ? tensor.data : NULL;
}

static void release(void *self, void *memory)
{
    psd_tensor tensor = psd_tensor_1d(memory, 0, PSD_U8, "bench");
    (void)psd_tensor_free(self, &tensor);
}

int main(void)
{
    psd_ctx *ctx = NULL;
    if (psd_init(NULL, &ctx) != PSD_OK)
        return fprintf(stderr, "%s\n", psd_last_error()), 1;
    const uint32_t all = (UINT32_C(1) << BENCH_KINDS) - 1, broadcast = UINT32_C(1) << BENCH_BROADCAST;
    bench_system system = {.self = ctx,
                           .rank = psd_rank(ctx),
                           .ranks = psd_world_size(ctx),
                           .out_of_place = all & ~broadcast,
                           .in_place = broadcast | UINT32_C(1) << BENCH_ALL_REDUCE |
                                       UINT32_C(1) << BENCH_REDUCE | UINT32_C(1) << BENCH_REDUCE_SCATTER |
                                       UINT32_C(1) << BENCH_ALL_GATHER,
                           .run = run,
                           .error = error,
                           .allocate = allocate,
                           .release = release};
    int code = bench_rank_main(&system);
    return psd_finalize(&ctx) == PSD_OK ? code : 1;
}
