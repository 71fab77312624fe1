/* The NCCL backend's side of the contract in backend.h: what it takes to run, opening, closing, and the table. */
#include "worker/backend/nccl/engine.h"
#include "worker/backend/nccl/kernels_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"

extern const psd_backend_plugin psd_backend_entry;

/* ---------------------------------------------------------------------------------------------- environment */

static psd_status read_number(const char *name, int64_t most, int64_t *value, char *why, size_t why_bytes)
{
    char echo[PSD_ECHO_BYTES];
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0' || psd_parse_i64(text, 1, most, value))
        return PSD_OK;
    snprintf(why, why_bytes, "%s is \"%s\"; it is a number from 1 to %lld", name,
             psd_echo(text, echo, sizeof echo), (long long)most);
    return PSD_ERR_INVAL;
}

static psd_status read_environment(psd_backend *b, char *why, size_t why_bytes)
{
    b->abort_ms = ABORT_MS_DEFAULT;
    b->most_comms = COMMS_DEFAULT;
    psd_status status = read_number("PSD_NCCL_ABORT_TIMEOUT_MS", 3600000, &b->abort_ms, why, why_bytes);
    if (status == PSD_OK)
        status = read_number("PSD_NCCL_MAX_COMMS", 65536, &b->most_comms, why, why_bytes);
    if (status == PSD_OK && getenv("NCCL_COMM_ID") != NULL) {
        snprintf(why, why_bytes,
                 "NCCL_COMM_ID is set: NCCL would use it for every group; unset it, psd distributes the ids "
                 "itself");
        status = PSD_ERR_INVAL;
    }
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    if (status == PSD_OK && blocking != NULL && strtol(blocking, NULL, 0) == 1) {
        snprintf(why, why_bytes,
                 "NCCL_COMM_BLOCKING is 1: NCCL would wait for other ranks inside its calls, from which no "
                 "deadline and no abort brings a rank back; unset it");
        status = PSD_ERR_INVAL;
    }
    return status;
}

/* NCCL reads these at its first call. What the user has set for NCCL itself stays. */
static void capture_log(psd_backend *b)
{
    const char *level = getenv("PSD_NCCL_DEBUG");
    if (level != NULL && level[0] != '\0')
        setenv("NCCL_DEBUG", level, 1);
    else
        setenv("NCCL_DEBUG", "WARN", 0);
    if (b->config.log_file != NULL)
        setenv("NCCL_DEBUG_FILE", b->config.log_file, 0);
    const char *file = getenv("NCCL_DEBUG_FILE");
    snprintf(b->log_file, sizeof b->log_file, "%s", file != NULL ? file : "");
}

/* -------------------------------------------------------------------------------------------- opening, closing */

static psd_status nccl_probe(char *why, size_t why_bytes)
{
    nccl_libs libs;
    char version[32];
    int count = 0;
    psd_status status = libs_open(&libs, why, why_bytes);
    if (status == PSD_OK)
        status = device_count(&libs.cuda, &count, why, why_bytes);
    if (status == PSD_OK)
        snprintf(why, why_bytes, "NCCL %s, CUDA %d.%d, %d device%s",
                 libs_nccl_version_text(libs.nccl.version, version, sizeof version),
                 CUDA_VERSION_MAJOR(libs.cuda.runtime_version), CUDA_VERSION_MINOR(libs.cuda.runtime_version),
                 count, count == 1 ? "" : "s");
    return status;
}

/* The context on the device, and what all groups share of it. */
static psd_status open_device(psd_backend *b, char *why, size_t why_bytes)
{
    const cudart_api *cuda = &b->libs.cuda;
    char text[LIBS_TEXT];
    const char *what = "cudaMalloc";
    int before = device_enter(&b->device);
    cudaError_t error = cuda->cudaMalloc(&b->scratch, SCRATCH_BYTES);
    if (error == cudaSuccess) {
        what = "cudaStreamCreateWithFlags";
        error = cuda->cudaStreamCreateWithFlags(&b->memory_stream, cudaStreamNonBlocking);
        if (error != cudaSuccess)
            (void)cuda->cudaFree(b->scratch);
    }
    if (error != cudaSuccess)
        snprintf(why, why_bytes, "device %d (%s): %s", b->device.index, b->device.bus_id,
                 libs_cuda_text(cuda, what, error, text, sizeof text));
    device_leave(&b->device, before);
    return error == cudaSuccess ? PSD_OK : PSD_ERR_IO;
}

