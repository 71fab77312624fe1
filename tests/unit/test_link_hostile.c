/* What strangers and hostile peers can do to a net: be dropped, be counted, break their own link, and no
 * more. */
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <xxhash.h>

#include "tests/lib/link_pair.h"
#include "tests/lib/psd_test.h"
#include "worker/backend/host/address.h"
#include "worker/backend/host/handshake.h"
#include "worker/backend/host/ring.h"
#include "worker/backend/host/segment.h"

#define NET_ID  1000
#define PEER_ID 7
#define RING    ((uint64_t)65536)
#define SEGMENT (SEGMENT_INDEX_BYTES + 2 * RING + 2 * lane_bytes(RING))

static host_address address_of(const host_net *net)
{
    char text[PSD_MAX_ADDR];
    host_address address;
    cr_assert_eq(host_net_address(net, text, sizeof text), PSD_OK);
    cr_assert(host_address_parse(text, &address));
    return address;
}

static int connect_unix(const host_net *net)
{
    host_address address = address_of(net);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t length = strlen(address.unix_name);
    memcpy(name.sun_path + 1, address.unix_name, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&name,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)),
                 0);
    return fd;
}

static int connect_tcp(const host_net *net)
{
    host_address address = address_of(net);
    struct sockaddr_storage to;
    socklen_t length = endpoint_to_sockaddr(&address.tcp[0], &to);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, length), 0);
    return fd;
}

static handshake_frame frame_of(handshake_kind kind)
{
    handshake_frame frame;
    memset(&frame, 0, sizeof frame);
    frame.kind = kind;
    frame.version = HANDSHAKE_VERSION;
    frame.job = XXH64("test", 4, 0);
    frame.from = PEER_ID;
    frame.to = NET_ID;
    frame.nonce = 42;
    frame.ring_bytes = RING;
    return frame;
}

/* Polls the net until the channel has a frame (PSD_OK) or an end. */
static psd_status receive(host_net *net, handshake_channel *c, handshake_frame *out)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 8000);
    psd_status status;
    do {
        (void)host_net_poll(net);
        status = handshake_receive(c, out);
    } while (status == PSD_INPROGRESS && psd_now_ns() < deadline);
    return status;
}

/* A working net still takes a real peer. */
static void still_works(host_net *net, const char *transport)
{
    link_pair p = {.net = {link_net_open(transport, 8), net}};
    char text[PSD_MAX_ADDR];
    char why[PSD_MAX_TEXT];
    cr_assert_eq(host_net_address(net, text, sizeof text), PSD_OK);
    cr_assert_eq(host_link_get(p.net[0], text, &p.link[0], why, sizeof why), PSD_OK);
    cr_assert_eq(host_net_address(p.net[0], text, sizeof text), PSD_OK);
    cr_assert_eq(host_link_get(net, text, &p.link[1], why, sizeof why), PSD_OK);
    cr_assert(link_pair_up(&p), "%s", host_link_text(p.link[0]));
    host_link_put(net, &p.link[1]);
    host_net_close(p.net[0]);
}

static void until_refused(host_net *net, uint64_t count)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 8000);
    while (host_net_refused(net) < count && psd_now_ns() < deadline)
        (void)host_net_poll(net);
    cr_assert_eq(host_net_refused(net), count);
}

