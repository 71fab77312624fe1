/* Log lines to stderr: one line each, lower case, with the level and the subsystem. Used by programs and by
 * worker and server code, never by common/ or server/core/.
 *
 * PSD_DEBUG, read once, at the first use, sets what is shown, as NCCL_DEBUG does: a level (error, warn, info,
 * trace; default warn), or a list of subsystem=level, as in PSD_DEBUG=warn,agent=trace,host=info. Subsystems:
 * psd, agent, host, ops, tables, plan. */
#ifndef PSD_COMMON_LOG_H
#define PSD_COMMON_LOG_H

#include <stdbool.h>

typedef enum psd_log_level {
    PSD_LOG_ERROR = 1,
    PSD_LOG_WARN = 2,
    PSD_LOG_INFO = 3,
    PSD_LOG_TRACE = 4,
} psd_log_level;

/* A prefix for every line of the process, such as "rank 3 "; cut at 63 bytes. */
void psd_log_prefix(const char *prefix);

/* For lines that cost something to make. */
bool psd_log_enabled(const char *subsystem, psd_log_level level);
void psd_log(const char *subsystem, psd_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
