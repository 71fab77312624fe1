/* Streams: each an ordered queue with a thread of its own, which blocks where a device would. */
#include "rt.h"

#include <stdlib.h>
#include <time.h>

pthread_mutex_t rt_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t rt_changed = PTHREAD_COND_INITIALIZER;

typedef struct item item;
struct item {
    item *next;
    gpusim_kernel run;
    void *arg;
    bool host_func;
    mark *done;
    int after_count;
    mark *after[]; /* references */
};

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    unsigned flags;
    int priority;
    bool is_legacy; /* the device's default stream */
    bool has_thread;
    bool closed; /* its handle is gone; the thread ends once the queue is empty */
    pthread_cond_t work;
    item *head, *tail;
    mark *last; /* of the item queued last */
};

static struct CUstream_st *streams;
static struct CUstream_st *legacy[RT_MAX_DEVICES];
static _Thread_local bool in_host_func;

/* The default streams of a thread (cudaStreamPerThread). */
typedef struct own_streams {
    struct CUstream_st *of[RT_MAX_DEVICES];
} own_streams;
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

bool psd_gpusim_in_host_func(void)
{
    return in_host_func;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- marks */

mark *rt_mark_new(void)
{
    mark *m = calloc(1, sizeof *m);
    if (m != NULL)
        m->refs = 1;
    return m;
}

mark *rt_mark_get(mark *m)
{
    if (m != NULL)
        m->refs++;
    return m;
}

void rt_mark_put(mark *m)
{
    if (m != NULL && --m->refs == 0)
        free(m);
}

void rt_mark_wait(mark *m)
{
    while (!m->done)
        pthread_cond_wait(&rt_changed, &rt_lock);
}

void psd_gpusim_mark_wait(mark *m)
{
    pthread_mutex_lock(&rt_lock);
    rt_mark_wait(m);
    pthread_mutex_unlock(&rt_lock);
}

mark *psd_gpusim_mark_get(mark *m)
{
    pthread_mutex_lock(&rt_lock);
    rt_mark_get(m);
    pthread_mutex_unlock(&rt_lock);
    return m;
}

void psd_gpusim_mark_put(mark *m)
{
    pthread_mutex_lock(&rt_lock);
    rt_mark_put(m);
    pthread_mutex_unlock(&rt_lock);
}

/* ---- the queue */

static void run_item(struct CUstream_st *stream, item *it)
{
    for (int i = 0; i < it->after_count; i++)
        rt_mark_wait(it->after[i]);
    pthread_mutex_unlock(&rt_lock);
    if (it->run != NULL) {
        in_host_func = it->host_func;
        it->run(it->arg, rt_device_error(stream->device) == cudaSuccess);
        in_host_func = false;
    }
    pthread_mutex_lock(&rt_lock);
    for (int i = 0; i < it->after_count; i++)
        rt_mark_put(it->after[i]);
    it->done->done = true;
    it->done->done_ns = now_ns();
    rt_mark_put(it->done);
    pthread_cond_broadcast(&rt_changed);
    free(it);
}

static void stream_free(struct CUstream_st *stream)
{
    struct CUstream_st **at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    rt_mark_put(stream->last);
    pthread_cond_destroy(&stream->work);
    free(stream);
}

static void *stream_main(void *arg)
{
    struct CUstream_st *stream = arg;
    pthread_mutex_lock(&rt_lock);
    for (;;) {
        item *it = stream->head;
        if (it != NULL) {
            stream->head = it->next;
            if (stream->head == NULL)
                stream->tail = NULL;
            run_item(stream, it);
        } else if (stream->closed) {
            break;
        } else {
            pthread_cond_wait(&stream->work, &rt_lock);
        }
    }
    stream_free(stream);
    pthread_mutex_unlock(&rt_lock);
    return NULL;
}

static bool thread_start(struct CUstream_st *stream)
{
    pthread_t thread;
    if (stream->has_thread)
        return true;
    if (pthread_create(&thread, NULL, stream_main, stream) != 0)
        return false;
    pthread_detach(thread);
    stream->has_thread = true;
    return true;
}

static bool is_pending(const mark *m)
{
    return m != NULL && !m->done;
}

/* Runtime API, "Stream synchronization behavior", Legacy default stream: work on it waits for all blocking
 * streams of the device before it begins, and they wait for it. */
static bool depends(const struct CUstream_st *stream, const struct CUstream_st *other)
{
    if (stream == other || stream->device != other->device || !is_pending(other->last))
        return false;
    if (stream->is_legacy)
        return (other->flags & cudaStreamNonBlocking) == 0;
    return other->is_legacy && (stream->flags & cudaStreamNonBlocking) == 0;
}

static item *item_new(struct CUstream_st *stream, const rt_item *what)
{
    int count = 0;
    for (struct CUstream_st *s = streams; s != NULL; s = s->next)
        count += depends(stream, s);
    item *it = calloc(1, sizeof *it + (size_t)(count + what->after_count) * sizeof(mark *));
    mark *done = it != NULL ? rt_mark_new() : NULL;
    if (done == NULL) {
        free(it);
        return NULL;
    }
    it->run = what->run;
    it->arg = what->arg;
    it->host_func = what->host_func;
    it->done = done;
    for (int i = 0; i < what->after_count; i++)
        if (is_pending(what->after[i]))
            it->after[it->after_count++] = rt_mark_get(what->after[i]);
    for (struct CUstream_st *s = streams; s != NULL; s = s->next)
        if (depends(stream, s))
            it->after[it->after_count++] = rt_mark_get(s->last);
    return it;
}

cudaError_t rt_submit(struct CUstream_st *stream, const rt_item *what, mark **out)
{
    if (!thread_start(stream))
        return cudaErrorUnknown;
    item *it = item_new(stream, what);
    if (it == NULL)
        return cudaErrorMemoryAllocation;
    if (stream->tail != NULL)
        stream->tail->next = it;
    else
        stream->head = it;
    stream->tail = it;
    rt_mark_put(stream->last);
    stream->last = rt_mark_get(it->done);
    if (out != NULL)
        *out = rt_mark_get(it->done);
    pthread_cond_signal(&stream->work);
    return cudaSuccess;
}

/* ---- handles */

static struct CUstream_st *stream_new(int device, unsigned flags, int priority)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return NULL;
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    pthread_cond_init(&stream->work, NULL);
    stream->next = streams;
    streams = stream;
    return stream;
}

