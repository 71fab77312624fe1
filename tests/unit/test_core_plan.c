/* The plan compiler and its checker: every random plan compiles, passes and moves the right bytes; every plan
 * with one fault is caught. */
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "server/core/core.h"
#include "tests/lib/psd_test.h"

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static psd_plan_steps compile(uint32_t ranks, psd_dtype dtype, int64_t count, int32_t shift)
{
    char text[256] = "";
    psd_plan_steps plan;
    psd_plan_inputs in = {.kind = PSD_PLAN_RING_SHIFT,
                          .group = 1,
                          .ranks = ranks,
                          .dtype = dtype,
                          .count = count,
                          .shift = shift};
    cr_assert_eq(psd_plan_compile(&in, &plan, text, sizeof(text)), PSD_OK, "%s", text);
    cr_assert_eq(psd_plan_check(&plan, text, sizeof(text)), PSD_OK, "%s", text);
    return plan;
}

/* Runs the plan over real buffers. */
static void run_and_compare(const psd_plan_steps *plan)
{
    uint32_t ranks = plan->inputs.ranks;
    size_t bytes = (size_t)plan->inputs.count * psd_dtype_bytes(plan->inputs.dtype);
    uint8_t *in = malloc(ranks * bytes + 1);
    uint8_t *out = calloc(1, ranks * bytes + 1);
    cr_assert(in != NULL && out != NULL);
    for (size_t i = 0; i < ranks * bytes; i++)
        in[i] = (uint8_t)(i * 31 + i / 251);
    for (uint64_t i = 0; i < plan->count; i++) {
        const psd_step *s = &plan->steps[i];
        memcpy(out + s->dst * bytes + s->dst_offset, in + s->src * bytes + s->src_offset, s->bytes);
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        int64_t to = ((int64_t)rank + plan->inputs.shift % (int64_t)ranks + ranks) % ranks;
        cr_assert_eq(memcmp(out + (size_t)to * bytes, in + rank * bytes, bytes), 0, "rank %u", rank);
    }
    free(in);
    free(out);
}

PSD_TEST(core_plan, random_ring_shifts_move_the_right_bytes)
{
    static const psd_dtype dtypes[] = {PSD_I8, PSD_F16, PSD_F32, PSD_F64};
    uint64_t state = 7;
    for (int i = 0; i < 300; i++) {
        uint32_t ranks = 1 + (uint32_t)(next_random(&state) % 17);
        int64_t count = (int64_t)(next_random(&state) % 5000);
        int32_t shift = (int32_t)(next_random(&state) % 100) - 50;
        psd_plan_steps plan = compile(ranks, dtypes[next_random(&state) % 4], count, shift);
        run_and_compare(&plan);
        free(plan.steps);
    }
}

PSD_TEST(core_plan, large_tensors_are_cut_into_whole_elements)
{
    psd_plan_steps plan = compile(3, PSD_F64, 5000001, -1);
    cr_assert_gt(plan.rounds, 1);
    for (uint64_t i = 0; i < plan.count; i++) {
        cr_assert_eq(plan.steps[i].bytes % 8, 0);
        cr_assert_leq(plan.steps[i].bytes, UINT64_C(8) << 20);
    }
    free(plan.steps);
    plan = compile(2, PSD_F64, INT64_MAX / 8, 1);
    cr_assert_leq(plan.rounds, 1024);
    free(plan.steps);
}

PSD_TEST(core_plan, many_ranks_have_few_steps)
{
    psd_plan_steps plan = compile(100000, PSD_F32, INT64_C(1) << 40, 99999);
    cr_assert_leq(plan.count, UINT64_C(1) << 20);
    free(plan.steps);
}

