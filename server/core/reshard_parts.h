/* The compiler's own structs, in the order in which they are made. Only reshard*.c of the compiler include this; the
 * checker and the bound do not. */
#ifndef PSD_CORE_RESHARD_PARTS_H
#define PSD_CORE_RESHARD_PARTS_H

#include "server/core/reshard.h"

/* For sentences; every function below that can fail leaves one here. */
typedef struct reshard_why {
    char *text;
    size_t bytes;
} reshard_why;

psd_status reshard_no_memory(const reshard_why *why);

/* Makes room for one more of `size` bytes in an array that doubles. NULL: no memory, and the array is as it was. */
void *reshard_room(void *array, uint64_t count, uint64_t *capacity, size_t size);

/* ------------------------------------------------------------------------------------------- reshard_atoms.c */

/* Ranks in rising order. */
typedef struct rank_set {
    uint32_t first; /* in set_ranks */
    uint32_t count;
} rank_set;

/* Tensors of one shape, element size and placement in both layouts. */
typedef struct tensor_class {
    uint32_t first_member; /* in members */
    uint32_t member_count;
    uint32_t tensor; /* one of them */
} tensor_class;

/* One atom of a class, standing for that of each member. */
typedef struct class_cell {
    uint32_t class_index;
    uint32_t atom;
    uint32_t bundle;
    int64_t bytes;  /* of one member */
    int64_t offset; /* in the bundle's stream */
} class_cell;

/* All atoms with the same holders and the same destinations. Their bytes are one stream: cell by cell, the largest
 * elements first, so that a cut at a multiple of the largest element size never falls into an element. */
typedef struct bundle {
    uint32_t holders;   /* set */
    uint32_t receivers; /* set: destinations that are not holders; not empty */
    uint32_t first_cell;
    uint32_t cell_count;
    int64_t bytes;
} bundle;

typedef struct reshard_atoms {
    int32_t ranks;     /* all ranks are below */
    int64_t align;     /* the largest element size */
    uint32_t *members; /* tensors, class by class */
    tensor_class *classes;
    uint32_t class_count;
    reshard_atom *atoms;
    uint64_t atom_count;
    class_cell *cells; /* bundle by bundle */
    uint64_t cell_count;
    rank_set *sets;
    uint64_t set_count;
    int32_t *set_ranks;
    uint64_t set_rank_count;
    bundle *bundles;
    uint64_t bundle_count;
    int64_t moved; /* bytes x receivers */
} reshard_atoms;

psd_status reshard_atoms_make(const reshard_input *input, reshard_atoms *out, const reshard_why *why);
void reshard_atoms_free(reshard_atoms *atoms);

/* ----------------------------------------------------------------------------------------- reshard_senders.c */

/* Bytes [lo, hi) of a bundle's stream: `src`, a holder, sends them to the first rank of the chain, which sends them
 * to the next, and so on. Without forwarding a chain has one rank. */
typedef struct lane {
    uint32_t bundle;
    int32_t src;
    int64_t lo;
    int64_t hi;
    uint32_t chain; /* first of its ranks in set_ranks */
    uint32_t length;
} lane;

typedef struct reshard_lanes {
    lane *lanes;
    uint64_t count;
    uint32_t longest; /* chain */
} reshard_lanes;

/* Shares the sending out among the holders so that the busiest has the least possible to send, up to one element;
 * chains have at most `longest` ranks. */
psd_status reshard_lanes_make(const reshard_atoms *atoms, uint32_t longest, reshard_lanes *out,
                              const reshard_why *why);

/* --------------------------------------------------------------------------------------------- reshard_flow.c */

/* Splits demands among their holders: demand i is weight[i] bytes that the ranks of set[i] share. On return
 * share[k], k counting through the ranks of all demands in order, is how many of them that rank takes. The largest
 * sum of a rank, its `fixed` bytes included, is the least possible, rounded up. */
typedef struct flow_demand {
    const int32_t *ranks;
    uint32_t rank_count;
    int64_t weight;
} flow_demand;

psd_status reshard_flow_split(const flow_demand *demands, uint32_t count, const int64_t *fixed, int32_t ranks,
                              int64_t *share, const reshard_why *why);

/* ------------------------------------------------------------------------------------------- reshard_rounds.c */

/* So many units from one rank to another. */
typedef struct traffic {
    int32_t src;
    int32_t dst;
    int64_t units;
} traffic;

/* In this round the transfer gets this many units. */
typedef struct share_of_round {
    uint32_t traffic;
    uint32_t round;
    int64_t
        units; /* the same for all transfers of a round; the last share of a transfer may be more than is left */
} share_of_round;

typedef struct reshard_rounds {
    share_of_round *shares; /* in order of rounds */
    uint64_t count;
    uint32_t rounds;
} reshard_rounds;

/* Decomposes the traffic matrix (one entry a pair, units > 0) into matchings whose lengths add up to its largest line
 * sum: the preemptive open shop (Gonzalez and Sahni, 1976), by Birkhoff's theorem. No round is longer than `longest`
 * units. */
psd_status reshard_rounds_make(const traffic *entries, uint32_t count, int32_t ranks, int64_t longest,
                               reshard_rounds *out, const reshard_why *why);

#endif
