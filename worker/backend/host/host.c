/* The host backend's side of the contract in backend.h: locks, and hands on to the engine. */
#include "worker/backend/host/engine.h"

#include <fcntl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

extern const psd_backend_ops psd_backend_host;

static psd_status host_probe(char *why, size_t why_bytes)
{
    const char *what = "memfd_create";
    int memory = memfd_create("psd-probe", MFD_CLOEXEC);
    int event = -1;
    int epoll = -1;
    psd_status status = PSD_ERR_IO;
    if (memory < 0)
        goto out;
    what = "eventfd";
    event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0)
        goto out;
    what = "epoll_create1";
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll >= 0)
        status = PSD_OK;
out:
    if (status == PSD_OK)
        snprintf(why, why_bytes, "host: shared memory and TCP");
    else
        snprintf(why, why_bytes, "host: %s: %s", what, strerror(errno));
    if (epoll >= 0)
        close(epoll);
    if (event >= 0)
        close(event);
    if (memory >= 0)
        close(memory);
    return status;
}

static psd_status host_address(psd_backend *e, char *out, size_t bytes)
{
    engine_lock(e);
    psd_status status = host_net_address(e->net, out, bytes);
    engine_unlock(e);
    return status;
}

static psd_status host_token(psd_backend *e, uint8_t *out, size_t capacity, uint32_t *bytes)
{
    (void)e;
    uint8_t token[ENGINE_TOKEN];
    if (capacity < sizeof(token))
        return PSD_ERR_INVAL;
    if (getrandom(token, sizeof(token), 0) != (ssize_t)sizeof(token))
        return PSD_ERR_IO;
    memcpy(out, token, sizeof(token));
    *bytes = sizeof(token);
    return PSD_OK;
}

static psd_status group_begin(psd_backend *e, const psd_group_desc *desc, psd_backend_group **out, char *why,
                              size_t why_bytes)
{
    engine_lock(e);
    psd_status status = host_group_begin(e, desc, out, why, why_bytes);
    engine_settle(e); /* before the net is asked again: it frees links that a failed group gave back */
    (void)engine_poll(e, true);
    progress_leave(e);
    engine_unlock(e);
    return status;
}

static psd_status group_poll(psd_backend_group *g, char *why, size_t why_bytes)
{
    engine *e = g->engine;
    engine_lock(e);
    (void)engine_poll(e, true);
    psd_status status = host_group_poll(g, why, why_bytes);
    engine_settle(e);
    progress_leave(e);
    engine_unlock(e);
    return status;
}

static void group_close(psd_backend_group *g)
{
    if (g == NULL)
        return;
    engine *e = g->engine;
    engine_lock(e);
    engine_settle(e); /* a broken group tells its members first */
    host_group_close(g);
    engine_settle(e);
    progress_leave(e); /* the members' links may be full: somebody must send them the end */
    engine_unlock(e);
}

static void group_abort(psd_backend_group *g, psd_status status, const char *text)
{
    engine *e = g->engine;
    engine_lock(e);
    host_group_abort(g, status, text);
    engine_settle(e);
    progress_leave(e);
    engine_unlock(e);
}

static psd_status group_error(psd_backend_group *g, char *text, size_t text_bytes)
{
    engine *e = g->engine;
    engine_lock(e);
    psd_status status = g->status;
    snprintf(text, text_bytes, "%s", g->text);
    engine_unlock(e);
    return status;
}

static psd_status member_state(psd_backend_group *g, int32_t rank)
{
    engine *e = g->engine;
    engine_lock(e);
    psd_status status = host_group_member_state(g, rank);
    engine_unlock(e);
    return status;
}

static psd_status start(psd_backend_group *g, const psd_op *op, psd_request **out)
{
    engine *e = g->engine;
    engine_lock(e);
    psd_status status = g->status;
    if (status == PSD_OK && !g->is_ready)
        status = PSD_AGAIN; /* a member that has not opened it would throw the messages away */
    if (status == PSD_OK) {
        bool is_p2p = op->kind == PSD_OP_SEND || op->kind == PSD_OP_RECV || op->kind == PSD_OP_BATCH;
        status = is_p2p ? p2p_start(g, op, out) : coll_run_start(g, op, out);
    }
    (void)engine_poll(e, false); /* what has come before goes straight to its place: the call may be over */
    progress_leave(e);
    engine_unlock(e);
    return status;
}

static psd_status run(psd_backend_group *g, const psd_op *op, psd_op_result *result, psd_request **out)
{
    engine *e = g->engine;
    engine_lock(e);
    psd_status status = g->status;
    if (status == PSD_OK && !g->is_ready)
        status = PSD_AGAIN;
    if (status == PSD_OK)
        status = quick_run(g, op, result, out);
    if (status != PSD_OK || e->has_broken)
        (void)engine_poll(e, false);
    progress_leave(e);
    engine_unlock(e);
    return status;
}

