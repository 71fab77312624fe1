/* What the kernels do with single elements, in one text: the C compiler makes the processor's optimizers and the
 * reference of it, nvcc the kernels of the device. Both forbid fused multiply-add (-ffp-contract=off, -fmad=false),
 * so that the same inputs give the same bits on both. */
#ifndef PSD_ELEMENTS_H
#define PSD_ELEMENTS_H

#include "common/psd_types.h"
#include "worker/backend/half.h"

/* ---- f32, f16 and bf16 in memory, f32 in registers */

PSD_ELEMENT float element_load(const void *data, psd_dtype dtype, int64_t i)
{
    if (dtype == PSD_F16)
        return f16_to_f32(((const uint16_t *)data)[i]);
    if (dtype == PSD_BF16)
        return bf16_to_f32(((const uint16_t *)data)[i]);
    return ((const float *)data)[i];
}

PSD_ELEMENT void element_store(void *data, psd_dtype dtype, int64_t i, float value)
{
    if (dtype == PSD_F16)
        ((uint16_t *)data)[i] = f32_to_f16(value);
    else if (dtype == PSD_BF16)
        ((uint16_t *)data)[i] = f32_to_bf16(value);
    else
        ((float *)data)[i] = value;
}

/* ---- optimizers: PyTorch's SGD, with momentum */

PSD_ELEMENT float element_add(float sum, float g)
{
    return sum + g;
}

PSD_ELEMENT float element_mean(float sum, float n)
{
    return sum / n;
}

PSD_ELEMENT float element_velocity(float velocity, float g, float momentum)
{
    return momentum * velocity + g;
}

PSD_ELEMENT float element_step(float param, float direction, float lr)
{
    return param - lr * direction;
}

/* ---- sums of squares, in an order that is the same everywhere: of each chunk, lane l adds its groups of
 * ELEMENT_NORM_WIDE neighbours one after the other; the lanes are added in halves; so are the chunks' sums */

#define ELEMENT_NORM_LANES 256
#define ELEMENT_NORM_WIDE  4
#define ELEMENT_NORM_STEPS 8
#define ELEMENT_NORM_CHUNK (ELEMENT_NORM_LANES * ELEMENT_NORM_WIDE * ELEMENT_NORM_STEPS)

PSD_ELEMENT double element_square_add(double sum, float x)
{
    double wide = (double)x;
    return sum + wide * wide;
}

/* ---- boxes of a larger array */

#define ELEMENT_BOX_DIMS 8

/* A box in units that are copied whole; the last dimension's units are neighbours. */
typedef struct element_box {
    int32_t ndim;
    int32_t unit; /* bytes: 1, 2, 4, 8 or 16 */
    int64_t units;
    int64_t extent[ELEMENT_BOX_DIMS];
    int64_t stride[ELEMENT_BOX_DIMS];
} element_box;

/* Where in the array the box's unit number `unit` is, in units from the box's first. */
PSD_ELEMENT int64_t element_box_at(const element_box *box, int64_t unit)
{
    int64_t at = 0;
    if (box->units <= INT32_MAX) { /* a division of 32 bits is several times faster on a device */
        uint32_t rest = (uint32_t)unit;
        for (int32_t d = box->ndim - 1; d > 0; d--) {
            uint32_t extent = (uint32_t)box->extent[d];
            uint32_t next = rest / extent;
            at += (int64_t)(rest - next * extent) * box->stride[d];
            rest = next;
        }
        return at + (int64_t)rest * box->stride[0];
    }
    for (int32_t d = box->ndim - 1; d > 0; d--) {
        int64_t next = unit / box->extent[d];
        at += (unit - next * box->extent[d]) * box->stride[d];
        unit = next;
    }
    return at + unit * box->stride[0];
}

#endif
