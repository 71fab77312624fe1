/* Proves a plan from its inputs and steps alone; shares nothing with the compiler. */
#include <stdio.h>
#include <stdlib.h>

#include "common/tensor.h"
#include "server/core/core.h"

/* Where a step writes. */
typedef struct span {
    uint32_t rank;
    uint64_t offset;
    uint64_t bytes;
} span;

static int by_rank_offset(const void *a, const void *b)
{
    const span *x = a;
    const span *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool say(char *text, size_t text_bytes, uint64_t step, const char *what)
{
    (void)snprintf(text, text_bytes, "plan step %llu: %s", (unsigned long long)step, what);
    return false;
}

/* Each step by itself: inside its tensors, between the ranks that the kind of plan names, in order. */
static bool steps_sound(const psd_plan_steps *plan, uint64_t tensor, char *text, size_t text_bytes)
{
    const psd_plan_inputs *in = &plan->inputs;
    int64_t ranks = in->ranks;
    for (uint64_t i = 0; i < plan->count; i++) {
        const psd_step *s = &plan->steps[i];
        if (s->src >= in->ranks || s->dst >= in->ranks)
            return say(text, text_bytes, i, "names a rank outside the group");
        if (s->round >= plan->rounds)
            return say(text, text_bytes, i, "is in a round beyond the last");
        if (s->bytes == 0)
            return say(text, text_bytes, i, "moves nothing");
        if (s->bytes > tensor || s->src_offset > tensor - s->bytes)
            return say(text, text_bytes, i, "reads outside its source tensor");
        if (s->dst_offset > tensor - s->bytes)
            return say(text, text_bytes, i, "writes outside its destination tensor");
        if (i > 0 && (plan->steps[i - 1].round > s->round ||
                      (plan->steps[i - 1].round == s->round && plan->steps[i - 1].src >= s->src)))
            return say(text, text_bytes, i, "is out of order, or its rank sends twice in a round");
        int64_t wanted = ((int64_t)s->src + in->shift % ranks + ranks) % ranks;
        if (in->kind != PSD_PLAN_RING_SHIFT || (int64_t)s->dst != wanted || s->src_offset != s->dst_offset)
            return say(text, text_bytes, i, "moves bytes to where they do not belong");
    }
    return true;
}

/* At most one receive per rank and round; that it sends at most once follows from the order of the steps. */
static bool receives_sound(const psd_plan_steps *plan, uint32_t *last, char *text, size_t text_bytes)
{
    for (uint64_t i = 0; i < plan->count; i++) {
        const psd_step *s = &plan->steps[i];
        if (last[s->dst] == s->round + 1)
            return say(text, text_bytes, i, "makes its rank receive twice in a round");
        last[s->dst] = s->round + 1;
    }
    return true;
}

/* Sorted by rank and offset, the spans of each rank must follow each other from 0 to the end of its tensor.
 */
static bool covered_once(const psd_plan_steps *plan, span *spans, uint64_t tensor, char *text,
                         size_t text_bytes)
{
    for (uint64_t i = 0; i < plan->count; i++)
        spans[i] = (span){plan->steps[i].dst, plan->steps[i].dst_offset, plan->steps[i].bytes};
    qsort(spans, plan->count, sizeof(*spans), by_rank_offset);
    uint64_t at = 0;
    for (uint32_t rank = 0; rank < plan->inputs.ranks; rank++) {
        uint64_t next = 0;
        for (; at < plan->count && spans[at].rank == rank && spans[at].offset == next; at++)
            next += spans[at].bytes;
        if (next == tensor && !(at < plan->count && spans[at].rank == rank))
            continue;
        bool again = at < plan->count && spans[at].rank == rank && spans[at].offset < next;
        uint64_t where = again ? spans[at].offset : next;
        (void)snprintf(text, text_bytes, "plan: byte %llu of rank %u is %s", (unsigned long long)where, rank,
                       again ? "written twice" : "never written");
        return false;
    }
    return true;
}

psd_status psd_plan_check(const psd_plan_steps *plan, char *text, size_t text_bytes)
{
    const psd_plan_inputs *in = &plan->inputs;
    psd_status status = PSD_ERR_INTERNAL;
    uint32_t *last = NULL;
    span *spans = NULL;
    if (in->ranks == 0 || in->ranks > PSD_MAX_WORLD || !psd_dtype_valid((int)in->dtype) || in->count < 0 ||
        in->count > INT64_MAX / (int64_t)psd_dtype_bytes(in->dtype) ||
        plan->count > SIZE_MAX / sizeof(span)) {
        (void)snprintf(text, text_bytes, "plan: its inputs are not valid");
        return status;
    }
    uint64_t tensor = (uint64_t)in->count * psd_dtype_bytes(in->dtype);
    if (!steps_sound(plan, tensor, text, text_bytes))
        return status;
    last = calloc(in->ranks, sizeof(*last));
    spans = calloc(plan->count + 1, sizeof(*spans));
    if (last == NULL || spans == NULL) {
        (void)snprintf(text, text_bytes, "plan: no memory to check it");
        status = PSD_ERR_NOMEM;
    } else if (receives_sound(plan, last, text, text_bytes) &&
               covered_once(plan, spans, tensor, text, text_bytes)) {
        status = PSD_OK;
    }
    free(spans);
    free(last);
    return status;
}