static void close_device(psd_backend *b)
{
    int before = device_enter(&b->device);
    (void)b->libs.cuda.cudaStreamDestroy(b->memory_stream);
    (void)b->libs.cuda.cudaFree(b->scratch);
    device_leave(&b->device, before);
}

static psd_status open_host(psd_backend *b, char *why, size_t why_bytes)
{
    psd_backend_config config = b->config;
    config.owner = b;
    config.on_group_broken = group_host_broke;
    config.on_disagreement = NULL;
    config.on_detached_done = NULL;
    if (b->host_ops != NULL)
        return b->host_ops->open(&config, &b->host, why, why_bytes);
    snprintf(why, why_bytes, "the backend for small messages was not given");
    return PSD_ERR_INVAL;
}

static void say_opened(const psd_backend *b)
{
    char version[32];
    engine_log(
        b, PSD_LOG_INFO, "device %d (%s), NCCL %s, libcudart of CUDA %d.%d, driver for CUDA %d.%d; %s%s",
        b->device.index, b->device.bus_id,
        libs_nccl_version_text(b->libs.nccl.version, version, sizeof version),
        CUDA_VERSION_MAJOR(b->libs.cuda.runtime_version), CUDA_VERSION_MINOR(b->libs.cuda.runtime_version),
        CUDA_VERSION_MAJOR(b->libs.cuda.driver_version), CUDA_VERSION_MINOR(b->libs.cuda.driver_version),
        b->log_file[0] != '\0' ? "NCCL logs to " : "NCCL logs to the standard output", b->log_file);
    if (b->libs.nccl.version > NCCL_VERSION_LATEST)
        engine_log(b, PSD_LOG_INFO, "this NCCL is later than those that psd was written for (2.18 to 2.30)");
}

static psd_status nccl_open(const psd_backend_config *config, psd_backend **out, char *why, size_t why_bytes)
{
    psd_status status = PSD_ERR_NOMEM;
    psd_backend *b = calloc(1, sizeof *b);
    if (b == NULL) {
        snprintf(why, why_bytes, "out of memory");
        return status;
    }
    b->config = *config;
    b->host_ops = config->host;
    list_init(&b->groups);
    list_init(&b->free_requests);
    list_init(&b->regions);
    atomic_store(&b->stop_deadline, PSD_NEVER);
    capture_log(b);
    status = read_environment(b, why, why_bytes);
    if (status == PSD_OK)
        status = libs_open(&b->libs, why, why_bytes);
    if (status == PSD_OK)
        status = device_choose(&b->libs.cuda, config, &b->device, why, why_bytes);
    if (status != PSD_OK)
        goto fail;
    identity_make(&b->device, b->libs.nccl.version, &b->identity);
    status = open_device(b, why, why_bytes);
    if (status != PSD_OK)
        goto fail;
    status = open_host(b, why, why_bytes);
    if (status != PSD_OK)
        goto fail_device;
    status = engine_start(b);
    if (status != PSD_OK) {
        snprintf(why, why_bytes, "out of memory, or of threads");
        goto fail_host;
    }
    say_opened(b);
    b->config.log_file = NULL; /* the caller's strings may go */
    *out = b;
    return PSD_OK;

fail_host:
    b->host_ops->close(b->host);
fail_device:
    close_device(b);
fail:
    free(b);
    return status;
}

static void nccl_close(psd_backend *b)
{
    if (b == NULL)
        return;
    engine_stop(b);
    requests_free(b);
    memory_forget(b);
    close_device(b);
    b->host_ops->close(b->host);
    engine_destroy(b);
    free(b);
}

/* ------------------------------------------------------------------------------------------ address and token */

static psd_status nccl_address(psd_backend *b, char *out, size_t bytes)
{
    char host[PSD_MAX_ADDR - IDENTITY_ADDRESS];
    psd_status status = b->host_ops->address(b->host, host, sizeof host);
    return status == PSD_OK ? identity_format(&b->identity, host, out, bytes) : status;
}

