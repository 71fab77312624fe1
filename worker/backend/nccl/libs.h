/* libcudart and libnccl, opened at run time. This object links neither, so that one build runs on any node; the versions
 * that are there are told, and functions that not all of them have are optional. */
#ifndef PSD_NCCL_LIBS_H
#define PSD_NCCL_LIBS_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "common/psd_types.h"

#define NCCL_VERSION_LEAST    21800 /* ncclCommInitRankConfig with all that is used here */
#define NCCL_VERSION_LATEST   23099 /* of those that this was written for; a later one only gets a log line */
#define LIBS_TEXT             256
#define LIBS_PROC(pointer)    (*(void **)(void *)&(pointer))
#define CUDA_VERSION_MAJOR(v) ((v) / 1000)
#define CUDA_VERSION_MINOR(v) ((v) % 1000 / 10)

/* result, name, parameters. Types by hand where an older nccl.h or cuda_runtime_api.h may lack the function. */
#define CUDART_FUNCTIONS(X)                                                                                  \
    X(cudaError_t, cudaRuntimeGetVersion, (int *))                                                           \
    X(cudaError_t, cudaDriverGetVersion, (int *))                                                            \
    X(cudaError_t, cudaGetDeviceCount, (int *))                                                              \
    X(cudaError_t, cudaSetDevice, (int))                                                                     \
    X(cudaError_t, cudaGetDevice, (int *))                                                                   \
    X(cudaError_t, cudaDeviceGetPCIBusId, (char *, int, int))                                                \
    X(cudaError_t, cudaDeviceSynchronize, (void))                                                            \
    X(cudaError_t, cudaMemGetInfo, (size_t *, size_t *))                                                     \
    X(cudaError_t, cudaMalloc, (void **, size_t))                                                            \
    X(cudaError_t, cudaFree, (void *))                                                                       \
    X(cudaError_t, cudaMemcpyAsync, (void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t))       \
    X(cudaError_t, cudaMemsetAsync, (void *, int, size_t, cudaStream_t))                                     \
    X(cudaError_t, cudaStreamCreateWithFlags, (cudaStream_t *, unsigned))                                    \
    X(cudaError_t, cudaStreamDestroy, (cudaStream_t))                                                        \
    X(cudaError_t, cudaStreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned))                               \
    X(cudaError_t, cudaEventCreateWithFlags, (cudaEvent_t *, unsigned))                                      \
    X(cudaError_t, cudaEventDestroy, (cudaEvent_t))                                                          \
    X(cudaError_t, cudaEventRecord, (cudaEvent_t, cudaStream_t))                                             \
    X(cudaError_t, cudaEventQuery, (cudaEvent_t))                                                            \
    X(cudaError_t, cudaPointerGetAttributes, (struct cudaPointerAttributes *, const void *))                 \
    X(const char *, cudaGetErrorName, (cudaError_t))                                                         \
    X(const char *, cudaGetErrorString, (cudaError_t))                                                       \
    X(cudaError_t, cudaGetLastError, (void))
#define CUDART_OPTIONAL(X) X(cudaError_t, cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode *))

#define NCCL_FUNCTIONS(X)                                                                                    \
    X(ncclResult_t, ncclGetVersion, (int *))                                                                 \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *))                                                       \
    X(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))          \
    X(ncclResult_t, ncclCommFinalize, (ncclComm_t))                                                          \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t))                                                           \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t))                                                             \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *))                                     \
    X(const char *, ncclGetErrorString, (ncclResult_t))                                                      \
    X(const char *, ncclGetLastError, (ncclComm_t))                                                          \
    X(ncclResult_t, ncclBroadcast,                                                                           \
      (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                         \
    X(ncclResult_t, ncclAllReduce,                                                                           \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                 \
    X(ncclResult_t, ncclReduce,                                                                              \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))            \
    X(ncclResult_t, ncclReduceScatter,                                                                       \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                 \
    X(ncclResult_t, ncclAllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)) \
    X(ncclResult_t, ncclSend, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))         \
    X(ncclResult_t, ncclRecv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))               \
    X(ncclResult_t, ncclGroupStart, (void))                                                                  \
    X(ncclResult_t, ncclGroupEnd, (void))
/* 2.19 has all of them. */
#define NCCL_OPTIONAL(X)                                                                                     \
    X(ncclResult_t, ncclMemAlloc, (void **, size_t))                                                         \
    X(ncclResult_t, ncclMemFree, (void *))

#define PSD_X(result, name, params) result(*name) params;
typedef struct cudart_api {
    CUDART_FUNCTIONS(PSD_X)
    CUDART_OPTIONAL(PSD_X) /* may be NULL */
    int runtime_version;   /* 13000 is CUDA 13.0 */
    int driver_version;    /* the latest CUDA that the driver can; 0: there is no driver */
} cudart_api;

typedef struct nccl_api {
    NCCL_FUNCTIONS(PSD_X)
    NCCL_OPTIONAL(PSD_X) /* may be NULL */
    int version;         /* 22809 is NCCL 2.28.9 */
} nccl_api;
#undef PSD_X

typedef struct nccl_libs {
    cudart_api cuda;
    nccl_api nccl;
} nccl_libs;

/* Opens libcudart (PSD_CUDART_LIBRARY, else one that the process has already, else by the major of the headers, else by
 * the other one) and libnccl (PSD_NCCL_LIBRARY, else libnccl.so.2), finds the functions and the versions, and refuses what
 * cannot work: a missing library, an NCCL before 2.18, a driver that is older than libcudart needs. The libraries stay in
 * the process: they have threads that outlive a dlclose. */
psd_status libs_open(nccl_libs *out, char *why, size_t why_bytes);

/* "2.28.9". Returns out. */
char *libs_nccl_version_text(int version, char *out, size_t out_bytes);

/* "cudaEventRecord: an illegal memory access was encountered (cudaErrorIllegalAddress)". Clears the thread's last error.
 * Returns out. */
char *libs_cuda_text(const cudart_api *cuda, const char *what, cudaError_t error, char *out,
                     size_t out_bytes);
/* "ncclAllReduce: unhandled cuda error: <what ncclGetLastError says>". Returns out. */
char *libs_nccl_text(const nccl_api *nccl, const char *what, ncclResult_t result, char *out,
                     size_t out_bytes);

#endif
