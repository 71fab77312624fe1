#include "worker/backend/nccl/libs.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"

#define OPEN_FLAGS  (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)
#define NCCL_SONAME "libnccl.so.2"

/* Majors of libcudart that this works with: what is called has not changed between them. */
static const int cudart_majors[] = {CUDART_VERSION / 1000, 13, 12};
#define MAJORS (sizeof cudart_majors / sizeof cudart_majors[0])

/* An environment variable that names a file; NULL if it is unset or empty. */
static const char *library_variable(const char *name)
{
    const char *value = secure_getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static void *open_by_major(int flags)
{
    for (size_t i = 0; i < MAJORS; i++) {
        char soname[32];
        snprintf(soname, sizeof soname, "libcudart.so.%d", cudart_majors[i]);
        void *library = dlopen(soname, flags);
        if (library != NULL)
            return library;
    }
    return NULL;
}

static psd_status open_cudart_library(void **out, char *why, size_t why_bytes)
{
    char echo[PSD_ECHO_BYTES], reason[LIBS_TEXT];
    const char *file = library_variable("PSD_CUDART_LIBRARY");
    void *library = NULL;
    if (file != NULL)
        library = dlopen(file, OPEN_FLAGS);
    else if ((library = open_by_major(OPEN_FLAGS | RTLD_NOLOAD)) == NULL)
        library = open_by_major(OPEN_FLAGS);
    if (library != NULL) {
        *out = library;
        return PSD_OK;
    }
    const char *error = dlerror();
    psd_echo(error != NULL ? error : "no reason given", reason, sizeof reason);
    if (file != NULL)
        snprintf(why, why_bytes, "PSD_CUDART_LIBRARY is \"%s\", which cannot be opened: %s",
                 psd_echo(file, echo, sizeof echo), reason);
    else
        snprintf(why, why_bytes,
                 "no libcudart.so.13 and no libcudart.so.12 can be opened (%s): install the CUDA runtime, or "
                 "set LD_LIBRARY_PATH to its directory or PSD_CUDART_LIBRARY to the file",
                 reason);
    return PSD_ERR_NOT_FOUND;
}

static psd_status open_nccl_library(void **out, char *why, size_t why_bytes)
{
    char echo[PSD_ECHO_BYTES], reason[LIBS_TEXT];
    const char *file = library_variable("PSD_NCCL_LIBRARY");
    void *library = dlopen(file != NULL ? file : NCCL_SONAME, OPEN_FLAGS);
    if (library != NULL) {
        *out = library;
        return PSD_OK;
    }
    const char *error = dlerror();
    psd_echo(error != NULL ? error : "no reason given", reason, sizeof reason);
    if (file != NULL)
        snprintf(why, why_bytes, "PSD_NCCL_LIBRARY is \"%s\", which cannot be opened: %s",
                 psd_echo(file, echo, sizeof echo), reason);
    else
        snprintf(why, why_bytes,
                 NCCL_SONAME " cannot be opened (%s): install NCCL 2.18 or later, or set LD_LIBRARY_PATH to "
                             "its directory or PSD_NCCL_LIBRARY to the file",
                 reason);
    return PSD_ERR_NOT_FOUND;
}

static psd_status lacks(const char *library, const char *name, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "%s has no function %s: it is not that library, or too old", library, name);
    return PSD_ERR_NOT_FOUND;
}

