/* psd: ranks, point-to-point and collective operations on tensors, planned transfers and parameter tables, in
 * C.
 *
 * A process makes a context with psd_init(): it joins a job at the coordinator (`psd`), gets its rank, and
 * can then exchange tensors with the other ranks of that job. Everything it has in flight is known by name to
 * the coordinator, so a job that hangs can be explained.
 *
 *     psd_ctx *ctx = NULL;
 *     if (psd_init(NULL, &ctx) != PSD_OK)
 *         return fprintf(stderr, "%s\n", psd_last_error()), 1;
 *     float x[4] = {1, 2, 3, 4};
 *     psd_tensor t = psd_tensor_1d(x, 4, PSD_F32, "x");
 *     if (psd_all_reduce(ctx, PSD_WORLD, &t, &t, PSD_SUM, NULL) != PSD_OK)
 *         fprintf(stderr, "%s\n", psd_last_error());
 *     psd_finalize(&ctx);
 *
 * Threads. Any thread may use any context, and several may use one at the same time, with two rules: all
 * ranks start the collectives of one group in the same order (so two threads must not race to start them),
 * and one work is waited for by one thread at a time. psd_finalize() is called once, when no other thread
 * uses the context. A child of fork() cannot use its parent's context: every call on it is PSD_ERR_INVAL.
 *
 * Ownership. A buffer given to an operation is borrowed until the operation completes: a send buffer must not
 * be written, a receive buffer neither read nor written. The psd_tensor struct itself is copied and may go at
 * once.
 *
 * Errors. Every function returns PSD_OK or a negative psd_status, writes its out-parameters only on PSD_OK,
 * and leaves a sentence for psd_last_error(): what was tried, by which file:line, what happened, what to do.
 * Statuses come in ranges by what must be rebuilt, see psd_types.h.
 *
 * Lists. An empty list is no work: psd_waitall of 0 works is PSD_OK, psd_waitany of 0 is PSD_ERR_STALE. A
 * psd_batch, an all_reduce_coalesced or a table of 0 entries is PSD_ERR_INVAL, since the other ranks wait for
 * something.
 *
 * Environment. What psd_config leaves open comes from PSD_* variables, then from those of launchers:
 * psd-environment(7) lists all.
 *
 * Device memory. On backend nccl all tensors of operations are in the memory of one GPU, psd_device_index();
 * host memory is refused there, as device memory is on host. psd_tensor_alloc gives the memory that the
 * backend moves and psd_tensor_copy brings data in and out, so a program written with these two runs on both.
 * On a GPU operations are queued on CUDA streams (psd_opts.stream), and a blocking call returns once its
 * operation is queued: what is queued on the same stream afterwards finds the data there, and so does the
 * host after psd_tensor_copy to host memory, psd_synchronize or psd_stream_synchronize.
 *
 * Time. Timeouts are milliseconds: 0 takes the context's default, negative means never.
 *
 * Calls are macros that pass the caller's file and line to a function psd_<verb>_at(file, line, ...), by
 * which psd names operations in reports; a binding can call the function with its own caller's place (the
 * strings must live as long as the program).
 */
#ifndef PSD_H
#define PSD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "psd_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PSD_API  __attribute__((visibility("default")))
#define PSD_HERE __FILE__, __LINE__
#define PSD_AT   const char *file, int line

/* -------------------------------------------------------------------------------------- statuses, version */

PSD_API const char *psd_version(void);                  /* "0.1.0" */
PSD_API const char *psd_status_text(psd_status status); /* a short sentence for any status; never NULL */
/* The sentence of the last failed call of this thread; "" if there was none. Valid until this thread's next
 * failing call. */
PSD_API const char *psd_last_error(void);

/* ------------------------------------------------------------------------------------------------ context */

typedef struct psd_ctx psd_ctx;

/* How to join. Zero-initialise, set `size`, set what you need; a NULL, 0 or unset field is taken from the
 * environment, then from the default. psd_config_init() does the first two steps, and sets rank -1 (a rank of
 * 0 asks for rank 0). */
