/* Claiming works for a wait: between works.c and wait.c. */
#ifndef PSD_WORK_CLAIM_H
#define PSD_WORK_CLAIM_H

#include "worker/works.h"

/* PSD_ERR_STALE, or PSD_AGAIN while another thread waits for it. */
psd_status work_claim(psd_works *works, psd_work work, psd_work_slot **out);
void work_unclaim(psd_work_slot *slot);
/* The operation is complete: writes its record, gives everything back; the handle is stale from now on. */
void work_end(psd_ctx *ctx, psd_work_slot *slot, const psd_op_result *result);

/* A stream waits for the operation, so that its handle ends now: gives the request back before it is complete.
 * The slot is not the caller's any more. */
void work_detach(psd_ctx *ctx, psd_work_slot *slot);
/* The backend's word that it is complete; from any thread. `cookie` is the slot, as the operation carried it. */
void work_detached_done(psd_ctx *ctx, uint64_t cookie, const psd_op_result *result);

#endif
