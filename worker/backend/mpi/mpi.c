/* The mpi backend's side of the contract in backend.h. See README.md. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "worker/backend/mpi/engine.h"
#include "worker/backend/mpi_launch.h"

static psd_status mpi_probe(char *why, size_t why_bytes)
{
    if (!psd_mpi_launched(why, why_bytes))
        return PSD_ERR_UNSUPPORTED;
    snprintf(why, why_bytes, "started by an MPI launcher");
    return PSD_OK;
}

static psd_status mpi_address(psd_backend *e, char *out, size_t bytes)
{
    return e->host->address(e->below, out, bytes);
}

static psd_status mpi_token(psd_backend *e, uint8_t *out, size_t capacity, uint32_t *bytes)
{
    return e->host->token(e->below, out, capacity, bytes);
}

static void mpi_group_abort(psd_backend_group *g, psd_status status, const char *text)
{
    group_break(g, status, -1, false, text);
}

static psd_status mpi_group_error(psd_backend_group *g, char *text, size_t text_bytes)
{
    pthread_mutex_lock(&process.lock);
    psd_status status = group_status(g);
    snprintf(text, text_bytes, "%s", g->text);
    pthread_mutex_unlock(&process.lock);
    return status;
}

static psd_status mpi_group_member(psd_backend_group *g, int32_t rank)
{
    return g->engine->host->group_member(g->below, rank);
}

static psd_status mpi_start(psd_backend_group *g, const psd_op *op, psd_request **out)
{
    psd_request *r = NULL;
    psd_status status = group_status(g);
    if (status == PSD_OK && !atomic_load_explicit(&g->is_ready, memory_order_acquire))
        status = PSD_AGAIN;
    if (status == PSD_OK)
        status = request_new(g, op, &r);
    if (status != PSD_OK)
        return status;
    process_push(&r->starting);
    *out = r;
    return PSD_OK;
}

static bool is_done(const psd_request *r)
{
    return atomic_load_explicit(&r->is_done, memory_order_acquire);
}

static psd_status mpi_test(psd_request *r, psd_op_result *result)
{
    if (!is_done(r)) {
        sched_yield(); /* who polls must not keep the communication thread from its core */
        return PSD_INPROGRESS;
    }
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
        const psd_request *r = w->requests[i];
        if (r == NULL)
            skipped++;
        else if (is_done(r) && w->any)
            return true;
        else if (!is_done(r) && !w->any)
            return false;
        if (!w->any)
            w->first = i + 1;
    }
    return !w->any || skipped == w->count;
}

static psd_status mpi_wait(psd_backend *e, psd_request *const *requests, int32_t count, bool any,
                           psd_time_ns deadline)
{
    (void)e;
    wait_list w = {.requests = requests, .count = count, .any = any};
    return process_wait(wait_is_over, &w, deadline);
}

static const char *mpi_request_text(const psd_request *r)
{
    return r->group->text;
}

static psd_status mpi_chan_send(psd_backend *e, uint32_t world_rank, const void *data, uint32_t bytes)
{
    return e->host->chan_send(e->below, world_rank, data, bytes);
}

static psd_status mpi_chan_recv(psd_backend *e, psd_time_ns deadline, psd_chan_msg *out)
{
    return e->host->chan_recv(e->below, deadline, out);
}

static void mpi_counters(psd_backend *e, uint64_t *bytes_sent, uint64_t *bytes_received)
{
    uint64_t sent = 0, received = 0;
    e->host->counters(e->below, &sent, &received);
    *bytes_sent = sent + atomic_load_explicit(&e->bytes_sent, memory_order_relaxed);
    *bytes_received = received + atomic_load_explicit(&e->bytes_received, memory_order_relaxed);
}

/* No PSD_CAP_ABORT: what MPI holds of a broken group cannot be taken back from it. */
static const psd_backend_ops ops = {
    .name = "mpi",
    .caps = PSD_CAP_HOST_MEMORY | PSD_CAP_TAGS | PSD_CAP_ANY_SOURCE | PSD_CAP_BIT_OPS | PSD_CAP_CHANNEL,
    .probe = mpi_probe,
    .open = engine_open,
    .close = engine_close,
    .address = mpi_address,
    .token = mpi_token,
    .group_begin = group_begin,
    .group_poll = group_poll,
    .group_close = group_close,
    .group_abort = mpi_group_abort,
    .group_error = mpi_group_error,
    .group_member = mpi_group_member,
    .start = mpi_start,
    .test = mpi_test,
    .wait = mpi_wait,
    .release = request_free,
    .request_text = mpi_request_text,
    .chan_send = mpi_chan_send,
    .chan_recv = mpi_chan_recv,
    .counters = mpi_counters,
};

extern const psd_backend_plugin psd_backend_entry;
__attribute__((visibility("default"))) const psd_backend_plugin psd_backend_entry = {PSD_BACKEND_ABI, &ops};
