/* Works of a context: operations in flight that have a handle. Slots are reused; a handle's generation tells
 * whether it still means the same operation. */
#ifndef PSD_WORKS_H
#define PSD_WORKS_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/groups.h"

#define PSD_WORKS_CHUNK 256
#define PSD_MAX_WORKS   (1 << 20) /* in flight in one context */

typedef enum psd_work_phase {
    PSD_WORK_FREE = 0,
    PSD_WORK_READY = 1, /* started; nobody waits */
    PSD_WORK_BUSY = 2,  /* a thread waits for it or tests it */
    /* Its handle has ended, by a wait on a stream; the device is not through it. In psd_works.detached. */
    PSD_WORK_DETACHED = 3,
} psd_work_phase;

typedef struct psd_work_slot {
    _Atomic uint64_t tag; /* generation << 32 | psd_work_phase */
    uint32_t index;
    struct psd_work_slot *next_free;
    psd_request *request;
    psd_group_slot *group; /* acquired while the work lives */
    uint64_t record;       /* seq in the recorder; 0: none */
    psd_time_ns deadline;  /* the operation's own */
    psd_op_kind kind;
    int32_t peer; /* or root; -1: none or any */
    const char *file;
    int line;
    /* ---- only where there are streams */
    void *stream;   /* the operation's own; once detached, the one that waits for it */
    int32_t source; /* of its last receive; -1: none */
    struct psd_work_slot *next_detached, *previous_detached;
} psd_work_slot;

typedef struct psd_works {
    pthread_mutex_t lock; /* the free list, growth, and what is detached; a leaf */
    psd_work_slot *free;
    psd_work_slot *detached;      /* newest first */
    pthread_cond_t detached_done; /* one fewer */
    _Atomic uint32_t used;        /* slots that exist */
    _Atomic(psd_work_slot *) chunks[PSD_MAX_WORKS / PSD_WORKS_CHUNK];
} psd_works;

psd_status psd_works_init(psd_works *works);
void psd_works_destroy(psd_works *works);

/* A slot for an operation about to start, or NULL when memory or the limit ends. */
psd_work_slot *psd_work_reserve(psd_works *works);
void psd_work_cancel(psd_works *works, psd_work_slot *slot); /* the operation did not start */
psd_work psd_work_publish(psd_work_slot *slot);

/* Blocks until no detached operation on this group (NULL: on any) is left, or until each that is left is well past its
 * own deadline: then PSD_ERR_TIMEOUT. */
psd_status psd_works_drain(psd_works *works, const psd_group_slot *group);
/* The records of detached operations that this stream waits for, the newest `capacity` of them; returns how many there are. */
int32_t psd_works_on_stream(psd_works *works, const void *stream, uint64_t *seqs, int32_t capacity);

/* At finalize: warns of works never waited for, tells psd of those that have not failed, waits briefly for them, breaks the
 * groups of those that remain, and releases all. */
void psd_works_settle(psd_ctx *ctx);

#endif
