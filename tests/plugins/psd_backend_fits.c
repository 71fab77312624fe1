/* All as it should be. */
#include "tests/plugins/stub.h"

static const psd_backend_ops ops = STUB_OPS("fits", PSD_CAP_HOST_MEMORY, stub_probe, stub_start);

extern const psd_backend_plugin psd_backend_entry;
STUB_EXPORT const psd_backend_plugin psd_backend_entry = {PSD_BACKEND_ABI, &ops};
