/* What scenarios share. */
#ifndef PSD_TESTS_SCENARIO_H
#define PSD_TESTS_SCENARIO_H

#include <psd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define MANY 100000 /* elements of a tensor whose send waits for its receive */

extern psd_ctx *ctx;
extern psd_group group;    /* that the scenario is in: the world, or the subgroup */
extern int32_t rank, size; /* in it */
extern int32_t world_rank;
extern bool wrong;
extern float memory[4][MANY];

double seconds(void);

/* A call that fails tells how long it was in psd: run.sh makes the time to the verdict of it. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        double begun_ = seconds();                                                                           \
        if ((call) != PSD_OK) {                                                                              \
            printf("rank %d: failed after %.3f s\n", world_rank, seconds() - begun_);                        \
            printf("rank %d: %s\n", world_rank, psd_last_error());                                           \
            fflush(stdout);                                                                                  \
            psd_finalize(&ctx);                                                                              \
            exit(7);                                                                                         \
        }                                                                                                    \
    } while (0)

typedef struct scenario {
    const char *name;
    void (*run)(void);
} scenario;

/* Each ends with a NULL name. */
extern const scenario scenarios_p2p[], scenarios_collectives[], scenarios_groups[];

/* KEY=VALUE of the command line. */
long parameter(const char *name, long otherwise);
const char *parameter_text(const char *name, const char *otherwise);

psd_tensor tensor(int which, int64_t count, const char *name);

#endif
