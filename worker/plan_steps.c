#include "worker/plan_steps.h"

#include <stdio.h>
#include <stdlib.h>

void plan_list_begin(plan_list *list, uint32_t ranks, uint64_t tensor_bytes)
{
    *list = (plan_list){.ranks = ranks, .tensor_bytes = tensor_bytes};
}

void plan_list_free(plan_list *list)
{
    free(list->steps);
    *list = (plan_list){.ranks = 0};
}

/* Does the chunk continue this plan? The first one says what the others must repeat. */
static bool chunk_fits(plan_list *list, const psd_msg_plan_steps *chunk)
{
    if (list->chunk == 0) {
        list->plan = chunk->plan;
        list->expected_hash = chunk->hash;
        list->chunks = chunk->chunks;
        list->rounds = chunk->rounds;
    }
    return chunk->chunk == list->chunk && chunk->chunk < chunk->chunks && chunk->plan == list->plan &&
           chunk->chunks == list->chunks && chunk->rounds == list->rounds &&
           chunk->hash == list->expected_hash && (chunk->count > 0 || chunk->chunks == 1);
}

/* Behind the last step: a later round, or the other direction in the same round. */
static bool order_fits(const plan_list *list, const plan_step *step)
{
    if (list->count == 0)
        return true;
    const plan_step *last = &list->steps[list->count - 1];
    if (step->round != last->round)
        return step->round > last->round;
    bool third = list->count > 1 && last[-1].round == step->round;
    return !third && step->is_send != last->is_send;
}

psd_status plan_list_add(plan_list *list, const psd_msg_plan_steps *chunk, char *why, size_t why_bytes)
{
    if (!chunk_fits(list, chunk)) {
        snprintf(why, why_bytes,
                 "chunk %u of %u (%u steps) of plan %u does not continue chunk %u of %u of plan %u",
                 chunk->chunk, chunk->chunks, chunk->count, chunk->plan, list->chunk, list->chunks,
                 list->plan);
        return PSD_ERR_PROTOCOL;
    }
    plan_step *grown = realloc(list->steps, (list->count + chunk->count + 1) * sizeof(*grown));
    if (grown == NULL) {
        snprintf(why, why_bytes, "out of memory for %zu steps", list->count + chunk->count);
        return PSD_ERR_NOMEM;
    }
    list->steps = grown;
    for (uint32_t i = 0; i < chunk->count; i++) {
        plan_step step = {chunk->round[i], chunk->peer[i], chunk->is_send[i] != 0, chunk->offset[i],
                          chunk->bytes[i]};
        bool inside = step.bytes > 0 && step.bytes <= list->tensor_bytes &&
                      step.offset <= list->tensor_bytes - step.bytes;
        if (step.round >= list->rounds || step.peer >= list->ranks || !inside || !order_fits(list, &step)) {
            snprintf(why, why_bytes,
                     "step %zu of plan %u is not valid: round %u of %u, peer %u of %u, bytes %llu at %llu of "
                     "%llu, or order",
                     list->count, list->plan, step.round, list->rounds, step.peer, list->ranks,
                     (unsigned long long)step.bytes, (unsigned long long)step.offset,
                     (unsigned long long)list->tensor_bytes);
            return PSD_ERR_PROTOCOL;
        }
        list->steps[list->count++] = step;
    }
    list->hash = psd_plan_rank_hash(chunk, list->hash);
    list->chunk++;
    return PSD_OK;
}

static int by_offset(const void *a, const void *b)
{
    const plan_step *x = a;
    const plan_step *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

psd_status plan_list_finish(const plan_list *list, char *why, size_t why_bytes)
{
    uint64_t filled = 0;
    size_t count = 0;
    if (list->hash != list->expected_hash) {
        snprintf(why, why_bytes, "plan %u: hash of the steps received is %016llx, psd announced %016llx",
                 list->plan, (unsigned long long)list->hash, (unsigned long long)list->expected_hash);
        return PSD_ERR_PROTOCOL;
    }
    plan_step *receives = calloc(list->count + 1, sizeof(*receives));
    if (receives == NULL) {
        snprintf(why, why_bytes, "out of memory to check %zu steps", list->count);
        return PSD_ERR_NOMEM;
    }
    for (size_t i = 0; i < list->count; i++) {
        if (!list->steps[i].is_send)
            receives[count++] = list->steps[i];
    }
    qsort(receives, count, sizeof(*receives), by_offset);
    for (size_t i = 0; i < count && receives[i].offset == filled; i++)
        filled += receives[i].bytes;
    free(receives);
    if (filled == list->tensor_bytes)
        return PSD_OK;
    snprintf(why, why_bytes,
             "plan %u does not fill the tensor exactly once: gap or overlap at byte %llu of %llu", list->plan,
             (unsigned long long)filled, (unsigned long long)list->tensor_bytes);
    return PSD_ERR_PROTOCOL;
}
