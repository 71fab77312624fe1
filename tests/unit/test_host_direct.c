/* Collectives and messages over memory that the ranks map of each other, against the same without it. */
#include "tests/lib/psd_test.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "tests/lib/host_ranks.h"

static const psd_backend_ops *const host = &psd_backend_host;

/* Memory of the backend (which peers map), or of the heap. */
typedef struct buffer {
    float *data;
    size_t bytes;
    bool is_mapped;
} buffer;

static buffer buffer_get(host_rank *r, int64_t count, bool is_mapped)
{
    buffer b = {.bytes = (size_t)count * sizeof(float), .is_mapped = is_mapped};
    void *memory = NULL;
    if (is_mapped)
        HOST_CHECK(r, host->mem_alloc(r->backend, b.bytes, &memory) == PSD_OK);
    else
        memory = malloc(b.bytes);
    HOST_CHECK(r, memory != NULL);
    b.data = memory;
    return b;
}

static void buffer_put(host_rank *r, buffer *b)
{
    if (b->is_mapped)
        host->mem_free(r->backend, b->data, b->bytes);
    else
        free(b->data);
}

/* Not exact in f32, so that another order or another rounding shows. */
static float value(int32_t rank, int64_t i)
{
    return (float)((i * 2654435761 + rank * 40503) % 1000003) / 977.0f;
}

static void fill(float *data, int32_t rank, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        data[i] = value(rank, i);
}

typedef struct plan {
    psd_op_kind kind;
    int64_t count;
    bool in_place;
    int32_t root;
    int32_t heap_rank; /* whose memory is of the heap; -1: nobody's */
} plan;

static int64_t in_count(const plan *p, int32_t size)
{
    return p->kind == PSD_OP_REDUCE_SCATTER ? p->count * size : p->count;
}

static psd_op make_op(const plan *p, const float *in, float *out)
{
    psd_op op = host_op(p->kind, PSD_F32, p->count, p->kind == PSD_OP_BROADCAST ? NULL : in, out);
    op.redop = p->kind == PSD_OP_BROADCAST ? (psd_redop)0 : PSD_SUM;
    op.root = p->kind == PSD_OP_REDUCE || p->kind == PSD_OP_BROADCAST ? p->root : -1;
    return op;
}

/* Runs it in this memory; the result's bits. */
static void run_in(host_rank *r, const plan *p, buffer *in, buffer *out, float *result)
{
    fill(in->data, r->rank, in_count(p, r->size));
    fill(out->data, r->rank + 100, p->count);
    float *to = out->data;
    if (p->in_place)
        to = p->kind == PSD_OP_REDUCE_SCATTER ? in->data + p->count * r->rank : in->data;
    psd_op op = make_op(p, in->data, to);
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    memcpy(result, to, (size_t)p->count * sizeof(float));
}

static bool has_result(const host_rank *r, const plan *p)
{
    return p->kind != PSD_OP_REDUCE || r->rank == p->root;
}

static void check(host_rank *r, const plan *p)
{
    int64_t count = in_count(p, r->size);
    bool is_mapped = r->rank != p->heap_rank;
    buffer in = buffer_get(r, count, is_mapped), out = buffer_get(r, p->count, is_mapped);
    buffer plain_in = buffer_get(r, count, false), plain_out = buffer_get(r, p->count, false);
    float *result = malloc((size_t)p->count * sizeof(float));
    float *expected = malloc((size_t)p->count * sizeof(float));
    for (int again = 0; again < 2; again++) {
        run_in(r, p, &in, &out, result);
        run_in(r, p, &plain_in, &plain_out, expected);
        bool is_same = memcmp(result, expected, (size_t)p->count * sizeof(float)) == 0;
        if (!is_same && has_result(r, p))
            fprintf(stderr, "%s of %lld, in place %d, root %d, heap rank %d\n", psd_op_name(p->kind),
                    (long long)p->count, p->in_place, p->root, p->heap_rank);
        HOST_CHECK(r, is_same || !has_result(r, p));
    }
    if (!p->in_place) {
        fill(result, r->rank, p->count);
        bool is_kept = p->kind == PSD_OP_BROADCAST || memcmp(in.data, result, (size_t)p->count * 4) == 0;
        HOST_CHECK(r, is_kept);
    }
    free(result);
    free(expected);
    buffer_put(r, &in);
    buffer_put(r, &out);
    buffer_put(r, &plain_in);
    buffer_put(r, &plain_out);
}

