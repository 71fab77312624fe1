/* The recorder's file: where it lives, that it has room, and what dead processes left there.
 *
 * Files are named <job>.<pid>.<incarnation>.psdrec; beside each may be its process's <job>.<pid>.<incarnation>.log,
 * which the backend's library writes. Their owner holds a flock on them, so that a file whose
 * lock can be had belongs to a dead process, whatever pid namespace that was in. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/recorder.h"

#define SUFFIX     ".psdrec"
#define LOG_SUFFIX ".log"
#define SEEN_MAX   4096 /* files looked at in one start */
#define MAKE_TRIES 16   /* each needs another process that ends in that instant */

typedef struct dead_file {
    char name[256];
    int64_t mtime;
} dead_file;

static void default_dir(char *out, size_t out_bytes)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime != NULL && runtime[0] == '/')
        snprintf(out, out_bytes, "%.200s/psd", runtime);
    else
        snprintf(out, out_bytes, "/dev/shm/psd-%lu", (unsigned long)geteuid());
}

/* The directory, made if it is missing (again, if its last file's owner removes it meanwhile). It must be this user's, since /dev/shm is everybody's. */
static int open_dir(const char *dir, char *why, size_t why_bytes)
{
    struct stat st;
    int fd = -1;
    int tries = 0;
    do {
        if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
            snprintf(why, why_bytes, "cannot make %s: %s", dir, strerror(errno));
            return -1;
        }
        fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    } while (fd < 0 && errno == ENOENT && tries++ < MAKE_TRIES);
    if (fd < 0) {
        snprintf(why, why_bytes, "cannot open %s: %s", dir, strerror(errno));
        return -1;
    }
    if (fstat(fd, &st) != 0 || (st.st_uid != geteuid() && st.st_uid != 0)) {
        snprintf(why, why_bytes, "%s belongs to another user", dir);
        close(fd);
        return -1;
    }
    return fd;
}

/* Is this the name of a file of the job? A job's name may have dots, too. */
static bool is_of_job(const char *name, const char *job)
{
    size_t prefix = strlen(job);
    unsigned long pid;
    unsigned long long incarnation;
    int end = -1;
    return strncmp(name, job, prefix) == 0 &&
           sscanf(name + prefix, ".%lu.%16llx" SUFFIX "%n", &pid, &incarnation, &end) == 2 && end > 0 &&
           name[prefix + (size_t)end] == '\0';
}

/* Is this the file of a dead process of the job? */
static bool is_dead(int dir, const char *name, const char *job, int64_t *mtime)
{
    struct stat st;
    if (!is_of_job(name, job))
        return false;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool dead = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (dead)
        *mtime = (int64_t)st.st_mtim.tv_sec;
    close(fd);
    return dead;
}

static int newest_first(const void *a, const void *b)
{
    const dead_file *left = a, *right = b;
    return (left->mtime < right->mtime) - (left->mtime > right->mtime);
}

/* The name of the log beside the file of this name. */
static void log_name(const char *name, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%.*s" LOG_SUFFIX, (int)(strlen(name) - strlen(SUFFIX)), name);
}

/* Keeps the newest PSD_RECORD_DEAD_KEPT files of dead processes of this job. Best effort. */
static void reclaim(int dir, const char *job)
{
    dead_file *dead = calloc(SEEN_MAX, sizeof *dead);
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = copy >= 0 ? fdopendir(copy) : NULL;
    size_t count = 0;
    if (dead == NULL || listing == NULL)
        goto done;
    for (struct dirent *entry; count < SEEN_MAX && (entry = readdir(listing)) != NULL;) {
        if (!is_dead(dir, entry->d_name, job, &dead[count].mtime))
            continue;
        snprintf(dead[count].name, sizeof dead[count].name, "%s", entry->d_name);
        count++;
    }
    qsort(dead, count, sizeof *dead, newest_first);
    for (size_t i = PSD_RECORD_DEAD_KEPT; i < count; i++) {
        char log[sizeof dead->name];
        log_name(dead[i].name, log, sizeof log);
        unlinkat(dir, log, 0);
        unlinkat(dir, dead[i].name, 0);
    }
done:
    if (listing != NULL)
        closedir(listing);
    else if (copy >= 0)
        close(copy);
    free(dead);
}

