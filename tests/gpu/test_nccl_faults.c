/* What goes wrong, over the device simulator: each ends with one clear sentence, and nothing hangs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/nccl_ranks.h"

#define HAS(text, part) CHECK_SAYS(strstr(text, part) != NULL, "\"%s\" is not in: %s", part, text)

static const uint32_t both[] = {0, 1};

static psd_time_ns in_ms(int64_t ms)
{
    return psd_deadline_ns(psd_now_ns(), ms);
}

/* An all_reduce in the group, started. */
static psd_request *begin_sum(rank_run *r, psd_backend_group *g, int32_t *data, int64_t ms)
{
    psd_request *request = NULL;
    psd_op op = ranks_op(PSD_OP_ALL_REDUCE, PSD_I32, 16, data, data);
    op.redop = PSD_SUM;
    op.deadline = in_ms(ms);
    op.label = "all_reduce \"grad\" at train.c:12";
    CHECK(r->ops->start(g, &op, &request) == PSD_OK);
    return request;
}

/* It fails with this status, says so everywhere, and the group answers nothing but that. */
static void check_broken(rank_run *r, psd_backend_group *g, psd_request *request, psd_status want,
                         const char *part)
{
    char text[PSD_MAX_TEXT];
    psd_op_result result;
    psd_request *next = NULL;
    psd_op op = ranks_op(PSD_OP_BARRIER, 0, 0, NULL, NULL);
    CHECK(r->ops->wait(r->backend, &request, 1, false, in_ms(RANKS_WAIT_MS)) == PSD_OK);
    psd_status status = r->ops->test(request, &result);
    CHECK_SAYS(status == want, "%d: %s", (int)status, r->ops->request_text(request));
    HAS(r->ops->request_text(request), part);
    r->ops->release(request);
    CHECK(r->ops->group_error(g, text, sizeof text) == want);
    HAS(text, part);
    CHECK(r->ops->start(g, &op, &next) == want);
}

/* Also after others were broken. */
static void check_new_group(rank_run *r, uint32_t id)
{
    psd_backend_group *g = ranks_world(r, id);
    psd_op op = ranks_op(PSD_OP_BARRIER, 0, 0, NULL, NULL);
    CHECK(ranks_do(r, g, &op) == PSD_OK);
    r->ops->group_close(g);
}

/* --------------------------------------------------------------------------------------------------- opening */

static void late(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    psd_backend_group *g = NULL;
    ranks_open(r);
    if (r->rank == 0) {
        CHECK(ranks_group(r, 1, both, 2, 100, &g, why, sizeof why) == PSD_ERR_TIMEOUT);
        atomic_store(&r->shared->flags[0], 1);
    } else {
        ranks_await(&r->shared->flags[0], 1);
    }
    check_new_group(r, 2);
    ranks_close(r);
}

static void init_hangs(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    psd_backend_group *g = NULL;
    ranks_open(r);
    CHECK(ranks_group(r, 1, both, 2, 500, &g, why, sizeof why) == PSD_ERR_TIMEOUT);
    HAS(why, "a rank has not come to ncclCommInitRankConfig");
    ranks_meet(r);
    ranks_close(r);
}

/* Rank 1 is killed while rank 0 waits for it in NCCL. */
static void dies_in_init(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    psd_backend_group *g = NULL;
    ranks_open(r);
    if (r->rank == 1)
        alarm(1); /* its end */
    psd_status status = ranks_group(r, 1, both, 2, RANKS_WAIT_MS, &g, why, sizeof why);
    CHECK_SAYS(status != PSD_OK && status != PSD_ERR_TIMEOUT, "%d %s", (int)status, why);
    ranks_close(r);
}

/* Rank 1 gives up, in order; nobody tells rank 0 but the links. */
static void gives_up_in_init(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    psd_backend_group *g = NULL;
    ranks_open(r);
    psd_status status = ranks_group(r, 1, both, 2, r->rank == 1 ? 300 : RANKS_WAIT_MS, &g, why, sizeof why);
    CHECK_SAYS(status == (r->rank == 1 ? PSD_ERR_TIMEOUT : PSD_ERR_ABORTED), "%d %s", (int)status, why);
    if (r->rank == 0)
        HAS(why, "rank 1 has closed it");
    ranks_meet(r);
    ranks_close(r);
}

