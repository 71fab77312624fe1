/* What is stuck in a state and why, by brute force: sets of threads and operations grow until nothing changes, and a
 * matrix tells who reaches whom. */
#include <string.h>

#include "tests/waits/model.h"

#define MOST_ITEMS (MOST_THREADS + MOST_OPS) /* threads, then operations */
#define FAR        1000

typedef struct view {
    const program *p;
    const state *s;
    bool thread[MOST_THREADS]; /* free, or doomed */
    bool op[MOST_OPS];
} view;

/* What is asked of a thing: can it go on (all that it needs, or any, can)? Or is it doomed (any of what it needs, or
 * all alternatives, are)? */
typedef enum question { CAN_GO_ON, IS_DOOMED } question;

static bool join_needs(question q, bool a, bool b)
{
    return q == CAN_GO_ON ? a && b : a || b;
}

static bool join_choices(question q, bool a, bool b)
{
    return q == CAN_GO_ON ? a || b : a && b;
}

static bool ask_rank(const view *v, question q, int rank)
{
    bool answer = q == IS_DOOMED;
    if (rank_has_ended(v->p, v->s, rank))
        return q == IS_DOOMED;
    for (int t = 0; t < v->p->threads; t++)
        if (v->p->rank_of[t] == rank && !thread_has_ended(v->p, v->s, t))
            answer = join_choices(q, answer, v->thread[t]);
    return answer;
}

static bool ask_unit(const view *v, question q, int at);

static bool ask_start(const view *v, question q, int at)
{
    int before = unit_before(v->p, v->s, at);
    return before < 0 ? q == CAN_GO_ON : ask_unit(v, q, before);
}

static bool ask_unit(const view *v, question q, int at)
{
    const unit *u = &v->p->units[at];
    if (unit_is_done(v->p, v->s, at))
        return q == CAN_GO_ON;
    bool answer = ask_start(v, q, at);
    for (int i = 0; i < u->op_count; i++)
        if (v->s->op[u->first_op + i] != OP_DONE)
            answer = join_needs(q, answer, v->op[u->first_op + i]);
    return answer;
}

static bool is_missing(const view *v, int at, int rank)
{
    int group = v->p->ops[at].group;
    return ((v->p->members[group] >> rank) & 1) != 0 && v->s->started[rank][group] <= v->s->ordinal[at];
}

static bool is_same_collective(const view *v, int a, int b)
{
    return v->p->ops[a].kind == OP_COLL && v->p->ops[b].kind == OP_COLL &&
           v->p->ops[a].group == v->p->ops[b].group && v->s->op[b] != OP_UNPOSTED &&
           v->s->ordinal[a] == v->s->ordinal[b];
}

static bool ask_collective(const view *v, question q, int at)
{
    bool answer = q == CAN_GO_ON;
    for (int r = 0; r < v->p->ranks; r++)
        if (is_missing(v, at, r))
            answer = join_needs(q, answer, ask_rank(v, q, r));
    for (int i = 0; i < v->p->op_count && v->p->is_queued; i++)
        if (is_same_collective(v, at, i))
            answer = join_needs(q, answer, ask_start(v, q, v->p->ops[i].unit));
    return answer;
}

/* Queued programs: the posted other end, or -1. */
static int other_end(const view *v, int at)
{
    const op *o = &v->p->ops[at];
    for (int i = 0; i < v->p->op_count && v->p->is_queued; i++) {
        const op *c = &v->p->ops[i];
        if (v->s->op[i] != OP_UNPOSTED && c->kind != OP_COLL && c->kind != o->kind && c->group == o->group &&
            c->peer == op_rank(v->p, at) && o->peer == op_rank(v->p, i) &&
            v->s->ordinal[i] == v->s->ordinal[at])
            return i;
    }
    return -1;
}

/* Whom a receive from any source may wait for: its own rank only if that has another thread. */
static bool may_send(const view *v, int at, int rank)
{
    int own = op_rank(v->p, at), threads = 0;
    for (int t = 0; t < v->p->threads; t++)
        threads += v->p->rank_of[t] == own && !thread_has_ended(v->p, v->s, t);
    return ((v->p->members[v->p->ops[at].group] >> rank) & 1) != 0 && (rank != own || threads > 1);
}