typedef struct psd_config {
    size_t size; /* sizeof(psd_config) */
    /* PSD_COORDINATOR, else tcp://MASTER_ADDR:MASTER_PORT (both or neither), else tcp://127.0.0.1:5577 */
    const char *coordinator;
    const char *job;         /* PSD_JOB, else "default" */
    const char *name;        /* PSD_NAME, else a unique one; a name that comes back gets its rank back */
    const char *role;        /* PSD_ROLE, else "worker" */
    const char *backend;     /* PSD_BACKEND, else "auto" */
    int32_t rank;            /* -1: PSD_RANK or RANK, else OMPI_COMM_WORLD_RANK, SLURM_PROCID,
                                JOB_COMPLETION_INDEX, else psd chooses */
    int32_t world_size;      /* 0: PSD_WORLD_SIZE or WORLD_SIZE, OMPI_COMM_WORLD_SIZE, SLURM_NTASKS, else 1 */
    int64_t join_timeout_ms; /* PSD_JOIN_TIMEOUT_MS, else 60000: for the whole world to arrive */
    int64_t timeout_ms; /* PSD_TIMEOUT_MS, else 600000: an operation's own deadline, and of every request */
    int64_t
        pool_limit; /* PSD_POOL_LIMIT, bytes for psd_tensor_alloc; 0: half of the memory (on a GPU: all) */
} psd_config;

PSD_API void psd_config_init(psd_config *config); /* size set, rank -1, the rest unset */

/* Joins a job and returns once the world is complete and warmed up. `config` may be NULL: all from the
 * environment. On failure nothing is left behind. A worker that takes the place of a rank that left cleanly
 * waits until all ranks of that world have left, and is of the next one; the place of a lost rank is taken at
 * once.
 *
 * A psd that is restarted with --state goes on where it was: calls that wait for it wait a little longer. One
 * that is restarted without --state knows no job: each rank's context ends with PSD_ERR_REFUSED once the rank
 * is connected again, whatever its calls wait for; all ranks must be started again. */
PSD_API psd_status psd_init_at(PSD_AT, const psd_config *config, psd_ctx **ctx);
#define psd_init(...) psd_init_at(PSD_HERE, __VA_ARGS__)

/* Leaves the job, tells what was never freed or waited for, and sets *ctx to NULL. Accepts a NULL context.
 * All memory of psd_tensor_alloc is freed. Operations still in flight get 2 s to end, then their group is
 * aborted; psd gets 2 s to acknowledge the leave. The context is gone whatever it returns: an error if one of
 * the groups still open, the world among them, is broken and no call has returned that yet; a stop by psctl
 * is no error. */
PSD_API psd_status psd_finalize_at(PSD_AT, psd_ctx **ctx);
#define psd_finalize(...) psd_finalize_at(PSD_HERE, __VA_ARGS__)

PSD_API int32_t psd_rank(const psd_ctx *ctx); /* in the world; -1 for NULL */
PSD_API int32_t psd_world_size(const psd_ctx *ctx);
PSD_API int32_t psd_local_rank(const psd_ctx *ctx); /* among those that the launcher put on this host */
PSD_API const char *psd_backend_name(const psd_ctx *ctx);
/* The CUDA device whose memory this context moves; -1 where it moves host memory. */
PSD_API int32_t psd_device_index(const psd_ctx *ctx);

/* ------------------------------------------------------------------------------------------------- groups */

/* A group is an ordered set of ranks of the world. Handles are values: use after destroy is PSD_ERR_STALE. */
typedef struct psd_group {
    uint32_t index;
    uint32_t generation;
} psd_group;

#define PSD_WORLD (psd_group_world())
static inline psd_group psd_group_world(void)
{
    psd_group world = {0, 0};
    return world;
}

/* Makes a group of `count` world ranks, this rank among them, in this order: ranks[i] becomes group rank i.
 * Called by exactly the members, each with the same list; returns when all have called and the links are
 * warm. It goes through the coordinator, so it works after another group, even the world, was aborted. */