/* ncclGetUniqueId makes a socket and a thread for the other ranks to come to; it makes no CUDA call that waits for the
 * device. */
static psd_status nccl_token(psd_backend *b, uint8_t *out, size_t capacity, uint32_t *bytes)
{
    char text[LIBS_TEXT];
    uint8_t host[PSD_MAX_TOKEN];
    uint32_t host_bytes = 0;
    ncclUniqueId id;
    psd_status status = b->host_ops->token(b->host, host, sizeof host, &host_bytes);
    if (status != PSD_OK)
        return status;
    ncclResult_t result = b->libs.nccl.ncclGetUniqueId(&id);
    if (result == ncclSuccess)
        return token_format(&id, host, host_bytes, out, capacity, bytes);
    engine_log(b, PSD_LOG_ERROR, "%s",
               libs_nccl_text(&b->libs.nccl, "ncclGetUniqueId", result, text, sizeof text));
    return comm_status_of(result);
}

/* -------------------------------------------------------------------------------------- the rest of the table */

static psd_status nccl_chan_send(psd_backend *b, uint32_t world_rank, const void *data, uint32_t bytes)
{
    request_press_all(b); /* the message may be about what is held back */
    return b->host_ops->chan_send(b->host, world_rank, data, bytes);
}

static psd_status nccl_chan_recv(psd_backend *b, psd_time_ns deadline, psd_chan_msg *out)
{
    request_press_all(b);
    return b->host_ops->chan_recv(b->host, deadline, out);
}

static void nccl_counters(psd_backend *b, uint64_t *bytes_sent, uint64_t *bytes_received)
{
    b->host_ops->counters(b->host, bytes_sent, bytes_received);
    *bytes_sent += atomic_load_explicit(&b->bytes_sent, memory_order_relaxed);
    *bytes_received += atomic_load_explicit(&b->bytes_received, memory_order_relaxed);
}

static int32_t nccl_device(psd_backend *b)
{
    return b->device.index;
}

static psd_status nccl_mem_check(psd_backend *b, const void *data, size_t bytes, char *why, size_t why_bytes)
{
    (void)bytes;
    return device_owns(&b->device, data, why, why_bytes);
}

static const psd_kernels *nccl_kernels(psd_backend *b, char *why, size_t why_bytes)
{
    (void)b;
    return kernels_open(why, why_bytes);
}

static void nccl_usage(psd_backend *b, psd_backend_usage *out)
{
    pthread_mutex_lock(&b->lock);
    out->communicators = b->comms;
    out->most_communicators = (int32_t)b->most_comms;
    out->communicator_bytes = b->comm_bytes;
    pthread_mutex_unlock(&b->lock);
}

static const psd_backend_ops nccl_ops = {
    .name = "nccl",
    .caps = PSD_CAP_DEVICE_MEMORY | PSD_CAP_ABORT | PSD_CAP_CHANNEL,
    .probe = nccl_probe,
    .open = nccl_open,
    .close = nccl_close,
    .address = nccl_address,
    .token = nccl_token,
    .group_begin = group_begin,
    .group_poll = group_poll,
    .group_close = group_close,
    .group_abort = group_abort,
    .group_error = group_error,
    .group_member = group_member_state,
    .start = request_start,
    .test = request_test,
    .wait = request_wait,
    .release = request_release,
    .request_text = request_text,
    .chan_send = nccl_chan_send,
    .chan_recv = nccl_chan_recv,
    .counters = nccl_counters,
    .mem_alloc = memory_alloc,
    .mem_free = memory_free,
    .device = nccl_device,
    .mem_check = nccl_mem_check,
    .mem_copy = memory_copy,
    .stream_wait = request_stream_wait,
    .stream_sync = memory_stream_sync,
    .kernels = nccl_kernels,
    .usage = nccl_usage,
};

__attribute__((visibility("default"))) const psd_backend_plugin psd_backend_entry = {
    .abi = PSD_BACKEND_ABI,
    .ops = &nccl_ops,
};