static bool ask_op(const view *v, question q, int at)
{
    const op *o = &v->p->ops[at];
    if (v->s->op[at] == OP_DONE || v->s->op[at] == OP_MATCHED)
        return q == CAN_GO_ON;
    if (o->kind == OP_COLL)
        return ask_collective(v, q, at);
    int other = other_end(v, at);
    if (other >= 0)
        return ask_start(v, q, v->p->ops[other].unit);
    if (o->peer != ANY)
        return ask_rank(v, q, o->peer);
    bool answer = q == IS_DOOMED;
    for (int r = 0; r < v->p->ranks; r++)
        if (may_send(v, at, r))
            answer = join_choices(q, answer, ask_rank(v, q, r));
    return answer;
}

static bool ask_thread(const view *v, question q, int t)
{
    if (!thread_is_blocked(v->p, v->s, t))
        return q == CAN_GO_ON;
    const instruction *code = &v->p->code[t][v->s->at[t]];
    bool answer = code->any ? q == IS_DOOMED : q == CAN_GO_ON;
    for (int u = 0; u < v->p->unit_count; u++) {
        if (((code->units >> u) & 1) == 0)
            continue;
        bool part = ask_unit(v, q, u);
        answer = code->any ? join_choices(q, answer, part) : join_needs(q, answer, part);
    }
    return answer;
}

static void ask_until_nothing_changes(view *v, question q)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int i = 0; i < v->p->op_count; i++)
            if (v->s->op[i] != OP_UNPOSTED && !v->op[i] && ask_op(v, q, i))
                moved = v->op[i] = true;
        for (int t = 0; t < v->p->threads; t++)
            if (!v->thread[t] && !thread_has_ended(v->p, v->s, t) && ask_thread(v, q, t))
                moved = v->thread[t] = true;
    }
}

/* ------------------------------------------------------------------------------------------ who needs whom */

typedef struct needs {
    const view *free;
    const view *doomed;
    int far[MOST_ITEMS][MOST_ITEMS]; /* operations passed on the shortest way; FAR: none */
    bool has_exit[MOST_ITEMS];       /* needs a rank that has ended */
} needs;

static void need(needs *n, int from, int to)
{
    int length = to >= MOST_THREADS ? 1 : 0;
    if (length < n->far[from][to])
        n->far[from][to] = length;
}

/* `choice`: one of several, of which the doomed do not count unless all are. */
static void need_rank(needs *n, int from, int rank, bool choice, bool all_doomed)
{
    const program *p = n->free->p;
    const state *s = n->free->s;
    if (ask_rank(n->free, CAN_GO_ON, rank))
        return;
    bool is_doomed = ask_rank(n->doomed, IS_DOOMED, rank);
    if (choice && is_doomed && !all_doomed)
        return;
    if (rank_has_ended(p, s, rank)) {
        n->has_exit[from] = true;
        return;
    }
    for (int t = 0; t < p->threads; t++)
        if (p->rank_of[t] == rank && !thread_has_ended(p, s, t) && (is_doomed || !n->doomed->thread[t]))
            need(n, from, t);
}

static void need_unit(needs *n, int from, int at);

static void need_start(needs *n, int from, int at)
{
    int before = unit_before(n->free->p, n->free->s, at);
    if (before >= 0)
        need_unit(n, from, before);
}

static void need_unit(needs *n, int from, int at)
{
    const unit *u = &n->free->p->units[at];
    if (unit_is_done(n->free->p, n->free->s, at))
        return;
    need_start(n, from, at);
    for (int i = 0; i < u->op_count; i++)
        if (n->free->s->op[u->first_op + i] != OP_DONE && !n->free->op[u->first_op + i])
            need(n, from, MOST_THREADS + u->first_op + i);
}

static void needs_of_op(needs *n, int at)
{
    const program *p = n->free->p;
    const op *o = &p->ops[at];
    int item = MOST_THREADS + at, other = o->kind == OP_COLL ? -1 : other_end(n->free, at);
    if (o->kind == OP_COLL) {
        for (int r = 0; r < p->ranks; r++)
            if (is_missing(n->free, at, r))
                need_rank(n, item, r, false, false);
        for (int i = 0; i < p->op_count && p->is_queued; i++)
            if (is_same_collective(n->free, at, i))
                need_start(n, item, p->ops[i].unit);
    } else if (other >= 0) {
        need_start(n, item, p->ops[other].unit);
    } else if (o->peer != ANY) {
        need_rank(n, item, o->peer, false, false);
    } else {
        for (int r = 0; r < p->ranks; r++)
            if (may_send(n->free, at, r))
                need_rank(n, item, r, true, n->doomed->op[at]);
    }
}

