/* Who sends how much: a flow from demands to the ranks that can serve them, with the least largest load.
 *
 * Maximum flow by Dinic's algorithm (1970). The capacity of the ranks starts at a value that is surely needed; while
 * demand is left unserved, the minimum cut names a set of ranks whose own demands exceed it, and the capacity rises to
 * what those need on average (Newton's method on Hall's ratio), the flow found so far being kept. */
#include <stdlib.h>
#include <string.h>

#include "server/core/reshard_parts.h"

typedef struct edge {
    uint32_t to;
    uint32_t next; /* of the node it leaves; NONE */
    int64_t room;
} edge;

#define NONE UINT32_MAX

typedef struct network {
    uint32_t nodes; /* 0: source; demands; ranks; the last: sink */
    uint32_t sink;
    uint32_t *first;
    uint32_t *at;
    uint32_t *level;
    uint32_t *queue;
    uint32_t *path;
    edge *edges; /* an edge and its reverse are 2k and 2k + 1 */
    uint32_t edge_count;
} network;

static void connect(network *n, uint32_t from, uint32_t to, int64_t room)
{
    n->edges[n->edge_count] = (edge){to, n->first[from], room};
    n->first[from] = n->edge_count++;
    n->edges[n->edge_count] = (edge){from, n->first[to], 0};
    n->first[to] = n->edge_count++;
}

/* Distances from the source over edges with room; false: the sink is out of reach. */
static bool measure(network *n)
{
    memset(n->level, 0xff, n->nodes * sizeof *n->level);
    n->level[0] = 0;
    n->queue[0] = 0;
    for (uint32_t head = 0, tail = 1; head < tail; head++) {
        uint32_t u = n->queue[head];
        for (uint32_t e = n->first[u]; e != NONE; e = n->edges[e].next) {
            uint32_t v = n->edges[e].to;
            if (n->edges[e].room > 0 && n->level[v] == NONE) {
                n->level[v] = n->level[u] + 1;
                n->queue[tail++] = v;
            }
        }
    }
    return n->level[n->sink] != NONE;
}

/* Sends what the path of `length` edges takes, and gives the length of its part before the first edge now full. */
static uint32_t push(network *n, uint32_t length, int64_t *total)
{
    int64_t least = INT64_MAX;
    uint32_t cut = 0;
    for (uint32_t i = 0; i < length; i++)
        least = n->edges[n->path[i]].room < least ? n->edges[n->path[i]].room : least;
    for (uint32_t i = length; i-- > 0;) {
        edge *e = &n->edges[n->path[i]];
        e->room -= least;
        n->edges[n->path[i] ^ 1].room += least;
        if (e->room == 0)
            cut = i;
    }
    *total += least;
    return cut;
}

/* A blocking flow in the level graph, by a walk that backs out of dead ends. */
static int64_t augment(network *n)
{
    int64_t total = 0;
    uint32_t length = 0, u = 0;
    memcpy(n->at, n->first, n->nodes * sizeof *n->at);
    for (;;) {
        if (u == n->sink) {
            length = push(n, length, &total);
            u = n->edges[n->path[length] ^ 1].to;
            continue;
        }
        uint32_t e = n->at[u];
        while (e != NONE && !(n->edges[e].room > 0 && n->level[n->edges[e].to] == n->level[u] + 1))
            e = n->edges[e].next;
        n->at[u] = e;
        if (e != NONE) {
            n->path[length++] = e;
            u = n->edges[e].to;
        } else if (length == 0) {
            return total;
        } else {
            u = n->edges[n->path[--length] ^ 1].to;
            n->at[u] = n->edges[n->at[u]].next;
        }
    }
}

static void release(network *n)
{
    free(n->first);
    free(n->at);
    free(n->level);
    free(n->queue);
    free(n->path);
    free(n->edges);
}

/* Where the pieces of the network are: demand i is node 1 + i, rank r is node rank_node[r]. */
typedef struct splitter {
    const flow_demand *demands;
    uint32_t count;
    const int64_t *fixed;
    int32_t ranks;
    uint32_t *rank_node; /* NONE: in no demand */
    uint32_t *sink_edge; /* by rank */
    network net;
} splitter;

