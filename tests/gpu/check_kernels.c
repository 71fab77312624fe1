/* psd's kernels on a device: each compared bit by bit with the same elements on the processor, then its share of
 * the bandwidth that the device's own copy has.
 *     check_kernels [--small | --bits]
 * PSD_CUDART_LIBRARY and PSD_KERNELS_LIBRARY name other libraries than libcudart.so.13 and psd_kernels.so beside
 * this program. --bits: the comparison only. --small: little memory, to try the rest without a device.
 * Ends with "N passed, N failed". Needs no psd and no other rank. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "worker/backend/nccl/kernels_open.h"

#define H2D    1 /* cudaMemcpyKind */
#define D2H    2
#define D2D    3
#define INPUTS 4
#define RUNS   20

typedef struct runtime {
    int (*get_device)(int *device);
    int (*device_malloc)(void **out, size_t bytes);
    int (*device_free)(void *memory);
    int (*copy)(void *to, const void *from, size_t bytes, int kind);
    int (*copy_async)(void *to, const void *from, size_t bytes, int kind, void *stream);
    int (*synchronize)(void *stream);
    const char *(*text)(int error);
} runtime;

static runtime cuda;
static const psd_kernels *kernels;
static int device, passed, failed;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        exit((fprintf(stderr, "check_kernels: the CUDA runtime has no %s\n", name), 1));
    return found;
}

