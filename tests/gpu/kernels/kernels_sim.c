/* The kernels where the device is simulated in host memory: the same elements, run by the stream's thread as host
 * functions. No measure of any GPU. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "worker/backend/kernels.h"

typedef struct job {
    void (*run)(const struct job *job);
    union {
        psd_kernel_update update;
        psd_kernel_sum sum;
        psd_kernel_cast cast;
        psd_kernel_norm norm;
        psd_kernel_box box;
    } args;
} job;

static void run_update(const job *j)
{
    elements_update(&j->args.update);
}

static void run_sum(const job *j)
{
    elements_sum(&j->args.sum);
}

static void run_cast(const job *j)
{
    elements_cast(&j->args.cast);
}

static void run_norm(const job *j)
{
    elements_sum_squares(&j->args.norm);
}

static void run_box(const job *j)
{
    elements_box(&j->args.box);
}

static void CUDART_CB run_job(void *arg)
{
    job *j = arg;
    j->run(j);
    free(j);
}

static int launch(int32_t device, const job *like, void *stream)
{
    int before = 0;
    job *j = malloc(sizeof *j);
    if (j == NULL)
        return cudaErrorMemoryAllocation;
    *j = *like;
    int error = (int)cudaGetDevice(&before);
    if (error == 0 && before != device)
        error = (int)cudaSetDevice(device);
    if (error == 0)
        error = (int)cudaLaunchHostFunc((cudaStream_t)stream, run_job, j);
    if (before != device)
        cudaSetDevice(before);
    if (error != 0)
        free(j);
    return error;
}

static int update(int32_t device, const psd_kernel_update *args, void *stream)
{
    job j = {run_update, {.update = *args}};
    return launch(device, &j, stream);
}

static int sum(int32_t device, const psd_kernel_sum *args, void *stream)
{
    job j = {run_sum, {.sum = *args}};
    return launch(device, &j, stream);
}

static int cast(int32_t device, const psd_kernel_cast *args, void *stream)
{
    job j = {run_cast, {.cast = *args}};
    return launch(device, &j, stream);
}

static int sum_squares(int32_t device, const psd_kernel_norm *args, void *stream)
{
    job j = {run_norm, {.norm = *args}};
    return launch(device, &j, stream);
}

static int box(int32_t device, const psd_kernel_box *args, void *stream)
{
    job j = {run_box, {.box = *args}};
    return launch(device, &j, stream);
}

static const char *error_text(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}

extern const psd_kernels psd_kernels_entry;
__attribute__((visibility("default"))) const psd_kernels psd_kernels_entry = {
    PSD_KERNELS_ABI, "simulator", update, sum, cast, sum_squares, box, error_text,
};
