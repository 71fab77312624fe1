#include "worker/launch/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "worker/launch/cores.h"
#include "worker/launch/environment.h"
#include "worker/launch/orphans.h"
#include "worker/launch/output.h"
#include "worker/launch/spawn.h"
#include "worker/launch/stop_job.h"

#define GRACE_MS    5000 /* between SIGTERM and SIGKILL */
#define DRAIN_MS    1000 /* for output that comes after the last rank has ended */
#define STOP_ASK_MS 1000
#define COLLECT_MS  100 /* after the first failure: ranks that failed with it, or before it */
#define TWICE_MS    300 /* timeout(1) sends its signal to psrun twice at once, which is one request */
#define EVENTS      64
#define MAX_WAIT_MS 1000
#define TOLD_CORES  8 /* ranks whose cores are printed */

typedef struct rank_process {
    psd_launch_rank place;
    pid_t pid; /* 0: not running */
} rank_process;

typedef struct supervisor {
    const psd_launch_args *args;
    rank_process *ranks;
    psd_launch_stream *streams; /* two for each rank: stdout, stderr */
    int running;
    int open_streams;
    int signal_fd;
    int epoll_fd;
    pid_t coordinator;
    bool coordinator_ended;
    bool stopping;
    int told_by; /* the signal that psrun was told to end by; 0: none */
    psd_time_ns told_at;
    const rank_process *suspect; /* of the ranks that failed so far the likeliest cause; NULL: none */
    siginfo_t suspect_end;
    psd_time_ns collect_until; /* PSD_NEVER: no suspect */
    bool failed; /* why is in `closing`, which is printed last, and `code` is psrun's exit code */
    int code;
    char closing[512];
    psd_time_ns timeout_at;
    psd_time_ns kill_at;  /* PSD_NEVER: nothing to kill */
    psd_time_ns drain_by; /* PSD_NEVER: ranks are running */
} supervisor;

