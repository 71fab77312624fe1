/* Point-to-point operations of the host backend between contexts of one process. */
#include "tests/lib/psd_test.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/host_ranks.h"

static const psd_backend_ops *const host = &psd_backend_host;

static int run(int32_t size, const char *transport, int64_t eager_limit, host_rank_body body)
{
    host_ranks all = {.size = size, .transport = transport, .eager_limit = eager_limit, .body = body};
    return host_ranks_run(&all);
}

static void fill(unsigned char *data, int64_t bytes, int seed)
{
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 31 + seed + (i >> 9));
}

static unsigned char *pattern(int64_t bytes, int seed)
{
    unsigned char *data = malloc((size_t)bytes + 1);
    cr_assert_not_null(data);
    fill(data, bytes, seed);
    return data;
}

static bool has_pattern(const unsigned char *data, int64_t bytes, int seed)
{
    for (int64_t i = 0; i < bytes; i++) {
        if (data[i] != (unsigned char)(i * 31 + seed + (i >> 9)))
            return false;
    }
    return true;
}

/* Both ranks meet: what the other sent before is in this rank's memory or on its way. */
static void barrier(host_rank *r)
{
    psd_op op = host_op(PSD_OP_BARRIER, (psd_dtype)0, 0, NULL, NULL);
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
}

/* -------------------------------------------------------------------------------------------------- sizes */

/* From the backend's own memory, which large messages are read from by the receiver. */
static void exchange_tensor_memory(host_rank *r)
{
    enum { BYTES = 9000001 };
    int32_t peer = 1 - r->rank;
    void *out = NULL;
    void *in = NULL;
    HOST_CHECK(r, host->mem_alloc(r->backend, BYTES, &out) == PSD_OK);
    HOST_CHECK(r, host->mem_alloc(r->backend, 2 * BYTES, &in) == PSD_OK);
    unsigned char *got = in;
    HOST_CHECK(r, got[0] == 0 && got[2 * BYTES - 1] == 0);
    fill(out, BYTES, r->rank);
    psd_request *send = host_isend(r, PSD_U8, out, BYTES, peer, 5);
    barrier(r);
    psd_request *receive = host_irecv(r, PSD_U8, got, BYTES, peer, 5);
    HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_OK);
    HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
    HOST_CHECK(r, has_pattern(got, BYTES, peer));
    psd_op gather = host_op(PSD_OP_ALL_GATHER, PSD_U8, BYTES, out, in);
    HOST_CHECK(r, host_run(r, &gather, NULL) == PSD_OK);
    HOST_CHECK(r, has_pattern(got, BYTES, 0) && has_pattern(got + BYTES, BYTES, 1));
    host->mem_free(r->backend, out, BYTES);
    host->mem_free(r->backend, in, 2 * BYTES);
}

PSD_TEST(host_p2p, messages_from_memory_of_the_backend)
{
    cr_assert_eq(run(2, "shm", 65536, exchange_tensor_memory), 0);
    cr_assert_eq(run(2, "tcp", 65536, exchange_tensor_memory), 0);
}

static void exchange(host_rank *r, int64_t bytes, bool posted_late)
{
    int32_t peer = 1 - r->rank;
    unsigned char *out = pattern(bytes, r->rank);
    unsigned char *in = calloc(1, (size_t)bytes + 1);
    psd_request *receive = NULL;
    if (!posted_late)
        receive = host_irecv(r, PSD_U8, in, bytes, peer, 5);
    psd_request *send = host_isend(r, PSD_U8, out, bytes, peer, 5);
    if (posted_late) {
        barrier(r);
        receive = host_irecv(r, PSD_U8, in, bytes, peer, 5);
    }
    psd_op_result result;
    HOST_CHECK(r, host_finish(r, &receive, &result) == PSD_OK);
    HOST_CHECK(r, result.source == peer && result.tag == 5);
    HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
    HOST_CHECK(r, has_pattern(in, bytes, peer));
    HOST_CHECK(r, in[bytes] == 0);
    free(in);
    free(out);
}

static void sizes(host_rank *r)
{
    static const int64_t bytes[] = {0, 1, 7, 4096, 65535, 65536, 65537, 262144, 1000003, 9000001};
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        exchange(r, bytes[i], false);
        exchange(r, bytes[i], true);
    }
}

PSD_TEST(host_p2p, all_sizes_over_shared_memory)
{
    cr_assert_eq(run(2, "shm", 65536, sizes), 0);
}

