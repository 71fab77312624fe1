#include "worker/backend/host/peer_memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define READ_MOST ((size_t)1 << 30) /* bytes of one call; the kernel's limit is a little below 2 GiB */

static int yama_scope(void)
{
    int scope = 0;
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (!file)
        return 0;
    if (fscanf(file, "%d", &scope) != 1)
        scope = 0;
    fclose(file);
    return scope;
}

void peer_memory_permit(void)
{
    if (yama_scope() == 1)
        (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* a failure shows in the probe */
}

static ssize_t read_some(pid_t pid, uint64_t address, void *to, size_t bytes)
{
    struct iovec local = {.iov_base = to, .iov_len = bytes};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

void peer_memory_probe(peer_memory *m, int unix_fd, uint64_t address, uint64_t value)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    uint64_t found = 0;
    memset(m, 0, sizeof *m);
    if (getsockopt(unix_fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) {
        snprintf(m->reason, sizeof m->reason, "the peer is in another pid namespace");
        return;
    }
    m->pid = peer.pid;
    if (read_some(peer.pid, address, &found, sizeof found) != (ssize_t)sizeof found) {
        int error = errno;
        snprintf(m->reason, sizeof m->reason, "process_vm_readv: %s (kernel.yama.ptrace_scope is %d%s)",
                 strerror(error), yama_scope(),
                 error == EPERM ? "; a container may need CAP_SYS_PTRACE" : "");
        return;
    }
    if (found != value) {
        snprintf(m->reason, sizeof m->reason, "process %d is not the peer", (int)peer.pid);
        return;
    }
    m->allowed = true;
}

/* A process closes its files before its id can be another's: an open socket proves that we read the peer. */
static bool peer_alive(int unix_fd)
{
    char byte;
    ssize_t got = recv(unix_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && errno == EAGAIN);
}

psd_status peer_memory_read(const peer_memory *m, int unix_fd, uint64_t address, void *to, size_t bytes)
{
    unsigned char *out = to;
    size_t done = 0;
    if (!m->allowed)
        return PSD_ERR_UNSUPPORTED;
    while (done < bytes) {
        size_t most = bytes - done < READ_MOST ? bytes - done : READ_MOST;
        ssize_t got = read_some(m->pid, address + done, out + done, most);
        if (got > 0)
            done += (size_t)got;
        else if (got == 0 || errno != EINTR)
            return PSD_ERR_LINK;
    }
    return peer_alive(unix_fd) ? PSD_OK : PSD_ERR_LINK;
}
