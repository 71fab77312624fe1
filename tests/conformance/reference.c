/* See reference.h. */
#include "tests/conformance/reference.h"

#include <math.h>
#include <string.h>

struct dtype_row {
    const char *name;
    size_t bytes;
    bool reduces;
};

static const struct dtype_row rows[] = {
#define PSD_X(name, value, text, size, reduces) [value] = {text, size, reduces},
    PSD_DTYPE_MAP(PSD_X)
#undef PSD_X
};

size_t ref_bytes(psd_dtype dtype)
{
    return rows[dtype].bytes;
}

const char *ref_name(psd_dtype dtype)
{
    return (int)dtype == 0 ? "-" : rows[dtype].name;
}

bool ref_is_float(psd_dtype dtype)
{
    return dtype == PSD_F16 || dtype == PSD_BF16 || dtype == PSD_F32 || dtype == PSD_F64;
}

bool ref_reduces(psd_dtype dtype, psd_redop redop)
{
    bool bits = redop == PSD_BAND || redop == PSD_BOR || redop == PSD_BXOR;
    return rows[dtype].reduces && !(bits && ref_is_float(dtype));
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t noise(uint64_t seed, int32_t rank, int64_t i)
{
    return mix(mix(seed * 1000003 + (uint64_t)rank) + (uint64_t)i);
}

/* ---- numbers to bytes and back */

static uint16_t encode_half(double value, int mantissa_bits, int bias)
{
    int exponent = 0;
    if (value == 0)
        return 0;
    (void)frexp(value, &exponent);
    double units = nearbyint(ldexp(fabs(value), mantissa_bits - (exponent - 1)));
    unsigned bits = (unsigned)((exponent - 2 + bias) << mantissa_bits) + (unsigned)units;
    return (uint16_t)(bits | (value < 0 ? 0x8000u : 0u));
}

static double decode_half(uint16_t bits, int mantissa_bits, int bias)
{
    int exponent = (bits & 0x7fff) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    double value = exponent == 0 ? ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -value : value;
}

static void put_float(psd_dtype dtype, double value, unsigned char *to)
{
    float single = (float)value;
    uint16_t half = dtype == PSD_F16 ? encode_half(value, 10, 15) : encode_half(value, 7, 127);
    if (dtype == PSD_F64)
        memcpy(to, &value, sizeof value);
    else if (dtype == PSD_F32)
        memcpy(to, &single, sizeof single);
    else
        memcpy(to, &half, sizeof half);
}

static double get_float(psd_dtype dtype, const unsigned char *from)
{
    double value;
    float single;
    uint16_t half;
    if (dtype == PSD_F64)
        return memcpy(&value, from, sizeof value), value;
    if (dtype == PSD_F32)
        return memcpy(&single, from, sizeof single), (double)single;
    memcpy(&half, from, sizeof half);
    return dtype == PSD_F16 ? decode_half(half, 10, 15) : decode_half(half, 7, 127);
}

/* Low bytes; the machines that psd runs on are little-endian. */
static void put_integer(psd_dtype dtype, uint64_t value, unsigned char *to)
{
    memcpy(to, &value, ref_bytes(dtype));
}

/* The number that the low bits mean in this type. */
static int64_t as_signed(psd_dtype dtype, uint64_t bits)
{
    switch (dtype) {
    case PSD_I8:
        return (int8_t)bits;
    case PSD_U8:
        return (uint8_t)bits;
    case PSD_I32:
        return (int32_t)bits;
    case PSD_U32:
        return (uint32_t)bits;
    default:
        return (int64_t)bits;
    }
}

/* ---- inputs */

static double float_input(psd_redop redop, uint64_t seed, int32_t rank, int64_t i)
{
    static const double factors[] = {1, -1, 2, -0.5, 0.5, -2};
    uint64_t bits = noise(seed, rank, i);
    return redop == PSD_PROD ? factors[bits % 6] : ((double)(bits % 65) - 32) / 4;
}

void ref_input(psd_dtype dtype, psd_redop redop, uint64_t seed, int32_t rank, void *period)
{
    unsigned char *to = period;
    for (int64_t i = 0; i < REF_PERIOD; i++, to += ref_bytes(dtype)) {
        if (ref_is_float(dtype))
            put_float(dtype, float_input(redop, seed, rank, i), to);
        else
            put_integer(dtype, noise(seed, rank, i) & (dtype == PSD_BOOL ? 1u : ~UINT64_C(0)), to);
    }
}

float ref_rough(uint64_t seed, int32_t rank, int64_t i)
{
    return (float)(int64_t)(noise(seed, rank, i) % 2000003) / 700001.0f - 1.3f;
}

/* ---- reductions */

static double reduce_floats(psd_redop redop, uint64_t seed, int32_t n, int64_t i)
{
    double a = float_input(redop, seed, 0, i);
    for (int32_t rank = 1; rank < n; rank++) {
        double b = float_input(redop, seed, rank, i);
        if (redop == PSD_PROD)
            a *= b;
        else if (redop == PSD_MIN)
            a = b < a ? b : a;
        else if (redop == PSD_MAX)
            a = b > a ? b : a;
        else
            a += b;
    }
    return redop == PSD_AVG ? a / n : a;
}

static uint64_t reduce_pair(psd_dtype dtype, psd_redop redop, uint64_t a, uint64_t b)
{
    bool less = dtype == PSD_U64 ? a < b : as_signed(dtype, a) < as_signed(dtype, b);
    switch (redop) {
    case PSD_PROD:
        return a * b;
    case PSD_MIN:
        return less ? a : b;
    case PSD_MAX:
        return less ? b : a;
    case PSD_BAND:
        return a & b;
    case PSD_BOR:
        return a | b;
    case PSD_BXOR:
        return a ^ b;
    case PSD_SUM:
    case PSD_AVG:
        break;
    }
    return a + b;
}

/* Sums and products of the low bits do not depend on the high ones, so the wrapping can wait. */
static uint64_t reduce_integers(psd_dtype dtype, psd_redop redop, uint64_t seed, int32_t n, int64_t i)
{
    uint64_t a = noise(seed, 0, i);
    for (int32_t rank = 1; rank < n; rank++)
        a = reduce_pair(dtype, redop, a, noise(seed, rank, i));
    if (redop != PSD_AVG)
        return a;
    return dtype == PSD_U64 ? a / (uint64_t)n : (uint64_t)(as_signed(dtype, a) / n);
}

void ref_reduced(psd_dtype dtype, psd_redop redop, uint64_t seed, int32_t n, void *period)
{
    unsigned char *to = period;
    for (int64_t i = 0; i < REF_PERIOD; i++, to += ref_bytes(dtype)) {
        if (ref_is_float(dtype))
            put_float(dtype, reduce_floats(redop, seed, n, i), to);
        else
            put_integer(dtype, reduce_integers(dtype, redop, seed, n, i), to);
    }
}

/* ---- patterns in memory */

/* Elements from pattern element `start` to the end of its period, at most `count`. */
static int64_t run_length(int64_t start, int64_t count)
{
    int64_t left = REF_PERIOD - start % REF_PERIOD;
    return left < count ? left : count;
}

void ref_fill(psd_dtype dtype, const void *period, int64_t start, int64_t count, void *to)
{
    size_t bytes = ref_bytes(dtype);
    unsigned char *at = to;
    while (count > 0) {
        int64_t length = run_length(start, count);
        memcpy(at, (const unsigned char *)period + (size_t)(start % REF_PERIOD) * bytes,
               (size_t)length * bytes);
        at += (size_t)length * bytes;
        start += length;
        count -= length;
    }
}

/* Relative size of one unit in the last place, at most. */
static double unit(psd_dtype dtype)
{
    return dtype == PSD_F16 ? 0x1p-10 : dtype == PSD_BF16 ? 0x1p-7 : dtype == PSD_F32 ? 0x1p-23 : 0x1p-52;
}

static bool is_near(psd_dtype dtype, const unsigned char *want, const unsigned char *got)
{
    double a = get_float(dtype, want), b = get_float(dtype, got);
    return fabs(a - b) <= fabs(a) * unit(dtype);
}

int64_t ref_differs(psd_dtype dtype, psd_redop redop, const void *period, int64_t start, int64_t count,
                    const void *data)
{
    size_t bytes = ref_bytes(dtype);
    bool may_be_near = redop == PSD_AVG && ref_is_float(dtype);
    const unsigned char *got = data;
    for (int64_t at = 0; at < count;) {
        int64_t length = run_length(start + at, count - at);
        const unsigned char *want =
            (const unsigned char *)period + (size_t)((start + at) % REF_PERIOD) * bytes;
        if (memcmp(want, got, (size_t)length * bytes) != 0) {
            for (int64_t i = 0; i < length; i++) {
                const unsigned char *w = want + (size_t)i * bytes, *g = got + (size_t)i * bytes;
                if (memcmp(w, g, bytes) != 0 && !(may_be_near && is_near(dtype, w, g)))
                    return at + i;
            }
        }
        at += length;
        got += (size_t)length * bytes;
    }
    return -1;
}
