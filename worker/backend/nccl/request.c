/* Requests: operations between start() and release(). */
#include "worker/backend/nccl/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------------- free ones */

static psd_request *request_new(psd_backend *b)
{
    char text[LIBS_TEXT];
    psd_request *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    list_init(&r->node);
    int before = device_enter(&b->device);
    cudaError_t error = b->libs.cuda.cudaEventCreateWithFlags(&r->event, cudaEventDisableTiming);
    device_leave(&b->device, before);
    if (error == cudaSuccess)
        return r;
    engine_log(b, PSD_LOG_WARN, "%s",
               libs_cuda_text(&b->libs.cuda, "cudaEventCreateWithFlags", error, text, sizeof text));
    free(r);
    return NULL;
}

static psd_request *request_take(psd_backend *b)
{
    pthread_mutex_lock(&b->lock);
    list *node = list_take(&b->free_requests);
    pthread_mutex_unlock(&b->lock);
    if (node == NULL)
        return request_new(b);
    psd_request *r = LIST_ENTRY(node, psd_request, node);
    atomic_store_explicit(&r->is_queued, false, memory_order_relaxed);
    atomic_store_explicit(&r->is_done, false, memory_order_relaxed);
    r->is_internal = false;
    r->is_followed = false;
    r->is_told = false;
    r->is_detached = false;
    memset(&r->result, 0, sizeof r->result);
    return r;
}

static void request_put(psd_backend *b, psd_request *r)
{
    free(r->memory);
    r->memory = NULL;
    r->group = NULL;
    pthread_mutex_lock(&b->lock);
    list_append(&b->free_requests, &r->node);
    pthread_mutex_unlock(&b->lock);
}

void requests_free(psd_backend *b)
{
    int before = device_enter(&b->device);
    LIST_EACH(&b->free_requests, node, after)
    {
        psd_request *r = LIST_ENTRY(node, psd_request, node);
        (void)b->libs.cuda.cudaEventDestroy(r->event);
        free(r);
    }
    list_init(&b->free_requests);
    device_leave(&b->device, before);
}

/* ------------------------------------------------------------------------------------------------ starting */

/* What a rank sends to itself in a batch it must receive in the same batch: NCCL refuses a group call with only one of the
 * two. Lone ones are held until they are two (pump.c). */
static bool batch_is_whole(const psd_backend_group *g, const psd_op *op)
{
    int32_t own = 0;
    if (op->kind != PSD_OP_BATCH)
        return true;
    for (int32_t i = 0; i < op->p2p_count; i++) {
        if (op->p2p[i].peer == g->rank)
            own += op->p2p[i].is_send ? 1 : -1;
    }
    return own == 0;
}

static bool has_known_peers(const psd_backend_group *g, const psd_op *op)
{
    for (int32_t i = 0; i < op->p2p_count; i++) {
        if (op->p2p[i].peer < 0 || op->p2p[i].peer >= g->size)
            return false; /* PSD_ANY_SOURCE */
    }
    return true;
}

static bool copy_p2p(psd_request *r, const psd_op *op)
{
    size_t bytes = (size_t)op->p2p_count * sizeof *op->p2p;
    psd_op_p2p *to = r->few;
    if (op->p2p_count > FEW_P2P) {
        to = malloc(bytes);
        r->memory = to;
    }
    if (to == NULL)
        return false;
    memcpy(to, op->p2p, bytes);
    r->op.p2p = to;
    return true;
}

static bool copy_splits(psd_request *r, const psd_op *op, int32_t size)
{
    size_t bytes = (size_t)size * sizeof(int64_t);
    int64_t *to = malloc(2 * bytes);
    if (to == NULL)
        return false;
    memcpy(to, op->in_splits, bytes);
    memcpy(to + size, op->out_splits, bytes);
    r->memory = to;
    r->op.in_splits = to;
    r->op.out_splits = to + size;
    return true;
}

static bool copy_op(psd_request *r, const psd_backend_group *g, const psd_op *op)
{
    r->op = *op;
    size_t bytes = op->label != NULL ? strnlen(op->label, sizeof r->label - 1) : 0;
    memcpy(r->label, op->label != NULL ? op->label : "", bytes);
    r->label[bytes] = '\0';
    r->op.label = r->label;
    if (op->p2p_count > 0)
        return copy_p2p(r, op);
    if (op->kind == PSD_OP_ALL_TO_ALL_V)
        return copy_splits(r, op, g->size);
    return true;
}

/* Starts the clock by which a lone operation is held. */
static void note_caller(psd_request *r)
{
    struct timespec ts = {0, 0};
    if (pthread_getcpuclockid(pthread_self(), &r->caller_clock) != 0 ||
        clock_gettime(r->caller_clock, &ts) != 0) {
        r->caller_clock = CLOCK_MONOTONIC;
        clock_gettime(r->caller_clock, &ts);
    }
    r->caller_begun = ts.tv_sec * PSD_NS_PER_S + ts.tv_nsec;
}

