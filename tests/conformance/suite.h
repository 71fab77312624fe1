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

typedef struct suite {
    psd_ctx *ctx;
    int32_t rank;
    int32_t ranks;
    bool quick;
    suite_group groups[SUITE_GROUPS]; /* world, half, reversed, dup */
    const char *rows[SUITE_ROWS];     /* names of operations, in order of appearance */
    int row_count;
    struct suite_cell *cells;
    int64_t cell_count;
    int64_t cell_capacity;
    int64_t complaints;
    bool is_broken; /* an unexpected error: what follows cannot be judged */
} suite;

psd_status suite_begin(suite *s, bool quick); /* joins the job, makes the groups */
/* Joins the outcomes; rank 0 prints, and compares with the file if not NULL. True if all is well. */
bool suite_end(suite *s, const char *cells_path);

/* Records one cell of operation `row` (a string that stays) and dtype (0: none). A failed one is described on
 * stderr. */
__attribute__((format(printf, 5, 6))) void suite_record(suite *s, const char *row, psd_dtype dtype,
                                                        outcome result, const char *format, ...);

/* The outcome of a call that should have worked: PASSED, SKIPPED when the backend cannot, else FAILED and the
 * error is printed. */
outcome suite_judge(suite *s, psd_status status);

/* A buffer with guards around it; `data` is not aligned to more than an element. NULL data on no memory,
 * which fails the suite. */
typedef struct guarded {
    unsigned char *memory;
    unsigned char *data;
    size_t bytes;
} guarded;

guarded guarded_new(size_t bytes);
bool guarded_intact(const guarded *buffer);
void guarded_free(guarded *buffer); /* accepts what was never made */

/* The parts, each over all its cells. */
void suite_collectives(suite *s);
void suite_p2p(suite *s);
void suite_bad_calls(suite *s);
void suite_mismatches(suite *s);

#endif
