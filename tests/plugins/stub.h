/* A backend that fits the contract's form and moves nothing, for tests of the loader: each plugin here changes
 * one thing about it. */
#ifndef PSD_TEST_PLUGIN_STUB_H
#define PSD_TEST_PLUGIN_STUB_H

#include <stdio.h>

#include "worker/backend/backend.h"

__attribute__((unused)) static psd_status stub_probe(char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "a stub for tests");
    return PSD_OK;
}

static psd_status stub_open(const psd_backend_config *config, psd_backend **out, char *why, size_t why_bytes)
{
    (void)config, (void)out;
    snprintf(why, why_bytes, "the stub moves nothing");
    return PSD_ERR_UNSUPPORTED;
}

static void stub_close(psd_backend *backend)
{
    (void)backend;
}

static psd_status stub_address(psd_backend *backend, char *out, size_t bytes)
{
    (void)backend, (void)out, (void)bytes;
    return PSD_ERR_UNSUPPORTED;
}

static psd_status stub_token(psd_backend *backend, uint8_t *out, size_t capacity, uint32_t *bytes)
{
    (void)backend, (void)out, (void)capacity, (void)bytes;
    return PSD_ERR_UNSUPPORTED;
}

static psd_status stub_group_begin(psd_backend *backend, const psd_group_desc *desc, psd_backend_group **out,
                                   char *why, size_t why_bytes)
{
    (void)backend, (void)desc, (void)out, (void)why, (void)why_bytes;
    return PSD_ERR_UNSUPPORTED;
}

static psd_status stub_group_poll(psd_backend_group *group, char *why, size_t why_bytes)
{
    (void)group, (void)why, (void)why_bytes;
    return PSD_ERR_UNSUPPORTED;
}

static void stub_group_close(psd_backend_group *group)
{
    (void)group;
}

static void stub_group_abort(psd_backend_group *group, psd_status status, const char *text)
{
    (void)group, (void)status, (void)text;
}

static psd_status stub_group_error(psd_backend_group *group, char *text, size_t text_bytes)
{
    (void)group, (void)text, (void)text_bytes;
    return PSD_OK;
}

static psd_status stub_start(psd_backend_group *group, const psd_op *op, psd_request **out)
{
    (void)group, (void)op, (void)out;
    return PSD_ERR_UNSUPPORTED;
}

static psd_status stub_test(psd_request *request, psd_op_result *result)
{
    (void)request, (void)result;
    return PSD_ERR_UNSUPPORTED;
}

static psd_status stub_wait(psd_backend *backend, psd_request *const *requests, int32_t count, bool any,
                            psd_time_ns deadline)
{
    (void)backend, (void)requests, (void)count, (void)any, (void)deadline;
    return PSD_ERR_UNSUPPORTED;
}

static void stub_release(psd_request *request)
{
    (void)request;
}

static const char *stub_request_text(const psd_request *request)
{
    (void)request;
    return "";
}

static void stub_counters(psd_backend *backend, uint64_t *bytes_sent, uint64_t *bytes_received)
{
    (void)backend;
    *bytes_sent = *bytes_received = 0;
}

#define STUB_OPS(backend_name, backend_caps, backend_probe, backend_start)                                   \
    {                                                                                                        \
        .name = backend_name, .caps = backend_caps, .probe = backend_probe, .open = stub_open,               \
        .close = stub_close, .address = stub_address, .token = stub_token, .group_begin = stub_group_begin,  \
        .group_poll = stub_group_poll, .group_close = stub_group_close, .group_abort = stub_group_abort,     \
        .group_error = stub_group_error, .start = backend_start, .test = stub_test, .wait = stub_wait,       \
        .release = stub_release, .request_text = stub_request_text, .counters = stub_counters,               \
    }

#define STUB_EXPORT __attribute__((visibility("default"), used))

#endif