static void versions(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    psd_backend_group *g = NULL;
    ranks_open(r);
    CHECK(ranks_group(r, 1, both, 2, RANKS_WAIT_MS, &g, why, sizeof why) == PSD_ERR_MISMATCH);
    HAS(why, r->rank == 0 ? "rank 0 has NCCL 2.28.9 and rank 1 has NCCL 2.23.4"
                          : "rank 1 has NCCL 2.23.4 and rank 0 has NCCL 2.28.9");
    ranks_meet(r);
    ranks_close(r);
}

static void one_device(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    psd_backend_group *g = NULL;
    ranks_open(r);
    CHECK(ranks_group(r, 1, both, 2, RANKS_WAIT_MS, &g, why, sizeof why) == PSD_ERR_MISMATCH);
    HAS(why, "ranks 0 and 1 of one host are both on the GPU 0000:");
    ranks_meet(r);
    ranks_close(r);
}

static void one_device_allowed(rank_run *r)
{
    ranks_open(r);
    check_new_group(r, 1);
    ranks_close(r);
}

/* ------------------------------------------------------------------------------------------------ in flight */

static void aborted_by_both(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    int32_t *data = ranks_alloc(r, 64);
    psd_request *request = r->rank == 0 ? begin_sum(r, g, data, RANKS_WAIT_MS) : NULL;
    ranks_meet(r);
    r->ops->group_abort(g, PSD_ERR_ABORTED, "told so by the test");
    if (request != NULL)
        check_broken(r, g, request, PSD_ERR_ABORTED, "told so by the test");
    ranks_meet(r);
    r->ops->group_close(g);
    check_new_group(r, 2);
    ranks_close(r);
}

/* Without psd, the host links tell the others. */
static void aborted_by_one(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    int32_t *data = ranks_alloc(r, 64);
    if (r->rank == 0) {
        psd_request *request = begin_sum(r, g, data, RANKS_WAIT_MS);
        atomic_store(&r->shared->flags[0], 1);
        check_broken(r, g, request, PSD_ERR_ABORTED, "told so by the test");
    } else {
        ranks_await(&r->shared->flags[0], 1);
        r->ops->group_abort(g, PSD_ERR_ABORTED, "told so by the test");
    }
    ranks_meet(r);
    r->ops->group_close(g);
    ranks_close(r);
}

/* Both processes end by themselves, whatever their threads wait for. */
static void abort_hangs(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    psd_request *request = r->rank == 0 ? begin_sum(r, g, ranks_alloc(r, 64), RANKS_WAIT_MS) : NULL;
    ranks_meet(r);
    r->ops->group_abort(g, PSD_ERR_ABORTED, "told so by the test");
    if (request != NULL)
        (void)r->ops->wait(r->backend, &request, 1, false, in_ms(RANKS_WAIT_MS));
    ranks_await(&r->shared->flags[0], 1);
}

static void async_error(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    int32_t *data = ranks_alloc(r, 64);
    psd_status status = PSD_OK;
    for (int i = 0; i < 20 && status == PSD_OK; i++) {
        psd_request *request = begin_sum(r, g, data, RANKS_WAIT_MS);
        status = ranks_end(r, request);
    }
    CHECK_SAYS(status == PSD_ERR_PEER_FAILED, "%d", (int)status);
    if (r->rank == 1)
        CHECK(atomic_load(&r->broken) == 1 && atomic_load(&r->broken_status) == PSD_ERR_PEER_FAILED);
    ranks_meet(r);
    r->ops->group_close(g);
    ranks_close(r);
}

static void deadline(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    if (r->rank == 0) {
        psd_request *request = begin_sum(r, g, ranks_alloc(r, 64), 200);
        check_broken(r, g, request, PSD_ERR_DEADLINE,
                     "group 1 collective 0: rank 0's deadline passed in all_reduce \"grad\" at train.c:12");
        CHECK(atomic_load(&r->broken) == 1 && atomic_load(&r->broken_status) == PSD_ERR_DEADLINE);
    }
    ranks_meet(r);
    r->ops->group_close(g);
    ranks_close(r);
}

static void peer_dies(rank_run *r)
{
    psd_op_result result;
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    if (r->rank == 1) {
        ranks_await(&r->shared->flags[0], 1);
        kill(getpid(), SIGKILL);
    }
    psd_request *request = begin_sum(r, g, ranks_alloc(r, 64), RANKS_WAIT_MS);
    atomic_store(&r->shared->flags[0], 1);
    CHECK(r->ops->wait(r->backend, &request, 1, false, in_ms(RANKS_WAIT_MS)) == PSD_OK);
    psd_status status = r->ops->test(request, &result);
    CHECK_SAYS(status == PSD_ERR_PEER_FAILED || status == PSD_ERR_LINK, "%d: %s", (int)status,
               r->ops->request_text(request));
    CHECK(r->ops->group_member(g, 1) != PSD_INPROGRESS);
    r->ops->release(request);
    r->ops->group_close(g);
    ranks_close(r);
}

