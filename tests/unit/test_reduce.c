/* reduce_n and the conversions of f16 and bf16, against references of doubles and of integers. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "tests/unit/half_reference.h"
#include "worker/backend/half.h"
#include "worker/backend/host/reduce.h"
#include "worker/backend/host/reduce_kernels.h"

#define MAX_INPUTS 9
#define MAX_COUNT  2100

static uint64_t seed = 88172645463325252u;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static bool same_half(uint16_t a, uint16_t b, uint16_t infinity)
{
    bool a_nan = (a & 0x7fff) > infinity, b_nan = (b & 0x7fff) > infinity;
    return a_nan || b_nan ? a_nan && b_nan : a == b;
}

PSD_TEST(half, every_value_widens_exactly_and_comes_back)
{
    for (uint32_t i = 0; i <= 0xffff; i++) {
        uint16_t bits = (uint16_t)i;
        double f16 = half_decode(half_f16, bits), bf16 = half_decode(half_bf16, bits);
        if (isnan(f16)) {
            cr_assert(isnan(f16_to_f32(bits)), "%x", i);
            cr_assert_eq(f32_to_f16(f16_to_f32(bits)), bits | 0x0200, "%x", i);
        } else {
            cr_assert(f16_to_f32(bits) == (float)f16 && !signbit(f16_to_f32(bits)) == !signbit(f16), "%x", i);
            cr_assert_eq(f32_to_f16(f16_to_f32(bits)), bits, "%x", i);
        }
        if (isnan(bf16)) {
            cr_assert_eq(f32_to_bf16(bf16_to_f32(bits)), bits | 0x0040, "%x", i);
        } else {
            cr_assert(bf16_to_f32(bits) == (float)bf16, "%x", i);
            cr_assert_eq(f32_to_bf16(bf16_to_f32(bits)), bits, "%x", i);
        }
    }
}

static void narrows_as_reference(float value)
{
    cr_assert(same_half(f32_to_f16(value), half_encode(half_f16, (double)value), 0x7c00), "f16 of %a",
              (double)value);
    cr_assert(same_half(f32_to_bf16(value), half_encode(half_bf16, (double)value), 0x7f80), "bf16 of %a",
              (double)value);
}

PSD_TEST(half, rounds_to_nearest_even)
{
    for (uint32_t i = 0; i <= 0xffff; i++) {
        /* Around each value, each middle between two, and their neighbours in f32. */
        for (uint32_t low = 0; low < 4; low++) {
            uint32_t wide = half_bits_of(f16_to_f32((uint16_t)i));
            narrows_as_reference(half_float_of(wide + low - 1));
            narrows_as_reference(half_float_of(wide + 0x1000 + low - 1));
            narrows_as_reference(half_float_of((i << 16) + 0x8000 + low - 1));
            narrows_as_reference(half_float_of((i << 16) + low - 1));
        }
        narrows_as_reference(half_float_of((uint32_t)next_random()));
    }
    for (uint32_t i = 0; i < 4096; i++) /* middles between subnormal halves */
        narrows_as_reference(((float)i + 0.5f) * 0x1p-24f);
}

/* A plain loop, element by element, in the width that reduce.h promises. */
static double reference_float(psd_redop redop, double (*rounded)(double), const double *in, int32_t n)
{
    double a = in[0];
    for (int32_t i = 1; i < n; i++) {
        double b = in[i];
        if (redop == PSD_SUM || redop == PSD_AVG)
            a = rounded(a + b);
        else if (redop == PSD_PROD)
            a = rounded(a * b);
        else if (isnan(a) || isnan(b))
            a = NAN;
        else if (redop == PSD_MIN)
            a = a < b ? a : b;
        else
            a = a > b ? a : b;
    }
    return redop == PSD_AVG ? rounded(a / n) : a;
}

static double round_f32(double x)
{
    return (double)(float)x;
}

static double round_f64(double x)
{
    return x;
}

/* Wraps to the width of a dtype, and sign extends. */
static int64_t wrap(psd_dtype dtype, uint64_t x)
{
    switch (dtype) {
    case PSD_I8:
        return (int8_t)x;
    case PSD_U8:
        return (uint8_t)x;
    case PSD_I32:
        return (int32_t)x;
    case PSD_U32:
        return (uint32_t)x;
    default:
        return (int64_t)x;
    }
}