static psd_status find_cudart(void *library, cudart_api *api, char *why, size_t why_bytes)
{
#define PSD_X(result, name, params)                                                                          \
    if ((LIBS_PROC(api->name) = dlsym(library, #name)) == NULL)                                              \
        return lacks("libcudart", #name, why, why_bytes);
    CUDART_FUNCTIONS(PSD_X)
#undef PSD_X
#define PSD_X(result, name, params) LIBS_PROC(api->name) = dlsym(library, #name);
    CUDART_OPTIONAL(PSD_X)
#undef PSD_X
    return PSD_OK;
}

static psd_status find_nccl(void *library, nccl_api *api, char *why, size_t why_bytes)
{
#define PSD_X(result, name, params)                                                                          \
    if ((LIBS_PROC(api->name) = dlsym(library, #name)) == NULL)                                              \
        return lacks("libnccl", #name, why, why_bytes);
    NCCL_FUNCTIONS(PSD_X)
#undef PSD_X
#define PSD_X(result, name, params) LIBS_PROC(api->name) = dlsym(library, #name);
    NCCL_OPTIONAL(PSD_X)
#undef PSD_X
    return PSD_OK;
}

/* Within a major a driver runs any runtime ("minor version compatibility"). */
static psd_status check_driver(cudart_api *cuda, char *why, size_t why_bytes)
{
    if (cuda->cudaRuntimeGetVersion(&cuda->runtime_version) != cudaSuccess ||
        cuda->cudaDriverGetVersion(&cuda->driver_version) != cudaSuccess) {
        snprintf(why, why_bytes, "libcudart does not tell its version");
        return PSD_ERR_UNSUPPORTED;
    }
    if (cuda->driver_version == 0) {
        snprintf(why, why_bytes, "no device: there is no NVIDIA driver (libcuda.so.1) on this host");
        return PSD_ERR_UNSUPPORTED;
    }
    if (CUDA_VERSION_MAJOR(cuda->driver_version) < CUDA_VERSION_MAJOR(cuda->runtime_version)) {
        snprintf(why, why_bytes,
                 "the NVIDIA driver is too old: it supports CUDA %d.%d and libcudart is of CUDA %d.%d; "
                 "install a newer driver, or libcudart and NCCL for CUDA %d",
                 CUDA_VERSION_MAJOR(cuda->driver_version), CUDA_VERSION_MINOR(cuda->driver_version),
                 CUDA_VERSION_MAJOR(cuda->runtime_version), CUDA_VERSION_MINOR(cuda->runtime_version),
                 CUDA_VERSION_MAJOR(cuda->driver_version));
        return PSD_ERR_UNSUPPORTED;
    }
    return PSD_OK;
}

static psd_status check_nccl(nccl_api *nccl, char *why, size_t why_bytes)
{
    char version[32];
    if (nccl->ncclGetVersion(&nccl->version) != ncclSuccess) {
        snprintf(why, why_bytes, "libnccl does not tell its version");
        return PSD_ERR_UNSUPPORTED;
    }
    if (nccl->version < NCCL_VERSION_LEAST) {
        snprintf(why, why_bytes, "libnccl is NCCL %s; psd needs 2.18 or later",
                 libs_nccl_version_text(nccl->version, version, sizeof version));
        return PSD_ERR_UNSUPPORTED;
    }
    return PSD_OK;
}

psd_status libs_open(nccl_libs *out, char *why, size_t why_bytes)
{
    nccl_libs libs;
    void *cudart = NULL;
    void *nccl = NULL;
    memset(&libs, 0, sizeof libs);
    psd_status status = open_cudart_library(&cudart, why, why_bytes);
    if (status == PSD_OK)
        status = find_cudart(cudart, &libs.cuda, why, why_bytes);
    if (status == PSD_OK)
        status = open_nccl_library(&nccl, why, why_bytes);
    if (status == PSD_OK)
        status = find_nccl(nccl, &libs.nccl, why, why_bytes);
    if (status == PSD_OK)
        status = check_nccl(&libs.nccl, why, why_bytes);
    if (status == PSD_OK)
        status = check_driver(&libs.cuda, why, why_bytes);
    if (status == PSD_OK)
        *out = libs;
    return status;
}

char *libs_nccl_version_text(int version, char *out, size_t out_bytes)
{
    if (version < 10000) /* up to 2.8 */
        snprintf(out, out_bytes, "%d.%d.%d", version / 1000, version % 1000 / 100, version % 100);
    else
        snprintf(out, out_bytes, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    return out;
}

char *libs_cuda_text(const cudart_api *cuda, const char *what, cudaError_t error, char *out, size_t out_bytes)
{
    const char *text = cuda->cudaGetErrorString(error);
    const char *name = cuda->cudaGetErrorName(error);
    snprintf(out, out_bytes, "%s: %.160s (%.64s)", what, text != NULL ? text : "error",
             name != NULL ? name : "unknown");
    (void)cuda->cudaGetLastError();
    return out;
}

char *libs_nccl_text(const nccl_api *nccl, const char *what, ncclResult_t result, char *out, size_t out_bytes)
{
    const char *text = nccl->ncclGetErrorString(result);
    const char *last = nccl->ncclGetLastError(NULL);
    snprintf(out, out_bytes, "%s: %.80s", what, text != NULL ? text : "error");
    if (last != NULL && last[0] != '\0') {
        char echo[LIBS_TEXT];
        psd_append(out, out_bytes, ": %s", psd_echo(last, echo, sizeof echo));
        size_t end = strlen(out);
        if (end > 4 && strcmp(out + end - 4, "\\x0a") == 0)
            out[end - 4] = '\0';
    }
    return out;
}
