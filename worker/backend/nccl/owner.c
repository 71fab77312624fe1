/* Who makes progress: callers that wait, and the owner thread for what nobody waits for. */
#include "worker/backend/nccl/engine.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"

#define SHORTEST     (50 * INT64_C(1000))  /* between two looks of the owner thread */
#define LONGEST_NCCL (250 * INT64_C(1000)) /* while NCCL is busy for us: it tells nobody when it is done */
#define LONGEST      (2 * PSD_NS_PER_MS)   /* while the device is */
#define SPINS        500                   /* about as long as NCCL takes to queue an operation */
#define SPINS_YIELD  32
#define STUCK_ROUNDS 100

void engine_log(const psd_backend *b, psd_log_level level, const char *format, ...)
{
    char text[PSD_MAX_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (b->config.log != NULL)
        b->config.log((int)level, text);
    else
        psd_log("nccl", level, "%s", text);
}

_Noreturn void engine_die(psd_backend *b, const char *text)
{
    engine_log(b, PSD_LOG_ERROR, "%s", text);
    _exit(EXIT_FAILURE);
}

void engine_pause(int *round, psd_time_ns deadline)
{
    psd_time_ns pause = SHORTEST / 2;
    if ((*round)++ < SPINS) {
        if (*round % SPINS_YIELD == 0)
            sched_yield(); /* to the thread that it waits for, where there are fewer cores */
        return;
    }
    for (int i = SPINS + 8; i < *round && pause < PSD_NS_PER_MS / 2; i += 8)
        pause *= 2;
    psd_time_ns left = deadline - psd_now_ns();
    if (left > 0 && left < pause)
        pause = left;
    struct timespec ts = {0, (long)pause};
    nanosleep(&ts, NULL);
}

/* ------------------------------------------------------------------------------------------------- driving */

void engine_lock_drive(psd_backend *b)
{
    pthread_mutex_lock(&b->drive);
}

void engine_unlock_drive(psd_backend *b)
{
    pthread_mutex_unlock(&b->drive);
}

/* What the host links have brought, an abort perhaps: the host backend does not look by itself while it has no operation,
 * but does for all groups when it is asked for one. What became of the one is group_error's to tell. The host backend's own
 * lock keeps this apart from a thread that opens or closes a group. */
static void poll_links(psd_backend *b)
{
    char text[PSD_MAX_TEXT];
    for (list *node = b->groups.next; node != &b->groups; node = node->next) {
        psd_backend_group *host = LIST_ENTRY(node, psd_backend_group, node)->host;
        if (host == NULL)
            continue;
        (void)b->host_ops->group_poll(host, text, sizeof text);
        return;
    }
}

bool engine_drive(psd_backend *b, bool thorough)
{
    bool waits = false;
    if (thorough)
        poll_links(b);
    LIST_EACH(&b->groups, node, after)
    {
        waits = comm_drive(LIST_ENTRY(node, psd_backend_group, node), thorough) || waits;
    }
    return waits;
}

void engine_try(psd_backend *b, psd_backend_group *g)
{
    if (pthread_mutex_trylock(&b->drive) != 0)
        return;
    if (g != NULL)
        (void)comm_drive(g, false);
    else
        (void)engine_drive(b, false);
    pthread_mutex_unlock(&b->drive);
}

void engine_kick(psd_backend *b)
{
    b->is_kicked = true;
    pthread_cond_signal(&b->wake);
}

/* ------------------------------------------------------------------------------------------- owner's thread */

/* Is there anything that nobody may be waiting for? Under lock. */
static bool has_work(const psd_backend *b)
{
    for (const list *node = b->groups.next; node != &b->groups; node = node->next) {
        const psd_backend_group *g = LIST_ENTRY(node, psd_backend_group, node);
        if (g->active > 0 || g->is_closed)
            return true;
    }
    return false;
}

/* A group that was to be aborted long ago; under lock. */
static const psd_backend_group *find_stuck(const psd_backend *b, psd_time_ns now)
{
    for (const list *node = b->groups.next; node != &b->groups; node = node->next) {
        const psd_backend_group *g = LIST_ENTRY(node, psd_backend_group, node);
        if (group_status(g) != PSD_OK && g->active > 0 &&
            now - g->broken_at > 2 * b->abort_ms * PSD_NS_PER_MS)
            return g;
    }
    return NULL;
}

/* Takes drive. A library call that does not come back would keep it from here for ever: when a group cannot be aborted
 * because of that, the process ends. */
static void take_drive(psd_backend *b)
{
    int round = 0;
    while (pthread_mutex_trylock(&b->drive) != 0) {
        char text[PSD_MAX_TEXT] = "";
        engine_pause(&round, PSD_NEVER);
        if (round % STUCK_ROUNDS != 0)
            continue;
        pthread_mutex_lock(&b->lock);
        const psd_backend_group *stuck = find_stuck(b, psd_now_ns());
        if (stuck != NULL)
            snprintf(text, sizeof text,
                     "group %u, rank %d: cannot be aborted, since a call into CUDA or NCCL does not come "
                     "back; the process ends",
                     stuck->id, stuck->rank);
        pthread_mutex_unlock(&b->lock);
        if (text[0] != '\0')
            engine_die(b, text);
    }
}

static void sleep_until(psd_backend *b, psd_time_ns deadline)
{
    struct timespec ts = {deadline / PSD_NS_PER_S, deadline % PSD_NS_PER_S};
    while (!b->is_kicked && pthread_cond_timedwait(&b->wake, &b->lock, &ts) != ETIMEDOUT)
        continue;
}

static void *owner_main(void *arg)
{
    psd_backend *b = arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    psd_time_ns pause = SHORTEST;
    bool is_over = false;
    (void)device_enter(&b->device);
    if (b->libs.cuda.cudaThreadExchangeStreamCaptureMode !=
        NULL) /* a capture elsewhere does not concern this thread */
        (void)b->libs.cuda.cudaThreadExchangeStreamCaptureMode(&mode);
    while (!is_over) {
        take_drive(b);
        bool waits = engine_drive(b, true);
        engine_unlock_drive(b);
        pthread_mutex_lock(&b->lock);
        is_over = b->is_stopping && list_empty(&b->groups);
        if (!is_over && !b->is_kicked && !waits && !has_work(b)) {
            b->is_idle = true;
            while (!b->is_kicked)
                pthread_cond_wait(&b->wake, &b->lock);
            b->is_idle = false;
        } else if (!is_over && !b->is_kicked) {
            sleep_until(b, psd_now_ns() + pause);
            psd_time_ns longest = waits ? LONGEST_NCCL : LONGEST;
            pause = pause * 2 > longest ? longest : pause * 2;
        }
        if (b->is_kicked)
            pause = SHORTEST;
        b->is_kicked = false;
        pthread_mutex_unlock(&b->lock);
    }
    return NULL;
}

psd_status engine_start(psd_backend *b)
{
    pthread_condattr_t monotonic;
    if (pthread_mutex_init(&b->drive, NULL) != 0)
        goto fail;
    if (pthread_mutex_init(&b->lock, NULL) != 0)
        goto fail_drive;
    if (pthread_condattr_init(&monotonic) != 0)
        goto fail_lock;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int error = pthread_cond_init(&b->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (error != 0)
        goto fail_lock;
    if (pthread_create(&b->owner, NULL, owner_main, b) != 0)
        goto fail_wake;
    return PSD_OK;

fail_wake:
    pthread_cond_destroy(&b->wake);
fail_lock:
    pthread_mutex_destroy(&b->lock);
fail_drive:
    pthread_mutex_destroy(&b->drive);
fail:
    return PSD_ERR_NOMEM;
}

void engine_stop(psd_backend *b)
{
    atomic_store(&b->stop_deadline, psd_now_ns() + CLOSE_NS);
    pthread_mutex_lock(&b->lock);
    b->is_stopping = true;
    engine_kick(b);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->owner, NULL);
}

void engine_destroy(psd_backend *b)
{
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    pthread_mutex_destroy(&b->drive);
}