static int64_t reference_integer(psd_dtype dtype, psd_redop redop, const int64_t *in, int32_t n)
{
    int64_t a = in[0];
    for (int32_t i = 1; i < n; i++) {
        int64_t b = in[i];
        uint64_t ua = (uint64_t)a, ub = (uint64_t)b;
        bool less = dtype == PSD_U64 ? ua < ub : a < b;
        uint64_t results[] = {
            [PSD_SUM] = ua + ub,        [PSD_PROD] = ua * ub, [PSD_AVG] = ua + ub, [PSD_MIN] = less ? ua : ub,
            [PSD_MAX] = less ? ub : ua, [PSD_BAND] = ua & ub, [PSD_BOR] = ua | ub, [PSD_BXOR] = ua ^ ub};
        a = wrap(dtype, results[redop]);
    }
    if (redop == PSD_AVG)
        a = dtype == PSD_U64 ? (int64_t)((uint64_t)a / (uint64_t)n) : a / n;
    return a;
}

static double load_float(psd_dtype dtype, const unsigned char *at)
{
    uint16_t half;
    float single;
    double whole;
    memcpy(&half, at, sizeof half);
    switch (dtype) {
    case PSD_F16:
        return half_decode(half_f16, half);
    case PSD_BF16:
        return half_decode(half_bf16, half);
    case PSD_F32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    default:
        memcpy(&whole, at, sizeof whole);
        return whole;
    }
}

static int64_t load_integer(psd_dtype dtype, const unsigned char *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, psd_dtype_bytes(dtype));
    return wrap(dtype, bits);
}

/* Random bits, but floats mostly of like size, so that sums round and products seldom overflow. */
static void store_random(psd_dtype dtype, unsigned char *at)
{
    double value = ((double)(int64_t)(next_random() % 2000001) - 1000000) / 1000003 * 3;
    bool special = next_random() % 64 == 0;
    uint64_t bits = next_random();
    float single = (float)value;
    uint16_t half = half_encode(dtype == PSD_F16 ? half_f16 : half_bf16, value);
    if (special || psd_dtype_is_integer(dtype))
        memcpy(at, &bits, psd_dtype_bytes(dtype));
    else if (dtype == PSD_F32)
        memcpy(at, &single, sizeof single);
    else if (dtype == PSD_F64)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &half, sizeof half);
}

static bool element_right(psd_dtype dtype, psd_redop redop, const void *const *in, int32_t n, size_t i,
                          const unsigned char *got)
{
    size_t element = psd_dtype_bytes(dtype);
    double floats[MAX_INPUTS];
    int64_t integers[MAX_INPUTS];
    for (int32_t k = 0; k < n; k++) {
        const unsigned char *at = (const unsigned char *)in[k] + i * element;
        if (psd_dtype_is_integer(dtype))
            integers[k] = load_integer(dtype, at);
        else
            floats[k] = load_float(dtype, at);
    }
    if (psd_dtype_is_integer(dtype))
        return load_integer(dtype, got) == reference_integer(dtype, redop, integers, n);
    double want = reference_float(redop, dtype == PSD_F64 ? round_f64 : round_f32, floats, n);
    if (dtype == PSD_F16)
        want = half_decode(half_f16, half_encode(half_f16, want));
    if (dtype == PSD_BF16)
        want = half_decode(half_bf16, half_encode(half_bf16, want));
    double have = load_float(dtype, got);
    return isnan(want) ? isnan(have) : have == want;
}

/* One call on fresh inputs at odd addresses, into memory apart (alias -1) or into one of the inputs. */
static void check_reduction(psd_dtype dtype, psd_redop redop, int32_t n, size_t count, int32_t alias)
{
    size_t bytes = count * psd_dtype_bytes(dtype);
    unsigned char *memory[MAX_INPUTS], *kept[MAX_INPUTS], *apart = malloc(bytes + 2);
    const void *in[MAX_INPUTS], *copies[MAX_INPUTS];
    for (int32_t k = 0; k < n; k++) {
        memory[k] = malloc(bytes + 2);
        kept[k] = malloc(bytes + 1);
        for (size_t i = 0; i < count; i++)
            store_random(dtype, memory[k] + 1 + i * psd_dtype_bytes(dtype));
        memcpy(kept[k], memory[k] + 1, bytes);
        in[k] = memory[k] + 1;
        copies[k] = kept[k];
    }
    unsigned char *dst = alias < 0 ? apart : memory[alias];
    dst[0] = 0x5a;
    dst[bytes + 1] = 0xa5;
    reduce_n(dtype, redop, dst + 1, in, n, count);
    cr_assert(dst[0] == 0x5a && dst[bytes + 1] == 0xa5, "wrote outside");
    for (size_t i = 0; i < count; i++)
        cr_assert(element_right(dtype, redop, copies, n, i, dst + 1 + i * psd_dtype_bytes(dtype)),
                  "%s %s n=%d count=%zu alias=%d element %zu", psd_dtype_name(dtype), psd_redop_name(redop),
                  n, count, alias, i);
    for (int32_t k = 0; k < n; k++) {
        free(memory[k]);
        free(kept[k]);
    }
    free(apart);
}

