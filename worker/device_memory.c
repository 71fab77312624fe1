/* Host and device memory: which of them a tensor is in, copies between them, and waiting for a stream. */
#include "worker/device_memory.h"

#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "common/tensor.h"
#include "worker/works.h"

static psd_status check_device(const psd_ctx *ctx, const psd_tensor *tensor, int64_t count, char *why,
                               size_t why_bytes)
{
    char found[PSD_MAX_TEXT] = "";
    if (tensor->device_index != ctx->device_index) {
        snprintf(why, why_bytes, "says it is in memory of device %d; this context's device is %d",
                 tensor->device_index, ctx->device_index);
        return PSD_ERR_INVAL;
    }
    if (count == 0)
        return PSD_OK;
    size_t bytes = (size_t)count * psd_dtype_bytes(tensor->dtype);
    psd_status status = ctx->ops->mem_check(ctx->backend, tensor->data, bytes, found, sizeof found);
    if (status != PSD_OK)
        snprintf(why, why_bytes, "says it is in memory of device %d: %.900s", tensor->device_index, found);
    return status;
}

psd_status psd_memory_check(const psd_ctx *ctx, const psd_tensor *tensor, int64_t count, char *why,
                            size_t why_bytes)
{
    bool is_host = tensor->device == PSD_DEVICE_HOST;
    if (!is_host && tensor->device != PSD_DEVICE_CUDA) {
        snprintf(why, why_bytes, "is nowhere: its device is %d, which is no psd_device_kind",
                 (int)tensor->device);
        return PSD_ERR_INVAL;
    }
    if ((ctx->ops->caps & (is_host ? PSD_CAP_HOST_MEMORY : PSD_CAP_DEVICE_MEMORY)) == 0) {
        snprintf(why, why_bytes, "is in %s memory, which backend %s does not move%s",
                 is_host ? "host" : "device", ctx->ops->name,
                 is_host ? "; make it with psd_tensor_alloc and fill it with psd_tensor_copy" : "");
        return PSD_ERR_UNSUPPORTED;
    }
    return is_host ? PSD_OK : check_device(ctx, tensor, count, why, why_bytes);
}

/* --------------------------------------------------------------------------------------------------- copy */

static const char COPY[] = "psd_tensor_copy";

static psd_status check_shape(PSD_AT, const char *param, const psd_tensor *tensor, int64_t *count)
{
    if (tensor == NULL || tensor->size != sizeof *tensor)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "%s: %s is not a tensor made by psd_tensor_1d, _nd or _alloc", COPY, param);
    *count = psd_tensor_count(tensor);
    if (*count < 0 || (*count > 0 && tensor->data == NULL))
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: %s", COPY,
                             *count < 0 ? "a tensor's dtype or shape is not valid" : "a tensor has no data");
    return PSD_OK;
}

/* Host memory is any on a host backend. Where there are devices it must not be theirs: the processor cannot
 * touch it. */
static psd_status check_place(PSD_AT, const psd_ctx *ctx, const char *param, const psd_tensor *tensor,
                              int64_t count)
{
    char why[PSD_MAX_TEXT];
    size_t bytes = (size_t)count * psd_dtype_bytes(tensor->dtype);
    if (tensor->device != PSD_DEVICE_HOST) {
        psd_status status = psd_memory_check(ctx, tensor, count, why, sizeof why);
        if (status != PSD_OK)
            psd_error_set(file, line, status, "%s: %s %s", COPY, param, why);
        return status;
    }
    if (ctx->has_streams && bytes > 0 &&
        ctx->ops->mem_check(ctx->backend, tensor->data, bytes, why, sizeof why) == PSD_OK)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "%s: %s says it is host memory, and is memory of device %d; set its device and "
                             "device_index",
                             COPY, param, ctx->device_index);
    return PSD_OK;
}

static psd_status check_pair(PSD_AT, const psd_ctx *ctx, const psd_tensor *dst, const psd_tensor *src,
                             size_t *bytes)
{
    int64_t to = 0, from = 0;
    psd_status status = check_shape(file, line, "dst", dst, &to);
    if (status == PSD_OK)
        status = check_shape(file, line, "src", src, &from);
    if (status != PSD_OK)
        return status;
    if (to != from || dst->dtype != src->dtype)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "%s: dst has %lld elements of %s and src has %lld of %s; they must be the same",
                             COPY, (long long)to, psd_dtype_name(dst->dtype), (long long)from,
                             psd_dtype_name(src->dtype));
    status = check_place(file, line, ctx, "dst", dst, to);
    if (status == PSD_OK)
        status = check_place(file, line, ctx, "src", src, from);
    if (status != PSD_OK)
        return status;
    *bytes = (size_t)to * psd_dtype_bytes(dst->dtype);
    uintptr_t a = (uintptr_t)dst->data, b = (uintptr_t)src->data;
    if (a < b + *bytes && b < a + *bytes)
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: dst and src overlap in memory", COPY);
    return PSD_OK;
}

