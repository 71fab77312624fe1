/* Devices, versions, errors. */
#include "rt.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct visible {
    int count;
    int physical[RT_MAX_DEVICES];
} visible;

static visible seen;
static pthread_once_t seen_once = PTHREAD_ONCE_INIT;
static atomic_int failed[RT_MAX_DEVICES];
static _Thread_local int current_device;
static _Thread_local cudaError_t last_error;

/* CUDA C++ Programming Guide, "CUDA Environment Variables", CUDA_VISIBLE_DEVICES: a list of indices; devices
 * before the first invalid one are visible, and they are numbered in the order of the list. */
static void find_visible(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int devices = settings_get()->devices;
    if (list == NULL) {
        for (int i = 0; i < devices; i++)
            seen.physical[seen.count++] = i;
        return;
    }
    for (const char *at = list; *at != '\0' && seen.count < RT_MAX_DEVICES;) {
        char *end = NULL;
        long index = strtol(at, &end, 10);
        if (end == at || index < 0 || index >= devices)
            break;
        for (int i = 0; i < seen.count; i++)
            if (seen.physical[i] == index)
                return;
        seen.physical[seen.count++] = (int)index;
        at = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != '\0')
            break;
    }
}

int rt_device_count(void)
{
    pthread_once(&seen_once, find_visible);
    return seen.count;
}

int rt_device(void)
{
    return current_device;
}

cudaError_t rt_error(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

/* CUDA Compatibility, "CUDA Driver": the driver must be at least of the runtime's major version. */
static cudaError_t driver_error(void)
{
    const settings *set = settings_get();
    if (!set->has_driver || set->driver_version / 1000 < CUDART_VERSION / 1000)
        return cudaErrorInsufficientDriver;
    return rt_device_count() == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t rt_device_error(int device)
{
    return (cudaError_t)atomic_load(&failed[device]);
}

/* Runtime API, cudaLaunchHostFunc: "Attempting to use a CUDA API may result in cudaErrorNotPermitted".
 * Runtime API, cudaErrorIllegalAddress: "leaves the process in an inconsistent state and any further CUDA
 * work will return the same error". */
cudaError_t rt_enter(void)
{
    if (psd_gpusim_in_host_func())
        return cudaErrorNotPermitted;
    cudaError_t error = driver_error();
    return error != cudaSuccess ? error : rt_device_error(current_device);
}

void psd_gpusim_device_fail(int device, cudaError_t error)
{
    int none = cudaSuccess;
    if (device >= 0 && device < RT_MAX_DEVICES)
        atomic_compare_exchange_strong(&failed[device], &none, (int)error);
}

GPUSIM_EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    if (count == NULL)
        return rt_error(cudaErrorInvalidValue);
    cudaError_t error = driver_error();
    if (error != cudaSuccess)
        return rt_error(error);
    *count = rt_device_count();
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaSetDevice(int device)
{
    if (psd_gpusim_in_host_func())
        return rt_error(cudaErrorNotPermitted);
    cudaError_t error = driver_error();
    if (error != cudaSuccess)
        return rt_error(error);
    if (device < 0 || device >= rt_device_count())
        return rt_error(cudaErrorInvalidDevice);
    current_device = device;
    return rt_error(rt_device_error(device));
}

GPUSIM_EXPORT cudaError_t cudaGetDevice(int *device)
{
    if (device == NULL)
        return rt_error(cudaErrorInvalidValue);
    cudaError_t error = driver_error();
    if (error != cudaSuccess)
        return rt_error(error);
    *device = current_device;
    return cudaSuccess;
}

static bool valid(int device)
{
    return device >= 0 && device < rt_device_count();
}

GPUSIM_EXPORT cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int device)
{
    RT_ENTER();
    if (id == NULL || len < 13)
        return rt_error(cudaErrorInvalidValue);
    if (!valid(device))
        return rt_error(cudaErrorInvalidDevice);
    snprintf(id, (size_t)len, "0000:%02X:00.0", 0x10 + seen.physical[device]);
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    RT_ENTER();
    unsigned domain, bus;
    if (device == NULL || id == NULL || sscanf(id, "%x:%x:", &domain, &bus) != 2)
        return rt_error(cudaErrorInvalidValue);
    for (int i = 0; i < rt_device_count(); i++)
        if (domain == 0 && bus == 0x10u + (unsigned)seen.physical[i]) {
            *device = i;
            return cudaSuccess;
        }
    return rt_error(cudaErrorInvalidDevice);
}

GPUSIM_EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    RT_ENTER();
    if (value == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (!valid(device))
        return rt_error(cudaErrorInvalidDevice);
    switch ((int)attr) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 1;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    case cudaDevAttrUnifiedAddressing:
        *value = 1;
        break;
    case cudaDevAttrPciBusId:
        *value = 0x10 + seen.physical[device];
        break;
    case cudaDevAttrPciDomainId:
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrIntegrated:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrComputeMode:
        *value = 0;
        break;
    default:
        return rt_error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    RT_ENTER();
    if (prop == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (!valid(device))
        return rt_error(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "device simulator");
    prop->totalGlobalMem = settings_get()->device_memory;
    prop->major = 9;
    prop->multiProcessorCount = 1;
    prop->maxThreadsPerBlock = 1024;
    prop->warpSize = 32;
    prop->unifiedAddressing = 1;
    prop->pciBusID = 0x10 + seen.physical[device];
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    RT_ENTER();
    if (can == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (!valid(device) || !valid(peer))
        return rt_error(cudaErrorInvalidDevice);
    *can = 0;
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    RT_ENTER();
    pthread_mutex_lock(&rt_lock);
    rt_device_wait(current_device);
    pthread_mutex_unlock(&rt_lock);
    return rt_error(rt_device_error(current_device));
}

GPUSIM_EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    if (version == NULL)
        return rt_error(cudaErrorInvalidValue);
    *version = settings_get()->has_driver ? settings_get()->driver_version : 0;
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (version == NULL)
        return rt_error(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

GPUSIM_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static _Thread_local enum cudaStreamCaptureMode own = cudaStreamCaptureModeGlobal;
    RT_ENTER();
    if (mode == NULL)
        return rt_error(cudaErrorInvalidValue);
    enum cudaStreamCaptureMode before = own;
    own = *mode;
    *mode = before;
    return cudaSuccess;
}

/* ---- error texts */

static const struct {
    cudaError_t code;
    const char *name, *text;
} texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

GPUSIM_EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].code == error)
            return texts[i].name;
    return "unrecognized error code";
}

GPUSIM_EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].code == error)
            return texts[i].text;
    return "unrecognized error code";
}

GPUSIM_EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

GPUSIM_EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = rt_device_error(current_device);
    return error;
}
