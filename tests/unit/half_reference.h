/* f16 and bf16 by arithmetic on doubles: written apart from worker/backend/half.h, to check it. */
#ifndef PSD_TEST_HALF_REFERENCE_H
#define PSD_TEST_HALF_REFERENCE_H

#include <math.h>
#include <stdint.h>

typedef struct half_format {
    int mantissa_bits;
    int bias;
} half_format;

static const half_format half_f16 = {10, 15}, half_bf16 = {7, 127};

static inline double half_decode(half_format f, uint16_t bits)
{
    int exponent_bits = 15 - f.mantissa_bits, most = (1 << exponent_bits) - 1;
    int exponent = bits >> f.mantissa_bits & most, mantissa = bits & ((1 << f.mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == most)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
    return sign * ldexp(mantissa + (1 << f.mantissa_bits), exponent - f.bias - f.mantissa_bits);
}

/* Rounds to nearest, ties to even (nearbyint's default). NaN becomes the quiet NaN without payload. */
static inline uint16_t half_encode(half_format f, double value)
{
    int most = (1 << (15 - f.mantissa_bits)) - 1, exponent = 0;
    unsigned sign = signbit(value) ? 0x8000u : 0u;
    unsigned infinity = (unsigned)most << f.mantissa_bits;
    if (isnan(value))
        return (uint16_t)(infinity | 1u << (f.mantissa_bits - 1));
    if (isinf(value))
        return (uint16_t)(sign | infinity);
    (void)frexp(value, &exponent);
    exponent = value == 0 || exponent - 1 < 1 - f.bias ? 1 - f.bias : exponent - 1;
    /* In units of the last place; a carry into the next power of two carries into the exponent field by
     * itself. */
    double units = nearbyint(ldexp(fabs(value), f.mantissa_bits - exponent));
    unsigned implied =
        units >= (1 << f.mantissa_bits) ? (unsigned)(exponent + f.bias - 1) << f.mantissa_bits : 0u;
    unsigned bits = implied + (unsigned)units;
    return (uint16_t)(sign | (bits > infinity ? infinity : bits));
}

#endif
