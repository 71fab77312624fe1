/* The wait-for graph: its nodes and edges, and who of them is released. */
#include "server/core/waits_graph.h"

#include <stdlib.h>
#include <string.h>

void waits_graph_free(waits_graph *g)
{
    free(g->kind);
    free(g->hub);
    free(g->hub_ops);
    free(g->hub_of);
    free(g->partner);
    free(g->meets);
    free(g->thread_of);
    free(g->chain_of);
    free(g->edge_from);
    free(g->edge_to);
    free(g->out_first);
    free(g->out);
    free(g->in_first);
    free(g->back);
    free(g->released);
    free(g->doomed);
    free(g->part);
    free(g->part_has_exit);
    free(g->part_is_cycle);
    memset(g, 0, sizeof *g);
}

/* ------------------------------------------------------------------------------------------------- edges */

static psd_status add_edge(waits_graph *g, uint32_t from, uint32_t to)
{
    if (g->edge_count == g->edge_capacity) {
        size_t capacity = g->edge_capacity == 0 ? 1024 : 2 * g->edge_capacity;
        uint32_t *more = realloc(g->edge_from, capacity * sizeof *more);
        if (more == NULL)
            return PSD_ERR_NOMEM;
        g->edge_from = more;
        more = realloc(g->edge_to, capacity * sizeof *more);
        if (more == NULL)
            return PSD_ERR_NOMEM;
        g->edge_to = more;
        g->edge_capacity = capacity;
    }
    g->edge_from[g->edge_count] = from;
    g->edge_to[g->edge_count++] = to;
    return PSD_OK;
}

static psd_status add_thread(waits_graph *g, uint32_t at)
{
    const waits_thread *t = &g->in->threads[at];
    psd_status status = PSD_OK;
    bool may_be_released_unseen = t->any && t->is_partial;
    if (!t->is_blocked || may_be_released_unseen || (t->work_count == 0 && t->is_partial))
        return PSD_OK;
    g->kind[at] = t->any && t->work_count > 0 ? NODE_ANY : NODE_ALL;
    for (uint32_t i = 0; i < t->work_count && status == PSD_OK; i++) {
        uint32_t unit = g->in->works[t->first_work + i];
        g->thread_of[unit] = at;
        status = add_edge(g, at, g->ends + unit);
    }
    return status;
}

static psd_status add_rank(waits_graph *g, uint32_t at)
{
    const waits_rank *r = &g->in->ranks[at];
    psd_status status = PSD_OK;
    if (waits_is_gone(r->life)) {
        g->kind[g->ranks + at] = NODE_DEAD;
    } else if (r->life == WAITS_LIVE && r->thread_count > 0) {
        g->kind[g->ranks + at] = NODE_ANY;
        for (uint32_t i = 0; i < r->thread_count && status == PSD_OK; i++)
            status = add_edge(g, g->ranks + at, r->first_thread + i);
    }
    return status;
}

static psd_status add_unit(waits_graph *g, uint32_t at)
{
    const waits_unit *u = &g->in->units[at];
    psd_status status = PSD_OK;
    if (u->is_complete)
        return PSD_OK;
    g->kind[g->starts + at] = g->kind[g->ends + at] = NODE_ALL;
    if (u->after != WAITS_NONE)
        status = add_edge(g, g->starts + at, g->ends + u->after);
    if (status == PSD_OK)
        status = add_edge(g, g->ends + at, g->starts + at);
    for (uint32_t i = 0; i < u->op_count && status == PSD_OK; i++)
        if (!g->in->ops[u->first_op + i].is_complete)
            status = add_edge(g, g->ends + at, g->ops + u->first_op + i);
    return status;
}

static psd_status add_op(waits_graph *g, uint32_t at)
{
    const waits_op *o = &g->in->ops[at];
    uint32_t node = g->ops + at, partner = g->partner[at];
    if (o->is_complete || g->meets[at])
        return PSD_OK;
    g->kind[node] = NODE_ALL;
    if (!waits_is_p2p(o->kind))
        return add_edge(g, node, g->hubs + g->hub_of[at]);
    if (o->peer == WAITS_ANY)
        return PSD_OK; /* add_any_source */
    if (partner == WAITS_NONE)
        return add_edge(g, node, g->ranks + (uint32_t)o->peer);
    if (waits_disagreement(o, &g->in->ops[partner]) != NULL) {
        g->kind[node] = NODE_DEAD;
        return PSD_OK;
    }
    return add_edge(g, node, g->starts + g->in->ops[partner].unit);
}

