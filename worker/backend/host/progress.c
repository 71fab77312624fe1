/* Who drives the engine: a caller that waits, else the progress thread.
 *
 * One thread at a time drives; other waiters sleep on a condition variable until their request is complete or
 * they must take over. The progress thread costs a caller nothing per call: while calls come it only looks,
 * at every tick, whether operations are in flight that no call has touched since the last tick, and then
 * drives until a caller waits again. Ticks are short while it finds such operations: blocking calls leave none.
 * Where it has no core of its own, it spins little: the program computes there. */
#include "worker/backend/host/engine.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define TICK_NS        (500 * INT64_C(1000))
#define TICK_BUSY_NS   (100 * INT64_C(1000)) /* while the program leaves operations to the progress thread */
#define BUSY_TICKS     50                    /* without such an operation, until they are long again */
#define FEW_CALLS      8                     /* in a tick */
#define IDLE_NS        (10 * PSD_NS_PER_MS)  /* without a call, until the progress thread goes to sleep */
#define SPIN_NS        (50 * INT64_C(1000))
#define PAUSE_NS       (2 * INT64_C(1000)) /* the first part of it without giving the core away */
#define SPIN_SHORT_NS  (5 * INT64_C(1000)) /* where others need the core */
#define SHARED_NS      1500                /* a yield of this long gave the core to somebody */
#define SHARED_WEIGHT  8                   /* not every yield does, though somebody waits */
#define SHARED_MOST    128
#define POLLS_PER_LOOK 64 /* polls of links, to one that asks the kernel */
#define GLANCES        32 /* at the links, to one look at the clock */

typedef struct spin {
    psd_time_ns now;   /* when the clock was read last */
    psd_time_ns since; /* the last progress; 0: not idle */
    uint32_t polls;
    bool is_short;  /* spins little */
    bool is_thread; /* it is the progress thread who drives */
    bool is_crowded;
    bool has_slept;
} spin;

/* ------------------------------------------------------------------------------------------------ driving */

void progress_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* About a microsecond with the lock, unless something comes or somebody wants the lock. */
static void glance(engine *e)
{
    for (int i = 0; i < GLANCES; i++) {
        if (engine_has_news(e) || atomic_load_explicit(&e->contenders, memory_order_relaxed) > 0)
            return;
        progress_pause();
    }
}

static uint32_t ranks_here(const engine *e)
{
    uint32_t ranks = 1;
    for (const list *node = e->peers.next; node != &e->peers; node = node->next) {
        const peer *p = LIST_ENTRY(node, peer, node);
        bool may_be_here = host_link_is_shm(p->link) || host_link_get_state(p->link) == HOST_LINK_CONNECTING;
        if (!p->is_broken && may_be_here)
            ranks++;
    }
    return ranks;
}

bool progress_is_crowded(const engine *e)
{
    return ranks_here(e) > e->cores;
}

/* Gives the lock to those who ask for it: a mutex by itself is not fair. */
static void give_way(engine *e)
{
    if (atomic_load(&e->contenders) == 0)
        return;
    engine_unlock(e);
    for (int i = 0; i < 100 && atomic_load(&e->contenders) > 0; i++)
        sched_yield();
    pthread_mutex_lock(&e->lock);
}

static psd_time_ns earliest(psd_time_ns a, psd_time_ns b)
{
    return a < b ? a : b;
}

static void sleep_in_net(engine *e, psd_time_ns deadline)
{
    host_net_arm(e->net);
    if (!engine_poll(e, true)) {
        e->sleep_until = earliest(earliest(deadline, e->next_timer), host_net_deadline(e->net));
        e->driver_is_asleep = true;
        engine_unlock(e);
        host_net_sleep(e->net, e->sleep_until);
        engine_lock(e);
        e->driver_is_asleep = false;
    }
    host_net_disarm(e->net);
}

/* With a core for each rank, two may still be on one, and the kernel, which sees both run hot, leaves them there for
 * long: every message then costs a switch. Who sleeps for a moment is put on an idle core when it wakes. */
