/* Inside of waits.c: the graph, its reduction, its parts. */
#ifndef PSD_CORE_WAITS_GRAPH_H
#define PSD_CORE_WAITS_GRAPH_H

#include "server/core/waits.h"

typedef enum node_kind {
    NODE_FREE = 0, /* waits for nothing */
    NODE_ALL = 1,  /* released once all it waits for are */
    NODE_ANY = 2,  /* released once one is; without edges never */
    NODE_DEAD = 3, /* never released */
} node_kind;

/* A collective that somebody has come to and that is not complete. */
typedef struct waits_hub {
    uint32_t group;
    uint32_t op; /* the first in `hub_ops` */
    uint32_t op_count;
    uint64_t ordinal;
    const char *field; /* what its ranks disagree on; NULL: nothing */
} waits_hub;

/* Nodes are numbered: threads, ranks, starts of units, ends of units, operations; hubs, and for each hub "those who are
 * missing"; then, for each group in which somebody receives from any source, and each of its members in group order, "any
 * member up to this one" and "any member from this one on", so that "any other" is two edges. */
typedef struct waits_graph {
    const waits_input *in;
    uint32_t ranks, starts, ends, ops, hubs, missing, chains; /* first node of each */
    uint32_t node_count;
    uint8_t *kind;
    uint32_t hub_count;
    waits_hub *hub;
    uint32_t *hub_ops;   /* operations by hub */
    uint32_t *hub_of;    /* by operation; WAITS_NONE */
    uint32_t *partner;   /* by operation; WAITS_NONE */
    bool *meets;         /* by operation: a posted one fits, so that it will go on by itself */
    uint32_t *thread_of; /* by unit: a blocked thread that waits for it; WAITS_NONE */
    uint32_t *chain_of;  /* by group: its first node among the chains; WAITS_NONE */
    /* edges, by the node that waits; the second form by the node that is waited for */
    size_t edge_count;
    size_t edge_capacity;
    uint32_t *edge_from;
    uint32_t *edge_to;
    size_t *out_first;
    uint32_t *out;
    size_t *in_first;
    uint32_t *back;
    bool *released;
    bool *doomed;   /* stays stuck even if every cycle were broken: it needs a rank that never comes */
    uint32_t *part; /* of what stuck threads wait for: its strongly connected part; else WAITS_NONE */
    uint32_t part_count;
    bool *part_has_exit;
    bool *part_is_cycle;
    size_t effort; /* of the search for cycles, so far */
} waits_graph;

/* waits_check.c */
bool waits_input_is_sound(const waits_input *in);
/* waits_match.c: partner, meets, hubs. PSD_ERR_NOMEM. */
psd_status waits_match(waits_graph *g);
/* What two operations that match disagree on; NULL: nothing. */
const char *waits_disagreement(const waits_op *a, const waits_op *b);
/* waits_graph.c: nodes and edges, then who is released. */
psd_status waits_graph_build(waits_graph *g);
psd_status waits_graph_reduce(waits_graph *g);
void waits_graph_free(waits_graph *g);
/* Does this edge count among what is stuck? What is released is no obstacle, and what is doomed is no alternative while
 * there is another. */
bool waits_edge_counts(const waits_graph *g, uint32_t from, uint32_t to);
/* waits_parts.c */
psd_status waits_parts(waits_graph *g);
/* waits_cycle.c: the shortest cycle in a part, of those that pass through one of `ops` as far as a bounded effort reaches.
 * `nodes` gets it from an operation to that operation again, one wait after the other; free() it. NULL: none passes
 * there. */
psd_status waits_shortest_cycle(waits_graph *g, uint32_t part, const uint32_t *ops, uint32_t count,
                                uint32_t **nodes, uint32_t *length);

static inline bool waits_is_p2p(uint8_t kind)
{
    return kind == PSD_OP_SEND || kind == PSD_OP_RECV;
}

static inline bool waits_is_gone(waits_life life)
{
    return life == WAITS_FINISHED || life == WAITS_LEFT || life == WAITS_DEAD;
}

static inline uint32_t waits_member(const waits_group *group, uint32_t at)
{
    return group->members != NULL ? group->members[at] : at;
}

#endif
