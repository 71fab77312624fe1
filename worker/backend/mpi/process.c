/* MPI belongs to the process: it is started once, by the communication thread, which is the only one that calls it,
 * and ended by that thread when the process exits. */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "worker/backend/mpi/engine.h"

#define FINALIZE_S     5   /* for MPI_Finalize, once a group broke */
#define SPIN_TURNS     200 /* without news, before the thread sleeps between turns */
#define WAITER_YIELDS  50  /* before who waits sleeps */
#define SLEEP_SHORTEST (20 * INT64_C(1000))
#define SLEEP_BUSY     (200 * INT64_C(1000)) /* most, while operations are in flight */
#define SLEEP_IDLE     (5 * PSD_NS_PER_MS)   /* most, while none is: what comes can wait for its receive */
#define SLEEP_ALONE    (500 * PSD_NS_PER_MS) /* without a context */

mpi_process process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------------------------------- MPI itself */

/* Open MPI opens components that find its symbols only if they are global, and this object was opened with
 * RTLD_LOCAL. */
static void make_symbols_global(void)
{
    static const char *const names[] = {"libmpi.so.40", "libmpi.so.80", "libmpi.so"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (dlopen(names[i], RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != NULL)
            return;
}

/* With MPI started by the program itself, whose threads call it too. */
static bool join_program(void)
{
    int level = MPI_THREAD_SINGLE;
    int has_ended = 0;
    MPI_Finalized(&has_ended);
    if (has_ended) {
        snprintf(process.why, sizeof process.why, "the program has ended MPI (MPI_Finalize) before psd_init");
        return false;
    }
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) {
        snprintf(
            process.why, sizeof process.why,
            "the program has started MPI without threads; call MPI_Init_thread with MPI_THREAD_MULTIPLE, or "
            "leave starting MPI to psd_init");
        return false;
    }
    return true;
}

static bool start_mpi(bool *is_ours)
{
    int provided = MPI_THREAD_SINGLE;
    int is_up = 0;
    make_symbols_global();
    MPI_Initialized(&is_up);
    *is_ours = !is_up;
    if (is_up)
        return join_program();
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED) {
        snprintf(process.why, sizeof process.why, "MPI_Init_thread failed (code %d, thread level %d)", code,
                 provided);
        return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------------- the thread's loop */

static bool take_commands(list *out, bool *is_ending)
{
    list_init(out);
    pthread_mutex_lock(&process.lock);
    for (list *node; (node = list_take(&process.commands)) != NULL;)
        list_append(out, node);
    *is_ending = process.is_ending;
    pthread_mutex_unlock(&process.lock);
    return !list_empty(out);
}

static void run_commands(list *commands)
{
    for (list *node; (node = list_take(commands)) != NULL;) {
        command *c = LIST_ENTRY(node, command, node);
        c->run(c);
    }
}

static void sleep_until_called(psd_time_ns ns)
{
    psd_time_ns until = psd_now_ns() + ns;
    struct timespec ts = {until / PSD_NS_PER_S, (long)(until % PSD_NS_PER_S)};
    pthread_mutex_lock(&process.lock);
    process.is_asleep = true;
    if (list_empty(&process.commands) && !process.is_ending)
        pthread_cond_timedwait(&process.wake, &process.lock, &ts);
    process.is_asleep = false;
    pthread_mutex_unlock(&process.lock);
}

/* Nothing happened in this turn, nor in `idle` before it. */
static void rest(uint32_t idle)
{
    const engine *e = process.context;
    if (e == NULL) {
        sleep_until_called(SLEEP_ALONE);
        return;
    }
    bool is_busy = e->active > 0 || e->work_count > 0;
    if (is_busy && idle < SPIN_TURNS) {
        sched_yield();
        return;
    }
    psd_time_ns most = is_busy ? SLEEP_BUSY : SLEEP_IDLE;
    uint32_t doubled = idle > SPIN_TURNS ? (idle - SPIN_TURNS) / 8 : 0;
    psd_time_ns ns = SLEEP_SHORTEST << (doubled < 10 ? doubled : 10);
    sleep_until_called(ns < most ? ns : most);
}

static void set_state(process_state state)
{
    pthread_mutex_lock(&process.lock);
    process.state = state;
    pthread_mutex_unlock(&process.lock);
}

static void *communicate(void *unused)
{
    bool is_ours = false;
    bool is_ending = false;
    uint32_t idle = 0;
    list commands;
    (void)unused;
    prctl(PR_SET_NAME, "psd-mpi");
    prctl(PR_SET_TIMERSLACK, 1000ul);
    bool is_up = start_mpi(&is_ours);
    set_state(is_up ? PROCESS_UP : PROCESS_FAILED);
    while (!is_ending) {
        bool happened = take_commands(&commands, &is_ending);
        run_commands(&commands);
        if (process.context != NULL && engine_turn(process.context, psd_now_ns()))
            happened = true;
        idle = happened ? 0 : idle + 1;
        if (!happened && !is_ending)
            rest(idle);
    }
    if (is_up && is_ours && !process.is_unclean)
        MPI_Finalize();
    set_state(PROCESS_OVER);
    return NULL;
}

/* At exit. MPI_Finalize waits for the other ranks, as every MPI program does; not after a failure, which mpirun then
 * sees and ends the others; and only a while after a group broke, as a rank that hangs then may never come. */
static void end_process(int code, void *unused)
{
    (void)unused;
    pthread_mutex_lock(&process.lock);
    bool is_clean = process.state == PROCESS_UP && process.reserved == NULL && !process.is_unclean;
    process.is_ending = true;
    bool is_doubtful = process.is_doubtful;
    pthread_cond_signal(&process.wake);
    pthread_mutex_unlock(&process.lock);
    if (is_clean && !is_doubtful)
        pthread_join(process.thread, NULL);
    if (!is_clean || !is_doubtful)
        return;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FINALIZE_S;
    if (pthread_timedjoin_np(process.thread, NULL, &until) == 0)
        return;
    psd_log("mpi", PSD_LOG_WARN,
            "MPI_Finalize has not ended in %d s: a rank has not come to it; leaving without", FINALIZE_S);
    fflush(NULL);
    _exit(code); /* the thread is inside MPI, which must not be torn down under it */
}

/* ---------------------------------------------------------------------------------------- other threads */

static psd_status start_thread(char *why, size_t why_bytes)
{
    pthread_condattr_t attr;
    list_init(&process.commands);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&process.wake, &attr);
    pthread_cond_init(&process.done, &attr);
    pthread_condattr_destroy(&attr);
    process.state = PROCESS_STARTING;
    int error =
        on_exit(end_process, NULL) != 0 ? ENOMEM : pthread_create(&process.thread, NULL, communicate, NULL);
    if (error == 0)
        return PSD_OK;
    process.state = PROCESS_IDLE;
    snprintf(why, why_bytes, "mpi: its thread cannot be started: %s", strerror(error));
    return PSD_ERR_NOMEM;
}

psd_status process_reserve(engine *e, char *why, size_t why_bytes)
{
    psd_status status = PSD_OK;
    pthread_mutex_lock(&process.lock);
    if (process.reserved != NULL) {
        snprintf(why, why_bytes,
                 "mpi: this process has a context already, and is one rank of MPI; finalize that one first");
        status = PSD_ERR_EXISTS;
    } else if (process.state == PROCESS_IDLE) {
        status = start_thread(why, why_bytes);
    } else if (process.state == PROCESS_FAILED) {
        snprintf(why, why_bytes, "mpi: %s", process.why);
        status = PSD_ERR_BACKEND;
    } else if (process.is_unclean) {
        snprintf(
            why, why_bytes,
            "mpi: the last context of this process ended in a failure, after which MPI cannot be used anew; "
            "start it again");
        status = PSD_ERR_BACKEND;
    }
    if (status == PSD_OK)
        process.reserved = e;
    pthread_mutex_unlock(&process.lock);
    return status;
}

void process_give_back(engine *e)
{
    pthread_mutex_lock(&process.lock);
    if (process.reserved == e)
        process.reserved = NULL;
    pthread_mutex_unlock(&process.lock);
}

static void push(command *c)
{
    list_append(&process.commands, &c->node);
    if (process.is_asleep)
        pthread_cond_signal(&process.wake);
}

void process_push(command *c)
{
    pthread_mutex_lock(&process.lock);
    push(c);
    pthread_mutex_unlock(&process.lock);
}

void process_push_and_wait(command *c, const bool *flag)
{
    push(c);
    process.waiters++;
    while (!*flag)
        pthread_cond_wait(&process.done, &process.lock);
    process.waiters--;
}

psd_status process_wait(bool (*is_over)(void *), void *arg, psd_time_ns deadline)
{
    psd_status status = PSD_OK;
    for (int i = 0; i < WAITER_YIELDS; i++) {
        if (is_over(arg))
            return PSD_OK;
        sched_yield();
    }
    struct timespec ts = {deadline / PSD_NS_PER_S, (long)(deadline % PSD_NS_PER_S)};
    pthread_mutex_lock(&process.lock);
    process.waiters++;
    while (!is_over(arg) && status == PSD_OK) {
        if (deadline == PSD_NEVER)
            pthread_cond_wait(&process.done, &process.lock);
        else if (pthread_cond_timedwait(&process.done, &process.lock, &ts) == ETIMEDOUT && !is_over(arg))
            status = PSD_ERR_TIMEOUT;
    }
    process.waiters--;
    pthread_mutex_unlock(&process.lock);
    return status;
}
