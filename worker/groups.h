/* Groups of a context: a table of slots whose handles are {index, generation}. Index 0 is the world.
 *
 * A slot is used only between psd_group_acquire and psd_group_release; while it is acquired, or has an
 * operation in flight, it cannot be destroyed. Its fields do not change in that time. No lock on this path:
 * `tag` holds the generation (high 32 bits) and the number of users (low 32). */
#ifndef PSD_GROUPS_H
#define PSD_GROUPS_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/agent.h"
#include "worker/backend/backend.h"
#include "worker/psd.h"

#define PSD_MAX_GROUPS 4096 /* open at the same time in one context */

typedef struct psd_group_slot {
    _Atomic uint64_t tag;
    _Atomic bool open; /* false: free or still being opened */
    _Atomic bool told; /* a call has returned the error that broke it: psd_finalize need not */
    bool taken;        /* under groups.lock */
    uint32_t index;
    uint32_t id; /* psd's: unique in the job over all time */
    uint64_t epoch;
    int32_t rank; /* mine in it */
    int32_t size;
    uint32_t *members; /* world ranks in group order */
    psd_backend_group *backend;
    const psd_backend_ops *ops;
    pthread_mutex_t order; /* held while a collective is started */
} psd_group_slot;

typedef struct psd_groups {
    pthread_mutex_t lock;         /* slots being taken and given back, and aborts by id */
    pthread_mutex_t backend_lock; /* the backend's group_begin, group_poll and group_close */
    _Atomic uint32_t used;        /* slots[0 .. used) are allocated; slots are freed only with the context */
    _Atomic(psd_group_slot *) slots[PSD_MAX_GROUPS];
} psd_groups;

psd_status psd_groups_init(psd_groups *groups);
void psd_groups_destroy(psd_groups *groups); /* all closed before */

/* The slot of a handle, or PSD_ERR_STALE with a sentence. `verb` is the public function's name. */
psd_status psd_group_acquire(PSD_AT, const char *verb, psd_ctx *ctx, psd_group group, psd_group_slot **out);
void psd_group_release(psd_group_slot *slot);

/* Opens a group with all that belongs to it: asks psd, connects and warms the links, waits for GROUP_GO. For
 * psd_group_new/split/dup and for tables. A null group {UINT32_MAX, 0} when psd put this rank in none. */
psd_status psd_group_open(PSD_AT, const char *verb, psd_ctx *ctx, const psd_msg_group_open *how,
                          psd_group *out);
psd_status psd_group_open_world(PSD_AT, psd_ctx *ctx, uint32_t world_group, psd_time_ns deadline);
/* Closes it on this rank; PSD_ERR_INVAL while operations on it are in flight. */
psd_status psd_group_close(PSD_AT, const char *verb, psd_ctx *ctx, psd_group group);
/* At finalize: no operation is left, no other thread is in the context. The first error that broke one of the groups
 * still open and that no call has returned; a stop of the job is none. */
psd_status psd_group_close_all(psd_ctx *ctx);

/* Says on this context why its group is broken, in the words of the backend; `text` is "" if it is not. */
psd_status psd_group_broken(const psd_group_slot *slot, char *text, size_t text_bytes);

/* Calls visit() for each other member of each open group with what the backend's group_member says of it. It must not call back into the groups. */
void psd_groups_visit(psd_ctx *ctx, void (*visit)(void *arg, uint32_t world_rank, psd_status state),
                      void *arg);

/* Breaks the group with this id, or all groups, on this rank. Any thread. */
void psd_group_abort_id(psd_ctx *ctx, uint32_t id, psd_status status, const char *text);
void psd_group_abort_all(psd_ctx *ctx, psd_status status, const char *text);

#endif