void progress_yield(engine *e)
{
    engine_unlock(e);
    psd_time_ns before = psd_now_ns();
    sched_yield();
    bool is_shared = psd_now_ns() - before > SHARED_NS;
    engine_lock(e);
    e->shared_yields += is_shared ? SHARED_WEIGHT : 0;
    e->shared_yields -= e->shared_yields > 0 ? 1 : 0;
    if (e->shared_yields < SHARED_MOST)
        return;
    e->shared_yields = 0;
    if (progress_is_crowded(e))
        return;
    struct timespec moment = {.tv_nsec = 1000};
    engine_unlock(e);
    (void)nanosleep(&moment, NULL);
    engine_lock(e);
}

/* One turn of the driver. The caller looks at its condition before each. */
static void drive(engine *e, spin *s, psd_time_ns deadline)
{
    bool with_kernel = s->has_slept || ++s->polls % POLLS_PER_LOOK == 0;
    s->has_slept = false;
    if (engine_poll(e, with_kernel)) {
        s->since = 0;
        if (with_kernel)
            s->now = psd_now_ns();
        give_way(e);
        return;
    }
    psd_time_ns now = psd_now_ns();
    s->now = now;
    request_see(e, now);
    if (s->since == 0) {
        s->since = now;
        uint32_t ranks = ranks_here(e);
        s->is_crowded = ranks > e->cores;
        s->is_short = s->is_crowded || (s->is_thread && 2 * ranks > e->cores);
    }
    if (now >= e->next_timer) {
        engine_timers(e, now);
        return;
    }
    if (now - s->since < (s->is_short ? SPIN_SHORT_NS : SPIN_NS) && now < deadline) {
        if (!s->is_crowded && now - s->since <= PAUSE_NS)
            glance(e);
        else
            progress_yield(e); /* cheap on a core of one's own, and right when there is none */
        give_way(e);
        return;
    }
    sleep_in_net(e, deadline);
    s->has_slept = true;
}

static void sleep_until_woken(engine *e, pthread_cond_t *condition, psd_time_ns deadline)
{
    if (deadline == PSD_NEVER) {
        pthread_cond_wait(condition, &e->lock);
        return;
    }
    struct timespec when = {.tv_sec = deadline / PSD_NS_PER_S, .tv_nsec = deadline % PSD_NS_PER_S};
    (void)pthread_cond_timedwait(condition, &e->lock, &when);
}

/* ------------------------------------------------------------------------------------------------ waiting */

void progress_notify(engine *e)
{
    if (e->driver_is_asleep)
        host_net_wake(e->net);
    if (e->sleepers > 0)
        pthread_cond_broadcast(&e->waiters_wake);
}

static bool has_work(const engine *e)
{
    return !list_empty(&e->active) || e->queued > 0;
}

