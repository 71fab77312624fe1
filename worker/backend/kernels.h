/* Kernels of a device behind a table of C functions: what psd computes itself in device memory. The table is
 * exported by a shared object that the backend opens at run time: psd_kernels.so (nvcc), or one for the device
 * simulator, which runs elements.c on its stream thread.
 *
 * Every function queues its work on a stream of the device and returns at once: 0, or the runtime's error code
 * (cudaError_t). Pointers are of that device. Data are f32, f16 and bf16; sums are made in f32 in rank order and
 * rounded once. One pass over memory, in accesses of 16 bytes where all pointers and strides are multiples of 16;
 * elsewhere element by element. The same inputs give the same bits as elements_*() on the processor. */
#ifndef PSD_KERNELS_H
#define PSD_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/psd_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PSD_KERNELS_ABI 1

/* g = grads[0][i] + grads[1][i] + ... in this order, divided by n if `average`; then master -= lr * g, or
 * velocity = momentum * velocity + g and master -= lr * velocity. `copy` gets the new parameters, rounded.
 * Bytes per element: 4n + 8, with velocity 4n + 16, and with a copy 2 (f16, bf16) or 4 more. */
typedef struct psd_kernel_update {
    float *master;
    float *velocity;    /* NULL: plain SGD */
    const float *grads; /* the first of n, each `stride` elements behind the one before */
    int32_t n;
    int64_t stride;
    void *copy; /* NULL: none */
    psd_dtype copy_dtype;
    float lr;
    float momentum;
    bool average;
    int64_t count;
} psd_kernel_update;

/* dst[i] = in[0][i] + in[1][i] + ... Bytes per element: (n + 1) times the dtype's. */
typedef struct psd_kernel_sum {
    void *dst;
    const void *in; /* the first of n, each `stride` elements behind the one before */
    int32_t n;
    int64_t stride;
    psd_dtype dtype;
    int64_t count;
} psd_kernel_sum;

/* Bytes per element: those of both dtypes. */
typedef struct psd_kernel_cast {
    void *dst;
    const void *src;
    psd_dtype to;
    psd_dtype from;
    int64_t count;
} psd_kernel_cast;

/* *out = the sum of the squares, in f64 and an order of its own that depends on `count` alone. Bytes per
 * element: the dtype's. */
typedef struct psd_kernel_norm {
    const void *in;
    psd_dtype dtype;
    int64_t count;
    double *scratch; /* psd_kernel_norm_scratch(count) of them */
    double *out;
} psd_kernel_norm;

static inline int64_t psd_kernel_norm_scratch(int64_t count)
{
    return count / 8192 + 1;
}

/* Packs a box of a row-major array into contiguous memory, or unpacks it. Any dtype. Bytes per element: twice
 * the element's. */
typedef struct psd_kernel_box {
    void *array;                  /* its element at the box's first corner */
    void *packed;                 /* contiguous */
    bool pack;                    /* array to packed; else packed to array */
    size_t element;               /* bytes: 1, 2, 4 or 8 */
    int32_t ndim;                 /* 1 to PSD_MAX_DIMS */
    int64_t extent[PSD_MAX_DIMS]; /* of the box */
    int64_t stride[PSD_MAX_DIMS]; /* of the array, elements; 1 in the last dimension */
} psd_kernel_box;

typedef struct psd_kernels {
    uint32_t abi;
    const char *name; /* "cuda", or "simulator" */
    int (*update)(int32_t device, const psd_kernel_update *args, void *stream);
    int (*sum)(int32_t device, const psd_kernel_sum *args, void *stream);
    int (*cast)(int32_t device, const psd_kernel_cast *args, void *stream);
    int (*sum_squares)(int32_t device, const psd_kernel_norm *args, void *stream);
    int (*box)(int32_t device, const psd_kernel_box *args, void *stream);
    const char *(*error_text)(int error);
} psd_kernels;

/* The same on the processor, in host memory. */
void elements_update(const psd_kernel_update *args);
void elements_sum(const psd_kernel_sum *args);
void elements_cast(const psd_kernel_cast *args);
void elements_sum_squares(const psd_kernel_norm *args);
void elements_box(const psd_kernel_box *args);

/* A box in the largest units that fit its shape and both addresses, with neighbouring dimensions joined. */
struct element_box;
void element_box_make(const psd_kernel_box *args, struct element_box *out);

#ifdef __cplusplus
}
#endif
#endif
