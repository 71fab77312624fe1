/* What the system lets psd have. Libraries end the process where they lack it; here it is a sentence. */
#ifndef PSD_SERVER_RESOURCE_LIMITS_H
#define PSD_SERVER_RESOURCE_LIMITS_H

#include <stddef.h>

#include "common/psd_types.h"

/* Raises the limit of open files as far as it goes, since every connection is one, and tries what psd will need.
 * On failure `why` is a sentence. */
psd_status psd_limits_prepare(char *why, size_t why_bytes);

#endif
