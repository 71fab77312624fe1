#include "tests/waits/unsafe.h"

#include <stdio.h>
#include <string.h>

#include "server/core/replay.h"
#include "tests/waits/snapshot.h"

/* ------------------------------------------------------------------------------------- one run, on host */

typedef struct choice {
    uint64_t *seed;
    state chosen;
    uint64_t seen;
} choice;

static void choose(void *arg, const state *next, int thread)
{
    choice *c = arg;
    (void)thread;
    if (random_next(c->seed) % ++c->seen == 0)
        c->chosen = *next;
}

/* False: it hangs. */
static bool run_once(const program *p, uint64_t *seed, state *out)
{
    choice c = {.seed = seed, .seen = 1};
    state_begin(p, out);
    while (c.seen > 0) {
        c.seen = 0;
        state_each_next(p, out, choose, &c);
        if (c.seen > 0)
            *out = c.chosen;
    }
    for (int t = 0; t < p->threads; t++)
        if (!thread_has_ended(p, out, t))
            return false;
    return true;
}

/* ------------------------------------------------------------------- every interleaving, without buffers */

#define MOST_POSITIONS 200000

/* What is posted, and with it what is done, follows from where the threads are. */
typedef struct dry {
    const program *p;
    const state *end; /* the matching that happened */
    uint64_t seen[MOST_POSITIONS * 2];
    uint32_t count;
    bool ends;
    bool hangs;
    uint32_t hanging; /* threads, of the last hang */
} dry;

static bool is_posted(const dry *d, const uint8_t *at, int which)
{
    int in = d->p->ops[which].unit, thread = d->p->units[in].thread;
    for (int i = 0; i < at[thread]; i++)
        if (!d->p->code[thread][i].is_wait && d->p->code[thread][i].unit == in)
            return true;
    return false;
}

static bool op_is_done(const dry *d, const uint8_t *at, int which)
{
    const op *o = &d->p->ops[which];
    if (!is_posted(d, at, which))
        return false;
    if (o->kind != OP_COLL)
        return d->end->partner[which] >= 0 && is_posted(d, at, d->end->partner[which]);
    int come = 0, size = __builtin_popcount(d->p->members[o->group]);
    for (int i = 0; i < d->p->op_count; i++)
        come += d->p->ops[i].kind == OP_COLL && d->p->ops[i].group == o->group &&
                d->end->ordinal[i] == d->end->ordinal[which] && is_posted(d, at, i);
    return come == size;
}

static bool may_go_on(const dry *d, const uint8_t *at, int thread)
{
    const instruction *code = &d->p->code[thread][at[thread]];
    bool all = true, any = !code->is_wait || code->units == 0;
    for (int u = 0; u < d->p->unit_count && code->is_wait; u++) {
        bool done = true;
        if (((code->units >> u) & 1) == 0)
            continue;
        for (int i = 0; i < d->p->units[u].op_count; i++)
            done = done && op_is_done(d, at, d->p->units[u].first_op + i);
        all = all && done;
        any = any || done;
    }
    return code->any ? any : all;
}

static bool is_new(dry *d, const uint8_t *at)
{
    uint64_t key;
    memcpy(&key, at, sizeof key);
    key++; /* 0 is free */
    size_t slot = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) % (MOST_POSITIONS * 2);
    while (d->seen[slot] != 0 && d->seen[slot] != key)
        slot = (slot + 1) % (MOST_POSITIONS * 2);
    bool fresh = d->seen[slot] == 0;
    d->seen[slot] = key;
    return fresh;
}

static void explore(dry *d, const uint8_t *at)
{
    uint32_t left = 0;
    bool moves = false;
    if (d->count >= MOST_POSITIONS || !is_new(d, at))
        return;
    d->count++;
    for (int t = 0; t < d->p->threads; t++) {
        if (at[t] == d->p->length[t])
            continue;
        left |= UINT32_C(1) << t;
        if (!may_go_on(d, at, t))
            continue;
        uint8_t next[MOST_THREADS];
        memcpy(next, at, sizeof next);
        next[t]++;
        moves = true;
        explore(d, next);
    }
    if (moves)
        return;
    d->ends = d->ends || left == 0;
    d->hangs = d->hangs || left != 0;
    d->hanging = left != 0 ? left : d->hanging;
}

/* ------------------------------------------------------------------------------------------------ replay */