static psd_status copy_until(PSD_AT, const char *verb, psd_ctx *ctx, void *dst, const void *src, size_t bytes,
                             void *stream, psd_time_ns deadline)
{
    char why[PSD_MAX_TEXT] = "";
    psd_status status = ctx->ops->mem_copy(ctx->backend, dst, src, bytes, stream, deadline, why, sizeof why);
    if (status != PSD_OK)
        psd_error_set(file, line, status, "%s: %s", verb, why[0] != '\0' ? why : psd_status_text(status));
    return status;
}

psd_status psd_memory_copy(PSD_AT, const char *verb, psd_ctx *ctx, void *dst, const void *src, size_t bytes,
                           void *stream)
{
    if (bytes == 0)
        return PSD_OK;
    if (ctx->has_streams)
        return copy_until(file, line, verb, ctx, dst, src, bytes, stream, psd_ctx_deadline(ctx, 0));
    memcpy(dst, src, bytes);
    return PSD_OK;
}

static psd_status check_stream(PSD_AT, const char *verb, const psd_ctx *ctx, const void *stream)
{
    if (stream != NULL && !ctx->has_streams)
        return psd_error_set(file, line, PSD_ERR_UNSUPPORTED,
                             "%s: a stream is given; backend %s has no streams", verb, ctx->ops->name);
    return PSD_OK;
}

psd_status psd_tensor_copy_at(PSD_AT, psd_ctx *ctx, psd_tensor *dst, const psd_tensor *src,
                              const psd_opts *opts)
{
    size_t bytes = 0;
    psd_status status = psd_ctx_live(file, line, COPY, ctx);
    if (status == PSD_OK && opts != NULL && opts->size != sizeof *opts)
        status = psd_error_set(file, line, PSD_ERR_INVAL,
                               "%s: opts->size is %zu, a psd_opts has %zu; call psd_opts_init", COPY,
                               opts->size, sizeof *opts);
    if (status == PSD_OK)
        status = check_stream(file, line, COPY, ctx, opts != NULL ? opts->stream : NULL);
    if (status == PSD_OK)
        status = check_pair(file, line, ctx, dst, src, &bytes);
    if (status != PSD_OK || bytes == 0)
        return status;
    if (dst->device == PSD_DEVICE_HOST && src->device == PSD_DEVICE_HOST) {
        memcpy(dst->data, src->data, bytes);
        return PSD_OK;
    }
    return copy_until(file, line, COPY, ctx, dst->data, src->data, bytes, opts != NULL ? opts->stream : NULL,
                      psd_ctx_deadline(ctx, opts != NULL ? opts->timeout_ms : 0));
}

/* ------------------------------------------------------------------------------------------------- stream */

psd_status psd_stream_synchronize_at(PSD_AT, psd_ctx *ctx, void *stream, int64_t timeout_ms)
{
    static const char verb[] = "psd_stream_synchronize";
    char why[PSD_MAX_TEXT] = "", took[32];
    uint64_t seqs[PSD_RECORD_WORKS];
    psd_status status = psd_ctx_live(file, line, verb, ctx);
    if (status == PSD_OK)
        status = check_stream(file, line, verb, ctx, stream);
    if (status != PSD_OK || !ctx->has_streams)
        return status;
    int32_t count = psd_works_on_stream(&ctx->works, stream, seqs, PSD_RECORD_WORKS);
    psd_time_ns begun = psd_now_ns();
    int slot =
        psd_record_wait_begin(&ctx->recorder, seqs, count, timeout_ms > 0 ? PSD_WAIT_TIMED : PSD_WAIT_ALL);
    status = ctx->ops->stream_sync(ctx->backend, stream, psd_ctx_deadline(ctx, timeout_ms), why, sizeof why);
    psd_record_wait_end(&ctx->recorder, slot);
    if (status == PSD_ERR_TIMEOUT)
        return psd_error_set(file, line, status,
                             "%s: the stream is not done after %s, with %d operations of "
                             "psd on it; it stays as it is",
                             verb, psd_format_ns(psd_now_ns() - begun, took, sizeof took), count);
    if (status != PSD_OK)
        psd_error_set(file, line, status, "%s: %s", verb, why[0] != '\0' ? why : psd_status_text(status));
    return status;
}
