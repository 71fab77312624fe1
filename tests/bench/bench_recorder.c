/* What recording costs: nanoseconds to begin and end one operation's record, both readings of the clock
 * included, with the recorder on and off, and to publish one wait; beside them the clock alone. Medians of
 * runs of a tight loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/recorder.h"

#define RUNS 31
#define OPS  20000

typedef void (*bench_body)(psd_recorder *recorder);

static void record_operations(psd_recorder *recorder)
{
    static float x[4];
    const psd_tensor tensor = psd_tensor_1d(x, 4, PSD_F32, "layer1.weight.grad");
    psd_record_start start = {
        .kind = PSD_OP_ALL_REDUCE,
        .redop = PSD_SUM,
        .tensor = &tensor,
        .count = 4,
        .peer = -1,
        .group = 1,
        .epoch = 1,
        .file = __FILE__,
        .line = __LINE__,
    };
    for (uint64_t i = 0; i < OPS; i++) {
        start.now = psd_now_ns();
        uint64_t seq = psd_record_begin(recorder, &start);
        psd_record_end(recorder, seq, PSD_OK, -1, i);
    }
}

static void wait_records(psd_recorder *recorder)
{
    const uint64_t seq = 1;
    for (uint64_t i = 0; i < OPS; i++)
        psd_record_wait_end(recorder, psd_record_wait_begin(recorder, &seq, 1, PSD_WAIT_ALL));
}

static void read_clock(psd_recorder *recorder)
{
    (void)recorder;
    for (uint64_t i = 0; i < OPS; i++)
        (void)psd_now_ns();
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, bench_body body, psd_recorder *recorder)
{
    double ns[RUNS];
    body(recorder); /* warm */
    for (int run = 0; run < RUNS; run++) {
        psd_time_ns begun = psd_now_ns();
        body(recorder);
        ns[run] = (double)(psd_now_ns() - begun) / OPS;
    }
    qsort(ns, RUNS, sizeof *ns, by_value);
    printf("%-34s %8.1f %8.1f %8.1f\n", what, ns[RUNS / 2], ns[0], ns[RUNS - 1]);
}

int main(void)
{
    psd_recorder on, off;
    psd_recorder_config config = {.ident = {.job = "bench", .name = "w", .incarnation = 1}};
    if (psd_recorder_open(&on, &config) != PSD_OK)
        return fprintf(stderr, "bench_recorder: out of memory\n"), 1;
    config.off = true;
    if (psd_recorder_open(&off, &config) != PSD_OK)
        return fprintf(stderr, "bench_recorder: out of memory\n"), 1;
    printf("bench_recorder: %d runs of %d, records of %zu bytes, ring of %d\n", RUNS, OPS, sizeof(psd_record),
           PSD_RECORD_RING);
    printf("%-34s %8s %8s %8s\n", "ns each", "median", "best", "worst");
    report("record begin + end, on", record_operations, &on);
    report("record begin + end, off", record_operations, &off);
    report("wait record begin + end, on", wait_records, &on);
    report("psd_now_ns", read_clock, &off);
    psd_recorder_close(&on);
    psd_recorder_close(&off);
    return 0;
}
