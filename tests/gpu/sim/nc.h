/* Inside the simulated libnccl. */
#ifndef PSD_GPUSIM_NC_H
#define PSD_GPUSIM_NC_H

#include <pthread.h>
#include <stdatomic.h>

#include <nccl.h>

#include "gpusim.h"
#include "nc_segment.h"
#include "settings.h"

/* ---- nc_log.c: NCCL_DEBUG, NCCL_DEBUG_FILE, and what ncclGetLastError returns */

void nc_log_version(void);
void nc_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Also becomes the last error's text. */
void nc_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- nc_comm.c */

typedef struct nc_registration nc_registration;

typedef struct nc_redop {
    bool used;
    ncclDataType_t dtype;
    bool on_device; /* the scalar is read when the kernel runs */
    const void *scalar;
    unsigned char value[8];
} nc_redop;
#define NC_REDOPS 32

struct ncclComm {
    struct ncclComm *next; /* of the live ones */
    int refs;              /* handle, jobs, kernels, calls; under nc_comm_lock */
    int rank, ranks, device;
    bool is_blocking;
    uint8_t id[SEG_ID_BYTES];
    segment seg;
    atomic_bool has_segment;
    atomic_int state; /* what ncclCommGetAsyncError tells */
    atomic_bool aborted;
    atomic_bool in_call; /* a thread is inside a call on it */
    bool finalized;
    uint32_t splits;
    mark *last; /* of its newest kernel; kernels of one communicator run one after the other */
    nc_registration *registered;
    nc_redop redops[NC_REDOPS];
};

/* A live communicator with one more reference, or NULL (never created, destroyed, aborted). */
ncclComm_t nc_comm_get(ncclComm_t handle);
void nc_comm_hold(ncclComm_t comm);
void nc_comm_put(ncclComm_t comm);

/* What every call on a communicator but GetAsyncError and Abort begins with: it is live, no other thread is
 * inside a call on it, its last call is no longer in progress and it has no error. On ncclSuccess the caller
 * ends with nc_call_end. */
ncclResult_t nc_call_begin(ncclComm_t handle, const char *call);
void nc_call_end(ncclComm_t comm);

/* From success to in progress; and from there to this. An error that came meanwhile stays. */
void nc_comm_start(ncclComm_t comm);
void nc_comm_settle(ncclComm_t comm, ncclResult_t result);
void nc_comm_fail(ncclComm_t comm, ncclResult_t error);

/* Sleeps until done(comm, arg), or the communicator (or `also`, may be NULL) is aborted: false. */
typedef bool (*nc_condition)(ncclComm_t comm, void *arg);
bool nc_comm_wait(ncclComm_t comm, ncclComm_t also, nc_condition done, void *arg);

/* A new one of this rank, not yet among the live ones; NULL without memory. */
ncclComm_t nc_comm_new(const uint8_t id[SEG_ID_BYTES], int rank, int ranks, int device, bool is_blocking);
void nc_comm_publish(ncclComm_t comm);
/* Gives up this reference; its handle is no longer valid. Whoever took the handle away first also waits until
 * no other reference is left. */
void nc_comm_retire(ncclComm_t comm);
/* Meets the other ranks; `also` as in nc_comm_wait. */
ncclResult_t nc_comm_join(ncclComm_t comm, ncclComm_t also);

/* ---- nc_memory.c */

void nc_registrations_free(nc_registration *list);

/* ---- nc_group.c */

typedef enum nc_kind {
    NC_SEND,
    NC_RECV,
    NC_BROADCAST,
    NC_REDUCE,
    NC_ALL_REDUCE,
    NC_ALL_GATHER,
    NC_REDUCE_SCATTER,
} nc_kind;

typedef struct nc_op {
    nc_kind kind;
    const void *in;
    void *out;
    size_t count; /* as in the call */
    ncclDataType_t dtype;
    ncclRedOp_t redop;
    int root; /* or peer */
    ncclComm_t comm;
    cudaStream_t stream;
} nc_op;

/* A call on a communicator that is no operation: init, split, finalize. `run` may block; it holds what it
 * needs and gives it up in `end`. */
typedef struct nc_job nc_job;
struct nc_job {
    nc_job *next;
    ncclComm_t comm;  /* whose state tells how it goes; a reference */
    bool is_blocking; /* whatever the communicator is */
    ncclResult_t (*run)(nc_job *job);
    void (*end)(nc_job *job, ncclResult_t result); /* frees the job */
};

/* Between these two, a call's own group (ncclGroupEnd has the semantics). */
void nc_group_enter(void);
ncclResult_t nc_group_leave(ncclResult_t result);
/* Both within a group. */
ncclResult_t nc_group_add_op(const nc_op *op); /* takes a reference of op->comm */
ncclResult_t nc_group_add_job(nc_job *job);    /* job is owned on ncclSuccess */

/* ---- nc_kernel.c */

typedef struct nc_kernel nc_kernel;
/* From a group's operations on one communicator, in order. ncclInvalidUsage: sends to itself that are not
 * received. */
ncclResult_t nc_kernel_new(ncclComm_t comm, const nc_op *ops, size_t count, nc_kernel **out);
void nc_kernel_free(nc_kernel *kernel);
/* Connects to the peers used for the first time: announce, then wait. */
void nc_kernel_announce(nc_kernel *kernel);
bool nc_kernel_is_connected(nc_kernel *kernel);
ncclResult_t nc_kernel_connect(nc_kernel *kernel);
/* Queues it on the streams; owned from then on. */
ncclResult_t nc_kernel_launch(nc_kernel *kernel);

/* ---- nc_ring.c: collectives as programs of steps around the ring of ranks */

typedef struct ring_step {
    bool receives, reduces, sends, copies;
    size_t in, out; /* offsets in elements */
    size_t count;   /* elements, may be 0 */
    bool is_result; /* reduced over all ranks */
} ring_step;

/* The step of that number; false: there are no more. */
bool nc_ring_step(const nc_op *op, int rank, int ranks, uint64_t number, ring_step *out);

/* ---- nc_reduce.c */

size_t nc_type_size(ncclDataType_t dtype); /* 0: no such type */

typedef struct nc_reduction {
    ncclRedOp_t op; /* ncclSum, ncclProd, ncclMax or ncclMin */
    bool scales;    /* multiply inputs first */
    double scale;
    int64_t divisor; /* 0: none; integers' average */
} nc_reduction;

nc_reduction nc_reduction_of(const nc_op *op, ncclComm_t comm);
void nc_reduce_load(const nc_reduction *r, ncclDataType_t dtype, void *out, const void *in, size_t count);
/* out = acc op in; all may be the same memory. */
void nc_reduce_combine(const nc_reduction *r, ncclDataType_t dtype, void *out, const void *acc,
                       const void *in, size_t count);
void nc_reduce_finish(const nc_reduction *r, ncclDataType_t dtype, void *data, size_t count);

#endif
