/* One measurement. A repetition is a barrier, then a batch of operations back to back, long enough that the
 * barrier's uneven exit does not count; its time is that of the slowest rank, and the median of the
 * repetitions is the result. */
#include <stdlib.h>

#include "worker/bench/bench.h"

#define BATCH_NS       (200 * INT64_C(1000))
#define BATCH_MAX      200
#define ADAPTIVE_NS    (200 * PSD_NS_PER_MS)
#define ADAPTIVE_LEAST 7
#define ADAPTIVE_MOST  100

static psd_status run_batch(bench_run *run, int64_t batch, double *ns_each)
{
    psd_status status = psd_barrier(run->ctx, PSD_WORLD, NULL);
    psd_time_ns begin = psd_now_ns();
    for (int64_t i = 0; status == PSD_OK && i < batch; i++)
        status = run->args->op->run(run);
    if (status == PSD_OK)
        *ns_each = (double)(psd_now_ns() - begin) / (double)batch;
    return status;
}

static psd_status slowest(const bench_run *run, double *ns, int64_t count)
{
    psd_tensor times = psd_tensor_1d(ns, count, PSD_F64, "bench times");
    return psd_all_reduce(run->ctx, PSD_WORLD, &times, &times, PSD_MAX, NULL);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *ns, int64_t count)
{
    qsort(ns, (size_t)count, sizeof *ns, by_value);
    return count % 2 ? ns[count / 2] : (ns[count / 2 - 1] + ns[count / 2]) / 2;
}

static int64_t clamp(double value, int64_t low, int64_t high)
{
    return value < (double)low ? low : value > (double)high ? high : (int64_t)value;
}

/* All ranks come to the same numbers: from the estimate of the slowest. */
static void choose_repetitions(const bench_run *run, double estimate_ns, int64_t *batch, int64_t *repetitions)
{
    double each = estimate_ns > 1 ? estimate_ns : 1;
    *batch = clamp((double)BATCH_NS / each, 1, BATCH_MAX);
    *repetitions = run->args->repetitions;
    if (*repetitions == 0)
        *repetitions = clamp((double)ADAPTIVE_NS / (each * (double)*batch), ADAPTIVE_LEAST, ADAPTIVE_MOST);
}

static psd_status time_it(bench_run *run, double *ns_out)
{
    double estimate = 0, *ns = NULL;
    int64_t batch = 1, repetitions = 1;
    psd_status status = PSD_OK;
    if (run->args->warmup > 0)
        status = run_batch(run, run->args->warmup, &estimate);
    if (status == PSD_OK)
        status = run_batch(run, 1, &estimate); /* warm by now */
    if (status == PSD_OK)
        status = slowest(run, &estimate, 1);
    if (status != PSD_OK)
        return status;
    choose_repetitions(run, estimate, &batch, &repetitions);
    ns = calloc((size_t)repetitions, sizeof *ns);
    if (ns == NULL)
        return PSD_ERR_NOMEM;
    for (int64_t i = 0; status == PSD_OK && i < repetitions; i++)
        status = run_batch(run, batch, &ns[i]);
    if (status == PSD_OK)
        status = slowest(run, ns, repetitions);
    if (status == PSD_OK)
        *ns_out = median(ns, repetitions);
    free(ns);
    return status;
}

/* Elements wrong on all ranks together. */
static psd_status add_wrong(const bench_run *run, int64_t *wrong)
{
    int64_t mine = bench_wrong(run);
    if (mine < 0)
        return PSD_ERR_NOMEM;
    psd_tensor all = psd_tensor_1d(&mine, 1, PSD_I64, "bench wrong");
    psd_status status = psd_all_reduce(run->ctx, PSD_WORLD, &all, &all, PSD_SUM, NULL);
    if (status == PSD_OK)
        *wrong += mine;
    return status;
}

/* The first run is checked; out of place, where the input survives, the last as well. */
psd_status bench_measure(bench_run *run, bench_result *out)
{
    bench_result result = {.wrong = run->args->check ? 0 : -1};
    double ns = 0;
    bench_bind(run);
    psd_status status = bench_fill(run) ? PSD_OK : PSD_ERR_NOMEM;
    if (status == PSD_OK && run->args->check) {
        status = run->args->op->run(run);
        if (status == PSD_OK)
            status = add_wrong(run, &result.wrong);
    }
    if (status == PSD_OK)
        status = time_it(run, &ns);
    if (status == PSD_OK && run->args->check && !run->in_place)
        status = add_wrong(run, &result.wrong);
    if (status != PSD_OK)
        return status;
    ns /= run->args->op->divisor;
    result.time_us = ns / 1000;
    result.algbw_gbs = ns > 0 ? (double)bench_bytes(run) / ns : 0;
    result.busbw_gbs = result.algbw_gbs * run->args->op->bus_factor(run->ranks);
    *out = result;
    return PSD_OK;
}
