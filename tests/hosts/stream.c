/* One plain TCP stream, for comparison: what the network and the kernel allow without psd.
 *
 *     stream listen PORT BYTES BUFFER ROUNDS       the other end; ends after its connection
 *     stream ADDRESS PORT BYTES BUFFER ROUNDS      prints the median time of one transfer in microseconds
 *
 * A round is BYTES there and BYTES back, as psd-bench send does it; its half is one transfer. The bytes come from and
 * go to a buffer of BUFFER bytes, again and again: BYTES for the traffic on memory that psd has too, 256 KiB for what
 * tools like iperf show.
 */
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CALL_BYTES ((size_t)1 << 20) /* of one read or write */
#define ROUNDS_MAX 1000
#define WAIT_S     20

typedef struct stream {
    int fd;
    uint8_t *buffer;
    size_t buffer_bytes;
    size_t bytes;
    long rounds;
} stream;

static double microseconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static bool move_bytes(const stream *s, bool is_sender)
{
    for (size_t done = 0; done < s->bytes;) {
        size_t at = done % s->buffer_bytes;
        size_t part = s->bytes - done;
        part = part < CALL_BYTES ? part : CALL_BYTES;
        part = part < s->buffer_bytes - at ? part : s->buffer_bytes - at;
        ssize_t moved = is_sender ? send(s->fd, s->buffer + at, part, MSG_NOSIGNAL)
                                  : recv(s->fd, s->buffer + at, part, 0);
        if (moved <= 0)
            return false;
        done += (size_t)moved;
    }
    return true;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool measure(const stream *s)
{
    static double times[ROUNDS_MAX];
    for (long i = -1; i < s->rounds; i++) { /* the first is warm-up */
        double begin = microseconds_now();
        if (!move_bytes(s, true) || !move_bytes(s, false))
            return false;
        if (i >= 0)
            times[i] = (microseconds_now() - begin) / 2;
    }
    qsort(times, (size_t)s->rounds, sizeof *times, by_value);
    printf("%.1f\n", times[s->rounds / 2]);
    return true;
}

static bool answer(const stream *s)
{
    for (long i = -1; i < s->rounds; i++)
        if (!move_bytes(s, false) || !move_bytes(s, true))
            return false;
    return true;
}

static int accept_one(const char *port)
{
    struct sockaddr_in6 any = {
        .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT, .sin6_port = htons((uint16_t)atoi(port))};
    struct timeval patience = {.tv_sec = WAIT_S};
    int on = 1;
    int fd = -1;
    int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
        bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 1) == 0) {
        puts("listening");
        fflush(stdout);
        fd = accept(listener, NULL, NULL);
    }
    if (listener >= 0)
        close(listener);
    return fd;
}

static int connect_to(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

int main(int argc, char **argv)
{
    stream s = {.fd = -1};
    int on = 1;
    bool ok = false;
    if (argc == 6) {
        s.bytes = (size_t)strtoull(argv[3], NULL, 10);
        s.buffer_bytes = (size_t)strtoull(argv[4], NULL, 10);
        s.rounds = atol(argv[5]);
    }
    if (s.bytes == 0 || s.buffer_bytes == 0 || s.rounds < 1 || s.rounds > ROUNDS_MAX) {
        fputs("usage: stream listen|ADDRESS PORT BYTES BUFFER ROUNDS\n", stderr);
        return 2;
    }
    bool listens = strcmp(argv[1], "listen") == 0;
    s.buffer = malloc(s.buffer_bytes);
    if (s.buffer != NULL) {
        memset(s.buffer, 1, s.buffer_bytes);
        s.fd = listens ? accept_one(argv[2]) : connect_to(argv[1], argv[2]);
    }
    if (s.fd >= 0) {
        (void)setsockopt(s.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        ok = listens ? answer(&s) : measure(&s);
        close(s.fd);
    }
    if (!ok)
        perror("stream");
    free(s.buffer);
    return ok ? 0 : 1;
}
