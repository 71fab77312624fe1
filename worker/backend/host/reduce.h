/* The arithmetic of reductions, over any number of inputs in one pass. */
#ifndef PSD_HOST_REDUCE_H
#define PSD_HOST_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/psd_types.h"

/* dst[i] = in[0][i] op in[1][i] op ... in[n-1][i], in this order, for `count` elements and n >= 1. dst may be
 * one of the inputs, but not overlap one otherwise; nothing needs alignment. dtype and redop are a legal pair
 * (psd_redop_allowed).
 *
 * f16 and bf16 are reduced in f32 and rounded once. Integers wrap in their own width, also under avg, whose
 * quotient is truncated toward zero (as NCCL does). avg divides by n at the end. min and max give NaN if any
 * input is NaN (as PyTorch does); of -0 and +0 they take the last. The bits do not depend on the machine's
 * vector instructions, those of NaN payloads excepted. */
void reduce_n(psd_dtype dtype, psd_redop redop, void *dst, const void *const *in, int32_t n, size_t count);

/* Where a result goes. Past the cache: for memory that is not in it and will not be wanted soon. */
typedef struct reduce_target {
    void *data;
    bool past_cache;
} reduce_target;

/* The same, to several places (1 or more): each a copy of the same bits. Any of them may be one of the inputs. */
void reduce_spread(psd_dtype dtype, psd_redop redop, const reduce_target *to, int32_t targets,
                   const void *const *in, int32_t n, size_t count);

/* memcpy, to memory that is not in the cache and will not be wanted soon. */
void copy_past_cache(void *dst, const void *src, size_t bytes);

/* Is so much memory, all that an operation touches, more than a cache keeps until the operation is over? */
bool exceeds_cache(uint64_t bytes);

#endif
