/* What the system lets a rank have. */
#ifndef PSD_WORKER_RESOURCE_LIMITS_H
#define PSD_WORKER_RESOURCE_LIMITS_H

#include <stddef.h>

#include "common/psd_types.h"

/* Raises the limit of open files if a rank of such a world may need more, and refuses one under which it cannot even
 * come to psd: ZeroMQ ends the process where it lacks a file. On failure `why` is a sentence. What the links of a
 * group need is checked when it is opened. */
psd_status psd_limits_prepare_rank(int32_t world, char *why, size_t why_bytes);

#endif
