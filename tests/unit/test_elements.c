/* The kernels' elements on the processor, against arithmetic written out here. The device's kernels are compared with
 * these bit by bit where there is a device (tests/gpu). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "tests/unit/half_reference.h"
#include "worker/backend/elements.h"
#include "worker/backend/kernels.h"

#define COUNT 1037

static uint64_t state = 12345;

static float any_float(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(int64_t)(state >> 11) / 0x1p50 - 4.0);
}

static void fill(float *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = any_float();
}

static bool same_bits(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

PSD_TEST(elements, update_with_momentum_and_a_copy)
{
    static float master[COUNT], velocity[COUNT], grads[3][COUNT + 3], want[COUNT], want_velocity[COUNT];
    static uint16_t copy[COUNT];
    fill(master, COUNT);
    fill(velocity, COUNT);
    fill(grads[0], 3 * (COUNT + 3));
    for (int i = 0; i < COUNT; i++) {
        volatile float sum = grads[0][i] + grads[1][i];
        sum = sum + grads[2][i];
        volatile float mean = sum / 3.0f;
        volatile float kept = 0.9f * velocity[i];
        want_velocity[i] = kept + mean;
        volatile float step = 0.125f * want_velocity[i];
        want[i] = master[i] - step;
    }
    psd_kernel_update args = {
        .master = master,
        .velocity = velocity,
        .grads = grads[0],
        .n = 3,
        .stride = COUNT + 3,
        .copy = copy,
        .copy_dtype = PSD_BF16,
        .lr = 0.125f,
        .momentum = 0.9f,
        .average = true,
        .count = COUNT,
    };
    elements_update(&args);
    cr_assert(same_bits(master, want, sizeof want));
    cr_assert(same_bits(velocity, want_velocity, sizeof want_velocity));
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(copy[i], half_encode(half_bf16, (double)want[i]), "element %d", i);
}

PSD_TEST(elements, plain_sgd_of_one_gradient)
{
    static float master[COUNT], grads[COUNT], want[COUNT];
    fill(master, COUNT);
    fill(grads, COUNT);
    for (int i = 0; i < COUNT; i++) {
        volatile float step = 0.3f * grads[i];
        want[i] = master[i] - step;
    }
    psd_kernel_update args = {
        .master = master, .grads = grads, .n = 1, .lr = 0.3f, .average = true, .count = COUNT};
    elements_update(&args);
    cr_assert(same_bits(master, want, sizeof want));
}

PSD_TEST(elements, casts_round_to_nearest_even)
{
    static float from[COUNT], back[COUNT];
    static uint16_t to[COUNT];
    fill(from, COUNT);
    const psd_dtype dtypes[] = {PSD_F16, PSD_BF16};
    for (int d = 0; d < 2; d++) {
        const half_format format = d == 0 ? half_f16 : half_bf16;
        psd_kernel_cast args = {to, from, dtypes[d], PSD_F32, COUNT};
        elements_cast(&args);
        args = (psd_kernel_cast){back, to, PSD_F32, dtypes[d], COUNT};
        elements_cast(&args);
        for (int i = 0; i < COUNT; i++) {
            cr_assert_eq(to[i], half_encode(format, (double)from[i]));
            cr_assert_eq((double)back[i], half_decode(format, to[i]));
        }
    }
}

PSD_TEST(elements, sum_in_rank_order)
{
    static float in[4][COUNT], out[COUNT], want[COUNT];
    fill(in[0], 4 * COUNT);
    for (int i = 0; i < COUNT; i++) {
        volatile float sum = in[0][i];
        for (int r = 1; r < 4; r++)
            sum = sum + in[r][i];
        want[i] = sum;
    }
    psd_kernel_sum args = {out, in[0], 4, COUNT, PSD_F32, COUNT};
    elements_sum(&args);
    cr_assert(same_bits(out, want, sizeof want));
}

/* The order is what elements.h says, and its result is right to the last places whatever the order. */
PSD_TEST(elements, sum_of_squares)
{
    const int64_t counts[] = {0, 1, 5, ELEMENT_NORM_CHUNK, 3 * ELEMENT_NORM_CHUNK + 77};
    float *in = malloc((size_t)counts[4] * sizeof *in);
    cr_assert_not_null(in);
    fill(in, (size_t)counts[4]);
    for (int c = 0; c < 5; c++) {
        double out = -1, scratch[8], again = -2;
        long double plain = 0;
        cr_assert(psd_kernel_norm_scratch(counts[c]) <= 8);
        for (int64_t i = 0; i < counts[c]; i++)
            plain += (long double)in[i] * (long double)in[i];
        psd_kernel_norm args = {in, PSD_F32, counts[c], scratch, &out};
        elements_sum_squares(&args);
        args.out = &again;
        elements_sum_squares(&args);
        cr_assert(same_bits(&out, &again, sizeof out));
        cr_assert(fabs(out - (double)plain) <= 1e-12 * (double)plain, "%g and %g", out, (double)plain);
    }
    free(in);
}

