/* psd-bench: how its parts fit. Arguments (bench_args.c) choose a row of the table of operations
 * (bench_ops.c); for every size the buffers are filled with a pattern and checked against it
 * (bench_pattern.c), the operation is timed (bench_measure.c) and a line is printed (bench_report.c). It uses
 * psd.h as any program would, and common/ for names and the clock. */
#ifndef PSD_BENCH_H
#define PSD_BENCH_H

#include <stdio.h>

#include "common/clock.h"
#include "common/tensor.h"
#include "worker/psd.h"

typedef struct bench_op bench_op;

typedef struct bench_args {
    const bench_op *op;
    int64_t min_bytes;
    int64_t max_bytes;
    int64_t factor; /* from one size to the next, >= 2 */
    psd_dtype dtype;
    psd_redop redop;
    int32_t root;
    int32_t warmup;
    int32_t repetitions; /* 0: as many as fit in a fixed time */
    bool use_pool;       /* psd_tensor_alloc, else malloc */
    bool check;
    bool json;
} bench_args;

/* Where the elements of a block of the result come from. */
typedef enum bench_source {
    BENCH_FROM_NOBODY = 0,
    BENCH_FROM_ROOT,
    BENCH_FROM_BLOCK,  /* block b from rank b */
    BENCH_FROM_BEFORE, /* the rank before this one in the ring */
    BENCH_FROM_OTHER,  /* rank 0 from 1, rank 1 from 0 */
    BENCH_FROM_ALL,    /* reduced */
} bench_source;

typedef struct bench_run {
    psd_ctx *ctx;
    const bench_args *args;
    int32_t rank;
    int32_t ranks;
    unsigned char *in_memory; /* max_bytes each */
    unsigned char *out_memory;
    int64_t *splits; /* all_to_all_v's: count for each rank */
    int64_t count;   /* the c of psd.h's table */
    bool in_place;
    psd_tensor in; /* for this size; count 0 where this rank has none */
    psd_tensor out;
} bench_run;

struct bench_op {
    const char *name;
    bool has_in;  /* somewhere */
    bool in_many; /* n*c elements, else c */
    bool out_many;
    bool in_on_root; /* only there */
    bool out_on_root;
    bool reduces;
    bool rooted;
    bool out_of_place; /* can run so */
    bool in_place;
    bool result_by_rank; /* the result is this rank's part: it starts at element rank * c */
    bench_source source;
    int32_t least_ranks;
    int32_t divisor;                     /* operations in one run: the ping-pong's two */
    double (*bus_factor)(int32_t ranks); /* busbw = algbw times this, as nccl-tests has it */
    psd_status (*run)(bench_run *run);
};

/* One measurement. Times are of the slowest rank. */
typedef struct bench_result {
    double time_us;
    double algbw_gbs;
    double busbw_gbs;
    int64_t wrong; /* elements, over all ranks; -1: not checked */
} bench_result;

/* bench_args.c: 0; or 1 after help or version was printed (exit 0); or 2 after a usage error was printed. */
int bench_args_parse(int argc, char **argv, bench_args *out);

/* bench_ops.c */
const bench_op *bench_op_find(const char *name);          /* NULL if there is none */
const bench_op *bench_op_at(size_t index);                /* NULL beyond the end */
int64_t bench_bytes(const bench_run *run);                /* size column: of the larger of in and out */
int64_t bench_count(const bench_run *run, int64_t bytes); /* c for about so many bytes */
bool bench_has_in(const bench_run *run);                  /* this rank */
bool bench_has_out(const bench_run *run);
void bench_bind(bench_run *run); /* sets in and out for count and in_place */

/* bench_pattern.c: fills `in` (for broadcast: out on the root) and spoils `out`; counts the elements of out
 * that are wrong. False or -1 when memory is out. */
bool bench_fill(const bench_run *run);
int64_t bench_wrong(const bench_run *run);

/* bench_measure.c: all ranks call it together. */
psd_status bench_measure(bench_run *run, bench_result *out);

/* bench_report.c: rank 0 prints; the header is a collective call. Results may be NULL: not possible in that
 * way. */
psd_status bench_report_header(const bench_run *run);
void bench_report_row(const bench_run *run, const bench_result *out_of_place, const bench_result *in_place);
void bench_report_end(const bench_run *run, double busbw_sum, int64_t measured, int64_t wrong);

#endif
