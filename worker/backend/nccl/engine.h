/* The state of the NCCL backend, and who may touch what.
 *
 * A context has one `psd_backend`; each group has one communicator on one stream of its own. NCCL's rules, which shape all
 * of this: a non-blocking communicator takes no call while its last one is ncclInProgress; what a call queues on the stream
 * is there only after that; two threads must not call it at once.
 *
 * Two locks:
 *   drive  owns all communicators: only its holder calls NCCL, and CUDA on the communicators' streams. Whoever waits takes
 *          it and makes progress (engine_drive); while nobody does, the owner thread does. Nothing under it waits for
 *          another rank: communicators are non-blocking, and what may block all the same (abort, destroy) has a thread of
 *          its own (farewell.c).
 *   lock   a leaf: queues, statuses, free lists. Never held over a call into a library or a callback.
 * CUDA on a caller's stream (an event recorded at start, a wait for an event) is done by the caller's thread, under neither:
 * a stream whose queue is full blocks its own user, nobody else. */
#ifndef PSD_NCCL_ENGINE_H
#define PSD_NCCL_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "common/log.h"
#include "worker/backend/list.h"
#include "worker/backend/nccl/identity.h"

#define LABEL_BYTES   160
#define FEW_P2P       2
#define SCRATCH_BYTES 512 /* of the device: what barriers and empty messages move */
#define MOST_SPOILED  32  /* streams; of more, some are forgotten */
#define MOST_FLYING                                                                                          \
    256 /* operations of a communicator on the device: more would fill the stream's queue and block */
/* How long a lone send or receive waits for others to go with it: until its caller has been busy elsewhere for so long, by
 * its thread's own clock, which a preempted thread's others do not move; or by this wall clock. */
#define HOLD_CPU_NS     PSD_NS_PER_MS
#define HOLD_NS         (200 * PSD_NS_PER_MS)
#define CLOSE_NS        (5 * PSD_NS_PER_S)    /* for all communicators to end when the context ends */
#define MEMBER_CHECK_NS (100 * PSD_NS_PER_MS) /* between two looks for members that give up the opening */
#define STOPPED_NS      (2 * PSD_NS_PER_S)    /* for the others to close what a stop of the job has broken */
#define ASYNC_CHECK_NS                                                                                       \
    (PSD_NS_PER_MS) /* between two looks for an error of a communicator with work on the device */
#define ABORT_MS_DEFAULT 10000
#define COMMS_DEFAULT    64

typedef enum comm_stage {
    STAGE_LINKS,    /* the host links are being made */
    STAGE_INIT,     /* all members have their links: ncclCommInitRankConfig is to be called */
    STAGE_JOINING,  /* it is in progress */
    STAGE_WARM,     /* a first all_reduce connects the members */
    STAGE_READY,    /* in use */
    STAGE_FINALIZE, /* closed: ncclCommFinalize is in progress */
    STAGE_FAREWELL, /* a thread of its own destroys or aborts it */
    STAGE_OVER,     /* there is no communicator any more */
} comm_stage;

struct psd_request {
    list node; /* of one of its group's lists, or of the free ones; under the list's lock */
    psd_backend_group *group;
    /* written by start() */
    psd_op op; /* its label, splits and p2p point into this struct or its memory */
    char label[LABEL_BYTES];
    psd_op_p2p few[FEW_P2P];
    void *memory; /* splits or a longer batch; NULL */
    psd_time_ns begun;
    uint64_t place;           /* in the order of the group's starts, from 1 */
    clockid_t caller_clock;   /* of a lone send or receive: its thread's CPU time, */
    psd_time_ns caller_begun; /* and what that said */
    /* First recorded on the caller's stream at start; once the operation is queued, recorded after it. */
    cudaEvent_t event;
    _Atomic bool is_queued; /* the event has its second meaning */
    _Atomic bool is_done;   /* `result` is written */
    bool is_internal;       /* of the backend's own: nobody releases it */
    psd_op_result result;
    /* under `lock` */
    void *follower;   /* the stream of the last stream_wait, if is_followed */
    bool is_followed; /* stream_wait was PSD_OK: an end after release is told by on_detached_done */
    bool is_told;     /* test() has given the result */
    bool is_detached; /* released before it was done */
};

/* A stream that waits for operations of a group. */
typedef struct follower {
    void *stream;
    int32_t count; /* of operations that are not done */
} follower;

/* A stream that waited for operations which were aborted: what it has since then is not what it should be, and the next
 * stream_sync says so. */