PSD_TEST(link_hostile, garbage_on_every_port)
{
    host_net *net = link_net_open("auto", NET_ID);
    unsigned char garbage[4096];
    uint64_t refused = 0;
    for (size_t i = 0; i < sizeof garbage; i++)
        garbage[i] = (unsigned char)(i * 167 + 13);
    int before = link_count_fds();
    for (int i = 0; i < 20; i++) {
        int fd = i % 2 ? connect_unix(net) : connect_tcp(net);
        size_t bytes = i < 4 ? 0 : i < 8 ? 50 : sizeof garbage;
        cr_assert_eq(send(fd, garbage, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
        if (bytes < HANDSHAKE_BYTES)
            cr_assert_eq(shutdown(fd, SHUT_WR), 0);
        until_refused(net, ++refused);
        close(fd);
    }
    cr_assert_eq(link_count_fds(), before);
    cr_assert_null(host_net_first(net));
    still_works(net, "auto");
    host_net_close(net);
}

PSD_TEST(link_hostile, strangers_who_speak_the_protocol)
{
    host_net *net = link_net_open("auto", NET_ID);
    for (int i = 0; i < 12; i++) {
        handshake_frame frame = frame_of(HANDSHAKE_HELLO);
        handshake_frame answer;
        handshake_channel c;
        switch (i % 6) {
        case 0:
            frame.job++;
            break;
        case 1:
            frame.to++;
            break;
        case 2:
            frame.version = 9;
            break;
        case 3:
            frame.from = 0;
            break;
        case 4:
            frame.from = NET_ID;
            break;
        case 5:
            frame.from = NET_ID + 1;
            break;
        }
        handshake_channel_init(&c, i < 6 ? connect_unix(net) : connect_tcp(net));
        cr_assert_eq(handshake_send(&c, &frame, NULL, 0), PSD_OK);
        cr_assert_eq(receive(net, &c, &answer), PSD_OK);
        cr_assert_eq(answer.kind, HANDSHAKE_REFUSE);
        cr_assert_eq(answer.reason, i % 6 == 2 ? HANDSHAKE_OTHER_VERSION : HANDSHAKE_STRANGER);
        cr_assert_gt(strlen(answer.text), 0);
        cr_assert_eq(receive(net, &c, &answer), PSD_ERR_LINK, "and then it is closed");
        cr_assert_eq(host_net_refused(net), (uint64_t)i + 1);
        handshake_channel_close(&c);
    }
    cr_assert_null(host_net_first(net));
    host_net_close(net);
}

PSD_TEST(link_hostile, a_flood_of_silent_connections)
{
    host_net *net = link_net_open("tcp", NET_ID);
    int fds[400];
    int before = link_count_fds();
    for (int i = 0; i < 400; i++)
        fds[i] = connect_tcp(net);
    (void)host_net_poll(net);
    for (int i = 0; i < 20; i++)
        (void)host_net_poll(net);
    cr_assert_leq(link_count_fds() - before, 400 + 128, "bounded");
    still_works(net, "tcp"); /* behind them in the queue */
    cr_assert_geq(host_net_refused(net), 400 - 128);
    for (int i = 0; i < 400; i++)
        close(fds[i]);
    host_net_close(net);
}

/* So many may come at once, and none of them is in another's way. */
PSD_TEST(link_hostile, announced_peers_have_places)
{
    enum { PEERS = 200 };
    host_net *net = link_net_open("tcp", NET_ID);
    char addresses[PEERS][64];
    const char *all[PEERS];
    char why[512] = "";
    int fds[PEERS];
    for (int i = 0; i < PEERS; i++) {
        snprintf(addresses[i], sizeof addresses[i], "1;%x;-;127.0.0.1:%d", NET_ID + 1 + i, 1 + i);
        all[i] = addresses[i];
    }
    cr_assert_eq(host_net_expect(net, all, PEERS, why, sizeof why), PSD_OK, "%s", why);
    for (int i = 0; i < PEERS; i++)
        fds[i] = connect_tcp(net);
    int before = link_count_fds();
    for (int i = 0; i < 20; i++)
        (void)host_net_poll(net);
    cr_assert_eq(link_count_fds() - before, PEERS, "all are in a handshake");
    cr_assert_eq(host_net_refused(net), 0);
    for (int i = 0; i < PEERS; i++)
        close(fds[i]);
    host_net_close(net);
}

/* A peer that goes through the unix handshake by hand. */
typedef struct peer {
    host_net *net;
    handshake_channel channel;
    uint64_t echo;
    int fds[3]; /* segment, bell page, bell event */
    unsigned char *memory;
} peer;

static int sealed_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void peer_begin(peer *p)
{
    handshake_frame frame = frame_of(HANDSHAKE_HELLO);
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    p->net = link_net_open("auto", NET_ID);
    handshake_channel_init(&p->channel, connect_unix(p->net));
    cr_assert_eq(handshake_send(&p->channel, &frame, NULL, 0), PSD_OK);
    cr_assert_eq(receive(p->net, &p->channel, &frame), PSD_OK);
    cr_assert_eq(frame.kind, HANDSHAKE_WELCOME);
    cr_assert_eq(frame.from, NET_ID);
    cr_assert_eq(frame.echo, 42);
    p->echo = frame.nonce;
    p->fds[0] = sealed_memfd(SEGMENT, seals);
    p->fds[1] = sealed_memfd(4096, seals);
    p->fds[2] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->memory = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, p->fds[0], 0);
    cr_assert_neq(p->memory, MAP_FAILED);
}

static psd_status peer_send(peer *p, handshake_kind kind, uint64_t ring_bytes, uint32_t fd_count)
{
    handshake_frame frame = frame_of(kind);
    frame.echo = p->echo;
    frame.ring_bytes = ring_bytes;
    return handshake_send(&p->channel, &frame, p->fds, fd_count);
}

static void peer_end(peer *p)
{
    handshake_channel_close(&p->channel);
    for (int i = 0; i < 3; i++)
        close(p->fds[i]);
    munmap(p->memory, SEGMENT);
    host_net_close(p->net);
}

static void replace_fd(peer *p, int which, int fd)
{
    cr_assert_geq(fd, 0);
    close(p->fds[which]);
    p->fds[which] = fd;
}

typedef enum bad_offer {
    BAD_UNSEALED,
    BAD_SMALL,
    BAD_LARGE,
    BAD_NO_MEMFD,
    BAD_RING_SIZE,
    BAD_RING_TINY,
    BAD_RING_HUGE,
    BAD_BELL_PAGE,
    BAD_BELL_FILE,
    BAD_BELL_BLOCKS,
    BAD_FD_COUNT,
    BAD_OFFERS,
} bad_offer;

static void make_bad(peer *p, bad_offer how, uint64_t *ring_bytes)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    switch (how) {
    case BAD_UNSEALED:
        replace_fd(p, 0, sealed_memfd(SEGMENT, F_SEAL_GROW));
        break;
    case BAD_SMALL:
        replace_fd(p, 0, sealed_memfd(4096, seals));
        break;
    case BAD_LARGE:
        replace_fd(p, 0, sealed_memfd(SEGMENT + 4096, seals));
        break;
    case BAD_NO_MEMFD:
        replace_fd(p, 0, open("/dev/zero", O_RDWR | O_CLOEXEC));
        break;
    case BAD_RING_SIZE:
        *ring_bytes = RING + 1;
        break;
    case BAD_RING_TINY:
        *ring_bytes = 0;
        break;
    case BAD_RING_HUGE:
        *ring_bytes = (uint64_t)1 << 63;
        break;
    case BAD_BELL_PAGE:
        replace_fd(p, 1, sealed_memfd(0, seals));
        break;
    case BAD_BELL_FILE:
        replace_fd(p, 2, open("/dev/null", O_RDWR | O_CLOEXEC | O_NONBLOCK));
        break;
    case BAD_BELL_BLOCKS:
        replace_fd(p, 2, eventfd(0, EFD_CLOEXEC));
        break;
    case BAD_FD_COUNT:
    case BAD_OFFERS:
        break;
    }
}