typedef struct calls {
    replay_input input;
    snapshot all;
    waits_thread threads[MOST_THREADS];
    uint32_t first_call[MOST_THREADS + 1];
    replay_call list[MOST_THREADS * MOST_STEPS];
    uint32_t works[MOST_THREADS * MOST_STEPS * MOST_OPS];
    uint32_t count;
} calls;

static void add_call(calls *c, const program *p, const instruction *code)
{
    replay_call *to = &c->list[c->count++];
    to->is_wait = code->is_wait;
    to->any = code->any;
    to->unit = code->is_wait ? 0 : (uint32_t)c->all.unit_of[code->unit];
    to->first_work = c->input.all.work_count;
    for (int u = 0; u < p->unit_count && code->is_wait; u++)
        if (((code->units >> u) & 1) != 0)
            c->works[c->input.all.work_count++] = (uint32_t)c->all.unit_of[u];
    to->work_count = c->input.all.work_count - to->first_work;
}

static void fill(calls *c, const program *p, const state *end)
{
    memset(c, 0, sizeof *c);
    snapshot_take(p, end, true, &c->all);
    c->input.all = c->all.input;
    waits_input *all = &c->input.all;
    for (int g = 0; g < p->group_count; g++)
        c->all.groups[g].is_positional = true;
    for (uint32_t i = 0; i < all->op_count; i++) {
        waits_op *o = &c->all.ops[i];
        if (o->kind != PSD_OP_ALL_REDUCE && end->partner[c->all.op_of[i]] < 0)
            o->ordinal = UINT64_MAX - (o->kind == PSD_OP_SEND); /* matches nothing */
    }
    for (int t = 0; t < p->threads; t++) {
        waits_rank *rank = &c->all.ranks[p->rank_of[t]];
        rank->life = WAITS_LIVE;
        if (rank->thread_count++ == 0)
            rank->first_thread = (uint32_t)t;
        c->threads[t] = (waits_thread){.rank = (uint32_t)p->rank_of[t], .id = (uint32_t)t};
        c->first_call[t] = c->count;
        for (int i = 0; i < p->length[t]; i++)
            add_call(c, p, &p->code[t][i]);
    }
    c->first_call[p->threads] = c->count;
    for (int r = 0; r < p->ranks; r++)
        if (c->all.ranks[r].thread_count == 0)
            c->all.ranks[r].first_thread = 0;
    all->thread_count = (uint32_t)p->threads;
    all->threads = c->threads;
    all->works = c->works;
    c->input.first_call = c->first_call;
    c->input.calls = c->list;
}

static uint32_t threads_of(const waits_input *in)
{
    uint32_t threads = 0;
    for (uint32_t t = 0; t < in->thread_count; t++)
        threads |= UINT32_C(1) << in->threads[t].id;
    return threads;
}

/* Where it hangs, the graph must say so of every thread, and why. */
static bool is_explained(const waits_input *stuck)
{
    waits_result result;
    if (waits_solve(stuck, &result) != PSD_OK)
        return false;
    bool explained = result.stuck == stuck->thread_count && result.finding_count > 0;
    waits_result_free(&result);
    return explained;
}

unsafe_answer unsafe_compare(const program *p, uint64_t seed)
{
    static calls c;
    static dry d;
    state end;
    uint8_t begin[MOST_THREADS] = {0};
    replay_result result;
    if (p->is_queued || !run_once(p, &seed, &end))
        return UNSAFE_NOT_ASKED;
    memset(&d, 0, sizeof d);
    d.p = p;
    d.end = &end;
    explore(&d, begin);
    if (d.count >= MOST_POSITIONS)
        return UNSAFE_NOT_ASKED;
    fill(&c, p, &end);
    if (replay_run(&c.input, &result) != PSD_OK) {
        printf("replay: not sound\n");
        return UNSAFE_DIFFERS;
    }
    bool same = d.ends != d.hangs && result.is_stuck == d.hangs;
    if (same && d.hangs)
        same = threads_of(&result.stuck) == d.hanging && is_explained(&result.stuck);
    if (!same)
        printf("replay: stuck %d (%x), by brute force %d or %d (%x)\n", result.is_stuck,
               threads_of(&result.stuck), d.hangs, !d.ends, d.hanging);
    replay_result_free(&result);
    return !same ? UNSAFE_DIFFERS : d.hangs ? UNSAFE_SAME_STUCK : UNSAFE_SAME_SAFE;
}
