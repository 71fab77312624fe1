/* The life of a group's communicator: made once all host links are up, warmed, used, ended. */
#include "worker/backend/nccl/engine.h"

#include <stdio.h>

#include "common/conf.h"

psd_status comm_status_of(ncclResult_t result)
{
    switch (result) {
    case ncclRemoteError:
        return PSD_ERR_PEER_FAILED;
    case ncclSystemError:
        return PSD_ERR_LINK;
    case ncclUnhandledCudaError:
        return PSD_ERR_IO;
    default:
        return PSD_ERR_INTERNAL;
    }
}

/* The one who opens the group tells psd (PSD_ERR_* of group_poll). */
static void fail_opening(psd_backend_group *g, psd_status status, const char *said)
{
    char text[PSD_MAX_TEXT];
    const char *log = g->backend->log_file;
    snprintf(text, sizeof text, "the NCCL communicator of group %u could not be made: %s%s%s", g->id, said,
             log[0] != '\0' ? "; NCCL's log is " : "", log);
    group_break(g, status, -1, false, text);
}

static uint64_t free_memory(const psd_backend *b)
{
    size_t available = 0, total = 0;
    int before = device_enter(&b->device);
    if (b->libs.cuda.cudaMemGetInfo(&available, &total) != cudaSuccess)
        available = 0;
    device_leave(&b->device, before);
    return available;
}

/* ------------------------------------------------------------------------------------------------- opening */

/* Within the budget? Then it is counted. */
static bool count_comm(psd_backend_group *g)
{
    psd_backend *b = g->backend;
    char text[LIBS_TEXT], size[32];
    pthread_mutex_lock(&b->lock);
    bool fits = b->comms < b->most_comms;
    if (fits)
        b->comms++;
    snprintf(
        text, sizeof text,
        "%d communicators are open, with about %s of the device: destroy groups, or raise PSD_NCCL_MAX_COMMS",
        b->comms, psd_format_bytes((int64_t)b->comm_bytes, size, sizeof size));
    pthread_mutex_unlock(&b->lock);
    if (!fits)
        fail_opening(g, PSD_ERR_LIMIT, text);
    return fits;
}

static void uncount_comm(psd_backend_group *g)
{
    psd_backend *b = g->backend;
    pthread_mutex_lock(&b->lock);
    b->comms--;
    b->comm_bytes -= g->bytes;
    pthread_mutex_unlock(&b->lock);
    g->bytes = 0;
}

static ncclResult_t call_init(psd_backend_group *g, const char **what)
{
    const nccl_api *nccl = &g->backend->libs.nccl;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result = ncclSuccess;
    config.blocking = 0;
    *what = "ncclGetUniqueId";
    if (!g->has_id)
        result = nccl->ncclGetUniqueId(&g->unique_id);
    if (result != ncclSuccess)
        return result;
    *what = "ncclCommInitRankConfig";
    return nccl->ncclCommInitRankConfig(&g->comm, g->size, g->unique_id, g->rank, &config);
}

static void init(psd_backend_group *g)
{
    psd_backend *b = g->backend;
    char text[LIBS_TEXT];
    const char *what = NULL;
    if (!count_comm(g))
        return;
    g->begun = psd_now_ns();
    g->free_before = free_memory(b);
    g->stage = STAGE_JOINING;
    int before = device_enter(&b->device);
    cudaError_t error = b->libs.cuda.cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        g->stream = NULL;
        fail_opening(g, PSD_ERR_IO,
                     libs_cuda_text(&b->libs.cuda, "cudaStreamCreateWithFlags", error, text, sizeof text));
    } else {
        ncclResult_t result = call_init(g, &what);
        if (result != ncclSuccess && result != ncclInProgress)
            fail_opening(g, comm_status_of(result),
                         libs_nccl_text(&b->libs.nccl, what, result, text, sizeof text));
    }
    device_leave(&b->device, before);
}

/* ncclInProgress, ncclSuccess or an error. */
static ncclResult_t ask(const psd_backend_group *g)
{
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = g->backend->libs.nccl.ncclCommGetAsyncError(g->comm, &state);
    return result != ncclSuccess ? result : state;
}

static void join(psd_backend_group *g)
{
    char text[LIBS_TEXT];
    ncclResult_t state = ask(g);
    if (state == ncclInProgress)
        return;
    if (state != ncclSuccess) {
        fail_opening(
            g, comm_status_of(state),
            libs_nccl_text(&g->backend->libs.nccl, "ncclCommInitRankConfig", state, text, sizeof text));
        return;
    }
    psd_status status = request_start_warm_up(g);
    if (status == PSD_OK)
        g->stage = STAGE_WARM;
    else
        fail_opening(g, status, "its first all_reduce could not be started");
}