PSD_TEST(link_hostile, offers_that_must_not_be_mapped)
{
    int before = link_count_fds();
    for (int how = 0; how < BAD_OFFERS; how++) {
        peer p;
        handshake_frame answer;
        uint64_t ring_bytes = RING;
        peer_begin(&p);
        make_bad(&p, (bad_offer)how, &ring_bytes);
        cr_assert_eq(peer_send(&p, HANDSHAKE_OFFER, ring_bytes, how == BAD_FD_COUNT ? 2 : 3), PSD_OK);
        cr_assert_eq(receive(p.net, &p.channel, &answer), PSD_OK, "case %d", how);
        cr_assert_eq(answer.kind, HANDSHAKE_REFUSE, "case %d", how);
        cr_assert_eq(answer.reason, HANDSHAKE_NO_MEMORY);
        cr_assert_eq(host_net_refused(p.net), 1, "case %d", how);
        cr_assert_null(host_net_first(p.net));
        peer_end(&p);
        cr_assert_eq(link_count_fds(), before, "case %d", how);
    }
}

PSD_TEST(link_hostile, fds_where_none_belong)
{
    int before = link_count_fds();
    peer p;
    handshake_frame answer;
    peer_begin(&p);
    cr_assert_eq(peer_send(&p, HANDSHAKE_OFFER, RING, 3), PSD_OK);
    cr_assert_eq(receive(p.net, &p.channel, &answer), PSD_OK);
    cr_assert_eq(answer.kind, HANDSHAKE_ACCEPT);
    cr_assert_eq(peer_send(&p, HANDSHAKE_CONFIRM, RING, 1), PSD_OK);
    cr_assert_eq(receive(p.net, &p.channel, &answer), PSD_ERR_LINK);
    cr_assert_null(host_net_first(p.net));
    peer_end(&p);
    cr_assert_eq(link_count_fds(), before);
}

PSD_TEST(link_hostile, a_handshake_out_of_order)
{
    const handshake_kind kinds[] = {HANDSHAKE_HELLO, HANDSHAKE_CONFIRM, HANDSHAKE_ACCEPT, HANDSHAKE_REFUSE};
    for (size_t i = 0; i < 4; i++) {
        peer p;
        handshake_frame answer;
        peer_begin(&p);
        cr_assert_eq(peer_send(&p, kinds[i], RING, 0), PSD_OK);
        cr_assert_eq(receive(p.net, &p.channel, &answer), PSD_ERR_LINK);
        cr_assert_eq(host_net_refused(p.net), 1);
        peer_end(&p);
    }
}