PSD_API psd_status psd_group_new_at(PSD_AT, psd_ctx *ctx, const int32_t *ranks, int32_t count,
                                    psd_group *out);
#define psd_group_new(...) psd_group_new_at(PSD_HERE, __VA_ARGS__)

/* Called by all members of `parent`: those with the same color (>= 0) form a group, ordered by key, then by
 * parent rank. With color -1 a rank takes part and gets no group (*out is the null group {UINT32_MAX, 0}). */
PSD_API psd_status psd_group_split_at(PSD_AT, psd_ctx *ctx, psd_group parent, int32_t color, int32_t key,
                                      psd_group *out);
#define psd_group_split(...) psd_group_split_at(PSD_HERE, __VA_ARGS__)

/* A group with the same members and its own order of operations. Called by all members of `parent`. */
PSD_API psd_status psd_group_dup_at(PSD_AT, psd_ctx *ctx, psd_group parent, psd_group *out);
#define psd_group_dup(...) psd_group_dup_at(PSD_HERE, __VA_ARGS__)

/* Releases this rank's handle. Works on it must have been waited for, by psd_wait() or by a
 * psd_test() that found them complete (else PSD_ERR_INVAL): that they are complete is not enough. The world
 * cannot be destroyed. */
PSD_API psd_status psd_group_destroy_at(PSD_AT, psd_ctx *ctx, psd_group group);
#define psd_group_destroy(...) psd_group_destroy_at(PSD_HERE, __VA_ARGS__)

/* Breaks a group for all its members: their operations end with PSD_ERR_ABORTED and this reason. */
PSD_API psd_status psd_group_abort_at(PSD_AT, psd_ctx *ctx, psd_group group, const char *reason);
#define psd_group_abort(...) psd_group_abort_at(PSD_HERE, __VA_ARGS__)

PSD_API psd_status psd_group_rank(psd_ctx *ctx, psd_group group, int32_t *rank);
PSD_API psd_status psd_group_size(psd_ctx *ctx, psd_group group, int32_t *size);
/* The world rank of a group rank. */
PSD_API psd_status psd_group_world_rank(psd_ctx *ctx, psd_group group, int32_t group_rank,
                                        int32_t *world_rank);

/* ------------------------------------------------------------------------------------------------ tensors */

typedef enum psd_device_kind {
    PSD_DEVICE_HOST = 0,
    PSD_DEVICE_CUDA = 1,
} psd_device_kind;

/* A contiguous, row-major array. `data` may be NULL only if the tensor has no elements. For device memory
 * that is not from psd_tensor_alloc set `device` and `device_index`. */
typedef struct psd_tensor {
    size_t size; /* sizeof(psd_tensor) */
    void *data;
    psd_dtype dtype;
    int32_t ndim;                /* 0: a scalar, one element */
    int64_t shape[PSD_MAX_DIMS]; /* elements; a dimension may be 0 */
    const char *name;            /* how reports call it; NULL: none. Copied. */
    psd_device_kind device;
    int32_t device_index;
} psd_tensor;

/* A tensor over the caller's memory, with one dimension or `ndim` of them. */
PSD_API psd_tensor psd_tensor_1d(void *data, int64_t count, psd_dtype dtype, const char *name);
PSD_API psd_tensor psd_tensor_nd(void *data, const int64_t *shape, int32_t ndim, psd_dtype dtype,
                                 const char *name);
PSD_API int64_t psd_tensor_count(const psd_tensor *tensor); /* elements; -1 if the shape is not valid */
/* Elements [first, first + count) of a tensor, as one dimension in the same memory and of the same name. A
 * range that is not inside gives a tensor that every call refuses. */
PSD_API psd_tensor psd_tensor_slice(const psd_tensor *tensor, int64_t first, int64_t count);

/* Memory from the context's pool (64-byte aligned, zeroed, made so that the backend can move it fastest: on
 * nccl the device's, on host memory that the ranks of this host map, shared with forked children). When the
 * limit is passed the error says what is needed, what is held and by whom. */
