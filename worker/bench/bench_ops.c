/* The operations that psd-bench times, as a table. */
#include <string.h>

#include "worker/bench/bench.h"

#define PARTS 16 /* tensors of all_reduce_coalesced */

static psd_status run_all_reduce(bench_run *r)
{
    return psd_all_reduce(r->ctx, PSD_WORLD, &r->in, &r->out, r->args->redop, NULL);
}

static psd_status run_broadcast(bench_run *r)
{
    return psd_broadcast(r->ctx, PSD_WORLD, &r->out, r->args->root, NULL);
}

static psd_status run_reduce(bench_run *r)
{
    psd_tensor *out = bench_has_out(r) ? &r->out : NULL;
    return psd_reduce(r->ctx, PSD_WORLD, &r->in, out, r->args->redop, r->args->root, NULL);
}

static psd_status run_scatter(bench_run *r)
{
    const psd_tensor *in = bench_has_in(r) ? &r->in : NULL;
    return psd_scatter(r->ctx, PSD_WORLD, in, &r->out, r->args->root, NULL);
}

static psd_status run_gather(bench_run *r)
{
    psd_tensor *out = bench_has_out(r) ? &r->out : NULL;
    return psd_gather(r->ctx, PSD_WORLD, &r->in, out, r->args->root, NULL);
}

static psd_status run_all_gather(bench_run *r)
{
    return psd_all_gather(r->ctx, PSD_WORLD, &r->in, &r->out, NULL);
}

static psd_status run_reduce_scatter(bench_run *r)
{
    return psd_reduce_scatter(r->ctx, PSD_WORLD, &r->in, &r->out, r->args->redop, NULL);
}

static psd_status run_all_to_all(bench_run *r)
{
    return psd_all_to_all(r->ctx, PSD_WORLD, &r->in, &r->out, NULL);
}

/* Even splits: what is moved is all_to_all's, by the call that may move uneven ones. */
static psd_status run_all_to_all_v(bench_run *r)
{
    return psd_all_to_all_v(r->ctx, PSD_WORLD, &r->in, r->splits, &r->out, r->splits, NULL);
}

static psd_status run_ping_pong(bench_run *r)
{
    psd_status status = PSD_OK;
    if (r->rank == 0) {
        status = psd_send(r->ctx, PSD_WORLD, &r->in, 1, NULL);
        if (status == PSD_OK)
            status = psd_recv(r->ctx, PSD_WORLD, &r->out, 1, NULL, NULL);
    } else if (r->rank == 1) {
        status = psd_recv(r->ctx, PSD_WORLD, &r->out, 0, NULL, NULL);
        if (status == PSD_OK)
            status = psd_send(r->ctx, PSD_WORLD, &r->in, 0, NULL);
    }
    return status;
}

static psd_status run_sendrecv(bench_run *r)
{
    int32_t next = (r->rank + 1) % r->ranks, before = (r->rank + r->ranks - 1) % r->ranks;
    return psd_sendrecv(r->ctx, PSD_WORLD, &r->in, next, &r->out, before, NULL);
}

/* sendrecv's ring as a list of two. */
static psd_status run_batch(bench_run *r)
{
    int32_t next = (r->rank + 1) % r->ranks, before = (r->rank + r->ranks - 1) % r->ranks;
    psd_p2p list[2] = {{.kind = PSD_OP_SEND, .tensor = r->in, .peer = next},
                       {.kind = PSD_OP_RECV, .tensor = r->out, .peer = before}};
    return psd_batch(r->ctx, PSD_WORLD, list, 2, NULL);
}

/* The elements cut into PARTS tensors, as a model's gradients are. */
static psd_status run_coalesced(bench_run *r)
{
    psd_tensor list[PARTS];
    unsigned char *data = r->out.data;
    int64_t begin = 0;
    for (int32_t i = 0; i < PARTS; i++) {
        int64_t end = r->count / PARTS * (i + 1) + r->count % PARTS * (i + 1) / PARTS;
        list[i] = psd_tensor_1d(data + (size_t)begin * psd_dtype_bytes(r->out.dtype), end - begin,
                                r->out.dtype, "bench part");
        begin = end;
    }
    return psd_all_reduce_coalesced(r->ctx, PSD_WORLD, list, PARTS, r->args->redop, 0, NULL);
}

static psd_status run_barrier(bench_run *r)
{
    return psd_barrier(r->ctx, PSD_WORLD, NULL);
}

/* Bytes that cross the slowest link of an ideal ring or tree, by the bytes of the operation: nccl-tests'
 * PERFORMANCE.md. */
static double factor_one(int32_t ranks)
{
    (void)ranks;
    return 1;
}

static double factor_part(int32_t ranks)
{
    return (double)(ranks - 1) / ranks;
}

static double factor_twice(int32_t ranks)
{
    return 2 * factor_part(ranks);
}

