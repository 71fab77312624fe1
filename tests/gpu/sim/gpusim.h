/* What the simulated libcudart offers the simulated libnccl beyond the CUDA API: kernels on streams, and what
 * a pointer is. Real NCCL reaches the same things through the driver. */
#ifndef PSD_GPUSIM_H
#define PSD_GPUSIM_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

#define GPUSIM_EXPORT __attribute__((visibility("default")))

/* Completion of one queued item. Counted references. */
typedef struct mark mark;

/* A kernel: runs on the stream's own thread and may block there; it owns `arg`. With device_ok false the
 * device has failed: free and return. */
typedef void (*gpusim_kernel)(void *arg, bool device_ok);

/* Queues one kernel behind everything queued before on all `count` streams (of `device`; NULL is its default
 * stream) and behind `after` (may be NULL); what is queued later on any of them waits for it. *out is a
 * reference to its completion. cudaErrorInvalidResourceHandle: a stream that does not exist or is another
 * device's. Does not block. On an error `arg` stays the caller's. */
GPUSIM_EXPORT cudaError_t psd_gpusim_launch(int device, const cudaStream_t *streams, int count, mark *after,
                                            gpusim_kernel kernel, void *arg, mark **out);

GPUSIM_EXPORT void psd_gpusim_mark_wait(mark *m);
GPUSIM_EXPORT mark *psd_gpusim_mark_get(mark *m);
GPUSIM_EXPORT void psd_gpusim_mark_put(mark *m); /* accepts NULL */

typedef struct gpusim_pointer {
    enum cudaMemoryType type;
    int device;
    size_t bytes; /* from the pointer to the end of its allocation */
} gpusim_pointer;

GPUSIM_EXPORT gpusim_pointer psd_gpusim_pointer(const void *pointer);

/* The device fails: this and every later call of this process on it returns `error` (as after an illegal
 * address in a kernel). */
GPUSIM_EXPORT void psd_gpusim_device_fail(int device, cudaError_t error);

/* Is this thread inside a function given to cudaLaunchHostFunc? */
GPUSIM_EXPORT bool psd_gpusim_in_host_func(void);

#endif
