/* Memory of the device: allocation, copies, and waiting for a stream without being caught in it. */
#include "worker/backend/nccl/engine.h"

#include <stdio.h>
#include <stdlib.h>

#define BY_NCCL_LEAST                                                                                        \
    ((size_t)1 << 20) /* ncclMemAlloc takes whole pages of 2 MiB, fit for zero-copy registration */
#define ZERO_MS 60000

typedef struct region {
    list node;
    void *data;
    bool by_nccl;
} region;

/* -------------------------------------------------------------------------------------------------- waiting */

/* What ends a wait for a stream besides the stream. */
typedef struct patience {
    psd_time_ns deadline;
    bool heeds_groups; /* a group that breaks does: the stream may wait for its operations */
} patience;

/* The group that broke last of those that did since `begun`, when `breaks` were counted; PSD_OK: none. */
static psd_status find_break(psd_backend *b, uint32_t breaks, psd_time_ns begun, char *why, size_t why_bytes)
{
    const psd_backend_group *latest = NULL;
    psd_status status = PSD_OK;
    if (atomic_load(&b->breaks) == breaks)
        return PSD_OK;
    pthread_mutex_lock(&b->lock);
    for (const list *node = b->groups.next; node != &b->groups; node = node->next) {
        const psd_backend_group *g = LIST_ENTRY(node, psd_backend_group, node);
        if (group_status(g) != PSD_OK && g->broken_at >= begun &&
            (latest == NULL || g->broken_at > latest->broken_at))
            latest = g;
    }
    if (latest != NULL) {
        status = group_status(latest);
        snprintf(why, why_bytes, "%s", latest->text);
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* Until all that is on the stream now is done. By looking, not by cudaStreamSynchronize, which would not come back from a
 * stream that waits for a rank that has failed. The device is current. */
static psd_status drain(psd_backend *b, cudaStream_t stream, patience until, char *why, size_t why_bytes)
{
    const cudart_api *cuda = &b->libs.cuda;
    char text[LIBS_TEXT];
    cudaEvent_t event = NULL;
    psd_time_ns begun = psd_now_ns(); /* before `breaks`: see find_break */
    uint32_t breaks = atomic_load(&b->breaks);
    request_press_all(b);
    psd_status status = PSD_OK;
    int round = 0;
    const char *what = "cudaEventCreateWithFlags";
    cudaError_t error = cuda->cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error == cudaSuccess) {
        what = "cudaEventRecord";
        error = cuda->cudaEventRecord(event, stream);
    }
    while (error == cudaSuccess && status == PSD_OK) {
        what = "what was queued on the stream";
        error = cuda->cudaEventQuery(event);
        if (error != cudaErrorNotReady)
            break;
        error = cudaSuccess;
        engine_try(b, NULL);
        if (until.heeds_groups)
            status = find_break(b, breaks, begun, why, why_bytes);
        if (status == PSD_OK && psd_now_ns() >= until.deadline) {
            snprintf(why, why_bytes, "what is queued on the stream has not ended");
            status = PSD_ERR_TIMEOUT;
        }
        engine_pause(&round, until.deadline);
    }
    if (error != cudaSuccess) {
        snprintf(why, why_bytes, "%s", libs_cuda_text(cuda, what, error, text, sizeof text));
        status = PSD_ERR_IO;
    }
    if (until.heeds_groups && status != PSD_ERR_TIMEOUT) {
        pthread_mutex_lock(&b->lock);
        psd_status aborted = follow_take(b, stream, why, why_bytes);
        pthread_mutex_unlock(&b->lock);
        status = aborted != PSD_OK ? aborted : status;
    }
    if (event != NULL)
        (void)cuda->cudaEventDestroy(event);
    return status;
}

psd_status memory_stream_sync(psd_backend *b, void *stream, psd_time_ns deadline, char *why, size_t why_bytes)
{
    int before = device_enter(&b->device);
    psd_status status = drain(b, stream, (patience){deadline, true}, why, why_bytes);
    device_leave(&b->device, before);
    return status;
}

/* ------------------------------------------------------------------------------------------------ allocation */

static cudaError_t take(psd_backend *b, size_t bytes, region *r)
{
    const nccl_api *nccl = &b->libs.nccl;
    r->by_nccl = bytes >= BY_NCCL_LEAST && nccl->ncclMemAlloc != NULL && nccl->ncclMemFree != NULL &&
                 nccl->ncclMemAlloc(&r->data, bytes) == ncclSuccess;
    return r->by_nccl ? cudaSuccess : b->libs.cuda.cudaMalloc(&r->data, bytes);
}

/* cudaFree waits until the device is through with what may use the memory; ncclMemFree unmaps it at once, under whatever
 * still runs. */
static void give(psd_backend *b, const region *r)
{
    if (r->by_nccl) {
        (void)b->libs.cuda.cudaDeviceSynchronize();
        (void)b->libs.nccl.ncclMemFree(r->data);
    } else {
        (void)b->libs.cuda.cudaFree(r->data);
    }
}

/* On a stream where no operation of a group ever is. */
static psd_status zero(psd_backend *b, void *data, size_t bytes)
{
    char why[PSD_MAX_TEXT] = "";
    if (b->libs.cuda.cudaMemsetAsync(data, 0, bytes, b->memory_stream) != cudaSuccess)
        return PSD_ERR_IO;
    patience until = {psd_deadline_ns(psd_now_ns(), ZERO_MS), false};
    psd_status status = drain(b, b->memory_stream, until, why, sizeof why);
    if (status != PSD_OK)
        engine_log(b, PSD_LOG_WARN, "memory of the device could not be zeroed: %s", why);
    return status;
}

psd_status memory_alloc(psd_backend *b, size_t bytes, void **out)
{
    char text[LIBS_TEXT];
    psd_status status = PSD_ERR_NOMEM;
    region *r = calloc(1, sizeof *r);
    if (r == NULL)
        return status;
    list_init(&r->node);
    int before = device_enter(&b->device);
    cudaError_t error = take(b, bytes, r);
    if (error != cudaSuccess) {
        engine_log(b, PSD_LOG_WARN, "%zu bytes of device %d: %s", bytes, b->device.index,
                   libs_cuda_text(&b->libs.cuda, "cudaMalloc", error, text, sizeof text));
        goto fail;
    }
    status = zero(b, r->data, bytes);
    if (status != PSD_OK)
        goto fail_data;
    pthread_mutex_lock(&b->lock);
    list_append(&b->regions, &r->node);
    pthread_mutex_unlock(&b->lock);
    *out = r->data;
    device_leave(&b->device, before);
    return PSD_OK;

fail_data:
    give(b, r);
fail:
    device_leave(&b->device, before);
    free(r);
    return status;
}

/* The region that begins there, out of the list; NULL if there is none. */
static region *take_region(psd_backend *b, const void *data)
{
    region *found = NULL;
    pthread_mutex_lock(&b->lock);
    for (list *node = b->regions.next; node != &b->regions && found == NULL; node = node->next) {
        region *r = LIST_ENTRY(node, region, node);
        if (data == NULL || r->data == data)
            found = r;
    }
    if (found != NULL)
        list_remove(&found->node);
    pthread_mutex_unlock(&b->lock);
    return found;
}

static void free_region(psd_backend *b, region *r)
{
    int before = device_enter(&b->device);
    give(b, r);
    device_leave(&b->device, before);
    free(r);
}

void memory_free(psd_backend *b, void *data, size_t bytes)
{
    (void)bytes;
    region *r = data != NULL ? take_region(b, data) : NULL;
    if (r != NULL)
        free_region(b, r);
}

void memory_forget(psd_backend *b)
{
    for (region *r; (r = take_region(b, NULL)) != NULL;)
        free_region(b, r);
}

/* ----------------------------------------------------------------------------------------------------- copies */

psd_status memory_copy(psd_backend *b, void *dst, const void *src, size_t bytes, void *stream,
                       psd_time_ns deadline, char *why, size_t why_bytes)
{
    char text[LIBS_TEXT];
    psd_status status = PSD_OK;
    const patience until = {deadline, true};
    bool to_host = device_owns(&b->device, dst, text, sizeof text) != PSD_OK;
    bool from_host = device_owns(&b->device, src, text, sizeof text) != PSD_OK;
    enum cudaMemcpyKind kind = to_host     ? cudaMemcpyDeviceToHost
                               : from_host ? cudaMemcpyHostToDevice
                                           : cudaMemcpyDeviceToDevice;
    int before = device_enter(&b->device);
    /* A copy of host memory may block until the stream comes to it, so it comes when the stream is free. */
    if (to_host || from_host)
        status = drain(b, stream, until, why, why_bytes);
    if (status != PSD_OK)
        goto out;
    cudaError_t error = b->libs.cuda.cudaMemcpyAsync(dst, src, bytes, kind, stream);
    if (error != cudaSuccess) {
        snprintf(why, why_bytes, "%s",
                 libs_cuda_text(&b->libs.cuda, "cudaMemcpyAsync", error, text, sizeof text));
        status = PSD_ERR_IO;
    } else if (to_host || from_host) {
        status = drain(b, stream, until, why, why_bytes);
    }
out:
    device_leave(&b->device, before);
    return status;
}
