#include "tests/lib/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

extern char **environ;

const char *test_path(const char *below_build)
{
    static char slots[8][512];
    static unsigned next;
    char *slot = slots[next++ % 8];
    const char *build = getenv("PSD_BUILD");
    snprintf(slot, sizeof slots[0], "%s/%s", build && *build ? build : "build", below_build);
    return slot;
}

static void run_child(const char *const argv[], const char *const env[], int out)
{
    int in = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
    for (int i = 0; env && env[i]; i++)
        putenv((char *)(uintptr_t)env[i]);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    dprintf(2, "cannot start %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

bool test_proc_start(test_proc *proc, const char *const argv[], const char *const env[])
{
    int ends[2];
    memset(proc, 0, sizeof *proc);
    proc->out = -1;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    fflush(NULL);
    proc->pid = fork();
    if (proc->pid == 0)
        run_child(argv, env, ends[1]);
    close(ends[1]);
    proc->out = ends[0];
    fcntl(proc->out, F_SETFL, O_NONBLOCK);
    return proc->pid > 0;
}

/* Takes what is there; false at the end of the stream. */
static bool read_some(test_proc *proc)
{
    char chunk[4096];
    ssize_t got;
    while ((got = read(proc->out, chunk, sizeof chunk)) > 0) {
        if (proc->bytes + (size_t)got + 1 > proc->capacity) {
            proc->capacity = (proc->bytes + (size_t)got + 1) * 2;
            proc->text = realloc(proc->text, proc->capacity);
            if (!proc->text)
                abort();
        }
        memcpy(proc->text + proc->bytes, chunk, (size_t)got);
        proc->bytes += (size_t)got;
        proc->text[proc->bytes] = '\0';
    }
    return !(got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR));
}

static bool reap(test_proc *proc)
{
    if (!proc->ended && waitpid(proc->pid, &proc->status, WNOHANG) == proc->pid)
        proc->ended = true;
    return proc->ended;
}

bool test_proc_expect(test_proc *proc, const char *needle, int timeout_ms)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), timeout_ms);
    for (;;) {
        bool open = read_some(proc);
        if (proc->text && strstr(proc->text, needle))
            return true;
        if (!open || psd_now_ns() >= deadline)
            return false;
        struct pollfd p = {.fd = proc->out, .events = POLLIN};
        poll(&p, 1, 20);
    }
}

bool test_proc_wait(test_proc *proc, int timeout_ms)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), timeout_ms);
    while (!reap(proc)) {
        if (psd_now_ns() >= deadline)
            return false;
        struct pollfd p = {.fd = proc->out, .events = POLLIN};
        if (read_some(proc))
            poll(&p, 1, 10);
        else
            poll(NULL, 0, 2);
    }
    read_some(proc);
    return true;
}

int test_proc_code(const test_proc *proc)
{
    if (!proc->ended)
        return -1;
    return WIFEXITED(proc->status) ? WEXITSTATUS(proc->status) : 128 + WTERMSIG(proc->status);
}

void test_proc_end(test_proc *proc)
{
    if (proc->pid > 0 && !reap(proc)) {
        kill(proc->pid, SIGKILL);
        waitpid(proc->pid, &proc->status, 0);
        proc->ended = true;
    }
    if (proc->pid > 0)
        close(proc->out);
    free(proc->text);
    memset(proc, 0, sizeof *proc);
}

int test_run(const char *const argv[], const char *const env[], int timeout_ms, char **text)
{
    test_proc proc;
    int code = -1;
    if (test_proc_start(&proc, argv, env) && test_proc_wait(&proc, timeout_ms))
        code = test_proc_code(&proc);
    if (text) {
        *text = proc.text ? proc.text : calloc(1, 1);
        proc.text = NULL;
    }
    test_proc_end(&proc);
    return code;
}

bool test_until(bool (*condition)(void *arg), void *arg, int timeout_ms)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), timeout_ms);
    while (!condition(arg)) {
        if (psd_now_ns() >= deadline)
            return false;
        poll(NULL, 0, 5);
    }
    return true;
}

static bool is_gone(void *arg)
{
    char path[64];
    char state = 'Z';
    FILE *stat;
    snprintf(path, sizeof path, "/proc/%d/stat", *(const pid_t *)arg);
    stat = fopen(path, "r");
    if (!stat)
        return true;
    if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(stat);
    return state == 'Z' || state == 'X';
}

bool test_pid_gone(pid_t pid, int timeout_ms)
{
    return test_until(is_gone, &pid, timeout_ms);
}