PSD_API psd_status psd_tensor_alloc_at(PSD_AT, psd_ctx *ctx, const int64_t *shape, int32_t ndim,
                                       psd_dtype dtype, const char *name, psd_tensor *out);
#define psd_tensor_alloc(...) psd_tensor_alloc_at(PSD_HERE, __VA_ARGS__)
/* Sets data to NULL; NULL data is fine. What uses device memory must be done: it is freed at once. */
PSD_API psd_status psd_tensor_free_at(PSD_AT, psd_ctx *ctx, psd_tensor *tensor);
#define psd_tensor_free(...) psd_tensor_free_at(PSD_HERE, __VA_ARGS__)

typedef struct psd_opts psd_opts;

/* Copies src to dst, of the same dtype and count, in different memory: between host and device in either
 * direction, or in one of them. Ordered on opts->stream. Has copied when it returns if one side is host
 * memory, else is queued. Only this rank takes part; opts->tag is not used. */
PSD_API psd_status psd_tensor_copy_at(PSD_AT, psd_ctx *ctx, psd_tensor *dst, const psd_tensor *src,
                                      const psd_opts *opts);
#define psd_tensor_copy(...) psd_tensor_copy_at(PSD_HERE, __VA_ARGS__)

/* --------------------------------------------------------------------------------------------- operations */

#define PSD_ANY_SOURCE (-1)
#define PSD_ANY_TAG    (-1)
#define PSD_MAX_TAG    0x3fffffff

/* Options of an operation; NULL stands for all defaults. psd_opts_init() sets them. */
struct psd_opts {
    size_t size;        /* sizeof(psd_opts) */
    int32_t tag;        /* point-to-point only: 0 to PSD_MAX_TAG; on receive also PSD_ANY_TAG. Default 0 */
    int64_t timeout_ms; /* the operation's own deadline; passing it breaks the group */
    /* The CUDA stream (cudaStream_t of the context's device) that the operation is ordered on: it begins after
     * what was queued there before. NULL: the default stream. On host memory only NULL. */
    void *stream;
};

PSD_API void psd_opts_init(psd_opts *opts);

/* An operation in flight. It ends, and its handle becomes stale, when a wait, synchronize or test on it
 * reports completion or the operation's error (not by PSD_ERR_TIMEOUT of the wait itself). */
typedef struct psd_work {
    uint32_t index;
    uint32_t generation;
} psd_work;

typedef struct psd_recv_info {
    size_t size;    /* sizeof(psd_recv_info) */
    int32_t source; /* group rank of the sender */
    int32_t tag;
} psd_recv_info;

/* In each pair the first form blocks until the operation is complete on this rank (in device memory: until it
 * is queued, and its stream waits for it, as by psd_wait); the second starts it. All
 * counts, dtypes, roots and reductions must agree between the ranks: a disagreement is PSD_ERR_MISMATCH, on
 * both sides, and breaks the group.
 *
 * Point to point, `dst` and `src` being group ranks. Messages of one sender and tag arrive in order. A send
 * may complete before it is received only up to the backend's eager limit. Sending to oneself needs the
 * non-blocking form or a batch. Receiving from PSD_ANY_SOURCE or PSD_ANY_TAG: host and mpi only. `info` may
 * be NULL. */
PSD_API psd_status psd_send_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, int32_t dst,
                               const psd_opts *opts);
PSD_API psd_status psd_isend_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, int32_t dst,
                                const psd_opts *opts, psd_work *work);
PSD_API psd_status psd_recv_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *out, int32_t src,
                               const psd_opts *opts, psd_recv_info *info);
PSD_API psd_status psd_irecv_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *out, int32_t src,
                                const psd_opts *opts, psd_work *work);
/* Both at once; cannot deadlock against its mirror image. */
PSD_API psd_status psd_sendrecv_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, int32_t dst,
                                   psd_tensor *out, int32_t src, const psd_opts *opts);
