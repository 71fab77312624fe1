/* Collectives: scenarios 13, 17, 18 and 21, and their neighbours. */
#include <string.h>

#include "tests/scenarios/scenario.h"

#define EACH 50 /* elements of a rank */

static psd_dtype dtype_here = PSD_F32;
static psd_redop redop_here = PSD_SUM;
static int32_t root_here;

/* The operation of that name, of `count` elements each. */
static psd_status call(const char *op, int64_t count, const char *name, int line)
{
    psd_tensor one = psd_tensor_1d(memory[0], count, dtype_here, name);
    psd_tensor all = psd_tensor_1d(memory[1], count * size, dtype_here, name);
    psd_tensor out = psd_tensor_1d(memory[2], count * size, dtype_here, name);
    psd_tensor out_one = psd_tensor_1d(memory[2], count, dtype_here, name);
    if (strcmp(op, "broadcast") == 0)
        return psd_broadcast_at(__FILE__, line, ctx, group, &one, root_here, NULL);
    if (strcmp(op, "all_reduce") == 0)
        return psd_all_reduce_at(__FILE__, line, ctx, group, &one, &one, redop_here, NULL);
    if (strcmp(op, "reduce") == 0)
        return psd_reduce_at(__FILE__, line, ctx, group, &one, &one, redop_here, root_here, NULL);
    if (strcmp(op, "scatter") == 0)
        return psd_scatter_at(__FILE__, line, ctx, group, &all, &one, root_here, NULL);
    if (strcmp(op, "gather") == 0)
        return psd_gather_at(__FILE__, line, ctx, group, &one, &all, root_here, NULL);
    if (strcmp(op, "all_gather") == 0)
        return psd_all_gather_at(__FILE__, line, ctx, group, &one, &all, NULL);
    if (strcmp(op, "reduce_scatter") == 0)
        return psd_reduce_scatter_at(__FILE__, line, ctx, group, &all, &out_one, redop_here, NULL);
    if (strcmp(op, "all_to_all") == 0)
        return psd_all_to_all_at(__FILE__, line, ctx, group, &all, &out, NULL);
    return psd_barrier_at(__FILE__, line, ctx, group, NULL);
}

/* 13: one rank (at=) gives another count, dtype, root or reduction (what=), or calls something else. */
static void disagree(void)
{
    const char *op = parameter_text("op", "all_gather"), *what = parameter_text("what", "count");
    bool other = wrong && rank == parameter("at", 0);
    int64_t count = parameter("count", EACH);
    if (other && strcmp(what, "count") == 0)
        count--;
    if (other && strcmp(what, "dtype") == 0)
        dtype_here = PSD_I32;
    if (other && strcmp(what, "root") == 0)
        root_here = 1;
    if (other && strcmp(what, "redop") == 0)
        redop_here = PSD_MAX;
    if (other && strcmp(what, "kind") == 0)
        op = "barrier";
    TRY(call(op, count, "part", __LINE__)); /* @disagree */
    TRY(psd_barrier(ctx, group, NULL));
}

/* 17: the order of tensors diverged: rank 0's first is large and of f16, the others' small and of i64. */
static void tensor_order(void)
{
    psd_tensor large = psd_tensor_1d(memory[0], MANY, PSD_F16, "weight");
    psd_tensor small = psd_tensor_1d(memory[1], 1, PSD_I64, "steps");
    bool swapped = wrong && rank == 0;
    TRY(psd_broadcast(ctx, group, swapped ? &large : &small, 0, NULL)); /* @tensor_order */
    TRY(psd_broadcast(ctx, group, swapped ? &small : &large, 0, NULL));
    TRY(psd_barrier(ctx, group, NULL));
}

/* 18: rank `at` sends to rank 0 one element fewer than that expects. */
static void splits(void)
{
    int64_t to[64], from[64], sum = 0;
    int32_t at = (int32_t)parameter("at", 1);
    for (int32_t i = 0; i < size; i++) {
        to[i] = 4 + rank + i;
        from[i] = 4 + rank + i;
        sum += to[i];
    }
    bool other = wrong && rank == at;
    to[0] -= other;
    psd_tensor in = tensor(0, sum - other, "tokens"), out = tensor(1, sum, "experts");
    TRY(psd_all_to_all_v(ctx, group, &in, to, &out, from, NULL)); /* @splits */
    TRY(psd_barrier(ctx, group, NULL));
}

/* 21: one rank leaves out one of many; with sizes=1 each has its own size. */
static void skip(void)
{
    const char *op = parameter_text("op", "reduce_scatter");
    bool has_sizes = parameter("sizes", 0) != 0;
    for (int i = 0; i < 6; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "grad%d", i);
        if (wrong && i == 2 && rank == parameter("at", 1))
            continue;
        TRY(call(op, EACH + (has_sizes ? i : 0), name, __LINE__)); /* @skip */
    }
}

const scenario scenarios_collectives[] = {
    {"disagree", disagree}, {"tensor_order", tensor_order}, {"splits", splits}, {"skip", skip}, {NULL, NULL},
};
