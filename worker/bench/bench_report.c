/* What psd-bench prints: nccl-tests' columns, or one JSON object a line. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/bench/bench.h"

#define HOST_BYTES 64

typedef struct rank_card {
    char host[HOST_BYTES];
    int64_t pid;
} rank_card;

static const char *buffer_name(const bench_run *run)
{
    return run->args->use_pool ? "psd" : "malloc";
}

static const char *redop_name(const bench_run *run)
{
    return run->args->op->reduces ? psd_redop_name(run->args->redop) : "none";
}

static int32_t root_of(const bench_run *run)
{
    return run->args->op->rooted ? run->args->root : -1;
}

static void print_header(const bench_run *run, const rank_card *cards)
{
    printf("# psd-bench %s %s: backend %s, %d rank%s, %s memory, check %s\n", psd_version(),
           run->args->op->name, psd_backend_name(run->ctx), run->ranks, run->ranks == 1 ? "" : "s",
           buffer_name(run), run->args->check ? "on" : "off");
    printf("# time: median over repetitions of the slowest rank%s\n",
           run->args->op->divisor == 2 ? ", half of a round trip" : "");
    for (int32_t i = 0; i < run->ranks; i++)
        printf("#   rank %3d pid %7" PRId64 " on %.*s\n", i, cards[i].pid, HOST_BYTES - 1, cards[i].host);
    printf("#\n# %54s %34s      %30s\n", "", "out-of-place", "in-place");
    printf("# %10s %12s %8s %7s %6s", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; i++)
        printf("  %9s %7s %7s %6s", "time", "algbw", "busbw", "#wrong");
    printf("\n# %10s %12s %8s %7s %6s", "(B)", "(elements)", "", "", "");
    for (int i = 0; i < 2; i++)
        printf("  %9s %7s %7s %6s", "(us)", "(GB/s)", "(GB/s)", "");
    printf("\n");
    fflush(stdout);
}

psd_status bench_report_header(const bench_run *run)
{
    rank_card mine = {.pid = (int64_t)getpid()};
    rank_card *cards = calloc((size_t)run->ranks, sizeof *cards);
    if (cards == NULL)
        return PSD_ERR_NOMEM;
    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        memcpy(mine.host, "?", 2);
    psd_tensor in = psd_tensor_1d(&mine, (int64_t)sizeof mine, PSD_U8, "bench host");
    psd_tensor out = psd_tensor_1d(cards, (int64_t)sizeof mine * run->ranks, PSD_U8, "bench hosts");
    psd_status status = psd_all_gather(run->ctx, PSD_WORLD, &in, &out, NULL);
    if (status == PSD_OK && run->rank == 0 && !run->args->json)
        print_header(run, cards);
    free(cards);
    return status;
}

static void print_cells(const bench_result *result)
{
    if (result == NULL) {
        printf("  %9s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    printf("  %9.2f %7.2f %7.2f ", result->time_us, result->algbw_gbs, result->busbw_gbs);
    if (result->wrong < 0)
        printf("%6s", "N/A");
    else
        printf("%6" PRId64, result->wrong);
}

static void print_json(const bench_run *run, const bench_result *result, bool in_place)
{
    if (result == NULL)
        return;
    printf("{\"op\":\"%s\",\"bytes\":%" PRId64 ",\"count\":%" PRId64
           ",\"type\":\"%s\",\"redop\":\"%s\",\"root\":%d,"
           "\"ranks\":%d,\"buffer\":\"%s\",\"in_place\":%s,\"time_us\":%.3f,\"algbw_gbs\":%.4f,\"busbw_gbs\":"
           "%.4f,"
           "\"wrong\":",
           run->args->op->name, bench_bytes(run), run->count, psd_dtype_name(run->args->dtype),
           redop_name(run), root_of(run), run->ranks, buffer_name(run), in_place ? "true" : "false",
           result->time_us, result->algbw_gbs, result->busbw_gbs);
    if (result->wrong < 0)
        printf("null}\n");
    else
        printf("%" PRId64 "}\n", result->wrong);
}

void bench_report_row(const bench_run *run, const bench_result *out_of_place, const bench_result *in_place)
{
    if (run->rank != 0)
        return;
    if (run->args->json) {
        print_json(run, out_of_place, false);
        print_json(run, in_place, true);
    } else {
        printf("  %10" PRId64 " %12" PRId64 " %8s %7s %6d", bench_bytes(run), run->count,
               psd_dtype_name(run->args->dtype), redop_name(run), root_of(run));
        print_cells(out_of_place);
        print_cells(in_place);
        printf("\n");
    }
    fflush(stdout);
}

void bench_report_end(const bench_run *run, double busbw_sum, int64_t measured, int64_t wrong)
{
    if (run->rank != 0 || run->args->json)
        return;
    if (run->args->check)
        printf("# Out of bounds values : %" PRId64 " %s\n", wrong, wrong == 0 ? "OK" : "FAILED");
    printf("# Avg bus bandwidth    : %.4f\n", measured > 0 ? busbw_sum / (double)measured : 0);
    fflush(stdout);
}
