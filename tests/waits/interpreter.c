/* Every interleaving of a program, one step at a time.
 *
 * Host: a send up to the eager limit is done as it is posted; its message travels in the order of its pair, and is
 * taken by the first fitting receive, or kept in the order of arrival. A larger one is done with its receive. A
 * collective is done once all members have come. Queued: a unit starts when the one before it in its rank is done; a
 * transfer is done once the units at both ends have started. */
#include <string.h>

#include "tests/waits/model.h"

int op_rank(const program *p, int at)
{
    return p->rank_of[p->units[p->ops[at].unit].thread];
}

void state_begin(const program *p, state *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < MOST_OPS; i++)
        out->partner[i] = -1;
    (void)p;
}

bool unit_is_done(const program *p, const state *s, int at)
{
    const unit *u = &p->units[at];
    for (int i = 0; i < u->op_count; i++)
        if (s->op[u->first_op + i] != OP_DONE)
            return false;
    return true;
}

bool thread_has_ended(const program *p, const state *s, int thread)
{
    return s->at[thread] == p->length[thread];
}

static bool wait_holds(const program *p, const state *s, const instruction *code)
{
    bool all = true, any = code->units == 0;
    for (int u = 0; u < p->unit_count; u++) {
        if (((code->units >> u) & 1) == 0)
            continue;
        bool done = unit_is_done(p, s, u);
        all = all && done;
        any = any || done;
    }
    return code->any ? any : all;
}

bool thread_is_blocked(const program *p, const state *s, int thread)
{
    if (thread_has_ended(p, s, thread))
        return false;
    const instruction *code = &p->code[thread][s->at[thread]];
    return code->is_wait && !wait_holds(p, s, code);
}

bool rank_has_ended(const program *p, const state *s, int rank)
{
    for (int t = 0; t < p->threads; t++)
        if (p->rank_of[t] == rank && !thread_has_ended(p, s, t))
            return false;
    return true;
}

bool op_is_in_flight(const program *p, const state *s, int at)
{
    return p->ops[at].kind == OP_SEND && !p->is_queued && s->op[at] != OP_UNPOSTED && s->delivered[at] == 0;
}

/* ------------------------------------------------------------------------------------------------- host */

static bool fits(const program *p, int receive, int send)
{
    const op *r = &p->ops[receive], *m = &p->ops[send];
    return m->group == r->group && m->peer == op_rank(p, receive) &&
           (r->peer == ANY || r->peer == op_rank(p, send)) && (r->tag == ANY || r->tag == m->tag);
}

static void match(const program *p, state *s, int receive, int send)
{
    s->partner[receive] = (int8_t)send;
    s->partner[send] = (int8_t)receive;
    s->op[receive] = p->is_slow ? OP_MATCHED : OP_DONE;
    if (s->op[send] != OP_DONE)
        s->op[send] = s->op[receive];
}

static void deliver(const program *p, state *s, int send)
{
    int best = -1;
    s->delivered[send] = ++s->next_arrival;
    for (int i = 0; i < p->op_count; i++)
        if (p->ops[i].kind == OP_RECV && s->op[i] == OP_POSTED && fits(p, i, send) &&
            (best < 0 || s->order[i] < s->order[best]))
            best = i;
    if (best >= 0)
        match(p, s, best, send);
}

static void post_receive(const program *p, state *s, int receive)
{
    int best = -1;
    for (int i = 0; i < p->op_count; i++)
        if (p->ops[i].kind == OP_SEND && s->delivered[i] != 0 && s->partner[i] < 0 && fits(p, receive, i) &&
            (best < 0 || s->delivered[i] < s->delivered[best]))
            best = i;
    if (best >= 0)
        match(p, s, receive, best);
}

static void post_send(const program *p, state *s, int send)
{
    if (!p->ops[send].is_large)
        s->op[send] = OP_DONE;
    if (!p->has_network)
        deliver(p, s, send);
}

static bool has_come(const program *p, const state *s, int at, int rank)
{
    return ((p->members[p->ops[at].group] >> rank) & 1) == 0 ||
           s->started[rank][p->ops[at].group] > s->ordinal[at];
}

static bool all_have_come(const program *p, const state *s, int at)
{
    bool all = true;
    for (int r = 0; r < p->ranks; r++)
        all = all && has_come(p, s, at, r);
    return all;
}

static void settle_collectives(const program *p, state *s)
{
    for (int i = 0; i < p->op_count; i++)
        if (p->ops[i].kind == OP_COLL && s->op[i] == OP_POSTED && all_have_come(p, s, i))
            s->op[i] = p->is_slow ? OP_MATCHED : OP_DONE;
}