static void check_kinds(host_rank *r)
{
    static const psd_op_kind kinds[] = {PSD_OP_ALL_REDUCE, PSD_OP_REDUCE, PSD_OP_REDUCE_SCATTER,
                                        PSD_OP_BROADCAST};
    static const int64_t counts[] = {4096, 4099, 50001, 600013};
    for (size_t k = 0; k < 4; k++) {
        for (size_t n = 0; n < 4; n++) {
            for (int32_t variant = 0; variant < 4; variant++) {
                plan p = {.kind = kinds[k],
                          .count = counts[n],
                          .in_place = variant % 2 == 1,
                          .root = (int32_t)(n % (size_t)r->size),
                          .heap_rank = variant / 2 == 1 ? (int32_t)(n + 1) % r->size : -1};
                check(r, &p);
            }
        }
    }
}

PSD_TEST(host_direct, collectives_give_the_same_bits)
{
    for (int32_t size = 2; size <= 4; size++) {
        host_ranks all = {.size = size, .transport = "shm", .eager_limit = 65536, .body = check_kinds};
        cr_assert_eq(host_ranks_run(&all), 0, "%d ranks", size);
    }
}

/* Larger than what a cache is taken for: stores go past it. */
static void check_large(host_rank *r)
{
    plan p = {.kind = PSD_OP_ALL_REDUCE, .count = 5000007, .heap_rank = -1};
    check(r, &p);
    p.kind = PSD_OP_BROADCAST;
    check(r, &p);
}

PSD_TEST(host_direct, large_ones_too)
{
    host_ranks all = {.size = 2, .transport = "shm", .eager_limit = 65536, .body = check_large};
    cr_assert_eq(host_ranks_run(&all), 0);
}

/* Several in flight at once, ended in another order. */
static void check_in_flight(host_rank *r)
{
    enum { COUNT = 20000, FLIGHTS = 6 };
    buffer in[FLIGHTS], out[FLIGHTS];
    psd_request *requests[FLIGHTS];
    for (int i = 0; i < FLIGHTS; i++) {
        in[i] = buffer_get(r, COUNT, true);
        out[i] = buffer_get(r, COUNT, i % 3 != 2 || r->rank != 0);
        for (int k = 0; k < COUNT; k++)
            in[i].data[k] = (float)(i + r->rank);
        psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_F32, COUNT, in[i].data, out[i].data);
        op.redop = PSD_SUM;
        requests[i] = host_start(r, &op);
    }
    for (int i = FLIGHTS - 1; i >= 0; i--) {
        psd_op_result result;
        float sum = (float)(i * r->size + r->size * (r->size - 1) / 2);
        HOST_CHECK(r, host_finish(r, &requests[i], &result) == PSD_OK);
        HOST_CHECK(r, out[i].data[0] == sum && out[i].data[COUNT - 1] == sum);
        buffer_put(r, &in[i]);
        buffer_put(r, &out[i]);
    }
}

PSD_TEST(host_direct, several_in_flight)
{
    host_ranks all = {.size = 3, .transport = "shm", .eager_limit = 65536, .body = check_in_flight};
    cr_assert_eq(host_ranks_run(&all), 0);
}

/* One rank does not come: the others end, and nobody touches their memory afterwards. */
static void check_missing(host_rank *r)
{
    enum { COUNT = 100000 };
    char text[PSD_MAX_TEXT] = "";
    buffer b = buffer_get(r, COUNT, true);
    fill(b.data, r->rank, COUNT);
    psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_F32, COUNT, b.data, b.data);
    op.redop = PSD_SUM;
    op.deadline = psd_now_ns() + 100 * PSD_NS_PER_MS;
    if (r->rank != 2)
        HOST_CHECK(r, host_run(r, &op, text) != PSD_OK);
    if (r->rank == 0 && strstr(text, "rank 2") == NULL)
        fprintf(stderr, "rank %d: %s\n", r->rank, text);
    while (host->group_error(r->group, text, sizeof text) == PSD_OK)
        (void)host->chan_recv(r->backend, psd_now_ns() + PSD_NS_PER_MS, &(psd_chan_msg){0});
    HOST_CHECK(r, strstr(text, "no message came from rank 2") != NULL);
    HOST_CHECK(r, strstr(text, "not through") == NULL);
    float first = value(r->rank, 0);
    HOST_CHECK(r, memcmp(&b.data[0], &first, sizeof first) == 0);
    buffer_put(r, &b);
}

