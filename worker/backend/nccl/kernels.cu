/* psd's kernels on CUDA devices: kernels.h says what each does and how many bytes it moves, elements.h has what is
 * done with single elements. Each comes in two widths: WIDE elements at a time, in accesses of 16 bytes, where all
 * addresses allow it, and one at a time elsewhere and for the rest behind the last whole WIDE. */
#include <cuda_runtime.h>

#include "worker/backend/elements.h"
#include "worker/backend/kernels.h"

#define THREADS    256
#define MAX_BLOCKS 8192 /* more work than that is done in turns */
#define WIDE       8    /* f32: two accesses; f16, bf16: one */

/* ---- memory */

struct alignas(16) bits128 {
    uint32_t word[4];
};

template <int N> struct few {
    float at[N];
};

template <int N> __device__ __forceinline__ few<N> load(const void *data, psd_dtype dtype, int64_t i);
template <int N> __device__ __forceinline__ void store(void *data, psd_dtype dtype, int64_t i, const few<N> &x);

template <> __device__ __forceinline__ few<1> load<1>(const void *data, psd_dtype dtype, int64_t i)
{
    few<1> x;
    x.at[0] = element_load(data, dtype, i);
    return x;
}

template <> __device__ __forceinline__ void store<1>(void *data, psd_dtype dtype, int64_t i, const few<1> &x)
{
    element_store(data, dtype, i, x.at[0]);
}

template <> __device__ __forceinline__ few<WIDE> load<WIDE>(const void *data, psd_dtype dtype, int64_t i)
{
    few<WIDE> x;
    if (dtype == PSD_F32) {
        const bits128 *from = (const bits128 *)((const float *)data + i);
        bits128 low = from[0], high = from[1];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x.at[k] = half_float_of(low.word[k]);
            x.at[k + 4] = half_float_of(high.word[k]);
        }
    } else {
        bits128 all = *(const bits128 *)((const uint16_t *)data + i);
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            uint16_t half = (uint16_t)(all.word[k / 2] >> 16 * (k % 2));
            x.at[k] = dtype == PSD_F16 ? f16_to_f32(half) : bf16_to_f32(half);
        }
    }
    return x;
}

template <>
__device__ __forceinline__ void store<WIDE>(void *data, psd_dtype dtype, int64_t i, const few<WIDE> &x)
{
    if (dtype == PSD_F32) {
        bits128 low, high;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            low.word[k] = half_bits_of(x.at[k]);
            high.word[k] = half_bits_of(x.at[k + 4]);
        }
        bits128 *to = (bits128 *)((float *)data + i);
        to[0] = low;
        to[1] = high;
    } else {
        bits128 all;
#pragma unroll
        for (int k = 0; k < WIDE; k += 2) {
            uint32_t first = dtype == PSD_F16 ? f32_to_f16(x.at[k]) : f32_to_bf16(x.at[k]);
            uint32_t second = dtype == PSD_F16 ? f32_to_f16(x.at[k + 1]) : f32_to_bf16(x.at[k + 1]);
            all.word[k / 2] = first | second << 16;
        }
        *(bits128 *)((uint16_t *)data + i) = all;
    }
}

/* f.run<WIDE>(i) for each whole group of WIDE elements, and f.run<1>(i) for each element of the rest. */
template <typename F> __device__ __forceinline__ void for_each(int64_t count, bool is_wide, const F &f)
{
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    int64_t whole = is_wide ? count / WIDE : 0;
    for (int64_t g = thread; g < whole; g += threads)
        f.template run<WIDE>(g * WIDE);
    for (int64_t i = whole * WIDE + thread; i < count; i += threads)
        f.template run<1>(i);
}

/* ---- update, sum, cast */

struct update_at {
    psd_kernel_update a;

    template <int N> __device__ __forceinline__ void run(int64_t i) const
    {
        few<N> g = load<N>(a.grads, PSD_F32, i);
        for (int32_t r = 1; r < a.n; r++) {
            few<N> next = load<N>(a.grads, PSD_F32, r * a.stride + i);
#pragma unroll
            for (int k = 0; k < N; k++)
                g.at[k] = element_add(g.at[k], next.at[k]);
        }
        if (a.average && a.n > 1) {
#pragma unroll
            for (int k = 0; k < N; k++)
                g.at[k] = element_mean(g.at[k], (float)a.n);
        }
        if (a.velocity != NULL) {
            few<N> v = load<N>(a.velocity, PSD_F32, i);
#pragma unroll
            for (int k = 0; k < N; k++)
                g.at[k] = element_velocity(v.at[k], g.at[k], a.momentum);
            store<N>(a.velocity, PSD_F32, i, g);
        }
        few<N> p = load<N>(a.master, PSD_F32, i);
#pragma unroll
        for (int k = 0; k < N; k++)
            p.at[k] = element_step(p.at[k], g.at[k], a.lr);
        store<N>(a.master, PSD_F32, i, p);
        if (a.copy != NULL)
            store<N>(a.copy, a.copy_dtype, i, p);
    }
};