#define psd_send(...)     psd_send_at(PSD_HERE, __VA_ARGS__)
#define psd_isend(...)    psd_isend_at(PSD_HERE, __VA_ARGS__)
#define psd_recv(...)     psd_recv_at(PSD_HERE, __VA_ARGS__)
#define psd_irecv(...)    psd_irecv_at(PSD_HERE, __VA_ARGS__)
#define psd_sendrecv(...) psd_sendrecv_at(PSD_HERE, __VA_ARGS__)

/* A list of 1 or more sends and receives started together and completed together, as PyTorch's
 * batch_isend_irecv. A rank that has nothing to move makes no call: nobody waits for it. */
typedef struct psd_p2p {
    psd_op_kind kind; /* PSD_OP_SEND or PSD_OP_RECV */
    psd_tensor tensor;
    int32_t peer; /* group rank */
    int32_t tag;
} psd_p2p;

PSD_API psd_status psd_batch_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_p2p *ops, int32_t count,
                                const psd_opts *opts);
PSD_API psd_status psd_ibatch_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_p2p *ops, int32_t count,
                                 const psd_opts *opts, psd_work *work);
#define psd_batch(...)  psd_batch_at(PSD_HERE, __VA_ARGS__)
#define psd_ibatch(...) psd_ibatch_at(PSD_HERE, __VA_ARGS__)

/* Collectives, called by all members of the group in the same order; n is the group's size, c the element
 * count that all ranks agree on. `in` and `out` may be the same memory where the counts are equal, and as
 * noted. Sums are made in rank order, so that all ranks, and all runs, get the same bits.
 *
 *   operation       in             out            root
 *   broadcast       -              c, all ranks   sends out, others receive out
 *   all_reduce      c              c
 *   reduce          c              c, root only   receives; out may be NULL elsewhere
 *   scatter         n*c, root only c              in may be NULL elsewhere; rank i gets elements [i*c, i*c+c)
 *   gather          c              n*c, root only out may be NULL elsewhere
 *   all_gather      c              n*c            in place: in is out + rank*c
 *   reduce_scatter  n*c            c              in place: out is in + rank*c
 *   all_to_all      n*c            n*c            not in place
 *   all_to_all_v    sum of         sum of         not in place; n splits each: elements for, and from, each
 *                   in_splits      out_splits     rank
 *   barrier         -              -
 */
PSD_API psd_status psd_broadcast_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *out, int32_t root,
                                    const psd_opts *opts);
PSD_API psd_status psd_ibroadcast_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *out, int32_t root,
                                     const psd_opts *opts, psd_work *work);
PSD_API psd_status psd_all_reduce_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                     psd_tensor *out, psd_redop redop, const psd_opts *opts);
PSD_API psd_status psd_iall_reduce_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                      psd_tensor *out, psd_redop redop, const psd_opts *opts, psd_work *work);
PSD_API psd_status psd_reduce_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                                 psd_redop redop, int32_t root, const psd_opts *opts);
PSD_API psd_status psd_ireduce_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                  psd_tensor *out, psd_redop redop, int32_t root, const psd_opts *opts,
                                  psd_work *work);
PSD_API psd_status psd_scatter_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                  psd_tensor *out, int32_t root, const psd_opts *opts);
PSD_API psd_status psd_iscatter_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                   psd_tensor *out, int32_t root, const psd_opts *opts, psd_work *work);
PSD_API psd_status psd_gather_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                                 int32_t root, const psd_opts *opts);
PSD_API psd_status psd_igather_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                  psd_tensor *out, int32_t root, const psd_opts *opts, psd_work *work);
PSD_API psd_status psd_all_gather_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                     psd_tensor *out, const psd_opts *opts);
PSD_API psd_status psd_iall_gather_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                      psd_tensor *out, const psd_opts *opts, psd_work *work);
PSD_API psd_status psd_reduce_scatter_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                         psd_tensor *out, psd_redop redop, const psd_opts *opts);
PSD_API psd_status psd_ireduce_scatter_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                          psd_tensor *out, psd_redop redop, const psd_opts *opts,
                                          psd_work *work);
