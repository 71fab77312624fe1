#include "worker/launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child: never returns. Only async-signal-safe calls. */
static void become(const psd_spawn *spawn, pid_t parent, int report)
{
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    /* The kernel sends this when psrun ends in whatever way. If it has ended already, that moment is past. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(126);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    bool ready = null >= 0 && dup2(null, STDIN_FILENO) >= 0;
    ready = ready && (spawn->out < 0 || dup2(spawn->out, STDOUT_FILENO) >= 0);
    ready = ready && (spawn->err < 0 || dup2(spawn->err, STDERR_FILENO) >= 0);
    ready = ready && (spawn->keep < 0 || fcntl(spawn->keep, F_SETFD, 0) == 0);
    ready = ready && (spawn->cores == NULL || sched_setaffinity(0, sizeof(*spawn->cores), spawn->cores) == 0);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (ready)
        execvpe(spawn->argv[0], spawn->argv, spawn->env);
    int error = errno;
    ssize_t written = write(report, &error, sizeof(error));
    (void)written;
    _exit(127);
}

psd_status psd_spawn_start(const psd_spawn *spawn, pid_t *out, int *error, bool *exec_failed)
{
    int report[2]; /* closed by a successful exec; else it carries the errno */
    pid_t self = getpid();
    *exec_failed = false;
    if (pipe2(report, O_CLOEXEC) != 0) {
        *error = errno;
        return PSD_ERR_IO;
    }
    psd_status status = PSD_OK;
    int child_error = 0;
    ssize_t got = 0;
    pid_t pid = fork();
    if (pid == 0)
        become(spawn, self, report[1]);
    if (pid < 0) {
        *error = errno;
        status = PSD_ERR_IO;
    }
    close(report[1]);
    if (status != PSD_OK)
        goto close_report;
    setpgid(pid, pid); /* the child does it too: whoever comes first */
    do {
        got = read(report[0], &child_error, sizeof(child_error));
    } while (got < 0 && errno == EINTR);
    if (got == (ssize_t)sizeof(child_error)) {
        waitpid(pid, NULL, 0);
        *error = child_error;
        *exec_failed = true;
        status = PSD_ERR_IO;
        goto close_report;
    }
    *out = pid;
close_report:
    close(report[0]);
    return status;
}