typedef struct spoiled {
    void *stream;
    psd_status status; /* PSD_OK: the entry is free */
    char text[PSD_MAX_TEXT];
} spoiled;

/* A thread that calls what may block for the last time a communicator is used. */
typedef struct farewell {
    bool is_running;
    bool is_abort;
    pthread_t thread;
    psd_time_ns deadline; /* then the process ends; PSD_NEVER */
    _Atomic bool is_done;
} farewell;

struct psd_backend_group {
    list node; /* of the backend's; under drive and lock */
    psd_backend *backend;
    uint32_t id;
    int32_t rank;
    int32_t size;
    uint32_t *members; /* world ranks */
    uint64_t *sent;    /* messages to each, for ordinals; under lock */
    uint64_t *received;
    psd_backend_group *host; /* its links; NULL once closed. Under drive */

    /* under drive */
    comm_stage stage;
    bool has_id;
    ncclUniqueId unique_id;
    ncclComm_t comm;
    cudaStream_t stream;
    bool in_progress; /* NCCL has not finished our last call */
    list issued;      /* of that call */
    list flying;      /* on the device, in the stream's order */
    int32_t flying_count;
    psd_time_ns next_async_check;
    psd_time_ns finalize_deadline;
    bool has_told; /* the members, that it is broken */
    psd_time_ns next_member_check;
    psd_time_ns begun;    /* of ncclCommInitRankConfig */
    uint64_t free_before; /* device memory */
    uint64_t bytes;       /* about what the communicator took */
    farewell farewell;

    /* under lock */
    list queue;       /* started, not issued */
    uint64_t queued;  /* requests so far */
    uint64_t pressed; /* as many of those are wanted by somebody who waits: held ones among them are to go */
    int32_t active;   /* requests that are not done */
    follower *followers;
    int32_t follower_count;
    psd_time_ns next_deadline; /* at or before the first of its requests' deadlines */
    uint64_t next_ordinal;
    psd_time_ns broken_at;
    char text[PSD_MAX_TEXT]; /* written once, before `status` */
    _Atomic int status;      /* psd_status; written under lock */
    _Atomic bool is_ready;   /* takes operations */
    _Atomic bool is_closed;  /* by its user; written under drive and lock */
};

struct psd_backend {
    psd_backend_config config; /* its strings are not kept */
    char log_file[512];        /* NCCL's; "" */
    nccl_libs libs;
    device device;
    identity identity;
    const psd_backend_ops *host_ops;
    psd_backend *host; /* the small-message channel and the links */
    void *scratch;
    cudaStream_t memory_stream; /* for what memory.c does */
    int64_t abort_ms;
    int64_t most_comms;

    pthread_mutex_t drive;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* of the owner thread; with lock */
    pthread_t owner;
    bool is_kicked;                    /* under lock: the owner is to look at once */
    bool is_idle;                      /* under lock: it sleeps until it is kicked */
    bool is_stopping;                  /* under lock */
    _Atomic psd_time_ns stop_deadline; /* PSD_NEVER until the context ends */

    list groups;                   /* under drive and lock to change, under one of them to walk */
    list free_requests;            /* under lock */
    int32_t comms;                 /* communicators that exist; under lock */
    uint64_t comm_bytes;           /* under lock */
    list regions;                  /* of mem_alloc; under lock */
    spoiled spoiled[MOST_SPOILED]; /* under lock */
    _Atomic uint64_t bytes_sent;
    _Atomic uint64_t bytes_received;
    _Atomic int32_t lone;    /* sends and receives, not in a batch, that are not done */
    _Atomic uint32_t breaks; /* groups that have broken so far */
};

/* ---- owner.c */

/* Makes progress on all communicators. `thorough`: also what the owner thread does from time to time (deadlines, errors of
 * links). drive is held. Gives whether something waits for NCCL (rather than for the device), to be asked soon again. */
