/* Compares server/core/waits.c with every interleaving of random programs.
 *
 *     property [PROGRAMS [SEED [SECONDS]]]
 *
 * In every state that any interleaving reaches: a thread that waits.c calls stuck, and that the two-round rule lets it
 * call so, moves in none of the ways the program goes on from there. Where nothing is on its way: what is stuck, the
 * cycles, the shortest of each, and the operations that wait for ranks that have ended are those that oracle.c finds by
 * brute force; and where nothing at all can happen any more, every thread that has not ended is stuck. And of one run to
 * the end of each program, replay.c says what every interleaving without buffers does (unsafe.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/waits/snapshot.h"
#include "tests/waits/unsafe.h"

#define MOST_STATES 3000 /* a program with more is left and another taken */
#define TABLE       16384

typedef struct known {
    uint64_t hash;
    uint32_t moves; /* threads that move in some continuation */
    bool is_used;
} known;

typedef struct walk {
    const program *p;
    known *table;
    uint32_t states;
    uint32_t depth;
    bool has_failed;
    bool is_too_large;
    uint64_t stuck; /* states with stuck threads, for the summary */
} walk;

typedef struct visit_result {
    walk *w;
    uint32_t moves;
    bool any;
} visit_result;

static uint64_t hash_of(const state *s)
{
    const uint8_t *bytes = (const uint8_t *)s;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof *s; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash ^ (hash >> 29);
}

static known *look_up(walk *w, uint64_t hash)
{
    size_t at = hash % TABLE;
    while (w->table[at].is_used && w->table[at].hash != hash)
        at = (at + 1) % TABLE;
    return &w->table[at];
}

static bool fail(walk *w, const state *s, const char *what, uint32_t got, uint32_t expected)
{
    if (!w->has_failed) {
        printf("%s: waits.c %x, by brute force %x, in\n", what, got, expected);
        program_print(w->p);
        printf("  at");
        for (int t = 0; t < w->p->threads; t++)
            printf(" %d", s->at[t]);
        printf("\n");
    }
    w->has_failed = true;
    return false;
}

static bool anything_is_on_its_way(const program *p, const state *s)
{
    for (int i = 0; i < p->op_count; i++)
        if (op_is_in_flight(p, s, i))
            return true;
    return false;
}

static uint32_t stuck_threads(const snapshot *snap, const waits_result *result, uint8_t least)
{
    uint32_t threads = 0;
    for (uint32_t t = 0; t < snap->input.thread_count; t++)
        if (result->standing[t] >= least)
            threads |= UINT32_C(1) << snap->thread_of[t];
    return threads;
}

/* Each arrow leads from the operation's rank to the rank of the next, and the last to the first. */
static bool is_a_cycle(const snapshot *snap, const waits_finding *f, const waits_step *steps)
{
    for (uint32_t i = 0; i < f->step_count; i++) {
        const waits_step *step = &steps[f->first_step + i];
        const waits_step *next = &steps[f->first_step + (i + 1) % f->step_count];
        if (snap->units[snap->ops[next->op].unit].rank != step->rank)
            return false;
        if (step->thread != WAITS_NONE && !snap->threads[step->thread].is_blocked)
            return false;
    }
    return f->step_count > 0;
}

static bool check_findings(walk *w, const state *s, const snapshot *snap, const waits_result *result,
                           oracle *expected)
{
    uint32_t orphans = 0, cycles = 0;
    for (uint32_t i = 0; i < result->finding_count; i++) {
        const waits_finding *f = &result->findings[i];
        if (f->class != WAITS_DEADLOCK) {
            const waits_op *o = &snap->ops[result->steps[f->first_step].op];
            orphans |= UINT32_C(1) << snap->op_of[o - snap->ops];
            continue;
        }
        cycles++;
        if (!is_a_cycle(snap, f, result->steps))
            return fail(w, s, "not a cycle", f->step_count, 0);
        int k = 0;
        while (k < expected->cycles && expected->shortest[k] != (int)f->step_count)
            k++;
        if (k == expected->cycles)
            return fail(w, s, "length of a cycle", f->step_count, (uint32_t)expected->shortest[0]);
        expected->shortest[k] = -1;
    }
    if ((int)cycles != expected->cycles)
        return fail(w, s, "cycles", cycles, (uint32_t)expected->cycles);
    /* Several collectives of a group may miss the same rank: the first one tells. */
    uint32_t transfers = 0;
    for (int i = 0; i < w->p->op_count; i++)
        transfers |= w->p->ops[i].kind != OP_COLL ? UINT32_C(1) << i : 0;
    if ((orphans & ~transfers) == 0 && (expected->orphans & ~transfers) != 0)
        return fail(w, s, "orphaned collectives", orphans, expected->orphans);
    return (orphans & transfers) == (expected->orphans & transfers) ||
           fail(w, s, "orphans", orphans, expected->orphans);
}