/* ------------------------------------------------------------------------------------------------ queued */

int unit_before(const program *p, const state *s, int at)
{
    int best = -1, rank = p->rank_of[p->units[at].thread];
    uint8_t own = s->order[p->units[at].first_op];
    for (int u = 0; u < p->unit_count && p->is_queued; u++) {
        int first = p->units[u].first_op;
        if (p->rank_of[p->units[u].thread] == rank && s->op[first] != OP_UNPOSTED && s->order[first] < own &&
            (best < 0 || s->order[first] > s->order[p->units[best].first_op]))
            best = u;
    }
    return best;
}

static bool has_started(const program *p, const state *s, int at)
{
    int before = unit_before(p, s, p->ops[at].unit);
    return s->op[at] != OP_UNPOSTED && (before < 0 || unit_is_done(p, s, before));
}

static bool is_the_other_end(const program *p, const state *s, int receive, int send)
{
    return p->ops[send].kind == OP_SEND && p->ops[send].group == p->ops[receive].group &&
           p->ops[send].peer == op_rank(p, receive) && p->ops[receive].peer == op_rank(p, send) &&
           s->ordinal[send] == s->ordinal[receive];
}

static bool end_of_queued(const program *p, state *s, int at)
{
    if (p->ops[at].kind == OP_COLL) {
        bool all = all_have_come(p, s, at);
        for (int i = 0; i < p->op_count && all; i++)
            if (p->ops[i].kind == OP_COLL && p->ops[i].group == p->ops[at].group && s->op[i] != OP_UNPOSTED &&
                s->ordinal[i] == s->ordinal[at])
                all = has_started(p, s, i);
        if (all)
            s->op[at] = OP_DONE;
        return all;
    }
    for (int i = 0; i < p->op_count && p->ops[at].kind == OP_RECV; i++) {
        if (!is_the_other_end(p, s, at, i) || !has_started(p, s, i))
            continue;
        s->op[at] = s->op[i] = OP_DONE;
        return true;
    }
    return false;
}

static void settle_queues(const program *p, state *s)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int i = 0; i < p->op_count; i++)
            if (s->op[i] == OP_POSTED && has_started(p, s, i))
                moved = end_of_queued(p, s, i) || moved;
    }
}

/* ------------------------------------------------------------------------------------------------- steps */

static void post_op(const program *p, state *s, int at)
{
    const op *o = &p->ops[at];
    int rank = op_rank(p, at);
    s->op[at] = OP_POSTED;
    s->order[at] = ++s->next_order;
    if (o->kind == OP_COLL)
        s->ordinal[at] = s->started[rank][o->group]++;
    else if (o->kind == OP_SEND)
        s->ordinal[at] = s->sent[o->group][rank][o->peer]++;
    else if (p->is_queued)
        s->ordinal[at] = s->taken[o->group][o->peer][rank]++;
    if (p->is_queued)
        return;
    if (o->kind == OP_SEND)
        post_send(p, s, at);
    else if (o->kind == OP_RECV)
        post_receive(p, s, at);
}

static void run(const program *p, state *s, int thread)
{
    const instruction *code = &p->code[thread][s->at[thread]++];
    if (code->is_wait)
        return;
    const unit *u = &p->units[code->unit];
    for (int i = 0; i < u->op_count; i++)
        post_op(p, s, u->first_op + i);
    if (p->is_queued)
        settle_queues(p, s);
    else
        settle_collectives(p, s);
}

static bool is_next_of_its_pair(const program *p, const state *s, int send)
{
    for (int i = 0; i < p->op_count; i++)
        if (i != send && op_is_in_flight(p, s, i) && op_rank(p, i) == op_rank(p, send) &&
            p->ops[i].peer == p->ops[send].peer && s->order[i] < s->order[send])
            return false;
    return true;
}

void state_each_next(const program *p, const state *s, state_visit visit, void *arg)
{
    for (int t = 0; t < p->threads; t++) {
        if (thread_has_ended(p, s, t) || thread_is_blocked(p, s, t))
            continue;
        state next = *s;
        run(p, &next, t);
        visit(arg, &next, t);
    }
    for (int i = 0; i < p->op_count; i++) {
        state next = *s;
        if (op_is_in_flight(p, s, i) && is_next_of_its_pair(p, s, i)) {
            deliver(p, &next, i);
            visit(arg, &next, -1);
        }
        if (s->op[i] == OP_MATCHED && p->ops[i].kind != OP_SEND) {
            next.op[i] = OP_DONE;
            if (s->partner[i] >= 0)
                next.op[s->partner[i]] = OP_DONE;
            visit(arg, &next, -1);
        }
    }
}
