/* The conformance suite's bookkeeping: cells, their outcomes on all ranks, the table and the comparison with
 * cells.txt.
 *
 * A cell is one operation with one set of arguments. All ranks run the same cells in the same order (a rank
 * that is not in a cell's group records it as passed); a cell passes when it does on every rank. */
#ifndef PSD_CONFORMANCE_SUITE_H
#define PSD_CONFORMANCE_SUITE_H

#include "tests/conformance/reference.h"
#include "psd.h"

typedef enum outcome {
    OUTCOME_FAILED = 0, /* the order matters: the least over the ranks is the cell's */
    OUTCOME_SKIPPED = 1,
    OUTCOME_PASSED = 2,
} outcome;

#define SUITE_GROUPS 4
#define SUITE_ROWS   32

typedef struct suite_group {
    const char *name;
    psd_group handle;
    int32_t rank;
    int32_t size;
} suite_group;

/* How much is tried. */
typedef enum suite_extent {
    SUITE_FULL,    /* everything, 64 MiB for every operation */
    SUITE_QUICK,   /* everything, few large ones */
    SUITE_REDUCED, /* a few dtypes, sizes and groups of each operation: for backends that are slow to try */
} suite_extent;

typedef struct suite {
    psd_ctx *ctx;
    int32_t rank;
    int32_t ranks;
    suite_extent extent;
    bool on_device; /* tensors are in the memory of a device */
    bool has_tags;  /* and any source */
    bool has_bit_ops;
    bool finds_mismatches;            /* between ranks, where they meet */
    bool sums_in_rank_order;          /* as psd.h promises for what psd itself adds */
    suite_group groups[SUITE_GROUPS]; /* world, half, reversed, dup */
    const char *rows[SUITE_ROWS];     /* names of operations, in order of appearance */
    int row_count;
    struct suite_cell *cells;
    int64_t cell_count;
    int64_t cell_capacity;
    int64_t complaints;
    bool is_broken; /* an unexpected error: what follows cannot be judged */
} suite;

psd_status suite_begin(suite *s, suite_extent extent); /* joins the job, makes the groups */
/* Joins the outcomes; rank 0 prints, and compares with the file if not NULL. True if all is well. */
bool suite_end(suite *s, const char *cells_path);

/* Records one cell of operation `row` (a string that stays) and dtype (0: none). A failed one is described on
 * stderr. */
__attribute__((format(printf, 5, 6))) void suite_record(suite *s, const char *row, psd_dtype dtype,
                                                        outcome result, const char *format, ...);

/* The outcome of a call that should have worked: PASSED, else FAILED and the error is printed. */
outcome suite_judge(suite *s, psd_status status);
/* Of a call that this backend cannot do, if `cannot`: SKIPPED when it is refused with PSD_ERR_UNSUPPORTED and a
 * sentence, FAILED when it is not. */
outcome suite_judge_refusal(suite *s, psd_status status, bool cannot);

/* A buffer with guards around it; `data` is not aligned to more than an element. NULL data on no memory,
 * which fails the suite. Where tensors are in a device's memory it has a twin there, else now and then one from
 * psd_tensor_alloc. */
typedef struct guarded {
    unsigned char *memory;
    unsigned char *data;
    size_t bytes;
    psd_tensor twin; /* of `memory`; data NULL: none */
} guarded;

guarded guarded_new(suite *s, size_t bytes);
bool guarded_intact(const guarded *buffer);
void guarded_free(suite *s, guarded *buffer); /* accepts what was never made */
/* A tensor of elements from `at` on, a place in `buffer`: there, or in its twin. */
psd_tensor guarded_tensor(const guarded *buffer, const void *at, int64_t count, psd_dtype dtype,
                          const char *name);
/* To the twin before the operations, and back after they are complete. Nothing without one. */
psd_status guarded_give(suite *s, const guarded *buffer);
psd_status guarded_take(suite *s, guarded *buffer);

/* The parts, each over all its cells. */
void suite_collectives(suite *s);
void suite_p2p(suite *s);
void suite_bad_calls(suite *s);
void suite_mismatches(suite *s);

#endif
