/* From a group's queue to the device and back.
 *
 * Lone sends and receives are held until somebody waits, something else is started on the group, or their caller is busy
 * elsewhere (HOLD_CPU_NS, HOLD_NS), and then go as one group call: on the communicator's one stream each would otherwise
 * block the next until its partner comes, and two ranks that both send first and receive second would wait for ever. */
#include "worker/backend/nccl/engine.h"

#include <stdio.h>

static bool is_lone(const psd_request *r)
{
    return op_is_lone(&r->op);
}

static bool is_p2p(const psd_request *r)
{
    return r->op.p2p_count > 0;
}

/* A lone send to or receive from this rank itself. */
static bool is_own(const psd_backend_group *g, const psd_request *r, bool is_send)
{
    return is_lone(r) && r->op.p2p[0].peer == g->rank && r->op.p2p[0].is_send == is_send;
}

/* ------------------------------------------------------------------------------------------- choosing a unit */

/* Own sends and receives go only in pairs; the others of the queue pass them. Gives how many pairs there are before the next
 * collective. */
static int32_t own_pairs(const psd_backend_group *g)
{
    int32_t sends = 0, receives = 0;
    for (const list *node = g->queue.next; node != &g->queue; node = node->next) {
        const psd_request *r = LIST_ENTRY(node, psd_request, node);
        if (!is_p2p(r))
            break;
        sends += is_own(g, r, true);
        receives += is_own(g, r, false);
    }
    return sends < receives ? sends : receives;
}

/* The first request that has not to wait for a partner within this rank; NULL if there is none. */
static psd_request *first_able(const psd_backend_group *g)
{
    int32_t pairs = own_pairs(g);
    for (const list *node = g->queue.next; node != &g->queue; node = node->next) {
        psd_request *r = LIST_ENTRY(node, psd_request, node);
        bool own = is_own(g, r, true) || is_own(g, r, false);
        if (!own || pairs > 0)
            return r;
    }
    return NULL;
}

/* Has the thread that started this done something else for long enough? Then it will not start what goes with it. */
static bool has_left(const psd_request *r, psd_time_ns now)
{
    struct timespec ts = {0, 0};
    if (now - r->begun >= HOLD_NS || clock_gettime(r->caller_clock, &ts) != 0)
        return true; /* or the thread is gone */
    return ts.tv_sec * PSD_NS_PER_S + ts.tv_nsec - r->caller_begun >= HOLD_CPU_NS;
}

/* The last of those held decides: while a thread starts more of them, all wait. */
static bool must_go(const psd_backend_group *g, const psd_request *first, psd_time_ns now)
{
    const psd_request *last = LIST_ENTRY(g->queue.prev, psd_request, node);
    if (first->place <= g->pressed)
        return true;
    for (const list *node = g->queue.next; node != &g->queue; node = node->next) {
        if (!is_lone(LIST_ENTRY(node, psd_request, node)))
            return true;
    }
    return has_left(last, now);
}

/* All sends and receives before the next collective. */
static void take_p2p(psd_backend_group *g, list *unit)
{
    int32_t pairs = own_pairs(g);
    int32_t sends = pairs, receives = pairs;
    LIST_EACH(&g->queue, node, after)
    {
        psd_request *r = LIST_ENTRY(node, psd_request, node);
        if (!is_p2p(r))
            break;
        if (is_own(g, r, true) && sends-- <= 0)
            continue;
        if (is_own(g, r, false) && receives-- <= 0)
            continue;
        list_remove(node);
        list_append(unit, node);
    }
}

/* Moves what goes next, as one call, into `unit`. */
static void take_unit(psd_backend_group *g, list *unit, psd_time_ns now, bool *is_held)
{
    pthread_mutex_lock(&g->backend->lock);
    psd_request *first = first_able(g);
    if (first != NULL && !is_p2p(first)) {
        list_remove(&first->node);
        list_append(unit, &first->node);
    } else if (first != NULL && must_go(g, first, now)) {
        take_p2p(g, unit);
    } else {
        *is_held = first != NULL;
    }
    pthread_mutex_unlock(&g->backend->lock);
}

/* ------------------------------------------------------------------------------------------- to the device */

static void break_nccl(psd_backend_group *g, ncclResult_t result, const char *said)
{
    char text[PSD_MAX_TEXT];
    snprintf(text, sizeof text, "group %u: rank %d: NCCL: %s%s%s", g->id, g->rank, said,
             g->backend->log_file[0] != '\0' ? "; its log is " : "", g->backend->log_file);
    group_break(g, comm_status_of(result), -1, true, text);
}

static void break_cuda(psd_backend_group *g, cudaError_t error, const char *what)
{
    char text[PSD_MAX_TEXT], said[LIBS_TEXT];
    snprintf(text, sizeof text, "group %u: rank %d: CUDA: %s", g->id, g->rank,
             libs_cuda_text(&g->backend->libs.cuda, what, error, said, sizeof said));
    group_break(g, PSD_ERR_IO, -1, true, text);
}

/* Has NCCL finished our last call? Then its operations are on the stream, and their events come behind. */
static bool settle(psd_backend_group *g)
{
    const nccl_libs *libs = &g->backend->libs;
    char said[LIBS_TEXT];
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = libs->nccl.ncclCommGetAsyncError(g->comm, &state);
    if (result == ncclSuccess && state == ncclInProgress)
        return false;
    g->in_progress = false;
    if (result == ncclSuccess)
        result = state;
    if (result != ncclSuccess) {
        break_nccl(g, result,
                   libs_nccl_text(&libs->nccl, "queueing an operation", result, said, sizeof said));
        return true;
    }
    int before = device_enter(&g->backend->device);
    LIST_EACH(&g->issued, node, after)
    {
        psd_request *r = LIST_ENTRY(node, psd_request, node);
        cudaError_t error = libs->cuda.cudaEventRecord(r->event, g->stream);
        if (error != cudaSuccess) {
            break_cuda(g, error, "cudaEventRecord");
            break;
        }
        list_remove(node);
        list_append(&g->flying, node);
        g->flying_count++;
        atomic_store_explicit(&r->is_queued, true, memory_order_release);
    }
    device_leave(&g->backend->device, before);
    return true;
}

