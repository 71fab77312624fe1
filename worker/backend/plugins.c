/* Backends in shared objects. What is opened here runs with all rights of the process, so it comes only from
 * the directory that belongs to this installation, or that PSD_BACKEND_DIR names, and only if not everybody
 * could have put it there. */
#include "worker/backend/plugins.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/conf.h"

#define PREFIX       "psd_backend_"
#define SUFFIX       ".so"
#define NAME_BYTES   16 /* as in HELLO */
#define MOST_PLUGINS 8

typedef struct plugin {
    char name[NAME_BYTES];
    const psd_backend_ops *ops;
} plugin;

/* Open for the life of the process: a library like NCCL or MPI has threads and handlers that survive no
 * dlclose. */
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;
static plugin opened[MOST_PLUGINS];
static int opened_count;

/* ------------------------------------------------------------------------------------------------- where */

/* The file that this code was loaded from. The kernel says its absolute path, whatever the loader was told;
 * dladdr would give a path that may be relative, to a directory that is no longer the current one. */
static bool own_file(char *out, size_t out_bytes)
{
    static const char here;
    char *line = NULL;
    size_t capacity = 0;
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return false;
    while (!found && getline(&line, &capacity, maps) > 0) {
        unsigned long first = 0, end = 0;
        int at = -1;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &first, &end, &at) != 2 || at < 0 ||
            (uintptr_t)&here < first || (uintptr_t)&here >= end)
            continue;
        line[strcspn(line, "\n")] = '\0';
        found = line[at] == '/' && strlen(line + at) < out_bytes;
        if (found)
            memcpy(out, line + at, strlen(line + at) + 1);
    }
    free(line);
    fclose(maps);
    return found;
}

/* psd/ beside libpsd.so, or ../lib/psd from a program with the library inside. */
static psd_status find_installed(char *out, size_t out_bytes, char *why, size_t why_bytes)
{
    char file[PATH_MAX], program[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes < 0 || !own_file(file, sizeof file)) {
        snprintf(why, why_bytes,
                 "the directory of this installation cannot be found without /proc; set PSD_BACKEND_DIR");
        return PSD_ERR_IO;
    }
    program[bytes] = '\0';
    const char *from_there = strcmp(file, program) == 0 ? "../lib/psd" : "psd";
    int used = snprintf(out, out_bytes, "%.*s/%s", (int)(strrchr(file, '/') - file), file, from_there);
    if (used < 0 || (size_t)used >= out_bytes) {
        snprintf(why, why_bytes, "the path of this installation is too long; set PSD_BACKEND_DIR");
        return PSD_ERR_LIMIT;
    }
    return PSD_OK;
}

static psd_status find_dir(char *out, size_t out_bytes, char *why, size_t why_bytes)
{
    char echo[PSD_ECHO_BYTES];
    const char *given = secure_getenv("PSD_BACKEND_DIR");
    if (given == NULL || given[0] == '\0')
        return find_installed(out, out_bytes, why, why_bytes);
    if (given[0] != '/' || strlen(given) >= out_bytes) {
        snprintf(why, why_bytes, "PSD_BACKEND_DIR is \"%s\"; %s", psd_echo(given, echo, sizeof echo),
                 given[0] != '/' ? "give an absolute path" : "it is too long");
        return PSD_ERR_INVAL;
    }
    memcpy(out, given, strlen(given) + 1);
    return PSD_OK;
}

/* Names of the backends in the directory, after ", "; at most what fits. */
static void list_dir(const char *dir, char *out, size_t out_bytes)
{
    out[0] = '\0';
    DIR *listing = opendir(dir);
    if (listing == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        size_t bytes = strlen(entry->d_name);
        size_t around = strlen(PREFIX) + strlen(SUFFIX);
        if (bytes > around && bytes < around + NAME_BYTES &&
            strncmp(entry->d_name, PREFIX, strlen(PREFIX)) == 0 &&
            strcmp(entry->d_name + bytes - strlen(SUFFIX), SUFFIX) == 0)
            psd_append(out, out_bytes, ", %.*s", (int)(bytes - around), entry->d_name + strlen(PREFIX));
    }
    closedir(listing);
}

/* ------------------------------------------------------------------------------------------------- checks */

/* Nobody but the owner and the group may change the file, its directory, or what leads there; a sticky
 * directory such as /tmp may lead there, since in it only owners rename. */
static psd_status check_writers(const char *file, char *why, size_t why_bytes)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s", file);
    for (int up = 0; path[0] != '\0'; up++) {
        if (stat(path, &st) != 0) {
            snprintf(why, why_bytes, "%.300s cannot be looked at: %s", path, strerror(errno));
            return PSD_ERR_IO;
        }
        bool sticky = up > 1 && S_ISDIR(st.st_mode) && (st.st_mode & S_ISVTX) != 0;
        if ((st.st_mode & S_IWOTH) != 0 && !sticky) {
            snprintf(why, why_bytes,
                     "%.300s can be written by everybody, so nothing is loaded from there; "
                     "take that right away (chmod o-w)",
                     path);
            return PSD_ERR_REFUSED;
        }
        *strrchr(path, '/') = '\0';
    }
    return PSD_OK;
}

