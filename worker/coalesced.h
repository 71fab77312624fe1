/* The buckets that psd_all_reduce_coalesced packs tensors into; kept between calls, from the pool. */
#ifndef PSD_COALESCED_H
#define PSD_COALESCED_H

#include <pthread.h>

#include "worker/psd.h"

#define PSD_BUCKETS 2 /* one travels while the other is packed */

typedef struct psd_buckets {
    pthread_mutex_t lock; /* held for a whole call: the collectives of one group are in order anyway */
    psd_tensor memory[PSD_BUCKETS]; /* u8 */
    void *stream;                   /* that what uses them was queued on last */
} psd_buckets;

psd_status psd_buckets_init(psd_buckets *buckets);
void psd_buckets_release(psd_ctx *ctx); /* at finalize, before the pool tells what was not freed */

#endif