/* Gives whether a unit was taken. */
static bool issue(psd_backend_group *g, psd_time_ns now, bool *is_held)
{
    list unit;
    char said[LIBS_TEXT];
    launch_failure failure;
    list_init(&unit);
    if (g->flying_count >= MOST_FLYING)
        return false;
    take_unit(g, &unit, now, is_held);
    if (list_empty(&unit))
        return false;
    ncclResult_t result = launch(g, &unit, &failure);
    for (list *node; (node = list_take(&unit)) != NULL;)
        list_append(&g->issued, node);
    if (result == ncclSuccess || result == ncclInProgress)
        g->in_progress = true; /* settle() asks */
    else if (failure.cuda != cudaSuccess)
        break_cuda(g, failure.cuda, failure.what);
    else
        break_nccl(g, result,
                   libs_nccl_text(&g->backend->libs.nccl, failure.what, result, said, sizeof said));
    return true;
}

/* ------------------------------------------------------------------------------------------- from the device */

/* The stream is in order, so only the first of those on the device is asked. */
static void land(psd_backend_group *g)
{
    const cudart_api *cuda = &g->backend->libs.cuda;
    while (!list_empty(&g->flying)) {
        psd_request *r = LIST_ENTRY(g->flying.next, psd_request, node);
        cudaError_t error = cuda->cudaEventQuery(r->event);
        if (error == cudaErrorNotReady)
            return;
        if (error != cudaSuccess) {
            break_cuda(g, error, r->label);
            return;
        }
        g->flying_count--;
        request_finish(r, PSD_OK);
    }
}

static void look_for_async_error(psd_backend_group *g, psd_time_ns now)
{
    const nccl_api *nccl = &g->backend->libs.nccl;
    char said[LIBS_TEXT];
    ncclResult_t state = ncclSuccess;
    if (list_empty(&g->flying) || g->in_progress || now < g->next_async_check)
        return;
    g->next_async_check = now + ASYNC_CHECK_NS;
    ncclResult_t result = nccl->ncclCommGetAsyncError(g->comm, &state);
    if (result == ncclSuccess)
        result = state;
    if (result != ncclSuccess && result != ncclInProgress)
        break_nccl(g, result, libs_nccl_text(nccl, "an operation on the device", result, said, sizeof said));
}

bool pump(psd_backend_group *g, psd_time_ns now)
{
    bool is_held = false;
    do {
        if (g->in_progress && !settle(g))
            break;
        if (group_status(g) == PSD_OK)
            land(g);
    } while (group_status(g) == PSD_OK && issue(g, now, &is_held));
    if (group_status(g) == PSD_OK)
        look_for_async_error(g, now);
    return g->in_progress || is_held;
}

/* ------------------------------------------------------------------------------------------------ bad ends */

void pump_fail(psd_backend_group *g)
{
    psd_status status = group_status(g);
    list all;
    list_init(&all);
    pthread_mutex_lock(&g->backend->lock);
    list *from[] = {&g->flying, &g->issued, &g->queue};
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) {
        for (list *node; (node = list_take(from[i])) != NULL;)
            list_append(&all, node);
    }
    g->flying_count = 0;
    g->in_progress = false;
    pthread_mutex_unlock(&g->backend->lock);
    LIST_EACH(&all, node, after)
    {
        request_finish(LIST_ENTRY(node, psd_request, node), status);
    }
}

typedef struct overdue {
    const psd_request *first; /* the earliest that is past its deadline */
    const char *why;
    psd_time_ns next; /* the earliest deadline that has not passed */
} overdue;

static void look_through(const list *requests, psd_time_ns now, const char *why, overdue *o)
{
    for (const list *node = requests->next; node != requests; node = node->next) {
        const psd_request *r = LIST_ENTRY(node, psd_request, node);
        if (r->op.deadline > now && r->op.deadline < o->next)
            o->next = r->op.deadline;
        if (r->op.deadline > now || (o->first != NULL && o->first->op.deadline <= r->op.deadline))
            continue;
        o->first = r;
        o->why = why;
    }
}

void pump_deadlines(psd_backend_group *g, psd_time_ns now)
{
    psd_backend *b = g->backend;
    char text[PSD_MAX_TEXT];
    overdue o = {.next = PSD_NEVER};
    pthread_mutex_lock(&b->lock);
    if (now >= g->next_deadline) {
        look_through(&g->flying, now,
                     "it is on the device and not complete: another rank has not come to it, or what was "
                     "queued on its stream before has not ended",
                     &o);
        look_through(&g->issued, now,
                     "NCCL has not queued it on the device: another rank has not connected for it", &o);
        look_through(&g->queue, now, "it waits behind other operations of its group", &o);
        g->next_deadline = o.next;
    }
    if (o.first != NULL && o.first->op.p2p_count == 0)
        snprintf(text, sizeof text, "group %u collective %llu: rank %d's deadline passed in %s: %s", g->id,
                 (unsigned long long)o.first->result.ordinal, g->rank, o.first->label, o.why);
    else if (o.first != NULL)
        snprintf(text, sizeof text, "group %u: rank %d's deadline passed in %s: %s", g->id, g->rank,
                 o.first->label, o.why);
    pthread_mutex_unlock(&b->lock);
    if (o.first != NULL)
        group_break(g, PSD_ERR_DEADLINE, -1, true, text);
}