/* Packs a box of a 3-dimensional array, element by element here. */
static void check_box(size_t element, const int64_t shape[3], const int64_t first[3], const int64_t extent[3])
{
    size_t bytes = (size_t)(shape[0] * shape[1] * shape[2]) * element;
    size_t box_bytes = (size_t)(extent[0] * extent[1] * extent[2]) * element;
    unsigned char *array = malloc(bytes), *copy = malloc(bytes), *packed = malloc(box_bytes + 1);
    cr_assert(array != NULL && copy != NULL && packed != NULL);
    for (size_t i = 0; i < bytes; i++)
        copy[i] = array[i] = (unsigned char)(any_float() * 100);
    const int64_t stride[3] = {shape[1] * shape[2], shape[2], 1};
    int64_t corner = first[0] * stride[0] + first[1] * stride[1] + first[2];
    psd_kernel_box args = {.array = array + (size_t)corner * element,
                           .packed = packed,
                           .pack = true,
                           .element = element,
                           .ndim = 3};
    memcpy(args.extent, extent, sizeof stride);
    memcpy(args.stride, stride, sizeof stride);
    elements_box(&args);
    const unsigned char *at = packed;
    for (int64_t i = 0; i < extent[0]; i++)
        for (int64_t j = 0; j < extent[1]; j++)
            for (int64_t k = 0; k < extent[2]; k++, at += element) {
                int64_t where = corner + i * stride[0] + j * stride[1] + k;
                cr_assert(same_bits(at, array + (size_t)where * element, element));
                memset(array + (size_t)where * element, 0x5a, element);
            }
    args.pack = false;
    elements_box(&args);
    cr_assert(same_bits(array, copy, bytes), "unpacked where it was, and nowhere else");
    free(array);
    free(copy);
    free(packed);
}

PSD_TEST(elements, boxes)
{
    for (size_t element = 1; element <= 8; element *= 2) {
        check_box(element, (int64_t[]){4, 6, 32}, (int64_t[]){0, 0, 0}, (int64_t[]){4, 6, 32});
        check_box(element, (int64_t[]){4, 6, 32}, (int64_t[]){1, 2, 0}, (int64_t[]){2, 3, 32});
        check_box(element, (int64_t[]){4, 6, 32}, (int64_t[]){1, 0, 16}, (int64_t[]){2, 6, 16});
        check_box(element, (int64_t[]){5, 7, 11}, (int64_t[]){1, 2, 3}, (int64_t[]){3, 4, 5});
        check_box(element, (int64_t[]){5, 7, 11}, (int64_t[]){4, 2, 3}, (int64_t[]){1, 1, 1});
        check_box(element, (int64_t[]){5, 7, 11}, (int64_t[]){0, 0, 3}, (int64_t[]){5, 1, 1});
        check_box(element, (int64_t[]){5, 7, 11}, (int64_t[]){0, 0, 3}, (int64_t[]){2, 0, 3});
    }
}

/* What a device copies at once. */
PSD_TEST(elements, boxes_in_large_units)
{
    static _Alignas(16) unsigned char array[4 * 6 * 32 * 4], packed[4 * 6 * 32 * 4];
    element_box box;
    psd_kernel_box args = {.array = array,
                           .packed = packed,
                           .element = 4,
                           .ndim = 3,
                           .extent = {2, 6, 32},
                           .stride = {192, 32, 1}};
    element_box_make(&args, &box);
    cr_assert(box.unit == 16 && box.ndim == 1 && box.units == 2 * 6 * 32 / 4);
    args.extent[2] = 30;
    element_box_make(&args, &box);
    cr_assert(box.unit == 8 && box.ndim == 2 && box.units == 2 * 6 * 15, "two dimensions joined");
}
