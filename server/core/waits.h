/* Who waits for whom: the wait-for graph of one moment, and what follows from it. Pure and linear in the size of
 * its input (but for sorting); time plays no part.
 *
 * The input is a cut through a job: what each rank's threads are blocked on, the units (an operation of its own, or
 * a batch) they have posted, and how far each member of a group has come with the group's collectives. A rank of
 * which there is no snapshot is taken to be running.
 *
 * The graph. A blocked thread waits for all (AND) or any (OR) of its works, which are units. A unit is done once it
 * has started and all its operations are; it starts once the unit before it in its queue is done. A send or receive
 * whose partner is posted waits for the start of the partner's unit. (Not for its end, as each of two batches that
 * exchange something would then wait for the other.) Otherwise it waits for any of the threads of its peer's rank; a
 * receive from any source, for any thread of any member. A collective is one hub that waits for all members that
 * have not come to it, and for the start of the units of those that have. Running threads and complete units wait
 * for nothing; a rank that finished, died or left never does anything again.
 *
 * What can be released is (signal reduction); the rest is stuck, whatever the running threads do. Its strongly
 * connected parts without exit are the causes: a cycle (deadlock), a rank that can never come (orphan, peer-failed),
 * or operations that disagree (mismatch). Whatever else is stuck is a victim. A rank that will never do anything is
 * no alternative: it is not an exit for who waits for any of several.
 *
 * A running thread may do anything, so that what is stuck here stays stuck in every continuation: a verdict never has
 * to be withdrawn. */
#ifndef PSD_CORE_WAITS_H
#define PSD_CORE_WAITS_H

#include <stdbool.h>

#include "common/psd_types.h"

#define WAITS_NONE UINT32_MAX /* no thread, unit, operation */
#define WAITS_ANY  (-1)       /* any source, any tag */

typedef enum waits_life {
    WAITS_UNKNOWN = 0, /* no snapshot */
    WAITS_LIVE = 1,
    WAITS_FINISHED = 2, /* ended in order */
    WAITS_LEFT = 3,     /* left the job in order */
    WAITS_DEAD = 4,
} waits_life;

typedef struct waits_rank {
    waits_life life;
    uint32_t first_thread; /* its threads that have used the context; none: it is running */
    uint32_t thread_count;
    uint64_t incarnation;
    uint64_t moved; /* changes with whatever the rank starts, completes, sends or receives */
} waits_rank;

typedef struct waits_thread {
    uint32_t rank;
    uint32_t id;       /* kernel thread id */
    uint64_t wait_seq; /* number of its wait */
    int64_t waiting_ns;
    bool
        is_blocked; /* in a wait inside psd; else it runs: it polls, waits with a timeout, or is outside psd */
    bool any;
    bool is_partial;     /* waits for works besides those named */
    uint32_t first_work; /* in `works` */
    uint32_t work_count;
} waits_thread;

/* An operation of its own or a batch: the thing that is waited for, and queued. */
typedef struct waits_unit {
    uint32_t rank;
    uint32_t first_op;
    uint32_t op_count;
    uint32_t after; /* backends with queues: the unit before it in its queue; else WAITS_NONE */
    bool is_complete;
} waits_unit;

typedef struct waits_op {
    uint32_t unit;
    uint32_t group; /* index in `groups` */
    bool is_complete;
    bool is_matched; /* a receive that has its message; then `peer`, `tag` and `ordinal` are the message's */
    uint8_t kind;    /* psd_op_kind, never BATCH */
    uint8_t dtype;
    uint8_t redop;
    int32_t peer; /* sends and receives: world rank or WAITS_ANY */
    int32_t root; /* collectives: group rank, or what else must agree; -1 */
    int32_t tag;  /* sends and receives; WAITS_ANY */
    /* Collectives: in their group. Sends: in (group, source, destination). Receives: of the message that has matched;
     * positional groups: as for sends, from the beginning. Counted from 0. */
    uint64_t ordinal;
    int64_t count;
    uint64_t splits; /* hash of what else ranks must agree on; 0: nothing */
    /* For reports only; borrowed. */
    uint32_t other_tag; /* a receive: tag + 1 of a message of its peer's that it does not take; 0: none */
    uint32_t line;
    const char *file;
    const char *name; /* of the tensor; "" or NULL: none */
} waits_op;

