#include "worker/backend/host/memory_limit.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/psd_types.h"

static int64_t min_known(int64_t a, int64_t b)
{
    if (a < 0)
        return b;
    if (b < 0)
        return a;
    return a < b ? a : b;
}

static int64_t machine_available(void)
{
    char line[128];
    int64_t kib = -1;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return -1;
    while (kib < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNd64, &kib) != 1)
            kib = -1;
    fclose(file);
    return kib < 0 ? -1 : kib * 1024;
}

/* A number in a file of a control group; -1 if there is none ("max" is no number). */
static int64_t read_number(const char *directory, const char *name)
{
    char path[512];
    int64_t number = -1;
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return -1;
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    if (fscanf(file, "%" SCNd64, &number) != 1)
        number = -1;
    fclose(file);
    return number;
}

/* Page cache, which counts as used but makes room when asked. */
static int64_t reclaimable(const char *directory, bool v2)
{
    const char *names[] = {"inactive_file", "active_file"};
    char path[512];
    char line[128];
    char name[64];
    int64_t number;
    int64_t sum = 0;
    int length = snprintf(path, sizeof path, "%s/memory.stat", directory);
    FILE *file = length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %" SCNd64, name, &number) != 2 || number < 0)
            continue;
        const char *plain = !v2 && strncmp(name, "total_", 6) == 0 ? name + 6 : v2 ? name : "";
        if (strcmp(plain, names[0]) == 0 || strcmp(plain, names[1]) == 0)
            sum += number;
    }
    fclose(file);
    return sum;
}

/* Version 2: memory.max, memory.current; version 1: memory.limit_in_bytes, memory.usage_in_bytes. */
static int64_t directory_available(const char *directory, bool v2)
{
    int64_t limit = read_number(directory, v2 ? "memory.max" : "memory.limit_in_bytes");
    int64_t used = read_number(directory, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit < 0 || used < 0)
        return -1;
    used -= reclaimable(directory, v2);
    return limit > used ? limit - used : 0;
}

/* The least over a group and those above it. `path` is cut to nothing. */
static int64_t path_available(const char *root, char *path, bool v2)
{
    int64_t least = -1;
    for (;;) {
        char directory[400];
        int length = snprintf(directory, sizeof directory, "%s%s", root, path);
        if (length > 0 && (size_t)length < sizeof directory)
            least = min_known(least, directory_available(directory, v2));
        char *slash = strrchr(path, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

static int64_t control_group_available(void)
{
    char line[400];
    int64_t least = -1;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return -1;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        controllers++;
        if (*controllers == '\0')
            least = min_known(least, path_available("/sys/fs/cgroup", path, true));
        else if (strcmp(controllers, "memory") == 0)
            least = min_known(least, path_available("/sys/fs/cgroup/memory", path, false));
    }
    fclose(file);
    return least;
}

int64_t memory_available(void)
{
    return min_known(machine_available(), control_group_available());
}