int psd_launch_signals(void)
{
    static const int numbers[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaddset(&set, numbers[i]);
    signal(SIGPIPE, SIG_IGN);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return -1;
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* ------------------------------------------------------------------------------------------------- ending */

static void fail(supervisor *s, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The first failure is the one that counts. */
static void fail(supervisor *s, int code, const char *format, ...)
{
    if (s->failed)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(s->closing, sizeof(s->closing), format, args);
    va_end(args);
    s->failed = true;
    s->code = code;
}

static void signal_ranks(const supervisor *s, int number)
{
    for (int32_t i = 0; i < s->args->world; i++)
        if (s->ranks[i].pid != 0)
            kill(-s->ranks[i].pid, number);
}

/* Ranks on other hosts do not see local signals: psd tells them, and their output closes. */
static void stop_remote(const supervisor *s)
{
    char why[512];
    if (s->args->host_count == 0)
        return;
    psd_status status =
        psd_launch_stop_job(s->args->coordinator, s->args->job, STOP_ASK_MS, why, sizeof(why));
    if (status != PSD_OK && status != PSD_ERR_STOPPED) /* it may have ended meanwhile */
        fprintf(stderr, "psrun: job %s could not be stopped through %s: %s\n", s->args->job,
                s->args->coordinator, why);
}

static void begin_stop(supervisor *s, int number)
{
    if (s->stopping)
        return;
    s->stopping = true;
    if (s->running == 0)
        return;
    stop_remote(s);
    signal_ranks(s, number);
    signal_ranks(s, SIGCONT); /* one that is stopped could not end */
    s->kill_at = psd_deadline_ns(psd_now_ns(), GRACE_MS);
}

/* ----------------------------------------------------------------------------------------------- starting */

static bool watch(const supervisor *s, int fd, psd_launch_stream *stream)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* A pipe from a rank's stream `to` (1 or 2); the writing end is returned, or -1. */
static int open_stream(supervisor *s, int32_t rank, int to)
{
    psd_launch_stream *stream = &s->streams[rank * 2 + to - 1];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    stream->fd = ends[0];
    stream->to = to;
    stream->rank = rank;
    stream->prefix = s->args->prefix;
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0 || !watch(s, ends[0], stream)) {
        close(ends[1]);
        return -1;
    }
    s->open_streams++;
    return ends[1];
}

static void start_failed(supervisor *s, const rank_process *process, const char *program, int error,
                         bool exec_failed)
{
    fail(s, exec_failed ? (error == ENOENT ? 127 : 126) : 1, "rank %d: \"%s\" cannot be %s: %s",
         process->place.rank, program, exec_failed ? "run" : "started", strerror(error));
}

/* What becomes of --bind, in one line; the first ranks stand for all. */
static void tell_cores(const psd_launch_args *args)
{
    char text[512];
    size_t at = 0;
    cpu_set_t cores;
    if (!psd_cores_share(0, args->world, &cores)) {
        fprintf(stderr, "psrun: --bind core: there are fewer cores than ranks (%d): none is bound\n",
                args->world);
        return;
    }
    for (int32_t rank = 0; rank < args->world && rank < TOLD_CORES; rank++) {
        char list[32];
        (void)psd_cores_share(rank, args->world, &cores);
        psd_cores_format(&cores, list, sizeof(list));
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%d on %s", rank > 0 ? ", " : "", rank, list);
    }
    fprintf(stderr, "psrun: ranks bound to cores: %s%s\n", text, args->world > TOLD_CORES ? ", ..." : "");
}

static void start_rank(supervisor *s, int32_t rank)
{
    rank_process *process = &s->ranks[rank];
    psd_strings environment = {0};
    psd_strings remote = {0};
    bool exec_failed = false;
    int error = ENOMEM;
    psd_launch_place(s->args, rank, &process->place);
    bool local = process->place.host == NULL;
    bool ok = psd_launch_environment(s->args, &process->place, &environment) &&
              (local || psd_launch_remote(s->args, &process->place, &remote));
    psd_spawn spawn = {.argv = local ? process->place.app->argv : remote.items,
                       .env = environment.items,
                       .out = ok ? open_stream(s, rank, STDOUT_FILENO) : -1,
                       .err = ok ? open_stream(s, rank, STDERR_FILENO) : -1,
                       .keep = -1};
    cpu_set_t cores;
    if (s->args->bind && psd_cores_share(rank, s->args->world, &cores))
        spawn.cores = &cores;
    if (ok && (spawn.out < 0 || spawn.err < 0)) {
        error = errno;
        ok = false;
    }
    ok = ok && psd_spawn_start(&spawn, &process->pid, &error, &exec_failed) == PSD_OK;
    if (ok)
        s->running++;
    else
        start_failed(s, process, spawn.argv == NULL ? "?" : spawn.argv[0], error, exec_failed);
    if (spawn.out >= 0)
        close(spawn.out);
    if (spawn.err >= 0)
        close(spawn.err);
    psd_strings_free(&environment);
    psd_strings_free(&remote);
}

/* ------------------------------------------------------------------------------------------------- events */

static rank_process *find_rank(const supervisor *s, pid_t pid)
{
    for (int32_t i = 0; i < s->args->world; i++)
        if (s->ranks[i].pid == pid)
            return &s->ranks[i];
    return NULL;
}

static int exit_code(const siginfo_t *info)
{
    return info->si_code == CLD_EXITED ? info->si_status : 128 + info->si_status;
}

static void describe_end(const siginfo_t *info, char *out, size_t out_bytes)
{
    const char *name = info->si_code == CLD_EXITED ? NULL : sigabbrev_np(info->si_status);
    if (info->si_code == CLD_EXITED)
        snprintf(out, out_bytes, "exited with status %d", info->si_status);
    else
        snprintf(out, out_bytes, "was killed by signal %d (SIG%s)%s", info->si_status,
                 name == NULL ? "?" : name, info->si_code == CLD_DUMPED ? ", core dumped" : "");
}

/* Of the ranks that ended within a short time, one killed by a signal is rather the cause than one that gave up
 * because its peer was gone. */
static bool is_likelier(const siginfo_t *a, const siginfo_t *b)
{
    return a->si_code != CLD_EXITED && b->si_code == CLD_EXITED;
}

static void report_failure(supervisor *s, const rank_process *process, const siginfo_t *info)
{
    char how[128];
    char told[80] = "";
    bool obeyed = info->si_code != CLD_EXITED && info->si_status == s->told_by;
    describe_end(info, how, sizeof(how));
    if (s->told_by != 0)
        snprintf(told, sizeof(told), "psrun was told to end by signal %d (SIG%s)%s", s->told_by,
                 sigabbrev_np(s->told_by), obeyed ? "" : "; ");
    if (obeyed) {
        fail(s, exit_code(info), "%s", told);
        return;
    }
    fail(s, exit_code(info), "%srank %d (%s%s%s) %s%s", told, process->place.rank,
         process->place.app->argv[0], process->place.host == NULL ? "" : " on ",
         process->place.host == NULL ? "" : process->place.host, how,
         s->running > 0 && s->told_by == 0 ? "; the other ranks were ended" : "");
}

static void suspect(supervisor *s, const rank_process *process, const siginfo_t *info)
{
    if (s->suspect != NULL && !is_likelier(info, &s->suspect_end))
        return;
    if (s->suspect == NULL)
        s->collect_until = psd_deadline_ns(psd_now_ns(), COLLECT_MS);
    s->suspect = process;
    s->suspect_end = *info;
}

/* A rank that was killed closes its links before it can be waited for, so that others may fail of it and end first:
 * the cause is looked for among all that end within a short time. */
static void judge(supervisor *s, psd_time_ns now)
{
    bool is_complete = now >= s->collect_until || s->running == 0 || s->stopping;
    if (s->suspect == NULL || !is_complete)
        return;
    report_failure(s, s->suspect, &s->suspect_end);
    s->suspect = NULL;
    s->collect_until = PSD_NEVER;
    begin_stop(s, SIGTERM);
}

/* Everything that has ended. A rank's process group is killed while its leader is still a zombie, since until
 * then nobody else can have its number. */
static void reap(supervisor *s)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            break;
        rank_process *process = find_rank(s, info.si_pid);
        if (process != NULL) {
            kill(-process->pid, SIGKILL);
            process->pid = 0;
            s->running--;
            if (exit_code(&info) != 0)
                suspect(s, process, &info);
        }
        waitpid(info.si_pid, NULL, 0);
        s->coordinator_ended = s->coordinator_ended || info.si_pid == s->coordinator;
    }
    judge(s, psd_now_ns());
    if (s->coordinator_ended && !s->stopping && s->running > 0 && s->suspect == NULL) {
        fail(s, 1, "the private psd ended before its job; the ranks were ended");
        begin_stop(s, SIGTERM);
    }
}

