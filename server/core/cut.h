/* A cut through a job: the snapshots of one round as the input of the wait-for graph, and what that says. And the words
 * for it. */
#ifndef PSD_CORE_CUT_H
#define PSD_CORE_CUT_H

#include "server/core/state.h"
#include "server/core/waits.h"

typedef struct cut {
    waits_input in;
    waits_result result;
    bool report_only;
    /* what `in` points to */
    waits_rank *ranks;
    waits_thread *threads;
    waits_unit *units;
    waits_op *ops;
    uint32_t *works;
    waits_group *groups; /* and one without members, for operations of groups that psd does not know */
    uint64_t *started;
    uint32_t *
        members; /* of all groups, and of requests for groups: to these, who has asked has started one collective */
    waits_pair *pairs;
    psd_msg_snapshot **snaps; /* the members', now the cut's: names and places lie there */
    uint32_t snap_count;
} cut;

/* Takes the members' snapshots. NULL: no memory, or what the workers told does not fit together. */
cut *cut_take(psd_core *core, job *j);
void cut_free(cut *c);

/* report.c: a finding in words. `first`: also for those that are stuck for another reason than the findings'. */
void report_write(const cut *c, const waits_finding *f, bool first, psd_msg_incident *out);

/* report.c: a work that a rank never waited for, in words. */
void report_lost_work(int32_t rank, const psd_msg_lost_work *lost, psd_msg_incident *out);

/* A copy in one block: free() it. NULL: no memory. */
psd_msg_snapshot *snap_copy(const psd_msg_snapshot *from);

#endif