static void become_ready(psd_backend_group *g)
{
    psd_backend *b = g->backend;
    char mine[32], all[32];
    uint64_t left = free_memory(b);
    g->bytes = g->free_before > left ? g->free_before - left : 0;
    pthread_mutex_lock(&b->lock);
    b->comm_bytes += g->bytes;
    int32_t comms = b->comms;
    psd_format_bytes((int64_t)b->comm_bytes, all, sizeof all);
    pthread_mutex_unlock(&b->lock);
    engine_log(
        b, PSD_LOG_INFO,
        "group %u, rank %d of %d: communicator made in %.1f ms, about %s of device %d (%d communicators, %s)",
        g->id, g->rank, g->size, (double)(psd_now_ns() - g->begun) / 1e6,
        psd_format_bytes((int64_t)g->bytes, mine, sizeof mine), b->device.index, comms, all);
    g->stage = STAGE_READY;
    atomic_store_explicit(&g->is_ready, true, memory_order_release);
}

psd_status comm_state(psd_backend_group *g, char *why, size_t why_bytes)
{
    psd_backend *b = g->backend;
    const char *log = b->log_file;
    if (group_status(g) != PSD_OK) {
        pthread_mutex_lock(&b->lock);
        snprintf(why, why_bytes, "%s", g->text);
        pthread_mutex_unlock(&b->lock);
        return group_status(g);
    }
    if (g->stage == STAGE_READY)
        return PSD_OK;
    if (g->stage == STAGE_WARM)
        snprintf(why, why_bytes, "NCCL's first all_reduce among the %d ranks of group %u has not ended",
                 g->size, g->id);
    else
        snprintf(
            why, why_bytes,
            "the NCCL communicator of the %d ranks of group %u is not made: a rank has not come to "
            "ncclCommInitRankConfig, or NCCL cannot reach it (NCCL_SOCKET_IFNAME chooses its network)%s%s",
            g->size, g->id, log[0] != '\0' ? "; NCCL's log is " : "", log);
    return PSD_INPROGRESS;
}

/* -------------------------------------------------------------------------------------------------- ending */

/* Tells the other members what broke the group, without psd. */
static void tell_members(psd_backend_group *g)
{
    if (g->host != NULL && group_status(g) != PSD_OK && !g->has_told)
        g->backend->host_ops->group_abort(g->host, group_status(g), g->text);
    g->has_told = true;
}

/* It is broken, or was closed before it was ready: all its ranks abort it. */
static void abort_comm(psd_backend_group *g)
{
    psd_backend *b = g->backend;
    atomic_store_explicit(&g->is_ready, false, memory_order_release);
    tell_members(g);
    if (g->comm == NULL && g->stream == NULL) {
        g->stage = STAGE_OVER;
        if (g->begun != 0)
            uncount_comm(g);
        return;
    }
    bool broken = group_status(g) != PSD_OK; /* only then its text stays as it is */
    engine_log(b, PSD_LOG_INFO, "group %u, rank %d: its communicator is aborted%s%s", g->id, g->rank,
               broken ? ": " : "", broken ? g->text : "");
    g->stage = STAGE_FAREWELL;
    farewell_begin(g, true, psd_deadline_ns(psd_now_ns(), b->abort_ms));
}

/* What is queued is done: no operation is left. All ranks get here in any order of their groups, since no communicator's
 * end waits for another's. */
static void finalize(psd_backend_group *g)
{
    char text[LIBS_TEXT];
    atomic_store_explicit(&g->is_ready, false, memory_order_release);
    g->finalize_deadline = group_status(g) == PSD_OK ? PSD_NEVER : psd_now_ns() + STOPPED_NS;
    ncclResult_t result = g->backend->libs.nccl.ncclCommFinalize(g->comm);
    if (result == ncclSuccess || result == ncclInProgress) {
        g->stage = STAGE_FINALIZE;
        return;
    }
    engine_log(g->backend, PSD_LOG_WARN, "group %u: %s", g->id,
               libs_nccl_text(&g->backend->libs.nccl, "ncclCommFinalize", result, text, sizeof text));
    abort_comm(g);
}

static void await_finalized(psd_backend_group *g, psd_time_ns now)
{
    psd_backend *b = g->backend;
    char text[LIBS_TEXT];
    ncclResult_t state = ask(g);
    if (state == ncclInProgress && now < atomic_load(&b->stop_deadline) && now < g->finalize_deadline)
        return;
    if (state == ncclSuccess) {
        g->stage = STAGE_FAREWELL;
        farewell_begin(g, false, PSD_NEVER);
        return;
    }
    engine_log(b, PSD_LOG_WARN, "group %u: %s; its communicator is aborted", g->id,
               state == ncclInProgress
                   ? "ncclCommFinalize did not end in time: another rank has not closed the group"
                   : libs_nccl_text(&b->libs.nccl, "ncclCommFinalize", state, text, sizeof text));
    abort_comm(g);
}

