/* This rank's part in explaining hangs: does a thread wait too long, and what do its threads wait for? Called by the
 * agent's thread only. */
#ifndef PSD_HANG_H
#define PSD_HANG_H

#include "common/clock.h"
#include "common/record.h"

struct psd_ctx;

/* Of the agent's thread. */
typedef struct psd_hang {
    uint64_t told[PSD_RECORD_WAITERS];       /* seq of the wait that was told last, by slot */
    psd_time_ns told_at[PSD_RECORD_WAITERS]; /* and when: it is told again, should psd have missed it */
    psd_time_ns began;                       /* about when this rank joined */
    /* Of any thread. */
    _Atomic uint64_t polled; /* record of the operation that was tested last, and found incomplete */
    _Atomic int64_t polled_at;
} psd_hang;

/* Is there a wait that psd is to be told of? No: the backend cannot explain it, or nothing is recorded. */
bool psd_hang_is_stuck(struct psd_ctx *ctx, psd_time_ns now);

/* Where this rank's threads are, for a heartbeat; of one that polls also the operation that it polls. */
void psd_hang_doing(struct psd_ctx *ctx, psd_time_ns now, psd_msg_heartbeat *out);

/* Fills all but the round. *memory is what the message points into: free() it. PSD_ERR_NOMEM, PSD_ERR_LIMIT (more is
 * in flight than a snapshot holds), PSD_ERR_UNSUPPORTED. */
psd_status psd_hang_snapshot(struct psd_ctx *ctx, psd_time_ns now, psd_msg_snapshot *out, void **memory);

#endif
