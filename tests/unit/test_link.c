/* Links between two contexts: coming up, streams, back-pressure, sleeping, death. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/link_pair.h"
#include "tests/lib/psd_test.h"
#include "worker/backend/host/bell.h"

static const char *const transports[] = {"shm", "tcp"};

PSD_TEST(link, comes_up)
{
    for (int t = 0; t < 2; t++) {
        link_pair p;
        cr_assert(link_pair_open(&p, transports[t]), "%s", transports[t]);
        for (int i = 0; i < 2; i++) {
            cr_assert_eq(host_link_is_shm(p.link[i]), t == 0);
            cr_assert_eq(host_link_incarnation(p.link[i]), 101u - (unsigned)i);
            cr_assert_eq(host_net_first(p.net[i]), p.link[i]);
            cr_assert_null(host_net_next(p.net[i], p.link[i]));
            cr_assert_eq(host_link_status(p.link[i]), PSD_OK);
            cr_assert_eq(host_net_refused(p.net[i]), 0);
            cr_assert_eq(host_net_needs_kernel(p.net[i]), t == 1);
            cr_assert_eq(host_net_deadline(p.net[i]), PSD_NEVER);
        }
        cr_assert_not_null(strstr(host_link_text(p.link[0]), t == 0 ? "shared memory" : "127.0.0.1:"), "%s",
                           host_link_text(p.link[0]));
        link_pair_close(&p);
    }
}

PSD_TEST(link, nothing_is_left_open)
{
    int before = link_count_fds();
    for (int t = 0; t < 2; t++) {
        link_pair p;
        cr_assert(link_pair_open(&p, transports[t]));
        link_pair_close(&p);
    }
    cr_assert_eq(link_count_fds(), before);
}

/* The bytes 0 to 255 again and again, by the stream and as small messages in turns of random lengths. */
PSD_TEST(link, small_messages_and_the_stream_are_one_order)
{
    link_pair p;
    unsigned char sent = 0, wanted = 0;
    uint32_t random = 1;
    cr_assert(link_pair_open(&p, "shm"));
    cr_assert_eq(host_link_small_max(p.link[0]), 2048);
    for (int round = 0; round < 2000; round++) {
        for (int k = 0; k < 5; k++) {
            unsigned char data[100];
            random = random * 1664525u + 1013904223u;
            uint32_t bytes = 1 + (random >> 16) % 60;
            lane_message m = {.bytes = bytes};
            for (uint32_t i = 0; i < bytes; i++)
                data[i] = (unsigned char)(sent + i);
            struct iovec iov = {data, bytes};
            bool done = (random >> 8) % 2 == 0 ? host_link_write_small(p.link[0], &m, data)
                                               : host_link_write(p.link[0], &iov, 1) == bytes;
            sent = (unsigned char)(done ? sent + bytes : sent);
        }
        for (;;) {
            unsigned char data[100];
            lane_message m;
            bool has_stream = host_link_readable_stream(p.link[1]);
            const unsigned char *small = host_link_peek_small(p.link[1], &m);
            size_t bytes = small != NULL ? m.bytes : has_stream ? host_link_read(p.link[1], data, 1) : 0;
            if (bytes == 0)
                break;
            for (size_t i = 0; i < bytes; i++)
                cr_assert_eq((small != NULL ? small : data)[i], wanted++, "round %d", round);
            if (small != NULL)
                host_link_take_small(p.link[1]);
        }
        cr_assert_eq(host_link_get_state(p.link[1]), HOST_LINK_READY, "%s", host_link_text(p.link[1]));
    }
    cr_assert_eq(sent, wanted);
    link_pair_close(&p);
    cr_assert(link_pair_open(&p, "tcp"));
    lane_message m = {0};
    cr_assert_eq(host_link_small_max(p.link[0]), 0);
    cr_assert_not(host_link_write_small(p.link[0], &m, NULL));
    cr_assert_null(host_link_peek_small(p.link[0], &m));
    link_pair_close(&p);
}