/* A call of CUDA's own that fails says CUDA's reason, not NCCL's. */
static void cuda_error(rank_run *r)
{
    int32_t host[4] = {0};
    psd_request *request = NULL;
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    psd_op op = ranks_op(PSD_OP_SCATTER, PSD_I32, 4, ranks_alloc(r, sizeof host), host);
    op.root = 0;
    CHECK(r->ops->start(g, &op, &request) == PSD_OK);
    check_broken(r, g, request, PSD_ERR_IO,
                 "CUDA: cudaMemcpyAsync: invalid argument (cudaErrorInvalidValue)");
    r->ops->group_close(g);
    ranks_close(r);
}

/* A rank that closes a group long before the others, and the context with it. */
static void leaves_early(rank_run *r)
{
    ranks_open(r);
    psd_backend_group *g = ranks_world(r, 1);
    if (r->rank == 1)
        ranks_await(&r->shared->flags[0], 1);
    r->ops->group_close(g);
    if (r->rank == 0)
        atomic_store(&r->shared->flags[0], 1);
    ranks_close(r);
}

/* --------------------------------------------------------------------------------------------------- memory */

static void memory(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    int32_t host[4];
    void *other = NULL;
    ranks_open(r);
    unsigned char *mine = ranks_alloc(r, 4096);
    CHECK(r->ops->mem_check(r->backend, mine, 4096, why, sizeof why) == PSD_OK);
    CHECK(r->ops->mem_check(r->backend, mine + 1000, 16, why, sizeof why) == PSD_OK);
    CHECK(r->ops->mem_check(r->backend, host, sizeof host, why, sizeof why) == PSD_ERR_INVAL);
    HAS(why, "it is host memory");
    CHECK(r->cudaSetDevice(1) == cudaSuccess && r->cudaMalloc(&other, 64) == cudaSuccess);
    CHECK(r->ops->mem_check(r->backend, other, 64, why, sizeof why) == PSD_ERR_INVAL);
    HAS(why, "it is memory of device 1; this rank's device is 0");
    unsigned char *large = ranks_alloc(r, 3 << 20); /* made current device or not */
    CHECK(r->ops->mem_check(r->backend, large, 3 << 20, why, sizeof why) == PSD_OK);
    CHECK(r->cudaFree(other) == cudaSuccess);
    for (size_t i = 0; i < 4096; i += 16) { /* zeroed */
        ranks_get(r, host, mine + i, 16);
        CHECK(host[0] == 0 && host[1] == 0 && host[2] == 0 && host[3] == 0);
    }
    r->ops->mem_free(r->backend, large, 3 << 20);
    ranks_close(r); /* with `mine` */
}

static void out_of_memory(rank_run *r)
{
    void *data = NULL;
    ranks_open(r);
    CHECK(r->ops->mem_alloc(r->backend, (size_t)1 << 40, &data) == PSD_ERR_NOMEM && data == NULL);
    unsigned char *fits = ranks_alloc(r, 4096);
    r->ops->mem_free(r->backend, fits, 4096);
    ranks_close(r);
}

/* -------------------------------------------------------------------------------------------- not fit to run */

/* The sentence comes in the environment. */
static void refused(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    psd_status status = ranks_open_alone(r, why, sizeof why);
    CHECK_SAYS(status != PSD_OK, "it opened");
    HAS(why, getenv("SENTENCE"));
}

/* The build machine's own libraries, which no simulator has touched: without a GPU they say so. */
static void real_libraries(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "", file[512];
    static const char *const places[] = {"lib", "lib64", "targets/x86_64-linux/lib"};
    const char *home = getenv("CUDA_HOME") != NULL ? getenv("CUDA_HOME") : "/usr/local/cuda";
    bool cudart = false, nccl = false;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(file, sizeof file, "%s/%s/libcudart.so.%d", home, places[i], CUDART_VERSION / 1000);
        if (!cudart && access(file, R_OK) == 0)
            cudart = setenv("PSD_CUDART_LIBRARY", file, 1) == 0;
        snprintf(file, sizeof file, "%s/%s/libnccl.so.2", home, places[i]);
        if (!nccl && access(file, R_OK) == 0)
            nccl = setenv("PSD_NCCL_LIBRARY", file, 1) == 0;
    }
    if (!cudart || !nccl || access("/dev/nvidiactl", F_OK) == 0) {
        fprintf(stderr, "skip: no real libraries here, or a GPU\n");
        return;
    }
    psd_status status = ranks_open_alone(r, why, sizeof why);
    CHECK_SAYS(status == PSD_ERR_UNSUPPORTED, "%d", (int)status);
    HAS(why, "no device");
}