PSD_API psd_status psd_all_to_all_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                     psd_tensor *out, const psd_opts *opts);
PSD_API psd_status psd_iall_to_all_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                      psd_tensor *out, const psd_opts *opts, psd_work *work);
PSD_API psd_status psd_all_to_all_v_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                       const int64_t *in_splits, psd_tensor *out, const int64_t *out_splits,
                                       const psd_opts *opts);
PSD_API psd_status psd_iall_to_all_v_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                        const int64_t *in_splits, psd_tensor *out, const int64_t *out_splits,
                                        const psd_opts *opts, psd_work *work);
PSD_API psd_status psd_barrier_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_opts *opts);
PSD_API psd_status psd_ibarrier_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_opts *opts,
                                   psd_work *work);
#define psd_broadcast(...)       psd_broadcast_at(PSD_HERE, __VA_ARGS__)
#define psd_ibroadcast(...)      psd_ibroadcast_at(PSD_HERE, __VA_ARGS__)
#define psd_all_reduce(...)      psd_all_reduce_at(PSD_HERE, __VA_ARGS__)
#define psd_iall_reduce(...)     psd_iall_reduce_at(PSD_HERE, __VA_ARGS__)
#define psd_reduce(...)          psd_reduce_at(PSD_HERE, __VA_ARGS__)
#define psd_ireduce(...)         psd_ireduce_at(PSD_HERE, __VA_ARGS__)
#define psd_scatter(...)         psd_scatter_at(PSD_HERE, __VA_ARGS__)
#define psd_iscatter(...)        psd_iscatter_at(PSD_HERE, __VA_ARGS__)
#define psd_gather(...)          psd_gather_at(PSD_HERE, __VA_ARGS__)
#define psd_igather(...)         psd_igather_at(PSD_HERE, __VA_ARGS__)
#define psd_all_gather(...)      psd_all_gather_at(PSD_HERE, __VA_ARGS__)
#define psd_iall_gather(...)     psd_iall_gather_at(PSD_HERE, __VA_ARGS__)
#define psd_reduce_scatter(...)  psd_reduce_scatter_at(PSD_HERE, __VA_ARGS__)
#define psd_ireduce_scatter(...) psd_ireduce_scatter_at(PSD_HERE, __VA_ARGS__)
#define psd_all_to_all(...)      psd_all_to_all_at(PSD_HERE, __VA_ARGS__)
#define psd_iall_to_all(...)     psd_iall_to_all_at(PSD_HERE, __VA_ARGS__)
#define psd_all_to_all_v(...)    psd_all_to_all_v_at(PSD_HERE, __VA_ARGS__)
#define psd_iall_to_all_v(...)   psd_iall_to_all_v_at(PSD_HERE, __VA_ARGS__)
#define psd_barrier(...)         psd_barrier_at(PSD_HERE, __VA_ARGS__)
#define psd_ibarrier(...)        psd_ibarrier_at(PSD_HERE, __VA_ARGS__)

/* all_reduce of many tensors of one dtype, in place, packed into buckets of about bucket_bytes (0: 25 MiB, as
 * PyTorch's DDP) so that small gradients travel together. One or more tensors, of which no
 * two overlap in memory (else PSD_ERR_INVAL); they and their order agree on all ranks. */
PSD_API psd_status psd_all_reduce_coalesced_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *tensors,
                                               int32_t count, psd_redop redop, int64_t bucket_bytes,
                                               const psd_opts *opts);
#define psd_all_reduce_coalesced(...) psd_all_reduce_coalesced_at(PSD_HERE, __VA_ARGS__)

/* ------------------------------------------------------------------------------------------------ waiting */

/* wait: makes the stream that the operation was given wait for this operation; the host waits only until it
 * is queued. From then on the operation's fate is the group's: that it failed is told by the next call on the
 * group, or by psd_stream_synchronize. synchronize: makes the host wait for the data. On host memory the two
 * are the same. The timeout ends the waiting only (PSD_ERR_TIMEOUT, the work stays valid); 0 waits for as long
 * as the operation itself may take. A thread that waits with a timeout comes back, and so is never part of a hang
 * that psd explains. */