static bool check_against_oracle(walk *w, const state *s, const snapshot *snap, const waits_result *result)
{
    oracle expected;
    uint32_t stuck = stuck_threads(snap, result, WAITS_VICTIM);
    oracle_ask(w->p, s, &expected);
    if (stuck != expected.stuck)
        return fail(w, s, "stuck", stuck, expected.stuck);
    if (stuck == 0)
        return true;
    if (result->finding_count == 0)
        return fail(w, s, "findings", 0, 1);
    if (!waits_confirmed(&snap->input, result, &snap->input))
        return fail(w, s, "confirmed", 0, 1);
    return check_findings(w, s, snap, result, &expected);
}

/* Checks one state, given the threads that can still move. */
static void check(walk *w, const state *s, uint32_t moves)
{
    snapshot snap;
    waits_result result;
    bool is_still = !anything_is_on_its_way(w->p, s);
    snapshot_take(w->p, s, (w->states & 1) != 0, &snap);
    if (waits_solve(&snap.input, &result) != PSD_OK) {
        fail(w, s, "not sound", 0, 0);
        return;
    }
    uint32_t stuck = stuck_threads(&snap, &result, WAITS_VICTIM);
    w->stuck += stuck != 0;
    if ((stuck & moves) != 0 && (is_still || waits_confirmed(&snap.input, &result, &snap.input)))
        fail(w, s, "called stuck, but moves", stuck, moves);
    if (is_still)
        check_against_oracle(w, s, &snap, &result);
    waits_result_free(&result);
}

static uint32_t explore(walk *w, const state *s);

static void on_next(void *arg, const state *next, int thread)
{
    visit_result *r = arg;
    r->any = true;
    if (thread >= 0)
        r->moves |= UINT32_C(1) << thread;
    if (!r->w->is_too_large && !r->w->has_failed)
        r->moves |= explore(r->w, next);
}

static void check_end(walk *w, const state *s)
{
    for (int t = 0; t < w->p->threads; t++)
        if (!thread_has_ended(w->p, s, t) && !thread_is_blocked(w->p, s, t))
            fail(w, s, "the interpreter stopped", 0, 0);
    oracle expected;
    oracle_ask(w->p, s, &expected);
    for (int t = 0; t < w->p->threads; t++)
        if (!thread_has_ended(w->p, s, t) && ((expected.stuck >> t) & 1) == 0)
            fail(w, s, "nothing moves, but not stuck", expected.stuck, UINT32_C(1) << t);
}

static uint32_t explore(walk *w, const state *s)
{
    uint64_t hash = hash_of(s);
    known *k = look_up(w, hash);
    if (k->is_used)
        return k->moves;
    if (++w->states > MOST_STATES) {
        w->is_too_large = true;
        return 0;
    }
    visit_result r = {.w = w};
    state_each_next(w->p, s, on_next, &r);
    if (w->is_too_large || w->has_failed)
        return 0;
    k = look_up(w, hash);
    *k = (known){hash, r.moves, true};
    if (!r.any)
        check_end(w, s);
    check(w, s, r.moves);
    return r.moves;
}

int main(int argc, char **argv)
{
    long programs = argc > 1 ? strtol(argv[1], NULL, 10) : 1000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    time_t end = time(NULL) + (argc > 3 ? strtol(argv[3], NULL, 10) : 100000);
    static known table[TABLE];
    long done = 0, skipped = 0, failed = 0;
    uint64_t states = 0, stuck = 0, answers[UNSAFE_NOT_ASKED + 1] = {0};
    while (done < programs && failed == 0 && time(NULL) < end) {
        program p;
        state begin;
        memset(table, 0, sizeof table);
        walk w = {.p = &p, .table = table};
        program_random(seed++, &p);
        state_begin(&p, &begin);
        explore(&w, &begin);
        unsafe_answer answer = unsafe_compare(&p, seed);
        answers[answer]++;
        if (answer == UNSAFE_DIFFERS)
            program_print(&p);
        w.has_failed = w.has_failed || answer == UNSAFE_DIFFERS;
        failed += w.has_failed;
        if (w.has_failed)
            printf("seed %llu\n", (unsigned long long)(seed - 1));
        skipped += w.is_too_large;
        done += !w.is_too_large;
        states += w.states;
        stuck += w.stuck;
    }
    printf("%ld programs, %llu states, %llu of them with stuck threads; %ld programs were too large\n", done,
           (unsigned long long)states, (unsigned long long)stuck, skipped);
    printf("%llu ran to their end and are safe, %llu are unsafe\n",
           (unsigned long long)answers[UNSAFE_SAME_SAFE], (unsigned long long)answers[UNSAFE_SAME_STUCK]);
    printf("waits: %ld passed, %ld failed\n", done - failed, failed);
    return failed == 0 && done > 0 ? 0 : 1;
}
