/* Collectives between ranks that all map each other's tensors (arena.h): one pass over memory, without messages.
 *
 * Each rank tells the others where its input and output lie (EXPOSE), and waits until all have told it that. Then it
 * does its share by itself: it reads its piece of every input, reduces, and writes the result to every output that
 * wants it. Then it says so (FIN). It is through when all have: its output is complete and nobody reads its input.
 * A piece of a tensor is read and written by its owner only, so input and output may be the same.
 *
 * All or none: every rank sees what all have exposed, so all come to the same conclusion; if something cannot be
 * reached, the collective goes on by messages. Where some pair of ranks has no direct link, both know, and tell the
 * others that they do not reach all. */
#ifndef PSD_HOST_DIRECT_H
#define PSD_HOST_DIRECT_H

#include <stddef.h>
#include <stdint.h>

#define DIRECT_RANKS     64 /* groups above it use messages */
#define DIRECT_MIN_BYTES ((size_t)16 << 10)

/* EXPOSE.other: what can be reached. */
typedef enum direct_reach {
    DIRECT_IN = 1,
    DIRECT_OUT = 2,
    DIRECT_ALL_LINKS = 4, /* of the sender */
} direct_reach;

typedef enum direct_stage {
    DIRECT_EXPOSING = 0, /* until all have told */
    DIRECT_WORKING,      /* in slices */
    DIRECT_AWAITING,     /* until all are through */
} direct_stage;

typedef struct exposure {
    uint8_t reach;
    uint64_t in; /* places */
    uint64_t out;
    uint64_t id; /* of the send that FIN ends */
} exposure;

/* Of a request. */
typedef struct direct {
    direct_stage stage;
    int32_t missing; /* ranks that have not told */
    uint64_t done;   /* bytes of this rank's share */
    size_t bytes;    /* of this struct */
    exposure ranks[];
} direct;

#endif
