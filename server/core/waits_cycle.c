/* The shortest cycle within a strongly connected part: breadth first, by the number of operations passed. Every cycle
 * passes through operations, but not every one through threads: queues alone can close it. */
#include <stdlib.h>
#include <string.h>

#include "server/core/waits_graph.h"

#define EFFORT 2000000u /* edges looked at in all parts; the first cycle of each part is always found */

typedef struct search {
    waits_graph *g;
    uint32_t part;
    uint32_t *seen;   /* by node: number of the start from which it was reached last */
    uint32_t *parent; /* by node, of that search */
    uint32_t *level;  /* operation nodes of the level that is expanded */
    uint32_t *next;
    uint32_t *stack; /* other nodes, of this level */
    uint32_t start;
    uint32_t turn;
    uint32_t best; /* operations of the shortest cycle so far; WAITS_NONE */
    uint32_t *nodes;
    uint32_t length;
} search;

static bool is_op(const search *s, uint32_t node)
{
    return node >= s->g->ops && node < s->g->hubs;
}

/* Keeps the path from the start over its parents, and back to the start. */
static psd_status keep(search *s, uint32_t last, uint32_t ops)
{
    uint32_t length = 2;
    for (uint32_t n = last; n != s->start; n = s->parent[n])
        length++;
    uint32_t *nodes = calloc(length, sizeof *nodes);
    if (nodes == NULL)
        return PSD_ERR_NOMEM;
    nodes[length - 1] = s->start;
    uint32_t at = length - 2;
    for (uint32_t n = last; n != s->start; n = s->parent[n])
        nodes[at--] = n;
    nodes[0] = s->start;
    free(s->nodes);
    s->nodes = nodes;
    s->length = length;
    s->best = ops;
    return PSD_OK;
}

/* Expands one operation of the level, and what lies between it and the next ones. True: the start was reached. */
static bool expand(search *s, uint32_t op, uint32_t *next_count, uint32_t *last)
{
    waits_graph *g = s->g;
    uint32_t stacked = 0;
    s->stack[stacked++] = op;
    while (stacked > 0) {
        uint32_t from = s->stack[--stacked];
        for (size_t i = g->out_first[from]; i < g->out_first[from + 1]; i++) {
            uint32_t to = g->out[i];
            g->effort++;
            if (g->part[to] != s->part || !waits_edge_counts(g, from, to))
                continue;
            if (to == s->start) {
                *last = from;
                return true;
            }
            if (s->seen[to] == s->turn)
                continue;
            s->seen[to] = s->turn;
            s->parent[to] = from;
            if (is_op(s, to))
                s->next[(*next_count)++] = to;
            else
                s->stack[stacked++] = to;
        }
    }
    return false;
}

static psd_status search_from(search *s, uint32_t start)
{
    uint32_t count = 1, last = WAITS_NONE;
    bool closed = false;
    s->start = start;
    s->turn++;
    s->seen[start] = s->turn;
    s->level[0] = start;
    for (uint32_t depth = 0; count > 0 && !closed && depth + 1 < s->best; depth++) {
        uint32_t next_count = 0;
        for (uint32_t i = 0; i < count && !closed; i++)
            closed = expand(s, s->level[i], &next_count, &last);
        if (closed)
            return keep(s, last, depth + 1);
        uint32_t *swap = s->level;
        s->level = s->next;
        s->next = swap;
        count = next_count;
    }
    return PSD_OK;
}

static psd_status search_all(search *s, const uint32_t *ops, uint32_t count)
{
    psd_status status = PSD_OK;
    for (uint32_t i = 0; i < count && status == PSD_OK; i++)
        if (s->nodes == NULL || s->g->effort < EFFORT)
            status = search_from(s, s->g->ops + ops[i]);
    return status;
}

psd_status waits_shortest_cycle(waits_graph *g, uint32_t part, const uint32_t *ops, uint32_t count,
                                uint32_t **nodes, uint32_t *length)
{
    size_t all = (size_t)g->node_count + 1;
    psd_status status = PSD_ERR_NOMEM;
    search s = {.g = g, .part = part, .best = WAITS_NONE};
    s.seen = calloc(all, sizeof *s.seen);
    s.parent = calloc(all, sizeof *s.parent);
    s.level = calloc(all, sizeof *s.level);
    s.next = calloc(all, sizeof *s.next);
    s.stack = calloc(all, sizeof *s.stack);
    if (s.seen == NULL || s.parent == NULL || s.level == NULL || s.next == NULL || s.stack == NULL)
        goto out;
    status = search_all(&s, ops, count);
    if (status != PSD_OK) {
        free(s.nodes);
        goto out;
    }
    *nodes = s.nodes;
    *length = s.length;
out:
    free(s.stack);
    free(s.next);
    free(s.level);
    free(s.parent);
    free(s.seen);
    return status;
}
