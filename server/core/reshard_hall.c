/* Newton's method on the ratio p/q, exact: a flow from the sets to their ranks, each rank taking p/q, shows by its
 * minimum cut a set of ranks with a larger ratio, or that there is none. The flow is a preflow-push (Goldberg and Tarjan,
 * 1988, first phase, first in first out, with gaps), in units of 1/q of a byte. */
#include "server/core/reshard_hall.h"

#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide;

/* Nodes are the sets, then the ranks. */
typedef struct preflow {
    const hall_set *sets;
    uint32_t set_count;
    uint32_t ranks;
    uint32_t nodes;
    uint64_t *first_link; /* of each set; links are numbered set by set */
    uint64_t *rank_first; /* of each rank, into rank_links; ranks + 1 entries */
    uint64_t *rank_links;
    uint32_t *link_set; /* by link */
    wide *flow;         /* by link */
    wide *taken;        /* by rank: on its way out */
    wide *excess;       /* by node */
    uint32_t *label;    /* distance from the way out, at least; `nodes + 1`: there is none */
    uint32_t *at_label; /* nodes with that label */
    uint32_t *queue;    /* of nodes with excess, a ring */
    bool *queued;
    uint32_t head, waiting;
    wide capacity; /* of a rank */
} preflow;

static void release(preflow *f)
{
    free(f->first_link);
    free(f->rank_first);
    free(f->rank_links);
    free(f->link_set);
    free(f->flow);
    free(f->taken);
    free(f->excess);
    free(f->label);
    free(f->at_label);
    free(f->queue);
    free(f->queued);
}

static bool build(preflow *f, const hall_set *sets, uint32_t count, int32_t ranks)
{
    uint64_t links = 0;
    *f = (preflow){
        .sets = sets, .set_count = count, .ranks = (uint32_t)ranks, .nodes = count + (uint32_t)ranks};
    for (uint32_t s = 0; s < count; s++)
        links += (uint64_t)sets[s].rank_count;
    size_t nodes = f->nodes;
    f->first_link = malloc((count + (size_t)1) * sizeof *f->first_link);
    f->rank_first = calloc((size_t)ranks + 2, sizeof *f->rank_first);
    f->rank_links = malloc((links + 1) * sizeof *f->rank_links);
    f->link_set = calloc(links + 1, sizeof *f->link_set);
    f->flow = malloc((links + 1) * sizeof *f->flow);
    f->taken = malloc(((size_t)ranks + 1) * sizeof *f->taken);
    f->excess = malloc((nodes + 1) * sizeof *f->excess);
    f->label = malloc((nodes + 1) * sizeof *f->label);
    f->at_label = malloc((nodes + 3) * sizeof *f->at_label);
    f->queue = malloc((nodes + 1) * sizeof *f->queue);
    f->queued = malloc((nodes + 1) * sizeof *f->queued);
    if (f->first_link == NULL || f->rank_first == NULL || f->rank_links == NULL || f->link_set == NULL ||
        f->flow == NULL || f->taken == NULL || f->excess == NULL || f->label == NULL || f->at_label == NULL ||
        f->queue == NULL || f->queued == NULL)
        return false;
    uint64_t link = 0;
    for (uint32_t s = 0; s < count; s++) {
        f->first_link[s] = link;
        for (int32_t k = 0; k < sets[s].rank_count; k++) {
            f->link_set[link++] = s;
            f->rank_first[sets[s].ranks[k] + 2]++;
        }
    }
    for (uint32_t r = 2; r < f->ranks + 2; r++)
        f->rank_first[r] += f->rank_first[r - 1];
    for (link = 0; link < links; link++) {
        int32_t rank = sets[f->link_set[link]].ranks[link - f->first_link[f->link_set[link]]];
        f->rank_links[f->rank_first[rank + 1]++] = link;
    }
    return true;
}

static void wake(preflow *f, uint32_t node)
{
    if (f->queued[node] || f->excess[node] == 0 || f->label[node] > f->nodes)
        return;
    f->queued[node] = true;
    f->queue[(f->head + f->waiting++) % f->nodes] = node;
}

static void start(preflow *f, wide scale)
{
    uint64_t links = f->set_count == 0
                         ? 0
                         : f->first_link[f->set_count - 1] + (uint64_t)f->sets[f->set_count - 1].rank_count;
    memset(f->flow, 0, links * sizeof *f->flow);
    memset(f->taken, 0, f->ranks * sizeof *f->taken);
    memset(f->at_label, 0, (f->nodes + (size_t)3) * sizeof *f->at_label);
    memset(f->queued, 0, f->nodes * sizeof *f->queued);
    f->head = f->waiting = 0;
    f->at_label[1] = f->ranks;
    f->at_label[2] = f->set_count;
    for (uint32_t v = 0; v < f->nodes; v++) {
        bool is_set = v < f->set_count;
        f->label[v] = is_set ? 2 : 1;
        f->excess[v] = is_set ? f->sets[v].weight * scale : 0;
        wake(f, v);
    }
}

/* Raises a node that cannot push; if it was the last of its label, nothing above that label has a way out. */
static void raise(preflow *f, uint32_t node, uint32_t label)
{
    uint32_t before = f->label[node];
    uint32_t beyond = f->nodes + 1;
    f->at_label[before]--;
    f->label[node] = label < beyond ? label : beyond;
    f->at_label[f->label[node]]++;
    if (f->at_label[before] > 0)
        return;
    for (uint32_t v = 0; v < f->nodes; v++) {
        if (f->label[v] > before && f->label[v] < beyond) {
            f->at_label[f->label[v]]--;
            f->label[v] = beyond;
            f->at_label[beyond]++;
        }
    }
}

