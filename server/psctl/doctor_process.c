/* Doctor: what processes of this user may do here. */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/conf.h"
#include "server/psctl/doctor.h"

enum { FILES_ENOUGH = 1024 };

/* The value is in one child's memory only: the parent and the other child hold another one at the same
 * address. */
static volatile uint64_t shared_value;
#define CHILD_VALUE UINT64_C(0x70736463746c21)

/* A child that holds the value until the other end of the pipe closes. */
static pid_t start_owner(const int hold[2], const int ready[2])
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    char byte = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(hold[1]);
    shared_value = CHILD_VALUE;
    if (write(ready[1], &byte, 1) == 1)
        while (read(hold[0], &byte, 1) < 0 && errno == EINTR)
            ;
    _exit(0);
}

/* A second child, as ranks are of one launcher: reads the first one's memory. Its exit code is the errno. */
static pid_t start_reader(pid_t owner)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    uint64_t value = 0;
    struct iovec local = {.iov_base = &value, .iov_len = sizeof value};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)&shared_value, .iov_len = sizeof value};
    ssize_t got = process_vm_readv(owner, &local, 1, &remote, 1, 0);
    if (got < 0)
        _exit(errno < 256 ? errno : 255);
    _exit(got == (ssize_t)sizeof value && value == CHILD_VALUE ? 0 : 255);
}

static int exit_code(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return 255;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* 0 if one process reads the other's memory, else the errno. */
static int try_single_copy(void)
{
    int hold[2];
    int ready[2];
    char byte;
    int error = 255;
    if (pipe(hold) != 0)
        return errno;
    if (pipe(ready) != 0) {
        error = errno;
        goto close_hold;
    }
    pid_t owner = start_owner(hold, ready);
    if (owner < 0) {
        error = errno;
        goto close_ready;
    }
    close(ready[1]); /* so that the end of an owner that dies early is seen */
    ready[1] = -1;
    if (read(ready[0], &byte, 1) == 1) {
        pid_t reader = start_reader(owner);
        error = reader < 0 ? errno : exit_code(reader);
    }
    close(hold[1]);
    hold[1] = -1;
    exit_code(owner);

close_ready:
    close(ready[0]);
    if (ready[1] >= 0)
        close(ready[1]);
close_hold:
    close(hold[0]);
    if (hold[1] >= 0)
        close(hold[1]);
    return error;
}

void psctl_check_single_copy(psctl_report *report)
{
    char scope[16] = "absent";
    bool yama = psctl_read_line("/proc/sys/kernel/yama/ptrace_scope", scope, sizeof scope);
    int error = try_single_copy();
    if (error == 0)
        psctl_report_add(report, "single-copy", PSCTL_OK,
                         "a process can read another's memory (process_vm_readv); Yama ptrace_scope %s",
                         scope);
    else
        psctl_report_add(
            report, "single-copy", PSCTL_WARN,
            "process_vm_readv between two processes: %s (Yama ptrace_scope %s); large messages are copied "
            "through shared memory instead%s",
            error == 255 ? "wrong data" : strerror(error), scope,
            yama && strcmp(scope, "0") != 0 ? "; `sysctl kernel.yama.ptrace_scope=0` allows it"
                                            : "; a container may need --cap-add=SYS_PTRACE");
}

void psctl_check_files(psctl_report *report)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        psctl_report_add(report, "open-files", PSCTL_WARN, "the limit is not known: %s", strerror(errno));
        return;
    }
    bool few = limit.rlim_cur < FILES_ENOUGH;
    psctl_report_add(report, "open-files", few ? PSCTL_WARN : PSCTL_OK,
                     "limit %" PRIu64 ", at most %" PRIu64 "%s", (uint64_t)limit.rlim_cur,
                     (uint64_t)limit.rlim_max,
                     few ? "; many ranks need more: raise it with `ulimit -n`" : "");
}

void psctl_check_cores(psctl_report *report)
{
    cpu_set_t set;
    char quota[64];
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)online;
    int64_t micros = -1;
    int64_t period = 0;
    /* cgroup v2: "max 100000", or microseconds of processor time in each period. */
    if (psctl_read_line("/sys/fs/cgroup/cpu.max", quota, sizeof quota)) {
        char *blank = strchr(quota, ' ');
        if (blank != NULL) {
            *blank = '\0';
            if (!psd_parse_i64(quota, 1, INT64_MAX, &micros) ||
                !psd_parse_i64(blank + 1, 1, INT64_MAX, &period))
                micros = -1;
        }
    }
    double cores =
        micros > 0 && (double)micros / (double)period < usable ? (double)micros / (double)period : usable;
    char share[48] = "";
    if (cores < usable)
        snprintf(share, sizeof share, ", limited to the time of %.3g", cores);
    psctl_report_add(report, "cores", cores < 2 ? PSCTL_WARN : PSCTL_OK, "%d of %ld cores usable%s%s", usable,
                     online, share, cores < 2 ? "; ranks will take turns: times mean little here" : "");
}

static void run_dir(char *out, size_t out_bytes)
{
    const char *given = getenv("PSD_RUN_DIR");
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (given != NULL && given[0] != '\0')
        snprintf(out, out_bytes, "%s", given);
    else if (runtime != NULL && runtime[0] == '/')
        snprintf(out, out_bytes, "%s/psd", runtime);
    else
        snprintf(out, out_bytes, "/dev/shm/psd-%lu", (unsigned long)geteuid());
}

void psctl_check_run_dir(psctl_report *report)
{
    char directory[400];
    struct stat st;
    run_dir(directory, sizeof directory);
    bool there = stat(directory, &st) == 0;
    if (!there && errno == ENOENT) {
        /* It is made when it is needed: what counts is the directory above it. */
        char *slash = strrchr(directory, '/');
        if (slash != NULL && slash != directory)
            *slash = '\0';
    }
    int error = psctl_try_file(directory);
    if (error == 0)
        psctl_report_add(report, "run-dir", PSCTL_OK,
                         "records of operations go to PSD_RUN_DIR: %s is writable", directory);
    else
        psctl_report_add(
            report, "run-dir", PSCTL_FAIL,
            "%s cannot be written: %s; psd_init will fail: set PSD_RUN_DIR to a directory on a tmpfs",
            directory, strerror(error));
}
