/* What the NCCL backend promises about streams, over the device simulator: operations begin after what their stream had,
 * later work waits for them, and the host waits for neither. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/nccl_ranks.h"

#define COUNT 4096

/* Blocks a stream until it is opened. Host functions may only wait for the host. */
typedef struct gate {
    _Atomic int is_open;
} gate;

static void pass_gate(void *arg)
{
    gate *at = arg;
    ranks_await(&at->is_open, 1);
}

static cudaStream_t new_stream(rank_run *r)
{
    cudaStream_t stream = NULL;
    CHECK(r->cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    return stream;
}

static psd_time_ns in_ms(int64_t ms)
{
    return psd_deadline_ns(psd_now_ns(), ms);
}

static psd_op sum_on(cudaStream_t stream, int32_t *in, int32_t *out)
{
    psd_op op = ranks_op(PSD_OP_ALL_REDUCE, PSD_I32, COUNT, in, out);
    op.redop = PSD_SUM;
    op.stream = stream;
    return op;
}

static void sync(rank_run *r, cudaStream_t stream)
{
    char why[PSD_MAX_TEXT] = "";
    psd_status status = r->ops->stream_sync(r->backend, stream, in_ms(RANKS_WAIT_MS), why, sizeof why);
    CHECK_SAYS(status == PSD_OK, "%d %s", (int)status, why);
}

static void check_all(rank_run *r, const int32_t *device, int32_t value)
{
    int32_t *host = malloc(COUNT * 4);
    ranks_get(r, host, device, COUNT * 4);
    for (int i = 0; i < COUNT; i++)
        CHECK_SAYS(host[i] == value, "[%d] is %d, not %d", i, host[i], value);
    free(host);
}

typedef struct scene {
    psd_backend_group *g;
    cudaStream_t stream;
    int32_t *in, *out;
} scene;

static scene set_up(rank_run *r)
{
    scene s;
    ranks_open(r);
    s.g = ranks_world(r, 1);
    s.stream = new_stream(r);
    s.in = ranks_alloc(r, COUNT * 4);
    s.out = ranks_alloc(r, COUNT * 4);
    return s;
}

static void tear_down(rank_run *r, scene *s)
{
    CHECK(r->cudaStreamDestroy(s->stream) == cudaSuccess);
    r->ops->group_close(s->g);
    ranks_close(r);
}

/* The operation reads what is written on its stream before it, which has not happened when it is started; the wait for it
 * comes back all the same; and what follows on the stream sees its result. */
static void order(rank_run *r)
{
    gate before = {0};
    psd_op_result result;
    psd_request *request = NULL;
    scene s = set_up(r);
    CHECK(r->cudaLaunchHostFunc(s.stream, pass_gate, &before) == cudaSuccess);
    CHECK(r->cudaMemsetAsync(s.in, 1, COUNT * 4, s.stream) == cudaSuccess);
    psd_op op = sum_on(s.stream, s.in, s.out);
    CHECK(r->ops->start(s.g, &op, &request) == PSD_OK);
    CHECK(r->ops->stream_wait(request, s.stream, in_ms(RANKS_WAIT_MS)) == PSD_OK);
    CHECK(r->cudaStreamQuery(s.stream) == cudaErrorNotReady);
    CHECK(r->ops->test(request, &result) == PSD_INPROGRESS);
    CHECK(r->cudaMemsetAsync(s.in, 0, COUNT * 4, s.stream) == cudaSuccess); /* not before it was read */
    ranks_meet(r); /* all ranks have come here, with the gates closed */
    atomic_store(&before.is_open, 1);
    sync(r, s.stream);
    CHECK(ranks_end(r, request) == PSD_OK);
    check_all(r, s.out, 0x01010101 * r->size);
    check_all(r, s.in, 0);
    tear_down(r, &s);
}

/* While a peer is late, the caller's stream goes on; only a stream that waits for the operation waits. */
static void overlap(rank_run *r)
{
    psd_request *request = NULL;
    scene s = set_up(r);
    cudaStream_t other = new_stream(r);
    int32_t *beside = ranks_alloc(r, COUNT * 4);
    psd_op op = sum_on(s.stream, s.in, s.out);
    if (r->rank == 0) {
        CHECK(r->ops->start(s.g, &op, &request) == PSD_OK);
        CHECK(r->ops->stream_wait(request, other, in_ms(RANKS_WAIT_MS)) == PSD_OK);
        CHECK(r->cudaMemsetAsync(beside, 2, COUNT * 4, s.stream) == cudaSuccess);
        sync(r, s.stream); /* beside the operation */
        CHECK(r->cudaStreamQuery(other) == cudaErrorNotReady);
        check_all(r, beside, 0x02020202);
        atomic_store(&r->shared->flags[0], 1);
    } else {
        ranks_await(&r->shared->flags[0], 1);
        CHECK(r->ops->start(s.g, &op, &request) == PSD_OK);
        CHECK(r->ops->stream_wait(request, other, in_ms(RANKS_WAIT_MS)) == PSD_OK);
    }
    sync(r, other);
    CHECK(ranks_end(r, request) == PSD_OK);
    check_all(r, s.out, 0);
    CHECK(r->cudaStreamDestroy(other) == cudaSuccess);
    tear_down(r, &s);
}

/* A request that is released once its stream waits tells its end once, with its cookie. */
static void detached(rank_run *r)
{
    scene s = set_up(r);
    for (int i = 0; i < 100; i++) {
        psd_op op = sum_on(s.stream, s.in, s.out);
        op.cookie = (uint64_t)i + 7;
        CHECK(ranks_do(r, s.g, &op) == PSD_OK);
    }
    ranks_await(&r->detached, 100);
    sync(r, s.stream);
    CHECK(atomic_load(&r->detached) == 100 && atomic_load(&r->detached_cookie) == 106);
    CHECK(atomic_load(&r->detached_status) == PSD_OK);
    tear_down(r, &s);
}

/* Waits for a stream end by their deadline, and by the end of a group that the stream waits for. */
static void timeouts(rank_run *r)
{
    gate closed = {0};
    char why[PSD_MAX_TEXT] = "";
    int32_t host[4] = {0};
    psd_request *request = NULL;
    scene s = set_up(r);
    CHECK(r->cudaLaunchHostFunc(s.stream, pass_gate, &closed) == cudaSuccess);
    CHECK(r->ops->stream_sync(r->backend, s.stream, in_ms(50), why, sizeof why) == PSD_ERR_TIMEOUT);
    CHECK(r->ops->mem_copy(r->backend, host, s.in, sizeof host, s.stream, in_ms(50), why, sizeof why) ==
          PSD_ERR_TIMEOUT);
    CHECK(r->ops->mem_copy(r->backend, s.in, host, sizeof host, s.stream, in_ms(50), why, sizeof why) ==
          PSD_ERR_TIMEOUT);
    CHECK(r->ops->mem_copy(r->backend, s.out, s.in, sizeof host, s.stream, in_ms(50), why, sizeof why) ==
          PSD_OK);
    atomic_store(&closed.is_open, 1);
    sync(r, s.stream);
    if (r->rank == 0) { /* nobody else comes */
        psd_op op = sum_on(s.stream, s.in, s.out);
        op.deadline = in_ms(200);
        CHECK(r->ops->start(s.g, &op, &request) == PSD_OK);
        CHECK(r->ops->stream_wait(request, s.stream, in_ms(RANKS_WAIT_MS)) == PSD_OK);
        r->ops->release(request);
        CHECK(r->ops->stream_sync(r->backend, s.stream, in_ms(RANKS_WAIT_MS), why, sizeof why) ==
              PSD_ERR_DEADLINE);
        CHECK_SAYS(strstr(why, "an operation of the test") != NULL, "%s", why);
        ranks_await(&r->detached, 1);
        CHECK(atomic_load(&r->detached_status) == PSD_ERR_DEADLINE);
    }
    ranks_meet(r);
    tear_down(r, &s);
}

/* More in flight than a communicator takes at once. */
static void many(rank_run *r)
{
    enum { MANY = 600 };
    static psd_request *requests[MANY];
    gate before = {0};
    scene s = set_up(r);
    CHECK(r->cudaLaunchHostFunc(s.stream, pass_gate, &before) == cudaSuccess);
    for (int i = 0; i < MANY; i++) {
        psd_op op = sum_on(s.stream, s.in, s.out);
        CHECK(r->ops->start(s.g, &op, &requests[i]) == PSD_OK);
    }
    atomic_store(&before.is_open, 1);
    CHECK(r->ops->wait(r->backend, requests, MANY, false, in_ms(RANKS_WAIT_MS)) == PSD_OK);
    for (int i = 0; i < MANY; i++)
        CHECK(ranks_end(r, requests[i]) == PSD_OK);
    tear_down(r, &s);
}

int main(int argc, char **argv)
{
    static const ranks_case cases[] = {
        {.name = "order", .ranks = 2, .run = order},
        {.name = "order_inline", .ranks = 2, .run = order, .env = {"PSD_GPUSIM_INLINE_LAUNCH=1"}},
        {.name = "overlap", .ranks = 2, .run = overlap},
        {.name = "detached", .ranks = 2, .run = detached},
        {.name = "timeouts", .ranks = 2, .run = timeouts},
        {.name = "many", .ranks = 2, .run = many},
    };
    return ranks_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