PSD_TEST(reduce, all_pairs_inputs_and_counts)
{
    static const size_t counts[] = {0, 1, 7, 33, 1025, MAX_COUNT};
    for (int dtype = PSD_I8; psd_dtype_valid(dtype); dtype++) {
        for (int redop = PSD_SUM; psd_redop_valid(redop); redop++) {
            if (!psd_redop_allowed((psd_redop)redop, (psd_dtype)dtype))
                continue;
            for (int32_t n = 1; n <= MAX_INPUTS; n++) {
                size_t count = counts[next_random() % 6];
                check_reduction((psd_dtype)dtype, (psd_redop)redop, n, count, -1);
                check_reduction((psd_dtype)dtype, (psd_redop)redop, n, counts[n % 6], n - 1);
                check_reduction((psd_dtype)dtype, (psd_redop)redop, n, 515,
                                (int32_t)(next_random() % (uint64_t)n));
            }
        }
    }
}

PSD_TEST(reduce, vector_kernels_give_the_bits_of_the_portable_ones)
{
    const reduce_kernels *fast = reduce_kernels_avx2(), *plain = &reduce_kernels_portable;
    if (fast == NULL)
        cr_skip_test("this processor has no AVX2");
    enum { COUNT = 1003 };
    static unsigned char a[COUNT * 8], b[COUNT * 8], x[COUNT * 8], y[COUNT * 8];
    static float wide[COUNT], wider[COUNT];
    const void *in[] = {a, b, a, b};
    for (int dtype = PSD_I8; psd_dtype_valid(dtype); dtype++) {
        for (size_t i = 0; i < COUNT; i++) {
            store_random((psd_dtype)dtype, a + i * psd_dtype_bytes((psd_dtype)dtype));
            store_random((psd_dtype)dtype, b + i * psd_dtype_bytes((psd_dtype)dtype));
        }
        for (int redop = PSD_SUM; psd_redop_valid(redop); redop++) {
            for (int inputs = 0; inputs < REDUCE_STEP_INPUTS - 1; inputs++) {
                reduce_step *step = plain->step[dtype][redop][inputs];
                cr_assert_eq(step == NULL, fast->step[dtype][redop][inputs] == NULL);
                if (step == NULL || !psd_dtype_is_integer((psd_dtype)dtype))
                    continue; /* floats: all_pairs_inputs_and_counts is exact, and knows NaNs */
                step(x, in, COUNT);
                fast->step[dtype][redop][inputs](y, in, COUNT);
                cr_assert_eq(memcmp(x, y, COUNT * psd_dtype_bytes((psd_dtype)dtype)), 0);
            }
        }
        if (plain->widen[dtype] == NULL)
            continue;
        plain->widen[dtype](wide, a, COUNT);
        fast->widen[dtype](wider, a, COUNT);
        cr_assert_eq(memcmp(wide, wider, sizeof wide), 0);
    }
    for (uint32_t round = 0; round < 2000; round++) {
        for (size_t i = 0; i < COUNT; i++)
            wide[i] = half_float_of((uint32_t)next_random());
        for (psd_dtype dtype = PSD_F16; dtype <= PSD_BF16; dtype++) {
            plain->narrow[dtype](x, wide, COUNT);
            fast->narrow[dtype](y, wide, COUNT);
            cr_assert_eq(memcmp(x, y, COUNT * 2), 0);
        }
    }
}

PSD_TEST(reduce, average_of_integers_wraps_then_truncates_toward_zero)
{
    int8_t a[] = {-3, -1, 100, 0}, b[] = {-4, 0, 100, 1}, out[4];
    const void *in[] = {a, b};
    reduce_n(PSD_I8, PSD_AVG, out, in, 2, 4);
    cr_assert_eq(out[0], -3);
    cr_assert_eq(out[1], 0);
    cr_assert_eq(out[2], -28); /* 200 wraps to -56 */
    cr_assert_eq(out[3], 0);
}