/* Numbers the operation. Under lock, in the order of starts. */
static void give_ordinal(psd_backend_group *g, psd_request *r)
{
    r->result.source = -1;
    if (r->op.p2p_count == 0) {
        r->result.ordinal = g->next_ordinal++;
        return;
    }
    for (int32_t i = 0; i < r->op.p2p_count; i++) {
        const psd_op_p2p *p = &r->op.p2p[i];
        uint64_t ordinal = p->is_send ? g->sent[p->peer]++ : g->received[p->peer]++;
        if (p->is_send && r->result.source >= 0)
            continue; /* the last receive is told */
        r->result.ordinal = ordinal;
        if (!p->is_send)
            r->result.source = p->peer;
    }
}

static psd_status enqueue(psd_backend_group *g, psd_request *r)
{
    psd_backend *b = g->backend;
    pthread_mutex_lock(&b->lock);
    psd_status status = group_status(g);
    if (status == PSD_OK) {
        r->group = g;
        r->begun = psd_now_ns();
        if (!r->is_internal)
            give_ordinal(g, r);
        if (r->op.deadline < g->next_deadline)
            g->next_deadline = r->op.deadline;
        r->place = ++g->queued;
        g->active++;
        if (op_is_lone(&r->op))
            atomic_fetch_add_explicit(&b->lone, 1, memory_order_relaxed);
        list_append(&g->queue, &r->node);
        if (b->is_idle)
            engine_kick(b);
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* Marks on the caller's stream from where the operation may begin. */
static psd_status mark_start(psd_backend *b, psd_request *r)
{
    char text[LIBS_TEXT];
    int before = device_enter(&b->device);
    cudaError_t error = b->libs.cuda.cudaEventRecord(r->event, r->op.stream);
    device_leave(&b->device, before);
    if (error == cudaSuccess)
        return PSD_OK;
    engine_log(b, PSD_LOG_ERROR, "%s: the operation's stream: %s", r->label,
               libs_cuda_text(&b->libs.cuda, "cudaEventRecord", error, text, sizeof text));
    return error == cudaErrorInvalidResourceHandle || error == cudaErrorInvalidValue ? PSD_ERR_INVAL
                                                                                     : PSD_ERR_IO;
}

psd_status request_start(psd_backend_group *g, const psd_op *op, psd_request **out)
{
    psd_backend *b = g->backend;
    psd_status status = group_status(g);
    if (status != PSD_OK)
        return status;
    if (!atomic_load_explicit(&g->is_ready, memory_order_acquire))
        return PSD_AGAIN;
    if (!has_known_peers(g, op) || !batch_is_whole(g, op))
        return PSD_ERR_UNSUPPORTED;
    psd_request *r = request_take(b);
    if (r == NULL)
        return PSD_ERR_NOMEM;
    bool is_lone = op_is_lone(op);
    if (is_lone)
        note_caller(r);
    status = copy_op(r, g, op) ? mark_start(b, r) : PSD_ERR_NOMEM;
    if (status == PSD_OK)
        status = enqueue(g, r);
    if (status != PSD_OK) {
        request_put(b, r);
        return status;
    }
    *out = r;
    if (!is_lone)
        engine_try(b, g);
    return PSD_OK;
}

psd_status request_start_warm_up(psd_backend_group *g)
{
    psd_backend *b = g->backend;
    psd_request *r = request_take(b);
    if (r == NULL)
        return PSD_ERR_NOMEM;
    psd_op op = {
        .kind = PSD_OP_BARRIER, .root = -1, .deadline = PSD_NEVER, .label = "warm-up", .stream = g->stream};
    (void)copy_op(r, g, &op); /* it has nothing that needs memory */
    r->is_internal = true;
    r->is_detached = true;
    psd_status status = mark_start(b, r);
    if (status == PSD_OK)
        status = enqueue(g, r);
    if (status != PSD_OK)
        request_put(b, r);
    return status;
}

/* ------------------------------------------------------------------------------------------------- the end */

static void tell_detached(psd_backend *b, const psd_request *r)
{
    if (!r->is_internal && b->config.on_detached_done != NULL)
        b->config.on_detached_done(b->config.owner, r->op.cookie, &r->result);
}

void request_finish(psd_request *r, psd_status status)
{
    psd_backend_group *g = r->group;
    psd_backend *b = g->backend;
    pthread_mutex_lock(&b->lock);
    list_remove(&r->node);
    r->result.status = status;
    bool detached = r->is_detached;
    if (r->is_followed)
        follow_end(r);
    g->active--;
    if (op_is_lone(&r->op))
        atomic_fetch_sub_explicit(&b->lone, 1, memory_order_relaxed);
    atomic_store_explicit(&r->is_done, true, memory_order_release);
    pthread_mutex_unlock(&b->lock);
    if (!detached)
        return; /* it may be gone already */
    tell_detached(b, r);
    request_put(b, r);
}

void request_release(psd_request *r)
{
    psd_backend *b = r->group->backend;
    pthread_mutex_lock(&b->lock);
    bool done = atomic_load_explicit(&r->is_done, memory_order_relaxed);
    bool untold = r->is_followed && !r->is_told;
    if (!done)
        r->is_detached = true;
    pthread_mutex_unlock(&b->lock);
    if (!done)
        return;
    if (untold)
        tell_detached(b, r);
    request_put(b, r);
}

static bool is_done(const psd_request *r)
{
    return atomic_load_explicit(&r->is_done, memory_order_acquire);
}

/* Somebody waits: what is held back is to go. */
static void press(psd_backend_group *g)
{
    pthread_mutex_lock(&g->backend->lock);
    g->pressed = g->queued;
    pthread_mutex_unlock(&g->backend->lock);
}

void request_press_all(psd_backend *b)
{
    if (atomic_load_explicit(&b->lone, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&b->lock);
    for (list *node = b->groups.next; node != &b->groups; node = node->next) {
        psd_backend_group *g = LIST_ENTRY(node, psd_backend_group, node);
        g->pressed = g->queued;
    }
    pthread_mutex_unlock(&b->lock);
    engine_try(b, NULL);
}

psd_status request_test(psd_request *r, psd_op_result *result)
{
    if (!is_done(r)) {
        press(r->group);
        engine_try(r->group->backend, r->group);
    }
    if (!is_done(r))
        return PSD_INPROGRESS;
    *result = r->result;
    pthread_mutex_lock(&r->group->backend->lock);
    r->is_told = true;
    pthread_mutex_unlock(&r->group->backend->lock);
    return result->status;
}

const char *request_text(const psd_request *r)
{
    return r->group->text;
}

/* ------------------------------------------------------------------------------------------------- waiting */

/* Are enough of them done? */
static bool is_over(psd_request *const *requests, int32_t count, bool any)
{
    int32_t named = 0, done = 0;
    for (int32_t i = 0; i < count; i++) {
        if (requests[i] == NULL)
            continue;
        named++;
        done += is_done(requests[i]);
    }
    return any ? done > 0 || named == 0 : done == named;
}

psd_status request_wait(psd_backend *b, psd_request *const *requests, int32_t count, bool any,
                        psd_time_ns deadline)
{
    int round = 0;
    request_press_all(b);
    while (!is_over(requests, count, any)) {
        for (int32_t i = 0; i < count; i++) {
            if (requests[i] != NULL && !is_done(requests[i]))
                press(requests[i]->group);
        }
        engine_try(b, NULL);
        if (is_over(requests, count, any))
            break;
        if (psd_now_ns() >= deadline)
            return PSD_ERR_TIMEOUT;
        engine_pause(&round, deadline);
    }
    return PSD_OK;
}

psd_status request_stream_wait(psd_request *r, void *stream, psd_time_ns deadline)
{
    psd_backend *b = r->group->backend;
    char text[LIBS_TEXT];
    int round = 0;
    while (!atomic_load_explicit(&r->is_queued, memory_order_acquire) && !is_done(r)) {
        press(r->group);
        engine_try(b, r->group);
        if (round == 1)
            request_press_all(b);
        if (atomic_load_explicit(&r->is_queued, memory_order_acquire) || is_done(r))
            break;
        if (psd_now_ns() >= deadline)
            return PSD_ERR_TIMEOUT;
        engine_pause(&round, deadline);
    }
    pthread_mutex_lock(&b->lock);
    psd_status status = PSD_OK;
    if (atomic_load_explicit(&r->is_done, memory_order_relaxed) && r->result.status != PSD_OK)
        status = r->result.status;
    else if (!follow(r, stream))
        status = PSD_ERR_NOMEM;
    pthread_mutex_unlock(&b->lock);
    if (status != PSD_OK)
        return status;
    int before = device_enter(&b->device);
    cudaError_t error = b->libs.cuda.cudaStreamWaitEvent(stream, r->event, 0);
    device_leave(&b->device, before);
    if (error != cudaSuccess) {
        engine_log(b, PSD_LOG_ERROR, "%s: the stream that is to wait: %s", r->label,
                   libs_cuda_text(&b->libs.cuda, "cudaStreamWaitEvent", error, text, sizeof text));
        return PSD_ERR_IO;
    }
    return PSD_OK;
}
