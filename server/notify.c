#include "server/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/conf.h"

void psd_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path == NULL || (path[0] != '/' && path[0] != '@'))
        return;
    size_t length = strlen(path);
    if (length < 2 || length >= sizeof(address.sun_path))
        return;
    memcpy(address.sun_path, path, length);
    if (path[0] == '@') /* an abstract socket: its name begins with a NUL and has no end mark */
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    /* A service manager that does not read is not psd's concern: nothing to do on failure. */
    ssize_t sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, bytes);
    (void)sent;
    close(fd);
}

psd_time_ns psd_notify_watchdog_ns(void)
{
    const char *usec = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    int64_t value = 0;
    if (usec == NULL || !psd_parse_i64(usec, 1, INT64_C(86400000000), &value))
        return 0;
    int64_t owner = 0;
    if (pid != NULL && (!psd_parse_i64(pid, 1, INT32_MAX, &owner) || owner != getpid()))
        return 0;
    return value * 1000 / 2;
}