static void stop_listening(engine *e)
{
    uint64_t one = 1;
    e->progress = PROGRESS_TICKING; /* once is enough */
    while (write(e->listen_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
}

void progress_leave(engine *e)
{
    e->calls++;
    if (e->waiters > 0 || !has_work(e))
        return;
    if (e->progress == PROGRESS_PARKED)
        pthread_cond_signal(&e->progress_wake);
    else if (e->progress == PROGRESS_LISTENING)
        stop_listening(e);
}

static void stop_driving(engine *e)
{
    e->has_driver = false;
    if (e->sleepers > 0)
        pthread_cond_broadcast(&e->waiters_wake); /* one of them takes over */
}

psd_status progress_wait(engine *e, bool (*is_met)(void *), void *arg, psd_time_ns deadline)
{
    psd_status status = PSD_OK;
    bool drives = false;
    spin s = {.now = INT64_MIN};
    e->waiters++;
    if (e->progress == PROGRESS_DRIVING && e->driver_is_asleep)
        host_net_wake(e->net);
    while (!is_met(arg)) {
        if (s.now >= deadline) {
            status = PSD_ERR_TIMEOUT;
            break;
        }
        if (!e->has_driver) {
            e->has_driver = true;
            drives = true;
        }
        if (drives) {
            drive(e, &s, deadline);
        } else {
            e->sleepers++;
            sleep_until_woken(e, &e->waiters_wake, deadline);
            e->sleepers--;
            s.now = psd_now_ns();
        }
    }
    e->waiters--;
    if (drives)
        stop_driving(e);
    progress_leave(e);
    return status;
}

/* --------------------------------------------------------------------------------------------- the thread */

static void drive_alone(engine *e)
{
    spin s = {.is_thread = true};
    e->has_driver = true;
    e->progress = PROGRESS_DRIVING;
    while (!e->stop && e->waiters == 0 && has_work(e))
        drive(e, &s, PSD_NEVER);
    stop_driving(e);
}

/* Connections, lost peers and TCP data are handled; peers that write to a ring are not asked to wake anybody.
 */
static void listen_in_net(engine *e)
{
    e->progress = PROGRESS_LISTENING;
    (void)engine_poll(e, true);
    psd_time_ns now = psd_now_ns();
    engine_timers(e, now);
    psd_time_ns until = earliest(host_net_deadline(e->net), e->next_timer);
    if (e->stop || has_work(e))
        return;
    struct pollfd fds[2] = {{.fd = host_net_fd(e->net), .events = POLLIN},
                            {.fd = e->listen_fd, .events = POLLIN}};
    psd_time_ns left = until == PSD_NEVER ? 0 : until > now ? until - now : 0;
    struct timespec timeout = {.tv_sec = left / PSD_NS_PER_S, .tv_nsec = left % PSD_NS_PER_S};
    engine_unlock(e);
    (void)ppoll(fds, 2, until == PSD_NEVER ? NULL : &timeout, NULL);
    uint64_t count;
    if (fds[1].revents != 0 && read(e->listen_fd, &count, sizeof(count)) < 0)
        count = 0; /* somebody was faster: the same to us */
    engine_lock(e);
    (void)engine_poll(e, true);
}

static void *progress_main(void *arg)
{
    engine *e = arg;
    uint32_t busy_ticks = 0;
    psd_time_ns idle = IDLE_NS;
    psd_time_ns tick = 0;
    engine_lock(e);
    uint32_t seen = e->calls;
    while (!e->stop) {
        bool was_called = e->calls != seen;
        bool is_away = e->calls - seen <= FEW_CALLS; /* it computes, mostly */
        seen = e->calls;
        idle = was_called ? 0 : idle + tick;
        busy_ticks -= busy_ticks > 0;
        if (e->waiters == 0 && has_work(e)) {
            busy_ticks = is_away ? BUSY_TICKS : busy_ticks;
            if (was_called)
                (void)engine_poll(e, false);
            else
                drive_alone(e);
        }
        if (e->stop)
            break;
        tick = busy_ticks > 0 ? TICK_BUSY_NS : TICK_NS;
        if (idle < IDLE_NS) {
            e->progress = PROGRESS_TICKING;
            sleep_until_woken(e, &e->progress_wake, psd_now_ns() + tick);
        } else if (e->waiters == 0 && !list_empty(&e->groups)) {
            idle = IDLE_NS;
            listen_in_net(e);
        } else {
            idle = IDLE_NS;
            e->progress = PROGRESS_PARKED;
            sleep_until_woken(e, &e->progress_wake, PSD_NEVER);
        }
    }
    engine_unlock(e);
    return NULL;
}

/* Signals are the program's: the thread takes none. */
static int create_thread(engine *e)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&e->progress_thread, NULL, progress_main, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

psd_status progress_start(engine *e)
{
    pthread_condattr_t attributes;
    psd_status status = PSD_ERR_NOMEM;
    if (pthread_condattr_init(&attributes) != 0)
        goto out;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    if (pthread_cond_init(&e->waiters_wake, &attributes) != 0)
        goto out_attributes;
    if (pthread_cond_init(&e->progress_wake, &attributes) != 0)
        goto out_waiters;
    e->listen_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->listen_fd < 0)
        goto out_progress;
    if (create_thread(e) != 0)
        goto out_listen;
    pthread_condattr_destroy(&attributes);
    return PSD_OK;
out_listen:
    close(e->listen_fd);
out_progress:
    pthread_cond_destroy(&e->progress_wake);
out_waiters:
    pthread_cond_destroy(&e->waiters_wake);
out_attributes:
    pthread_condattr_destroy(&attributes);
out:
    return status;
}

void progress_stop(engine *e)
{
    engine_lock(e);
    e->stop = true;
    pthread_cond_signal(&e->progress_wake);
    host_net_wake(e->net);
    stop_listening(e);
    engine_unlock(e);
    pthread_join(e->progress_thread, NULL);
    close(e->listen_fd);
    pthread_cond_destroy(&e->progress_wake);
    pthread_cond_destroy(&e->waiters_wake);
}
