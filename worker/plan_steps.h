/* This rank's steps of a plan, collected from the coordinator's chunks and checked: nothing that psd sends is
 * run before it is proven to stay inside the tensors and to fill the result exactly once. Pure. */
#ifndef PSD_PLAN_STEPS_H
#define PSD_PLAN_STEPS_H

#include <stdbool.h>

#include "common/plan.h"

typedef struct plan_step {
    uint32_t round;
    uint32_t peer; /* group rank */
    bool is_send;
    uint64_t offset; /* bytes in the source or destination */
    uint64_t bytes;
} plan_step;

typedef struct plan_list {
    uint32_t plan;
    uint32_t ranks;
    uint64_t tensor_bytes;
    uint64_t expected_hash;
    uint64_t hash; /* over the chunks so far */
    uint32_t chunks;
    uint32_t chunk; /* next one */
    uint32_t rounds;
    size_t count;
    plan_step *steps; /* by round; in each at most one send and one receive */
} plan_list;

/* Begins an empty list for a plan over `ranks` ranks with tensors of this size. */
void plan_list_begin(plan_list *list, uint32_t ranks, uint64_t tensor_bytes);
void plan_list_free(plan_list *list);

/* Adds the next chunk. PSD_ERR_PROTOCOL, with a sentence, for a step that is out of bounds or out of order,
 * or a chunk that does not belong. */
psd_status plan_list_add(plan_list *list, const psd_msg_plan_steps *chunk, char *why, size_t why_bytes);
static inline bool plan_list_complete(const plan_list *list)
{
    return list->chunk > 0 && list->chunk == list->chunks;
}

/* After the last chunk: the hash is the one psd announced, and the receives fill the tensor exactly once. */
psd_status plan_list_finish(const plan_list *list, char *why, size_t why_bytes);

#endif
