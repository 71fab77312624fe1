#include "worker/launch/orphans.h"

#include <ctype.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/conf.h"

#define WITHIN_MS 1000

/* The parent of a process; -1 when it is gone. The name in /proc/PID/stat may contain anything, so its end is
 * looked for from behind. */
static pid_t parent_of(const char *pid)
{
    char path[300];
    char text[512];
    int parent = -1;
    snprintf(path, sizeof(path), "/proc/%s/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    text[bytes] = '\0';
    fclose(file);
    char *end = strrchr(text, ')');
    if (end == NULL || sscanf(end + 1, " %*c %d", &parent) != 1)
        return -1;
    return parent;
}

/* True if there was any. */
static bool kill_children(pid_t except)
{
    bool any = false;
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return false;
    for (struct dirent *entry = readdir(proc); entry != NULL; entry = readdir(proc)) {
        int64_t pid = 0;
        if (!isdigit((unsigned char)entry->d_name[0]) || !psd_parse_i64(entry->d_name, 1, INT32_MAX, &pid) ||
            (pid_t)pid == except || parent_of(entry->d_name) != getpid())
            continue;
        any = true;
        kill((pid_t)pid, SIGKILL);
        waitpid((pid_t)pid, NULL, WNOHANG);
    }
    closedir(proc);
    return any;
}

void psd_launch_end_orphans(pid_t except)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), WITHIN_MS);
    while (kill_children(except) && psd_now_ns() < deadline)
        poll(NULL, 0, 2); /* their own children become ours as they end */
}