/* Up, with a peer that then does what it likes to the shared memory. */
static host_link *peer_up(peer *p)
{
    handshake_frame answer;
    peer_begin(p);
    cr_assert_eq(peer_send(p, HANDSHAKE_OFFER, RING, 3), PSD_OK);
    cr_assert_eq(receive(p->net, &p->channel, &answer), PSD_OK);
    cr_assert_eq(answer.kind, HANDSHAKE_ACCEPT);
    cr_assert_eq(p->channel.fd_count, 2);
    cr_assert_eq(peer_send(p, HANDSHAKE_CONFIRM, RING, 0), PSD_OK);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 8000);
    while (!host_net_first(p->net) && psd_now_ns() < deadline)
        (void)host_net_poll(p->net);
    host_link *link = host_net_first(p->net);
    cr_assert_not_null(link);
    cr_assert_eq(host_link_get_state(link), HOST_LINK_READY);
    cr_assert(host_link_is_shm(link));
    return link;
}

PSD_TEST(link_hostile, impossible_indices_break_the_link)
{
    static char big[RING + 1];
    for (int how = 0; how < 3; how++) {
        peer p;
        host_link *link = peer_up(&p);
        ring_shared *in = (ring_shared *)(void *)p.memory; /* the connector's ring: we read it */
        ring_shared *out = in + 1;
        struct iovec iov = {.iov_base = big, .iov_len = sizeof big};
        if (how == 0) {
            in->tail = RING + 1;
            cr_assert(host_link_readable(link));
            cr_assert_eq(host_link_read(link, big, sizeof big), 0);
        } else if (how == 1) {
            in->tail = 10;
            cr_assert_eq(host_link_read(link, big, 10), 10);
            in->tail = 5;
            cr_assert_eq(host_link_read(link, big, 10), 0);
        } else {
            cr_assert_eq(host_link_write(link, &iov, 1), RING);
            out->head = UINT64_MAX / 2;
            cr_assert_eq(host_link_write(link, &iov, 1), 0);
        }
        cr_assert_eq(host_link_get_state(link), HOST_LINK_BROKEN);
        cr_assert_eq(host_link_status(link), PSD_ERR_LINK);
        cr_assert_not_null(strstr(host_link_text(link), "impossible index"), "%s", host_link_text(link));
        peer_end(&p);
    }
}

PSD_TEST(link_hostile, nonsense_in_the_lane_breaks_the_link)
{
    for (int how = 0; how < 4; how++) {
        peer p;
        lane_message m = {0};
        host_link *link = peer_up(&p);
        lane_shared *out = (lane_shared *)(void *)(p.memory + 2 * sizeof(ring_shared)) + 1;
        lane_line *in = (lane_line *)(void *)(p.memory + SEGMENT_INDEX_BYTES + 2 * RING);
        if (how == 0)
            in->bytes = UINT32_MAX;
        else if (how == 1)
            in->ring_at = 64; /* nothing is in the ring, and nothing that is coming was before it */
        in->number = how == 2 ? 7 : 1;
        if (how == 3) {
            in->number = 0;
            while (host_link_write_small(link, &m, NULL))
                continue;
            out->head = UINT64_MAX / 2;
            cr_assert_not(host_link_write_small(link, &m, NULL));
        } else {
            cr_assert(host_link_readable(link));
            cr_assert_null(host_link_peek_small(link, &m));
        }
        cr_assert_eq(host_link_get_state(link), HOST_LINK_BROKEN);
        cr_assert_eq(host_link_status(link), PSD_ERR_LINK);
        cr_assert_not_null(strstr(host_link_text(link), "nonsense into its lane"), "%s",
                           host_link_text(link));
        peer_end(&p);
    }
}

PSD_TEST(link_hostile, bytes_after_the_handshake_break_the_link)
{
    peer p;
    host_link *link = peer_up(&p);
    cr_assert_eq(send(p.channel.fd, "x", 1, MSG_NOSIGNAL), 1);
    cr_assert(link_until(p.net, link, HOST_LINK_BROKEN, 5000));
    cr_assert_eq(host_link_status(link), PSD_ERR_LINK);
    peer_end(&p);
}

PSD_TEST(link_hostile, the_bell_cannot_be_written)
{
    peer p;
    (void)peer_up(&p);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p.channel.fds[0], 0);
    cr_assert_eq(page, MAP_FAILED);
    page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, p.channel.fds[0], 0);
    cr_assert_neq(page, MAP_FAILED);
    munmap(page, 4096);
    peer_end(&p);
}

PSD_TEST(link_hostile, frames_of_random_bytes)
{
    uint64_t state = 88172645463325252u;
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[HANDSHAKE_BYTES];
        handshake_frame frame = frame_of(HANDSHAKE_HELLO);
        handshake_encode(&frame, bytes);
        for (int i = 0; i < 8; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes[state % HANDSHAKE_BYTES] = (uint8_t)(state >> 32);
        }
        if (!handshake_decode(bytes, &frame))
            continue;
        cr_assert_lt(strlen(frame.text), HANDSHAKE_TEXT);
        for (const char *at = frame.text; *at; at++)
            cr_assert(*at >= ' ' && *at < 0x7f);
    }
}