PSD_TEST(link, a_peer_opens_it_before_we_ask)
{
    link_pair p = {0};
    char address[PSD_MAX_ADDR];
    char why[PSD_MAX_TEXT];
    p.net[0] = link_net_open("auto", 5);
    p.net[1] = link_net_open("auto", 6);
    cr_assert_eq(host_net_address(p.net[1], address, sizeof address), PSD_OK);
    cr_assert_eq(host_link_get(p.net[0], address, &p.link[0], why, sizeof why), PSD_OK);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 5000);
    while (!host_net_first(p.net[1]) && psd_now_ns() < deadline) {
        (void)host_net_poll(p.net[0]);
        (void)host_net_poll(p.net[1]);
    }
    host_link *found = host_net_first(p.net[1]);
    cr_assert_not_null(found);
    cr_assert_eq(host_link_get_state(found), HOST_LINK_READY);
    cr_assert_eq(host_link_incarnation(found), 5);
    cr_assert_eq(host_net_address(p.net[0], address, sizeof address), PSD_OK);
    cr_assert_eq(host_link_get(p.net[1], address, &p.link[1], why, sizeof why), PSD_OK);
    cr_assert_eq(p.link[1], found);
    link_pair_close(&p);
}

typedef struct flow {
    uint64_t random;
    size_t done;
} flow;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static unsigned char byte_at(size_t i, int direction)
{
    return (unsigned char)(i * 131 + (i >> 9) + (size_t)direction * 77);
}

#define FLOW_BYTES ((size_t)3 << 20)

static void flow_send(host_link *link, flow *f, int direction)
{
    static unsigned char chunk[100000];
    size_t bytes = next_random(&f->random) % sizeof chunk;
    if (next_random(&f->random) % 2)
        bytes %= 200;
    if (bytes > FLOW_BYTES - f->done)
        bytes = FLOW_BYTES - f->done;
    for (size_t i = 0; i < bytes; i++)
        chunk[i] = byte_at(f->done + i, direction);
    struct iovec iov[2] = {{chunk, bytes / 3}, {chunk + bytes / 3, bytes - bytes / 3}};
    f->done += host_link_write(link, iov, 2);
    host_link_flush(link);
}

static void flow_receive(host_link *link, flow *f, int direction)
{
    static unsigned char chunk[100000];
    size_t bytes = next_random(&f->random) % sizeof chunk;
    if (next_random(&f->random) % 2)
        bytes %= 200;
    size_t got = host_link_read(link, chunk, bytes);
    for (size_t i = 0; i < got; i++)
        cr_assert_eq(chunk[i], byte_at(f->done + i, direction), "byte %zu", f->done + i);
    f->done += got;
}

PSD_TEST(link, streams_both_ways)
{
    for (int t = 0; t < 2; t++) {
        link_pair p;
        flow out[2] = {{1, 0}, {2, 0}};
        flow in[2] = {{3, 0}, {4, 0}};
        cr_assert(link_pair_open(&p, transports[t]));
        psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 20000);
        while ((in[0].done < FLOW_BYTES || in[1].done < FLOW_BYTES) && psd_now_ns() < deadline) {
            for (int i = 0; i < 2; i++) {
                flow_send(p.link[i], &out[i], i);
                flow_receive(p.link[1 - i], &in[i], i);
                (void)host_net_poll(p.net[i]);
            }
        }
        cr_assert_eq(in[0].done, FLOW_BYTES);
        cr_assert_eq(in[1].done, FLOW_BYTES);
        link_pair_close(&p);
    }
}

PSD_TEST(link, back_pressure)
{
    static unsigned char big[(size_t)32 << 20];
    struct iovec iov = {.iov_base = big, .iov_len = sizeof big};
    for (int t = 0; t < 2; t++) {
        link_pair p;
        size_t written = 0;
        size_t got;
        cr_assert(link_pair_open(&p, transports[t]));
        while ((got = host_link_write(p.link[0], &iov, 1)) > 0)
            written += got;
        cr_assert_gt(written, 0);
        cr_assert_not(host_link_writable(p.link[0]));
        if (t == 0)
            cr_assert_eq(written, 65536, "the ring's size");
        cr_assert(link_receive_all(p.net[1], p.link[1], big, written));
        psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 5000);
        while (!host_link_writable(p.link[0]) && psd_now_ns() < deadline)
            (void)host_net_poll(p.net[0]);
        cr_assert(host_link_writable(p.link[0]));
        link_pair_close(&p);
    }
}

typedef struct sleeper {
    host_net *net;
    host_link *link;
    psd_time_ns deadline;
    _Atomic bool armed;
    bool woken;
} sleeper;

static void *sleep_for_data(void *arg)
{
    sleeper *s = arg;
    while (!s->woken && psd_now_ns() < s->deadline) {
        host_net_arm(s->net);
        s->armed = true;
        if (!host_link_readable(s->link))
            host_net_sleep(s->net, s->deadline);
        host_net_disarm(s->net);
        (void)host_net_poll(s->net);
        s->woken = host_link_readable(s->link);
    }
    return NULL;
}

