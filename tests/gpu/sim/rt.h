/* Inside the simulated libcudart. One mutex guards streams, events, marks and allocations of the process; it
 * is never held while a copy, a kernel or a host function runs. */
#ifndef PSD_GPUSIM_RT_H
#define PSD_GPUSIM_RT_H

#include <pthread.h>
#include <stdint.h>

#include "gpusim.h"
#include "settings.h"

#define RT_MAX_DEVICES 64

extern pthread_mutex_t rt_lock;
extern pthread_cond_t rt_changed; /* some mark is done */

/* ---- rt_device.c: what every call begins with */

/* The error that a call in this thread must return now, if any. Not recorded. */
cudaError_t rt_enter(void);
/* Records a call's error for cudaGetLastError and returns it. */
cudaError_t rt_error(cudaError_t error);
int rt_device(void);       /* the thread's current device */
int rt_device_count(void); /* that this process sees */

#define RT_ENTER()                                                                                           \
    do {                                                                                                     \
        cudaError_t enter_ = rt_enter();                                                                     \
        if (enter_ != cudaSuccess)                                                                           \
            return rt_error(enter_);                                                                         \
    } while (0)

/* The error that a failed device gives, or cudaSuccess. */
cudaError_t rt_device_error(int device);

/* ---- rt_stream.c */

struct mark {
    int refs;
    bool done;
    int64_t done_ns;
};

/* All under rt_lock. */
mark *rt_mark_new(void);
mark *rt_mark_get(mark *m); /* one more reference; accepts NULL */
void rt_mark_put(mark *m);
void rt_mark_wait(mark *m);

/* The stream behind a handle, with the default streams resolved for `device`; NULL: there is none. */
struct CUstream_st *rt_stream_find(cudaStream_t handle, int device);
int rt_stream_device(const struct CUstream_st *stream);
/* Completion of everything queued so far, or NULL when that is nothing. Borrowed. */
mark *rt_stream_tail(const struct CUstream_st *stream);

typedef struct rt_item {
    gpusim_kernel run; /* NULL: nothing but the waiting */
    void *arg;
    bool host_func;
    mark **after; /* references, count of them; copied with references of its own */
    int after_count;
} rt_item;

/* Queues; *out (may be NULL) gets a reference. cudaErrorMemoryAllocation, or cudaErrorUnknown without a
 * thread. */
cudaError_t rt_submit(struct CUstream_st *stream, const rt_item *item, mark **out);

/* Waits for all streams of the device. Under rt_lock. */
void rt_device_wait(int device);

#endif