static bool name_is_plain(const char *name)
{
    size_t bytes = strlen(name);
    for (size_t i = 0; i < bytes; i++)
        if (!islower((unsigned char)name[i]) && !isdigit((unsigned char)name[i]) && name[i] != '_')
            return false;
    return bytes > 0 && bytes < NAME_BYTES;
}

static void say_missing(const char *name, const char *dir, char *why, size_t why_bytes)
{
    char echo[PSD_ECHO_BYTES], others[128];
    if (strcmp(name, "nccl") == 0 || strcmp(name, "mpi") == 0) {
        snprintf(why, why_bytes,
                 "backend %s is not installed: there is no %.300s/" PREFIX "%s" SUFFIX
                 "; build psd where %s, or set PSD_BACKEND_DIR to where it is",
                 name, dir, name,
                 name[0] == 'n' ? "CUDA's and NCCL's headers are" : "Open MPI's mpicc is (libopenmpi-dev)");
        return;
    }
    list_dir(dir, others, sizeof others);
    snprintf(why, why_bytes, "there is no backend \"%s\"; PSD_BACKEND is one of: auto, host%s (in %.300s)",
             psd_echo(name, echo, sizeof echo), others, dir);
}

/* --------------------------------------------------------------------------------------------------- open */

static psd_status open_object(const char *name, const char *file, const psd_backend_ops **out, char *why,
                              size_t why_bytes)
{
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL) {
        const char *error = dlerror();
        snprintf(why, why_bytes, "backend %s cannot be loaded: %s", name, error != NULL ? error : file);
        return PSD_ERR_UNSUPPORTED;
    }
    const psd_backend_plugin *entry = dlsym(object, "psd_backend_entry");
    if (entry == NULL) {
        snprintf(why, why_bytes, "%.300s is no backend of psd: it has no psd_backend_entry", file);
        return PSD_ERR_UNSUPPORTED;
    }
    if (entry->abi != PSD_BACKEND_ABI) {
        snprintf(
            why, why_bytes,
            "%.300s has version %u of the backend interface, this psd has %u; install both from one build",
            file, entry->abi, (unsigned)PSD_BACKEND_ABI);
        return PSD_ERR_UNSUPPORTED;
    }
    if (entry->ops == NULL || entry->ops->name == NULL || strcmp(entry->ops->name, name) != 0) {
        snprintf(why, why_bytes, "%.300s holds a backend of another name: %.32s", file,
                 entry->ops != NULL && entry->ops->name != NULL ? entry->ops->name : "(no name)");
        return PSD_ERR_UNSUPPORTED;
    }
    psd_status status = psd_backend_verify(entry->ops, why, why_bytes);
    if (status == PSD_OK)
        *out = entry->ops;
    return status;
}

static psd_status find_and_open(const char *name, const psd_backend_ops **out, char *why, size_t why_bytes)
{
    char dir[PATH_MAX], file[PATH_MAX], real[PATH_MAX];
    psd_status status = find_dir(dir, sizeof dir, why, why_bytes);
    if (status != PSD_OK)
        return status;
    int used = name_is_plain(name) ? snprintf(file, sizeof file, "%s/" PREFIX "%s" SUFFIX, dir, name) : 0;
    bool is_there = used > 0 && (size_t)used < sizeof file && realpath(file, real) != NULL;
    if (!is_there && used > 0 && errno != ENOENT && errno != ENOTDIR) {
        snprintf(why, why_bytes, "backend %s: %.300s cannot be looked at: %s", name, file, strerror(errno));
        return PSD_ERR_IO;
    }
    if (!is_there) {
        say_missing(name, dir, why, why_bytes);
        return PSD_ERR_NOT_FOUND;
    }
    /* Who could change a link could as well change the file. */
    status = check_writers(file, why, why_bytes);
    if (status == PSD_OK)
        status = check_writers(real, why, why_bytes);
    if (status == PSD_OK)
        status = open_object(name, real, out, why, why_bytes);
    return status;
}

psd_status psd_plugin_load(const char *name, const psd_backend_ops **out, char *why, size_t why_bytes)
{
    const psd_backend_ops *ops = NULL;
    psd_status status = PSD_OK;
    pthread_mutex_lock(&opened_lock);
    for (int i = 0; i < opened_count && ops == NULL; i++)
        if (strcmp(opened[i].name, name) == 0)
            ops = opened[i].ops;
    if (ops == NULL && opened_count == MOST_PLUGINS) {
        snprintf(why, why_bytes, "this process has %d backends open already", opened_count);
        status = PSD_ERR_LIMIT;
    } else if (ops == NULL) {
        status = find_and_open(name, &ops, why, why_bytes);
        if (status == PSD_OK) {
            snprintf(opened[opened_count].name, NAME_BYTES, "%s", name);
            opened[opened_count++].ops = ops;
        }
    }
    pthread_mutex_unlock(&opened_lock);
    if (status == PSD_OK)
        *out = ops;
    return status;
}