struct sum_at {
    psd_kernel_sum a;

    template <int N> __device__ __forceinline__ void run(int64_t i) const
    {
        few<N> sum = load<N>(a.in, a.dtype, i);
        for (int32_t r = 1; r < a.n; r++) {
            few<N> next = load<N>(a.in, a.dtype, r * a.stride + i);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum.at[k] = element_add(sum.at[k], next.at[k]);
        }
        store<N>(a.dst, a.dtype, i, sum);
    }
};

struct cast_at {
    psd_kernel_cast a;

    template <int N> __device__ __forceinline__ void run(int64_t i) const
    {
        store<N>(a.dst, a.to, i, load<N>(a.src, a.from, i));
    }
};

template <typename F> __global__ void __launch_bounds__(THREADS) each(F f, int64_t count, bool is_wide)
{
    for_each(count, is_wide, f);
}

/* ---- sums of squares */

__device__ __forceinline__ double add_lanes(double mine)
{
    __shared__ double lanes[ELEMENT_NORM_LANES];
    int l = (int)threadIdx.x;
    lanes[l] = mine;
    __syncthreads();
    for (int half = ELEMENT_NORM_LANES / 2; half > 0; half /= 2) {
        if (l < half)
            lanes[l] += lanes[l + half];
        __syncthreads();
    }
    double sum = lanes[0];
    __syncthreads();
    return sum;
}

/* A lane's ELEMENT_NORM_WIDE neighbours, in one access where the address allows it. */
__device__ __forceinline__ double add_neighbours(double sum, const psd_kernel_norm &a, int64_t at, bool is_wide)
{
    static_assert(ELEMENT_NORM_WIDE == 4, "16 bytes of f32");
    if (is_wide && at + ELEMENT_NORM_WIDE <= a.count && a.dtype == PSD_F32) {
        bits128 all = *(const bits128 *)((const float *)a.in + at);
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum = element_square_add(sum, half_float_of(all.word[k]));
        return sum;
    }
    if (is_wide && at + ELEMENT_NORM_WIDE <= a.count) {
        uint2 all = *(const uint2 *)((const uint16_t *)a.in + at);
        uint32_t word[2] = {all.x, all.y};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint16_t half = (uint16_t)(word[k / 2] >> 16 * (k % 2));
            sum = element_square_add(sum, a.dtype == PSD_F16 ? f16_to_f32(half) : bf16_to_f32(half));
        }
        return sum;
    }
    for (int k = 0; k < ELEMENT_NORM_WIDE && at + k < a.count; k++)
        sum = element_square_add(sum, element_load(a.in, a.dtype, at + k));
    return sum;
}

__global__ void __launch_bounds__(ELEMENT_NORM_LANES) norm_chunks(psd_kernel_norm a, int64_t chunks, bool is_wide)
{
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
        double mine = 0;
#pragma unroll
        for (int step = 0; step < ELEMENT_NORM_STEPS; step++) {
            int64_t group = (int64_t)step * ELEMENT_NORM_LANES + threadIdx.x;
            mine = add_neighbours(mine, a, c * ELEMENT_NORM_CHUNK + group * ELEMENT_NORM_WIDE, is_wide);
        }
        double sum = add_lanes(mine);
        if (threadIdx.x == 0)
            a.scratch[c] = sum;
    }
}

__global__ void __launch_bounds__(ELEMENT_NORM_LANES) norm_all(psd_kernel_norm a, int64_t chunks)
{
    double mine = 0;
    for (int64_t c = threadIdx.x; c < chunks; c += ELEMENT_NORM_LANES)
        mine += a.scratch[c];
    double sum = add_lanes(mine);
    if (threadIdx.x == 0)
        *a.out = sum;
}

/* ---- boxes */

template <typename U>
__global__ void __launch_bounds__(THREADS) copy_box(element_box box, U *array, U *packed, bool pack)
{
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t unit = thread; unit < box.units; unit += threads) {
        int64_t at = element_box_at(&box, unit);
        if (pack)
            packed[unit] = array[at];
        else
            array[at] = packed[unit];
    }
}

