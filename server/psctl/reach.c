#include "server/psctl/reach.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"

/* The addresses of a name, to be freed with freeaddrinfo; NULL after writing why not. */
static struct addrinfo *look_up(const char *host, uint16_t port, char *why, size_t why_bytes)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int failed = getaddrinfo(host, service, &hints, &list);
    if (failed == 0)
        return list;
    snprintf(why, why_bytes, "the name %s is not known: %s", host, gai_strerror(failed));
    return NULL;
}

/* As a ZeroMQ endpoint with a numeric host. */
static void write_endpoint(const struct addrinfo *address, uint16_t port, char *out, size_t out_bytes)
{
    char number[INET6_ADDRSTRLEN + 16] = "?";
    bool v6 = address->ai_family == AF_INET6;
    (void)getnameinfo(address->ai_addr, address->ai_addrlen, number, sizeof number, NULL, 0, NI_NUMERICHOST);
    snprintf(out, out_bytes, "tcp://%s%s%s:%u", v6 ? "[" : "", number, v6 ? "]" : "", port);
}

bool psctl_resolve(const char *host, uint16_t port, char *endpoint, size_t endpoint_bytes, char *why,
                   size_t why_bytes)
{
    struct addrinfo *list = look_up(host, port, why, why_bytes);
    if (list == NULL)
        return false;
    const struct addrinfo *chosen = list;
    while (chosen != NULL && chosen->ai_family != AF_INET)
        chosen = chosen->ai_next;
    write_endpoint(chosen != NULL ? chosen : list, port, endpoint, endpoint_bytes);
    freeaddrinfo(list);
    return true;
}

/* Waits for a connect in progress; the errno of its end. */
static int finish_connect(int fd, psd_time_ns deadline)
{
    for (;;) {
        psd_time_ns left = deadline - psd_now_ns();
        struct pollfd item = {.fd = fd, .events = POLLOUT};
        if (left <= 0)
            return ETIMEDOUT;
        int ready = poll(&item, 1, (int)(left / PSD_NS_PER_MS) + 1);
        if (ready < 0 && errno != EINTR)
            return errno;
        if (ready > 0)
            break;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

/* The errno of a connection attempt, 0 if it was accepted. */
static int try_connect(const struct addrinfo *address, psd_time_ns deadline)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    int error = 0;
    if (connect(fd, address->ai_addr, address->ai_addrlen) != 0)
        error = errno == EINPROGRESS ? finish_connect(fd, deadline) : errno;
    close(fd);
    return error;
}

/* The address is told only where it is not the one that the user wrote. */
static void say_errno(int error, const char *host, const char *tried, char *why, size_t why_bytes)
{
    if (strstr(tried, host) != NULL)
        snprintf(why, why_bytes, "%s", strerror(error));
    else
        snprintf(why, why_bytes, "%s (%s)", strerror(error), tried);
}

bool psctl_reach(const char *host, uint16_t port, int64_t timeout_ms, char *endpoint, size_t endpoint_bytes,
                 char *why, size_t why_bytes)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), timeout_ms);
    bool reached = false;
    struct addrinfo *list = look_up(host, port, why, why_bytes);
    for (const struct addrinfo *at = list; at != NULL && !reached; at = at->ai_next) {
        char tried[96];
        write_endpoint(at, port, tried, sizeof tried);
        int error = try_connect(at, deadline);
        reached = error == 0;
        if (reached)
            snprintf(endpoint, endpoint_bytes, "%s", tried);
        else
            say_errno(error, host, tried, why, why_bytes);
    }
    if (list != NULL)
        freeaddrinfo(list);
    return reached;
}
