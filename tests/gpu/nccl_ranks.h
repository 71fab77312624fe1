/* Ranks of the NCCL backend without psd: each is a process, forked before anything of CUDA is used, that opens the
 * backend's shared object over the device simulator (or over what PSD_TEST_CUDART and PSD_TEST_NCCL name) and calls its
 * table. Addresses and tokens go through shared memory. Plain main()s use this. */
#ifndef PSD_TEST_NCCL_RANKS_H
#define PSD_TEST_NCCL_RANKS_H

#include <cuda_runtime_api.h>
#include <stdatomic.h>

#include "worker/backend/backend.h"

#define RANKS_MOST    4
#define RANKS_GROUPS  8
#define RANKS_WAIT_MS 20000

typedef struct ranks_shared {
    char addresses[RANKS_MOST][PSD_MAX_ADDR];
    uint8_t tokens[RANKS_GROUPS][PSD_MAX_TOKEN];
    uint32_t token_bytes[RANKS_GROUPS];
    _Atomic int has_token[RANKS_GROUPS];
    _Atomic int arrived;
    _Atomic int flags[8]; /* a test's own */
} ranks_shared;

#define RANKS_CUDA(X)                                                                                        \
    X(cudaError_t, cudaSetDevice, (int))                                                                     \
    X(cudaError_t, cudaMalloc, (void **, size_t))                                                            \
    X(cudaError_t, cudaFree, (void *))                                                                       \
    X(cudaError_t, cudaMemsetAsync, (void *, int, size_t, cudaStream_t))                                     \
    X(cudaError_t, cudaStreamCreateWithFlags, (cudaStream_t *, unsigned))                                    \
    X(cudaError_t, cudaStreamDestroy, (cudaStream_t))                                                        \
    X(cudaError_t, cudaStreamQuery, (cudaStream_t))                                                          \
    X(cudaError_t, cudaStreamSynchronize, (cudaStream_t))                                                    \
    X(cudaError_t, cudaLaunchHostFunc, (cudaStream_t, cudaHostFn_t, void *))

typedef struct rank_run {
    int rank, size;
    ranks_shared *shared;
    const psd_backend_ops *ops;
    psd_backend *backend;
#define PSD_X(result, name, params) result(*name) params;
    RANKS_CUDA(PSD_X)
#undef PSD_X
    int met; /* meetings so far */
    /* what the backend's hooks told */
    _Atomic int broken;
    _Atomic int broken_status;
    _Atomic int detached;
    _Atomic int detached_status;
    _Atomic uint64_t detached_cookie;
} rank_run;

typedef struct ranks_case {
    const char *name;
    int ranks;
    void (*run)(rank_run *);
    const char *env[6];       /* "NAME=VALUE", or "2:NAME=VALUE" for rank 2 alone */
    int exits[RANKS_MOST];    /* expected */
    bool may_end[RANKS_MOST]; /* how this rank ends does not matter: it is killed by the test */
    const char *says;         /* in what every rank with an expected exit status other than 0 writes */
} ranks_case;

/* Runs the cases, or those that are named; prints the closing line of tests/run.sh. Gives main's exit status. */
int ranks_main(int argc, char **argv, const ranks_case *cases, int count);

void ranks_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));
#define CHECK(condition) CHECK_SAYS(condition, "%s", "")
#define CHECK_SAYS(condition, ...)                                                                           \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            ranks_fail(__FILE__, __LINE__, "not true: " #condition " " __VA_ARGS__);                         \
    } while (0)

/* Opens the backend and waits until all ranks have. ranks_open_alone does not wait or check. */
void ranks_open(rank_run *r);
psd_status ranks_open_alone(rank_run *r, char *why, size_t why_bytes);
void ranks_close(rank_run *r);
void ranks_meet(rank_run *r); /* until all ranks have come */
void ranks_await(_Atomic int *flag, int value);

/* Opens group `id` (1 to RANKS_GROUPS) of these world ranks, in at most `ms`. */
psd_status ranks_group(rank_run *r, uint32_t id, const uint32_t *members, int32_t count, int64_t ms,
                       psd_backend_group **out, char *why, size_t why_bytes);
psd_backend_group *ranks_world(rank_run *r, uint32_t id); /* of all ranks; it must open */

void *ranks_alloc(rank_run *r, size_t bytes);
void ranks_put(rank_run *r, void *device, const void *host, size_t bytes);
void ranks_get(rank_run *r, void *host, const void *device, size_t bytes);

/* An operation to its end, as the library does it: start, the stream waits, release. Gives the status of the first that
 * fails. The data is there after a ranks_get. */
psd_status ranks_do(rank_run *r, psd_backend_group *g, const psd_op *op);
psd_status ranks_end(rank_run *r, psd_request *request); /* waits on the host, releases, gives the status */
psd_op ranks_op(psd_op_kind kind, psd_dtype dtype, int64_t count, const void *in, void *out);

#endif
