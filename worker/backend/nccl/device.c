#include "worker/backend/nccl/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"

psd_status device_count(const cudart_api *cuda, int *out, char *why, size_t why_bytes)
{
    char text[LIBS_TEXT], echo[PSD_ECHO_BYTES];
    int count = 0;
    cudaError_t error = cuda->cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) {
        *out = count;
        return PSD_OK;
    }
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (error == cudaSuccess || error == cudaErrorNoDevice)
        snprintf(why, why_bytes, "no device: the NVIDIA driver shows none%s%s%s",
                 visible != NULL ? " (CUDA_VISIBLE_DEVICES is \"" : "",
                 visible != NULL ? psd_echo(visible, echo, sizeof echo) : "", visible != NULL ? "\")" : "");
    else if (error == cudaErrorInsufficientDriver)
        snprintf(why, why_bytes, "the NVIDIA driver is too old for CUDA %d.%d, which libcudart is of",
                 CUDA_VERSION_MAJOR(cuda->runtime_version), CUDA_VERSION_MINOR(cuda->runtime_version));
    else
        snprintf(why, why_bytes, "no device: %s",
                 libs_cuda_text(cuda, "cudaGetDeviceCount", error, text, sizeof text));
    (void)cuda->cudaGetLastError();
    return PSD_ERR_UNSUPPORTED;
}

psd_status device_choose(const cudart_api *cuda, const psd_backend_config *config, device *out, char *why,
                         size_t why_bytes)
{
    char text[LIBS_TEXT];
    int count = 0;
    int64_t index = config->local_rank > 0 ? config->local_rank : 0;
    device chosen = {.cuda = cuda};
    psd_status status = device_count(cuda, &count, why, why_bytes);
    if (status != PSD_OK)
        return status;
    if (config->device == NULL) {
        index %= count;
    } else if (!psd_parse_i64(config->device, 0, count - 1, &index)) {
        char echo[PSD_ECHO_BYTES];
        snprintf(why, why_bytes, "PSD_DEVICE is \"%s\"; the devices here are 0 to %d",
                 psd_echo(config->device, echo, sizeof echo), count - 1);
        return PSD_ERR_INVAL;
    }
    chosen.index = (int)index;
    cudaError_t error = cuda->cudaDeviceGetPCIBusId(chosen.bus_id, sizeof chosen.bus_id, chosen.index);
    if (error != cudaSuccess) {
        snprintf(why, why_bytes, "device %d: %s", chosen.index,
                 libs_cuda_text(cuda, "cudaDeviceGetPCIBusId", error, text, sizeof text));
        return PSD_ERR_UNSUPPORTED;
    }
    *out = chosen;
    return PSD_OK;
}

int device_enter(const device *d)
{
    int before = d->index;
    if (d->cuda->cudaGetDevice(&before) != cudaSuccess || before != d->index)
        (void)d->cuda->cudaSetDevice(d->index); /* what follows tells the error */
    return before;
}

void device_leave(const device *d, int before)
{
    if (before != d->index)
        (void)d->cuda->cudaSetDevice(before);
}

psd_status device_owns(const device *d, const void *data, char *why, size_t why_bytes)
{
    /* Larger than what a libcudart of any supported major writes. */
    union {
        struct cudaPointerAttributes attributes;
        char room[256];
    } told;
    memset(&told, 0, sizeof told);
    int before = device_enter(d); /* it is asked on a device that has a context */
    cudaError_t error = d->cuda->cudaPointerGetAttributes(&told.attributes, data);
    if (error != cudaSuccess) /* before CUDA 11 an error meant host memory */
        (void)d->cuda->cudaGetLastError();
    device_leave(d, before);
    enum cudaMemoryType type = error == cudaSuccess ? told.attributes.type : cudaMemoryTypeUnregistered;
    if (type == cudaMemoryTypeUnregistered || type == cudaMemoryTypeHost) {
        snprintf(why, why_bytes, "it is host memory; backend nccl moves memory of device %d", d->index);
        return PSD_ERR_INVAL;
    }
    if (told.attributes.device != d->index) {
        snprintf(why, why_bytes, "it is %smemory of device %d; this rank's device is %d",
                 type == cudaMemoryTypeManaged ? "managed " : "", told.attributes.device, d->index);
        return PSD_ERR_INVAL;
    }
    return PSD_OK;
}
