#include "common/clock.h"

#include <time.h>

psd_time_ns psd_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (psd_time_ns)ts.tv_sec * PSD_NS_PER_S + ts.tv_nsec;
}

psd_time_ns psd_deadline_ns(psd_time_ns now, int64_t timeout_ms)
{
    if (timeout_ms < 0 || timeout_ms > (PSD_NEVER - now) / PSD_NS_PER_MS)
        return PSD_NEVER;
    return now + timeout_ms * PSD_NS_PER_MS;
}
