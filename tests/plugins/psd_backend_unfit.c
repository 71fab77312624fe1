/* Says that it moves device memory, and has no slots for that. */
#include "tests/plugins/stub.h"

static const psd_backend_ops ops = STUB_OPS("unfit", PSD_CAP_DEVICE_MEMORY, stub_probe, stub_start);

extern const psd_backend_plugin psd_backend_entry;
STUB_EXPORT const psd_backend_plugin psd_backend_entry = {PSD_BACKEND_ABI, &ops};