PSD_TEST(host_direct, a_missing_rank_is_named)
{
    host_ranks all = {.size = 3, .transport = "shm", .eager_limit = 65536, .body = check_missing};
    cr_assert_eq(host_ranks_run(&all), 0);
}

/* Rank 1 stands still, under its lock, from its start until rank 0 has started too. */
typedef struct standstill {
    atomic_bool stands;
    atomic_bool may_go;
} standstill;

static void await(const atomic_bool *flag)
{
    psd_time_ns until = psd_now_ns() + 10 * PSD_NS_PER_S;
    while (!atomic_load(flag) && psd_now_ns() < until)
        sched_yield();
}

static void stand(void *arg, uint32_t group, uint64_t started)
{
    (void)group;
    (void)started;
    standstill *s = arg;
    atomic_store(&s->stands, true);
    await(&s->may_go);
}

static void ignore_transfer(void *arg, const psd_transfer *transfer)
{
    (void)arg;
    (void)transfer;
}

static void ignore_pair(void *arg, uint32_t world_rank, uint64_t sent, uint64_t received)
{
    (void)arg;
    (void)world_rank;
    (void)sent;
    (void)received;
}

/* What rank 0 has to say of its memory waits behind much else when it learns that rank 1's cannot be reached. */
static void check_full_link(host_rank *r)
{
    enum { COUNT = 20000 };
    static const char filler[PSD_CHAN_MAX];
    standstill *s = r->all->arg;
    psd_inspector to = {.arg = s, .transfer = ignore_transfer, .group = stand, .pair = ignore_pair};
    buffer b = buffer_get(r, COUNT, r->rank == 0);
    for (int k = 0; k < COUNT; k++)
        b.data[k] = (float)(k % 1000 + r->rank);
    psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_F32, COUNT, b.data, b.data);
    op.redop = PSD_SUM;
    if (r->rank == 0) {
        await(&s->stands);
        while (host->chan_send(r->backend, 1, filler, sizeof filler) == PSD_OK)
            continue;
    }
    psd_request *request = host_start(r, &op);
    if (r->rank == 0)
        atomic_store(&s->may_go, true);
    else
        host->inspect(r->backend, &to);
    HOST_CHECK(r, host_finish(r, &request, &(psd_op_result){0}) == PSD_OK);
    int wrong = 0;
    for (int k = 0; k < COUNT; k++)
        wrong += b.data[k] != (float)(2 * (k % 1000) + 1);
    HOST_CHECK(r, wrong == 0);
    buffer_put(r, &b);
}

PSD_TEST(host_direct, a_full_link_keeps_nobody_from_falling_back)
{
    standstill s = {false, false};
    host_ranks all = {
        .size = 2, .transport = "shm", .eager_limit = 65536, .body = check_full_link, .arg = &s};
    cr_assert_eq(host_ranks_run(&all), 0);
}

/* Rank 2 never ends its part of an all_reduce: rank 0 gives it up and keeps it from the output, whose first page also
 * holds the end of what rank 0 has in flight with rank 1 alone. */
typedef struct neighbours {
    standstill still;
    char address[2][PSD_MAX_ADDR];
    atomic_int known;
    atomic_bool is_over;
} neighbours;

enum { NEIGHBOUR_COUNT = 5000 };

static psd_op sum_in_place(float *data)
{
    psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_F32, NEIGHBOUR_COUNT, data, data);
    op.redop = PSD_SUM;
    return op;
}

static void join_pair(host_rank *r, host_rank *pair, neighbours *n)
{
    static const uint8_t token[16];
    const char *addresses[2] = {n->address[0], n->address[1]};
    HOST_CHECK(r, host->address(r->backend, n->address[r->rank], PSD_MAX_ADDR) == PSD_OK);
    atomic_fetch_add(&n->known, 1);
    psd_time_ns until = psd_now_ns() + 10 * PSD_NS_PER_S;
    while (atomic_load(&n->known) < 2 && psd_now_ns() < until)
        sched_yield();
    pair->all = r->all;
    pair->rank = r->rank;
    pair->size = 2;
    pair->backend = r->backend;
    HOST_CHECK(r, host_rank_join(pair, 4, addresses, token) == PSD_OK);
}