static void pass_on(supervisor *s, int number)
{
    bool ends = number == SIGINT || number == SIGTERM || number == SIGHUP;
    psd_time_ns now = psd_now_ns();
    if (ends && s->stopping && s->kill_at != PSD_NEVER) {
        if (s->told_by == 0 || now >= psd_deadline_ns(s->told_at, TWICE_MS))
            s->kill_at = 0; /* asked twice: at once */
        return;
    }
    if (ends && s->told_by == 0 && !s->stopping) {
        s->told_by = number;
        s->told_at = now;
    }
    /* A rank here may handle the signal and end well. One on another host ends by psd's STOP, and how its remote
     * shell ends tells nothing. */
    if (ends && s->args->host_count > 0)
        fail(s, 128 + number,
             "psrun was told to end by signal %d (SIG%s); the ranks on other hosts were ended", number,
             sigabbrev_np(number));
    if (ends)
        begin_stop(s, number);
    else
        signal_ranks(s, number);
}

static void read_signals(supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        if (info.ssi_signo != SIGCHLD)
            pass_on(s, (int)info.ssi_signo);
    reap(s);
}

static void check_times(supervisor *s, psd_time_ns now)
{
    judge(s, now);
    if (now >= s->timeout_at && !s->stopping) {
        fail(s, PSD_LAUNCH_EXIT_TIMEOUT, "the job had not ended within its --timeout; the ranks were ended");
        begin_stop(s, SIGTERM);
    }
    if (now >= s->kill_at && s->running > 0) {
        signal_ranks(s, SIGKILL);
        s->kill_at =
            psd_deadline_ns(now, MAX_WAIT_MS); /* a rank that is stuck in the kernel is killed again */
    }
    if (s->running == 0 && s->drain_by == PSD_NEVER) {
        if (s->args->host_count == 0)
            psd_launch_end_orphans(s->coordinator_ended ? 0 : s->coordinator);
        s->drain_by = psd_deadline_ns(now, DRAIN_MS);
    }
}

