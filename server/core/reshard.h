/* The reshard planner: moves all tensors of a model from one layout to another by point-to-point messages in rounds
 * that cannot deadlock, and says how far that is from the best possible. Pure, needs no core, any thread.
 *
 *     reshard_compile   atoms -> senders -> entries -> rounds -> messages
 *     reshard_check     proves a plan from its inputs and messages alone
 *     reshard_bound     the lower bounds, from the inputs alone
 *
 * The three share only the language (common/layout.h) and the structs below. */
#ifndef PSD_CORE_RESHARD_H
#define PSD_CORE_RESHARD_H

#include "common/layout.h"

/* Borrowed by all three functions. Ranks are global; a rank in both groups keeps its source shard, in a buffer apart
 * from its destination shard. */
typedef struct reshard_input {
    const psd_model *model;
    const psd_layout *src;
    const psd_layout *dst;
} reshard_input;

typedef enum reshard_forwarding {
    RESHARD_DIRECT = 0,  /* every byte comes from a rank that holds it in the source layout */
    RESHARD_FORWARD = 1, /* receivers send on what they received in earlier rounds */
    RESHARD_AUTO = 2,    /* direct, unless forwarding makes the largest load a tenth smaller */
} reshard_forwarding;

/* Elements [lo, hi) of an atom in its row-major order; see reshard_piece_boxes. */
typedef struct reshard_piece {
    uint32_t tensor;
    uint32_t atom; /* in reshard_plan.atoms */
    int64_t lo;
    int64_t hi;
} reshard_piece;

/* A maximal box of elements that the same ranks hold in both layouts, of all tensors that lie alike. */
typedef struct reshard_atom {
    psd_box box;
} reshard_atom;

/* What one rank sends to another in one round. */
typedef struct reshard_message {
    uint32_t round;
    int32_t src;
    int32_t dst;
    bool forwards; /* read from the sender's destination shard, not its source shard */
    uint32_t piece_count;
    uint64_t first_piece;
    int64_t bytes;
} reshard_message;

/* Value. Messages are in order of (round, src), those of one round and pair one after the other; in a round a rank
 * sends to at most one rank and receives from at most one. */
typedef struct reshard_plan {
    reshard_atom *atoms;
    uint64_t atom_count;
    reshard_message *messages;
    uint64_t message_count;
    reshard_piece *pieces;
    uint64_t piece_count;
    uint32_t rounds;
    bool forwards;
    int64_t bytes;      /* sent in all */
    int64_t load;       /* the most that one rank sends or receives */
    int64_t round_time; /* sum over the rounds of the largest transfer of a pair */
    int32_t busiest;    /* the rank with that load */
    bool busiest_sends;
} reshard_plan;

psd_status reshard_compile(const reshard_input *input, reshard_forwarding forwarding, reshard_plan *out,
                           char *why, size_t why_bytes);
void reshard_plan_free(reshard_plan *plan); /* what it holds, not the struct */

#define RESHARD_MOST_BOXES (2 * PSD_MAX_DIMS)
/* Cuts elements [lo, hi) of a box, in row-major order, into at most RESHARD_MOST_BOXES boxes. Returns how many. */
int reshard_piece_boxes(const psd_box *box, int ndim, int64_t lo, int64_t hi, psd_box *out);

/* PSD_ERR_INTERNAL and a sentence if the plan is not right: a byte missing or written twice, a sender that does not
 * hold what it sends, a rank twice in a round. */
psd_status reshard_check(const reshard_input *input, const reshard_plan *plan, char *why, size_t why_bytes);

/* Bounds in bytes (server/LAYOUT.md, section 4). A fraction is rounded up. */
typedef struct reshard_bounds {
    int64_t in;          /* T_in: the most that one rank must receive */
    int64_t out;         /* T_out: Hall's bound on sending directly */
    int64_t out_forward; /* T_out_fwd: a needed byte leaves its holders only once */
    int64_t moved;       /* bytes that must arrive */
    int64_t local;       /* bytes that are there already */
    uint64_t atoms;      /* of all tensors */
    uint64_t deliveries; /* atoms x receivers */
    int32_t in_rank;     /* the first rank that reaches T_in; -1: nothing moves */
    int32_t *out_ranks;  /* a set of ranks that reaches T_out; freed with reshard_bounds_free */
    int32_t out_rank_count;
} reshard_bounds;

psd_status reshard_bound(const reshard_input *input, reshard_bounds *out, char *why, size_t why_bytes);
void reshard_bounds_free(reshard_bounds *bounds);

static inline int64_t reshard_t_star(const reshard_bounds *b, bool forwards)
{
    int64_t out = forwards ? b->out_forward : b->out;
    return out > b->in ? out : b->in;
}

#endif
