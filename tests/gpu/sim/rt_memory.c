/* Memory: device, page-locked and unregistered, told apart by pointer; copies and fills. */
#include "rt.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct allocation {
    char *base;
    size_t bytes;
    size_t mapped; /* 0: the caller's memory, registered */
    enum cudaMemoryType type;
    int device;
} allocation;

/* Sorted by base; none overlap. */
static allocation *all;
static size_t all_count, all_capacity;
static size_t device_used[RT_MAX_DEVICES];

/* Index of the first allocation that begins above `pointer`. */
static size_t above(const void *pointer)
{
    size_t low = 0, high = all_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if ((uintptr_t)all[mid].base <= (uintptr_t)pointer)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static allocation *find(const void *pointer)
{
    size_t at = above(pointer);
    if (at == 0)
        return NULL;
    allocation *a = &all[at - 1];
    return (uintptr_t)pointer < (uintptr_t)a->base + a->bytes ? a : NULL;
}

static bool insert(allocation a)
{
    if (all_count == all_capacity) {
        size_t capacity = all_capacity ? all_capacity * 2 : 64;
        allocation *grown = realloc(all, capacity * sizeof *all);
        if (grown == NULL)
            return false;
        all = grown;
        all_capacity = capacity;
    }
    size_t at = above(a.base);
    memmove(&all[at + 1], &all[at], (all_count - at) * sizeof *all);
    all[at] = a;
    all_count++;
    return true;
}

static void erase(allocation *a)
{
    size_t at = (size_t)(a - all);
    memmove(&all[at], &all[at + 1], (all_count - at - 1) * sizeof *all);
    all_count--;
}

gpusim_pointer psd_gpusim_pointer(const void *pointer)
{
    gpusim_pointer out = {.type = cudaMemoryTypeUnregistered, .device = cudaInvalidDeviceId};
    pthread_mutex_lock(&rt_lock);
    const allocation *a = find(pointer);
    if (a != NULL) {
        out.type = a->type;
        out.device = a->device;
        out.bytes = a->bytes - (size_t)((const char *)pointer - a->base);
    }
    pthread_mutex_unlock(&rt_lock);
    return out;
}

/* ---- allocation */

#define FILL_BYTES ((size_t)4 << 20)
#define FILL       0xC5

/* Runtime API, cudaMalloc: "The memory is not cleared": it begins with a pattern that no test expects, and
 * ends at a page that nobody may touch. */
static char *map(size_t bytes, size_t *mapped)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t data = (bytes + page - 1) / page * page;
    if (data < bytes)
        return NULL;
    char *base =
        mmap(NULL, data + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    mprotect(base + data, page, PROT_NONE);
    memset(base, FILL, bytes < FILL_BYTES ? bytes : FILL_BYTES);
    *mapped = data + page;
    return base;
}

static cudaError_t allocate(void **out, size_t bytes, enum cudaMemoryType type)
{
    allocation a = {.bytes = bytes, .type = type, .device = rt_device()};
    if (bytes == 0) {
        *out = NULL;
        return cudaSuccess;
    }
    a.base = map(bytes, &a.mapped);
    if (a.base == NULL)
        return cudaErrorMemoryAllocation;
    pthread_mutex_lock(&rt_lock);
    size_t *used = &device_used[a.device];
    bool is_device = type == cudaMemoryTypeDevice;
    bool fits = !is_device || bytes <= settings_get()->device_memory - *used;
    bool ok = fits && insert(a);
    if (ok && is_device)
        *used += bytes;
    pthread_mutex_unlock(&rt_lock);
    if (!ok) {
        munmap(a.base, a.mapped);
        return cudaErrorMemoryAllocation;
    }
    *out = a.base;
    return cudaSuccess;
}

/* CUDA C++ Programming Guide, "Stream Ordered Memory Allocator": cudaMalloc and cudaFree "causes GPU to
 * synchronize across all executing CUDA streams". So the free waits for what the device runs. */
static cudaError_t release(void *pointer, enum cudaMemoryType type)
{
    if (pointer == NULL)
        return cudaSuccess;
    pthread_mutex_lock(&rt_lock);
    allocation *a = find(pointer);
    bool ok = a != NULL && a->base == pointer && a->type == type && a->mapped != 0;
    allocation gone = {0};
    if (ok) {
        rt_device_wait(a->device);
        a = find(pointer); /* the lock was given up */
        ok = a != NULL && a->base == pointer;
    }
    if (ok) {
        gone = *a;
        if (type == cudaMemoryTypeDevice)
            device_used[gone.device] -= gone.bytes;
        erase(a);
    }
    pthread_mutex_unlock(&rt_lock);
    if (ok)
        munmap(gone.base, gone.mapped);
    return ok ? cudaSuccess : cudaErrorInvalidValue;
}

GPUSIM_EXPORT cudaError_t cudaMalloc(void **out, size_t bytes)
{
    RT_ENTER();
    return rt_error(out == NULL ? cudaErrorInvalidValue : allocate(out, bytes, cudaMemoryTypeDevice));
}

GPUSIM_EXPORT cudaError_t cudaFree(void *pointer)
{
    RT_ENTER();
    return rt_error(release(pointer, cudaMemoryTypeDevice));
}

GPUSIM_EXPORT cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    RT_ENTER();
    const unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if (out == NULL || (flags & ~known) != 0)
        return rt_error(cudaErrorInvalidValue);
    return rt_error(allocate(out, bytes, cudaMemoryTypeHost));
}

