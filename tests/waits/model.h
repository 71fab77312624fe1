/* A small world of programs, to compare server/core/waits.c with: random straight-line programs of a few ranks, and an
 * interpreter that knows every interleaving of them. It shares no code with what it tests. */
#ifndef PSD_TEST_WAITS_MODEL_H
#define PSD_TEST_WAITS_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define MOST_RANKS   6
#define MOST_THREADS 8
#define MOST_OPS     24
#define MOST_GROUPS  2
#define MOST_STEPS   12 /* instructions of a thread */
#define ANY          (-1)

typedef enum op_kind { OP_SEND, OP_RECV, OP_COLL } op_kind;

typedef struct op {
    op_kind kind;
    int unit;
    int group;
    int peer;      /* rank, or ANY */
    int tag;       /* or ANY */
    bool is_large; /* a send that completes only with its receive */
} op;

/* An operation, or a batch of sends and receives. */
typedef struct unit {
    int thread;
    int first_op;
    int op_count;
} unit;

typedef struct instruction {
    bool is_wait;
    bool any;
    int unit;       /* posts this one */
    uint32_t units; /* waits for these */
} instruction;

typedef struct program {
    int ranks;
    int threads;
    int rank_of[MOST_THREADS]; /* ascending */
    int length[MOST_THREADS];
    instruction code[MOST_THREADS][MOST_STEPS];
    int unit_count;
    unit units[MOST_OPS];
    int op_count;
    op ops[MOST_OPS];
    int group_count;
    uint32_t members[MOST_GROUPS]; /* ranks */
    bool is_queued;   /* nccl: units of a rank run in order, sends and receives match by position */
    bool has_network; /* messages take their time; else they arrive as they are sent */
    bool is_slow;     /* what has matched takes its time */
} program;

typedef enum op_state { OP_UNPOSTED, OP_POSTED, OP_MATCHED, OP_DONE } op_state;

typedef struct state {
    uint8_t at[MOST_THREADS];
    uint8_t op[MOST_OPS]; /* op_state */
    int8_t partner[MOST_OPS];
    uint8_t ordinal[MOST_OPS];
    uint8_t order[MOST_OPS];     /* of posting */
    uint8_t delivered[MOST_OPS]; /* sends: order of arrival; 0: on its way */
    uint8_t started[MOST_RANKS][MOST_GROUPS];
    uint8_t sent[MOST_GROUPS][MOST_RANKS][MOST_RANKS];
    uint8_t taken[MOST_GROUPS][MOST_RANKS]
                 [MOST_RANKS]; /* positional: receives posted, by source and destination */
    uint8_t next_order;
    uint8_t next_arrival;
} state;

/* program.c */
void program_random(uint64_t seed, program *out);
void program_print(const program *p);
uint64_t random_next(uint64_t *seed);

/* interpreter.c */
void state_begin(const program *p, state *out);
/* All that can happen next. Calls visit() with each next state and the thread that moved on, or -1. */
typedef void (*state_visit)(void *arg, const state *next, int thread);
void state_each_next(const program *p, const state *s, state_visit visit, void *arg);
bool thread_has_ended(const program *p, const state *s, int thread);
bool thread_is_blocked(const program *p, const state *s, int thread); /* in a wait that does not hold */
bool rank_has_ended(const program *p, const state *s, int rank);
bool unit_is_done(const program *p, const state *s, int unit);
int op_rank(const program *p, int op);
bool op_is_in_flight(const program *p, const state *s, int op); /* a message that has not arrived */
/* Queued programs: the unit before it in its rank's queue; -1. */
int unit_before(const program *p, const state *s, int unit);

/* oracle.c: what is stuck in a state and why, by brute force over threads. */
typedef struct oracle {
    uint32_t stuck;             /* threads */
    uint32_t causes;            /* threads of cycles that nothing outside could end */
    int cycles;                 /* of these */
    int shortest[MOST_THREADS]; /* of each cycle, in no order: threads */
    uint32_t orphans;           /* operations held by ranks that have ended, that stuck threads need */
} oracle;
void oracle_ask(const program *p, const state *s, oracle *out);

#endif
