/* Telling a job's ranks to stop through the coordinator, as psctl stop does: the only way to those on other
 * hosts. */
#ifndef PSD_LAUNCH_STOP_JOB_H
#define PSD_LAUNCH_STOP_JOB_H

#include <stddef.h>

#include "common/psd_types.h"

/* Waits at most timeout_ms for each message of the coordinator, of which the first is mostly the answer. On
 * failure `why` is a sentence. */
psd_status psd_launch_stop_job(const char *coordinator, const char *job, int timeout_ms, char *why,
                               size_t why_bytes);

#endif