PSD_TEST(link, a_write_wakes_a_sleeper)
{
    for (int t = 0; t < 2; t++) {
        link_pair p;
        pthread_t thread;
        cr_assert(link_pair_open(&p, transports[t]));
        sleeper s = {.net = p.net[1], .link = p.link[1], .deadline = psd_deadline_ns(psd_now_ns(), 20000)};
        cr_assert_eq(pthread_create(&thread, NULL, sleep_for_data, &s), 0);
        while (!s.armed)
            ;
        cr_assert(link_send_all(p.net[0], p.link[0], "x", 1));
        cr_assert_eq(pthread_join(thread, NULL), 0);
        cr_assert(s.woken);
        cr_assert_lt(psd_now_ns(), s.deadline);
        link_pair_close(&p);
    }
}

PSD_TEST(link, a_read_wakes_who_waits_for_room)
{
    static char big[100000];
    link_pair p;
    struct iovec iov = {.iov_base = big, .iov_len = sizeof big};
    cr_assert(link_pair_open(&p, "shm"));
    size_t written = host_link_write(p.link[0], &iov, 1);
    cr_assert_lt(written, sizeof big);
    host_net_arm(p.net[0]);
    cr_assert_not(host_link_writable(p.link[0]));
    cr_assert_eq(host_link_read(p.link[1], big, 10), 10);
    host_link_flush(p.link[1]);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 10000);
    host_net_sleep(p.net[0], deadline);
    cr_assert_lt(psd_now_ns(), deadline);
    host_net_disarm(p.net[0]);
    cr_assert(host_link_writable(p.link[0]));
    link_pair_close(&p);
}

PSD_TEST(link, sleep_ends_at_its_deadline_and_by_wake)
{
    host_net *net = link_net_open("auto", 7);
    psd_time_ns start = psd_now_ns();
    host_net_arm(net);
    host_net_sleep(net, start + 20 * PSD_NS_PER_MS);
    cr_assert_geq(psd_now_ns(), start + 20 * PSD_NS_PER_MS);
    host_net_sleep(net, start); /* passed */
    host_net_wake(net);
    start = psd_now_ns();
    host_net_sleep(net, start + 10 * PSD_NS_PER_S);
    cr_assert_lt(psd_now_ns(), start + 10 * PSD_NS_PER_S);
    host_net_disarm(net);
    host_net_arm(net); /* and the ring is over */
    start = psd_now_ns();
    host_net_sleep(net, start + 5 * PSD_NS_PER_MS);
    cr_assert_geq(psd_now_ns(), start + 5 * PSD_NS_PER_MS);
    host_net_disarm(net);
    host_net_close(net);
}