bool engine_drive(psd_backend *b, bool thorough);
/* The same, for one group or all (NULL), if no other thread is at it. */
void engine_try(psd_backend *b, psd_backend_group *g);
void engine_lock_drive(psd_backend *b);
void engine_unlock_drive(psd_backend *b);
void engine_kick(psd_backend *b); /* wakes the owner thread; lock is held */
psd_status engine_start(psd_backend *b);
void engine_stop(psd_backend *b);    /* ends all communicators, by CLOSE_NS at the latest, and the thread */
void engine_destroy(psd_backend *b); /* the locks; after all else */
/* Between two looks of a waiting thread: spins at first, then sleeps ever longer. `round` counts from 0. */
void engine_pause(int *round, psd_time_ns deadline);
/* Ends the process: the last resort when a library does not come back. */
_Noreturn void engine_die(psd_backend *b, const char *text);
void engine_log(const psd_backend *b, psd_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline bool op_is_lone(const psd_op *op)
{
    return op->kind == PSD_OP_SEND || op->kind == PSD_OP_RECV;
}

static inline psd_status group_status(const psd_backend_group *g)
{
    return (psd_status)atomic_load_explicit(&g->status, memory_order_acquire);
}

/* ---- comm.c: a communicator's life. drive is held. */
bool comm_drive(psd_backend_group *g, bool thorough); /* as engine_drive; may free a closed group */
/* What group_poll tells: PSD_INPROGRESS, PSD_OK or an error, with its text. */
psd_status comm_state(psd_backend_group *g, char *why, size_t why_bytes);
/* The result of a NCCL call on a communicator, by what is to be rebuilt. */
psd_status comm_status_of(ncclResult_t result);

/* ---- farewell.c. drive is held. */
void farewell_begin(psd_backend_group *g, bool is_abort, psd_time_ns deadline);
bool farewell_poll(psd_backend_group *g, psd_time_ns now); /* true: the communicator is gone */

/* ---- pump.c: from the queue to the device and back. drive is held. */
bool pump(psd_backend_group *g, psd_time_ns now); /* as engine_drive */
void pump_fail(psd_backend_group *g);             /* ends all requests with the group's status */
void pump_deadlines(psd_backend_group *g, psd_time_ns now);

/* ---- launch.c */
typedef struct launch_failure {
    const char *what; /* the call */
    cudaError_t cuda; /* its error if it was CUDA's; else cudaSuccess */
} launch_failure;
/* Queues these requests as one unit on the group's stream. On an error `failure` is written; ncclInProgress is none. drive
 * is held. */
ncclResult_t launch(psd_backend_group *g, list *requests, launch_failure *failure);

/* ---- group.c */
/* Breaks the group, once. `tell`: psd is told. Any lock but `lock` may be held. */
void group_break(psd_backend_group *g, psd_status status, int32_t culprit, bool tell, const char *text);
psd_status group_begin(psd_backend *b, const psd_group_desc *desc, psd_backend_group **out, char *why,
                       size_t why_bytes);
psd_status group_poll(psd_backend_group *g, char *why, size_t why_bytes);
void group_close(psd_backend_group *g);
void group_abort(psd_backend_group *g, psd_status status, const char *text);
psd_status group_error(psd_backend_group *g, char *text, size_t text_bytes);
psd_status group_member_state(psd_backend_group *g, int32_t rank);
void group_host_broke(void *owner, uint32_t id, psd_status status, int32_t culprit, const char *text);
void group_free(psd_backend_group *g);

/* ---- follow.c: streams that wait for operations. lock is held. */
bool follow(psd_request *r, void *stream); /* false: out of memory */
void follow_end(psd_request *r);
void follow_spoil(psd_backend_group *g); /* the group has broken */
/* PSD_OK, or what became of operations that the stream waited for; told once. */
psd_status follow_take(psd_backend *b, const void *stream, char *why, size_t why_bytes);

/* ---- request.c */
psd_status request_start(psd_backend_group *g, const psd_op *op, psd_request **out);
psd_status request_start_warm_up(psd_backend_group *g);
void request_finish(psd_request *r, psd_status status); /* drive is held; may free it */
psd_status request_test(psd_request *r, psd_op_result *result);
psd_status request_wait(psd_backend *b, psd_request *const *requests, int32_t count, bool any,
                        psd_time_ns deadline);
psd_status request_stream_wait(psd_request *r, void *stream, psd_time_ns deadline);
void request_release(psd_request *r);
void request_press_all(psd_backend *b); /* somebody blocks: what is held back in any group is to go */
const char *request_text(const psd_request *r);
void requests_free(psd_backend *b);

/* ---- memory.c */
psd_status memory_alloc(psd_backend *b, size_t bytes, void **out);
void memory_free(psd_backend *b, void *data, size_t bytes);
void memory_forget(psd_backend *b); /* what was never freed */
psd_status memory_copy(psd_backend *b, void *dst, const void *src, size_t bytes, void *stream,
                       psd_time_ns deadline, char *why, size_t why_bytes);
psd_status memory_stream_sync(psd_backend *b, void *stream, psd_time_ns deadline, char *why,
                              size_t why_bytes);

#endif
