/* Handles {index, generation} to things that a context keeps in few numbers (plans, tables): slots are
 * reused, and a handle of something removed is told apart by its generation. All functions may be called by
 * any thread. */
#ifndef PSD_HANDLES_H
#define PSD_HANDLES_H

#include <pthread.h>
#include <stdint.h>

#include "worker/psd.h"

typedef struct psd_handle_slot {
    void *item; /* NULL: free */
    uint32_t generation;
    uint32_t users;
} psd_handle_slot;

typedef struct psd_handles {
    pthread_mutex_t lock;
    uint32_t count;
    psd_handle_slot *slots;
} psd_handles;

psd_status psd_handles_init(psd_handles *h);
void psd_handles_destroy(psd_handles *h); /* the items are the owner's */

psd_status psd_handles_add(psd_handles *h, void *item, uint32_t *index, uint32_t *generation);
/* The item, kept until released; NULL if the handle is stale. */
void *psd_handles_acquire(psd_handles *h, uint32_t index, uint32_t generation);
void psd_handles_release(psd_handles *h, uint32_t index);
/* Takes the item out: PSD_ERR_STALE, or PSD_ERR_INVAL while another thread uses it. */
psd_status psd_handles_remove(psd_handles *h, uint32_t index, uint32_t generation, void **item);
/* Takes any item out, used or not; NULL when none is left. For the end of a context. */
void *psd_handles_pop(psd_handles *h);

/* Calls visit() for each item, none of which is removed meanwhile; it must not call back into the handles. */
void psd_handles_each(psd_handles *h, void (*visit)(void *item, void *arg), void *arg);

#endif
