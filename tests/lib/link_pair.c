#include "tests/lib/link_pair.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_MS 8000

host_net *link_net_open(const char *transport, uint64_t incarnation)
{
    char why[PSD_MAX_TEXT];
    host_net *net = NULL;
    host_net_config config = {.job = "test",
                              .incarnation = incarnation,
                              .bind_host = "127.0.0.1",
                              .transport = transport,
                              .ring_bytes = 65536};
    if (host_net_open(&config, &net, why, sizeof why) != PSD_OK)
        fprintf(stderr, "link_net_open: %s\n", why);
    return net;
}

static bool settled(const host_link *a, const host_link *b)
{
    return host_link_get_state(a) == HOST_LINK_BROKEN || host_link_get_state(b) == HOST_LINK_BROKEN ||
           (host_link_get_state(a) == HOST_LINK_READY && host_link_get_state(b) == HOST_LINK_READY);
}

bool link_pair_up(link_pair *pair)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), LIMIT_MS);
    while (!settled(pair->link[0], pair->link[1]) && psd_now_ns() < deadline) {
        (void)host_net_poll(pair->net[0]);
        (void)host_net_poll(pair->net[1]);
    }
    return host_link_get_state(pair->link[0]) == HOST_LINK_READY &&
           host_link_get_state(pair->link[1]) == HOST_LINK_READY;
}

bool link_pair_open(link_pair *pair, const char *transport)
{
    char address[PSD_MAX_ADDR];
    char why[PSD_MAX_TEXT];
    memset(pair, 0, sizeof *pair);
    for (uint64_t i = 0; i < 2; i++) {
        pair->net[i] = link_net_open(transport, 100 + i);
        if (!pair->net[i])
            return false;
    }
    for (int i = 0; i < 2; i++)
        if (host_net_address(pair->net[1 - i], address, sizeof address) != PSD_OK ||
            host_link_get(pair->net[i], address, &pair->link[i], why, sizeof why) != PSD_OK)
            return false;
    return link_pair_up(pair);
}

void link_pair_close(link_pair *pair)
{
    for (int i = 0; i < 2; i++) {
        if (pair->link[i])
            host_link_put(pair->net[i], &pair->link[i]);
        host_net_close(pair->net[i]);
    }
}

bool link_until(host_net *net, host_link *link, host_link_state state, int timeout_ms)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), timeout_ms);
    while (host_link_get_state(link) != state && psd_now_ns() < deadline)
        (void)host_net_poll(net);
    return host_link_get_state(link) == state;
}

bool link_send_all(host_net *net, host_link *link, const void *data, size_t bytes)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), LIMIT_MS);
    size_t done = 0;
    while (done < bytes && host_link_get_state(link) == HOST_LINK_READY && psd_now_ns() < deadline) {
        struct iovec iov = {.iov_base = (char *)(uintptr_t)data + done, .iov_len = bytes - done};
        done += host_link_write(link, &iov, 1);
        host_link_flush(link);
        (void)host_net_poll(net);
    }
    return done == bytes;
}

bool link_receive_all(host_net *net, host_link *link, void *data, size_t bytes)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), LIMIT_MS);
    size_t done = 0;
    while (done < bytes && host_link_get_state(link) == HOST_LINK_READY && psd_now_ns() < deadline) {
        done += host_link_read(link, (char *)data + done, bytes - done);
        host_link_flush(link);
        (void)host_net_poll(net);
    }
    return done == bytes;
}

int link_count_fds(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (!directory)
        return -1;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}