/* One step of a group that its user has closed; true: it is freed. */
static bool drive_closed(psd_backend_group *g)
{
    switch (g->stage) {
    case STAGE_LINKS:
    case STAGE_INIT:
    case STAGE_OVER:
        pump_fail(g); /* the warm-up, if that was not done */
        group_free(g);
        return true;
    case STAGE_JOINING:
    case STAGE_WARM:
        abort_comm(g);
        return false;
    case STAGE_READY:
        finalize(g);
        return false;
    case STAGE_FINALIZE:
    case STAGE_FAREWELL:
        return false;
    }
    return false;
}

/* A member that closes the group before it is ready will never come to the communicator. */
static void look_for_leavers(psd_backend_group *g, psd_time_ns now)
{
    char text[PSD_MAX_TEXT];
    if (g->host == NULL || (g->stage != STAGE_JOINING && g->stage != STAGE_WARM) ||
        now < g->next_member_check)
        return;
    g->next_member_check = now + MEMBER_CHECK_NS;
    for (int32_t i = 0; i < g->size; i++) {
        if (i == g->rank || g->backend->host_ops->group_member(g->host, i) == PSD_INPROGRESS)
            continue;
        snprintf(text, sizeof text, "group %u: rank %u has closed it before its communicator was made", g->id,
                 g->members[i]);
        group_break(g, PSD_ERR_ABORTED, (int32_t)g->members[i], false, text);
        return;
    }
}

/* A member that has gone, or aborted: its host link says so first. */
static void look_at_links(psd_backend_group *g)
{
    char text[PSD_MAX_TEXT];
    if (g->host == NULL || group_status(g) != PSD_OK || g->stage == STAGE_LINKS)
        return;
    psd_status status = g->backend->host_ops->group_error(g->host, text, sizeof text);
    if (status != PSD_OK)
        group_break(g, status, -1, false, text);
}

static bool drive_stage(psd_backend_group *g, psd_time_ns now)
{
    bool waits = true;
    switch (g->stage) {
    case STAGE_INIT:
        init(g);
        break;
    case STAGE_JOINING:
        join(g);
        break;
    case STAGE_WARM:
        (void)pump(g, now);
        pthread_mutex_lock(&g->backend->lock);
        bool is_warm = g->active == 0;
        pthread_mutex_unlock(&g->backend->lock);
        if (is_warm && group_status(g) == PSD_OK)
            become_ready(g);
        break;
    case STAGE_READY:
        waits = pump(g, now);
        break;
    case STAGE_FINALIZE:
        await_finalized(g, now);
        break;
    case STAGE_FAREWELL:
        if (farewell_poll(g, now)) {
            uncount_comm(g);
            g->stage = STAGE_OVER;
        }
        break;
    case STAGE_LINKS:
    case STAGE_OVER:
        waits = false;
        break;
    }
    return waits;
}

/* The job was stopped and no operation is in flight: the communicator is as good as ever, and is finalized when the group
 * is closed, for which ranks that left before may be waiting. */
static bool may_end_in_order(psd_backend_group *g)
{
    if (g->stage != STAGE_READY || group_status(g) != PSD_ERR_STOPPED)
        return false;
    pthread_mutex_lock(&g->backend->lock);
    bool is_idle = g->active == 0;
    pthread_mutex_unlock(&g->backend->lock);
    return is_idle;
}

static void drive_broken(psd_backend_group *g)
{
    if (!may_end_in_order(g)) {
        abort_comm(g);
        return;
    }
    atomic_store_explicit(&g->is_ready, false, memory_order_release);
    tell_members(g);
}

bool comm_drive(psd_backend_group *g, bool thorough)
{
    psd_time_ns now = psd_now_ns();
    if (thorough) {
        look_at_links(g);
        if (group_status(g) == PSD_OK)
            look_for_leavers(g, now);
    }
    bool broken = group_status(g) != PSD_OK;
    if (broken && g->stage < STAGE_FINALIZE)
        drive_broken(g);
    bool waits = drive_stage(g, now);
    if (thorough && group_status(g) == PSD_OK)
        pump_deadlines(g, now); /* of what is not done even now: this thread may have been away for long */
    if (group_status(g) != PSD_OK && g->stage == STAGE_OVER)
        pump_fail(g);
    bool closed = atomic_load_explicit(&g->is_closed, memory_order_acquire);
    if (closed && drive_closed(g))
        return false;
    return waits || closed;
}
