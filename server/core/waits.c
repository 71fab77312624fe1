/* From the reduced graph to findings: who is stuck, who is a cause, and which operations show it. */
#include "server/core/waits.h"

#include <stdlib.h>
#include <string.h>

#include "server/core/waits_graph.h"

typedef struct builder {
    waits_graph *g;
    waits_result *out;
    uint32_t step_capacity;
    uint32_t *part_first; /* by part: its first operation in `part_ops` */
    uint32_t *part_ops;
    uint32_t *gone_of; /* by group: members that have ended */
} builder;

/* ---------------------------------------------------------------------------------------------- writing */

/* NULL: over the limit, the cause is only counted; or no memory. */
static waits_finding *add_finding(builder *b, waits_class class)
{
    waits_result *out = b->out;
    out->cause_count++;
    if (out->finding_count == WAITS_FINDINGS)
        return NULL;
    waits_finding *f = &out->findings[out->finding_count++];
    *f = (waits_finding){.class = class, .first_step = out->step_count};
    return f;
}

static uint32_t rank_of(const waits_graph *g, uint32_t op)
{
    return g->in->units[g->in->ops[op].unit].rank;
}

static psd_status add_step(builder *b, waits_finding *f, uint32_t thread, uint32_t unit, uint32_t op,
                           uint32_t rank)
{
    waits_result *out = b->out;
    if (out->step_count == b->step_capacity) {
        uint32_t capacity = b->step_capacity == 0 ? 64 : 2 * b->step_capacity;
        waits_step *more = realloc(out->steps, capacity * sizeof *more);
        if (more == NULL)
            return PSD_ERR_NOMEM;
        out->steps = more;
        b->step_capacity = capacity;
    }
    bool is_free = thread != WAITS_NONE && out->standing[thread] == WAITS_FREE;
    if (is_free && f->class != WAITS_MISMATCH)
        thread = WAITS_NONE; /* it waits for other things besides, and is not held by this */
    out->steps[out->step_count++] = (waits_step){thread, unit, op, rank};
    f->step_count++;
    if (thread != WAITS_NONE && out->standing[thread] == WAITS_VICTIM)
        out->standing[thread] = WAITS_CAUSE;
    return PSD_OK;
}

static psd_status add_op_step(builder *b, waits_finding *f, uint32_t op, uint32_t rank)
{
    uint32_t unit = b->g->in->ops[op].unit;
    return add_step(b, f, b->g->thread_of[unit], unit, op, rank);
}

/* Do stuck threads wait for this node? */
static bool matters(const waits_graph *g, uint32_t node)
{
    return g->part[node] != WAITS_NONE;
}

/* --------------------------------------------------------------------------------------------- deadlocks */

/* The unit that a thread, or else the operation before, waits for on the way to the operation at nodes[at]. */
static void step_before(const waits_graph *g, const uint32_t *nodes, uint32_t length, uint32_t at,
                        uint32_t *thread, uint32_t *unit)
{
    *unit = g->in->ops[nodes[at] - g->ops].unit;
    for (uint32_t i = at > 0 ? at - 1 : length - 2; nodes[i] < g->ops || nodes[i] >= g->hubs;
         i = i > 0 ? i - 1 : length - 2) {
        if (nodes[i] < g->in->thread_count) {
            *thread = nodes[i];
            return;
        }
        if (nodes[i] >= g->ends && nodes[i] < g->ops)
            *unit = nodes[i] - g->ends;
        else if (nodes[i] >= g->starts && nodes[i] < g->ends)
            *unit = nodes[i] - g->starts;
    }
    *thread = g->thread_of[*unit];
}

static uint32_t next_op(const waits_graph *g, const uint32_t *nodes, uint32_t length, uint32_t at)
{
    do
        at = (at + 1) % (length - 1);
    while (nodes[at] < g->ops || nodes[at] >= g->hubs);
    return at;
}

