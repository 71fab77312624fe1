/* psd-bench: times psd's operations over a range of sizes. The parts are in worker/bench/. */
#include <stdlib.h>

#include "worker/bench/bench.h"

typedef struct totals {
    double busbw;
    int64_t measured;
    int64_t wrong;
} totals;

static void complain(const bench_run *run, psd_status status)
{
    const char *text = psd_last_error();
    fprintf(stderr, "psd-bench: rank %d: %s\n", run->rank, text[0] != '\0' ? text : psd_status_text(status));
}

static void add(totals *sum, const bench_result *result)
{
    sum->busbw += result->busbw_gbs;
    sum->measured++;
    sum->wrong += result->wrong > 0 ? result->wrong : 0;
}

static psd_status run_size(bench_run *run, int64_t bytes, totals *sum)
{
    const bench_op *op = run->args->op;
    bench_result out_of_place, in_place;
    psd_status status = PSD_OK;
    run->count = bench_count(run, bytes);
    if (op->out_of_place) {
        run->in_place = false;
        status = bench_measure(run, &out_of_place);
    }
    if (status == PSD_OK && op->in_place) {
        run->in_place = true;
        status = bench_measure(run, &in_place);
    }
    if (status != PSD_OK)
        return status;
    if (op->out_of_place)
        add(sum, &out_of_place);
    if (op->in_place)
        add(sum, &in_place);
    bench_report_row(run, op->out_of_place ? &out_of_place : NULL, op->in_place ? &in_place : NULL);
    return PSD_OK;
}

static psd_status run_sizes(bench_run *run, totals *sum)
{
    const bench_args *args = run->args;
    int64_t bytes = args->min_bytes;
    psd_status status = bench_report_header(run);
    while (status == PSD_OK) {
        status = run_size(run, bytes, sum);
        /* The barrier has one size; from 0 the next is one element. */
        int64_t next = bytes == 0 ? (int64_t)psd_dtype_bytes(args->dtype) : bytes * args->factor;
        if (args->op->source == BENCH_FROM_NOBODY || bytes > args->max_bytes / args->factor ||
            next > args->max_bytes)
            break;
        bytes = next;
    }
    return status;
}

static psd_status get_memory(bench_run *run, psd_tensor *in, psd_tensor *out)
{
    int64_t bytes = run->args->max_bytes > 0 ? run->args->max_bytes : 1;
    psd_status status = PSD_OK;
    if (!run->args->use_pool) {
        in->data = malloc((size_t)bytes);
        out->data = malloc((size_t)bytes);
        status = in->data != NULL && out->data != NULL ? PSD_OK : PSD_ERR_NOMEM;
        if (status != PSD_OK)
            fprintf(
                stderr,
                "psd-bench: rank %d: two buffers of %lld bytes do not fit in memory: choose a smaller -e\n",
                run->rank, (long long)bytes);
    } else {
        status = psd_tensor_alloc(run->ctx, &bytes, 1, PSD_U8, "bench in", in);
        if (status == PSD_OK)
            status = psd_tensor_alloc(run->ctx, &bytes, 1, PSD_U8, "bench out", out);
        if (status != PSD_OK)
            complain(run, status);
    }
    run->in_memory = in->data;
    run->out_memory = out->data;
    return status;
}

static void free_memory(bench_run *run, psd_tensor *in, psd_tensor *out)
{
    if (run->args->use_pool) {
        (void)psd_tensor_free(run->ctx, in);
        (void)psd_tensor_free(run->ctx, out);
    } else {
        free(in->data);
        free(out->data);
    }
}

static int bench_in_world(bench_run *run)
{
    const bench_args *args = run->args;
    psd_tensor in = {.data = NULL}, out = {.data = NULL};
    totals sum = {0};
    if (run->ranks < args->op->least_ranks || (args->op->rooted && args->root >= run->ranks)) {
        if (run->rank == 0)
            fprintf(stderr, "psd-bench: %s with %d ranks: needs at least %d, and root %d among them\n",
                    args->op->name, run->ranks, args->op->least_ranks, args->root);
        return 2;
    }
    run->splits = calloc((size_t)run->ranks, sizeof *run->splits);
    if (run->splits == NULL) {
        complain(run, PSD_ERR_NOMEM);
        return 1;
    }
    psd_status status = get_memory(run, &in, &out);
    if (status == PSD_OK) {
        status = run_sizes(run, &sum);
        if (status != PSD_OK)
            complain(run, status);
    }
    if (status == PSD_OK)
        bench_report_end(run, sum.busbw, sum.measured, sum.wrong);
    free_memory(run, &in, &out);
    free(run->splits);
    return status == PSD_OK && sum.wrong == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    bench_args args;
    int code = bench_args_parse(argc, argv, &args);
    if (code != 0)
        return code == 1 ? 0 : code;
    bench_run run = {.args = &args};
    psd_status status = psd_init(NULL, &run.ctx);
    if (status != PSD_OK) {
        fprintf(stderr, "psd-bench: %s\n", psd_last_error());
        return 1;
    }
    run.rank = psd_rank(run.ctx);
    run.ranks = psd_world_size(run.ctx);
    code = bench_in_world(&run);
    status = psd_finalize(&run.ctx);
    if (status != PSD_OK && code == 0) {
        complain(&run, status);
        code = 1;
    }
    return code;
}