#define REFUSED(name_, setting, sentence)                                                                    \
    {                                                                                                        \
        .name = name_, .ranks = 1, .run = refused, .env = { setting, "SENTENCE=" sentence }                  \
    }

int main(int argc, char **argv)
{
    static const ranks_case cases[] = {
        {.name = "late", .ranks = 2, .run = late},
        {.name = "init_hangs", .ranks = 2, .run = init_hangs, .env = {"PSD_GPUSIM_INIT_HANG=1"}},
        {.name = "dies_in_init",
         .ranks = 2,
         .run = dies_in_init,
         .env = {"PSD_GPUSIM_INIT_HANG=1"},
         .may_end = {false, true}},
        {.name = "gives_up_in_init", .ranks = 2, .run = gives_up_in_init, .env = {"PSD_GPUSIM_INIT_HANG=1"}},
        {.name = "versions", .ranks = 2, .run = versions, .env = {"1:PSD_GPUSIM_NCCL_VERSION=22304"}},
        {.name = "one_device", .ranks = 2, .run = one_device, .env = {"PSD_DEVICE=0"}},
        {.name = "one_device_allowed",
         .ranks = 2,
         .run = one_device_allowed,
         .env = {"PSD_DEVICE=0", "0:NCCL_HOSTID=a", "1:NCCL_HOSTID=b"}},
        {.name = "aborted_by_both", .ranks = 2, .run = aborted_by_both},
        {.name = "aborted_by_one", .ranks = 2, .run = aborted_by_one},
        {.name = "abort_hangs",
         .ranks = 2,
         .run = abort_hangs,
         .env = {"PSD_GPUSIM_ABORT_HANG=all", "PSD_NCCL_ABORT_TIMEOUT_MS=300"},
         .exits = {1, 1},
         .says = "ncclCommAbort has not come back after 300 ms"},
        {.name = "async_error", .ranks = 2, .run = async_error, .env = {"PSD_GPUSIM_ASYNC_ERROR=1:5"}},
        {.name = "deadline", .ranks = 2, .run = deadline},
        {.name = "peer_dies", .ranks = 2, .run = peer_dies, .may_end = {false, true}},
        {.name = "cuda_error", .ranks = 1, .run = cuda_error},
        {.name = "leaves_early", .ranks = 2, .run = leaves_early},
        {.name = "memory", .ranks = 1, .run = memory},
        {.name = "out_of_memory", .ranks = 1, .run = out_of_memory},
        REFUSED("no_driver", "PSD_GPUSIM_DRIVER_VERSION=0", "no device: there is no NVIDIA driver"),
        REFUSED("old_driver", "PSD_GPUSIM_DRIVER_VERSION=11080",
                "the NVIDIA driver is too old: it supports CUDA 11.8"),
        REFUSED("no_device", "PSD_GPUSIM_DEVICES=0", "no device: the NVIDIA driver shows none"),
        REFUSED("old_nccl", "PSD_GPUSIM_NCCL_VERSION=21705",
                "libnccl is NCCL 2.17.5; psd needs 2.18 or later"),
        REFUSED("no_cudart", "PSD_CUDART_LIBRARY=/nowhere/libcudart.so",
                "PSD_CUDART_LIBRARY is \"/nowhere/libcudart.so\", which cannot be opened"),
        REFUSED("no_nccl", "PSD_NCCL_LIBRARY=/nowhere/libnccl.so",
                "PSD_NCCL_LIBRARY is \"/nowhere/libnccl.so\""),
        REFUSED("not_nccl", "PSD_NCCL_LIBRARY=libm.so.6", "libnccl has no function ncclGetVersion"),
        REFUSED("bad_device", "PSD_DEVICE=8", "PSD_DEVICE is \"8\"; the devices here are 0 to 7"),
        REFUSED("bad_number", "PSD_NCCL_MAX_COMMS=0", "PSD_NCCL_MAX_COMMS is \"0\""),
        REFUSED("comm_blocking", "NCCL_COMM_BLOCKING=1", "NCCL_COMM_BLOCKING is 1"),
        REFUSED("comm_id", "NCCL_COMM_ID=127.0.0.1:4000", "NCCL_COMM_ID is set"),
        {.name = "real_libraries", .ranks = 1, .run = real_libraries},
    };
    return ranks_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
