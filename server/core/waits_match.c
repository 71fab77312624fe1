/* Brings sends and receives together, and the parts of collectives. Sends and receives that are known to have matched
 * (a receive tells the ordinal of its message; in positional groups every ordinal is known from the beginning) are
 * partners. Others that would fit each other meet: one of them is about to match, by which nobody can tell yet. */
#include <stdlib.h>

#include "server/core/waits_graph.h"

/* What sends and receives are looked up by. */
typedef struct key {
    uint32_t group;
    int32_t from;
    uint32_t to;
    int64_t mark; /* the ordinal, or the tag */
    uint32_t op;  /* not compared */
    bool is_met;  /* receives: some send fits; of the first of equal ones */
} key;

typedef struct keys {
    key *list;
    size_t count;
} keys;

static int by_key(const void *left, const void *right)
{
    const key *a = left, *b = right;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    return (a->mark > b->mark) - (a->mark < b->mark);
}

/* The first of those that are equal to it. */
static key *find(const keys *all, const key *wanted)
{
    size_t low = 0, high = all->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (by_key(&all->list[middle], wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < all->count && by_key(&all->list[low], wanted) == 0 ? &all->list[low] : NULL;
}

static uint32_t rank_of(const waits_graph *g, uint32_t op)
{
    return g->in->units[g->in->ops[op].unit].rank;
}

static key key_of(const waits_graph *g, uint32_t op, int64_t mark)
{
    const waits_op *o = &g->in->ops[op];
    uint32_t own = rank_of(g, op);
    key k = {.group = o->group, .mark = mark, .op = op};
    bool sends = o->kind == PSD_OP_SEND;
    k.from = sends ? (int32_t)own : o->peer;
    k.to = sends ? (uint32_t)o->peer : own;
    return k;
}

static bool is_positional(const waits_graph *g, const waits_op *o)
{
    return g->in->groups[o->group].is_positional;
}

static void find_partners(waits_graph *g, const keys *sends)
{
    for (uint32_t i = 0; i < g->in->op_count; i++) {
        const waits_op *o = &g->in->ops[i];
        if (o->kind != PSD_OP_RECV || !(o->is_matched || is_positional(g, o)))
            continue;
        key wanted = key_of(g, i, (int64_t)o->ordinal);
        const key *found = find(sends, &wanted);
        if (found != NULL && g->partner[found->op] == WAITS_NONE) {
            g->partner[i] = found->op;
            g->partner[found->op] = i;
        }
    }
}

/* A send that has no partner and no receive yet, in a group that matches by tag. */
static bool is_offered(const waits_graph *g, uint32_t op)
{
    const waits_op *o = &g->in->ops[op];
    return o->kind == PSD_OP_SEND && !o->is_complete && !o->is_matched && g->partner[op] == WAITS_NONE &&
           !is_positional(g, o);
}

static bool is_wanting(const waits_graph *g, uint32_t op)
{
    const waits_op *o = &g->in->ops[op];
    return o->kind == PSD_OP_RECV && !o->is_complete && !o->is_matched && !is_positional(g, o);
}

static void find_meetings(waits_graph *g, keys *receives)
{
    for (uint32_t i = 0; i < g->in->op_count; i++) {
        if (!is_offered(g, i))
            continue;
        for (int form = 0; form < 4; form++) {
            key wanted = key_of(g, i, form & 1 ? WAITS_ANY : g->in->ops[i].tag);
            if ((form & 2) != 0)
                wanted.from = WAITS_ANY;
            key *found = find(receives, &wanted);
            if (found != NULL) {
                found->is_met = true;
                g->meets[i] = true;
            }
        }
    }
    const key *first = NULL;
    for (size_t i = 0; i < receives->count; i++) {
        const key *k = &receives->list[i];
        if (first == NULL || by_key(first, k) != 0)
            first = k;
        g->meets[k->op] = g->meets[k->op] || first->is_met;
    }
}

static psd_status match_p2p(waits_graph *g)
{
    uint32_t ops = g->in->op_count;
    psd_status status = PSD_ERR_NOMEM;
    keys sends = {calloc((size_t)ops + 1, sizeof(key)), 0};
    keys receives = {calloc((size_t)ops + 1, sizeof(key)), 0};
    if (sends.list == NULL || receives.list == NULL)
        goto out;
    for (uint32_t i = 0; i < ops; i++)
        if (g->in->ops[i].kind == PSD_OP_SEND)
            sends.list[sends.count++] = key_of(g, i, (int64_t)g->in->ops[i].ordinal);
    qsort(sends.list, sends.count, sizeof(key), by_key);
    find_partners(g, &sends);
    for (uint32_t i = 0; i < ops; i++) {
        const waits_op *o = &g->in->ops[i];
        if (is_wanting(g, i))
            receives.list[receives.count++] = key_of(g, i, o->tag);
        /* It has its match, of which the other end is through already. */
        g->meets[i] =
            waits_is_p2p(o->kind) && o->is_matched && !is_positional(g, o) && g->partner[i] == WAITS_NONE;
    }
    qsort(receives.list, receives.count, sizeof(key), by_key);
    find_meetings(g, &receives);
    status = PSD_OK;
out:
    free(receives.list);
    free(sends.list);
    return status;
}

/* ------------------------------------------------------------------------------------------- collectives */

typedef struct arrival {
    uint32_t group;
    uint64_t ordinal;
    uint32_t op;
} arrival;

static int by_ordinal(const void *left, const void *right)
{
    const arrival *a = left, *b = right;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->ordinal != b->ordinal)
        return a->ordinal < b->ordinal ? -1 : 1;
    return (a->op > b->op) - (a->op < b->op);
}

const char *waits_disagreement(const waits_op *a, const waits_op *b)
{
    bool is_p2p = waits_is_p2p(a->kind);
    if (!is_p2p && a->kind != b->kind)
        return "kind";
    if (a->dtype != b->dtype)
        return "dtype";
    if (a->count != b->count && a->kind != PSD_OP_ALL_TO_ALL_V)
        return "count";
    if (is_p2p)
        return NULL;
    if (a->root != b->root)
        return "root";
    if (a->redop != b->redop)
        return "redop";
    return a->splits != b->splits && a->splits != 0 && b->splits != 0 ? "splits" : NULL;
}

static void add_hub(waits_graph *g, const arrival *arrivals, size_t first, size_t end)
{
    const waits_op *ops = g->in->ops;
    waits_hub *hub = &g->hub[g->hub_count];
    hub->group = arrivals[first].group;
    hub->ordinal = arrivals[first].ordinal;
    hub->op = (uint32_t)first;
    hub->op_count = (uint32_t)(end - first);
    hub->field = NULL;
    for (size_t i = first; i < end; i++) {
        g->hub_ops[i] = arrivals[i].op;
        g->hub_of[arrivals[i].op] = g->hub_count;
        if (hub->field == NULL)
            hub->field = waits_disagreement(&ops[arrivals[first].op], &ops[arrivals[i].op]);
    }
    g->hub_count++;
}

static psd_status match_collectives(waits_graph *g)
{
    uint32_t ops = g->in->op_count;
    size_t count = 0;
    arrival *arrivals = calloc((size_t)ops + 1, sizeof *arrivals);
    if (arrivals == NULL)
        return PSD_ERR_NOMEM;
    for (uint32_t i = 0; i < ops; i++) {
        const waits_op *o = &g->in->ops[i];
        if (!waits_is_p2p(o->kind))
            arrivals[count++] = (arrival){o->group, o->ordinal, i};
    }
    qsort(arrivals, count, sizeof *arrivals, by_ordinal);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && arrivals[end].group == arrivals[first].group &&
                              arrivals[end].ordinal == arrivals[first].ordinal;)
            end++;
        add_hub(g, arrivals, first, end);
    }
    free(arrivals);
    return PSD_OK;
}

psd_status waits_match(waits_graph *g)
{
    uint32_t ops = g->in->op_count;
    g->partner = calloc((size_t)ops + 1, sizeof *g->partner);
    g->meets = calloc((size_t)ops + 1, sizeof *g->meets);
    g->hub = calloc((size_t)ops + 1, sizeof *g->hub);
    g->hub_ops = calloc((size_t)ops + 1, sizeof *g->hub_ops);
    g->hub_of = calloc((size_t)ops + 1, sizeof *g->hub_of);
    if (g->partner == NULL || g->meets == NULL || g->hub == NULL || g->hub_ops == NULL || g->hub_of == NULL)
        return PSD_ERR_NOMEM;
    for (uint32_t i = 0; i < ops; i++)
        g->partner[i] = g->hub_of[i] = WAITS_NONE;
    psd_status status = match_p2p(g);
    return status == PSD_OK ? match_collectives(g) : status;
}
