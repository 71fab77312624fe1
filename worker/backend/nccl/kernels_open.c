#include "worker/backend/nccl/kernels_open.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const psd_kernels *opened; /* under the lock; once found it stays */

/* Where this object is, with the name of its neighbour. */
static void find_path(char *out, size_t bytes)
{
    static const char name[] = "psd_kernels.so";
    const char *given = secure_getenv("PSD_KERNELS_LIBRARY");
    Dl_info self;
    const char *slash = dladdr(&opened, &self) != 0 ? strrchr(self.dli_fname, '/') : NULL;
    if (given != NULL && given[0] != '\0')
        snprintf(out, bytes, "%s", given);
    else if (slash != NULL)
        snprintf(out, bytes, "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname, name);
    else
        snprintf(out, bytes, "%s", name);
}

static const psd_kernels *open_table(char *why, size_t why_bytes)
{
    char path[4096];
    find_path(path, sizeof path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, why_bytes, "no kernels for the device: %s", dlerror());
        return NULL;
    }
    const psd_kernels *table = dlsym(library, "psd_kernels_entry");
    if (table != NULL && table->abi == PSD_KERNELS_ABI)
        return table;
    snprintf(why, why_bytes, "%s is not of this version of psd", path);
    dlclose(library);
    return NULL;
}

const psd_kernels *kernels_open(char *why, size_t why_bytes)
{
    pthread_mutex_lock(&lock);
    if (opened == NULL)
        opened = open_table(why, why_bytes);
    const psd_kernels *table = opened;
    pthread_mutex_unlock(&lock);
    return table;
}
