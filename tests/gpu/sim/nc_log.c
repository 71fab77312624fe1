#include "nc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

/* NCCL's levels: user guide, "Environment Variables", NCCL_DEBUG. */
enum { LEVEL_NONE, LEVEL_VERSION, LEVEL_WARN, LEVEL_INFO };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int level;
static FILE *file;
static char last_error[1024];

/* NCCL_DEBUG_FILE: %h is the host's name, %p the process. */
static void expand(const char *pattern, char *out, size_t bytes)
{
    char host[128] = "unknown";
    size_t at = 0;
    gethostname(host, sizeof host - 1);
    for (; *pattern != '\0' && at + sizeof host < bytes; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'h')
            at += (size_t)snprintf(out + at, bytes - at, "%s", host);
        else if (pattern[0] == '%' && pattern[1] == 'p')
            at += (size_t)snprintf(out + at, bytes - at, "%d", (int)getpid());
        else {
            out[at++] = *pattern;
            continue;
        }
        pattern++;
    }
    out[at] = '\0';
}

static void open_log(void)
{
    static const char *const names[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    const char *wanted = getenv("NCCL_DEBUG"), *pattern = getenv("NCCL_DEBUG_FILE");
    char path[4096];
    for (int i = 0; wanted != NULL && i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcasecmp(wanted, names[i]) == 0)
            level = i < LEVEL_INFO ? i : LEVEL_INFO;
    file = stdout;
    if (level > LEVEL_VERSION && pattern != NULL && *pattern != '\0') {
        expand(pattern, path, sizeof path);
        FILE *opened = fopen(path, "w");
        if (opened != NULL) {
            setvbuf(opened, NULL, _IOLBF, 0);
            file = opened;
        }
    }
}

static void say(const char *kind, const char *text)
{
    char host[128] = "unknown";
    int device = 0;
    gethostname(host, sizeof host - 1);
    cudaGetDevice(&device);
    fprintf(file, "%s:%d:%d [%d] %s%s\n", host, (int)getpid(), (int)syscall(SYS_gettid), device, kind, text);
    fflush(file);
}

void nc_log_version(void)
{
    int v = settings_get()->nccl_version;
    pthread_once(&once, open_log);
    pthread_mutex_lock(&lock);
    if (level >= LEVEL_VERSION) {
        fprintf(file, "NCCL version %d.%d.%d+cuda%d.%d (device simulator)\n", v / 10000, v / 100 % 100,
                v % 100, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        fflush(file);
    }
    pthread_mutex_unlock(&lock);
}

void nc_info(const char *format, ...)
{
    char text[512];
    va_list args;
    pthread_once(&once, open_log);
    if (level < LEVEL_INFO)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    say("NCCL INFO ", text);
    pthread_mutex_unlock(&lock);
}

void nc_warn(const char *format, ...)
{
    char text[512];
    va_list args;
    pthread_once(&once, open_log);
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    snprintf(last_error, sizeof last_error, "%s", text);
    if (level >= LEVEL_WARN)
        say("NCCL WARN ", text);
    pthread_mutex_unlock(&lock);
}

GPUSIM_EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    static _Thread_local char mine[1024];
    (void)comm;
    pthread_mutex_lock(&lock);
    memcpy(mine, last_error, sizeof mine);
    pthread_mutex_unlock(&lock);
    return mine;
}

GPUSIM_EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}
