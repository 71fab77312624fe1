/* Reduction loops for x86 processors with AVX2 and F16C, chosen when the program runs. The same results as
 * the portable ones: no fused multiply-add, the same order. (Two objects and a check, not target_clones: its
 * resolvers run before the sanitizers are ready.) */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "worker/backend/half.h"
#include "worker/backend/host/reduce_kernels.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC optimize("O3")
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define F16_LANES 8

static void f16_widen_f16c(float *dst, const void *src, size_t count)
{
    const unsigned char *from = src;
    size_t i = 0;
    for (; i + F16_LANES <= count; i += F16_LANES) {
        __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(from + 2 * i));
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(halves));
    }
    for (; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        dst[i] = f16_to_f32(half);
    }
}

static void f16_narrow_f16c(void *dst, const float *src, size_t count)
{
    unsigned char *to = dst;
    size_t i = 0;
    for (; i + F16_LANES <= count; i += F16_LANES) {
        __m128i halves =
            _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(to + 2 * i), halves);
    }
    for (; i < count; i++) {
        uint16_t half = f32_to_f16(src[i]);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

#define LINE_BYTES 64

/* Whole lines by stores that do not bring the line into the cache first. */
static void copy_streaming(void *dst, const void *src, size_t bytes)
{
    unsigned char *to = dst;
    const unsigned char *from = src;
    size_t head = (LINE_BYTES - (uintptr_t)to % LINE_BYTES) % LINE_BYTES;
    head = head < bytes ? head : bytes;
    memcpy(to, from, head);
    size_t i = head;
    for (; i + LINE_BYTES <= bytes; i += LINE_BYTES) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(from + i + LINE_BYTES / 2));
        _mm256_stream_si256((__m256i *)(void *)(to + i), low);
        _mm256_stream_si256((__m256i *)(void *)(to + i + LINE_BYTES / 2), high);
    }
    memcpy(to + i, from + i, bytes - i);
}

#define REDUCE_COPY       copy_streaming
#define REDUCE_KERNELS    static const reduce_kernels kernels
#define REDUCE_WIDEN_F16  f16_widen_f16c
#define REDUCE_NARROW_F16 f16_narrow_f16c
#include "worker/backend/host/reduce_loops.inc"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const reduce_kernels *reduce_kernels_avx2(void)
{
#ifdef __clang__
    /* clang 14 cannot ask for f16c; processors with AVX2 have it. */
    bool has_f16c = true;
#else
    bool has_f16c = __builtin_cpu_supports("f16c");
#endif
    return has_f16c && __builtin_cpu_supports("avx2") ? &kernels : NULL;
}

#else

#include "worker/backend/host/reduce_kernels.h"

const reduce_kernels *reduce_kernels_avx2(void)
{
    return NULL;
}

#endif