GPUSIM_EXPORT cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return cudaHostAlloc(out, bytes, cudaHostAllocDefault);
}

GPUSIM_EXPORT cudaError_t cudaFreeHost(void *pointer)
{
    RT_ENTER();
    return rt_error(release(pointer, cudaMemoryTypeHost));
}

GPUSIM_EXPORT cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    RT_ENTER();
    (void)flags;
    if (pointer == NULL || bytes == 0)
        return rt_error(cudaErrorInvalidValue);
    allocation a = {.base = pointer, .bytes = bytes, .type = cudaMemoryTypeHost, .device = rt_device()};
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&rt_lock);
    size_t at = above(pointer);
    if (find(pointer) != NULL || (at < all_count && all[at].base < a.base + bytes))
        error = cudaErrorHostMemoryAlreadyRegistered;
    else if (!insert(a))
        error = cudaErrorMemoryAllocation;
    pthread_mutex_unlock(&rt_lock);
    return rt_error(error);
}

GPUSIM_EXPORT cudaError_t cudaHostUnregister(void *pointer)
{
    RT_ENTER();
    pthread_mutex_lock(&rt_lock);
    allocation *a = find(pointer);
    bool ok = a != NULL && a->base == pointer && a->mapped == 0;
    if (ok)
        erase(a);
    pthread_mutex_unlock(&rt_lock);
    return rt_error(ok ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

GPUSIM_EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    RT_ENTER();
    pthread_mutex_lock(&rt_lock);
    size_t used = device_used[rt_device()];
    pthread_mutex_unlock(&rt_lock);
    if (free_bytes != NULL)
        *free_bytes = settings_get()->device_memory - used;
    if (total != NULL)
        *total = settings_get()->device_memory;
    return cudaSuccess;
}

/* Runtime API, cudaPointerGetAttributes: "In CUDA 11.0 forward passing host pointer will return
 * cudaMemoryTypeUnregistered in cudaPointerAttributes::type and call will return cudaSuccess". */
GPUSIM_EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    RT_ENTER();
    if (out == NULL)
        return rt_error(cudaErrorInvalidValue);
    gpusim_pointer at = psd_gpusim_pointer(pointer);
    memset(out, 0, sizeof *out);
    out->type = at.type;
    out->device = at.device;
    if (at.type != cudaMemoryTypeUnregistered)
        memcpy(&out->devicePointer, &pointer, sizeof pointer);
    if (at.type == cudaMemoryTypeHost)
        memcpy(&out->hostPointer, &pointer, sizeof pointer);
    return cudaSuccess;
}

/* ---- copies */

typedef struct copy {
    void *to;
    const void *from;
    void *staging; /* what was pageable memory; freed after */
    size_t bytes;
    int value; /* a fill, where from is NULL */
} copy;

static void run_copy(void *arg, bool device_ok)
{
    copy *c = arg;
    if (device_ok && c->from != NULL)
        memmove(c->to, c->from, c->bytes);
    else if (device_ok)
        memset(c->to, c->value, c->bytes);
    free(c->staging);
    free(c);
}

/* Queues the copy, which is freed on an error; `wait`: returns when it is done. */
static cudaError_t queue(copy *c, cudaStream_t handle, bool wait)
{
    rt_item what = {.run = run_copy, .arg = c};
    mark *done = NULL;
    pthread_mutex_lock(&rt_lock);
    struct CUstream_st *stream = rt_stream_find(handle, rt_device());
    int device = stream != NULL ? rt_stream_device(stream) : 0;
    cudaError_t error = stream == NULL ? cudaErrorInvalidResourceHandle : rt_submit(stream, &what, &done);
    if (wait && error == cudaSuccess) {
        rt_mark_wait(done);
        error = rt_device_error(device);
    }
    bool queued = done != NULL;
    rt_mark_put(done);
    pthread_mutex_unlock(&rt_lock);
    if (!queued) {
        free(c->staging);
        free(c);
    }
    return error;
}