PSD_TEST(host_p2p, all_sizes_over_shared_memory_without_eager)
{
    cr_assert_eq(run(2, "shm", 0, sizes), 0);
}

PSD_TEST(host_p2p, all_sizes_over_tcp)
{
    cr_assert_eq(run(2, "tcp", 65536, sizes), 0);
}

PSD_TEST(host_p2p, all_sizes_over_tcp_without_eager)
{
    cr_assert_eq(run(2, "tcp", 0, sizes), 0);
}

/* --------------------------------------------------------------------------------------------- rendezvous */

/* Without eager sends a send is not complete before its receive is posted. */
static void pure_rendezvous(host_rank *r)
{
    int32_t x = 42;
    if (r->rank == 0) {
        psd_request *send = host_isend(r, PSD_I32, &x, 1, 1, 0);
        psd_op_result result;
        HOST_CHECK(r, host->wait(r->backend, &send, 1, false, psd_now_ns() + 20 * PSD_NS_PER_MS) ==
                          PSD_ERR_TIMEOUT);
        HOST_CHECK(r, host->test(send, &result) == PSD_INPROGRESS);
        barrier(r);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
    } else {
        int32_t got = 0;
        barrier(r);
        psd_request *receive = host_irecv(r, PSD_I32, &got, 1, 0, 0);
        HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_OK);
        HOST_CHECK(r, got == 42);
    }
}

PSD_TEST(host_p2p, eager_limit_0_is_rendezvous)
{
    cr_assert_eq(run(2, "shm", 0, pure_rendezvous), 0);
    cr_assert_eq(run(2, "tcp", 0, pure_rendezvous), 0);
}

/* ----------------------------------------------------------------------------------------------- matching */

static void any_source_and_tag(host_rank *r)
{
    if (r->rank != 0) {
        int32_t x = r->rank * 100;
        psd_request *send = host_isend(r, PSD_I32, &x, 1, 0, r->rank + 10);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
        barrier(r);
        x = r->rank * 200;
        send = host_isend(r, PSD_I32, &x, 1, 0, r->rank + 20);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
        return;
    }
    uint32_t seen = 0;
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1)
            barrier(r);
        for (int i = 1; i < r->size; i++) {
            int32_t got = 0;
            psd_op_result result;
            psd_request *receive = host_irecv(r, PSD_I32, &got, 1, PSD_ANY_SOURCE, PSD_ANY_TAG);
            HOST_CHECK(r, host_finish(r, &receive, &result) == PSD_OK);
            HOST_CHECK(r, got == result.source * 100 * (turn + 1));
            HOST_CHECK(r, result.tag == result.source + 10 * (turn + 1));
            seen |= 1u << (result.source + 8 * turn);
        }
    }
    HOST_CHECK(r, seen == 0x0e0eu);
}

PSD_TEST(host_p2p, any_source_and_any_tag_tell_who_sent)
{
    cr_assert_eq(run(4, "shm", 65536, any_source_and_tag), 0);
    cr_assert_eq(run(4, "tcp", 0, any_source_and_tag), 0);
}

/* Receives match by tag whatever the order of sending; of one tag, in order. */
static void tags(host_rank *r)
{
    enum { N = 6 };
    int32_t x[N] = {0, 1, 2, 3, 4, 5};
    static const int32_t tag[N] = {1, 2, 1, 3, 2, 1};
    static const int32_t wanted[N] = {3, 1, 2, 1, 2, 1};
    static const int32_t expected[N] = {3, 0, 1, 2, 4, 5};
    psd_request *requests[N];
    if (r->rank == 0) {
        for (int i = 0; i < N; i++)
            requests[i] = host_isend(r, PSD_I32, &x[i], 1, 1, tag[i]);
        barrier(r);
        for (int i = 0; i < N; i++)
            HOST_CHECK(r, host_finish(r, &requests[i], NULL) == PSD_OK);
        return;
    }
    barrier(r);
    for (int i = 0; i < N; i++) {
        int32_t got = -1;
        psd_op_result result;
        psd_request *receive = host_irecv(r, PSD_I32, &got, 1, 0, wanted[i]);
        HOST_CHECK(r, host_finish(r, &receive, &result) == PSD_OK);
        HOST_CHECK(r, got == expected[i]);
        HOST_CHECK(r, result.ordinal == (uint64_t)expected[i]);
    }
}

PSD_TEST(host_p2p, tags_choose_and_keep_order)
{
    cr_assert_eq(run(2, "shm", 65536, tags), 0);
    cr_assert_eq(run(2, "shm", 0, tags), 0);
}