/* ------------------------------------------------------------------------------------------- any source */

static bool is_from_any(const waits_graph *g, uint32_t at)
{
    const waits_op *o = &g->in->ops[at];
    return waits_is_p2p(o->kind) && o->peer == WAITS_ANY && !o->is_complete && !g->meets[at];
}

static psd_status add_chains(waits_graph *g, const waits_group *group, uint32_t up, uint32_t down)
{
    psd_status status = PSD_OK;
    for (uint32_t m = 0; m < group->size && status == PSD_OK; m++) {
        uint32_t rank = g->ranks + waits_member(group, m);
        g->kind[up + m] = g->kind[down + m] = NODE_ANY;
        status = add_edge(g, up + m, rank);
        if (status == PSD_OK)
            status = add_edge(g, down + m, rank);
        if (status == PSD_OK && m > 0)
            status = add_edge(g, up + m, up + m - 1);
        if (status == PSD_OK && m + 1 < group->size)
            status = add_edge(g, down + m, down + m + 1);
    }
    return status;
}

/* The receive waits for any other member; for its own rank only if another of its threads may send. `at_of` has the
 * place of each rank in the group. */
static psd_status add_from_any(waits_graph *g, uint32_t at, const uint32_t *at_of)
{
    const waits_op *o = &g->in->ops[at];
    uint32_t own = g->in->units[o->unit].rank, node = g->ops + at;
    uint32_t size = g->in->groups[o->group].size, place = at_of[own];
    uint32_t up = g->chain_of[o->group], down = up + size;
    psd_status status = PSD_OK;
    g->kind[node] = NODE_ANY;
    if (place == WAITS_NONE)
        return size > 0 ? add_edge(g, node, down) : PSD_OK;
    if (place > 0)
        status = add_edge(g, node, up + place - 1);
    if (status == PSD_OK && place + 1 < size)
        status = add_edge(g, node, down + place + 1);
    if (status == PSD_OK && g->in->ranks[own].thread_count != 1)
        status = add_edge(g, node, g->ranks + own);
    return status;
}

static psd_status add_any_source_of(waits_graph *g, uint32_t at, const uint32_t *first, const uint32_t *next,
                                    uint32_t *at_of)
{
    const waits_group *group = &g->in->groups[at];
    psd_status status = add_chains(g, group, g->chain_of[at], g->chain_of[at] + group->size);
    for (uint32_t m = 0; m < group->size; m++)
        at_of[waits_member(group, m)] = m;
    for (uint32_t i = first[at]; i != WAITS_NONE && status == PSD_OK; i = next[i])
        status = add_from_any(g, i, at_of);
    for (uint32_t m = 0; m < group->size; m++)
        at_of[waits_member(group, m)] = WAITS_NONE;
    return status;
}

static psd_status add_any_source(waits_graph *g)
{
    const waits_input *in = g->in;
    psd_status status = PSD_ERR_NOMEM;
    uint32_t *first = calloc((size_t)in->group_count + 1, sizeof *first);
    uint32_t *next = calloc((size_t)in->op_count + 1, sizeof *next);
    uint32_t *at_of = calloc((size_t)in->rank_count + 1, sizeof *at_of);
    if (first == NULL || next == NULL || at_of == NULL)
        goto out;
    for (uint32_t i = 0; i < in->group_count; i++)
        first[i] = WAITS_NONE;
    for (uint32_t i = 0; i < in->rank_count; i++)
        at_of[i] = WAITS_NONE;
    for (uint32_t i = 0; i < in->op_count; i++) {
        if (!is_from_any(g, i))
            continue;
        next[i] = first[in->ops[i].group];
        first[in->ops[i].group] = i;
    }
    status = PSD_OK;
    for (uint32_t i = 0; i < in->group_count && status == PSD_OK; i++)
        if (g->chain_of[i] != WAITS_NONE)
            status = add_any_source_of(g, i, first, next, at_of);
out:
    free(at_of);
    free(next);
    free(first);
    return status;
}

/* ------------------------------------------------------------------------------------------------- hubs */

/* The first hub of a group, at or after `first`, to which a member has not come that has started so many; `end` if
 * none. The hubs of a group stand together, in the order of their ordinals. */