static bool is_device(gpusim_pointer p)
{
    return p.type == cudaMemoryTypeDevice;
}

/* Runtime API, cudaMemcpy: pointers that do not match the direction are undefined behaviour; here an
 * error. */
static bool fits(gpusim_pointer to, gpusim_pointer from, size_t bytes, enum cudaMemcpyKind kind)
{
    if ((to.type != cudaMemoryTypeUnregistered && to.bytes < bytes) ||
        (from.type != cudaMemoryTypeUnregistered && from.bytes < bytes))
        return false;
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !is_device(to) && !is_device(from);
    case cudaMemcpyHostToDevice:
        return is_device(to) && !is_device(from);
    case cudaMemcpyDeviceToHost:
        return !is_device(to) && is_device(from);
    case cudaMemcpyDeviceToDevice:
        return is_device(to) && is_device(from);
    case cudaMemcpyDefault:
        return true;
    }
    return false;
}

/* Waits for what the stream has. */
static cudaError_t drain(cudaStream_t handle)
{
    rt_item nothing = {.run = NULL};
    mark *done = NULL;
    pthread_mutex_lock(&rt_lock);
    struct CUstream_st *stream = rt_stream_find(handle, rt_device());
    cudaError_t error = stream == NULL ? cudaErrorInvalidResourceHandle : rt_submit(stream, &nothing, &done);
    if (done != NULL)
        rt_mark_wait(done);
    rt_mark_put(done);
    pthread_mutex_unlock(&rt_lock);
    return error;
}

/* The source's bytes as they are now. */
static bool stage(copy *c)
{
    c->staging = malloc(c->bytes);
    if (c->staging == NULL)
        return false;
    memcpy(c->staging, c->from, c->bytes);
    c->from = c->staging;
    return true;
}

/* Runtime API, "API synchronization behavior", Memcpy. Asynchronous: from pageable memory, the source has
 * been copied to staging memory on return; to pageable memory, the function returns once the copy has
 * completed. Synchronous: from pageable memory, the stream is synchronized first, and on return the source
 * has been copied to staging memory "but the DMA to final destination may not have completed"; with
 * page-locked memory and to the host, it is complete; device to device, "no host-side synchronization is
 * performed". */
static cudaError_t copy_memory(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                               cudaStream_t stream, bool synchronous)
{
    gpusim_pointer target = psd_gpusim_pointer(to), source = psd_gpusim_pointer(from);
    bool is_staged = source.type == cudaMemoryTypeUnregistered && is_device(target);
    cudaError_t error = cudaSuccess;
    if (bytes == 0)
        return cudaSuccess;
    if (to == NULL || from == NULL || !fits(target, source, bytes, kind))
        return cudaErrorInvalidValue;
    copy *c = calloc(1, sizeof *c);
    if (c == NULL)
        return cudaErrorMemoryAllocation;
    *c = (copy){.to = to, .from = from, .bytes = bytes};
    if (is_staged && synchronous)
        error = drain(stream);
    if (error == cudaSuccess && is_staged && !stage(c))
        error = cudaErrorMemoryAllocation;
    if (error != cudaSuccess) {
        free(c);
        return error;
    }
    bool wait = target.type == cudaMemoryTypeUnregistered || (!is_device(target) && !is_device(source)) ||
                (synchronous && !is_staged && !(is_device(target) && is_device(source)));
    return queue(c, stream, wait);
}

GPUSIM_EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                          cudaStream_t stream)
{
    RT_ENTER();
    return rt_error(copy_memory(to, from, bytes, kind, stream, false));
}

GPUSIM_EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    RT_ENTER();
    return rt_error(copy_memory(to, from, bytes, kind, NULL, true));
}

/* Runtime API, "API synchronization behavior", Memset: asynchronous except on page-locked host memory. */
static cudaError_t fill_memory(void *to, int value, size_t bytes, cudaStream_t stream, bool synchronous)
{
    gpusim_pointer target = psd_gpusim_pointer(to);
    if (bytes == 0)
        return cudaSuccess;
    if (target.type == cudaMemoryTypeUnregistered || target.bytes < bytes)
        return cudaErrorInvalidValue;
    copy *c = calloc(1, sizeof *c);
    if (c == NULL)
        return cudaErrorMemoryAllocation;
    *c = (copy){.to = to, .bytes = bytes, .value = value};
    return queue(c, stream, synchronous && !is_device(target));
}

GPUSIM_EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    RT_ENTER();
    return rt_error(fill_memory(to, value, bytes, stream, false));
}

GPUSIM_EXPORT cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    RT_ENTER();
    return rt_error(fill_memory(to, value, bytes, NULL, true));
}
