#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "server/psctl/plan.h"

enum { BAR = 24, FIRST_MS = 1000, EVERY_MS = 200 };

static struct {
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool over;
    const char *const *stages;
    int count;
    _Atomic int stage;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void draw(double elapsed)
{
    int stage = atomic_load(&progress.stage);
    int full = BAR * stage / progress.count;
    fprintf(stderr, "\r[");
    for (int i = 0; i < BAR; i++)
        fputc(i < full ? '#' : '.', stderr);
    fprintf(stderr, "] %-12s %.1f s", progress.stages[stage], elapsed);
}

/* Waits until the end or the time; false: the end. */
static bool pass(struct timespec *until, long ms)
{
    bool over = false;
    until->tv_nsec += ms % 1000 * 1000000;
    until->tv_sec += ms / 1000 + until->tv_nsec / 1000000000;
    until->tv_nsec %= 1000000000;
    pthread_mutex_lock(&progress.lock);
    while (!progress.over && pthread_cond_timedwait(&progress.ended, &progress.lock, until) == 0)
        continue;
    over = progress.over;
    pthread_mutex_unlock(&progress.lock);
    return !over;
}

static void *run(void *unused)
{
    struct timespec until;
    double elapsed = FIRST_MS / 1e3;
    (void)unused;
    clock_gettime(CLOCK_MONOTONIC, &until);
    for (bool on = pass(&until, FIRST_MS); on; on = pass(&until, EVERY_MS), elapsed += EVERY_MS / 1e3)
        draw(elapsed);
    if (elapsed > FIRST_MS / 1e3)
        fprintf(stderr, "\r\x1b[K");
    return NULL;
}

void psctl_progress_start(const char *const *stages, int count)
{
    pthread_condattr_t monotonic;
    if (!isatty(STDERR_FILENO))
        return;
    progress.stages = stages;
    progress.count = count;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&progress.ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    progress.running =
        pthread_create(&progress.thread, NULL, run, NULL) == 0; /* without it there is no bar */
}

void psctl_progress_stage(int stage)
{
    atomic_store(&progress.stage, stage);
}

void psctl_progress_end(void)
{
    if (!progress.running)
        return;
    pthread_mutex_lock(&progress.lock);
    progress.over = true;
    pthread_cond_signal(&progress.ended);
    pthread_mutex_unlock(&progress.lock);
    pthread_join(progress.thread, NULL);
    progress.running = false;
}
