/* A rank of a system under comparison. Each system fills one bench_system and calls bench_rank_main(), which takes
 * orders (channel.h), checks results and measures. */
#ifndef PSD_BENCH_RANK_H
#define PSD_BENCH_RANK_H

#include <stddef.h>

#include "tests/bench/channel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One operation on f32. `count` is the c of psd.h's table of collectives: elements of each rank's part where the
 * operation deals in parts, else of the whole. In place `in` and `out` overlap as the system wants it (see below). */
typedef struct bench_call {
    bench_kind kind;
    bool in_place;
    int32_t root;
    int32_t peer; /* of the ping-pong */
    size_t count;
    float *in;
    float *out;
} bench_call;

typedef struct bench_system {
    void *self;
    int32_t rank;
    int32_t ranks;
    uint32_t out_of_place; /* as in bench_hello */
    uint32_t in_place;
    bool
        scatters_to_front; /* in-place reduce_scatter: the result begins the buffer; else it lies at the rank's part */
    /* 0, or not 0 and error() says what happened. */
    int (*run)(void *self, const bench_call *call);
    const char *(*error)(void *self);
    /* The system's own memory; both NULL: it has none. */
    void *(*allocate)(void *self, size_t bytes);
    void (*release)(void *self, void *memory);
} bench_system;

/* Serves orders until it is told to stop; the exit code. */
int bench_rank_main(const bench_system *system);

#ifdef __cplusplus
}
#endif
#endif
