/* The backends of this build and the choice between them. */
#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "worker/backend/backend.h"

extern const psd_backend_ops psd_backend_host;

const psd_backend_ops *const *psd_backends(void)
{
    static const psd_backend_ops *const backends[] = {&psd_backend_host, NULL};
    return backends;
}

static psd_status choose_automatically(const psd_backend_ops **out, char *why, size_t why_bytes)
{
    char reasons[512] = "";
    const psd_backend_ops *const *backends = psd_backends();
    for (int i = 0; backends[i] != NULL; i++) {
        char reason[256] = "";
        psd_status status = backends[i]->probe(reason, sizeof reason);
        if (status == PSD_OK) {
            snprintf(why, why_bytes, "%s: %s", backends[i]->name, reason);
            *out = backends[i];
            return PSD_OK;
        }
        psd_append(reasons, sizeof reasons, "%s%s: %s", i > 0 ? "; " : "", backends[i]->name, reason);
    }
    snprintf(why, why_bytes, "no backend can run here: %s", reasons);
    return PSD_ERR_UNSUPPORTED;
}

psd_status psd_backend_choose(const char *name, const psd_backend_ops **out, char *why, size_t why_bytes)
{
    if (strcmp(name, "auto") == 0)
        return choose_automatically(out, why, why_bytes);
    char names[128] = "auto";
    const psd_backend_ops *const *backends = psd_backends();
    for (int i = 0; backends[i] != NULL; i++) {
        psd_append(names, sizeof names, ", %s", backends[i]->name);
        if (strcmp(backends[i]->name, name) != 0)
            continue;
        psd_status status = backends[i]->probe(why, why_bytes);
        if (status == PSD_OK)
            *out = backends[i];
        return status;
    }
    snprintf(why, why_bytes, "there is no backend \"%.32s\" in this build; PSD_BACKEND is one of: %s", name,
             names);
    return PSD_ERR_NOT_FOUND;
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
