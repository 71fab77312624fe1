/* Doctor: the coordinator, and sockets of this machine. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/psctl/client.h"
#include "server/psctl/doctor.h"
#include "server/psctl/text.h"

/* The text cell of this column in the first row; NULL if there is none. */
static const char *first_text(const psctl_answer *answer, const char *column)
{
    const psd_msg_reply *reply = &answer->pages[0]->msg.u.reply;
    for (uint32_t i = 0; i < reply->column_count && reply->row_count > 0; i++) {
        if (strcmp(reply->columns[i].name, column) == 0 && reply->columns[i].type == PSD_CELL_TEXT)
            return reply->cells[i].text;
    }
    return NULL;
}

void psctl_check_coordinator(psctl_report *report, const psctl_options *options)
{
    char why[1536] = "";
    psctl_answer answer;
    psctl_exit code = psctl_client_ask_once(options, "version", NULL, &answer, why, sizeof why);
    if (code == PSCTL_UNREACHABLE) {
        psctl_report_add(report, "coordinator", options->coordinator_given ? PSCTL_FAIL : PSCTL_WARN,
                         "%.380s", why);
        return;
    }
    if (code != PSCTL_FINE) {
        psctl_report_add(report, "coordinator", PSCTL_FAIL, "%.380s", why);
        return;
    }
    const char *version = first_text(&answer, "version");
    if (version == NULL)
        psctl_report_add(report, "coordinator", PSCTL_OK, "%s answers with protocol %d", options->coordinator,
                         PSD_PROTOCOL_VERSION);
    else if (strcmp(version, PSD_VERSION) == 0)
        psctl_report_add(report, "coordinator", PSCTL_OK, "%s answers: psd %s, protocol %d, as this psctl",
                         options->coordinator, version, PSD_PROTOCOL_VERSION);
    else
        psctl_report_add(report, "coordinator", PSCTL_WARN,
                         "%s answers with the same protocol %d, but is psd %.40s and this is psctl %s: "
                         "install the same release on both",
                         options->coordinator, PSD_PROTOCOL_VERSION, version, PSD_VERSION);
    psctl_answer_free(&answer);
}

/* Listens on a free port and connects to it; NULL, or the call that failed. */
static const char *try_loopback(int listener, int connector, struct sockaddr *address, socklen_t bytes)
{
    if (bind(listener, address, bytes) != 0)
        return "bind";
    if (listen(listener, 1) != 0)
        return "listen";
    if (getsockname(listener, address, &bytes) != 0)
        return "getsockname";
    if (connect(connector, address, bytes) != 0)
        return "connect";
    struct pollfd item = {.fd = listener, .events = POLLIN};
    if (poll(&item, 1, 1000) != 1) {
        errno = ETIMEDOUT;
        return "accept";
    }
    return NULL;
}

static bool loopback(int family, const char **failed)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int connector = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *failed = "socket";
    if (listener >= 0 && connector >= 0)
        *failed = family == AF_INET ? try_loopback(listener, connector, (struct sockaddr *)&v4, sizeof v4)
                                    : try_loopback(listener, connector, (struct sockaddr *)&v6, sizeof v6);
    int error = errno;
    if (listener >= 0)
        close(listener);
    if (connector >= 0)
        close(connector);
    errno = error;
    return *failed == NULL;
}

void psctl_check_loopback(psctl_report *report)
{
    const char *failed;
    const char *failed_v6;
    if (!loopback(AF_INET, &failed)) {
        psctl_report_add(report, "loopback", PSCTL_FAIL,
                         "TCP over 127.0.0.1 does not work: %s: %s; is the interface lo up?", failed,
                         strerror(errno));
        return;
    }
    bool v6 = loopback(AF_INET6, &failed_v6);
    psctl_report_add(report, "loopback", PSCTL_OK, "TCP over 127.0.0.1 works, over ::1 it %s",
                     v6 ? "works too" : "does not (no IPv6 here)");
}
