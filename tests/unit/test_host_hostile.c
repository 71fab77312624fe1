/* A peer of the host backend that makes links as it should and then sends what it likes: random bytes, frames
 * that lie, and random sequences of frames each of which could be legal. Nothing may crash, hang or write
 * outside of a receive. */
#include "tests/lib/psd_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/host_ranks.h"
#include "worker/backend/host/frame.h"
#include "worker/backend/host/link.h"

#define GROUP   5u
#define TIMEOUT (10 * PSD_NS_PER_S)

static const psd_backend_ops *const host = &psd_backend_host;

/* Rank 0 is honest, rank 1 is only a host_net that this test writes to. */
typedef struct pair {
    host_rank honest;
    host_net *net;
    host_link *link;
    char why[PSD_MAX_TEXT];
} pair;

static void pair_open(pair *p, const char *transport)
{
    static const uint8_t token[16] = {0};
    host_ranks all = {.size = 2, .transport = transport, .eager_limit = 65536};
    char address[PSD_MAX_ADDR];
    char liar[PSD_MAX_ADDR];
    const char *addresses[2] = {address, liar};
    uint32_t members[2] = {0, 1};
    memset(p, 0, sizeof(*p));
    cr_assert_eq(host_rank_open(&p->honest, &all, 0, address), PSD_OK);
    host_net_config config = {
        .job = "test", .incarnation = 77, .bind_host = "127.0.0.1", .transport = transport};
    cr_assert_eq(host_net_open(&config, &p->net, p->why, sizeof(p->why)), PSD_OK, "%s", p->why);
    cr_assert_eq(host_net_address(p->net, liar, sizeof(liar)), PSD_OK);
    cr_assert_eq(host_link_get(p->net, address, &p->link, p->why, sizeof(p->why)), PSD_OK, "%s", p->why);
    psd_group_desc desc = {GROUP, 1, 0, 2, members, addresses, token, 16};
    cr_assert_eq(host->group_begin(p->honest.backend, &desc, &p->honest.group, p->why, sizeof(p->why)),
                 PSD_OK);
}

static void pair_close(pair *p)
{
    host_rank_close(&p->honest);
    host_link_put(p->net, &p->link);
    host_net_close(p->net);
}

/* Writes all, as far as the honest side takes it; what it answers is thrown away. Its group's status. */
static psd_status say(pair *p, const void *bytes, size_t size)
{
    char answer[4096];
    psd_status status = PSD_INPROGRESS;
    size_t sent = 0;
    psd_time_ns deadline = psd_now_ns() + TIMEOUT;
    while (sent < size && psd_now_ns() < deadline) {
        host_net_poll(p->net);
        struct iovec iov = {(void *)(uintptr_t)((const char *)bytes + sent), size - sent};
        if (host_link_get_state(p->link) == HOST_LINK_READY) {
            sent += host_link_write(p->link, &iov, 1);
            while (host_link_read(p->link, answer, sizeof(answer)) > 0)
                continue;
            host_link_flush(p->link);
        }
        status = host->group_poll(p->honest.group, p->why, sizeof(p->why));
        if (status < 0)
            break;
    }
    return status;
}

static void expect_broken(const char *transport, const void *bytes, size_t size)
{
    pair p;
    pair_open(&p, transport);
    psd_status status = say(&p, bytes, size);
    psd_time_ns deadline = psd_now_ns() + TIMEOUT;
    while (status >= 0 && psd_now_ns() < deadline)
        status = host->group_poll(p.honest.group, p.why, sizeof(p.why));
    cr_expect_eq(status, PSD_ERR_LINK, "%d %s", status, p.why);
    cr_expect_not_null(strstr(p.why, "garbage on the link"), "%s", p.why);
    pair_close(&p);
}

PSD_TEST(host_hostile, garbage_breaks_the_link)
{
    char noise[4096];
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (char)(i * 37 + 11);
    expect_broken("shm", noise, sizeof(noise));
    expect_broken("tcp", noise, sizeof(noise));
}