/* A child process with a net that links to `address`, writes `bytes` bytes, and waits to be killed. */
static pid_t start_peer(const char *transport, const char *address, size_t bytes, int to_parent)
{
    static char data[1000];
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    char why[PSD_MAX_TEXT];
    host_link *link;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    host_net *net = link_net_open(transport, 1);
    if (!net || host_link_get(net, address, &link, why, sizeof why) != PSD_OK ||
        !link_until(net, link, HOST_LINK_READY, 5000) || !link_send_all(net, link, data, bytes) ||
        write(to_parent, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

PSD_TEST(link, what_a_killed_peer_wrote_is_read_then_it_breaks)
{
    for (int t = 0; t < 2; t++) {
        char address[PSD_MAX_ADDR];
        char data[1000];
        int ready[2];
        cr_assert_eq(pipe(ready), 0);
        host_net *net = link_net_open(transports[t], 2);
        cr_assert_eq(host_net_address(net, address, sizeof address), PSD_OK);
        pid_t pid = start_peer(transports[t], address, sizeof data, ready[1]);
        cr_assert_gt(pid, 0);
        psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 8000);
        while ((!host_net_first(net) || !host_link_readable(host_net_first(net))) && psd_now_ns() < deadline)
            (void)host_net_poll(net);
        host_link *link = host_net_first(net);
        cr_assert_not_null(link);
        cr_assert_eq(read(ready[0], data, 1), 1);
        cr_assert_eq(kill(pid, SIGKILL), 0);
        cr_assert_eq(waitpid(pid, NULL, 0), pid);
        (void)host_net_poll(net);
        cr_assert_eq(host_link_get_state(link), HOST_LINK_READY, "%s", host_link_text(link));
        cr_assert(link_receive_all(net, link, data, sizeof data));
        cr_assert(link_until(net, link, HOST_LINK_BROKEN, 5000) ||
                  (host_link_read(link, data, 1) == 0 && host_link_get_state(link) == HOST_LINK_BROKEN));
        cr_assert_eq(host_link_status(link), PSD_ERR_PEER_FAILED, "%s", host_link_text(link));
        host_net_close(net);
        close(ready[0]);
        close(ready[1]);
    }
}

PSD_TEST(link, breaks_and_comes_up_anew)
{
    for (int t = 0; t < 2; t++) {
        link_pair p;
        char address[PSD_MAX_ADDR];
        char why[PSD_MAX_TEXT];
        cr_assert(link_pair_open(&p, transports[t]));
        host_link_break(p.link[1], "the test broke it");
        cr_assert_str_eq(host_link_text(p.link[1]), "the test broke it");
        cr_assert_eq(host_link_status(p.link[1]), PSD_ERR_LINK);
        cr_assert(link_until(p.net[0], p.link[0], HOST_LINK_BROKEN, 5000));
        cr_assert_eq(host_link_write(p.link[0], &(struct iovec){"x", 1}, 1), 0);
        cr_assert_eq(host_link_read(p.link[0], why, 1), 0);
        for (int i = 0; i < 2; i++) {
            host_link_put(p.net[i], &p.link[i]);
            cr_assert_null(p.link[i]);
            cr_assert_eq(host_net_address(p.net[1 - i], address, sizeof address), PSD_OK);
            cr_assert_eq(host_link_get(p.net[i], address, &p.link[i], why, sizeof why), PSD_OK);
        }
        cr_assert(link_pair_up(&p));
        for (int i = 0; i < 2; i++) {
            (void)host_net_poll(p.net[i]);
            (void)host_net_poll(p.net[i]);
            cr_assert_eq(host_net_first(p.net[i]), p.link[i], "the broken one is gone");
        }
        link_pair_close(&p);
    }
}

PSD_TEST(link, single_copy_reads_the_peer)
{
    link_pair p;
    static unsigned char from[300000];
    static unsigned char to[300000];
    cr_assert(link_pair_open(&p, "shm"));
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 3);
    cr_assert(host_link_single_copy(p.link[0]), "%s", host_link_text(p.link[0]));
    cr_assert_eq(host_link_read_remote(p.link[0], (uintptr_t)from, to, sizeof from), PSD_OK);
    cr_assert_eq(memcmp(from, to, sizeof from), 0);
    cr_assert_eq(host_link_read_remote(p.link[0], 16, to, 100), PSD_ERR_LINK, "nothing is mapped there");
    link_pair_close(&p);
    cr_assert(link_pair_open(&p, "tcp"));
    cr_assert_not(host_link_single_copy(p.link[0]));
    cr_assert_eq(host_link_read_remote(p.link[0], (uintptr_t)from, to, 1), PSD_ERR_UNSUPPORTED);
    link_pair_close(&p);
}

/* The peer ends the link while we read its memory: we find that by ourselves, before the kernel tells us. */
PSD_TEST(link, a_read_of_mapped_memory_holds_until_the_peer_leaves)
{
    link_pair p;
    uint64_t place = 0;
    cr_assert(link_pair_open(&p, "shm"));
    arena *theirs = host_net_arena(p.net[1]);
    void *memory = arena_get(theirs, ARENA_BLOCK_MIN);
    cr_assert_not_null(memory);
    cr_assert(arena_place(theirs, memory, ARENA_BLOCK_MIN, &place));
    memset(memory, 7, ARENA_BLOCK_MIN);
    const unsigned char *here = host_link_map(p.link[0], place, ARENA_BLOCK_MIN);
    cr_assert_not_null(here);
    cr_assert_eq(here[100], 7);
    cr_assert(host_link_read_holds(p.link[0]));
    host_link_break(p.link[1], "given up");
    memset(memory, 8, ARENA_BLOCK_MIN);
    cr_assert_eq(here[100], 8);
    cr_assert_eq(host_link_get_state(p.link[0]), HOST_LINK_READY);
    cr_assert_not(host_link_read_holds(p.link[0]));
    cr_assert(arena_put(theirs, memory));
    link_pair_close(&p);
}

PSD_TEST(link, no_room_for_shared_memory_means_tcp_or_an_error)
{
    link_pair p = {0};
    char address[PSD_MAX_ADDR];
    char why[PSD_MAX_TEXT];
    p.net[0] = link_net_open("auto", 5);
    p.net[1] = link_net_open("auto", 6);
    host_net *only_shm = link_net_open("shm", 4);
    struct rlimit limit = {.rlim_cur = 8192, .rlim_max = 8192};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(host_net_address(p.net[1], address, sizeof address), PSD_OK);
    cr_assert_eq(host_link_get(p.net[0], address, &p.link[0], why, sizeof why), PSD_OK);
    host_link *link;
    cr_assert_eq(host_link_get(only_shm, address, &link, why, sizeof why), PSD_OK);
    cr_assert_eq(host_net_address(p.net[0], address, sizeof address), PSD_OK);
    cr_assert_eq(host_link_get(p.net[1], address, &p.link[1], why, sizeof why), PSD_OK);
    cr_assert(link_pair_up(&p), "%s", host_link_text(p.link[0]));
    cr_assert_not(host_link_is_shm(p.link[0]));
    cr_assert_not_null(strstr(host_link_text(p.link[0]), "need 148 KiB, have 8 KiB"), "%s",
                       host_link_text(p.link[0]));
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 4000);
    while (host_link_get_state(link) == HOST_LINK_CONNECTING && psd_now_ns() < deadline) {
        (void)host_net_poll(only_shm);
        (void)host_net_poll(p.net[1]);
    }
    cr_assert_eq(host_link_get_state(link), HOST_LINK_BROKEN);
    cr_assert_not_null(strstr(host_link_text(link), "need 148 KiB, have 8 KiB"), "%s", host_link_text(link));
    host_net_close(only_shm);
    link_pair_close(&p);
}