static void stream_close(struct CUstream_st *stream)
{
    stream->closed = true;
    if (stream->has_thread)
        pthread_cond_signal(&stream->work);
    else
        stream_free(stream);
}

static void own_end(void *arg)
{
    own_streams *own = arg;
    pthread_mutex_lock(&rt_lock);
    for (int i = 0; i < RT_MAX_DEVICES; i++)
        if (own->of[i] != NULL)
            stream_close(own->of[i]);
    pthread_mutex_unlock(&rt_lock);
    free(own);
}

static void own_init(void)
{
    pthread_key_create(&own_key, own_end);
}

static struct CUstream_st *own_stream(int device)
{
    pthread_once(&own_once, own_init);
    own_streams *own = pthread_getspecific(own_key);
    if (own == NULL) {
        own = calloc(1, sizeof *own);
        if (own == NULL || pthread_setspecific(own_key, own) != 0) {
            free(own);
            return NULL;
        }
    }
    if (own->of[device] == NULL)
        own->of[device] = stream_new(device, 0, 0);
    return own->of[device];
}

struct CUstream_st *rt_stream_find(cudaStream_t handle, int device)
{
    if (handle == cudaStreamPerThread)
        return own_stream(device);
    if (handle == NULL || handle == cudaStreamLegacy) {
        if (legacy[device] == NULL) {
            legacy[device] = stream_new(device, 0, 0);
            if (legacy[device] != NULL)
                legacy[device]->is_legacy = true;
        }
        return legacy[device];
    }
    for (struct CUstream_st *s = streams; s != NULL; s = s->next)
        if (s == handle && !s->closed)
            return s;
    return NULL;
}

int rt_stream_device(const struct CUstream_st *stream)
{
    return stream->device;
}

mark *rt_stream_tail(const struct CUstream_st *stream)
{
    return stream->last;
}

/* A stream may be created or end while the lock is given up, so the tails are taken first. */
void rt_device_wait(int device)
{
    for (;;) {
        mark *pending = NULL;
        for (struct CUstream_st *s = streams; s != NULL && pending == NULL; s = s->next)
            if (s->device == device && is_pending(s->last))
                pending = rt_mark_get(s->last);
        if (pending == NULL)
            return;
        rt_mark_wait(pending);
        rt_mark_put(pending);
    }
}

GPUSIM_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    RT_ENTER();
    if (out == NULL || (flags & ~(unsigned)cudaStreamNonBlocking) != 0)
        return rt_error(cudaErrorInvalidValue);
    pthread_mutex_lock(&rt_lock);
    struct CUstream_st *stream = stream_new(rt_device(), flags,
                                            priority > 0    ? 0
                                            : priority < -5 ? -5
                                                            : priority);
    pthread_mutex_unlock(&rt_lock);
    if (stream == NULL)
        return rt_error(cudaErrorMemoryAllocation);
    *out = stream;
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

GPUSIM_EXPORT cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

GPUSIM_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    RT_ENTER();
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return cudaSuccess;
}

/* Runtime API, cudaStreamDestroy: with work left "the function will return immediately and the resources
 * associated with stream will be released automatically once the device has completed all work in stream". */
