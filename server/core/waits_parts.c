/* The strongly connected parts of what stuck threads wait for: Tarjan's algorithm ("Depth-first search and linear graph
 * algorithms", 1972), with a stack of its own in place of recursion. */
#include <stdlib.h>

#include "server/core/waits_graph.h"

typedef struct frame {
    uint32_t node;
    size_t edge; /* the next to be looked at */
} frame;

typedef struct search {
    waits_graph *g;
    uint32_t *index; /* when it was reached, from 1; 0: not yet */
    uint32_t *low;
    uint32_t *stack; /* nodes whose part is not complete */
    bool *on_stack;
    frame *path;
    uint32_t reached;
    uint32_t stacked;
    size_t depth;
} search;

static void enter(search *s, uint32_t node)
{
    s->index[node] = s->low[node] = ++s->reached;
    s->stack[s->stacked++] = node;
    s->on_stack[node] = true;
    s->path[s->depth++] = (frame){node, s->g->out_first[node]};
}

/* The part of which `node` was reached first is complete: it is what lies above on the stack. */
static void close_part(search *s, uint32_t node)
{
    waits_graph *g = s->g;
    uint32_t part = g->part_count++, member = WAITS_NONE, size = 0;
    while (member != node) {
        member = s->stack[--s->stacked];
        s->on_stack[member] = false;
        g->part[member] = part;
        size++;
    }
    g->part_is_cycle[part] = size > 1;
}

static void leave(search *s)
{
    uint32_t node = s->path[--s->depth].node;
    if (s->low[node] == s->index[node])
        close_part(s, node);
    if (s->depth > 0) {
        uint32_t parent = s->path[s->depth - 1].node;
        if (s->low[node] < s->low[parent])
            s->low[parent] = s->low[node];
    }
}

static void explore(search *s, uint32_t root)
{
    const waits_graph *g = s->g;
    enter(s, root);
    while (s->depth > 0) {
        frame *top = &s->path[s->depth - 1];
        if (top->edge == g->out_first[top->node + 1]) {
            leave(s);
            continue;
        }
        uint32_t from = top->node, to = g->out[top->edge++];
        if (!waits_edge_counts(g, from, to))
            continue;
        if (s->index[to] == 0)
            enter(s, to);
        else if (s->on_stack[to] && s->index[to] < s->low[from])
            s->low[from] = s->index[to];
    }
}

/* Which parts have an edge to another one? */
static void find_exits(waits_graph *g)
{
    for (uint32_t n = 0; n < g->node_count; n++) {
        if (g->part[n] == WAITS_NONE)
            continue;
        for (size_t i = g->out_first[n]; i < g->out_first[n + 1]; i++)
            if (waits_edge_counts(g, n, g->out[i]) && g->part[g->out[i]] != g->part[n])
                g->part_has_exit[g->part[n]] = true;
    }
}

psd_status waits_parts(waits_graph *g)
{
    size_t nodes = (size_t)g->node_count + 1;
    search s = {.g = g};
    psd_status status = PSD_ERR_NOMEM;
    g->part = calloc(nodes, sizeof *g->part);
    g->part_has_exit = calloc(nodes, sizeof *g->part_has_exit);
    g->part_is_cycle = calloc(nodes, sizeof *g->part_is_cycle);
    s.index = calloc(nodes, sizeof *s.index);
    s.low = calloc(nodes, sizeof *s.low);
    s.stack = calloc(nodes, sizeof *s.stack);
    s.on_stack = calloc(nodes, sizeof *s.on_stack);
    s.path = calloc(nodes, sizeof *s.path);
    if (g->part == NULL || g->part_has_exit == NULL || g->part_is_cycle == NULL || s.index == NULL ||
        s.low == NULL || s.stack == NULL || s.on_stack == NULL || s.path == NULL)
        goto out;
    for (uint32_t n = 0; n < g->node_count; n++)
        g->part[n] = WAITS_NONE;
    for (uint32_t t = 0; t < g->in->thread_count; t++)
        if (!g->released[t] && s.index[t] == 0)
            explore(&s, t);
    find_exits(g);
    status = PSD_OK;
out:
    free(s.path);
    free(s.on_stack);
    free(s.stack);
    free(s.low);
    free(s.index);
    return status;
}