PSD_TEST(link, a_forked_child_may_close_its_copy)
{
    for (int t = 0; t < 2; t++) {
        link_pair p;
        char data[4];
        cr_assert(link_pair_open(&p, transports[t]));
        pid_t pid = fork();
        if (pid == 0) {
            link_pair_close(&p);
            _exit(0);
        }
        cr_assert_eq(waitpid(pid, NULL, 0), pid);
        (void)host_net_poll(p.net[1]);
        cr_assert(link_send_all(p.net[0], p.link[0], "abcd", 4), "%s", host_link_text(p.link[0]));
        cr_assert(link_receive_all(p.net[1], p.link[1], data, 4), "%s", host_link_text(p.link[1]));
        host_link_break(p.link[0], "still watched");
        cr_assert(link_until(p.net[1], p.link[1], HOST_LINK_BROKEN, 5000));
        link_pair_close(&p);
    }
}

PSD_TEST(link, no_room_for_a_bell_means_tcp)
{
    struct rlimit before;
    host_net_config config = {.job = "test", .incarnation = 3, .bind_host = "127.0.0.1", .transport = "shm"};
    host_net *net;
    char why[PSD_MAX_TEXT] = "";
    link_pair p;
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit limit = {.rlim_cur = 100, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* the log may go to a file that is longer already */
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    psd_status status = host_net_open(&config, &net, why, sizeof why);
    bool is_open = link_pair_open(&p, "auto");
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    cr_assert_eq(status, PSD_ERR_NOMEM);
    cr_assert_not_null(strstr(why, "need 4 KiB, have 100 B"), "%s", why);
    cr_assert(is_open);
    cr_assert_not(host_link_is_shm(p.link[0]));
    link_pair_close(&p);
}

/* The peer of a link by hand: a bell that rings after the disarm is emptied by the next poll. */
PSD_TEST(link, a_late_ring_does_not_stay)
{
    bell mine;
    char why[PSD_MAX_TEXT];
    uint64_t one = 1;
    cr_assert_eq(bell_open(&mine, true, why, sizeof why), PSD_OK);
    struct pollfd rung = {.fd = mine.event_fd, .events = POLLIN};
    bell_arm(&mine);
    bell_wake(&mine);
    bell_silence(&mine);
    cr_assert_eq(poll(&rung, 1, 0), 1, "it wakes until the sleeper is up");
    bell_disarm(&mine);
    cr_assert_eq(poll(&rung, 1, 0), 0);
    cr_assert_eq(write(mine.event_fd, &one, sizeof one), (ssize_t)sizeof one);
    bell_silence(&mine);
    cr_assert_eq(poll(&rung, 1, 0), 0);
    bell_close(&mine);
}