GPUSIM_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    RT_ENTER();
    if (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        return rt_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&rt_lock);
    struct CUstream_st *stream = rt_stream_find(handle, rt_device());
    if (stream != NULL)
        stream_close(stream);
    pthread_mutex_unlock(&rt_lock);
    return rt_error(stream == NULL ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

/* The completion of what is queued now, with a reference; false: no such stream. */
static bool tail_of(cudaStream_t handle, mark **out, int *device)
{
    struct CUstream_st *stream = rt_stream_find(handle, rt_device());
    if (stream == NULL)
        return false;
    *device = stream->device;
    *out = rt_mark_get(stream->last);
    return true;
}

GPUSIM_EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    RT_ENTER();
    mark *tail = NULL;
    int device = 0;
    pthread_mutex_lock(&rt_lock);
    bool found = tail_of(handle, &tail, &device);
    bool pending = is_pending(tail);
    rt_mark_put(tail);
    pthread_mutex_unlock(&rt_lock);
    if (!found)
        return rt_error(cudaErrorInvalidResourceHandle);
    return rt_error(pending ? cudaErrorNotReady : rt_device_error(device));
}

GPUSIM_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    RT_ENTER();
    mark *tail = NULL;
    int device = 0;
    pthread_mutex_lock(&rt_lock);
    bool found = tail_of(handle, &tail, &device);
    if (tail != NULL)
        rt_mark_wait(tail);
    rt_mark_put(tail);
    pthread_mutex_unlock(&rt_lock);
    return rt_error(found ? rt_device_error(device) : cudaErrorInvalidResourceHandle);
}

GPUSIM_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags)
{
    RT_ENTER();
    pthread_mutex_lock(&rt_lock);
    struct CUstream_st *stream = rt_stream_find(handle, rt_device());
    if (stream != NULL && flags != NULL)
        *flags = stream->flags;
    pthread_mutex_unlock(&rt_lock);
    return rt_error(stream == NULL ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

GPUSIM_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    RT_ENTER();
    pthread_mutex_lock(&rt_lock);
    struct CUstream_st *stream = rt_stream_find(handle, rt_device());
    if (stream != NULL && priority != NULL)
        *priority = stream->priority;
    pthread_mutex_unlock(&rt_lock);
    return rt_error(stream == NULL ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

typedef struct host_call {
    cudaHostFn_t fn;
    void *data;
} host_call;

static void run_host_call(void *arg, bool device_ok)
{
    host_call call = *(host_call *)arg;
    free(arg);
    if (device_ok)
        call.fn(call.data);
}

/* Runtime API, cudaLaunchHostFunc: called after work queued before, blocks work queued after; not called when
 * the context is in an error state. */
GPUSIM_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void *data)
{
    RT_ENTER();
    host_call *call = fn != NULL ? malloc(sizeof *call) : NULL;
    if (call == NULL)
        return rt_error(fn == NULL ? cudaErrorInvalidValue : cudaErrorMemoryAllocation);
    *call = (host_call){.fn = fn, .data = data};
    rt_item what = {.run = run_host_call, .arg = call, .host_func = true};
    pthread_mutex_lock(&rt_lock);
    struct CUstream_st *stream = rt_stream_find(handle, rt_device());
    cudaError_t error = stream == NULL ? cudaErrorInvalidResourceHandle : rt_submit(stream, &what, NULL);
    pthread_mutex_unlock(&rt_lock);
    if (error != cudaSuccess)
        free(call);
    return rt_error(error);
}

/* ---- kernels of the simulated NCCL */

static cudaError_t launch(int device, const cudaStream_t *handles, int count, rt_item *what, mark **out)
{
    mark *done = NULL;
    if (rt_device_error(device) != cudaSuccess)
        return rt_device_error(device);
    for (int i = 0; i < count; i++) {
        struct CUstream_st *stream = rt_stream_find(handles[i], device);
        if (stream == NULL || stream->device != device)
            return cudaErrorInvalidResourceHandle;
        if (i > 0 && is_pending(stream->last))
            what->after[what->after_count++] = stream->last;
    }
    cudaError_t error = rt_submit(rt_stream_find(handles[0], device), what, &done);
    rt_item later = {.after = &done, .after_count = 1};
    for (int i = 1; i < count && error == cudaSuccess; i++)
        error = rt_submit(rt_stream_find(handles[i], device), &later, NULL);
    if (done != NULL)
        *out = done;
    return done != NULL ? cudaSuccess : error;
}

cudaError_t psd_gpusim_launch(int device, const cudaStream_t *handles, int count, mark *after,
                              gpusim_kernel kernel, void *arg, mark **out)
{
    mark **waits = calloc((size_t)count + 1, sizeof *waits);
    if (waits == NULL)
        return cudaErrorMemoryAllocation;
    rt_item what = {.run = kernel, .arg = arg, .after = waits};
    if (after != NULL)
        waits[what.after_count++] = after;
    pthread_mutex_lock(&rt_lock);
    cudaError_t error = launch(device, handles, count, &what, out);
    pthread_mutex_unlock(&rt_lock);
    free(waits);
    return error;
}