PSD_TEST(core_plan, impossible_inputs_are_refused)
{
    static const psd_plan_inputs inputs[] = {
        {.kind = (psd_plan_kind)9, .ranks = 2, .dtype = PSD_F32, .count = 1},
        {.kind = PSD_PLAN_RING_SHIFT, .ranks = 0, .dtype = PSD_F32, .count = 1},
        {.kind = PSD_PLAN_RING_SHIFT, .ranks = PSD_MAX_WORLD + 1, .dtype = PSD_F32, .count = 1},
        {.kind = PSD_PLAN_RING_SHIFT, .ranks = 2, .dtype = (psd_dtype)77, .count = 1},
        {.kind = PSD_PLAN_RING_SHIFT, .ranks = 2, .dtype = PSD_F32, .count = -1},
        {.kind = PSD_PLAN_RING_SHIFT, .ranks = 2, .dtype = PSD_F64, .count = INT64_MAX / 4},
    };
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        char text[256] = "";
        psd_plan_steps plan = {.rounds = 77};
        cr_assert_neq(psd_plan_compile(&inputs[i], &plan, text, sizeof(text)), PSD_OK, "inputs %zu", i);
        cr_assert_neq(text[0], 0);
        cr_assert_eq(plan.rounds, 77); /* written only on success */
    }
}

/* -------------------------------------------------------------------------------------------- the checker */

typedef struct corruption {
    const char *what;
    const char *said; /* part of what the checker must say */
    void (*apply)(psd_plan_steps *plan);
} corruption;

static void wrong_destination(psd_plan_steps *plan)
{
    plan->steps[2].dst = (plan->steps[2].dst + 1) % plan->inputs.ranks;
}

static void rank_outside(psd_plan_steps *plan)
{
    plan->steps[1].dst = plan->inputs.ranks;
}

static void round_outside(psd_plan_steps *plan)
{
    plan->steps[plan->count - 1].round = plan->rounds;
}

static void moves_nothing(psd_plan_steps *plan)
{
    plan->steps[0].bytes = 0;
}

static void reads_outside(psd_plan_steps *plan)
{
    plan->steps[0].src_offset = UINT64_MAX;
}

static void writes_outside(psd_plan_steps *plan)
{
    plan->steps[0].dst_offset += 1;
    plan->steps[0].src_offset -= 0;
    plan->steps[0].bytes = (uint64_t)plan->inputs.count * 4;
}

static void other_offset(psd_plan_steps *plan)
{
    plan->steps[0].bytes -= 4;
    plan->steps[0].dst_offset += 4;
}

static void byte_missing(psd_plan_steps *plan)
{
    plan->steps[0].bytes -= 1;
}

static void step_missing(psd_plan_steps *plan)
{
    plan->count--;
}

static void sends_twice(psd_plan_steps *plan)
{
    plan->steps[1].src = plan->steps[0].src;
    plan->steps[1].dst = plan->steps[0].dst;
}

static void rounds_swapped(psd_plan_steps *plan)
{
    psd_step first = plan->steps[0];
    plan->steps[0] = plan->steps[plan->count - 1];
    plan->steps[plan->count - 1] = first;
}

static void written_twice(psd_plan_steps *plan)
{
    plan->steps[4].src_offset = plan->steps[4].dst_offset = plan->steps[0].dst_offset;
}

static const corruption corruptions[] = {
    {"a step to another rank", "belong", wrong_destination},
    {"a rank outside the group", "outside the group", rank_outside},
    {"a round that is not there", "beyond the last", round_outside},
    {"a step of no bytes", "moves nothing", moves_nothing},
    {"a read outside", "reads outside", reads_outside},
    {"a write outside", "writes outside", writes_outside},
    {"another offset", "belong", other_offset},
    {"a byte missing", "never written", byte_missing},
    {"a step missing", "never written", step_missing},
    {"two sends in a round", "twice in a round", sends_twice},
    {"rounds out of order", "out of order", rounds_swapped},
    {"a part written twice", "written twice", written_twice},
};

PSD_TEST(core_plan, every_corruption_is_caught)
{
    for (size_t i = 0; i < sizeof(corruptions) / sizeof(corruptions[0]); i++) {
        char text[256] = "";
        psd_plan_steps plan = compile(4, PSD_F32, 5000000, 1);
        cr_assert_eq(plan.rounds, 3);
        corruptions[i].apply(&plan);
        cr_assert_eq(psd_plan_check(&plan, text, sizeof(text)), PSD_ERR_INTERNAL, "%s passed",
                     corruptions[i].what);
        cr_assert_not_null(strstr(text, corruptions[i].said), "%s: \"%s\"", corruptions[i].what, text);
        free(plan.steps);
    }
}
