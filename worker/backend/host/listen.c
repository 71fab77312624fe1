/* The sockets that peers connect to: a unix socket with a random name, abstract and as a file, and one TCP port. */
#include "worker/backend/host/net.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/log.h"

#define BACKLOG     4096 /* the kernel cuts it to net.core.somaxconn */
#define ACCEPT_MOST 64   /* of one poll */
#define PAUSE_NS    (PSD_NS_PER_S / 10)

static psd_status open_unix(host_net *net, char *why, size_t why_bytes)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char *text = net->address.unix_name;
    snprintf(text, ADDRESS_UNIX_NAME, "psd-%016" PRIx64, net_random());
    memcpy(name.sun_path + 1, text, strlen(text)); /* abstract: begins with a NUL */
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(text));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, length) != 0 || listen(fd, BACKLOG) != 0) {
        snprintf(why, why_bytes, "cannot listen on a unix socket: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        text[0] = '\0';
        return PSD_ERR_IO;
    }
    net->unix_fd = fd;
    return PSD_OK;
}

/* Without it peers in other network namespaces use TCP: no failure. */
static void open_path(host_net *net)
{
    char why[256];
    if (unix_path_listen(net->run_dir, net->address.unix_name, BACKLOG, &net->path_fd, why, sizeof why) !=
        PSD_OK)
        psd_log("host", PSD_LOG_INFO, "no shared memory with other network namespaces: %s", why);
}

static int bound_socket(const endpoint *e)
{
    struct sockaddr_storage storage;
    socklen_t length = endpoint_to_sockaddr(e, &storage);
    int off = 0;
    int fd = socket(e->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (e->family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, (struct sockaddr *)&storage, length) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* On the one address that is wanted, or on all: IPv6's wildcard takes IPv4 too. */
static int bound_for(const host_address *address, bool restricted)
{
    endpoint any = {.family = AF_INET6};
    if (restricted && address->tcp_count == 1)
        return bound_socket(&address->tcp[0]);
    int fd = bound_socket(&any);
    any.family = AF_INET;
    return fd >= 0 ? fd : bound_socket(&any);
}

static psd_status open_tcp(host_net *net, const char *bind_host, char *why, size_t why_bytes)
{
    struct sockaddr_storage storage;
    socklen_t length = sizeof storage;
    endpoint mine;
    psd_status status =
        endpoint_list_local(bind_host, net->address.tcp, &net->address.tcp_count, why, why_bytes);
    if (status != PSD_OK)
        return status;
    net->restricted = bind_host != NULL;
    int fd = bound_for(&net->address, net->restricted);
    if (fd < 0) {
        snprintf(why, why_bytes, "cannot listen for data links on %s: %s",
                 bind_host ? bind_host : "any address", strerror(errno));
        return PSD_ERR_IO;
    }
    if (getsockname(fd, (struct sockaddr *)&storage, &length) != 0 ||
        !endpoint_from_sockaddr(&storage, &mine)) {
        snprintf(why, why_bytes, "cannot find out the port of a listening socket: %s", strerror(errno));
        close(fd);
        return PSD_ERR_IO;
    }
    for (uint32_t i = 0; i < net->address.tcp_count; i++)
        net->address.tcp[i].port = mine.port;
    net->tcp_fd = fd;
    return PSD_OK;
}

psd_status listen_open(host_net *net, const char *bind_host, char *why, size_t why_bytes)
{
    psd_status status = PSD_OK;
    net->unix_source = (source){SOURCE_UNIX_LISTENER, net};
    net->path_source = (source){SOURCE_PATH_LISTENER, net};
    net->tcp_source = (source){SOURCE_TCP_LISTENER, net};
    if (net->want_shm)
        status = open_unix(net, why, why_bytes);
    if (status == PSD_OK && net->want_tcp)
        status = open_tcp(net, bind_host, why, why_bytes);
    if (status != PSD_OK)
        goto failed;
    if (net->want_shm)
        open_path(net);
    if ((net->unix_fd >= 0 && !net_watch(net, net->unix_fd, EPOLLIN, &net->unix_source)) ||
        (net->path_fd >= 0 && !net_watch(net, net->path_fd, EPOLLIN, &net->path_source)) ||
        (net->tcp_fd >= 0 && !net_watch(net, net->tcp_fd, EPOLLIN, &net->tcp_source))) {
        snprintf(why, why_bytes, "cannot watch the listening sockets: %s", strerror(errno));
        status = PSD_ERR_IO;
        goto failed;
    }
    net->listening = true;
    return PSD_OK;
failed:
    listen_close(net);
    return status;
}

void listen_close(host_net *net)
{
    if (net->unix_fd >= 0)
        close(net->unix_fd);
    if (net->path_fd >= 0 && net_is_ours(net))
        unix_path_remove(net->run_dir, net->address.unix_name);
    if (net->path_fd >= 0)
        close(net->path_fd);
    if (net->tcp_fd >= 0)
        close(net->tcp_fd);
    net->unix_fd = -1;
    net->path_fd = -1;
    net->tcp_fd = -1;
}

static void watch_listeners(host_net *net, uint32_t events)
{
    if (net->unix_fd >= 0)
        net_watch_change(net, net->unix_fd, events, &net->unix_source);
    if (net->path_fd >= 0)
        net_watch_change(net, net->path_fd, events, &net->path_source);
    if (net->tcp_fd >= 0)
        net_watch_change(net, net->tcp_fd, events, &net->tcp_source);
}

void listen_pause(host_net *net, psd_time_ns until)
{
    if (net->listening)
        watch_listeners(net, 0);
    net->listening = false;
    net->listen_at = until;
}

void listen_resume(host_net *net)
{
    if (!net->listening)
        watch_listeners(net, EPOLLIN);
    net->listening = true;
}

/* Did it come to an address that we want to be reached at? */
static bool came_to_ours(const host_net *net, int fd)
{
    struct sockaddr_storage storage;
    socklen_t length = sizeof storage;
    endpoint mine;
    if (!net->restricted)
        return true;
    if (getsockname(fd, (struct sockaddr *)&storage, &length) != 0 ||
        !endpoint_from_sockaddr(&storage, &mine))
        return false;
    for (uint32_t i = 0; i < net->address.tcp_count; i++)
        if (endpoint_same_ip(&net->address.tcp[i], &mine))
            return true;
    return false;
}

bool listen_event(host_net *net, source_kind listener, psd_time_ns now)
{
    bool any = false;
    bool is_unix = listener != SOURCE_TCP_LISTENER;
    int from = !is_unix ? net->tcp_fd : listener == SOURCE_PATH_LISTENER ? net->path_fd : net->unix_fd;
    for (int i = 0; i < ACCEPT_MOST; i++) {
        if (!accept_has_place(net, now)) {
            listen_pause(net, accept_next_place(net));
            return any;
        }
        int fd = accept4(from, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                listen_pause(net, now + PAUSE_NS);
            if (errno != ECONNABORTED && errno != EINTR)
                return any;
            continue;
        }
        any = true;
        if (!is_unix && !came_to_ours(net, fd)) {
            net_refuse(net, "a TCP connection", "it came to an address that data links are not bound to");
            close(fd);
            continue;
        }
        accept_begin(net, fd, is_unix, now);
    }
    return any;
}
