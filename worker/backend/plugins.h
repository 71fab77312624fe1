/* Backends in shared objects: finding, checking and opening them. */
#ifndef PSD_BACKEND_PLUGINS_H
#define PSD_BACKEND_PLUGINS_H

#include "worker/backend/backend.h"

/* The operations of the backend in psd_backend_<name>.so, see backend.h for where it is looked for. Any thread.
 * An object is opened once for the process, stays open, and is given again to later calls. PSD_ERR_NOT_FOUND:
 * there is none of this name; any other error: there is one, and it cannot be used. `why` is one sentence. */
psd_status psd_plugin_load(const char *name, const psd_backend_ops **out, char *why, size_t why_bytes);

#endif