PSD_TEST(host_hostile, frames_that_lie_break_the_link)
{
    frame f = {.magic = FRAME_MAGIC,
               .type = FRAME_EAGER,
               .kind = PSD_OP_SEND,
               .dtype = PSD_U8,
               .group = GROUP,
               .source = 1};
    frame lie = f;
    lie.source = 0; /* in our own name */
    expect_broken("shm", &lie, sizeof(lie));
    lie = f;
    lie.source = 4000000000u;
    expect_broken("shm", &lie, sizeof(lie));
    lie = f;
    lie.bytes = 100; /* and no payload */
    expect_broken("shm", &lie, sizeof(lie));
    lie = f;
    lie.type = FRAME_RTS;
    lie.count = INT64_MAX;
    lie.bytes = UINT64_MAX;
    expect_broken("shm", &lie, sizeof(lie));
    lie = f;
    lie.type = FRAME_CREDIT;
    lie.bytes = UINT64_MAX;
    expect_broken("shm", &lie, sizeof(lie));
    lie = f;
    lie.type = FRAME_DATA;
    lie.payload = UINT32_MAX;
    expect_broken("shm", &lie, sizeof(lie));
}

static void pong(pair *p)
{
    char both[2 * sizeof(frame) + 16] = {0};
    frame f = {.magic = FRAME_MAGIC, .type = FRAME_PING, .group = GROUP, .source = 1, .payload = 16};
    memcpy(both, &f, sizeof(f));
    f.type = FRAME_PONG;
    f.payload = 0;
    memcpy(both + sizeof(f) + 16, &f, sizeof(f));
    (void)say(p, both, sizeof(both));
}

/* An all_reduce that the honest side has begun, and what the other says of where its tensors lie. */
static void expect_lie_about_places(uint64_t in, uint64_t out, uint8_t reach)
{
    enum { COUNT = 16384 };
    pair p;
    void *memory = NULL;
    psd_request *request = NULL;
    psd_op_result result;
    pair_open(&p, "shm");
    pong(&p);
    cr_assert_eq(host->mem_alloc(p.honest.backend, COUNT, &memory), PSD_OK);
    psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_U8, COUNT, memory, memory);
    op.redop = PSD_SUM;
    cr_assert_eq(host->start(p.honest.group, &op, &request), PSD_OK);
    frame f = {.magic = FRAME_MAGIC, .type = FRAME_EXPOSE, .channel = FRAME_COLL, .kind = PSD_OP_ALL_REDUCE};
    f.dtype = PSD_U8;
    f.redop = PSD_SUM;
    f.group = GROUP;
    f.source = 1;
    f.tag = -1;
    f.count = COUNT;
    f.other = reach;
    f.word = in;
    f.bytes = out;
    (void)say(&p, &f, sizeof(f));
    cr_assert_eq(host_finish(&p.honest, &request, &result), PSD_ERR_LINK, "places %llu and %llu",
                 (unsigned long long)in, (unsigned long long)out);
    host->mem_free(p.honest.backend, memory, COUNT);
    pair_close(&p);
}

PSD_TEST(host_hostile, places_outside_of_the_memory_break_the_link)
{
    uint64_t most = (uint64_t)INT64_MAX;
    expect_lie_about_places(0, most, 7);
    expect_lie_about_places(most, 0, 7);
    expect_lie_about_places(UINT64_MAX - 100, 0, 7);
    expect_lie_about_places(((uint64_t)256 << 30) - 100, 0, 1);
}

/* ---------------------------------------------------------------------------------------------- sequences */

static uint64_t state;

static uint32_t below(uint32_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % limit;
}

/* A frame with fields of the sizes that occur, and its payload. */
static size_t random_frame(char *out)
{
    static const uint32_t payloads[] = {0, 0, 4, 16, 40, 1000};
    static const int64_t counts[] = {0, 1, 4, 10, 1000, 100000};
    frame f = {.magic = FRAME_MAGIC, .group = GROUP, .source = 1};
    f.type = (uint8_t)(1 + below(FRAME_TYPES - 1));
    f.channel = (uint8_t)below(2);
    f.kind = (uint8_t)(f.channel == FRAME_P2P ? PSD_OP_SEND : PSD_OP_BROADCAST + below(10));
    f.dtype = PSD_U8;
    f.redop = (uint8_t)below(3);
    f.group = below(20) == 0 ? below(9) : GROUP;
    f.ordinal = below(4);
    f.count = counts[below(6)];
    f.bytes = (uint64_t)f.count;
    f.tag = (int32_t)below(4) - 1;
    f.payload = payloads[below(6)];
    f.other = (uint8_t)below(8);
    f.id = below(2) == 0 ? below(6) : ((uint64_t)(1 + below(3)) << 32 | below(6));
    f.word = below(3) == 0 ? below(2000) : ((uint64_t)(1 + below(3)) << 32 | below(6));
    if (f.type == FRAME_EAGER && below(4) != 0) {
        f.payload = f.count > 1000 ? 1000 : (uint32_t)f.count;
        f.bytes = f.payload;
        f.count = f.payload;
    }
    if (f.type == FRAME_BROKEN && below(4) != 0)
        f.type = FRAME_BROKEN_ACK;
    memcpy(out, &f, sizeof(f));
    memset(out + sizeof(f), 'x', f.payload);
    return sizeof(f) + f.payload;
}

