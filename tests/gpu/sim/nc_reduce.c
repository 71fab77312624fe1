/* Arithmetic of reductions. Every hop rounds to the element type, as NCCL's kernels do. */
#include "nc.h"

#include <math.h>
#include <string.h>

size_t nc_type_size(ncclDataType_t dtype)
{
    switch (dtype) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    case ncclNumTypes:
        break;
    }
    return 0;
}

/* ---- small floats */

typedef struct format {
    int exponent_bits, mantissa_bits;
    bool has_infinity; /* e4m3 has none: its largest exponent holds numbers, all ones is NaN */
} format;

static const format formats[] = {
    [ncclFloat16] = {5, 10, true},
    [ncclBfloat16] = {8, 7, true},
    [ncclFloat8e4m3] = {4, 3, false},
    [ncclFloat8e5m2] = {5, 2, true},
};

static double decode(const format *f, uint32_t bits)
{
    uint32_t mantissa = bits & ((1u << f->mantissa_bits) - 1);
    int exponent = (int)(bits >> f->mantissa_bits) & ((1 << f->exponent_bits) - 1);
    int top = (1 << f->exponent_bits) - 1, bias = top / 2;
    double sign = (bits >> (f->exponent_bits + f->mantissa_bits)) & 1 ? -1.0 : 1.0;
    if (exponent == top && f->has_infinity)
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == top && mantissa == (1u << f->mantissa_bits) - 1)
        return (double)NAN;
    if (exponent == 0)
        return sign * ldexp((double)mantissa, 1 - bias - f->mantissa_bits);
    return sign * ldexp((double)(mantissa | 1u << f->mantissa_bits), exponent - bias - f->mantissa_bits);
}

/* Rounds to nearest even. Too large: infinity, and for the 8-bit formats the largest number (CUDA Math API,
 * __NV_SATFINITE, which its operators use). */
static uint32_t encode(const format *f, double value)
{
    int top = (1 << f->exponent_bits) - 1, bias = top / 2, exponent = 0;
    uint32_t sign = signbit(value) ? 1u << (f->exponent_bits + f->mantissa_bits) : 0;
    uint32_t infinity = (uint32_t)top << f->mantissa_bits;
    uint32_t ones = infinity | ((1u << f->mantissa_bits) - 1);
    uint32_t largest = f->has_infinity ? infinity - 1 : ones - 1;
    bool saturates = f->exponent_bits + f->mantissa_bits == 7;
    if (isnan(value))
        return sign | (f->has_infinity ? infinity | 1u << (f->mantissa_bits - 1) : ones);
    double magnitude = fabs(value);
    if (magnitude == 0)
        return sign;
    if (isinf(magnitude))
        return sign | (saturates ? largest : infinity);
    frexp(magnitude, &exponent);
    exponent -= 1; /* magnitude = 1.x * 2^exponent */
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    double scaled = nearbyint(ldexp(magnitude, f->mantissa_bits - exponent));
    uint64_t bits = (uint64_t)scaled + ((uint64_t)(exponent + bias - 1) << f->mantissa_bits);
    if (bits > largest)
        return sign | (saturates ? largest : infinity);
    return sign | (uint32_t)bits;
}

static double load_small(ncclDataType_t dtype, const void *at, size_t i)
{
    uint32_t bits = nc_type_size(dtype) == 1 ? ((const uint8_t *)at)[i] : ((const uint16_t *)at)[i];
    return decode(&formats[dtype], bits);
}

static void store_small(ncclDataType_t dtype, void *at, size_t i, double value)
{
    uint32_t bits = encode(&formats[dtype], value);
    if (nc_type_size(dtype) == 1)
        ((uint8_t *)at)[i] = (uint8_t)bits;
    else
        ((uint16_t *)at)[i] = (uint16_t)bits;
}

