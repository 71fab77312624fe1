/* Cannot run here. */
#include "tests/plugins/stub.h"

static psd_status refuse(char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "there is no carrier");
    return PSD_ERR_UNSUPPORTED;
}

static const psd_backend_ops ops = STUB_OPS("refuses", PSD_CAP_HOST_MEMORY, refuse, stub_start);

extern const psd_backend_plugin psd_backend_entry;
STUB_EXPORT const psd_backend_plugin psd_backend_entry = {PSD_BACKEND_ABI, &ops};