static uint32_t first_missed(const waits_graph *g, uint32_t first, uint32_t end, uint64_t started)
{
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (g->hub[middle].ordinal < started)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* Who has not come to one collective has not come to the later ones of its group either: each hub's "missing" are the
 * hub's before it, and those who came to that one but not to this. So the edges of a group are as many as its members
 * and hubs, not their product. */
static psd_status add_hubs_of_group(waits_graph *g, uint32_t first, uint32_t end)
{
    const waits_group *group = &g->in->groups[g->hub[first].group];
    psd_status status = PSD_OK;
    for (uint32_t h = first; h < end && status == PSD_OK; h++) {
        g->kind[g->missing + h] = NODE_ALL;
        g->kind[g->hubs + h] = g->hub[h].field != NULL ? NODE_DEAD : NODE_ALL;
        if (g->hub[h].field == NULL)
            status = add_edge(g, g->hubs + h, g->missing + h);
        if (status == PSD_OK && h > first)
            status = add_edge(g, g->missing + h, g->missing + h - 1);
        for (uint32_t i = 0; i < g->hub[h].op_count && status == PSD_OK && g->hub[h].field == NULL; i++) {
            uint32_t unit = g->in->ops[g->hub_ops[g->hub[h].op + i]].unit;
            if (g->in->units[unit].after != WAITS_NONE)
                status = add_edge(g, g->hubs + h, g->starts + unit);
        }
    }
    for (uint32_t m = 0; m < group->size && status == PSD_OK; m++) {
        uint64_t started = group->started != NULL ? group->started[m] : 0;
        uint32_t missed = first_missed(g, first, end, started);
        if (missed < end)
            status = add_edge(g, g->missing + missed, g->ranks + waits_member(group, m));
    }
    return status;
}

static psd_status add_hubs(waits_graph *g)
{
    psd_status status = PSD_OK;
    for (uint32_t first = 0, end; first < g->hub_count && status == PSD_OK; first = end) {
        for (end = first + 1; end < g->hub_count && g->hub[end].group == g->hub[first].group;)
            end++;
        status = add_hubs_of_group(g, first, end);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------ build */

static psd_status number_nodes(waits_graph *g)
{
    const waits_input *in = g->in;
    uint64_t chained = 0;
    g->chain_of = calloc((size_t)in->group_count + 1, sizeof *g->chain_of);
    if (g->chain_of == NULL)
        return PSD_ERR_NOMEM;
    for (uint32_t i = 0; i < in->op_count; i++)
        if (is_from_any(g, i))
            g->chain_of[in->ops[i].group] = 1;
    for (uint32_t i = 0; i < in->group_count; i++)
        chained += g->chain_of[i] != 0 ? 2 * (uint64_t)in->groups[i].size : 0;
    uint64_t total = (uint64_t)in->thread_count + in->rank_count + 2 * (uint64_t)in->unit_count +
                     in->op_count + 2 * (uint64_t)g->hub_count + chained;
    if (total >= WAITS_NONE)
        return PSD_ERR_NOMEM;
    g->ranks = in->thread_count;
    g->starts = g->ranks + in->rank_count;
    g->ends = g->starts + in->unit_count;
    g->ops = g->ends + in->unit_count;
    g->hubs = g->ops + in->op_count;
    g->missing = g->hubs + g->hub_count;
    g->chains = g->missing + g->hub_count;
    g->node_count = g->chains;
    for (uint32_t i = 0; i < in->group_count; i++) {
        bool has_chain = g->chain_of[i] != 0;
        g->chain_of[i] = has_chain ? g->node_count : WAITS_NONE;
        g->node_count += has_chain ? 2 * in->groups[i].size : 0;
    }
    return PSD_OK;
}

static psd_status add_edges(waits_graph *g)
{
    const waits_input *in = g->in;
    psd_status status = PSD_OK;
    for (uint32_t i = 0; i < in->thread_count && status == PSD_OK; i++)
        status = add_thread(g, i);
    for (uint32_t i = 0; i < in->rank_count && status == PSD_OK; i++)
        status = add_rank(g, i);
    for (uint32_t i = 0; i < in->unit_count && status == PSD_OK; i++)
        status = add_unit(g, i);
    for (uint32_t i = 0; i < in->op_count && status == PSD_OK; i++)
        status = add_op(g, i);
    if (status == PSD_OK)
        status = add_any_source(g);
    return status == PSD_OK ? add_hubs(g) : status;
}

/* Edges by the one end, and by the other: a counting sort each. */
static psd_status sort_edges(size_t count, uint32_t nodes, const uint32_t *by, const uint32_t *other,
                             size_t **first_out, uint32_t **list_out)
{
    size_t *first = calloc((size_t)nodes + 2, sizeof *first);
    uint32_t *list = calloc(count + 1, sizeof *list);
    if (first == NULL || list == NULL) {
        free(first);
        free(list);
        return PSD_ERR_NOMEM;
    }
    for (size_t i = 0; i < count; i++)
        first[by[i] + 2]++;
    for (uint32_t n = 0; n < nodes; n++)
        first[n + 2] += first[n + 1];
    for (size_t i = 0; i < count; i++)
        list[first[by[i] + 1]++] = other[i];
    *first_out = first;
    *list_out = list;
    return PSD_OK;
}

psd_status waits_graph_build(waits_graph *g)
{
    const waits_input *in = g->in;
    psd_status status = waits_match(g);
    if (status == PSD_OK)
        status = number_nodes(g);
    if (status != PSD_OK)
        return status;
    g->kind = calloc((size_t)g->node_count + 1, 1);
    g->thread_of = calloc((size_t)in->unit_count + 1, sizeof *g->thread_of);
    if (g->kind == NULL || g->thread_of == NULL)
        return PSD_ERR_NOMEM;
    for (uint32_t i = 0; i < in->unit_count; i++)
        g->thread_of[i] = WAITS_NONE;
    status = add_edges(g);
    if (status == PSD_OK)
        status = sort_edges(g->edge_count, g->node_count, g->edge_from, g->edge_to, &g->out_first, &g->out);
    if (status == PSD_OK)
        status = sort_edges(g->edge_count, g->node_count, g->edge_to, g->edge_from, &g->in_first, &g->back);
    return status;
}

/* -------------------------------------------------------------------------------------------- reduction */

/* Spreads a mark backwards over the edges: to a node of kind `one` as soon as it has a marked successor, to a node of
 * kind `all` once all its successors are marked. */
static psd_status spread(const waits_graph *g, bool *marked, node_kind one, node_kind all)
{
    size_t nodes = g->node_count, head = 0, tail = 0;
    size_t *left = calloc(nodes + 1, sizeof *left);
    uint32_t *queue = calloc(nodes + 1, sizeof *queue);
    if (left == NULL || queue == NULL) {
        free(queue);
        free(left);
        return PSD_ERR_NOMEM;
    }
    for (uint32_t n = 0; n < nodes; n++) {
        left[n] = g->out_first[n + 1] - g->out_first[n];
        marked[n] = marked[n] || (g->kind[n] == all && left[n] == 0);
        if (marked[n])
            queue[tail++] = n;
    }
    while (head < tail) {
        uint32_t done = queue[head++];
        for (size_t i = g->in_first[done]; i < g->in_first[done + 1]; i++) {
            uint32_t n = g->back[i];
            left[n]--;
            if (marked[n] || !(g->kind[n] == one || (g->kind[n] == all && left[n] == 0)))
                continue;
            marked[n] = true;
            queue[tail++] = n;
        }
    }
    free(queue);
    free(left);
    return PSD_OK;
}

psd_status waits_graph_reduce(waits_graph *g)
{
    g->released = calloc((size_t)g->node_count + 1, sizeof *g->released);
    g->doomed = calloc((size_t)g->node_count + 1, sizeof *g->doomed);
    if (g->released == NULL || g->doomed == NULL)
        return PSD_ERR_NOMEM;
    for (uint32_t n = 0; n < g->node_count; n++) {
        g->released[n] = g->kind[n] == NODE_FREE;
        g->doomed[n] = g->kind[n] == NODE_DEAD;
    }
    psd_status status = spread(g, g->released, NODE_ANY, NODE_ALL);
    return status == PSD_OK ? spread(g, g->doomed, NODE_ALL, NODE_ANY) : status;
}

bool waits_edge_counts(const waits_graph *g, uint32_t from, uint32_t to)
{
    if (g->released[to])
        return false;
    return !(g->kind[from] == NODE_ANY && g->doomed[to] && !g->doomed[from]);
}
