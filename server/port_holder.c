/* Who holds a port: /proc/net/tcp{,6} gives the inode of the listening socket, /proc/PID/fd who has it open.
 */
#include "server/listen.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATE_LISTEN 0x0A

typedef struct listener {
    unsigned long inode;
    unsigned uid;
} listener;

static bool find_listener(const char *table, uint16_t port, listener *out)
{
    bool found = false;
    char line[512];
    FILE *file = fopen(table, "re");
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), file) != NULL) {
        unsigned local = 0;
        unsigned state = 0;
        listener here = {0};
        /* sl: local:port remote:port st tx:rx tr:when retransmits uid timeout inode */
        int fields =
            sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*x:%*x %*x:%*x %*x %u %*u %lu", &local,
                   &state, &here.uid, &here.inode);
        if (fields == 4 && local == port && state == STATE_LISTEN) {
            *out = here;
            found = true;
        }
    }
    fclose(file);
    return found;
}

static bool process_has(const char *pid, const char *link)
{
    char path[300];
    bool has = false;
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return false;
    for (struct dirent *entry = readdir(dir); entry != NULL && !has; entry = readdir(dir)) {
        char target[64];
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);
        if (length <= 0)
            continue;
        target[length] = '\0';
        has = strcmp(target, link) == 0;
    }
    closedir(dir);
    return has;
}

static void name_process(const char *pid, char *out, size_t out_bytes)
{
    char path[300];
    char name[64] = "?";
    snprintf(path, sizeof(path), "/proc/%s/comm", pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fgets(name, sizeof(name), file) != NULL)
            name[strcspn(name, "\n")] = '\0';
        fclose(file);
    }
    snprintf(out, out_bytes, "%s (pid %s)", name, pid);
}

char *psd_port_holder(uint16_t port, char *out, size_t out_bytes)
{
    listener held;
    char link[64];
    out[0] = '\0';
    if (!find_listener("/proc/net/tcp", port, &held) && !find_listener("/proc/net/tcp6", port, &held))
        return out;
    snprintf(out, out_bytes, "a process of user %u that this user may not look into", held.uid);
    snprintf(link, sizeof(link), "socket:[%lu]", held.inode);
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return out;
    for (struct dirent *entry = readdir(proc); entry != NULL; entry = readdir(proc)) {
        if (!isdigit((unsigned char)entry->d_name[0]) || !process_has(entry->d_name, link))
            continue;
        name_process(entry->d_name, out, out_bytes);
        break;
    }
    closedir(proc);
    return out;
}