static bool is_done(const psd_request *r)
{
    return atomic_load_explicit(&r->is_done, memory_order_acquire);
}

static psd_status test(psd_request *r, psd_op_result *result)
{
    if (!is_done(r)) {
        engine *e = r->group->engine;
        engine_lock(e);
        if (!engine_poll(e, false) && ++e->test_polls % 64 == 0) {
            (void)engine_poll(e, true);
            engine_timers(e, psd_now_ns());
        }
        progress_leave(e);
        engine_unlock(e);
    }
    if (!is_done(r))
        return PSD_INPROGRESS;
    *result = r->result;
    return r->result.status;
}

typedef struct wait_list {
    psd_request *const *requests;
    int32_t count;
    bool any;
    int32_t first; /* all before it are done: each is looked at about once */
} wait_list;

static bool wait_is_over(void *arg)
{
    wait_list *w = arg;
    int32_t skipped = 0;
    for (int32_t i = w->first; i < w->count; i++) {
        psd_request *r = w->requests[i];
        if (r == NULL) {
            skipped++;
            continue;
        }
        if (is_done(r) && w->any)
            return true;
        if (!is_done(r) && !w->any)
            return false;
        if (!w->any)
            w->first = i + 1;
    }
    return !w->any || skipped == w->count;
}

static psd_status wait_requests(psd_backend *e, psd_request *const *requests, int32_t count, bool any,
                                psd_time_ns deadline)
{
    wait_list w = {.requests = requests, .count = count, .any = any};
    if (wait_is_over(&w))
        return PSD_OK;
    engine_lock(e);
    psd_status status = progress_wait(e, wait_is_over, &w, deadline);
    engine_unlock(e);
    return status;
}

static void release(psd_request *r)
{
    request_release(r);
}

static const char *request_text(const psd_request *r)
{
    return r->group->text;
}

static psd_status chan_send(psd_backend *e, uint32_t world_rank, const void *data, uint32_t bytes)
{
    engine_lock(e);
    psd_status status = host_chan_send(e, world_rank, data, bytes);
    if (status == PSD_AGAIN) {
        (void)engine_poll(e, false); /* for credit that has come meanwhile */
        status = host_chan_send(e, world_rank, data, bytes);
    }
    engine_settle(e);
    progress_leave(e);
    engine_unlock(e);
    return status;
}

static bool inbox_has_message(void *arg)
{
    engine *e = arg;
    return !list_empty(&e->inbox);
}

static psd_status chan_recv(psd_backend *e, psd_time_ns deadline, psd_chan_msg *out)
{
    engine_lock(e);
    (void)engine_poll(e, false);
    psd_status status = progress_wait(e, inbox_has_message, e, deadline);
    if (status == PSD_OK)
        status = host_chan_take(e, out);
    engine_settle(e);
    engine_unlock(e);
    return status;
}

static void counters(psd_backend *e, uint64_t *bytes_sent, uint64_t *bytes_received)
{
    /* Without the lock: the agent asks for every heartbeat, and must not wait for a driver that has lost its core. */
    *bytes_sent = atomic_load_explicit(&e->bytes_sent, memory_order_relaxed);
    *bytes_received = atomic_load_explicit(&e->bytes_received, memory_order_relaxed);
}

static psd_status mem_alloc(psd_backend *e, size_t bytes, void **out)
{
    engine_lock(e);
    void *memory = tensor_memory_get(&e->huge, bytes);
    engine_unlock(e);
    if (memory == NULL)
        return PSD_ERR_NOMEM;
    *out = memory;
    return PSD_OK;
}

static void mem_free(psd_backend *e, void *data, size_t bytes)
{
    engine_lock(e);
    tensor_memory_put(&e->huge, data, bytes);
    engine_unlock(e);
}

static void inspect(psd_backend *e, const psd_inspector *to)
{
    engine_lock(e);
    (void)engine_poll(e, false);
    host_inspect(e, to);
    progress_leave(e);
    engine_unlock(e);
}

const psd_backend_ops psd_backend_host = {
    .name = "host",
    .caps = PSD_CAP_HOST_MEMORY | PSD_CAP_TAGS | PSD_CAP_ANY_SOURCE | PSD_CAP_BIT_OPS | PSD_CAP_ABORT |
            PSD_CAP_CHANNEL,
    .probe = host_probe,
    .open = engine_open,
    .close = engine_close,
    .address = host_address,
    .token = host_token,
    .group_begin = group_begin,
    .group_poll = group_poll,
    .group_close = group_close,
    .group_abort = group_abort,
    .group_error = group_error,
    .group_member = member_state,
    .start = start,
    .run = run,
    .test = test,
    .wait = wait_requests,
    .release = release,
    .request_text = request_text,
    .chan_send = chan_send,
    .chan_recv = chan_recv,
    .counters = counters,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .inspect = inspect,
};
