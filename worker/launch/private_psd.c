#include "worker/launch/private_psd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "worker/launch/spawn.h"

#define START_MS 10000
#define STOP_MS  2000

/* "<directory of this executable>/psd", or "psd", to be looked up in PATH. */
static void find_program(char *out, size_t out_bytes)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length > 0) {
        self[length] = '\0';
        char *slash = strrchr(self, '/');
        if (slash != NULL)
            *slash = '\0';
        int wrote = snprintf(out, out_bytes, "%s/psd", self);
        if (wrote > 0 && (size_t)wrote < out_bytes && access(out, X_OK) == 0)
            return;
    }
    snprintf(out, out_bytes, "psd");
}

/* One line, within the deadline. False: none came. */
static bool read_line(int fd, char *out, size_t out_bytes, psd_time_ns deadline)
{
    size_t bytes = 0;
    while (bytes + 1 < out_bytes) {
        psd_time_ns left = deadline - psd_now_ns();
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (left <= 0 || poll(&wait, 1, (int)(left / PSD_NS_PER_MS) + 1) < 0)
            return false;
        if (wait.revents == 0)
            continue;
        ssize_t got = read(fd, out + bytes, 1);
        if (got <= 0)
            return false;
        if (out[bytes] == '\n') {
            out[bytes] = '\0';
            return true;
        }
        bytes++;
    }
    return false;
}

void psd_private_stop(psd_private *psd)
{
    if (psd->pid == 0)
        return;
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), STOP_MS);
    bool reaped = false;
    kill(psd->pid, SIGTERM);
    while (!reaped && psd_now_ns() < deadline) {
        reaped = waitpid(psd->pid, NULL, WNOHANG) != 0;
        if (!reaped)
            poll(NULL, 0, 5);
    }
    if (!reaped) {
        kill(psd->pid, SIGKILL);
        waitpid(psd->pid, NULL, 0);
    }
    psd->pid = 0;
}

psd_status psd_private_start(psd_private *out, char *why, size_t why_bytes)
{
    char program[PATH_MAX];
    char fd_text[16];
    int ready[2];
    int error = 0;
    bool exec_failed = false;
    psd_private psd = {0};
    if (pipe2(ready, O_CLOEXEC) != 0) {
        snprintf(why, why_bytes, "no pipe can be made: %s", strerror(errno));
        return PSD_ERR_IO;
    }
    find_program(program, sizeof(program));
    snprintf(fd_text, sizeof(fd_text), "%d", ready[1]);
    char *argv[] = {program, "--listen", "tcp://127.0.0.1:0", "--ready-fd", fd_text, NULL};
    psd_spawn spawn = {.argv = argv, .env = environ, .out = -1, .err = -1, .keep = ready[1]};
    psd_status status = psd_spawn_start(&spawn, &psd.pid, &error, &exec_failed);
    close(ready[1]);
    if (status != PSD_OK) {
        snprintf(why, why_bytes, "%s cannot be started: %s", program, strerror(error));
    } else if (!read_line(ready[0], psd.endpoint, sizeof(psd.endpoint),
                          psd_deadline_ns(psd_now_ns(), START_MS))) {
        snprintf(why, why_bytes, "%s was started but cannot be reached", program);
        psd_private_stop(&psd);
        status = PSD_ERR_NO_COORDINATOR;
    } else {
        *out = psd;
    }
    close(ready[0]);
    return status;
}
