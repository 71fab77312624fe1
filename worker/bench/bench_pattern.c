/* Data that tells where it came from, and the check of results. Element i of rank r's input is a small
 * integer that depends on r and on i modulo a prime, so one period, made by plain arithmetic on doubles, says
 * what a buffer of any size holds. Sums of it are exact before the one rounding that psd does, so results
 * must be equal bit for bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/bench/bench.h"

#define PERIOD 1021

/* binary16 and bfloat16 of a number of ordinary size (not subnormal, infinite or NaN), rounded to nearest
 * even. */
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

/* Types that psd only moves hold the number's low bits. */
static void encode(psd_dtype dtype, double value, unsigned char *at)
{
    float single = (float)value;
    int64_t integer = (int64_t)value;
    uint16_t half;
    switch (dtype) {
    case PSD_F32:
        memcpy(at, &single, sizeof single);
        break;
    case PSD_F64:
        memcpy(at, &value, sizeof value);
        break;
    case PSD_F16:
        half = encode_half((double)single, 10, 15);
        memcpy(at, &half, sizeof half);
        break;
    case PSD_BF16:
        half = encode_half((double)single, 7, 127);
        memcpy(at, &half, sizeof half);
        break;
    default:
        memcpy(at, &integer, psd_dtype_bytes(dtype)); /* little-endian low bytes */
        break;
    }
}

static int64_t input_value(psd_redop redop, int32_t rank, int64_t place)
{
    if (redop == PSD_PROD) /* few ranks multiply by two, so that a thousand do not overflow f16 */
        return (rank + place) % 128 == 0 ? 2 : 1;
    return ((int64_t)rank * 3 + place * 5 + place / 31) % 4;
}

/* Sums wrap before they are divided; three per rank fit in the wider types. */
static int64_t integer_average(psd_dtype dtype, int64_t sum, int32_t n)
{
    if (dtype == PSD_I8)
        sum = ((sum + 128) & 0xff) - 128;
    if (dtype == PSD_U8)
        sum &= 0xff;
    return sum / n;
}

/* The reduction of all ranks' values at a place; integers wrap when they are encoded. */
static double reduced_value(const bench_run *run, int64_t place)
{
    psd_redop redop = run->args->redop;
    int64_t a = input_value(redop, 0, place);
    double product = (double)a;
    for (int32_t rank = 1; rank < run->ranks; rank++) {
        int64_t b = input_value(redop, rank, place);
        product *= (double)b;
        switch (redop) {
        case PSD_MIN:
            a = a < b ? a : b;
            break;
        case PSD_MAX:
            a = a > b ? a : b;
            break;
        case PSD_BAND:
            a &= b;
            break;
        case PSD_BOR:
            a |= b;
            break;
        case PSD_BXOR:
            a ^= b;
            break;
        default:
            a += b;
            break;
        }
    }
    if (redop == PSD_PROD)
        return product;
    if (redop != PSD_AVG)
        return (double)a;
    if (!psd_dtype_is_integer(run->args->dtype))
        return (double)a / run->ranks;
    return (double)integer_average(run->args->dtype, a, run->ranks);
}

/* One period, `start` elements into the pattern; rank -1 is the reduction of all. */
static unsigned char *make_period(const bench_run *run, int32_t rank, int64_t start)
{
    size_t element = psd_dtype_bytes(run->args->dtype);
    psd_redop redop = run->args->op->reduces ? run->args->redop : PSD_SUM;
    unsigned char *period = malloc(PERIOD * element);
    for (int64_t i = 0; period != NULL && i < PERIOD; i++) {
        int64_t place = (start + i) % PERIOD;
        double value = rank < 0 ? reduced_value(run, place) : (double)input_value(redop, rank, place);
        encode(run->args->dtype, value, period + (size_t)i * element);
    }
    return period;
}

static bool fill_tensor(const bench_run *run, const psd_tensor *tensor)
{
    size_t element = psd_dtype_bytes(tensor->dtype), bytes = (size_t)tensor->shape[0] * element;
    unsigned char *period = make_period(run, run->rank, 0);
    if (period == NULL)
        return false;
    for (size_t at = 0; at < bytes; at += PERIOD * element) {
        size_t left = bytes - at;
        memcpy((unsigned char *)tensor->data + at, period, left < PERIOD * element ? left : PERIOD * element);
    }
    free(period);
    return true;
}

bool bench_fill(const bench_run *run)
{
    bool is_broadcast_root =
        run->args->op->source == BENCH_FROM_ROOT && !run->args->op->has_in && run->rank == run->args->root;
    if (run->out.shape[0] > 0)
        memset(run->out.data, 0x5b, (size_t)run->out.shape[0] * psd_dtype_bytes(run->out.dtype));
    return fill_tensor(run, is_broadcast_root ? &run->out : &run->in);
}

static int64_t count_wrong(const unsigned char *data, int64_t count, const unsigned char *period,
                           size_t element)
{
    int64_t wrong = 0;
    for (int64_t at = 0; at < count; at += PERIOD) {
        int64_t length = count - at < PERIOD ? count - at : PERIOD;
        const unsigned char *from = data + (size_t)at * element;
        if (memcmp(from, period, (size_t)length * element) == 0)
            continue;
        for (size_t i = 0; i < (size_t)length; i++)
            wrong += memcmp(from + i * element, period + i * element, element) != 0;
    }
    return wrong;
}

static int32_t source_rank(const bench_run *run, int32_t block)
{
    switch (run->args->op->source) {
    case BENCH_FROM_ROOT:
        return run->args->root;
    case BENCH_FROM_BLOCK:
        return block;
    case BENCH_FROM_BEFORE:
        return (run->rank + run->ranks - 1) % run->ranks;
    case BENCH_FROM_OTHER:
        return 1 - run->rank;
    case BENCH_FROM_ALL:
    case BENCH_FROM_NOBODY:
        break;
    }
    return -1;
}

int64_t bench_wrong(const bench_run *run)
{
    size_t element = psd_dtype_bytes(run->args->dtype);
    int64_t start = run->args->op->result_by_rank ? run->count * run->rank : 0, wrong = 0;
    for (int32_t block = 0; (int64_t)block * run->count < run->out.shape[0]; block++) {
        unsigned char *period = make_period(run, source_rank(run, block), start);
        if (period == NULL)
            return -1;
        const unsigned char *data = run->out.data;
        wrong +=
            count_wrong(data + (size_t)block * (size_t)run->count * element, run->count, period, element);
        free(period);
    }
    return wrong;
}
