/* The last call on a communicator, ncclCommAbort or ncclCommDestroy, may block: both free memory of the device, for which
 * CUDA waits until the kernels that run have ended, and an abort that goes wrong never comes back. Each has a thread of its
 * own, so that none waits for another and the order in which the ranks close their groups does not matter. */
#include "worker/backend/nccl/engine.h"

#include <stdio.h>

static void *run(void *arg)
{
    psd_backend_group *g = arg;
    psd_backend *b = g->backend;
    const nccl_api *nccl = &b->libs.nccl;
    char text[LIBS_TEXT];
    ncclResult_t result = ncclSuccess;
    int before = device_enter(&b->device);
    if (g->comm != NULL)
        result = g->farewell.is_abort ? nccl->ncclCommAbort(g->comm) : nccl->ncclCommDestroy(g->comm);
    if (result != ncclSuccess && result != ncclInProgress)
        engine_log(b, PSD_LOG_WARN, "group %u: %s", g->id,
                   libs_nccl_text(nccl, g->farewell.is_abort ? "ncclCommAbort" : "ncclCommDestroy", result,
                                  text, sizeof text));
    if (g->stream != NULL)
        (void)b->libs.cuda.cudaStreamDestroy(g->stream);
    device_leave(&b->device, before);
    atomic_store_explicit(&g->farewell.is_done, true, memory_order_release);
    return NULL;
}

void farewell_begin(psd_backend_group *g, bool is_abort, psd_time_ns deadline)
{
    farewell *f = &g->farewell;
    f->is_abort = is_abort;
    f->deadline = deadline;
    atomic_store(&f->is_done, false);
    f->is_running = pthread_create(&f->thread, NULL, run, g) == 0;
    if (!f->is_running) {
        engine_log(g->backend, PSD_LOG_WARN, "group %u: no thread for the end of its communicator", g->id);
        (void)run(g);
    }
}

static void check_deadline(psd_backend_group *g, psd_time_ns now)
{
    psd_backend *b = g->backend;
    char text[PSD_MAX_TEXT];
    psd_time_ns deadline = g->farewell.deadline;
    psd_time_ns stop = atomic_load(&b->stop_deadline);
    if (stop != PSD_NEVER && !g->farewell.is_abort)
        deadline = stop + b->abort_ms * PSD_NS_PER_MS;
    if (now < deadline)
        return;
    snprintf(text, sizeof text,
             "group %u, rank %d: %s has not come back after %lld ms; the process ends, since its memory is "
             "in NCCL's hands",
             g->id, g->rank, g->farewell.is_abort ? "ncclCommAbort" : "ncclCommDestroy",
             (long long)b->abort_ms);
    engine_die(b, text);
}

bool farewell_poll(psd_backend_group *g, psd_time_ns now)
{
    farewell *f = &g->farewell;
    if (!atomic_load_explicit(&f->is_done, memory_order_acquire)) {
        check_deadline(g, now);
        return false;
    }
    if (f->is_running)
        pthread_join(f->thread, NULL);
    f->is_running = false;
    g->comm = NULL;
    g->stream = NULL;
    return true;
}
