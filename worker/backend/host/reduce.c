/* Reductions: cuts the data into blocks that stay in the first-level cache and runs the kernels over all
 * inputs of a block, so that every input is read once and the result written once. */
#include "worker/backend/host/reduce.h"

#include <string.h>
#include <unistd.h>

#include "worker/backend/host/reduce_kernels.h"

#define BLOCK_BYTES 4096
/* Past the cache in shorter ones, so that loads of the next go beside the stores of one: memory is slow to turn. */
#define PAST_BYTES   512
#define LINE_BYTES   64
#define BLOCK_FLOATS (BLOCK_BYTES / sizeof(float))
/* What a last-level cache may be taken for: those of many cores are in parts, and a virtual machine tells anything. */
#define CACHE_LEAST ((uint64_t)8 << 20)
#define CACHE_MOST  ((uint64_t)32 << 20)

static const reduce_kernels *kernels(void)
{
    const reduce_kernels *fast = reduce_kernels_avx2();
    return fast != NULL ? fast : &reduce_kernels_portable;
}

/* One block, native types, to dst: the running result stays in `partial` until the last step, as dst may be an input
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
        void *to = next == n ? dst : partial;
        steps[used - 2](to, inputs, count);
        inputs[0] = partial;
        used = 1;
    }
}

/* What is reduced, and with which loops. */
typedef struct reduction {
    const reduce_kernels *k;
    psd_dtype dtype;
    psd_redop redop;
    const void *const *in;
    int32_t n;
    size_t element;
} reduction;

static void native_block(const reduction *r, void *to, size_t at, size_t count)
{
    reduce_step *const *steps = r->k->step[r->dtype][r->redop == PSD_AVG ? PSD_SUM : r->redop];
    reduce_block(steps, r->element, to, r->in, r->n, at, count);
    if (r->redop == PSD_AVG)
        r->k->divide[r->dtype](to, r->n, count);
}

static void half_block(const reduction *r, void *to, size_t at, size_t count)
{
    float sum[BLOCK_FLOATS] __attribute__((aligned(64))), next[BLOCK_FLOATS] __attribute__((aligned(64)));
    const void *pair[2] = {sum, next};
    const reduce_kernels *k = r->k;
    reduce_step *step = k->step[PSD_F32][r->redop == PSD_AVG ? PSD_SUM : r->redop][0];
    k->widen[r->dtype](sum, (const unsigned char *)r->in[0] + at * r->element, count);
    for (int32_t i = 1; i < r->n; i++) {
        k->widen[r->dtype](next, (const unsigned char *)r->in[i] + at * r->element, count);
        step(sum, pair, count);
    }
    if (r->redop == PSD_AVG)
        k->divide[PSD_F32](sum, r->n, count);
    k->narrow[r->dtype](to, sum, count);
}

/* Elements [at, at + count), no more than a block of them. */
static void any_block(const reduction *r, void *to, size_t at, size_t count)
{
    if (r->n == 1)
        memmove(to, (const unsigned char *)r->in[0] + at * r->element, count * r->element);
    else if (r->k->widen[r->dtype] != NULL)
        half_block(r, to, at, count);
    else
        native_block(r, to, at, count);
}

static size_t block_elements(const reduction *r)
{
    return r->k->widen[r->dtype] != NULL ? BLOCK_FLOATS : BLOCK_BYTES / r->element;
}

void reduce_n(psd_dtype dtype, psd_redop redop, void *dst, const void *const *in, int32_t n, size_t count)
{
    reduction r = {kernels(), dtype, redop, in, n, psd_dtype_bytes(dtype)};
    if (count == 0)
        return;
    if (n == 1) {
        memmove(dst, in[0], count * r.element);
        return;
    }
    size_t block = block_elements(&r);
    for (size_t at = 0; at < count; at += block)
        any_block(&r, (unsigned char *)dst + at * r.element, at, count - at < block ? count - at : block);
}

static unsigned char *target_at(const reduce_target *to, size_t at)
{
    return (unsigned char *)to->data + at;
}

/* The lines of a block that comes next. */
static void prefetch(const reduction *r, size_t at, size_t count)
{
    for (int32_t i = 0; i < r->n; i++) {
        const unsigned char *from = (const unsigned char *)r->in[i] + at * r->element;
        for (size_t line = 0; line < count * r->element; line += LINE_BYTES)
            __builtin_prefetch(from + line);
    }
}

/* Stores past the cache are not ordered by themselves: what tells others of them comes after. */
static void order_stores(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

void reduce_spread(psd_dtype dtype, psd_redop redop, const reduce_target *to, int32_t targets,
                   const void *const *in, int32_t n, size_t count)
{
    unsigned char block_of_none[BLOCK_BYTES] __attribute__((aligned(64)));
    reduction r = {kernels(), dtype, redop, in, n, psd_dtype_bytes(dtype)};
    size_t block = block_elements(&r);
    int32_t first = 0; /* the target that is computed into */
    while (first < targets && to[first].past_cache)
        first++;
    bool goes_past = first == targets;
    block = goes_past ? PAST_BYTES / r.element : block;
    for (size_t at = 0; at < count; at += block) {
        size_t length = count - at < block ? count - at : block;
        if (goes_past && count - at >= 2 * block)
            prefetch(&r, at + block, block);
        size_t offset = at * r.element, bytes = length * r.element;
        unsigned char *result = first < targets ? target_at(&to[first], offset) : block_of_none;
        any_block(&r, result, at, length);
        for (int32_t i = 0; i < targets; i++) {
            if (to[i].past_cache)
                r.k->copy_past_cache(target_at(&to[i], offset), result, bytes);
            else if (i != first)
                memcpy(target_at(&to[i], offset), result, bytes);
        }
    }
    order_stores();
}

void copy_past_cache(void *dst, const void *src, size_t bytes)
{
    kernels()->copy_past_cache(dst, src, bytes);
    order_stores();
}

bool exceeds_cache(uint64_t bytes)
{
    static _Atomic uint64_t known;
    uint64_t cache = known;
    if (cache == 0) {
        long told = sysconf(_SC_LEVEL3_CACHE_SIZE);
        cache = told < (long)CACHE_LEAST ? CACHE_LEAST : (uint64_t)told;
        cache = cache > CACHE_MOST ? CACHE_MOST : cache;
        known = cache;
    }
    return bytes > cache;
}
