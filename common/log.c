#include "common/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUBSYSTEMS = 6, OTHER = SUBSYSTEMS, LEVELS = SUBSYSTEMS + 1, LINE_BYTES = 4096 };

static const char *const subsystems[SUBSYSTEMS] = {"psd", "agent", "host", "ops", "tables", "plan"};
static const char *const level_names[] = {NULL, "error", "warn", "info", "trace"};

/* The logger's state is the one global of the library. A level is read without a lock, on every call. */
static _Atomic int levels[LEVELS] = {
    PSD_LOG_WARN, PSD_LOG_WARN, PSD_LOG_WARN, PSD_LOG_WARN, PSD_LOG_WARN, PSD_LOG_WARN, PSD_LOG_WARN,
};
static pthread_once_t environment_read = PTHREAD_ONCE_INIT;
static pthread_mutex_t prefix_lock = PTHREAD_MUTEX_INITIALIZER;
static char line_prefix[64];

static int subsystem_index(const char *name, size_t bytes)
{
    for (int i = 0; i < SUBSYSTEMS; i++) {
        if (strlen(subsystems[i]) == bytes && memcmp(subsystems[i], name, bytes) == 0)
            return i;
    }
    return -1;
}

static int level_index(const char *name, size_t bytes)
{
    for (int i = PSD_LOG_ERROR; i <= PSD_LOG_TRACE; i++) {
        if (strlen(level_names[i]) == bytes && memcmp(level_names[i], name, bytes) == 0)
            return i;
    }
    return 0;
}

/* One "level" or "subsystem=level". */
static bool apply_item(const char *item, size_t bytes, int *result)
{
    const char *equals = memchr(item, '=', bytes);
    if (equals == NULL) {
        int level = level_index(item, bytes);
        for (int i = 0; i < LEVELS && level != 0; i++)
            result[i] = level;
        return level != 0;
    }
    size_t name_bytes = (size_t)(equals - item);
    int subsystem = subsystem_index(item, name_bytes);
    int level = level_index(equals + 1, bytes - name_bytes - 1);
    if (subsystem < 0 || level == 0)
        return false;
    result[subsystem] = level;
    return true;
}

/* A level alone sets all subsystems, wherever in the list it stands: a first pass takes those. */
static bool apply_spec(const char *spec)
{
    int result[LEVELS];
    for (int i = 0; i < LEVELS; i++)
        result[i] = PSD_LOG_WARN;
    for (int pass = 0; pass < 2; pass++) {
        for (const char *item = spec;;) {
            size_t bytes = strcspn(item, ",");
            bool named = memchr(item, '=', bytes) != NULL;
            if (named == (pass == 1) && !apply_item(item, bytes, result))
                return false;
            if (item[bytes] == '\0')
                break;
            item += bytes + 1;
        }
    }
    for (int i = 0; i < LEVELS; i++)
        atomic_store_explicit(&levels[i], result[i], memory_order_relaxed);
    return true;
}

static void write_line(const char *subsystem, psd_log_level level, const char *format, va_list args)
{
    char line[LINE_BYTES];
    pthread_mutex_lock(&prefix_lock);
    int used = snprintf(line, sizeof line, "%s%s %s: ", line_prefix, level_names[level], subsystem);
    pthread_mutex_unlock(&prefix_lock);
    if (used < 0 || (size_t)used >= sizeof line - 1)
        return;
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    size_t bytes = strlen(line);
    /* One line each, and nothing that steers a terminal: texts come from other machines. */
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            line[i] = ' ';
    }
    line[bytes++] = '\n';
    /* One write, so that lines of several processes do not mix. There is nowhere to tell that it failed. */
    ssize_t written = write(STDERR_FILENO, line, bytes);
    (void)written;
}

static void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line("psd", PSD_LOG_WARN, format, args);
    va_end(args);
}

static void read_environment(void)
{
    const char *spec = getenv("PSD_DEBUG");
    if (spec != NULL && spec[0] != '\0' && !apply_spec(spec))
        complain(
            "PSD_DEBUG=%s is not understood: write a level (error, warn, info, trace) or subsystem=level, "
            "as in warn,agent=trace; subsystems are psd, agent, host, ops, tables, plan",
            spec);
}

void psd_log_prefix(const char *prefix)
{
    pthread_mutex_lock(&prefix_lock);
    snprintf(line_prefix, sizeof line_prefix, "%s", prefix);
    pthread_mutex_unlock(&prefix_lock);
}

bool psd_log_enabled(const char *subsystem, psd_log_level level)
{
    pthread_once(&environment_read, read_environment);
    int index = subsystem_index(subsystem, strlen(subsystem));
    return (int)level <= atomic_load_explicit(&levels[index < 0 ? OTHER : index], memory_order_relaxed);
}

void psd_log(const char *subsystem, psd_log_level level, const char *format, ...)
{
    if (level < PSD_LOG_ERROR || level > PSD_LOG_TRACE || !psd_log_enabled(subsystem, level))
        return;
    va_list args;
    va_start(args, format);
    write_line(subsystem, level, format, args);
    va_end(args);
}