static void to_self(host_rank *r)
{
    enum { BYTES = 3000000 };
    unsigned char *out = pattern(BYTES, 9);
    unsigned char *in = calloc(1, BYTES);
    psd_request *send = host_isend(r, PSD_U8, out, BYTES, r->rank, 1);
    psd_request *receive = host_irecv(r, PSD_U8, in, BYTES, r->rank, PSD_ANY_TAG);
    HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_OK);
    HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
    HOST_CHECK(r, has_pattern(in, BYTES, 9));
    int32_t a = 5;
    int32_t b = 0;
    psd_op_p2p both[2] = {{false, PSD_I32, &b, 1, PSD_ANY_SOURCE, 0}, {true, PSD_I32, &a, 1, r->rank, 0}};
    psd_op op = host_op(PSD_OP_BATCH, (psd_dtype)0, 0, NULL, NULL);
    op.p2p = both;
    op.p2p_count = 2;
    HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    HOST_CHECK(r, b == 5);
    free(in);
    free(out);
}

PSD_TEST(host_p2p, sends_to_oneself)
{
    cr_assert_eq(run(1, "shm", 65536, to_self), 0);
    cr_assert_eq(run(2, "shm", 0, to_self), 0);
}

/* ------------------------------------------------------------------------------------------- many at once */

static void interleaved(host_rank *r)
{
    enum { N = 60 };
    unsigned char *out[N];
    unsigned char *in[N];
    psd_request *requests[2 * N];
    int32_t peer = 1 - r->rank;
    for (int i = 0; i < N; i++) {
        int64_t bytes = (i % 5 == 0) ? 700000 + i : 100 * i;
        out[i] = pattern(bytes, i);
        in[i] = calloc(1, (size_t)bytes + 1);
        requests[i] = host_irecv(r, PSD_U8, in[i], bytes, peer, i % 3);
        requests[N + i] = host_isend(r, PSD_U8, out[i], bytes, peer, i % 3);
    }
    HOST_CHECK(r, host->wait(r->backend, requests, 2 * N, false, PSD_NEVER) == PSD_OK);
    for (int i = 0; i < N; i++) {
        int64_t bytes = (i % 5 == 0) ? 700000 + i : 100 * i;
        HOST_CHECK(r, host_finish(r, &requests[i], NULL) == PSD_OK);
        HOST_CHECK(r, host_finish(r, &requests[N + i], NULL) == PSD_OK);
        HOST_CHECK(r, has_pattern(in[i], bytes, i));
        free(out[i]);
        free(in[i]);
    }
}

PSD_TEST(host_p2p, many_interleaved_of_all_sizes)
{
    cr_assert_eq(run(2, "shm", 65536, interleaved), 0);
    cr_assert_eq(run(2, "tcp", 65536, interleaved), 0);
    cr_assert_eq(run(2, "tcp", 0, interleaved), 0);
}

/* More eager messages than a peer has credit for, none received until all are started. */
static void flood(host_rank *r)
{
    enum { N = 300, BYTES = 20000 };
    static unsigned char data[2][BYTES];
    psd_request *requests[N];
    if (r->rank == 0) {
        for (int i = 0; i < N; i++)
            requests[i] = host_isend(r, PSD_U8, data[0], BYTES, 1, i);
        barrier(r);
        for (int i = 0; i < N; i++)
            HOST_CHECK(r, host_finish(r, &requests[i], NULL) == PSD_OK);
        return;
    }
    barrier(r);
    for (int i = N - 1; i >= 0; i--) {
        psd_request *receive = host_irecv(r, PSD_U8, data[1], BYTES, 0, i);
        HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_OK);
    }
}

PSD_TEST(host_p2p, unexpected_messages_are_bounded_and_none_is_lost)
{
    cr_assert_eq(run(2, "shm", 65536, flood), 0);
    cr_assert_eq(run(2, "tcp", 65536, flood), 0);
}