static void move(preflow *f, uint32_t from, uint32_t to, wide amount)
{
    f->excess[from] -= amount;
    f->excess[to] += amount;
    wake(f, to);
}

/* A set may push any amount to each of its ranks: it ends without excess, or raised. */
static uint32_t push_set(preflow *f, uint32_t s)
{
    uint32_t lowest = UINT32_MAX - 1;
    for (int32_t k = 0; k < f->sets[s].rank_count; k++) {
        uint32_t rank = f->set_count + (uint32_t)f->sets[s].ranks[k];
        if (f->label[rank] + 1 == f->label[s]) {
            f->flow[f->first_link[s] + (uint64_t)k] += f->excess[s];
            move(f, s, rank, f->excess[s]);
            return 0;
        }
        lowest = f->label[rank] < lowest ? f->label[rank] : lowest;
    }
    return lowest + 1;
}

/* A rank pushes out what it may, then back to the sets it came from. 0: no excess is left; else its new label. */
static uint32_t push_rank(preflow *f, uint32_t node)
{
    uint32_t r = node - f->set_count;
    uint32_t lowest = UINT32_MAX - 1;
    wide room = f->capacity - f->taken[r];
    if (room > 0) {
        wide amount = f->excess[node] < room ? f->excess[node] : room;
        f->taken[r] += amount;
        f->excess[node] -= amount;
        if (f->excess[node] == 0)
            return 0;
    }
    for (uint64_t i = f->rank_first[r]; i < f->rank_first[r + 1]; i++) {
        uint64_t link = f->rank_links[i];
        uint32_t s = f->link_set[link];
        if (f->flow[link] == 0)
            continue;
        if (f->label[s] + 1 == f->label[node]) {
            wide amount = f->excess[node] < f->flow[link] ? f->excess[node] : f->flow[link];
            f->flow[link] -= amount;
            move(f, node, s, amount);
            if (f->excess[node] == 0)
                return 0;
        }
        if (f->flow[link] > 0)
            lowest = f->label[s] < lowest ? f->label[s] : lowest;
    }
    return lowest + 1;
}

static void run(preflow *f)
{
    while (f->waiting > 0) {
        uint32_t node = f->queue[f->head];
        f->head = (f->head + 1) % f->nodes;
        f->waiting--;
        f->queued[node] = false;
        while (f->excess[node] > 0 && f->label[node] <= f->nodes) {
            uint32_t label = node < f->set_count ? push_set(f, node) : push_rank(f, node);
            if (label > 0)
                raise(f, node, label);
        }
    }
}

/* The ranks from which there is no way out, and the weight of the sets that have only those. */
static int64_t read_cut(const preflow *f, int32_t *worst, int32_t *worst_count)
{
    int64_t weight = 0;
    *worst_count = 0;
    for (uint32_t s = 0; s < f->set_count; s++) {
        bool inside = f->sets[s].weight > 0;
        for (int32_t k = 0; k < f->sets[s].rank_count; k++)
            inside = inside && f->label[f->set_count + (uint32_t)f->sets[s].ranks[k]] > f->nodes;
        weight += inside ? f->sets[s].weight : 0;
    }
    for (uint32_t r = 0; r < f->ranks; r++) {
        if (f->label[f->set_count + r] > f->nodes)
            worst[(*worst_count)++] = (int32_t)r;
    }
    return weight;
}

/* All ranks that hold anything. */
static int64_t all_of(const preflow *f, int32_t *worst, int32_t *worst_count)
{
    int64_t weight = 0;
    *worst_count = 0;
    for (uint32_t s = 0; s < f->set_count; s++)
        weight += f->sets[s].weight;
    for (uint32_t r = 0; r < f->ranks; r++) {
        if (f->rank_first[r + 1] > f->rank_first[r])
            worst[(*worst_count)++] = (int32_t)r;
    }
    return weight;
}

psd_status hall_bound(const hall_set *sets, uint32_t count, int32_t ranks, int64_t *bound, int32_t **worst,
                      int32_t *worst_count)
{
    preflow f = {0};
    int32_t *now = malloc(((size_t)ranks + 1) * sizeof *now),
            *next = malloc(((size_t)ranks + 1) * sizeof *next);
    psd_status status = PSD_ERR_NOMEM;
    if (now == NULL || next == NULL || !build(&f, sets, count, ranks))
        goto out;
    int32_t q = 0;
    int64_t p = all_of(&f, now, &q);
    while (q > 0) {
        f.capacity = p;
        start(&f, q);
        run(&f);
        int32_t larger_q = 0;
        int64_t larger_p = read_cut(&f, next, &larger_q);
        if (larger_q == 0 || (wide)larger_p * q <= (wide)p * larger_q)
            break;
        int32_t *swap = now;
        now = next;
        next = swap;
        p = larger_p;
        q = larger_q;
    }
    *bound = q == 0 ? 0 : p / q + (p % q != 0);
    *worst = now;
    *worst_count = q;
    now = NULL;
    status = PSD_OK;
out:
    free(now);
    free(next);
    release(&f);
    return status;
}