static void open_runtime(void)
{
    const char *given = getenv("PSD_CUDART_LIBRARY");
    void *library =
        dlopen(given != NULL && given[0] != '\0' ? given : "libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        exit((fprintf(stderr, "check_kernels: %s\n", dlerror()), 1));
    *(void **)&cuda.get_device = symbol(library, "cudaGetDevice");
    *(void **)&cuda.device_malloc = symbol(library, "cudaMalloc");
    *(void **)&cuda.device_free = symbol(library, "cudaFree");
    *(void **)&cuda.copy = symbol(library, "cudaMemcpy");
    *(void **)&cuda.copy_async = symbol(library, "cudaMemcpyAsync");
    *(void **)&cuda.synchronize = symbol(library, "cudaStreamSynchronize");
    *(void **)&cuda.text = symbol(library, "cudaGetErrorString");
}

static void must(int error, const char *what)
{
    if (error != 0)
        exit((fprintf(stderr, "check_kernels: %s: %s\n", what, cuda.text(error)), 1));
}

static void *device_memory(size_t bytes)
{
    void *out = NULL;
    must(cuda.device_malloc(&out, bytes > 0 ? bytes : 16), "cudaMalloc");
    return out;
}

static void *host_memory(size_t bytes)
{
    void *out = malloc(bytes > 0 ? bytes : 16);
    if (out == NULL)
        exit((fprintf(stderr, "check_kernels: out of memory\n"), 1));
    return out;
}

/* ---- the comparison: one block of memory here and its twin there */

static unsigned char *here, *there, *back;
static size_t block;

static uint64_t noise_state = 1;

static uint32_t noise(void)
{
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(noise_state >> 32);
}

/* Floats of all sizes, signs, subnormals and infinities; few NaNs, whose sign after an addition is not defined. */
static void fill(psd_dtype dtype)
{
    for (size_t i = 0; i + 4 <= block; i += 4) {
        uint32_t bits = noise();
        if (dtype == PSD_F32 && (bits & 0x7f800000u) == 0x7f800000u)
            bits &= 0xff800000u;
        if (dtype == PSD_F16 && (bits & 0x7c00u) == 0x7c00u)
            bits &= ~0x03ffu;
        if (dtype == PSD_F16 && (bits & 0x7c000000u) == 0x7c000000u)
            bits &= ~0x03ff0000u;
        if (dtype == PSD_BF16 && (bits & 0x7f80u) == 0x7f80u)
            bits &= ~0x007fu;
        if (dtype == PSD_BF16 && (bits & 0x7f800000u) == 0x7f800000u)
            bits &= ~0x007f0000u;
        memcpy(here + i, &bits, 4);
    }
    must(cuda.copy(there, here, block, H2D), "cudaMemcpy");
}

/* Moderate floats, so that sums of them are finite: quarters of small integers. */
static void fill_moderate(void)
{
    for (size_t i = 0; i + 4 <= block; i += 4) {
        float value = (float)(int32_t)(noise() % 20001) / 1024.0f - 9.0f;
        memcpy(here + i, &value, 4);
    }
    must(cuda.copy(there, here, block, H2D), "cudaMemcpy");
}

static void judge(const char *what, int64_t count, int64_t shift, int error)
{
    must(error, what);
    must(cuda.synchronize(NULL), what);
    must(cuda.copy(back, there, block, D2H), "cudaMemcpy");
    if (memcmp(back, here, block) == 0) {
        passed++;
        return;
    }
    failed++;
    size_t i = 0;
    while (back[i] == here[i])
        i++;
    printf("FAIL %s of %lld elements, shifted by %lld: the first of the bytes that differ is %zu\n", what,
           (long long)count, (long long)shift, i);
}

static psd_kernel_update update_in(unsigned char *base, int64_t count, int64_t shift, int32_t n,
                                   bool momentum, psd_dtype copy)
{
    int64_t stride = (count + 3) / 4 * 4;
    float *at = (float *)(void *)base + shift;
    psd_kernel_update u = {.master = at,
                           .velocity = momentum ? at + stride : NULL,
                           .grads = at + 2 * stride,
                           .n = n,
                           .stride = stride,
                           .copy = copy != 0 ? at + (2 + n) * stride : NULL,
                           .copy_dtype = copy,
                           .lr = 0.0371f,
                           .momentum = 0.9f,
                           .average = true,
                           .count = count};
    return u;
}

static void compare_updates(int64_t count, int64_t shift)
{
    const psd_dtype copies[] = {(psd_dtype)0, PSD_F32, PSD_F16, PSD_BF16};
    for (int c = 0; c < 4; c++) {
        for (int n = 1; n <= INPUTS; n += INPUTS - 1) {
            for (int momentum = 0; momentum < 2; momentum++) {
                fill_moderate();
                psd_kernel_update on_host = update_in(here, count, shift, n, momentum, copies[c]);
                psd_kernel_update on_device = update_in(there, count, shift, n, momentum, copies[c]);
                elements_update(&on_host);
                judge("update", count, shift, kernels->update(device, &on_device, NULL));
            }
        }
    }
}

static int64_t bytes_of(psd_dtype dtype)
{
    return dtype == PSD_F32 ? 4 : 2;
}

static void compare_casts_and_sums(int64_t count, int64_t shift)
{
    const psd_dtype dtypes[] = {PSD_F32, PSD_F16, PSD_BF16};
    int64_t out = (count + shift + 16) * 4;
    for (int f = 0; f < 3; f++) {
        int64_t from = shift * bytes_of(dtypes[f]);
        for (int t = 0; t < 3; t++) {
            int64_t to = out + shift * bytes_of(dtypes[t]);
            to = (to + 15) / 16 * 16 + shift * bytes_of(dtypes[t]);
            fill(dtypes[f]);
            psd_kernel_cast a = {here + to, here + from, dtypes[t], dtypes[f], count};
            psd_kernel_cast b = {there + to, there + from, dtypes[t], dtypes[f], count};
            elements_cast(&a);
            judge("cast", count, shift, kernels->cast(device, &b, NULL));
        }
        int64_t stride = (count + 7) / 8 * 8;
        psd_kernel_sum a = {here, here + stride * 4 + from, INPUTS, stride, dtypes[f], count};
        psd_kernel_sum b = {there, there + stride * 4 + from, INPUTS, stride, dtypes[f], count};
        if (dtypes[f] == PSD_F32) {
            fill_moderate();
        } else { /* moderate halves: of moderate floats, cast here, and brought over */
            fill_moderate();
            psd_kernel_cast c = {here, here, dtypes[f], PSD_F32, (int64_t)(block / 4)};
            elements_cast(&c);
            memcpy(here + block / 2, here, block / 2);
            must(cuda.copy(there, here, block, H2D), "cudaMemcpy");
        }
        elements_sum(&a);
        judge("sum", count, shift, kernels->sum(device, &b, NULL));
    }
}

static void compare_norms(int64_t count, int64_t shift)
{
    const psd_dtype dtypes[] = {PSD_F32, PSD_BF16};
    int64_t scratch = (count * 4 / 16 + 4) * 16;
    int64_t out = scratch + 8 * psd_kernel_norm_scratch(count);
    for (int d = 0; d < 2; d++) {
        fill_moderate();
        psd_kernel_norm a = {here + shift * bytes_of(dtypes[d]), dtypes[d], count,
                             (double *)(void *)(here + scratch), (double *)(void *)(here + out)};
        psd_kernel_norm b = {there + shift * bytes_of(dtypes[d]), dtypes[d], count,
                             (double *)(void *)(there + scratch), (double *)(void *)(there + out)};
        elements_sum_squares(&a);
        judge("sum of squares", count, shift, kernels->sum_squares(device, &b, NULL));
    }
}

static void compare_boxes(void)
{
    const int64_t extents[][3] = {{7, 9, 33}, {5, 8, 64}, {16, 3, 12}, {1, 1, 1}, {4, 16, 128}, {3, 0, 5}};
    const int64_t stride[3] = {16 * 128, 128, 1};
    for (size_t e = 0; e < sizeof extents / sizeof *extents; e++) {
        for (size_t element = 1; element <= 8; element *= 2) {
            for (int pack = 0; pack < 2; pack++) {
                size_t packed = 4 * (size_t)stride[0] * 16 * 8;
                psd_kernel_box a = {
                    .array = here, .packed = here + packed, .pack = pack != 0, .element = element, .ndim = 3};
                memcpy(a.extent, extents[e], sizeof stride);
                memcpy(a.stride, stride, sizeof stride);
                psd_kernel_box b = a;
                b.array = there;
                b.packed = there + packed;
                fill(PSD_U8);
                elements_box(&a);
                judge("box", extents[e][0] * extents[e][1] * extents[e][2], 0,
                      kernels->box(device, &b, NULL));
            }
        }
    }
}

static void compare(void)
{
    const int64_t counts[] = {0, 1, 7, 8, 1000, 4099, 100003};
    block = (size_t)4 << 20;
    here = host_memory(block);
    back = host_memory(block);
    there = device_memory(block);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (int64_t shift = 0; shift < 2; shift++) {
            compare_updates(counts[c], shift);
            compare_casts_and_sums(counts[c], shift);
            compare_norms(counts[c], shift);
        }
    }
    compare_boxes();
    must(cuda.device_free(there), "cudaFree");
    free(here);
    free(back);
}