static void wait_for_any(host_rank *r)
{
    int32_t x = 1;
    if (r->rank == 0) {
        barrier(r);
        psd_request *send = host_isend(r, PSD_I32, &x, 1, 1, 2);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
        barrier(r);
        send = host_isend(r, PSD_I32, &x, 1, 1, 1);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
        return;
    }
    int32_t got[2] = {0, 0};
    psd_op_result result;
    psd_request *requests[3] = {NULL, host_irecv(r, PSD_I32, &got[0], 1, 0, 1),
                                host_irecv(r, PSD_I32, &got[1], 1, 0, 2)};
    barrier(r);
    HOST_CHECK(r, host->wait(r->backend, requests, 3, true, PSD_NEVER) == PSD_OK);
    HOST_CHECK(r, host->test(requests[1], &result) == PSD_INPROGRESS);
    HOST_CHECK(r, host->test(requests[2], &result) == PSD_OK);
    HOST_CHECK(r, host_finish(r, &requests[2], NULL) == PSD_OK);
    barrier(r);
    HOST_CHECK(r, host_finish(r, &requests[1], NULL) == PSD_OK);
}

PSD_TEST(host_p2p, wait_any_returns_at_the_first)
{
    cr_assert_eq(run(2, "shm", 65536, wait_for_any), 0);
}

/* --------------------------------------------------------------------------------------- without a caller */

/* Rank 1 starts a receive larger than any buffer and never calls again until rank 0 has seen its send
 * complete, which only rank 1's progress thread can bring about. They meet through this flag, not through the
 * backend. */
static atomic_int sender_is_done;

static void caller_is_away(host_rank *r)
{
    enum { BYTES = 20000000 };
    unsigned char *data = r->rank == 0 ? pattern(BYTES, 3) : calloc(1, BYTES);
    if (r->rank == 0) {
        psd_request *send = host_isend(r, PSD_U8, data, BYTES, 1, 0);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
        atomic_store(&sender_is_done, 1);
    } else {
        psd_request *receive = host_irecv(r, PSD_U8, data, BYTES, 0, 0);
        psd_time_ns deadline = psd_now_ns() + 20 * PSD_NS_PER_S;
        while (atomic_load(&sender_is_done) == 0 && psd_now_ns() < deadline)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        HOST_CHECK(r, atomic_load(&sender_is_done) == 1);
        HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_OK);
        HOST_CHECK(r, has_pattern(data, BYTES, 3));
    }
    free(data);
}

PSD_TEST(host_p2p, a_started_operation_completes_while_its_caller_is_away)
{
    cr_assert_eq(run(2, "shm", 65536, caller_is_away), 0);
    atomic_store(&sender_is_done, 0);
    cr_assert_eq(run(2, "tcp", 65536, caller_is_away), 0);
}

/* -------------------------------------------------------------------------------------------- the channel */

static void channel(host_rank *r)
{
    enum { N = 2000 };
    psd_chan_msg msg;
    psd_time_ns now = psd_now_ns();
    uint32_t peer = (uint32_t)(1 - r->rank);
    HOST_CHECK(r, host->chan_recv(r->backend, now, &msg) == PSD_ERR_TIMEOUT);
    HOST_CHECK(r, host->chan_send(r->backend, 77, "x", 1) == PSD_ERR_UNREACHABLE);
    barrier(r);
    if (r->rank == 0) {
        int refused = 0;
        for (uint32_t i = 0; i < N;) {
            psd_status status = host->chan_send(r->backend, peer, &i, sizeof(i));
            HOST_CHECK(r, status == PSD_OK || status == PSD_AGAIN);
            refused += status == PSD_AGAIN;
            i += status == PSD_OK;
            if (refused == 1 && status == PSD_AGAIN)
                barrier(r); /* the other side reads only from now on */
        }
        HOST_CHECK(r, refused > 0);
        HOST_CHECK(r, host->chan_recv(r->backend, psd_now_ns() + 20 * PSD_NS_PER_S, &msg) == PSD_OK);
        HOST_CHECK(r, msg.bytes == PSD_CHAN_MAX && msg.source == peer);
        return;
    }
    barrier(r);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t got = N;
        HOST_CHECK(r, host->chan_recv(r->backend, psd_now_ns() + 20 * PSD_NS_PER_S, &msg) == PSD_OK);
        HOST_CHECK(r, msg.bytes == sizeof(got) && msg.source == peer);
        memcpy(&got, msg.data, sizeof(got));
        HOST_CHECK(r, got == i);
    }
    memset(msg.data, 1, sizeof(msg.data));
    HOST_CHECK(r, host->chan_send(r->backend, peer, msg.data, PSD_CHAN_MAX) == PSD_OK);
}

PSD_TEST(host_p2p, the_channel_is_ordered_bounded_and_refuses_when_full)
{
    cr_assert_eq(run(2, "shm", 65536, channel), 0);
    cr_assert_eq(run(2, "tcp", 65536, channel), 0);
}
