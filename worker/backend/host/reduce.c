/* Reductions: cuts the data into blocks that stay in the first-level cache and runs the kernels over all
 * inputs of a block, so that every input is read once and the result written once. */
#include "worker/backend/host/reduce.h"

#include <string.h>

#include "worker/backend/host/reduce_kernels.h"

#define BLOCK_BYTES  4096
#define BLOCK_FLOATS (BLOCK_BYTES / sizeof(float))

static const reduce_kernels *kernels(void)
{
    const reduce_kernels *fast = reduce_kernels_avx2();
    return fast != NULL ? fast : &reduce_kernels_portable;
}

/* One block, native types: the running result stays in `partial` until the last step, as dst may be an input
 * of a later step. */
static void reduce_block(reduce_step *const *steps, size_t element, void *dst, const void *const *in,
                         int32_t n, size_t at, size_t count)
{
    unsigned char partial[BLOCK_BYTES] __attribute__((aligned(64)));
    const void *inputs[REDUCE_STEP_INPUTS];
    int32_t used = 0, next = 0;
    while (next < n) {
        while (used < REDUCE_STEP_INPUTS && next < n)
            inputs[used++] = (const unsigned char *)in[next++] + at * element;
        void *to = next == n ? (unsigned char *)dst + at * element : partial;
        steps[used - 2](to, inputs, count);
        inputs[0] = partial;
        used = 1;
    }
}

static void reduce_native(const reduce_kernels *k, psd_dtype dtype, psd_redop redop, void *dst,
                          const void *const *in, int32_t n, size_t count)
{
    size_t element = psd_dtype_bytes(dtype), block = BLOCK_BYTES / element;
    reduce_step *const *steps = k->step[dtype][redop == PSD_AVG ? PSD_SUM : redop];
    for (size_t at = 0; at < count; at += block) {
        size_t length = count - at < block ? count - at : block;
        reduce_block(steps, element, dst, in, n, at, length);
        if (redop == PSD_AVG)
            k->divide[dtype]((unsigned char *)dst + at * element, n, length);
    }
}

static void reduce_half(const reduce_kernels *k, psd_dtype dtype, psd_redop redop, void *dst,
                        const void *const *in, int32_t n, size_t count)
{
    float sum[BLOCK_FLOATS] __attribute__((aligned(64))), next[BLOCK_FLOATS] __attribute__((aligned(64)));
    const void *pair[2] = {sum, next};
    size_t element = psd_dtype_bytes(dtype);
    reduce_step *step = k->step[PSD_F32][redop == PSD_AVG ? PSD_SUM : redop][0];
    for (size_t at = 0; at < count; at += BLOCK_FLOATS) {
        size_t length = count - at < BLOCK_FLOATS ? count - at : BLOCK_FLOATS;
        k->widen[dtype](sum, (const unsigned char *)in[0] + at * element, length);
        for (int32_t i = 1; i < n; i++) {
            k->widen[dtype](next, (const unsigned char *)in[i] + at * element, length);
            step(sum, pair, length);
        }
        if (redop == PSD_AVG)
            k->divide[PSD_F32](sum, n, length);
        k->narrow[dtype]((unsigned char *)dst + at * element, sum, length);
    }
}

void reduce_n(psd_dtype dtype, psd_redop redop, void *dst, const void *const *in, int32_t n, size_t count)
{
    const reduce_kernels *k = kernels();
    if (count == 0)
        return;
    if (n == 1)
        memmove(dst, in[0], count * psd_dtype_bytes(dtype));
    else if (k->widen[dtype] != NULL)
        reduce_half(k, dtype, redop, dst, in, n, count);
    else
        reduce_native(k, dtype, redop, dst, in, n, count);
}
