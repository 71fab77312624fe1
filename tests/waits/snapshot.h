/* A state of a program as server/core/waits.h wants it. */
#ifndef PSD_TEST_WAITS_SNAPSHOT_H
#define PSD_TEST_WAITS_SNAPSHOT_H

#include "server/core/waits.h"
#include "tests/waits/model.h"

typedef struct snapshot {
    waits_input input;
    waits_rank ranks[MOST_RANKS];
    waits_thread threads[MOST_THREADS];
    int thread_of[MOST_THREADS]; /* the program's, by the snapshot's */
    uint32_t works[MOST_THREADS * MOST_OPS];
    waits_unit units[MOST_OPS];
    int unit_of[MOST_OPS]; /* the snapshot's, by the program's; -1 */
    waits_op ops[MOST_OPS];
    int op_of[MOST_OPS]; /* the program's, by the snapshot's */
    waits_group groups[MOST_GROUPS];
    uint32_t members[MOST_GROUPS][MOST_RANKS];
    uint64_t started[MOST_GROUPS][MOST_RANKS];
    waits_pair pairs[MOST_RANKS * MOST_RANKS];
} snapshot;

/* `with_past`: also of what is complete. */
void snapshot_take(const program *p, const state *s, bool with_past, snapshot *out);

#endif
