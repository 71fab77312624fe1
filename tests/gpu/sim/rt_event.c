/* Events: a name for the completion of what was queued on a stream when they were recorded. */
#include "rt.h"

#include <stdlib.h>

struct CUevent_st {
    struct CUevent_st *next;
    int device;
    unsigned flags;
    mark *recorded; /* NULL: never recorded */
};

static struct CUevent_st *events;

static struct CUevent_st **find(cudaEvent_t handle)
{
    struct CUevent_st **at = &events;
    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    return at;
}

GPUSIM_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    RT_ENTER();
    const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    if (out == NULL || (flags & ~known) != 0)
        return rt_error(cudaErrorInvalidValue);
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (event == NULL)
        return rt_error(cudaErrorMemoryAllocation);
    event->device = rt_device();
    event->flags = flags;
    pthread_mutex_lock(&rt_lock);
    event->next = events;
    events = event;
    pthread_mutex_unlock(&rt_lock);
    *out = event;
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

GPUSIM_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    RT_ENTER();
    pthread_mutex_lock(&rt_lock);
    struct CUevent_st **at = find(handle);
    struct CUevent_st *event = *at;
    if (event != NULL) {
        *at = event->next;
        rt_mark_put(event->recorded);
    }
    pthread_mutex_unlock(&rt_lock);
    free(event);
    return rt_error(event == NULL ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

/* Runtime API, cudaEventRecord: "hEvent and hStream must be on the same CUDA context". */
static cudaError_t record(cudaEvent_t handle, cudaStream_t stream_handle)
{
    struct CUevent_st *event = *find(handle);
    struct CUstream_st *stream = rt_stream_find(stream_handle, rt_device());
    rt_item nothing = {.run = NULL};
    mark *done = NULL;
    if (event == NULL || stream == NULL || rt_stream_device(stream) != event->device)
        return cudaErrorInvalidResourceHandle;
    cudaError_t error = rt_submit(stream, &nothing, &done);
    if (error == cudaSuccess) {
        rt_mark_put(event->recorded);
        event->recorded = done;
    }
    return error;
}

GPUSIM_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    RT_ENTER();
    if (flags != cudaEventRecordDefault)
        return rt_error(cudaErrorInvalidValue);
    pthread_mutex_lock(&rt_lock);
    cudaError_t error = record(event, stream);
    pthread_mutex_unlock(&rt_lock);
    return rt_error(error);
}

GPUSIM_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

/* Runtime API, cudaEventQuery: an event that was never recorded is complete. */
GPUSIM_EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    RT_ENTER();
    pthread_mutex_lock(&rt_lock);
    struct CUevent_st *event = *find(handle);
    bool pending = event != NULL && event->recorded != NULL && !event->recorded->done;
    int device = event != NULL ? event->device : 0;
    pthread_mutex_unlock(&rt_lock);
    if (event == NULL)
        return rt_error(cudaErrorInvalidResourceHandle);
    return rt_error(pending ? cudaErrorNotReady : rt_device_error(device));
}

GPUSIM_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    RT_ENTER();
    int device = 0;
    pthread_mutex_lock(&rt_lock);
    struct CUevent_st *event = *find(handle);
    mark *recorded = event != NULL ? rt_mark_get(event->recorded) : NULL;
    if (event != NULL)
        device = event->device;
    if (recorded != NULL)
        rt_mark_wait(recorded);
    rt_mark_put(recorded);
    pthread_mutex_unlock(&rt_lock);
    return rt_error(event == NULL ? cudaErrorInvalidResourceHandle : rt_device_error(device));
}

/* Runtime API, cudaStreamWaitEvent: waits for what the event had captured at this call, whatever is recorded
 * later; the event may be another device's; nothing captured, nothing to wait for. */
GPUSIM_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags)
{
    RT_ENTER();
    if (flags != cudaEventWaitDefault)
        return rt_error(cudaErrorInvalidValue);
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&rt_lock);
    struct CUevent_st *event = *find(handle);
    struct CUstream_st *stream = rt_stream_find(stream_handle, rt_device());
    if (event == NULL || stream == NULL)
        error = cudaErrorInvalidResourceHandle;
    else if (event->recorded != NULL && !event->recorded->done) {
        rt_item wait = {.after = &event->recorded, .after_count = 1};
        error = rt_submit(stream, &wait, NULL);
    }
    pthread_mutex_unlock(&rt_lock);
    return rt_error(error);
}

static cudaError_t elapsed(float *ms, cudaEvent_t first, cudaEvent_t second)
{
    struct CUevent_st *start = *find(first), *end = *find(second);
    if (start == NULL || end == NULL || start->recorded == NULL || end->recorded == NULL ||
        ((start->flags | end->flags) & cudaEventDisableTiming) != 0)
        return cudaErrorInvalidResourceHandle;
    if (!start->recorded->done || !end->recorded->done)
        return cudaErrorNotReady;
    *ms = (float)((double)(end->recorded->done_ns - start->recorded->done_ns) / 1e6);
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    RT_ENTER();
    if (ms == NULL)
        return rt_error(cudaErrorInvalidValue);
    pthread_mutex_lock(&rt_lock);
    cudaError_t error = elapsed(ms, start, end);
    pthread_mutex_unlock(&rt_lock);
    return rt_error(error);
}