/* A random header as a small message, if there is room. */
static psd_status say_small(pair *p)
{
    char stream[8192];
    frame f;
    (void)random_frame(stream);
    memcpy(&f, stream, sizeof(f));
    lane_message m = frame_to_small(&f);
    m.bytes = below(4) == 0 ? f.payload : (uint32_t)f.bytes % 1000;
    m.kind = below(20) == 0 ? (uint8_t)below(256) : f.kind;
    if (host_link_get_state(p->link) == HOST_LINK_READY)
        (void)host_link_write_small(p->link, &m, stream + sizeof(f));
    return say(p, NULL, 0) < 0 ? PSD_ERR_LINK : host->group_poll(p->honest.group, p->why, sizeof(p->why));
}

#define REQUESTS 6
#define MAPPED   200000 /* bytes: two tensors of a count that random frames have */

static void start_honest(host_rank *r, char *memory, char *mapped, psd_request **requests)
{
    psd_op_p2p p2p[4] = {{false, PSD_U8, memory, 4, 1, 0},
                         {false, PSD_U8, memory + 100, 1000, PSD_ANY_SOURCE, PSD_ANY_TAG},
                         {true, PSD_U8, memory + 2000, 100000, 1, 1},
                         {true, PSD_U8, memory + 2000, 10, 1, 2}};
    for (int i = 0; i < 4; i++) {
        psd_op op = host_op(p2p[i].is_send ? PSD_OP_SEND : PSD_OP_RECV, PSD_U8, p2p[i].count, NULL, NULL);
        op.p2p = &p2p[i];
        op.p2p_count = 1;
        if (host->start(r->group, &op, &requests[i]) != PSD_OK)
            requests[i] = NULL;
    }
    psd_op op = host_op(PSD_OP_BROADCAST, PSD_U8, 10, NULL, memory + 150000);
    op.root = 1;
    if (host->start(r->group, &op, &requests[4]) != PSD_OK)
        requests[4] = NULL;
    op = host_op(PSD_OP_ALL_REDUCE, PSD_U8, MAPPED / 2, mapped, mapped + MAPPED / 2);
    op.redop = PSD_SUM;
    if (host->start(r->group, &op, &requests[5]) != PSD_OK)
        requests[5] = NULL;
}

static void run_sequence(uint64_t seed)
{
    pair p;
    char stream[8192];
    psd_request *requests[REQUESTS];
    void *mapped = NULL;
    char *memory = calloc(1, 200000);
    state = seed * 0x9e3779b97f4a7c15u + 1;
    pair_open(&p, "shm");
    pong(&p);
    cr_assert_eq(host->mem_alloc(p.honest.backend, MAPPED, &mapped), PSD_OK);
    start_honest(&p.honest, memory, mapped, requests);
    psd_status status = PSD_OK;
    for (int i = 0; i < 30 && status >= 0; i++)
        status = below(3) == 0 ? say_small(&p) : say(&p, stream, random_frame(stream));
    host->group_abort(p.honest.group, PSD_ERR_ABORTED, "end of the sequence");
    /* The liar has gone: it answers no abort. */
    host_link_break(p.link, "end of the sequence");
    for (int i = 0; i < REQUESTS; i++) {
        if (requests[i] != NULL)
            (void)host_finish(&p.honest, &requests[i], NULL);
    }
    cr_expect_eq(p.honest.failures, 0);
    cr_expect_eq(memory[99], 0); /* beyond the receives */
    cr_expect_eq(memory[1100], 0);
    host->mem_free(p.honest.backend, mapped, MAPPED);
    pair_close(&p);
    free(memory);
}

PSD_TEST(host_hostile, random_sequences_of_frames)
{
    for (uint64_t seed = 1; seed <= 300; seed++)
        run_sequence(seed);
}