/* ---- launching */

/* The tests compile this file for the processor, with a launch of their own. */
#ifndef PSD_LAUNCH
#define PSD_LAUNCH(kernel, blocks, threads, stream, ...)                                                     \
    kernel<<<blocks, threads, 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif

/* The calling thread's current device while a kernel is launched on another. A launch tells its error only as the thread's
 * last one, which must not be an earlier call's. */
static int enter(int32_t device, int *before)
{
    (void)cudaGetLastError();
    int error = (int)cudaGetDevice(before);
    if (error == 0 && *before != device)
        error = (int)cudaSetDevice(device);
    return error;
}

static int leave(int32_t device, int before)
{
    int error = (int)cudaGetLastError();
    if (before != device)
        cudaSetDevice(before);
    return error;
}

static unsigned blocks_for(int64_t items)
{
    int64_t blocks = (items + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
}

static bool fits16(const void *a, const void *b, const void *c, int64_t stride_bytes)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)stride_bytes) & 15) == 0;
}

static int64_t bytes_of(psd_dtype dtype)
{
    return dtype == PSD_F32 ? 4 : 2;
}

template <typename F> static int launch(int32_t device, const F &f, int64_t count, bool is_wide, void *stream)
{
    int before = 0;
    if (count == 0)
        return 0;
    int error = enter(device, &before);
    if (error != 0)
        return error;
    PSD_LAUNCH(each<F>, blocks_for(is_wide ? count / WIDE : count), THREADS, stream, f, count, is_wide);
    return leave(device, before);
}

static int update(int32_t device, const psd_kernel_update *args, void *stream)
{
    bool is_wide = fits16(args->master, args->velocity, args->grads, args->n > 1 ? args->stride * 4 : 0) &&
                   ((uintptr_t)args->copy & 15) == 0;
    return launch(device, update_at{*args}, args->count, is_wide, stream);
}

static int sum(int32_t device, const psd_kernel_sum *args, void *stream)
{
    int64_t stride = args->n > 1 ? args->stride * bytes_of(args->dtype) : 0;
    return launch(device, sum_at{*args}, args->count, fits16(args->dst, args->in, NULL, stride), stream);
}

static int cast(int32_t device, const psd_kernel_cast *args, void *stream)
{
    return launch(device, cast_at{*args}, args->count, fits16(args->dst, args->src, NULL, 0), stream);
}

static int sum_squares(int32_t device, const psd_kernel_norm *args, void *stream)
{
    int before = 0;
    int64_t chunks = (args->count + ELEMENT_NORM_CHUNK - 1) / ELEMENT_NORM_CHUNK;
    bool is_wide = fits16(args->in, NULL, NULL, 0);
    int error = enter(device, &before);
    if (error != 0)
        return error;
    if (chunks > 0)
        PSD_LAUNCH(norm_chunks, (unsigned)(chunks < MAX_BLOCKS ? chunks : MAX_BLOCKS), ELEMENT_NORM_LANES, stream,
                   *args, chunks, is_wide);
    PSD_LAUNCH(norm_all, 1, ELEMENT_NORM_LANES, stream, *args, chunks);
    return leave(device, before);
}

template <typename U> static void launch_box(const element_box &box, const psd_kernel_box *args, void *stream)
{
    PSD_LAUNCH(copy_box<U>, blocks_for(box.units), THREADS, stream, box, (U *)args->array, (U *)args->packed,
               args->pack);
}

static int copy_any_box(int32_t device, const psd_kernel_box *args, void *stream)
{
    element_box box;
    int before = 0;
    element_box_make(args, &box);
    if (box.units == 0)
        return 0;
    int error = enter(device, &before);
    if (error != 0)
        return error;
    switch (box.unit) {
    case 1:
        launch_box<uint8_t>(box, args, stream);
        break;
    case 2:
        launch_box<uint16_t>(box, args, stream);
        break;
    case 4:
        launch_box<uint32_t>(box, args, stream);
        break;
    case 8:
        launch_box<uint2>(box, args, stream);
        break;
    default:
        launch_box<bits128>(box, args, stream);
        break;
    }
    return leave(device, before);
}

static const char *error_text(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}

extern "C" __attribute__((visibility("default"))) const psd_kernels psd_kernels_entry = {
    PSD_KERNELS_ABI, "cuda", update, sum, cast, sum_squares, copy_any_box, error_text,
};