/* Writes a cycle, beginning with its lowest rank. */
static psd_status write_cycle(builder *b, waits_finding *f, const uint32_t *nodes, uint32_t length)
{
    const waits_graph *g = b->g;
    uint32_t first = 0, at = 0;
    do {
        if (rank_of(g, nodes[at] - g->ops) < rank_of(g, nodes[first] - g->ops))
            first = at;
        at = next_op(g, nodes, length, at);
    } while (at != 0);
    psd_status status = PSD_OK;
    at = first;
    do {
        uint32_t after = next_op(g, nodes, length, at), thread, unit;
        step_before(g, nodes, length, at, &thread, &unit);
        status = add_step(b, f, thread, unit, nodes[at] - g->ops, rank_of(g, nodes[after] - g->ops));
        at = after;
    } while (at != first && status == PSD_OK);
    f->count = f->step_count;
    return status;
}

static psd_status write_deadlock(builder *b, uint32_t part)
{
    uint32_t *nodes = NULL, length = 0;
    waits_finding *f = add_finding(b, WAITS_DEADLOCK);
    if (f == NULL)
        return PSD_OK;
    const uint32_t *ops = b->part_ops + b->part_first[part];
    uint32_t count = b->part_first[part + 1] - b->part_first[part];
    psd_status status = waits_shortest_cycle(b->g, part, ops, count, &nodes, &length);
    if (status == PSD_OK && nodes != NULL)
        status = write_cycle(b, f, nodes, length);
    free(nodes);
    return status;
}

/* Operations by part; parts are then written once, at their first operation. */
static psd_status sort_by_part(builder *b)
{
    const waits_graph *g = b->g;
    uint32_t ops = g->in->op_count;
    b->part_first = calloc((size_t)g->part_count + 2, sizeof *b->part_first);
    b->part_ops = calloc((size_t)ops + 1, sizeof *b->part_ops);
    if (b->part_first == NULL || b->part_ops == NULL)
        return PSD_ERR_NOMEM;
    for (uint32_t i = 0; i < ops; i++)
        if (matters(g, g->ops + i))
            b->part_first[g->part[g->ops + i] + 2]++;
    for (uint32_t p = 0; p < g->part_count; p++)
        b->part_first[p + 2] += b->part_first[p + 1];
    for (uint32_t i = 0; i < ops; i++)
        if (matters(g, g->ops + i))
            b->part_ops[b->part_first[g->part[g->ops + i] + 1]++] = i;
    return PSD_OK;
}

static bool is_cause(const waits_graph *g, uint32_t part)
{
    return g->part_is_cycle[part] && !g->part_has_exit[part];
}

static psd_status find_deadlocks(builder *b)
{
    const waits_graph *g = b->g;
    psd_status status = PSD_OK;
    for (uint32_t i = 0; i < g->in->op_count && status == PSD_OK; i++) {
        uint32_t part = g->part[g->ops + i];
        if (part != WAITS_NONE && is_cause(g, part) && b->part_ops[b->part_first[part]] == i)
            status = write_deadlock(b, part);
    }
    return status;
}

/* ----------------------------------------------------------------------------------------------- orphans */

static psd_status add_gone(builder *b, waits_finding *f, uint32_t op, uint32_t rank)
{
    if (b->g->in->ranks[rank].life == WAITS_DEAD)
        f->class = WAITS_PEER_FAILED;
    return f->count++ < WAITS_NAMED ? add_op_step(b, f, op, rank) : PSD_OK;
}

static bool is_gone(const waits_graph *g, uint32_t node)
{
    return node >= g->ranks && node < g->starts && g->kind[node] == NODE_DEAD;
}

/* `op` waits for those of the node's successors that will never come. */
static psd_status write_orphan(builder *b, uint32_t op, uint32_t node)
{
    const waits_graph *g = b->g;
    psd_status status = PSD_OK;
    waits_finding *f = add_finding(b, WAITS_ORPHAN);
    for (size_t i = g->out_first[node]; i < g->out_first[node + 1] && f != NULL && status == PSD_OK; i++)
        if (is_gone(g, g->out[i]))
            status = add_gone(b, f, op, g->out[i] - g->ranks);
    return status;
}

