/* Fuzzes the wait-for graph: bytes become a snapshot of a few ranks, mostly sound, whatever it says. Neither a crash nor
 * an end without a finding for who is stuck. */
#include <stdlib.h>
#include <string.h>

#include "server/core/waits.h"

#define MOST 24u

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

static uint32_t take(input *in, uint32_t below)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++ % below;
}

typedef struct world {
    waits_input in;
    waits_rank ranks[MOST];
    waits_thread threads[MOST];
    uint32_t works[MOST];
    waits_unit units[MOST];
    waits_op ops[MOST];
    waits_group groups[2];
    uint64_t started[2][MOST];
    waits_pair pairs[MOST];
} world;

static void fill_ranks(input *bytes, world *w)
{
    w->in.rank_count = 1 + take(bytes, 6);
    for (uint32_t i = 0; i < w->in.rank_count; i++) {
        waits_rank *r = &w->ranks[i];
        r->life = (waits_life)take(bytes, 6);
        r->first_thread = w->in.thread_count;
        r->thread_count = take(bytes, 3);
        r->incarnation = take(bytes, 2);
        for (uint32_t t = 0; t < r->thread_count; t++)
            w->threads[w->in.thread_count++].rank = i;
    }
}

static void fill_op(input *bytes, world *w, uint32_t unit)
{
    waits_op *o = &w->ops[w->in.op_count++];
    o->unit = unit;
    o->group = take(bytes, 2);
    o->kind = (uint8_t)(1 + take(bytes, 2) + (take(bytes, 3) == 0 ? 4 : 0));
    o->is_complete = take(bytes, 8) == 0;
    o->is_matched = take(bytes, 8) == 0;
    o->peer = (int32_t)take(bytes, w->in.rank_count + 1) - 1;
    o->tag = (int32_t)take(bytes, 3) - 1;
    o->ordinal = take(bytes, 3);
    o->count = take(bytes, 16) == 0;
    if (o->kind == PSD_OP_SEND && o->peer < 0)
        o->peer = 0;
}

static void fill_units(input *bytes, world *w)
{
    w->in.unit_count = take(bytes, 10);
    for (uint32_t i = 0; i < w->in.unit_count; i++) {
        waits_unit *u = &w->units[i];
        u->rank = i * w->in.rank_count / w->in.unit_count;
        u->after = i > 0 && take(bytes, 3) == 0 && w->units[i - 1].rank == u->rank ? i - 1 : WAITS_NONE;
        u->is_complete = take(bytes, 12) == 0;
        u->first_op = w->in.op_count;
        u->op_count = 1 + (take(bytes, 4) == 0);
        for (uint32_t k = 0; k < u->op_count; k++)
            fill_op(bytes, w, i);
    }
}

static void fill_threads(input *bytes, world *w)
{
    for (uint32_t i = 0; i < w->in.thread_count; i++) {
        waits_thread *t = &w->threads[i];
        t->is_blocked = take(bytes, 4) != 0;
        t->any = take(bytes, 4) == 0;
        t->is_partial = take(bytes, 8) == 0;
        t->first_work = w->in.work_count;
        for (uint32_t u = 0; u < w->in.unit_count && w->in.work_count < MOST; u++)
            if (w->units[u].rank == t->rank && take(bytes, 2) == 0)
                w->works[w->in.work_count++] = u;
        t->work_count = w->in.work_count - t->first_work;
    }
}

static void fill(input *bytes, world *w)
{
    memset(w, 0, sizeof *w);
    w->in = (waits_input){.ranks = w->ranks,
                          .threads = w->threads,
                          .works = w->works,
                          .units = w->units,
                          .ops = w->ops,
                          .groups = w->groups,
                          .pairs = w->pairs,
                          .group_count = 2};
    fill_ranks(bytes, w);
    fill_units(bytes, w);
    fill_threads(bytes, w);
    for (uint32_t g = 0; g < 2; g++) {
        w->groups[g].size = take(bytes, w->in.rank_count + 1 + (take(bytes, 50) == 49));
        w->groups[g].is_positional = take(bytes, 3) == 0;
        w->groups[g].started = w->started[g];
        for (uint32_t r = 0; r < w->in.rank_count; r++)
            w->started[g][r] = take(bytes, 4);
    }
    w->in.pair_count = take(bytes, 4);
    for (uint32_t i = 0; i < w->in.pair_count; i++)
        w->pairs[i] = (waits_pair){take(bytes, 6), take(bytes, 7), take(bytes, 2), take(bytes, 2)};
}

static void expect(bool holds)
{
    if (!holds)
        abort();
}

static void look_at(const world *w, const waits_result *result)
{
    uint32_t stuck = 0;
    for (uint32_t t = 0; t < w->in.thread_count; t++)
        stuck += result->standing[t] != WAITS_FREE;
    expect(stuck == result->stuck);
    expect((stuck == 0) == (result->cause_count == 0));
    for (uint32_t i = 0; i < result->finding_count; i++) {
        const waits_finding *f = &result->findings[i];
        expect(f->step_count > 0 && f->first_step + f->step_count <= result->step_count);
        for (uint32_t s = 0; s < f->step_count; s++) {
            const waits_step *step = &result->steps[f->first_step + s];
            expect(step->op < w->in.op_count && step->unit < w->in.unit_count);
            expect(step->rank < w->in.rank_count || step->rank == WAITS_NONE);
            expect(step->thread == WAITS_NONE || f->class == WAITS_MISMATCH ||
                   result->standing[step->thread] != WAITS_FREE);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static world w;
    input in = {data, bytes};
    waits_result result;
    fill(&in, &w);
    if (waits_solve(&w.in, &result) != PSD_OK)
        return 0;
    look_at(&w, &result);
    (void)waits_confirmed(&w.in, &result, &w.in);
    waits_result_free(&result);
    return 0;
}
