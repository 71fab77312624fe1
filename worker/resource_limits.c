#include "worker/resource_limits.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "common/log.h"

enum {
    OWN_FILES = 32, /* ZeroMQ's and the backend's */
    LINK_FILES = 3,
};

static uint32_t open_files(void)
{
    uint32_t count = 0;
    DIR *listing = opendir("/proc/self/fd");
    if (listing == NULL)
        return 0;
    while (readdir(listing) != NULL)
        count++;
    closedir(listing);
    return count; /* with ".", ".." and the listing's own: near enough */
}

psd_status psd_limits_prepare_rank(int32_t world, char *why, size_t why_bytes)
{
    struct rlimit limit;
    uint32_t have = open_files();
    rlim_t need = have + 2 * OWN_FILES + (rlim_t)LINK_FILES * (rlim_t)world;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return PSD_OK;
    if (limit.rlim_cur < need && limit.rlim_cur < limit.rlim_max) {
        struct rlimit raised = {.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max,
                                .rlim_max = limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
            limit = raised;
        else
            psd_log("psd", PSD_LOG_INFO, "the limit of open files cannot be raised: %s", strerror(errno));
    }
    if (limit.rlim_cur >= have + OWN_FILES)
        return PSD_OK;
    snprintf(why, why_bytes,
             "this process may open only %llu files and has %u open; a rank needs %d more, and up to %d for "
             "each other "
             "rank: raise the limit (ulimit -n)",
             (unsigned long long)limit.rlim_cur, have, OWN_FILES, LINK_FILES);
    return PSD_ERR_LIMIT;
}