static void needs_of_thread(needs *n, int t)
{
    const instruction *code = &n->free->p->code[t][n->free->s->at[t]];
    for (int u = 0; u < n->free->p->unit_count; u++) {
        if (((code->units >> u) & 1) == 0 || ask_unit(n->free, CAN_GO_ON, u))
            continue;
        if (!code->any || n->doomed->thread[t] || !ask_unit(n->doomed, IS_DOOMED, u))
            need_unit(n, t, u);
    }
}

static void close_over(needs *n)
{
    for (int k = 0; k < MOST_ITEMS; k++)
        for (int i = 0; i < MOST_ITEMS; i++)
            for (int j = 0; j < MOST_ITEMS && n->far[i][k] < FAR; j++)
                if (n->far[i][k] + n->far[k][j] < n->far[i][j])
                    n->far[i][j] = n->far[i][k] + n->far[k][j];
}

/* Is it on a cycle that nothing outside could end? */
static bool is_in_a_cause(const needs *n, int item)
{
    if (n->far[item][item] >= FAR)
        return false;
    for (int j = 0; j < MOST_ITEMS; j++)
        if (n->far[item][j] < FAR && (n->has_exit[j] || n->far[j][item] >= FAR))
            return false;
    return true;
}

static bool is_needed(const needs *n, const oracle *out, int item)
{
    for (int t = 0; t < MOST_THREADS; t++)
        if (((out->stuck >> t) & 1) != 0 && n->far[t][item] < FAR)
            return true;
    return false;
}

static void find_cycles(const needs *n, oracle *out)
{
    bool seen[MOST_ITEMS] = {false};
    for (int i = MOST_THREADS; i < MOST_ITEMS; i++) {
        if (seen[i] || !is_needed(n, out, i) || !is_in_a_cause(n, i))
            continue;
        int shortest = FAR;
        for (int j = 0; j < MOST_ITEMS; j++) {
            if (n->far[i][j] >= FAR)
                continue;
            seen[j] = true;
            if (n->far[j][j] < shortest)
                shortest = n->far[j][j];
        }
        out->shortest[out->cycles++] = shortest;
    }
}

static bool waits_for_the_gone(const needs *n, int at)
{
    const view *v = n->free;
    const op *o = &v->p->ops[at];
    if (o->kind == OP_COLL || o->peer != ANY)
        return n->has_exit[MOST_THREADS + at];
    for (int r = 0; r < v->p->ranks; r++)
        if (may_send(v, at, r) && !rank_has_ended(v->p, v->s, r))
            return false;
    return true;
}

static void summarize(const needs *n, oracle *out)
{
    const view *v = n->free;
    find_cycles(n, out);
    for (int t = 0; t < v->p->threads; t++) {
        if (((out->stuck >> t) & 1) == 0)
            continue;
        bool is_cause = is_in_a_cause(n, t);
        const instruction *code = &v->p->code[t][v->s->at[t]];
        for (int i = 0; i < v->p->op_count; i++)
            if (n->far[t][MOST_THREADS + i] < FAR && ((code->units >> v->p->ops[i].unit) & 1) != 0)
                is_cause = is_cause || is_in_a_cause(n, MOST_THREADS + i);
        out->causes |= is_cause ? UINT32_C(1) << t : 0;
    }
    for (int i = 0; i < v->p->op_count; i++)
        if (v->s->op[i] == OP_POSTED && !v->op[i] && is_needed(n, out, MOST_THREADS + i) &&
            waits_for_the_gone(n, i))
            out->orphans |= UINT32_C(1) << i;
}

void oracle_ask(const program *p, const state *s, oracle *out)
{
    view free = {.p = p, .s = s}, doomed = {.p = p, .s = s};
    memset(out, 0, sizeof *out);
    ask_until_nothing_changes(&free, CAN_GO_ON);
    for (int t = 0; t < p->threads; t++)
        if (!thread_has_ended(p, s, t) && !free.thread[t])
            out->stuck |= UINT32_C(1) << t;
    if (out->stuck == 0)
        return;
    ask_until_nothing_changes(&doomed, IS_DOOMED);
    needs n = {.free = &free, .doomed = &doomed};
    for (int i = 0; i < MOST_ITEMS; i++)
        for (int j = 0; j < MOST_ITEMS; j++)
            n.far[i][j] = FAR;
    for (int t = 0; t < p->threads; t++)
        if (((out->stuck >> t) & 1) != 0)
            needs_of_thread(&n, t);
    for (int i = 0; i < p->op_count; i++)
        if (s->op[i] == OP_POSTED && !free.op[i])
            needs_of_op(&n, i);
    close_over(&n);
    summarize(&n, out);
}
