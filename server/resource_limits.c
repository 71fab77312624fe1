#include "server/resource_limits.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "common/log.h"

enum {
    LEAST_FILES = 64, /* ZeroMQ's, the journal's, and some connections */
    FEW_FILES = 256,
    THREADS = 3, /* ZeroMQ's two and the compiler's */
};

static psd_status check_files(char *why, size_t why_bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return PSD_OK;
    if (limit.rlim_cur < limit.rlim_max) {
        rlim_t before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
            psd_log("psd", PSD_LOG_INFO, "the limit of open files cannot be raised: %s", strerror(errno));
            limit.rlim_cur = before;
        }
    }
    if (limit.rlim_cur < LEAST_FILES) {
        snprintf(why, why_bytes,
                 "psd may open only %llu files, and needs %d and one for each connection: raise the limit "
                 "(ulimit -n)",
                 (unsigned long long)limit.rlim_cur, LEAST_FILES);
        return PSD_ERR_LIMIT;
    }
    if (limit.rlim_cur < FEW_FILES)
        psd_log("psd", PSD_LOG_WARN,
                "psd may open only %llu files, and every worker is one: raise the limit for more (ulimit -n)",
                (unsigned long long)limit.rlim_cur);
    return PSD_OK;
}

static void *wait_for_end(void *end)
{
    while (sem_wait(end) != 0)
        continue;
    return NULL;
}

/* As many at a time as there will be: a limit on processes or on memory shows here. */
static psd_status check_threads(char *why, size_t why_bytes)
{
    pthread_t threads[THREADS];
    sem_t end;
    int started = 0;
    int error = 0;
    sem_init(&end, 0, 0);
    while (started < THREADS && error == 0) {
        error = pthread_create(&threads[started], NULL, wait_for_end, &end);
        started += error == 0;
    }
    for (int i = 0; i < started; i++)
        sem_post(&end);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    sem_destroy(&end);
    if (error == 0)
        return PSD_OK;
    snprintf(why, why_bytes,
             "psd cannot start its threads: %s: raise the limit of memory (ulimit -v) or processes "
             "(ulimit -u)",
             strerror(error));
    return PSD_ERR_LIMIT;
}

psd_status psd_limits_prepare(char *why, size_t why_bytes)
{
    psd_status status = check_files(why, why_bytes);
    return status == PSD_OK ? check_threads(why, why_bytes) : status;
}
