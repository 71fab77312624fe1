/* Between the program that measures (compare.c) and the ranks of the systems that it compares: one socket for each
 * rank, an order at a time, an answer from each rank. Between orders a rank sleeps in a read, so that the systems, all
 * of them started, leave the cores to the one whose turn it is. */
#ifndef PSD_BENCH_CHANNEL_H
#define PSD_BENCH_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Environment of a rank. */
#define BENCH_ENV_SOCKET "BENCH_SOCKET"    /* path of the socket to connect to */
#define BENCH_ENV_SYSTEM "BENCH_SYSTEM"    /* number of the system in the driver's list */
#define BENCH_ENV_BYTES  "BENCH_BYTES"     /* size of the buffers */
#define BENCH_ENV_HUGE   "BENCH_HUGE"      /* 1: ask for huge pages under plain memory */
#define BENCH_ENV_PIN    "BENCH_PIN"       /* 1: rank r stays on core r, once the system is up */
#define BENCH_ENV_RANK   "BENCH_RANK"      /* of a system without a launcher of its own (Gloo) */
#define BENCH_ENV_RANKS  "BENCH_RANKS"     /* the same */
#define BENCH_ENV_STORE  "BENCH_STORE_DIR" /* the same: an empty directory to meet in */

/* The operations, by what `bytes` counts: the larger of a rank's input and output. Roots rotate from one operation to
 * the next, so that a root cannot run ahead of the others. The ping-pong is between ranks 2i and 2i+1. */
typedef enum bench_kind {
    BENCH_ALL_REDUCE = 0,
    BENCH_BROADCAST,
    BENCH_REDUCE,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_ALL_TO_ALL,
    BENCH_GATHER,
    BENCH_SCATTER,
    BENCH_PING_PONG,
    BENCH_BARRIER,
    BENCH_KINDS,
} bench_kind;

typedef enum bench_verb {
    BENCH_QUIT = 0,
    BENCH_CHECK, /* run once on a pattern and compare */
    BENCH_TIME,  /* run once, meet, run `inner` times: the nanoseconds of each */
} bench_verb;

typedef enum bench_memory {
    BENCH_MEMORY_PLAIN = 0, /* malloc'ed */
    BENCH_MEMORY_OWN,       /* the system's allocator; psd_tensor_alloc */
    BENCH_MEMORIES,
} bench_memory;

typedef struct bench_hello {
    int32_t system;
    int32_t rank;
    int32_t ranks;
    uint32_t own_memory;   /* has an allocator of its own */
    uint32_t out_of_place; /* bit k: kind k can run out of place */
    uint32_t in_place;     /* the same, in place */
} bench_hello;

typedef struct bench_order {
    uint32_t verb;
    uint32_t kind;
    uint32_t memory;
    uint32_t in_place;
    int64_t bytes;
    int64_t inner;
} bench_order;

typedef struct bench_answer {
    double ns;     /* of one operation on this rank */
    double cpu;    /* seconds of processor time that the process has used so far */
    int64_t wrong; /* elements; -1: the operation failed */
    char text[192];
} bench_answer;

#ifdef __cplusplus
}
#endif
#endif
