/* psrun: starts the ranks of a job, as torchrun and mpirun do. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/conf.h"
#include "worker/launch/args.h"
#include "worker/launch/private_psd.h"
#include "worker/launch/supervisor.h"

/* Two pipes for each rank. Raised only when that is needed, since the ranks inherit it. */
static void raise_descriptor_limit(int32_t world)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)world * 2 + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < need) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit); /* if not, starting that many ranks fails and says so */
    }
}

static void warn_if_unreachable(const psd_launch_args *args)
{
    char host[256];
    uint16_t port = 0;
    if (args->host_count == 0 || !psd_parse_endpoint(args->coordinator, host, sizeof(host), &port))
        return;
    if (strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0)
        fprintf(
            stderr,
            "psrun: the coordinator %s can be reached from this host only; ranks on others need a psd on an "
            "address that they reach (--coordinator)\n",
            args->coordinator);
}

/* MPI's processes find each other through what mpirun or srun tells them, which psrun cannot. */
static bool backend_is_ours(const psd_launch_args *args)
{
    const char *backend = getenv("PSD_BACKEND");
    if (backend == NULL || strcmp(backend, "mpi") != 0)
        return true;
    fprintf(stderr,
            "psrun: PSD_BACKEND is mpi, whose ranks are started by mpirun or srun, not by psrun; start psd "
            "and then "
            "mpirun -n %d PROGRAM, see README.md, Under MPI\n",
            args->world);
    return false;
}

static int run(psd_launch_args *args)
{
    psd_private psd = {0};
    char why[512];
    bool psd_ended = false;
    raise_descriptor_limit(args->world);
    int signal_fd = psd_launch_signals();
    if (signal_fd < 0) {
        fprintf(stderr, "psrun: signals cannot be read: %s\n", strerror(errno));
        return 1;
    }
    int code = 1;
    if (args->standalone) {
        if (psd_private_start(&psd, why, sizeof(why)) != PSD_OK) {
            fprintf(stderr, "psrun: %s\n", why);
            goto close_signals;
        }
        args->coordinator = psd.endpoint;
    }
    warn_if_unreachable(args);
    code = psd_launch_run(args, signal_fd, psd.pid, &psd_ended);
    args->coordinator = NULL; /* may point into psd */
    if (!psd_ended)
        psd_private_stop(&psd);
close_signals:
    close(signal_fd);
    return code;
}

int main(int argc, char **argv)
{
    static psd_launch_args args; /* too large for the stack */
    switch (psd_launch_parse(argc, argv, &args)) {
    case PSD_LAUNCH_RUN:
        break;
    case PSD_LAUNCH_DONE:
        return 0;
    case PSD_LAUNCH_USAGE:
        return 2;
    }
    int code = backend_is_ours(&args) ? run(&args) : 2;
    psd_launch_args_free(&args);
    return code;
}
