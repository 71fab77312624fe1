#include "settings.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

static settings values;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static long number(const char *name, long fallback, long min, long max)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL || *text == '\0')
        return fallback;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || value < min || value > max) {
        fprintf(stderr, "device simulator: %s=%s is not a number from %ld to %ld; using %ld\n", name, text,
                min, max, fallback);
        return fallback;
    }
    return value;
}

/* "all", "none" or a rank, up to `stop` or the end; *rest: what follows. */
static int rank_text(const char *text, const char **rest)
{
    char *end = NULL;
    *rest = "";
    if (text == NULL || *text == '\0' || strcmp(text, "none") == 0)
        return SETTING_NONE;
    if (strncmp(text, "all", 3) == 0) {
        *rest = text + 3;
        return SETTING_ALL;
    }
    long rank = strtol(text, &end, 10);
    *rest = end;
    return end == text || rank < 0 ? SETTING_NONE : (int)rank;
}

static void faults(void)
{
    const char *rest;
    values.init_hang_rank = rank_text(getenv("PSD_GPUSIM_INIT_HANG"), &rest);
    values.abort_hang_rank = rank_text(getenv("PSD_GPUSIM_ABORT_HANG"), &rest);
    values.async_error_rank = rank_text(getenv("PSD_GPUSIM_ASYNC_ERROR"), &rest);
    values.async_error_op = 1;
    values.async_error_code = ncclRemoteError;
    if (*rest == ':') {
        char *end = NULL;
        values.async_error_op = strtoull(rest + 1, &end, 10);
        if (*end == ':')
            values.async_error_code = atoi(end + 1);
    }
    values.slow_rank = rank_text(getenv("PSD_GPUSIM_SLOW"), &rest);
    values.slow_ms = *rest == ':' ? atoi(rest + 1) : 100;
}

static void read_all(void)
{
    const char *dir = getenv("PSD_GPUSIM_DIR");
    long driver = number("PSD_GPUSIM_DRIVER_VERSION", CUDART_VERSION, 0, 99999);
    values.devices = (int)number("PSD_GPUSIM_DEVICES", 8, 0, 64);
    values.has_driver = driver != 0;
    values.driver_version = (int)driver;
    values.device_memory = (size_t)number("PSD_GPUSIM_MEMORY_MB", 4096, 1, 1 << 20) << 20;
    values.dir = dir != NULL && *dir != '\0' ? dir : "/dev/shm";
    values.nccl_version = (int)number("PSD_GPUSIM_NCCL_VERSION", NCCL_VERSION_CODE, 0, 99999);
    values.buffer_bytes = (size_t)number("PSD_GPUSIM_BUFFER", 0, 0, 1 << 30);
    values.checks_pointers = number("NCCL_CHECK_POINTERS", 1, 0, 1) != 0;
    values.is_serial = number("PSD_GPUSIM_SERIAL", 0, 0, 1) != 0;
    values.inline_launch = number("PSD_GPUSIM_INLINE_LAUNCH", 0, 0, 1) != 0;
    faults();
}

const settings *settings_get(void)
{
    pthread_once(&once, read_all);
    return &values;
}

bool settings_hit(int which, int rank)
{
    return which == SETTING_ALL || which == rank;
}
