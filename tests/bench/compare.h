/* compare: measures the operations of several systems beside one another, and beside what the machine allows.
 *
 * All systems are started (systems.c) and sleep; a case is an operation, a size and a place (in place or not). In each
 * round of a case (rounds.c) every lane, a system with one kind of memory, has its turn, and the machine's limits
 * (limits.c) are measured before and after. So all times of a round belong to the same few milliseconds. Rounds go on
 * until enough are of one state of the cores; only those count. tables.c prints what came of it. */
#ifndef PSD_BENCH_COMPARE_H
#define PSD_BENCH_COMPARE_H

#include <stdio.h>
#include <sys/types.h>

#include "tests/bench/channel.h"
#include "tests/bench/stats.h"

#define COMPARE_MAX_SYSTEMS 8
#define COMPARE_MAX_RANKS   16
#define COMPARE_MAX_SIZES   16
#define COMPARE_MAX_ROUNDS  64
#define COMPARE_MAX_LANES   (COMPARE_MAX_SYSTEMS * BENCH_MEMORIES)

typedef struct compare_args {
    int ranks;
    char systems[256]; /* names, with commas */
    uint32_t kinds;    /* bit k */
    int64_t sizes[COMPARE_MAX_SIZES];
    int size_count;
    int rounds;     /* of one state, for each case */
    double turn_ns; /* how long a lane's turn in a round takes, about */
    bool
        only_own; /* only the system's own memory where it has some, and only in place where that is possible */
    bool difference;  /* the table of two systems' difference instead of all tables */
    bool only_limits; /* one line with what the machine allows now */
    bool summary;     /* only the tables of sizes by operations */
} compare_args;

/* 0; 1 after help was printed; 2 after a usage error was. */
int compare_args_parse(int argc, char **argv, compare_args *out);
const char *compare_kind_name(bench_kind kind);

/* --------------------------------------------------------------------------------------------- systems.c */

typedef struct compare_system {
    const char *name; /* as in --systems */
    const char *shown;
    int serial; /* what its ranks call themselves in bench_hello */
    bool is_psd;
    bool is_peer_mpi; /* one of those of which the best counts */
    bool is_wrong;    /* a result of its was, or it failed */
    pid_t pid;        /* of its launcher; 0: not started */
    int channels[COMPARE_MAX_RANKS];
    double cpu[COMPARE_MAX_RANKS]; /* seconds that each rank has used */
    bench_hello hello;
    char store[64]; /* directory of its own, removed at the end; "" */
} compare_system;

typedef struct compare_systems {
    compare_system list[COMPARE_MAX_SYSTEMS];
    int count;
    int ranks;
    int started; /* also those that did not come up */
    int listener;
    char socket[108];
} compare_systems;

/* Starts those that args names and that can be; says `skip:` of the others. False: none of psd's own. */
bool compare_systems_start(const compare_args *args, compare_systems *out);
void compare_systems_stop(compare_systems *systems);
/* One order to all ranks of a system, and the answer: the slowest rank's time, all wrong elements. False, once and for
 * all, when the system fails or does not answer: that was printed, and it takes no more part. */
bool compare_system_do(compare_system *system, const bench_order *order, bench_answer *out);

/* ---------------------------------------------------------------------------------------------- limits.c */

typedef struct compare_limits {
    double half_trip_ns;  /* half of a round trip of one word through shared memory */
    double copy_gbs;      /* one thread's memcpy of 64 MiB; 0: not measured */
    double copy_both_gbs; /* two threads', of half of it each */
} compare_limits;

typedef struct compare_probe compare_probe;
compare_probe *compare_probe_new(void); /* NULL: no memory or no threads */
void compare_probe_free(compare_probe *probe);
void compare_probe_measure(compare_probe *probe, bool with_copies, compare_limits *out);

/* ---------------------------------------------------------------------------------------------- rounds.c */

typedef struct compare_lane {
    compare_system *system;
    bench_memory memory;
    double ns[COMPARE_MAX_ROUNDS];
    bench_stats us; /* of the rounds that count */
} compare_lane;

typedef struct compare_case {
    bench_kind kind;
    int64_t bytes;
    bool in_place;
    compare_lane lanes[COMPARE_MAX_LANES];
    int lane_count;
    int round_count; /* all that were run */
    bench_state states[COMPARE_MAX_ROUNDS];
    compare_limits limits[COMPARE_MAX_ROUNDS];
    bench_state state;    /* of those that count */
    compare_limits limit; /* medians of those */
} compare_case;

/* Runs a case; lanes that fail are left out of the result. False: nothing to run. */
bool compare_case_run(compare_case *c, const compare_args *args, compare_systems *systems,
                      compare_probe *probe);

/* ---------------------------------------------------------------------------------------------- tables.c */

/* Cases of one operation follow one another. */
void compare_print_kind(const compare_case *cases, int count, int ranks);
void compare_print_summary(const compare_case *cases, int count, const compare_args *args);
void compare_print_difference(const compare_case *cases, int count);

#endif
