/* A network cable between two network namespaces that is long and loses frames.
 *
 *     cable NETNS_A IF_A NETNS_B IF_B DELAY_US LOSS_PERCENT
 *
 * Makes a TAP interface in each namespace (a path such as /run/netns/h1), sets both up, prints "up" and carries
 * the frames between them, each DELAY_US late, in order, except for LOSS_PERCENT of them, which are lost. For
 * kernels without netem. Addresses and bridges are the caller's. SIGTERM ends it with a line that counts.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <linux/if.h>
#include <linux/if_tun.h>

#define FRAME_BYTES 2048 /* a frame of the usual MTU with all headers */
#define SLOTS       4096 /* frames under way at most, each way; a full cable loses the next */
#define BURST       32   /* frames taken from one end before the other has its turn */

typedef struct frame {
    int64_t due_ns;
    size_t bytes;
    uint8_t data[FRAME_BYTES];
} frame;

typedef struct direction {
    int from;
    int to;
    uint64_t carried;
    uint64_t lost;
    size_t first; /* oldest frame under way */
    size_t count;
    frame frames[SLOTS];
} direction;

typedef struct cable {
    int64_t delay_ns;
    double loss;            /* 0 to 1 */
    unsigned short dice[3]; /* the same losses in each run, for the same frames */
    int signal_fd;
    direction ways[2];
} cable;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A TAP interface, up, in the namespace, which this process enters for good. -1 after a message. */
static int open_end(const char *netns, const char *name)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    int tap = -1;
    int control = -1;
    bool ok = false;
    int ns = open(netns, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0)
        goto report;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (tap < 0 || control < 0 || ioctl(tap, TUNSETIFF, &request) != 0 ||
        ioctl(control, SIOCGIFFLAGS, &request) != 0)
        goto report;
    request.ifr_flags |= IFF_UP;
    ok = ioctl(control, SIOCSIFFLAGS, &request) == 0;
report:
    if (!ok)
        fprintf(stderr, "cable: %s in %s: %s\n", name, netns, strerror(errno));
    if (control >= 0)
        close(control);
    if (ns >= 0)
        close(ns);
    if (!ok && tap >= 0) {
        close(tap);
        tap = -1;
    }
    return tap;
}

static void take_in(cable *c, direction *way)
{
    for (int i = 0; i < BURST; i++) {
        frame spare;
        bool full = way->count == SLOTS;
        frame *f = full ? &spare : &way->frames[(way->first + way->count) % SLOTS];
        ssize_t got = read(way->from, f->data, sizeof f->data);
        if (got <= 0)
            return;
        if (full || erand48(c->dice) < c->loss) {
            way->lost++;
            continue;
        }
        f->bytes = (size_t)got;
        f->due_ns = now_ns() + c->delay_ns;
        way->count++;
    }
}

static void give_out(direction *way)
{
    int64_t now = now_ns();
    while (way->count > 0 && way->frames[way->first].due_ns <= now) {
        const frame *f = &way->frames[way->first];
        if (write(way->to, f->data, f->bytes) == (ssize_t)f->bytes)
            way->carried++;
        else
            way->lost++; /* the interface is down, say */
        way->first = (way->first + 1) % SLOTS;
        way->count--;
    }
}

/* Until the next frame is due; -1: none is under way. */
static int64_t wait_ns(const cable *c)
{
    int64_t next = -1;
    for (int i = 0; i < 2; i++) {
        const direction *way = &c->ways[i];
        if (way->count > 0 && (next < 0 || way->frames[way->first].due_ns < next))
            next = way->frames[way->first].due_ns;
    }
    if (next < 0)
        return -1;
    next -= now_ns();
    return next > 0 ? next : 0;
}

static void carry(cable *c)
{
    struct pollfd watched[3] = {{.fd = c->ways[0].from, .events = POLLIN},
                                {.fd = c->ways[1].from, .events = POLLIN},
                                {.fd = c->signal_fd, .events = POLLIN}};
    while (watched[2].revents == 0) {
        int64_t ns = wait_ns(c);
        struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
        if (ppoll(watched, 3, ns < 0 ? NULL : &timeout, NULL) < 0 && errno != EINTR)
            break;
        for (int i = 0; i < 2; i++)
            take_in(c, &c->ways[i]);
        for (int i = 0; i < 2; i++)
            give_out(&c->ways[i]);
    }
}

static bool parse(const char *text, double most, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= 0 && *out <= most;
}

int main(int argc, char **argv)
{
    static cable c = {.dice = {1, 2, 3}};
    double delay_us;
    double loss;
    sigset_t term;
    if (argc != 7 || !parse(argv[5], 1e7, &delay_us) || !parse(argv[6], 100, &loss)) {
        fputs("usage: cable NETNS_A IF_A NETNS_B IF_B DELAY_US LOSS_PERCENT\n", stderr);
        return 2;
    }
    c.delay_ns = (int64_t)(delay_us * 1000);
    c.loss = loss / 100;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    c.signal_fd = signalfd(-1, &term, SFD_CLOEXEC);
    int a = open_end(argv[1], argv[2]);
    int b = a < 0 ? -1 : open_end(argv[3], argv[4]);
    if (c.signal_fd < 0 || b < 0)
        return 1;
    c.ways[0].from = c.ways[1].to = a;
    c.ways[1].from = c.ways[0].to = b;
    puts("up");
    fflush(stdout);
    carry(&c);
    printf("carried %ju lost %ju\n", (uintmax_t)(c.ways[0].carried + c.ways[1].carried),
           (uintmax_t)(c.ways[0].lost + c.ways[1].lost));
    return 0;
}
