/* Runs a program once to its end on host, then asks server/core/replay.c and every interleaving without buffers whether
 * it would have ended all the same. */
#ifndef PSD_TEST_WAITS_UNSAFE_H
#define PSD_TEST_WAITS_UNSAFE_H

#include "tests/waits/model.h"

typedef enum unsafe_answer {
    UNSAFE_DIFFERS,
    UNSAFE_SAME_SAFE,
    UNSAFE_SAME_STUCK,
    UNSAFE_NOT_ASKED
} unsafe_answer;

/* Not asked: queued programs, and runs that do not come to their end. */
unsafe_answer unsafe_compare(const program *p, uint64_t seed);

#endif