static bool build(splitter *s)
{
    network *n = &s->net;
    uint64_t links = 0;
    uint32_t rank_nodes = 0;
    for (int32_t r = 0; r < s->ranks; r++)
        s->rank_node[r] = NONE;
    for (uint32_t i = 0; i < s->count; i++) {
        links += s->demands[i].rank_count;
        for (uint32_t k = 0; k < s->demands[i].rank_count; k++) {
            int32_t r = s->demands[i].ranks[k];
            if (s->rank_node[r] == NONE)
                s->rank_node[r] = 1 + s->count + rank_nodes++;
        }
    }
    n->nodes = s->count + rank_nodes + 2;
    n->sink = n->nodes - 1;
    if (links + s->count + rank_nodes > UINT32_MAX / 4)
        return false;
    n->first = calloc(n->nodes, sizeof *n->first);
    n->at = calloc(n->nodes, sizeof *n->at);
    n->level = calloc(n->nodes, sizeof *n->level);
    n->queue = calloc(n->nodes, sizeof *n->queue);
    n->path = calloc(n->nodes, sizeof *n->path);
    n->edges = calloc(2 * (links + s->count + rank_nodes + 1), sizeof *n->edges);
    if (n->first == NULL || n->at == NULL || n->level == NULL || n->queue == NULL || n->path == NULL ||
        n->edges == NULL)
        return false;
    memset(n->first, 0xff, n->nodes * sizeof *n->first);
    /* Demand to rank first, so that these edges are 2k, k as in `share`. */
    for (uint32_t i = 0; i < s->count; i++) {
        for (uint32_t k = 0; k < s->demands[i].rank_count; k++)
            connect(n, 1 + i, s->rank_node[s->demands[i].ranks[k]], s->demands[i].weight);
    }
    for (uint32_t i = 0; i < s->count; i++)
        connect(n, 0, 1 + i, s->demands[i].weight);
    for (int32_t r = 0; r < s->ranks; r++) {
        if (s->rank_node[r] == NONE)
            continue;
        s->sink_edge[r] = n->edge_count;
        connect(n, s->rank_node[r], n->sink, 0);
    }
    return true;
}

static int64_t up(int64_t sum, int64_t parts)
{
    return parts == 0 ? 0 : sum / parts + (sum % parts != 0);
}

/* The capacity that all ranks certainly need. */
static int64_t least_capacity(const splitter *s, int64_t weight)
{
    int64_t most = 0, sum = weight, ranks = 0;
    for (int32_t r = 0; r < s->ranks; r++) {
        most = s->fixed[r] > most ? s->fixed[r] : most;
        if (s->rank_node[r] != NONE) {
            sum += s->fixed[r];
            ranks++;
        }
    }
    int64_t mean = up(sum, ranks);
    return mean > most ? mean : most;
}

/* What the ranks on the source's side of the minimum cut need on average. */
static int64_t needed_capacity(const splitter *s)
{
    int64_t sum = 0, ranks = 0;
    for (uint32_t i = 0; i < s->count; i++)
        sum += s->net.level[1 + i] != NONE ? s->demands[i].weight : 0;
    for (int32_t r = 0; r < s->ranks; r++) {
        if (s->rank_node[r] != NONE && s->net.level[s->rank_node[r]] != NONE) {
            sum += s->fixed[r];
            ranks++;
        }
    }
    return up(sum, ranks);
}

static void serve_all(splitter *s)
{
    int64_t weight = 0, served = 0, capacity = 0;
    for (uint32_t i = 0; i < s->count; i++)
        weight += s->demands[i].weight;
    for (int64_t wanted = least_capacity(s, weight);; wanted = needed_capacity(s)) {
        for (int32_t r = 0; r < s->ranks; r++) {
            if (s->rank_node[r] != NONE) /* at first `capacity` is 0 and the edge has no room */
                s->net.edges[s->sink_edge[r]].room += wanted - (capacity == 0 ? s->fixed[r] : capacity);
        }
        capacity = wanted;
        while (measure(&s->net))
            served += augment(&s->net);
        if (served == weight)
            return;
    }
}

psd_status reshard_flow_split(const flow_demand *demands, uint32_t count, const int64_t *fixed, int32_t ranks,
                              int64_t *share, const reshard_why *why)
{
    splitter s = {.demands = demands, .count = count, .fixed = fixed, .ranks = ranks};
    psd_status status = PSD_OK;
    s.rank_node = malloc(((size_t)ranks + 1) * sizeof *s.rank_node);
    s.sink_edge = malloc(((size_t)ranks + 1) * sizeof *s.sink_edge);
    if (s.rank_node == NULL || s.sink_edge == NULL || !build(&s)) {
        status = reshard_no_memory(why);
    } else {
        serve_all(&s);
        uint32_t k = 0;
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t j = 0; j < demands[i].rank_count; j++, k++)
                share[k] = s.net.edges[2 * k + 1].room; /* what has flowed is the room of the way back */
        }
    }
    release(&s.net);
    free(s.rank_node);
    free(s.sink_edge);
    return status;
}
