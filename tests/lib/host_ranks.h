/* Ranks of the host backend as threads of one process, for tests of the engine without psd: each has a
 * context and a group of them all. Usable from Criterion and from plain mains. */
#ifndef PSD_TEST_HOST_RANKS_H
#define PSD_TEST_HOST_RANKS_H

#include <stdatomic.h>

#include "worker/backend/backend.h"
#include "worker/psd.h"

extern const psd_backend_ops psd_backend_host;

#define HOST_RANKS_MAX 16

typedef struct host_rank host_rank;
typedef void (*host_rank_body)(host_rank *r);

typedef struct host_ranks {
    int32_t size;
    const char *transport; /* "auto", "shm" or "tcp" */
    int64_t eager_limit;
    host_rank_body body;
    void *arg;
} host_ranks;

struct host_rank {
    const host_ranks *all;
    int32_t rank;
    int32_t size;
    psd_backend *backend;
    psd_backend_group *group;
    atomic_int broken; /* calls of on_group_broken */
    int runs;          /* calls of host_run */
    int failures;
};

/* Runs the body in one thread per rank, once the group is ready; closes all. Returns the number of failed
 * checks, or of ranks that did not come up. */
int host_ranks_run(const host_ranks *all);

/* The pieces, for tests that make their own processes. Address and token go through the caller's memory. */
psd_status host_rank_open(host_rank *r, const host_ranks *all, int32_t rank, char *address);
psd_status host_rank_join(host_rank *r, uint32_t id, const char *const *addresses, const uint8_t *token);
void host_rank_close(host_rank *r);

/* Prints and counts; the test goes on. */
#define HOST_CHECK(r, condition)                                                                             \
    ((condition) ? (void)0 : host_check_failed((r), __FILE__, __LINE__, #condition))
void host_check_failed(host_rank *r, const char *file, int line, const char *condition);

/* An operation with the fields that all have, and a deadline of 20 s. */
psd_op host_op(psd_op_kind kind, psd_dtype dtype, int64_t count, const void *in, void *out);
/* Runs it, or starts it and waits: in turns that are not the same on all ranks; the operation's status. `text` (PSD_MAX_TEXT, or NULL) gets the error. */
psd_status host_run(host_rank *r, const psd_op *op, char *text);
psd_request *host_start(host_rank *r, const psd_op *op);
/* Waits, tests and releases; the operation's status. */
psd_status host_finish(host_rank *r, psd_request **request, psd_op_result *result);

psd_request *host_isend(host_rank *r, psd_dtype dtype, const void *data, int64_t count, int32_t dst,
                        int32_t tag);
psd_request *host_irecv(host_rank *r, psd_dtype dtype, void *data, int64_t count, int32_t src, int32_t tag);

#endif