/* ---- bandwidth */

typedef struct subject {
    const char *name;
    double bytes; /* moved by one run */
    unsigned char *memory;
    int64_t count;
} subject;

typedef int run_once(const subject *s);

static int run_copy(const subject *s)
{
    return cuda.copy_async(s->memory, s->memory + s->count * 4, (size_t)s->count * 4, D2D, NULL);
}

static int run_sgd(const subject *s)
{
    psd_kernel_update u = update_in(s->memory, s->count, 0, 1, false, (psd_dtype)0);
    return kernels->update(device, &u, NULL);
}

static int run_momentum(const subject *s)
{
    psd_kernel_update u = update_in(s->memory, s->count, 0, 1, true, (psd_dtype)0);
    return kernels->update(device, &u, NULL);
}

static int run_momentum_bf16(const subject *s)
{
    psd_kernel_update u = update_in(s->memory, s->count, 0, 1, true, PSD_BF16);
    return kernels->update(device, &u, NULL);
}

static int run_momentum_f16(const subject *s)
{
    psd_kernel_update u = update_in(s->memory, s->count, 0, 1, true, PSD_F16);
    return kernels->update(device, &u, NULL);
}

static int run_sum(const subject *s)
{
    psd_kernel_sum a = {s->memory, s->memory + s->count * 4, 3, s->count, PSD_F32, s->count};
    return kernels->sum(device, &a, NULL);
}