/* From any source, and no other member is left. */
static psd_status write_orphan_of_all(builder *b, uint32_t op)
{
    const waits_graph *g = b->g;
    const waits_group *group = &g->in->groups[g->in->ops[op].group];
    psd_status status = PSD_OK;
    waits_finding *f = add_finding(b, WAITS_ORPHAN);
    for (uint32_t m = 0; m < group->size && f != NULL && status == PSD_OK; m++) {
        uint32_t rank = waits_member(group, m);
        if (is_gone(g, g->ranks + rank))
            status = add_gone(b, f, op, rank);
    }
    if (f != NULL && f->count == 0 && status == PSD_OK)
        status = add_op_step(b, f, op, WAITS_NONE); /* there never was another */
    return status;
}

/* How many members of each group have ended? */
static psd_status count_gone(builder *b)
{
    const waits_graph *g = b->g;
    b->gone_of = calloc((size_t)g->in->group_count + 1, sizeof *b->gone_of);
    if (b->gone_of == NULL)
        return PSD_ERR_NOMEM;
    for (uint32_t i = 0; i < g->in->group_count; i++)
        for (uint32_t m = 0; m < g->in->groups[i].size; m++)
            b->gone_of[i] += is_gone(g, g->ranks + waits_member(&g->in->groups[i], m));
    return PSD_OK;
}

static psd_status find_orphan(builder *b, uint32_t op)
{
    const waits_graph *g = b->g;
    uint32_t node = g->ops + op, group = g->in->ops[op].group;
    if (!matters(g, node) || !waits_is_p2p(g->in->ops[op].kind) || !g->doomed[node] ||
        g->partner[op] != WAITS_NONE)
        return PSD_OK;
    if (g->in->ops[op].peer == WAITS_ANY)
        return b->gone_of[group] + 1 >= g->in->groups[group].size ? write_orphan_of_all(b, op) : PSD_OK;
    return is_gone(g, g->out[g->out_first[node]]) ? write_orphan(b, op, node) : PSD_OK;
}

/* An operation of a hub that is held up by it; else the hub's first. */
static uint32_t waiting_op(const waits_graph *g, uint32_t hub)
{
    for (uint32_t i = 0; i < g->hub[hub].op_count; i++) {
        uint32_t op = g->hub_ops[g->hub[hub].op + i];
        if (matters(g, g->ops + op))
            return op;
    }
    return g->hub_ops[g->hub[hub].op];
}

static psd_status find_orphans(builder *b)
{
    const waits_graph *g = b->g;
    psd_status status = count_gone(b);
    for (uint32_t i = 0; i < g->in->op_count && status == PSD_OK; i++)
        status = find_orphan(b, i);
    for (uint32_t h = 0; h < g->hub_count && status == PSD_OK; h++) {
        bool is_hopeless = false;
        uint32_t node = g->missing + h;
        for (size_t i = g->out_first[node]; i < g->out_first[node + 1] && matters(g, node); i++)
            is_hopeless = is_hopeless || is_gone(g, g->out[i]);
        if (is_hopeless)
            status = write_orphan(b, waiting_op(g, h), node);
    }
    return status;
}

/* -------------------------------------------------------------------------------------------- mismatches */

static psd_status write_pair(builder *b, uint32_t op, uint32_t partner)
{
    const waits_graph *g = b->g;
    waits_finding *f = add_finding(b, WAITS_MISMATCH);
    if (f == NULL)
        return PSD_OK;
    f->field = waits_disagreement(&g->in->ops[op], &g->in->ops[partner]);
    f->count = 2;
    psd_status status = add_op_step(b, f, op, rank_of(g, partner));
    return status == PSD_OK ? add_op_step(b, f, partner, rank_of(g, op)) : status;
}

