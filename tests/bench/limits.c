/* What the machine allows, measured with the two cores that the ranks use. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "tests/bench/compare.h"

#define TRIPS      4000
#define COPY_BYTES ((size_t)64 << 20)

typedef enum probe_task {
    PROBE_IDLE = 0,
    PROBE_ECHO,
    PROBE_COPY,
    PROBE_STOP,
} probe_task;

struct compare_probe {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    probe_task task; /* what the helper is to do next; under the lock */
    unsigned char *from;
    unsigned char *to;
    _Alignas(128) atomic_uint there; /* each on lines of its own */
    _Alignas(128) atomic_uint back;
};

/* The calling thread; nothing happens where there is no such core. */
static void pin(size_t core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void await(atomic_uint *word, unsigned value)
{
    while (atomic_load_explicit(word, memory_order_acquire) != value)
        relax();
}

static void echo(compare_probe *probe)
{
    for (unsigned i = 1; i <= TRIPS; i++) {
        await(&probe->there, i);
        atomic_store_explicit(&probe->back, i, memory_order_release);
    }
}

static void copy(compare_probe *probe, size_t at, size_t bytes)
{
    memcpy(probe->to + at, probe->from + at, bytes);
    __asm__ volatile("" : : "r"(probe->to) : "memory");
}

static void *help(void *argument)
{
    compare_probe *probe = argument;
    probe_task task = PROBE_IDLE;
    pin(1);
    while (task != PROBE_STOP) {
        pthread_mutex_lock(&probe->lock);
        while (probe->task == PROBE_IDLE)
            pthread_cond_wait(&probe->changed, &probe->lock);
        task = probe->task;
        probe->task = PROBE_IDLE;
        pthread_mutex_unlock(&probe->lock);
        atomic_store_explicit(&probe->back, UINT32_MAX, memory_order_release); /* awake */
        if (task == PROBE_ECHO)
            echo(probe);
        if (task == PROBE_COPY) {
            await(&probe->there, UINT32_MAX);
            copy(probe, 0, COPY_BYTES / 2);
            atomic_store_explicit(&probe->back, 0, memory_order_release);
        }
    }
    return NULL;
}

/* Returns once the helper is awake, so that its waking is not measured. */
static void ask(compare_probe *probe, probe_task task)
{
    atomic_store_explicit(&probe->there, 0, memory_order_relaxed);
    atomic_store_explicit(&probe->back, 0, memory_order_release);
    pthread_mutex_lock(&probe->lock);
    probe->task = task;
    pthread_cond_signal(&probe->changed);
    pthread_mutex_unlock(&probe->lock);
    await(&probe->back, UINT32_MAX);
}

compare_probe *compare_probe_new(void)
{
    compare_probe *probe = aligned_alloc(128, (sizeof *probe + 127) / 128 * 128);
    if (probe == NULL)
        return NULL;
    memset(probe, 0, sizeof *probe);
    probe->from = malloc(COPY_BYTES);
    probe->to = malloc(COPY_BYTES);
    if (probe->from == NULL || probe->to == NULL)
        goto free_memory;
    memset(probe->from, 1, COPY_BYTES);
    memset(probe->to, 2, COPY_BYTES);
    if (pthread_mutex_init(&probe->lock, NULL) != 0)
        goto free_memory;
    if (pthread_cond_init(&probe->changed, NULL) != 0)
        goto destroy_lock;
    if (pthread_create(&probe->thread, NULL, help, probe) != 0)
        goto destroy_condition;
    return probe;

destroy_condition:
    pthread_cond_destroy(&probe->changed);
destroy_lock:
    pthread_mutex_destroy(&probe->lock);
free_memory:
    free(probe->from);
    free(probe->to);
    free(probe);
    return NULL;
}

void compare_probe_free(compare_probe *probe)
{
    if (probe == NULL)
        return;
    ask(probe, PROBE_STOP);
    pthread_join(probe->thread, NULL);
    pthread_cond_destroy(&probe->changed);
    pthread_mutex_destroy(&probe->lock);
    free(probe->from);
    free(probe->to);
    free(probe);
}

static double half_trip(compare_probe *probe)
{
    psd_time_ns begun = 0;
    ask(probe, PROBE_ECHO);
    for (unsigned i = 1; i <= TRIPS; i++) {
        if (i == TRIPS / 2) /* the first half warms */
            begun = psd_now_ns();
        atomic_store_explicit(&probe->there, i, memory_order_release);
        await(&probe->back, i);
    }
    return (double)(psd_now_ns() - begun) / (TRIPS / 2 + 1) / 2;
}

static double copy_alone(compare_probe *probe)
{
    psd_time_ns begun = psd_now_ns();
    copy(probe, 0, COPY_BYTES);
    return (double)COPY_BYTES / (double)(psd_now_ns() - begun);
}

static double copy_both(compare_probe *probe)
{
    ask(probe, PROBE_COPY);
    psd_time_ns begun = psd_now_ns();
    atomic_store_explicit(&probe->there, UINT32_MAX, memory_order_release);
    copy(probe, COPY_BYTES / 2, COPY_BYTES / 2);
    await(&probe->back, 0);
    return (double)COPY_BYTES / (double)(psd_now_ns() - begun);
}

void compare_probe_measure(compare_probe *probe, bool with_copies, compare_limits *out)
{
    cpu_set_t before;
    bool restore = sched_getaffinity(0, sizeof before, &before) == 0;
    compare_limits limits = {0};
    pin(0);
    limits.half_trip_ns = half_trip(probe);
    if (with_copies) {
        limits.copy_gbs = copy_alone(probe);
        limits.copy_both_gbs = copy_both(probe);
    }
    if (restore)
        (void)sched_setaffinity(0, sizeof before, &before);
    *out = limits;
}