static void check_third(host_rank *r, neighbours *n)
{
    psd_inspector to = {.arg = &n->still, .transfer = ignore_transfer, .group = stand, .pair = ignore_pair};
    buffer b = buffer_get(r, NEIGHBOUR_COUNT, true);
    psd_op op = sum_in_place(b.data);
    psd_request *request = host_start(r, &op);
    host->inspect(r->backend, &to);
    HOST_CHECK(r, host_finish(r, &request, &(psd_op_result){0}) != PSD_OK);
    buffer_put(r, &b);
}

static void check_pair(host_rank *r, neighbours *n)
{
    host_rank pair = {.group = NULL};
    buffer b = buffer_get(r, 2 * NEIGHBOUR_COUNT, true), apart = buffer_get(r, NEIGHBOUR_COUNT, true);
    float *common = r->rank == 0 ? b.data : apart.data;
    int wrong = 0;
    join_pair(r, &pair, n);
    for (int k = 0; k < NEIGHBOUR_COUNT; k++)
        common[k] = (float)(k + r->rank);
    await(&n->still.stands);
    psd_op with_all = sum_in_place(b.data + NEIGHBOUR_COUNT), between = sum_in_place(common);
    with_all.deadline = psd_now_ns() + 100 * PSD_NS_PER_MS;
    psd_request *first = host_start(r, &with_all), *second = NULL;
    if (r->rank == 0)
        second = host_start(&pair, &between);
    HOST_CHECK(r, host_finish(r, &first, &(psd_op_result){0}) != PSD_OK);
    if (r->rank == 0)
        atomic_store(&n->is_over, true);
    await(&n->is_over);
    if (r->rank == 1 && host->start(pair.group, &between, &second) != PSD_OK)
        second = NULL; /* it has been told already */
    psd_status status = second != NULL ? host_finish(&pair, &second, &(psd_op_result){0}) : PSD_ERR_LINK;
    for (int k = 0; k < NEIGHBOUR_COUNT; k++)
        wrong += common[k] != (float)(2 * k + 1);
    HOST_CHECK(r, status != PSD_OK || wrong == 0);
    if (r->rank == 0)
        atomic_store(&n->still.may_go, true);
    host->group_close(pair.group);
    buffer_put(r, &b);
    buffer_put(r, &apart);
}

static void check_neighbours(host_rank *r)
{
    neighbours *n = r->all->arg;
    if (r->rank == 2)
        check_third(r, n);
    else
        check_pair(r, n);
}

PSD_TEST(host_direct, what_shares_a_page_with_given_up_memory_does_not_go_wrong)
{
    static neighbours n;
    host_ranks all = {
        .size = 3, .transport = "shm", .eager_limit = 65536, .body = check_neighbours, .arg = &n};
    cr_assert_eq(host_ranks_run(&all), 0);
}

/* Messages are read where they lie, whole or in part of a tensor. */
static void check_messages(host_rank *r)
{
    enum { COUNT = 700000 };
    buffer b = buffer_get(r, COUNT, true), c = buffer_get(r, COUNT, r->rank == 0);
    fill(b.data, r->rank, COUNT);
    int32_t other = 1 - r->rank;
    psd_request *receive = host_irecv(r, PSD_F32, c.data, COUNT - 3, other, 4);
    psd_request *send = host_isend(r, PSD_F32, b.data + 3, COUNT - 3, other, 4);
    HOST_CHECK(r, host_finish(r, &send, &(psd_op_result){0}) == PSD_OK);
    HOST_CHECK(r, host_finish(r, &receive, &(psd_op_result){0}) == PSD_OK);
    fill(b.data, other, COUNT);
    HOST_CHECK(r, memcmp(c.data, b.data + 3, (COUNT - 3) * sizeof(float)) == 0);
    buffer_put(r, &b);
    buffer_put(r, &c);
}

PSD_TEST(host_direct, messages_are_read_where_they_lie)
{
    host_ranks all = {.size = 2, .transport = "shm", .eager_limit = 65536, .body = check_messages};
    cr_assert_eq(host_ranks_run(&all), 0);
}
