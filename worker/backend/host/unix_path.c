#include "worker/backend/host/unix_path.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PREFIX     "psd-"
#define SUFFIX     ".sock"
#define SEEN_MAX   4096 /* files looked at in one start */
#define DEAD_AFTER 5    /* seconds: a younger file's owner may be between making it and being found by it */

void unix_path_dir(const char *run_dir, char out[UNIX_PATH_DIR])
{
    int length;
    if (run_dir && run_dir[0])
        length = snprintf(out, UNIX_PATH_DIR, "%s", run_dir);
    else
        length = snprintf(out, UNIX_PATH_DIR, "/dev/shm/psd-%lu", (unsigned long)geteuid());
    if (length < 0 || length >= UNIX_PATH_DIR)
        out[0] = '\0';
}

bool unix_path_address(const char *dir, const char *name, struct sockaddr_un *out)
{
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    int length = snprintf(out->sun_path, sizeof out->sun_path, "%s/%s" SUFFIX, dir, name);
    return dir[0] && length > 0 && (size_t)length < sizeof out->sun_path;
}

/* "psd-<hex>.sock" */
static bool is_ours(const char *file)
{
    if (strncmp(file, PREFIX, strlen(PREFIX)) != 0)
        return false;
    const char *digit = file + strlen(PREFIX);
    while (isxdigit((unsigned char)*digit))
        digit++;
    return strcmp(digit, SUFFIX) == 0;
}

/* Does nobody listen there? Asked with a datagram socket, of which a listener hears nothing: the kernel answers
 * EPROTOTYPE if a stream socket is bound to the file, ECONNREFUSED if none is. */
static bool is_dead(int probe, int dir_fd, const char *dir, const char *file)
{
    struct stat info;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, file);
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return false;
    if (fstatat(dir_fd, file, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(info.st_mode) ||
        time(NULL) - info.st_mtim.tv_sec < DEAD_AFTER)
        return false;
    return connect(probe, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED;
}

/* Best effort. */
static void reclaim(int dir_fd, const char *dir)
{
    int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = copy >= 0 ? fdopendir(copy) : NULL;
    if (probe < 0 || !listing)
        goto done;
    struct dirent *entry;
    for (int seen = 0; seen < SEEN_MAX && (entry = readdir(listing)) != NULL; seen++)
        if (is_ours(entry->d_name) && is_dead(probe, dir_fd, dir, entry->d_name))
            (void)unlinkat(dir_fd, entry->d_name, 0);
done:
    if (listing)
        closedir(listing);
    else if (copy >= 0)
        close(copy);
    if (probe >= 0)
        close(probe);
}

/* It must be this user's or root's, since /dev/shm is everybody's. */
static psd_status open_dir(const char *dir, int *out, char *why, size_t why_bytes)
{
    struct stat info;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        snprintf(why, why_bytes, "cannot make %s: %s", dir, strerror(errno));
        return PSD_ERR_IO;
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, why_bytes, "cannot open %s: %s", dir, strerror(errno));
        return PSD_ERR_IO;
    }
    if (fstat(fd, &info) != 0 || (info.st_uid != geteuid() && info.st_uid != 0)) {
        snprintf(why, why_bytes, "%s belongs to another user", dir);
        close(fd);
        return PSD_ERR_IO;
    }
    *out = fd;
    return PSD_OK;
}

psd_status unix_path_listen(const char *dir, const char *name, int backlog, int *out_fd, char *why,
                            size_t why_bytes)
{
    struct sockaddr_un address;
    int dir_fd;
    if (!unix_path_address(dir, name, &address)) {
        snprintf(why, why_bytes, "the path of the directory is too long for a unix socket");
        return PSD_ERR_LIMIT;
    }
    psd_status status = open_dir(dir, &dir_fd, why, why_bytes);
    if (status != PSD_OK)
        return status;
    reclaim(dir_fd, dir);
    close(dir_fd);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        snprintf(why, why_bytes, "cannot make %s: %s", address.sun_path, strerror(errno));
        goto failed;
    }
    if (listen(fd, backlog) != 0) {
        snprintf(why, why_bytes, "cannot listen on %s: %s", address.sun_path, strerror(errno));
        unix_path_remove(dir, name);
        goto failed;
    }
    *out_fd = fd;
    return PSD_OK;
failed:
    if (fd >= 0)
        close(fd);
    return PSD_ERR_IO;
}

void unix_path_remove(const char *dir, const char *name)
{
    struct sockaddr_un address;
    if (unix_path_address(dir, name, &address))
        (void)unlink(address.sun_path);
}