static int run_cast(const subject *s)
{
    psd_kernel_cast a = {s->memory, s->memory + s->count * 4, PSD_BF16, PSD_F32, s->count};
    return kernels->cast(device, &a, NULL);
}

static int run_norm(const subject *s)
{
    unsigned char *scratch = s->memory + s->count * 4;
    psd_kernel_norm a = {s->memory, PSD_F32, s->count, (double *)(void *)(scratch + 16),
                         (double *)(void *)scratch};
    return kernels->sum_squares(device, &a, NULL);
}

/* Half of the columns of a matrix of 4096 columns. */
static int run_box(const subject *s)
{
    psd_kernel_box a = {.array = s->memory,
                        .packed = s->memory + s->count * 4,
                        .pack = true,
                        .element = 4,
                        .ndim = 2,
                        .extent = {s->count / 4096, 2048},
                        .stride = {4096, 1}};
    return kernels->box(device, &a, NULL);
}

static double bytes_per_second(run_once *run, const subject *s)
{
    int64_t best = INT64_MAX;
    must(run(s), s->name);
    must(cuda.synchronize(NULL), s->name);
    for (int i = 0; i < 5; i++) {
        psd_time_ns begun = psd_now_ns();
        for (int k = 0; k < RUNS; k++)
            must(run(s), s->name);
        must(cuda.synchronize(NULL), s->name);
        int64_t took = psd_now_ns() - begun;
        best = took < best ? took : best;
    }
    return s->bytes * RUNS * 1e9 / (double)best;
}

static void measure(int64_t count)
{
    static const struct {
        const char *name;
        run_once *run;
        double bytes; /* per element */
    } list[] = {
        {"copy (the device's own)", run_copy, 8},
        {"sgd", run_sgd, 12},
        {"momentum", run_momentum, 20},
        {"momentum, copy bf16", run_momentum_bf16, 22},
        {"momentum, copy f16", run_momentum_f16, 22},
        {"sum of 3", run_sum, 16},
        {"cast f32 to bf16", run_cast, 6},
        {"sum of squares", run_norm, 4},
        {"box, pack", run_box, 4},
    };
    unsigned char *memory = device_memory((size_t)count * 4 * 4);
    double own = 0, least = 1e9;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        subject s = {list[i].name, list[i].bytes * (double)count, memory, count};
        double rate = bytes_per_second(list[i].run, &s);
        own = i == 0 ? rate : own;
        least = i > 0 && rate / own < least ? rate / own : least;
        printf("%-26s %4.0f bytes/element %9.1f GB/s %6.1f%% of the copy\n", list[i].name, list[i].bytes,
               rate / 1e9, 100 * rate / own);
    }
    printf("least_share=%.3f copy_GBps=%.1f\n", least, own / 1e9);
    must(cuda.device_free(memory), "cudaFree");
}

int main(int argc, char **argv)
{
    char why[512];
    bool small = argc > 1 && strcmp(argv[1], "--small") == 0;
    bool bits = argc > 1 && strcmp(argv[1], "--bits") == 0;
    open_runtime();
    must(cuda.get_device(&device), "cudaGetDevice");
    kernels = kernels_open(why, sizeof why);
    if (kernels == NULL)
        return fprintf(stderr, "check_kernels: %s\n", why), 1;
    printf("kernels of \"%s\" on device %d\n", kernels->name, device);
    compare();
    if (!bits)
        measure(small ? 1 << 16 : 1 << 26);
    printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
