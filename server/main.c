/* psd: the coordinator. Opens everything, runs the loop, closes everything. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"
#include "server/daemon.h"
#include "server/resource_limits.h"
#include "server/listen.h"
#include "server/notify.h"

#define STOP_LINGER_MS 500 /* for the last messages to leave */

static void complain(const char *sentence)
{
    fprintf(stderr, "psd: %s\n", sentence);
}

/* SIGTERM and SIGINT are read in the loop; must come before any thread is made, so that all inherit the mask.
 */
static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a journal over the file size limit is an error of its write */
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return -1;
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static volatile sig_atomic_t final_code;

static void end_at_once(int number)
{
    (void)number;
    _exit(final_code);
}

/* From here on nothing is left to lose: a second signal ends the process at once, whatever it waits for. */
static void restore_signals(int code)
{
    struct sigaction action = {.sa_handler = end_at_once};
    sigset_t set;
    final_code = code;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static psd_status open_socket(psd_daemon *daemon)
{
    psd_listen listen;
    char why[512];
    char holder[128];
    int error = 0;
    psd_status status = psd_listen_resolve(daemon->options.listen, &listen, why, sizeof(why));
    if (status != PSD_OK) {
        complain(why);
        return status;
    }
    if (!listen.loopback && !daemon->options.insecure) {
        fprintf(stderr,
                "psd: %s can be reached from other hosts, and without keys anybody there could join or stop "
                "jobs: listen on tcp://127.0.0.1:%u, or say --insecure if the network is trusted\n",
                listen.endpoint, (unsigned)listen.port);
        return PSD_ERR_REFUSED;
    }
    status = psd_io_open(listen.endpoint, &daemon->io, &error);
    if (status == PSD_OK)
        return PSD_OK;
    snprintf(why, sizeof(why), "cannot listen on %s: %s", listen.endpoint, strerror(error));
    if (error == EADDRINUSE && psd_port_holder(listen.port, holder, sizeof(holder))[0] != '\0')
        fprintf(stderr, "psd: %s; port %u is held by %s: end it, or choose another port (0: any free one)\n",
                why, (unsigned)listen.port, holder);
    else
        complain(why);
    return status;
}

static psd_status open_journal(psd_daemon *daemon)
{
    char why[1024];
    if (daemon->options.state == NULL) {
        psd_log("psd", PSD_LOG_INFO, "no --state: a restart of psd will forget its jobs");
        return PSD_OK;
    }
    psd_status status =
        psd_journal_open(daemon->options.state, daemon->now, &daemon->journal, why, sizeof(why));
    if (status == PSD_OK)
        status = psd_daemon_replay(daemon, why, sizeof(why));
    if (status != PSD_OK)
        complain(why[0] == '\0' ? psd_status_sentence(status) : why);
    return status;
}

static psd_status open_core(psd_daemon *daemon)
{
    psd_core_config config = psd_options_core(&daemon->options);
    psd_status status = psd_core_new(&config, &daemon->core);
    if (status == PSD_OK)
        status = psd_compiler_start(&daemon->compiler);
    if (status != PSD_OK)
        fprintf(stderr, "psd: cannot start: %s\n", psd_status_sentence(status));
    return status;
}

/* Tells whoever started psd that it can be reached, and where. */
static psd_status say_ready(psd_daemon *daemon)
{
    const char *endpoint = psd_io_endpoint(daemon->io);
    int fd = daemon->options.ready_fd;
    psd_status status = PSD_OK;
    psd_log("psd", PSD_LOG_INFO, "psd %s listening on %s", PSD_VERSION, endpoint);
    psd_notify("READY=1");
    if (fd >= 0) {
        if (dprintf(fd, "%s\n", endpoint) < 0) {
            fprintf(stderr, "psd: --ready-fd %d cannot be written: %s\n", fd, strerror(errno));
            status = PSD_ERR_IO;
        }
        if (fd > STDERR_FILENO)
            close(fd);
        return status;
    }
    printf("psd %s listening on %s%s%s\n", PSD_VERSION, endpoint,
           daemon->options.state == NULL ? "" : ", journal in ",
           daemon->options.state == NULL ? "" : daemon->options.state);
    fflush(stdout);
    return PSD_OK;
}

static psd_status start(psd_daemon *daemon)
{
    char why[256];
    daemon->signal_fd = open_signals();
    if (daemon->signal_fd < 0) {
        fprintf(stderr, "psd: signals cannot be read: %s\n", strerror(errno));
        return PSD_ERR_IO;
    }
    daemon->now = psd_now_ns();
    psd_status status = psd_limits_prepare(why, sizeof(why));
    if (status != PSD_OK)
        complain(why);
    if (status == PSD_OK)
        status = open_socket(daemon);
    if (status == PSD_OK)
        status = open_core(daemon);
    if (status == PSD_OK)
        status = open_journal(daemon);
    return status == PSD_OK ? say_ready(daemon) : status;
}

static void stop(psd_daemon *daemon, int code)
{
    psd_journal_close(daemon->journal);
    restore_signals(code);
    psd_compiler_stop(daemon->compiler);
    psd_io_close(daemon->io, STOP_LINGER_MS);
    psd_core_free(daemon->core);
    psd_effects_free(&daemon->effects);
    psd_outbox_free(&daemon->outbox);
    free(daemon->pending);
    if (daemon->signal_fd >= 0)
        close(daemon->signal_fd);
}

int main(int argc, char **argv)
{
    psd_daemon daemon = {.signal_fd = -1};
    switch (psd_options_parse(argc, argv, &daemon.options)) {
    case PSD_OPTIONS_RUN:
        break;
    case PSD_OPTIONS_DONE:
        return 0;
    case PSD_OPTIONS_USAGE:
        return 2;
    }
    if (daemon.options.memory_limit == 0)
        daemon.options.memory_limit = psd_memory_default_limit();
    psd_status status = start(&daemon);
    if (status == PSD_OK)
        psd_daemon_run(&daemon);
    int code = status == PSD_OK && !daemon.failed ? 0 : 1;
    stop(&daemon, code);
    return code;
}