PSD_API psd_status psd_wait_at(PSD_AT, psd_ctx *ctx, psd_work work, int64_t timeout_ms);
PSD_API psd_status psd_synchronize_at(PSD_AT, psd_ctx *ctx, psd_work work, int64_t timeout_ms);
/* psd_wait for another stream than the operation's own: what is queued there next comes after it. */
PSD_API psd_status psd_wait_stream_at(PSD_AT, psd_ctx *ctx, psd_work work, void *stream, int64_t timeout_ms);
/* Makes the host wait for all that is queued on the stream (NULL: the default one), as cudaStreamSynchronize,
 * but with a timeout, an eye on the groups (the error of one that breaks meanwhile), and so that psd can name
 * the operations waited for. On host memory there is nothing to wait for: PSD_OK. */
PSD_API psd_status psd_stream_synchronize_at(PSD_AT, psd_ctx *ctx, void *stream, int64_t timeout_ms);
/* Polls: *done is set, and the work ended, once it is complete (the data is there). Never blocks. */
PSD_API psd_status psd_test_at(PSD_AT, psd_ctx *ctx, psd_work work, bool *done);
/* psd_wait for all of them; the status is the first error in list order, PSD_OK for none. On PSD_ERR_TIMEOUT
 * those not complete stay valid. */
PSD_API psd_status psd_waitall_at(PSD_AT, psd_ctx *ctx, const psd_work *works, int32_t count,
                                  int64_t timeout_ms);
/* The first that completes (as for psd_synchronize), by its index; entries already stale are skipped,
 * PSD_ERR_STALE when all are, or there are none. */
PSD_API psd_status psd_waitany_at(PSD_AT, psd_ctx *ctx, const psd_work *works, int32_t count,
                                  int64_t timeout_ms, int32_t *index);
/* psd_wait for an irecv that also tells who sent, which matters with PSD_ANY_SOURCE or PSD_ANY_TAG. */
PSD_API psd_status psd_wait_recv_at(PSD_AT, psd_ctx *ctx, psd_work work, int64_t timeout_ms,
                                    psd_recv_info *info);
#define psd_wait(...)               psd_wait_at(PSD_HERE, __VA_ARGS__)
#define psd_synchronize(...)        psd_synchronize_at(PSD_HERE, __VA_ARGS__)
#define psd_test(...)               psd_test_at(PSD_HERE, __VA_ARGS__)
#define psd_waitall(...)            psd_waitall_at(PSD_HERE, __VA_ARGS__)
#define psd_waitany(...)            psd_waitany_at(PSD_HERE, __VA_ARGS__)
#define psd_wait_recv(...)          psd_wait_recv_at(PSD_HERE, __VA_ARGS__)
#define psd_wait_stream(...)        psd_wait_stream_at(PSD_HERE, __VA_ARGS__)
#define psd_stream_synchronize(...) psd_stream_synchronize_at(PSD_HERE, __VA_ARGS__)

/* -------------------------------------------------------------------------------------------------- plans */

/* A plan is a transfer that the coordinator compiles once and the ranks of a group run many times: rounds of
 * point-to-point steps that cannot deadlock. All ranks agree on its hash before the first byte moves. */
typedef struct psd_plan {
    uint32_t index;
    uint32_t generation;
} psd_plan;

/* The plan by which group rank r's whole tensor goes to rank (r + shift) mod n. Collective over the group. */
PSD_API psd_status psd_plan_ring_shift_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_dtype dtype,
                                          int64_t count, int32_t shift, psd_plan *out);
/* Runs it once: reads `in`, writes `out` (different memory, each of the plan's dtype and count). Collective.
 * Its messages have the tag PSD_MAX_TAG where the backend has tags: no receive of PSD_ANY_TAG may be in flight
 * on the group meanwhile; where it has none, no send or receive between the same ranks. In device memory it is
 * queued on the default stream. */