static double apply_float(ncclRedOp_t op, double a, double b)
{
    switch ((int)op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return fmax(a, b);
    case ncclMin:
        return fmin(a, b);
    default:
        return a + b;
    }
}

/* ---- loops */

/* Integers wrap: W is the unsigned type to compute in. */
#define INTEGER(name, T, W)                                                                                  \
    static void combine_##name(const nc_reduction *r, T *out, const T *acc, const T *in, size_t count)       \
    {                                                                                                        \
        for (size_t i = 0; i < count; i++) {                                                                 \
            T a = acc[i], b = r->scales ? (T)((W)in[i] * (W)(int64_t)r->scale) : in[i];                      \
            switch ((int)r->op) {                                                                            \
            case ncclProd:                                                                                   \
                out[i] = (T)((W)a * (W)b);                                                                   \
                break;                                                                                       \
            case ncclMax:                                                                                    \
                out[i] = a > b ? a : b;                                                                      \
                break;                                                                                       \
            case ncclMin:                                                                                    \
                out[i] = a < b ? a : b;                                                                      \
                break;                                                                                       \
            default:                                                                                         \
                out[i] = (T)((W)a + (W)b);                                                                   \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static void scale_##name(const nc_reduction *r, T *out, const T *in, size_t count)                       \
    {                                                                                                        \
        for (size_t i = 0; i < count; i++)                                                                   \
            out[i] = (T)((W)in[i] * (W)(int64_t)r->scale);                                                   \
    }                                                                                                        \
    static void divide_##name(const nc_reduction *r, T *data, size_t count)                                  \
    {                                                                                                        \
        for (size_t i = 0; i < count; i++)                                                                   \
            data[i] = (T)(data[i] / (T)r->divisor);                                                          \
    }

INTEGER(i8, int8_t, uint32_t)
INTEGER(u8, uint8_t, uint32_t)
INTEGER(i32, int32_t, uint32_t)
INTEGER(u32, uint32_t, uint32_t)
INTEGER(i64, int64_t, uint64_t)
INTEGER(u64, uint64_t, uint64_t)

static void combine_f32(const nc_reduction *r, float *out, const float *acc, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float b = r->scales ? in[i] * (float)r->scale : in[i];
        out[i] = (int)r->op == ncclSum ? acc[i] + b : (float)apply_float(r->op, (double)acc[i], (double)b);
    }
}

static void combine_f64(const nc_reduction *r, double *out, const double *acc, const double *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = apply_float(r->op, acc[i], r->scales ? in[i] * r->scale : in[i]);
}

static double scaled_small(const nc_reduction *r, ncclDataType_t dtype, const void *in, size_t i)
{
    double value = load_small(dtype, in, i);
    return r->scales ? decode(&formats[dtype], encode(&formats[dtype], value * r->scale)) : value;
}

static void combine_small(const nc_reduction *r, ncclDataType_t dtype, void *out, const void *acc,
                          const void *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        store_small(dtype, out, i,
                    apply_float(r->op, load_small(dtype, acc, i), scaled_small(r, dtype, in, i)));
}

void nc_reduce_combine(const nc_reduction *r, ncclDataType_t dtype, void *out, const void *acc,
                       const void *in, size_t count)
{
    switch (dtype) {
    case ncclInt8:
        combine_i8(r, out, acc, in, count);
        break;
    case ncclUint8:
        combine_u8(r, out, acc, in, count);
        break;
    case ncclInt32:
        combine_i32(r, out, acc, in, count);
        break;
    case ncclUint32:
        combine_u32(r, out, acc, in, count);
        break;
    case ncclInt64:
        combine_i64(r, out, acc, in, count);
        break;
    case ncclUint64:
        combine_u64(r, out, acc, in, count);
        break;
    case ncclFloat32:
        combine_f32(r, out, acc, in, count);
        break;
    case ncclFloat64:
        combine_f64(r, out, acc, in, count);
        break;
    default:
        combine_small(r, dtype, out, acc, in, count);
    }
}

static void scale(const nc_reduction *r, ncclDataType_t dtype, void *out, const void *in, size_t count)
{
    switch (dtype) {
    case ncclInt8:
        scale_i8(r, out, in, count);
        break;
    case ncclUint8:
        scale_u8(r, out, in, count);
        break;
    case ncclInt32:
        scale_i32(r, out, in, count);
        break;
    case ncclUint32:
        scale_u32(r, out, in, count);
        break;
    case ncclInt64:
        scale_i64(r, out, in, count);
        break;
    case ncclUint64:
        scale_u64(r, out, in, count);
        break;
    case ncclFloat32:
        for (size_t i = 0; i < count; i++)
            ((float *)out)[i] = ((const float *)in)[i] * (float)r->scale;
        break;
    case ncclFloat64:
        for (size_t i = 0; i < count; i++)
            ((double *)out)[i] = ((const double *)in)[i] * r->scale;
        break;
    default:
        for (size_t i = 0; i < count; i++)
            store_small(dtype, out, i, scaled_small(r, dtype, in, i));
    }
}

void nc_reduce_load(const nc_reduction *r, ncclDataType_t dtype, void *out, const void *in, size_t count)
{
    if (r->scales)
        scale(r, dtype, out, in, count);
    else if (out != in && count > 0)
        memmove(out, in, count * nc_type_size(dtype));
}

void nc_reduce_finish(const nc_reduction *r, ncclDataType_t dtype, void *data, size_t count)
{
    if (r->divisor == 0)
        return;
    switch ((int)dtype) {
    case ncclInt8:
        divide_i8(r, data, count);
        break;
    case ncclUint8:
        divide_u8(r, data, count);
        break;
    case ncclInt32:
        divide_i32(r, data, count);
        break;
    case ncclUint32:
        divide_u32(r, data, count);
        break;
    case ncclInt64:
        divide_i64(r, data, count);
        break;
    case ncclUint64:
        divide_u64(r, data, count);
        break;
    default:
        break;
    }
}

static bool is_integer(ncclDataType_t dtype)
{
    return dtype <= ncclUint64;
}

static double scalar_value(ncclDataType_t dtype, const void *at)
{
    switch (dtype) {
    case ncclInt8:
        return *(const int8_t *)at;
    case ncclUint8:
        return *(const uint8_t *)at;
    case ncclInt32:
        return *(const int32_t *)at;
    case ncclUint32:
        return *(const uint32_t *)at;
    case ncclInt64:
        return (double)*(const int64_t *)at;
    case ncclUint64:
        return (double)*(const uint64_t *)at;
    case ncclFloat32:
        return (double)*(const float *)at;
    case ncclFloat64:
        return *(const double *)at;
    default:
        return load_small(dtype, at, 0);
    }
}

/* NCCL, src/enqueue.cc, hostToDevRedOp: an average of floats multiplies the inputs by 1/n, in their type; one
 * of integers divides the sum. */
nc_reduction nc_reduction_of(const nc_op *op, ncclComm_t comm)
{
    nc_reduction r = {.op = op->redop};
    int n = comm->ranks;
    if ((int)op->redop >= ncclNumOps) {
        const nc_redop *custom = &comm->redops[(int)op->redop - ncclNumOps];
        r = (nc_reduction){.op = ncclSum, .scales = true};
        r.scale = scalar_value(op->dtype, custom->on_device ? custom->scalar : (const void *)custom->value);
    } else if (op->redop == ncclAvg) {
        r = (nc_reduction){
            .op = ncclSum, .divisor = is_integer(op->dtype) ? n : 0, .scales = !is_integer(op->dtype)};
        r.scale = 1.0 / n;
        if (nc_type_size(op->dtype) < 4 && r.scales)
            r.scale = decode(&formats[op->dtype], encode(&formats[op->dtype], r.scale));
    }
    return r;
}