/* The first rank that has come, the first that disagrees with it, then the others. */
static psd_status write_collective(builder *b, const waits_hub *hub)
{
    const waits_graph *g = b->g;
    const waits_op *ops = g->in->ops;
    const uint32_t *come = g->hub_ops + hub->op;
    waits_finding *f = add_finding(b, WAITS_MISMATCH);
    if (f == NULL)
        return PSD_OK;
    uint32_t other = 1;
    while (other < hub->op_count && waits_disagreement(&ops[come[0]], &ops[come[other]]) == NULL)
        other++;
    f->field = hub->field;
    f->count = hub->op_count;
    psd_status status = add_op_step(b, f, come[0], rank_of(g, come[other]));
    if (status == PSD_OK)
        status = add_op_step(b, f, come[other], rank_of(g, come[0]));
    for (uint32_t i = 1; i < hub->op_count && f->step_count < WAITS_NAMED && status == PSD_OK; i++) {
        bool agrees = waits_disagreement(&ops[come[0]], &ops[come[i]]) == NULL;
        if (i != other)
            status = add_op_step(b, f, come[i], rank_of(g, come[agrees ? other : 0]));
    }
    return status;
}

static psd_status find_mismatches(builder *b)
{
    const waits_graph *g = b->g;
    psd_status status = PSD_OK;
    for (uint32_t i = 0; i < g->in->op_count && status == PSD_OK; i++) {
        uint32_t partner = g->partner[i];
        if (matters(g, g->ops + i) && g->kind[g->ops + i] == NODE_DEAD &&
            (i < partner || !matters(g, g->ops + partner)))
            status = write_pair(b, i, partner);
    }
    for (uint32_t h = 0; h < g->hub_count && status == PSD_OK; h++)
        if (g->hub[h].field != NULL && matters(g, g->hubs + h))
            status = write_collective(b, &g->hub[h]);
    return status;
}

/* ----------------------------------------------------------------------------------------------- standing */

static bool is_in_a_cause(const waits_graph *g, uint32_t node)
{
    return g->part[node] != WAITS_NONE && is_cause(g, g->part[node]);
}

/* A unit that several threads wait for: a stuck one speaks for it. */
static void mark_stuck(builder *b)
{
    waits_graph *g = b->g;
    for (uint32_t t = 0; t < g->in->thread_count; t++) {
        if (g->released[t])
            continue;
        b->out->stuck++;
        b->out->standing[t] = is_in_a_cause(g, t) ? WAITS_CAUSE : WAITS_VICTIM;
        const waits_thread *thread = &g->in->threads[t];
        for (uint32_t i = 0; i < thread->work_count; i++)
            g->thread_of[g->in->works[thread->first_work + i]] = t;
    }
    for (uint32_t u = 0; u < g->in->unit_count; u++)
        if (g->thread_of[u] != WAITS_NONE && !g->released[g->thread_of[u]] &&
            (is_in_a_cause(g, g->ends + u) || is_in_a_cause(g, g->starts + u)))
            b->out->standing[g->thread_of[u]] = WAITS_CAUSE;
}

static psd_status find_all(builder *b)
{
    psd_status status = waits_parts(b->g);
    if (status == PSD_OK)
        status = sort_by_part(b);
    if (status != PSD_OK)
        return status;
    mark_stuck(b);
    status = find_mismatches(b);
    if (status == PSD_OK)
        status = find_deadlocks(b);
    return status == PSD_OK ? find_orphans(b) : status;
}

psd_status waits_solve(const waits_input *input, waits_result *out)
{
    if (!waits_input_is_sound(input))
        return PSD_ERR_INVAL;
    waits_graph g = {.in = input};
    waits_result result = {0};
    builder b = {.g = &g, .out = &result};
    result.standing = calloc((size_t)input->thread_count + 1, 1);
    result.findings = calloc(WAITS_FINDINGS, sizeof *result.findings);
    psd_status status =
        result.standing != NULL && result.findings != NULL ? waits_graph_build(&g) : PSD_ERR_NOMEM;
    if (status == PSD_OK)
        status = waits_graph_reduce(&g);
    if (status == PSD_OK)
        status = find_all(&b);
    free(b.part_first);
    free(b.part_ops);
    free(b.gone_of);
    waits_graph_free(&g);
    if (status == PSD_OK)
        *out = result;
    else
        waits_result_free(&result);
    return status;
}

void waits_result_free(waits_result *result)
{
    free(result->standing);
    free(result->findings);
    free(result->steps);
    memset(result, 0, sizeof *result);
}