typedef struct waits_group {
    uint32_t id;
    uint32_t size;
    bool is_positional;      /* sends and receives match by position, not by tag (nccl) */
    const uint32_t *members; /* world ranks in group order; NULL: 0 .. size-1 */
    const uint64_t *started; /* collectives that each member has started, in group order; NULL: none */
} waits_group;

/* Messages between two ranks, counted by one of them: of the two-round rule. */
typedef struct waits_pair {
    uint32_t rank; /* who counted */
    uint32_t peer;
    uint64_t sent;
    uint64_t received;
} waits_pair;

typedef struct waits_input {
    uint32_t rank_count;
    const waits_rank *ranks; /* by world rank */
    uint32_t thread_count;
    const waits_thread *threads; /* those of a rank together, in the order of ranks */
    uint32_t work_count;
    const uint32_t *works; /* units */
    uint32_t unit_count;
    const waits_unit *units;
    uint32_t op_count;
    const waits_op
        *ops; /* those of a unit together; those of a rank in the order in which they were posted */
    uint32_t group_count;
    const waits_group *groups;
    uint32_t pair_count;
    const waits_pair *pairs; /* ascending by (rank, peer) */
} waits_input;

typedef enum waits_class {
    WAITS_DEADLOCK = 1,
    WAITS_ORPHAN = 2,
    WAITS_PEER_FAILED = 3,
    WAITS_MISMATCH = 4,
} waits_class;

typedef enum waits_standing {
    WAITS_FREE = 0,   /* runs, or may be released */
    WAITS_VICTIM = 1, /* stuck, for what others do */
    WAITS_CAUSE = 2,  /* stuck, and a part of a cause */
} waits_standing;

/* One arrow of a finding: `thread`, which stands in `unit`, is held by `op`, which waits for `on`. */
typedef struct waits_step {
    uint32_t thread; /* WAITS_NONE: no stuck thread waits for the operation itself */
    uint32_t unit;   /* what the thread waits for */
    uint32_t op;     /* what holds it: an operation of that unit, or of one before it in its queue */
    uint32_t rank;   /* the world rank that is waited for */
} waits_step;

/* deadlock: the arrows of the shortest cycle, in its order. orphan, peer-failed: the operation, one arrow for each
 * rank that never comes, at most WAITS_NAMED. mismatch: arrows of the two sides that disagree, or of one operation of each rank of a collective
 * that has come, at most WAITS_NAMED; `field` says what they disagree on. */
typedef struct waits_finding {
    waits_class class;
    uint32_t first_step;
    uint32_t step_count;
    uint32_t count;   /* of the ranks concerned, also of those that are not named */
    uint32_t threads; /* stuck threads of this cause itself */
    const char *field;
} waits_finding;

#define WAITS_NAMED 16u

typedef struct waits_result {
    uint32_t stuck;    /* threads */
    uint8_t *standing; /* waits_standing, by thread */
    uint32_t finding_count;
    waits_finding *findings; /* of at most WAITS_FINDINGS causes, in the order of their first rank */
    uint32_t step_count;
    waits_step *steps;
    uint32_t cause_count; /* of all causes */
} waits_result;

#define WAITS_FINDINGS 256u

/* PSD_ERR_INVAL: an index of the input leads nowhere. PSD_ERR_NOMEM. The result is written only on PSD_OK. */
psd_status waits_solve(const waits_input *input, waits_result *out);
void waits_result_free(waits_result *result);

/* The two-round rule: may what `result`, of `first`, says be believed, given the same ranks' `second`? True if each
 * stuck thread shows the same incarnation, thread and wait in both, its rank has not moved, and between any two ranks
 * of them as much was received as was sent; also from ranks that ended in order, where these have told. */
bool waits_confirmed(const waits_input *first, const waits_result *result, const waits_input *second);

#endif
