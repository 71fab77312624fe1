/* Links between two processes of this host: half a ping-pong's round trip and the rate of a one-way stream,
 * over shared memory and over TCP on the loopback, beside one thread's memcpy. Medians of REPEATS runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "worker/backend/host/link.h"

#define REPEATS      9
#define STREAM_BYTES ((size_t)64 << 20)
#define PINGS_SHM    20000
#define PINGS_TCP    2000
#define GIVE_UP_NS   (60 * PSD_NS_PER_S)

typedef struct end {
    host_net *net;
    host_link *link;
    unsigned char *data;
    psd_time_ns give_up;
} end;

static void die(const char *what)
{
    fprintf(stderr, "bench_link: %s\n", what);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double values[REPEATS])
{
    qsort(values, REPEATS, sizeof values[0], compare);
    return values[REPEATS / 2];
}

static void progress(end *e)
{
    if (!host_link_is_shm(e->link))
        (void)host_net_poll(e->net);
    if (host_link_get_state(e->link) == HOST_LINK_BROKEN)
        die(host_link_text(e->link));
}

static void send_all(end *e, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        struct iovec iov = {.iov_base = e->data + done, .iov_len = bytes - done};
        size_t written = host_link_write(e->link, &iov, 1);
        done += written;
        host_link_flush(e->link);
        if (written == 0)
            progress(e);
    }
}

static void receive_all(end *e, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t got = host_link_read(e->link, e->data + done, bytes - done);
        done += got;
        if (got == 0)
            progress(e);
        else
            host_link_flush(e->link);
    }
}

static void open_end(end *e, const char *transport, uint64_t incarnation, int channel)
{
    char mine[PSD_MAX_ADDR] = "";
    char theirs[PSD_MAX_ADDR] = "";
    char why[PSD_MAX_TEXT];
    host_net_config config = {
        .job = "bench", .incarnation = incarnation, .bind_host = "127.0.0.1", .transport = transport};
    memset(e, 0, sizeof *e);
    e->data = malloc(STREAM_BYTES);
    if (!e->data)
        die("out of memory");
    memset(e->data, 1, STREAM_BYTES);
    if (host_net_open(&config, &e->net, why, sizeof why) != PSD_OK)
        die(why);
    if (host_net_address(e->net, mine, sizeof mine) != PSD_OK ||
        write(channel, mine, sizeof mine) != sizeof mine ||
        read(channel, theirs, sizeof theirs) != sizeof theirs)
        die("cannot exchange addresses");
    if (host_link_get(e->net, theirs, &e->link, why, sizeof why) != PSD_OK)
        die(why);
    psd_time_ns stop = psd_now_ns() + GIVE_UP_NS;
    while (host_link_get_state(e->link) == HOST_LINK_CONNECTING && psd_now_ns() < stop)
        (void)host_net_poll(e->net);
    if (host_link_get_state(e->link) != HOST_LINK_READY)
        die(host_link_text(e->link));
}

static void close_end(end *e)
{
    host_link_put(e->net, &e->link);
    host_net_close(e->net);
    free(e->data);
}

static void ping(end *e, size_t bytes)
{
    send_all(e, bytes);
    receive_all(e, bytes);
}

static void pong(end *e, size_t bytes)
{
    receive_all(e, bytes);
    send_all(e, bytes);
}

/* The other process: answers what measure() does. */
static void answer(end *e, int pings)
{
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (int i = 0; i < pings; i++)
            pong(e, 4);
        receive_all(e, STREAM_BYTES);
        send_all(e, 1);
    }
    receive_all(e, 1);
}

static void measure(end *e, const char *transport, int pings, double memcpy_gbs)
{
    double latency[REPEATS];
    double rate[REPEATS];
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        psd_time_ns start = psd_now_ns();
        for (int i = 0; i < pings; i++)
            ping(e, 4);
        latency[repeat] = (double)(psd_now_ns() - start) / pings / 2 / 1e3;
        start = psd_now_ns();
        send_all(e, STREAM_BYTES);
        receive_all(e, 1);
        rate[repeat] = (double)STREAM_BYTES / (double)(psd_now_ns() - start);
    }
    send_all(e, 1);
    double gbs = median(rate);
    printf("%-10s %14.3f %14.2f %16.2f\n", transport, median(latency), gbs, gbs / memcpy_gbs);
}

static double measure_memcpy(void)
{
    double rate[REPEATS];
    unsigned char *from = malloc(STREAM_BYTES);
    unsigned char *to = malloc(STREAM_BYTES);
    if (!from || !to)
        die("out of memory");
    memset(from, 1, STREAM_BYTES);
    memset(to, 2, STREAM_BYTES);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        psd_time_ns start = psd_now_ns();
        memcpy(to, from, STREAM_BYTES);
        __asm__ volatile("" : : "r"(to) : "memory");
        rate[repeat] = (double)STREAM_BYTES / (double)(psd_now_ns() - start);
    }
    free(from);
    free(to);
    return median(rate);
}

static void run(const char *transport, int pings, double memcpy_gbs)
{
    int channel[2];
    int status;
    end e;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, channel) != 0)
        die("no socketpair");
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        die("cannot fork");
    open_end(&e, transport, child == 0 ? 2 : 1, channel[child == 0 ? 1 : 0]);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        answer(&e, pings);
        close_end(&e);
        exit(0);
    }
    measure(&e, transport, pings, memcpy_gbs);
    if (waitpid(child, &status, 0) != child || status != 0)
        die("the other process failed");
    close_end(&e);
    close(channel[0]);
    close(channel[1]);
}

int main(void)
{
    double memcpy_gbs = measure_memcpy();
    printf("%-10s %14s %14s %16s\n", "link", "4 B (us)", "64 MiB (GB/s)", "of memcpy");
    run("shm", PINGS_SHM, memcpy_gbs);
    run("tcp", PINGS_TCP, memcpy_gbs);
    printf("%-10s %14s %14.2f\n", "memcpy", "-", memcpy_gbs);
    return 0;
}
