/* psd's own memory. ZeroMQ bounds a frame, but not how many frames an unfinished message has, so that whoever
 * can connect can make psd hold memory that only closing the connection gives back. */
#include <arpa/inet.h>
#include <dirent.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/conf.h"
#include "common/log.h"
#include "server/daemon.h"

#define DEFAULT_LIMIT (INT64_C(4) << 30)
#define NAMED_PEERS   8

typedef struct connection {
    uint64_t received; /* bytes */
    char address[96];
} connection;

int64_t psd_memory_default_limit(void)
{
    int64_t half = (int64_t)sysconf(_SC_PHYS_PAGES) / 2 * (int64_t)sysconf(_SC_PAGESIZE);
    return half > 0 && half < DEFAULT_LIMIT ? half : DEFAULT_LIMIT;
}

static int64_t resident_bytes(void)
{
    long long size = 0;
    long long resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%lld %lld", &size, &resident) != 2)
        resident = 0;
    fclose(file);
    return (int64_t)resident * (int64_t)sysconf(_SC_PAGESIZE);
}

static bool describe(int fd, connection *out)
{
    struct sockaddr_storage peer = {0};
    socklen_t bytes = sizeof(peer);
    struct tcp_info info;
    socklen_t info_bytes = sizeof(info);
    char host[64];
    char port[8];
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0 ||
        (peer.ss_family != AF_INET && peer.ss_family != AF_INET6))
        return false;
    if (getnameinfo((struct sockaddr *)&peer, bytes, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return false;
    memset(&info, 0, sizeof(info));
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) == 0)
        out->received = info.tcpi_bytes_received;
    snprintf(out->address, sizeof(out->address), "%s port %s", host, port);
    return true;
}

/* Keeps the NAMED_PEERS that sent most, in order. */
static void keep_largest(connection *list, const connection *one)
{
    int at = NAMED_PEERS;
    while (at > 0 && list[at - 1].received < one->received)
        at--;
    if (at == NAMED_PEERS)
        return;
    memmove(&list[at + 1], &list[at], (size_t)(NAMED_PEERS - 1 - at) * sizeof(*list));
    list[at] = *one;
}

static void name_connections(void)
{
    connection largest[NAMED_PEERS] = {{0}};
    char size[32];
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL)
        return;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        connection one = {0};
        int64_t fd = 0;
        if (psd_parse_i64(entry->d_name, 0, INT32_MAX, &fd) && describe((int)fd, &one))
            keep_largest(largest, &one);
    }
    closedir(dir);
    for (int i = 0; i < NAMED_PEERS && largest[i].received > 0; i++)
        psd_log("psd", PSD_LOG_WARN, "connected: %s, has sent %s", largest[i].address,
                psd_format_bytes((int64_t)largest[i].received, size, sizeof(size)));
}

/* Every connection is closed; those who are well come back by themselves, under new routing ids. */
static void shed(psd_daemon *daemon)
{
    int error = 0;
    if (psd_io_reopen(daemon->io, &error) != PSD_OK) {
        psd_log("psd", PSD_LOG_ERROR, "listening again failed: %s; psd ends", strerror(error));
        daemon->failed = true;
        return;
    }
    malloc_trim(0);
    psd_journal_row restart = {.event = {.type = PSD_EVENT_RESTART}};
    psd_daemon_step(daemon, &restart);
}

/* What is left after connections were closed is psd's own, or not given back: closing them again is of use
 * only once it has grown again. */
static bool must_shed(psd_daemon *daemon, int64_t resident)
{
    int64_t limit = daemon->options.memory_limit;
    if (daemon->measure_floor)
        daemon->memory_floor = resident;
    daemon->measure_floor = false;
    if (resident <= limit)
        daemon->memory_floor = 0;
    return resident > limit && resident > daemon->memory_floor + limit / 4;
}

void psd_daemon_watch_memory(psd_daemon *daemon)
{
    char have[32];
    char limit[32];
    int64_t resident = resident_bytes();
    if (!must_shed(daemon, resident))
        return;
    (void)snprintf(
        daemon->memory_note, sizeof(daemon->memory_note),
        "psd holds %s of memory, over its limit of %s: all connections are closed (workers come back by "
        "themselves); a larger limit: --memory-limit",
        psd_format_bytes(resident, have, sizeof(have)),
        psd_format_bytes(daemon->options.memory_limit, limit, sizeof(limit)));
    psd_daemon_note(daemon, daemon->memory_note);
    name_connections();
    shed(daemon);
    daemon->measure_floor = true;
}
