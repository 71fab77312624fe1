/* Random programs. Half of what they send is also received, so that most of them get somewhere. */
#include "tests/waits/model.h"

#include <stdio.h>
#include <string.h>

uint64_t random_next(uint64_t *seed)
{
    /* splitmix64 */
    uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int below(uint64_t *seed, int limit)
{
    return (int)(random_next(seed) % (uint64_t)limit);
}

static int pick_member(uint64_t *seed, uint32_t members)
{
    int rank;
    do
        rank = below(seed, MOST_RANKS);
    while (((members >> rank) & 1) == 0);
    return rank;
}

static int threads_of(const program *p, int rank, int *out)
{
    int count = 0;
    for (int t = 0; t < p->threads; t++)
        if (p->rank_of[t] == rank)
            out[count++] = t;
    return count;
}

static int pick_thread(const program *p, uint64_t *seed, int rank)
{
    int threads[MOST_THREADS] = {0};
    return threads[below(seed, threads_of(p, rank, threads))];
}

static bool has_room(const program *p, int thread, int ops)
{
    return p->length[thread] + 2 <= MOST_STEPS && p->op_count + ops <= MOST_OPS;
}

static int add_unit(program *p, int thread)
{
    unit *u = &p->units[p->unit_count];
    u->thread = thread;
    u->first_op = p->op_count;
    u->op_count = 0;
    return p->unit_count++;
}

static void add_op(program *p, int at, op_kind kind, int group, int peer, int tag, bool is_large)
{
    p->ops[p->op_count++] = (op){kind, at, group, peer, tag, is_large};
    p->units[at].op_count++;
}

static void add_wait(program *p, int thread, uint32_t units, bool any)
{
    instruction *code = &p->code[thread][p->length[thread]++];
    *code = (instruction){.is_wait = true, .any = any, .units = units};
}

/* Posts a unit, and mostly waits for it at once. Later waits take what was left. */
static void post(program *p, uint64_t *seed, int at, uint32_t *open)
{
    int thread = p->units[at].thread;
    instruction *code = &p->code[thread][p->length[thread]++];
    *code = (instruction){.unit = at};
    open[thread] |= UINT32_C(1) << at;
    int how = below(seed, 6);
    if (how < 4) {
        add_wait(p, thread, UINT32_C(1) << at, false);
        open[thread] &= ~(UINT32_C(1) << at);
    } else if (how == 4 && p->length[thread] < MOST_STEPS) {
        bool any = below(seed, 2) == 0;
        add_wait(p, thread, open[thread], any);
        if (!any)
            open[thread] = 0;
    }
}

static void add_transfer(program *p, uint64_t *seed, uint32_t *open)
{
    int group = below(seed, p->group_count);
    int from = pick_member(seed, p->members[group]), to = pick_member(seed, p->members[group]);
    int sender = pick_thread(p, seed, from), receiver = pick_thread(p, seed, to);
    int tag = below(seed, 4) == 0 ? 1 : 0;
    bool may_wait_for_any = !p->is_queued;
    if (below(seed, 8) != 0 && has_room(p, sender, 1)) {
        int at = add_unit(p, sender);
        add_op(p, at, OP_SEND, group, to, tag, below(seed, 3) != 0);
        post(p, seed, at, open);
    }
    if (below(seed, 8) != 0 && has_room(p, receiver, 1)) {
        int source = may_wait_for_any && below(seed, 5) == 0 ? ANY : from;
        int wanted = below(seed, 6) == 0 ? (may_wait_for_any && below(seed, 2) == 0 ? ANY : 1 - tag) : tag;
        int at = add_unit(p, receiver);
        add_op(p, at, OP_RECV, group, source, wanted, false);
        post(p, seed, at, open);
    }
}

static void add_batch(program *p, uint64_t *seed, uint32_t *open)
{
    int group = below(seed, p->group_count);
    int rank = pick_member(seed, p->members[group]), thread = pick_thread(p, seed, rank);
    int count = 2 + below(seed, 2);
    if (!has_room(p, thread, count))
        return;
    int at = add_unit(p, thread);
    for (int i = 0; i < count; i++)
        add_op(p, at, below(seed, 2) == 0 ? OP_SEND : OP_RECV, group, pick_member(seed, p->members[group]), 0,
               true);
    post(p, seed, at, open);
}

static void add_collective(program *p, uint64_t *seed, uint32_t *open)
{
    int group = below(seed, p->group_count);
    for (int rank = 0; rank < p->ranks; rank++) {
        bool comes = ((p->members[group] >> rank) & 1) != 0 && below(seed, 10) != 0;
        int thread = comes ? pick_thread(p, seed, rank) : 0;
        if (!comes || !has_room(p, thread, 1))
            continue;
        int at = add_unit(p, thread);
        add_op(p, at, OP_COLL, group, 0, 0, false);
        post(p, seed, at, open);
    }
}

/* Exchanges two neighbouring steps of one thread where no wait comes before its post. */
static void disturb(program *p, uint64_t *seed)
{
    int thread = below(seed, p->threads);
    if (p->length[thread] < 4)
        return;
    int at = below(seed, p->length[thread] - 3);
    instruction *code = p->code[thread];
    bool are_two_calls =
        !code[at].is_wait && code[at + 1].is_wait && !code[at + 2].is_wait && code[at + 3].is_wait;
    if (!are_two_calls || code[at + 3].units != (UINT32_C(1) << code[at + 2].unit) ||
        code[at + 1].units != (UINT32_C(1) << code[at].unit))
        return;
    instruction first = code[at], second = code[at + 1];
    code[at] = code[at + 2];
    code[at + 1] = code[at + 3];
    code[at + 2] = first;
    code[at + 3] = second;
}

static void add_threads(program *p, uint64_t *seed)
{
    int extra = below(seed, 4) == 0 ? below(seed, p->ranks) : -1;
    for (int rank = 0; rank < p->ranks; rank++) {
        p->rank_of[p->threads++] = rank;
        if (rank == extra)
            p->rank_of[p->threads++] = rank;
    }
}

void program_random(uint64_t seed, program *out)
{
    uint32_t open[MOST_THREADS] = {0};
    memset(out, 0, sizeof *out);
    out->ranks = 2 + below(&seed, MOST_RANKS - 1);
    out->is_queued = below(&seed, 3) == 0;
    out->has_network = !out->is_queued && below(&seed, 3) == 0;
    out->is_slow = !out->is_queued && below(&seed, 4) == 0;
    add_threads(out, &seed);
    out->members[0] = (UINT32_C(1) << out->ranks) - 1;
    out->group_count = 1 + below(&seed, 2);
    for (int rank = 0; rank < out->ranks; rank++)
        if (below(&seed, 3) != 0)
            out->members[1] |= UINT32_C(1) << rank;
    if (out->members[1] == 0)
        out->members[1] = 1;
    int steps = 2 + below(&seed, 5);
    for (int i = 0; i < steps; i++) {
        int what = below(&seed, 10);
        if (what < 7)
            add_transfer(out, &seed, open);
        else if (what < 8)
            add_batch(out, &seed, open);
        else if (out->op_count + out->ranks <= 14)
            add_collective(out, &seed, open);
    }
    disturb(out, &seed);
    for (int t = 0; t < out->threads; t++)
        if (open[t] != 0 && out->length[t] < MOST_STEPS && below(&seed, 4) != 0)
            add_wait(out, t, open[t], below(&seed, 4) == 0);
}

static void print_instruction(const program *p, const instruction *code)
{
    if (code->is_wait) {
        printf(" wait_%s(%x)", code->any ? "any" : "all", code->units);
        return;
    }
    const unit *u = &p->units[code->unit];
    printf(" %d:{", code->unit);
    for (int i = 0; i < u->op_count; i++) {
        const op *o = &p->ops[u->first_op + i];
        if (o->kind == OP_COLL)
            printf(" coll g%d", o->group);
        else
            printf(" %s%s %d tag %d g%d", o->kind == OP_SEND ? "send" : "recv", o->is_large ? "!" : "",
                   o->peer, o->tag, o->group);
    }
    printf(" }");
}

void program_print(const program *p)
{
    printf("%d ranks%s%s%s, groups %x %x\n", p->ranks, p->is_queued ? ", queued" : "",
           p->has_network ? ", network" : "", p->is_slow ? ", slow" : "", p->members[0], p->members[1]);
    for (int t = 0; t < p->threads; t++) {
        printf("  rank %d:", p->rank_of[t]);
        for (int i = 0; i < p->length[t]; i++)
            print_instruction(p, &p->code[t][i]);
        printf("\n");
    }
}
