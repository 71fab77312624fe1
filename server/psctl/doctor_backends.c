/* Doctor: which backends are installed, and what those other than host would find here. */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"
#include "server/psctl/doctor.h"

/* int f(int *version), as ncclGetVersion and cudaRuntimeGetVersion are; 0 is success. */
typedef int (*version_function)(int *version);

/* Loads one of the NULL-terminated names and asks it for its version; false after writing why not. */
static bool load_version(const char *const *names, const char *symbol, const char **name, int *version,
                         char *why, size_t why_bytes)
{
    void *library = NULL;
    for (; *names != NULL && library == NULL; names++) {
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        *name = *names;
    }
    if (library == NULL) {
        const char *error = dlerror();
        snprintf(why, why_bytes, "%s", error != NULL ? error : "not found");
        return false;
    }
    version_function function;
    void *address = dlsym(library, symbol);
    memcpy(&function, &address, sizeof function); /* POSIX: a function's address fits into a void pointer */
    bool fine = address != NULL && function(version) == 0;
    if (!fine)
        snprintf(why, why_bytes, "%s has no working %s", *name, symbol);
    dlclose(library);
    return fine;
}

static bool has_device(void)
{
    return access("/dev/nvidiactl", F_OK) == 0;
}

static void add_missing(psctl_report *report, const char *check, const char *what, const char *why)
{
    if (has_device())
        psctl_report_add(report, check, PSCTL_WARN,
                         "there is an NVIDIA device, but %s cannot be loaded: %s; the nccl backend needs it",
                         what, why);
    else
        psctl_report_add(report, check, PSCTL_OK, "no NVIDIA device here and no %s: the host backend is used",
                         what);
}

void psctl_check_nccl(psctl_report *report)
{
    static const char *const names[] = {"libnccl.so.2", NULL};
    const char *name = NULL;
    char why[200];
    int version = 0;
    if (!load_version(names, "ncclGetVersion", &name, &version, why, sizeof why))
        add_missing(report, "nccl", "libnccl.so.2", why);
    else if (version >= 10000) /* since 2.9: major * 10000 + minor * 100 + patch */
        psctl_report_add(report, "nccl", PSCTL_OK, "%s, version %d.%d.%d", name, version / 10000,
                         version / 100 % 100, version % 100);
    else
        psctl_report_add(report, "nccl", PSCTL_WARN, "%s, version %d.%d: too old, it was made before 2.9",
                         name, version / 1000, version / 100 % 10);
}

void psctl_check_cuda(psctl_report *report)
{
    static const char *const names[] = {"libcudart.so", "libcudart.so.13", "libcudart.so.12",
                                        "libcudart.so.11.0", NULL};
    const char *name = NULL;
    char why[200];
    int version = 0;
    if (!load_version(names, "cudaRuntimeGetVersion", &name, &version, why, sizeof why))
        add_missing(report, "cuda", "libcudart", why);
    else
        psctl_report_add(report, "cuda", has_device() ? PSCTL_OK : PSCTL_WARN, "%s, version %d.%d%s", name,
                         version / 1000, version / 10 % 100,
                         has_device() ? "" : ", but no NVIDIA device is here (/dev/nvidiactl)");
}

/* Where programs that are installed beside psctl look for backends, see psd-environment(7). */
static bool plugin_dir(char *out, size_t out_bytes)
{
    char program[PATH_MAX];
    const char *given = getenv("PSD_BACKEND_DIR");
    if (given != NULL && given[0] != '\0')
        return snprintf(out, out_bytes, "%s", given) < (int)out_bytes;
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes <= 0)
        return false;
    program[bytes] = '\0';
    *strrchr(program, '/') = '\0';
    return snprintf(out, out_bytes, "%s/../lib/psd", program) < (int)out_bytes;
}

void psctl_check_installed(psctl_report *report)
{
    static const char prefix[] = "psd_backend_", suffix[] = ".so";
    char dir[PATH_MAX + 16] = "", names[128] = "host";
    DIR *listing = plugin_dir(dir, sizeof dir) ? opendir(dir) : NULL;
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        size_t bytes = strlen(entry->d_name);
        if (bytes > strlen(prefix) + strlen(suffix) && strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
            strcmp(entry->d_name + bytes - strlen(suffix), suffix) == 0)
            psd_append(names, sizeof names, ", %.*s", (int)(bytes - strlen(prefix) - strlen(suffix)),
                       entry->d_name + strlen(prefix));
    }
    if (listing != NULL)
        closedir(listing);
    if (strcmp(names, "host") == 0)
        psctl_report_add(report, "backends", PSCTL_OK, "host; there is no other in %.250s", dir);
    else
        psctl_report_add(report, "backends", PSCTL_OK, "%s (those other than host are in %.200s)", names,
                         dir);
}

void psctl_check_mpi(psctl_report *report)
{
    char path[4096];
    char *rest = NULL;
    const char *search = getenv("PATH");
    char *copy = search != NULL ? strdup(search) : NULL;
    bool found = false;
    for (char *directory = copy != NULL ? strtok_r(copy, ":", &rest) : NULL; directory != NULL && !found;
         directory = strtok_r(NULL, ":", &rest)) {
        int bytes = snprintf(path, sizeof path, "%s/mpirun", directory);
        found = bytes > 0 && (size_t)bytes < sizeof path && access(path, X_OK) == 0;
    }
    free(copy);
    if (found)
        psctl_report_add(report, "mpi", PSCTL_OK, "mpirun is %.300s", path);
    else
        psctl_report_add(report, "mpi", PSCTL_OK, "no mpirun in PATH: the mpi backend cannot be used here");
}
