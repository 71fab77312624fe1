/* Loops of reduce.c: what a set of kernels is. reduce_loops.inc is compiled once for each instruction set, by
 * reduce_portable.c and reduce_avx2.c. */
#ifndef PSD_HOST_REDUCE_KERNELS_H
#define PSD_HOST_REDUCE_KERNELS_H

#include <stdbool.h>

#include "common/tensor.h"

/* dst[i] = in[0][i] op ... in[inputs-1][i]; dst may be one of the inputs. */
typedef void reduce_step(void *dst, const void *const *in, size_t count);
typedef void reduce_divide(void *dst, int32_t divisor, size_t count);
typedef void reduce_widen(float *dst, const void *src, size_t count);
typedef void reduce_narrow(void *dst, const float *src, size_t count);

#define REDUCE_STEP_INPUTS 4 /* most inputs of one step */
#define REDUCE_DTYPES      (PSD_F8E5M2 + 1)
#define REDUCE_OPS         (PSD_BXOR + 1)

typedef void reduce_copy(void *dst, const void *src, size_t bytes);

typedef struct reduce_kernels {
    /* By dtype, redop and inputs - 2; NULL for pairs that are not legal, for avg (a sum, then a division),
     * and for the halves, which are widened. */
    reduce_step *step[REDUCE_DTYPES][REDUCE_OPS][REDUCE_STEP_INPUTS - 1];
    reduce_divide *divide[REDUCE_DTYPES];
    reduce_widen *widen[REDUCE_DTYPES]; /* f16 and bf16 */
    reduce_narrow *narrow[REDUCE_DTYPES];
    reduce_copy *copy_past_cache; /* memcpy where there is no such store. Not ordered by itself. */
} reduce_kernels;

extern const reduce_kernels reduce_kernels_portable;
/* NULL where this processor has no AVX2 and F16C, or is no x86. */
const reduce_kernels *reduce_kernels_avx2(void);

#endif