static int wait_ms(const supervisor *s)
{
    psd_time_ns now = psd_now_ns();
    psd_time_ns due = s->kill_at < s->drain_by ? s->kill_at : s->drain_by;
    due = s->collect_until < due ? s->collect_until : due;
    if (!s->stopping && s->timeout_at < due)
        due = s->timeout_at;
    if (due <= now)
        return 0;
    psd_time_ns ms = (due - now + PSD_NS_PER_MS - 1) / PSD_NS_PER_MS;
    return ms > MAX_WAIT_MS ? MAX_WAIT_MS : (int)ms;
}

static void loop(supervisor *s)
{
    while (s->running > 0 || (s->open_streams > 0 && psd_now_ns() < s->drain_by)) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(s->epoll_fd, events, EVENTS, wait_ms(s));
        bool signalled = false;
        for (int i = 0; i < count; i++) {
            psd_launch_stream *stream = events[i].data.ptr;
            if (stream == NULL)
                signalled = true;
            else if (!psd_launch_stream_read(stream))
                s->open_streams--;
        }
        if (signalled)
            read_signals(s);
        check_times(s, psd_now_ns());
    }
}

static bool prepare(supervisor *s)
{
    size_t world = (size_t)s->args->world;
    s->ranks = calloc(world, sizeof(*s->ranks));
    s->streams = calloc(world * 2, sizeof(*s->streams));
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->ranks == NULL || s->streams == NULL || s->epoll_fd < 0)
        return false;
    for (size_t i = 0; i < world * 2; i++)
        s->streams[i].fd = -1;
    return watch(s, s->signal_fd, NULL);
}

int psd_launch_run(const psd_launch_args *args, int signal_fd, pid_t coordinator, bool *coordinator_ended)
{
    supervisor s = {.args = args,
                    .signal_fd = signal_fd,
                    .coordinator = coordinator,
                    .timeout_at = psd_deadline_ns(psd_now_ns(), args->timeout_ms),
                    .kill_at = PSD_NEVER,
                    .drain_by = PSD_NEVER,
                    .collect_until = PSD_NEVER};
    if (!prepare(&s)) {
        fprintf(stderr, "psrun: cannot start: %s\n", strerror(errno));
        s.code = 1;
    } else {
        if (args->bind)
            tell_cores(args);
        for (int32_t i = 0; i < args->world && !s.failed; i++)
            start_rank(&s, i);
        if (s.failed)
            begin_stop(&s, SIGTERM);
        reap(&s); /* a child may have ended before the signal was watched */
        check_times(&s, psd_now_ns());
        loop(&s);
        for (int32_t i = 0; i < args->world * 2; i++)
            psd_launch_stream_close(&s.streams[i]);
        if (s.failed)
            fprintf(stderr, "psrun: %s\n", s.closing);
    }
    if (s.epoll_fd >= 0)
        close(s.epoll_fd);
    free(s.streams);
    free(s.ranks);
    *coordinator_ended = s.coordinator_ended;
    return s.code;
}
