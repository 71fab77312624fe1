/* The choice between the backends, and what one must have to be chosen. */
#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "common/log.h"
#include "worker/backend/backend.h"
#include "worker/backend/mpi_launch.h"
#include "worker/backend/plugins.h"

extern const psd_backend_ops psd_backend_host;

static psd_status find(const char *name, const psd_backend_ops **out, char *why, size_t why_bytes)
{
    if (strcmp(name, psd_backend_host.name) == 0) {
        *out = &psd_backend_host;
        return PSD_OK;
    }
    return psd_plugin_load(name, out, why, why_bytes);
}

/* One of those that auto looks at. A backend that is not installed is no reason for a warning, one that is
 * and cannot be loaded is. */
static psd_status consider(const char *name, const psd_backend_ops **out, char *why, size_t why_bytes)
{
    const psd_backend_ops *ops = NULL;
    psd_status status = find(name, &ops, why, why_bytes);
    if (status == PSD_ERR_NOT_FOUND)
        snprintf(why, why_bytes, "not installed");
    else if (status != PSD_OK)
        psd_log("psd", PSD_LOG_WARN, "%s", why);
    else
        status = ops->probe(why, why_bytes);
    if (status == PSD_OK)
        *out = ops;
    return status;
}

static psd_status choose_automatically(const psd_backend_ops **out, char *why, size_t why_bytes)
{
    static const char *const names[] = {"nccl", "mpi", "host"};
    char reasons[768] = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char reason[256] = "";
        psd_status status = PSD_ERR_UNSUPPORTED;
        /* Opening libmpi costs each process some 20 ms. */
        if (strcmp(names[i], "mpi") != 0 || psd_mpi_launched(reason, sizeof reason))
            status = consider(names[i], out, reason, sizeof reason);
        if (status == PSD_OK) {
            snprintf(why, why_bytes, "%s, by itself: %s%s%s%s", names[i], reason, i > 0 ? " (not " : "",
                     reasons, i > 0 ? ")" : "");
            return PSD_OK;
        }
        psd_append(reasons, sizeof reasons, "%s%s: %s", i > 0 ? "; " : "", names[i], reason);
    }
    snprintf(why, why_bytes, "no backend can run here: %s", reasons);
    return PSD_ERR_BACKEND;
}

psd_status psd_backend_choose(const char *name, const psd_backend_ops **out, char *why, size_t why_bytes)
{
    char reason[512] = "";
    const psd_backend_ops *ops = NULL;
    if (strcmp(name, "auto") == 0)
        return choose_automatically(out, why, why_bytes);
    psd_status status = find(name, &ops, why, why_bytes);
    if (status != PSD_OK)
        return PSD_ERR_BACKEND;
    status = ops->probe(reason, sizeof reason);
    if (status != PSD_OK) {
        snprintf(why, why_bytes, "backend %s cannot run here: %s", ops->name, reason);
        return PSD_ERR_BACKEND;
    }
    snprintf(why, why_bytes, "%s, as asked for: %s", ops->name, reason);
    *out = ops;
    return PSD_OK;
}

psd_status psd_backend_verify(const psd_backend_ops *ops, char *why, size_t why_bytes)
{
    const struct {
        const char *name;
        bool present;
    } mandatory[] = {
        {"name", ops->name != NULL},
        {"probe", ops->probe != NULL},
        {"open", ops->open != NULL},
        {"close", ops->close != NULL},
        {"address", ops->address != NULL},
        {"token", ops->token != NULL},
        {"group_begin", ops->group_begin != NULL},
        {"group_poll", ops->group_poll != NULL},
        {"group_close", ops->group_close != NULL},
        {"group_abort", ops->group_abort != NULL},
        {"group_error", ops->group_error != NULL},
        {"start", ops->start != NULL},
        {"test", ops->test != NULL},
        {"wait", ops->wait != NULL},
        {"release", ops->release != NULL},
        {"request_text", ops->request_text != NULL},
        {"counters", ops->counters != NULL},
    };
    const char *name = ops->name != NULL ? ops->name : "(no name)";
    for (size_t i = 0; i < sizeof mandatory / sizeof mandatory[0]; i++) {
        if (!mandatory[i].present) {
            snprintf(why, why_bytes, "backend %s lacks the mandatory slot %s", name, mandatory[i].name);
            return PSD_ERR_INVAL;
        }
    }
    bool channel = ops->chan_send != NULL && ops->chan_recv != NULL && ops->group_member != NULL;
    if (channel != ((ops->caps & PSD_CAP_CHANNEL) != 0)) {
        snprintf(why, why_bytes,
                 "backend %s: PSD_CAP_CHANNEL does not agree with chan_send, chan_recv and group_member",
                 name);
        return PSD_ERR_INVAL;
    }
    bool device[] = {ops->device != NULL,      ops->mem_check != NULL,   ops->mem_copy != NULL,
                     ops->stream_wait != NULL, ops->stream_sync != NULL, ops->kernels != NULL};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) {
        if (device[i] != ((ops->caps & PSD_CAP_DEVICE_MEMORY) != 0)) {
            snprintf(why, why_bytes,
                     "backend %s: PSD_CAP_DEVICE_MEMORY does not agree with device, mem_check, mem_copy, "
                     "stream_wait, stream_sync and kernels",
                     name);
            return PSD_ERR_INVAL;
        }
    }
    if ((ops->mem_alloc != NULL) != (ops->mem_free != NULL)) {
        snprintf(why, why_bytes, "backend %s has only one of mem_alloc and mem_free", name);
        return PSD_ERR_INVAL;
    }
    if ((ops->caps & (PSD_CAP_HOST_MEMORY | PSD_CAP_DEVICE_MEMORY)) == 0) {
        snprintf(why, why_bytes, "backend %s moves neither host nor device memory", name);
        return PSD_ERR_INVAL;
    }
    return PSD_OK;
}
