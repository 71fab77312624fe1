/* The kernels on the processor: the reference that the device's are compared with, and what the simulator of a
 * device runs. */
#include "worker/backend/elements.h"

#include "worker/backend/kernels.h"

void elements_update(const psd_kernel_update *args)
{
    for (int64_t i = 0; i < args->count; i++) {
        float g = args->grads[i];
        for (int32_t r = 1; r < args->n; r++)
            g = element_add(g, args->grads[r * args->stride + i]);
        if (args->average && args->n > 1)
            g = element_mean(g, (float)args->n);
        if (args->velocity != NULL)
            g = args->velocity[i] = element_velocity(args->velocity[i], g, args->momentum);
        args->master[i] = element_step(args->master[i], g, args->lr);
        if (args->copy != NULL)
            element_store(args->copy, args->copy_dtype, i, args->master[i]);
    }
}

void elements_sum(const psd_kernel_sum *args)
{
    for (int64_t i = 0; i < args->count; i++) {
        float sum = element_load(args->in, args->dtype, i);
        for (int32_t r = 1; r < args->n; r++)
            sum = element_add(sum, element_load(args->in, args->dtype, r * args->stride + i));
        element_store(args->dst, args->dtype, i, sum);
    }
}

void elements_cast(const psd_kernel_cast *args)
{
    for (int64_t i = 0; i < args->count; i++)
        element_store(args->dst, args->to, i, element_load(args->src, args->from, i));
}

/* ---- sums of squares */

static double add_lanes(double lanes[ELEMENT_NORM_LANES])
{
    for (int half = ELEMENT_NORM_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    }
    return lanes[0];
}

static double sum_chunk(const psd_kernel_norm *args, int64_t begin)
{
    double lanes[ELEMENT_NORM_LANES] = {0};
    int64_t rest = args->count - begin;
    int64_t count = rest < ELEMENT_NORM_CHUNK ? rest : ELEMENT_NORM_CHUNK;
    for (int64_t i = 0; i < count; i++) {
        double *lane = &lanes[i / ELEMENT_NORM_WIDE % ELEMENT_NORM_LANES];
        *lane = element_square_add(*lane, element_load(args->in, args->dtype, begin + i));
    }
    return add_lanes(lanes);
}

void elements_sum_squares(const psd_kernel_norm *args)
{
    double lanes[ELEMENT_NORM_LANES] = {0};
    int64_t chunks = 0;
    for (int64_t at = 0; at < args->count; at += ELEMENT_NORM_CHUNK)
        args->scratch[chunks++] = sum_chunk(args, at);
    for (int64_t c = 0; c < chunks; c++)
        lanes[c % ELEMENT_NORM_LANES] += args->scratch[c];
    *args->out = add_lanes(lanes);
}

/* ---- boxes */

/* The shape without dimensions of one element, and with those joined that lie behind each other in memory. */
static void join_dimensions(const psd_kernel_box *args, element_box *box)
{
    box->ndim = 0;
    for (int32_t d = 0; d < args->ndim; d++) {
        int64_t extent = args->extent[d], stride = args->stride[d];
        int32_t last = box->ndim - 1;
        if (extent == 1 && d + 1 < args->ndim)
            continue;
        if (last >= 0 && box->stride[last] == extent * stride) {
            box->extent[last] *= extent;
            box->stride[last] = stride;
        } else {
            box->extent[box->ndim] = extent;
            box->stride[box->ndim++] = stride;
        }
    }
}

void element_box_make(const psd_kernel_box *args, element_box *out)
{
    element_box box = {.unit = (int32_t)args->element, .units = 1};
    join_dimensions(args, &box);
    uint64_t all = (uint64_t)(uintptr_t)args->array | (uint64_t)(uintptr_t)args->packed;
    int32_t last = box.ndim - 1;
    for (int32_t d = 0; d < last; d++)
        all |= (uint64_t)box.stride[d] * args->element;
    all |= (uint64_t)box.extent[last] * args->element;
    while (box.unit < 16 && all % (2 * (uint64_t)box.unit) == 0)
        box.unit *= 2;
    int64_t elements = box.unit / (int64_t)args->element;
    box.extent[last] /= elements;
    for (int32_t d = 0; d < last; d++)
        box.stride[d] /= elements;
    for (int32_t d = 0; d <= last; d++)
        box.units *= box.extent[d];
    *out = box;
}

void elements_box(const psd_kernel_box *args)
{
    element_box box;
    element_box_make(args, &box);
    unsigned char *array = args->array, *packed = args->packed;
    int64_t run = box.extent[box.ndim - 1];
    for (int64_t unit = 0; run > 0 && unit < box.units; unit += run) {
        unsigned char *there = array + element_box_at(&box, unit) * box.unit;
        unsigned char *here = packed + unit * box.unit;
        memcpy(args->pack ? here : there, args->pack ? there : here, (size_t)(run * box.unit));
    }
}