/* With room for all of it: on a full tmpfs a later write would be a SIGBUS. */
static psd_record_file *make_room_and_map(int fd, const char *path, char *why, size_t why_bytes)
{
    /* Another process that starts may be trying the lock, for an instant. */
    int error = 0;
    do
        error = flock(fd, LOCK_EX) != 0 ? errno : 0;
    while (error == EINTR);
    if (error == 0)
        error = posix_fallocate(fd, 0, (off_t)sizeof(psd_record_file));
    if (error != 0) {
        snprintf(why, why_bytes, "cannot reserve %zu bytes for %s: %s; make room there, or set PSD_RUN_DIR",
                 sizeof(psd_record_file), path, strerror(error));
        return NULL;
    }
    void *map = mmap(NULL, sizeof(psd_record_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        snprintf(why, why_bytes, "cannot map %s: %s", path, strerror(errno));
        return NULL;
    }
    return map;
}

/* Opens the directory, reclaims and makes the file. */
static int make_file(const char *dir_path, const char *path, const char *job, int *dir_out, char *why,
                     size_t why_bytes)
{
    for (int tries = 0;; tries++) {
        int dir = open_dir(dir_path, why, why_bytes);
        if (dir < 0)
            return -1;
        reclaim(dir, job);
        int fd =
            openat(dir, strrchr(path, '/') + 1, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) {
            *dir_out = dir;
            return fd;
        }
        int error = errno;
        close(dir);
        if (error != ENOENT || tries >= MAKE_TRIES) {
            snprintf(why, why_bytes, "cannot create %s: %s", path, strerror(error));
            return -1;
        }
    }
}

const char *psd_recorder_log_file(const psd_recorder *recorder, char *out, size_t out_bytes)
{
    if (recorder->path[0] == '\0')
        return NULL;
    log_name(recorder->path, out, out_bytes);
    return out;
}

void psd_recorder_file_remove(const char *path, bool with_dir)
{
    char dir[512], log[512];
    const char *slash = strrchr(path, '/');
    log_name(path, log, sizeof log);
    unlink(log);
    unlink(path);
    if (!with_dir || slash == NULL)
        return;
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    rmdir(dir); /* fails while there are files of others */
}

psd_status psd_recorder_file_make(const psd_recorder_config *config, psd_recorder *recorder, char *why,
                                  size_t why_bytes)
{
    char dir_path[256], path[512];
    psd_status status = PSD_ERR_IO;
    int dir = -1;
    bool is_given = config->run_dir != NULL && config->run_dir[0] != '\0';
    if (is_given)
        snprintf(dir_path, sizeof dir_path, "%.255s", config->run_dir);
    else
        default_dir(dir_path, sizeof dir_path);
    snprintf(path, sizeof path, "%s/%s.%ld.%016llx" SUFFIX, dir_path, config->ident.job, (long)getpid(),
             (unsigned long long)config->ident.incarnation);
    int fd = make_file(dir_path, path, config->ident.job, &dir, why, why_bytes);
    if (fd < 0)
        return status;
    psd_record_file *file = make_room_and_map(fd, path, why, why_bytes);
    if (file == NULL)
        goto remove_file;
    recorder->file = file;
    recorder->fd = fd;
    recorder->own_dir = !is_given;
    snprintf(recorder->path, sizeof recorder->path, "%s", path);
    status = PSD_OK;
    goto close_dir;

remove_file:
    unlinkat(dir, strrchr(path, '/') + 1, 0);
    close(fd);
close_dir:
    close(dir);
    return status;
}
