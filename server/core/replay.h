/* Would a program that ran to its end have hung, had nothing been buffered? Its calls are run again with the matching
 * that happened: a send is done only when its receive is posted, a collective only when all its members have come to it.
 * What was received from any source is received from where it came. Then there is nothing to choose, and one run in any
 * order tells. Pure and linear. */
#ifndef PSD_CORE_REPLAY_H
#define PSD_CORE_REPLAY_H

#include "server/core/waits.h"

/* A step of a thread: it posts a unit, or waits for some. */
typedef struct replay_call {
    bool is_wait;
    bool any;
    uint32_t unit;       /* posts */
    uint32_t first_work; /* waits: in input.works */
    uint32_t work_count;
} replay_call;

typedef struct replay_input {
    /* All units that were posted, whatever became of them. Receives that had their message carry its source, tag and
     * ordinal; those that had none and sends that nobody received match nothing. Threads: rank and id. All groups are
     * positional, and members have started all they did. */
    waits_input all;
    const uint32_t *first_call; /* by thread, and one more: the end */
    const replay_call *calls;
} replay_input;

typedef struct replay_result {
    bool is_stuck; /* unsafe */
    waits_input
        stuck; /* where it hangs: units and operations as in `all`, only the threads that have not ended */
    uint32_t *call_of; /* by thread of `stuck`: the wait it is in */
    void *memory;
} replay_result;

/* PSD_ERR_INVAL: an index leads nowhere, or a thread posts another rank's unit, or one twice. PSD_ERR_NOMEM. */
psd_status replay_run(const replay_input *input, replay_result *out);
void replay_result_free(replay_result *result);

#endif