static const bench_op ops[] = {
    {.name = "all_reduce",
     .has_in = true,
     .reduces = true,
     .out_of_place = true,
     .in_place = true,
     .source = BENCH_FROM_ALL,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_twice,
     .run = run_all_reduce},
    {.name = "broadcast",
     .rooted = true,
     .in_place = true,
     .source = BENCH_FROM_ROOT,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_one,
     .run = run_broadcast},
    {.name = "reduce",
     .has_in = true,
     .out_on_root = true,
     .reduces = true,
     .rooted = true,
     .out_of_place = true,
     .in_place = true,
     .source = BENCH_FROM_ALL,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_one,
     .run = run_reduce},
    {.name = "scatter",
     .has_in = true,
     .in_many = true,
     .in_on_root = true,
     .rooted = true,
     .out_of_place = true,
     .result_by_rank = true,
     .source = BENCH_FROM_ROOT,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_part,
     .run = run_scatter},
    {.name = "gather",
     .has_in = true,
     .out_many = true,
     .out_on_root = true,
     .rooted = true,
     .out_of_place = true,
     .source = BENCH_FROM_BLOCK,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_part,
     .run = run_gather},
    {.name = "all_gather",
     .has_in = true,
     .out_many = true,
     .out_of_place = true,
     .in_place = true,
     .source = BENCH_FROM_BLOCK,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_part,
     .run = run_all_gather},
    {.name = "reduce_scatter",
     .has_in = true,
     .in_many = true,
     .reduces = true,
     .out_of_place = true,
     .in_place = true,
     .result_by_rank = true,
     .source = BENCH_FROM_ALL,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_part,
     .run = run_reduce_scatter},
    {.name = "all_to_all",
     .has_in = true,
     .in_many = true,
     .out_many = true,
     .out_of_place = true,
     .result_by_rank = true,
     .source = BENCH_FROM_BLOCK,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_part,
     .run = run_all_to_all},
    {.name = "all_to_all_v",
     .has_in = true,
     .in_many = true,
     .out_many = true,
     .out_of_place = true,
     .result_by_rank = true,
     .source = BENCH_FROM_BLOCK,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_part,
     .run = run_all_to_all_v},
    {.name = "all_reduce_coalesced",
     .has_in = true,
     .reduces = true,
     .in_place = true,
     .source = BENCH_FROM_ALL,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_twice,
     .run = run_coalesced},
    {.name = "send",
     .has_in = true,
     .out_of_place = true,
     .source = BENCH_FROM_OTHER,
     .least_ranks = 2,
     .divisor = 2,
     .bus_factor = factor_one,
     .run = run_ping_pong},
    {.name = "sendrecv",
     .has_in = true,
     .out_of_place = true,
     .source = BENCH_FROM_BEFORE,
     .least_ranks = 2,
     .divisor = 1,
     .bus_factor = factor_one,
     .run = run_sendrecv},
    {.name = "batch",
     .has_in = true,
     .out_of_place = true,
     .source = BENCH_FROM_BEFORE,
     .least_ranks = 2,
     .divisor = 1,
     .bus_factor = factor_one,
     .run = run_batch},
    {.name = "barrier",
     .out_of_place = true,
     .source = BENCH_FROM_NOBODY,
     .least_ranks = 1,
     .divisor = 1,
     .bus_factor = factor_one,
     .run = run_barrier},
};

#define OPS (sizeof ops / sizeof *ops)

const bench_op *bench_op_at(size_t index)
{
    return index < OPS ? &ops[index] : NULL;
}

const bench_op *bench_op_find(const char *name)
{
    for (size_t i = 0; i < OPS; i++) {
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    }
    return NULL;
}

/* Blocks of c elements in the larger of in and out. */
static int64_t blocks(const bench_run *run)
{
    const bench_op *op = run->args->op;
    if (op->source == BENCH_FROM_NOBODY)
        return 0;
    return op->in_many || op->out_many ? run->ranks : 1;
}

int64_t bench_bytes(const bench_run *run)
{
    return run->count * blocks(run) * (int64_t)psd_dtype_bytes(run->args->dtype);
}

int64_t bench_count(const bench_run *run, int64_t bytes)
{
    int64_t elements = bytes / (int64_t)psd_dtype_bytes(run->args->dtype);
    return blocks(run) == 0 ? 0 : elements / blocks(run);
}

static bool takes_part(const bench_run *run)
{
    return run->args->op->source != BENCH_FROM_OTHER || run->rank < 2;
}

bool bench_has_in(const bench_run *run)
{
    const bench_op *op = run->args->op;
    return op->has_in && takes_part(run) && (!op->in_on_root || run->rank == run->args->root);
}

bool bench_has_out(const bench_run *run)
{
    const bench_op *op = run->args->op;
    return op->source != BENCH_FROM_NOBODY && takes_part(run) &&
           (!op->out_on_root || run->rank == run->args->root);
}

void bench_bind(bench_run *run)
{
    const bench_op *op = run->args->op;
    size_t block = (size_t)run->count * psd_dtype_bytes(run->args->dtype);
    int64_t in_count = run->count * (op->in_many ? run->ranks : 1);
    int64_t out_count = run->count * (op->out_many ? run->ranks : 1);
    unsigned char *in = run->in_memory, *out = run->out_memory;
    for (int32_t i = 0; i < run->ranks; i++)
        run->splits[i] = run->count;
    if (run->in_place && op->in_many)
        out = in + block * (size_t)run->rank;
    else if (run->in_place)
        in = out + (op->out_many ? block * (size_t)run->rank : 0);
    run->in = psd_tensor_1d(in, bench_has_in(run) ? in_count : 0, run->args->dtype, "bench in");
    run->out = psd_tensor_1d(out, bench_has_out(run) ? out_count : 0, run->args->dtype, "bench out");
}
