/* A compiled plan: rounds of point-to-point steps between the ranks of a group, and its hash. */
#ifndef PSD_COMMON_PLAN_H
#define PSD_COMMON_PLAN_H

#include "common/msg.h"

/* One message of a plan. In a round a rank sends to at most one rank and receives from at most one. */
typedef struct psd_step {
    uint32_t round;
    uint32_t src; /* group ranks */
    uint32_t dst;
    uint64_t src_offset; /* bytes in src's input tensor */
    uint64_t dst_offset; /* bytes in dst's output tensor */
    uint64_t bytes;
} psd_step;

/* Value: steps in order of (round, src). Owned by whoever compiled it. */
typedef struct psd_plan_steps {
    psd_plan_inputs inputs;
    uint32_t rounds;
    uint64_t count;
    psd_step *steps;
} psd_plan_steps;

/* Hash (XXH64, chained step by step) of the steps of one rank, in the columns of PLAN_STEPS. Both sides
 * compute it with this function, so that agreeing on it means having the same steps. `seed` is 0 for the
 * first chunk, then the hash of the chunks before: how the steps are cut into chunks does not matter. */
uint64_t psd_plan_rank_hash(const psd_msg_plan_steps *columns, uint64_t seed);

#endif