PSD_API psd_status psd_plan_run_at(PSD_AT, psd_ctx *ctx, psd_plan plan, const psd_tensor *in,
                                   psd_tensor *out);
PSD_API psd_status psd_plan_destroy_at(PSD_AT, psd_ctx *ctx, psd_plan plan);
#define psd_plan_ring_shift(...) psd_plan_ring_shift_at(PSD_HERE, __VA_ARGS__)
#define psd_plan_run(...)        psd_plan_run_at(PSD_HERE, __VA_ARGS__)
#define psd_plan_destroy(...)    psd_plan_destroy_at(PSD_HERE, __VA_ARGS__)

/* ------------------------------------------------------------------------------------------------- tables */

/* A table is a set of named parameters whose shards live on the ranks of role `server` (psworker --role
 * server), cut evenly. Trainers push gradients and pull parameters. Mode BSP: clock t is applied once every
 * trainer has pushed its gradients of clock t; gradients are added in rank order, divided by the number of
 * trainers if `average`, and the optimizer runs on the owner. */
typedef struct psd_table {
    uint32_t index;
    uint32_t generation;
} psd_table;

typedef enum psd_optimizer {
    PSD_OPT_SGD = 1,      /* p -= lr * g */
    PSD_OPT_MOMENTUM = 2, /* v = momentum * v + g; p -= lr * v (PyTorch's SGD with momentum) */
} psd_optimizer;

typedef struct psd_table_config {
    size_t size; /* sizeof(psd_table_config) */
    psd_optimizer optimizer;
    double lr;       /* 0 or more */
    double momentum; /* 0 to less than 1 */
    bool average;
} psd_table_config;

PSD_API void psd_table_config_init(psd_table_config *config); /* SGD, lr 0.01, momentum 0, average */

/* On a GPU shards and optimizer state are in the servers' device memory, parameters and gradients in the trainers'.
 * They are read and written in the order of the default stream: what made gradients on a stream that does not wait
 * for it is to be synchronized before the push. */

/* Opens the table `name` with these f32 parameters (each with a name of its own, shaped; data holds the
 * initial values and the lowest trainer rank's are taken). A NULL config stands for the defaults of
 * psd_table_config_init. Collective over all ranks of this rank's role; the servers take part by
 * themselves. The table is initialised when this returns. */
PSD_API psd_status psd_table_open_at(PSD_AT, psd_ctx *ctx, const char *name, const psd_tensor *params,
                                     int32_t count, const psd_table_config *config, psd_table *out);
/* Sends this rank's gradients (same order and shapes as the parameters; their names are free) and returns when every owner has
 * applied this clock. The gradients are copied first. After PSD_ERR_TIMEOUT they are on their way: a push
 * again only waits for what became of them. */
PSD_API psd_status psd_table_push_at(PSD_AT, psd_ctx *ctx, psd_table table, const psd_tensor *grads,
                                     int32_t count);
/* Brings the parameters as they are after this rank's last push. */
PSD_API psd_status psd_table_pull_at(PSD_AT, psd_ctx *ctx, psd_table table, psd_tensor *params,
                                     int32_t count);
/* Releases this rank's handle; when all trainers have closed, the servers free the table. */
PSD_API psd_status psd_table_close_at(PSD_AT, psd_ctx *ctx, psd_table table);
#define psd_table_open(...)  psd_table_open_at(PSD_HERE, __VA_ARGS__)
#define psd_table_push(...)  psd_table_push_at(PSD_HERE, __VA_ARGS__)
#define psd_table_pull(...)  psd_table_pull_at(PSD_HERE, __VA_ARGS__)
#define psd_table_close(...) psd_table_close_at(PSD_HERE, __VA_ARGS__)

/* Serves tables on this rank until the job is stopped or every other rank that is not a server has left
 * (PSD_OK), or an error ends it. What psworker --role server does. */
PSD_API psd_status psd_serve_at(PSD_AT, psd_ctx *ctx);
#define psd_serve(...) psd_serve_at(PSD_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif
