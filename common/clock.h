/* Time: nanoseconds of CLOCK_MONOTONIC. Core code never calls these; its time comes with each event. */
#ifndef PSD_COMMON_CLOCK_H
#define PSD_COMMON_CLOCK_H

#include <stdint.h>

typedef int64_t psd_time_ns;

#define PSD_NS_PER_MS INT64_C(1000000)
#define PSD_NS_PER_S  INT64_C(1000000000)
#define PSD_NEVER     INT64_MAX

psd_time_ns psd_now_ns(void);

/* now + timeout_ms, saturating; a negative timeout means PSD_NEVER. */
psd_time_ns psd_deadline_ns(psd_time_ns now, int64_t timeout_ms);

#endif
