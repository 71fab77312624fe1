/* What the operations must give, by plain serial arithmetic on doubles and 64-bit integers. Shares no code
 * with libpsd: of its headers only the names of types.
 *
 * Input is periodic: element i of a rank's input is element i mod REF_PERIOD of that rank's period, which
 * depends on the seed of the test. The period is a prime, so data that lands in the wrong place does not look
 * right. */
#ifndef PSD_CONFORMANCE_REFERENCE_H
#define PSD_CONFORMANCE_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "psd_types.h"

#define REF_PERIOD 509

#define REF_DTYPES 15 /* codes 1 to 15 */

size_t ref_bytes(psd_dtype dtype);
const char *ref_name(psd_dtype dtype);
bool ref_is_float(psd_dtype dtype); /* f16, bf16, f32, f64 */
bool ref_reduces(psd_dtype dtype, psd_redop redop);

/* One period of a rank's input. Floats are quarters of small integers (for prod: powers of two), so that sums
 * and products of eight ranks are exact in every type; integers are any bits, and wrap. redop 0: only moved.
 */
void ref_input(psd_dtype dtype, psd_redop redop, uint64_t seed, int32_t rank, void *period);

/* One period of the reduction of ranks 0 to n-1. */
void ref_reduced(psd_dtype dtype, psd_redop redop, uint64_t seed, int32_t n, void *period);

/* Copies `count` elements of the pattern, from its element `start` on. */
void ref_fill(psd_dtype dtype, const void *period, int64_t start, int64_t count, void *to);

/* The first element that differs from the pattern; -1 if none. The average of floats may be off by one in the
 * last place. */
int64_t ref_differs(psd_dtype dtype, psd_redop redop, const void *period, int64_t start, int64_t count,
                    const void *data);

/* Any float bits whose sums round, for the test that all ranks get the same ones. */
float ref_rough(uint64_t seed, int32_t rank, int64_t i);

#endif
