/* Small blocking operations by run(): complete without a request where they can be, and otherwise going on as one
 * from where they are. */
#include "tests/lib/psd_test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/host_ranks.h"

static const psd_backend_ops *const host = &psd_backend_host;
static pthread_barrier_t together;

static psd_status run_one(host_rank *r, bool is_send, void *data, int64_t count, int32_t tag,
                          psd_op_result *result, psd_request **request)
{
    psd_op_p2p p2p = {is_send, PSD_U8, data, count, 1 - r->rank, tag};
    psd_op op = host_op(is_send ? PSD_OP_SEND : PSD_OP_RECV, PSD_U8, count, NULL, NULL);
    op.p2p = &p2p;
    op.p2p_count = 1;
    return host->run(r->group, &op, result, request);
}

/* The same, to the end. What the progress thread was faster to take from the link goes on as a request. */
static psd_status run_through(host_rank *r, bool is_send, void *data, int64_t count, int32_t tag,
                              psd_op_result *result)
{
    psd_request *request = NULL;
    psd_status status = run_one(r, is_send, data, count, tag, result, &request);
    HOST_CHECK(r, (status == PSD_INPROGRESS) == (request != NULL));
    return status == PSD_INPROGRESS ? host_finish(r, &request, result) : status;
}

static void start_and_wait(host_rank *r, bool is_send, void *data, int64_t count, int32_t tag)
{
    psd_request *request = is_send ? host_isend(r, PSD_U8, data, count, 1 - r->rank, tag)
                                   : host_irecv(r, PSD_U8, data, count, 1 - r->rank, tag);
    HOST_CHECK(r, host_finish(r, &request, NULL) == PSD_OK);
}

static void run_ranks(int32_t size, const char *transport, host_rank_body body)
{
    host_ranks all = {.size = size, .transport = transport, .eager_limit = 65536, .body = body};
    cr_assert_eq(pthread_barrier_init(&together, NULL, (unsigned)size), 0);
    cr_expect_eq(host_ranks_run(&all), 0);
    pthread_barrier_destroy(&together);
}

/* ---------------------------------------------------------------------------------------------- at once */

static void at_once(host_rank *r)
{
    unsigned char data[8192];
    psd_op_result result = {.status = PSD_INPROGRESS};
    static const int64_t counts[] = {0, 1, 24, 25, 4096, 8192};
    for (int i = 0; i < 6; i++) {
        memset(data, r->rank == 0 ? i + 1 : 0xff, sizeof(data));
        if (r->rank == 0)
            HOST_CHECK(r, run_through(r, true, data, counts[i], i, &result) == PSD_OK);
        pthread_barrier_wait(&together);
        if (r->rank == 1) {
            int32_t tag = i % 2 == 0 ? PSD_ANY_TAG : i;
            HOST_CHECK(r, run_through(r, false, data, counts[i], tag, &result) == PSD_OK);
            HOST_CHECK(r, result.source == 0 && result.tag == i);
            HOST_CHECK(r, counts[i] == 0 || (data[0] == i + 1 && data[counts[i] - 1] == i + 1));
            HOST_CHECK(r, counts[i] == 8192 || data[counts[i]] == 0xff);
        }
        HOST_CHECK(r, result.status == PSD_OK && result.ordinal == (uint64_t)i);
        pthread_barrier_wait(&together);
    }
}

PSD_TEST(host_quick, what_is_there_is_taken)
{
    run_ranks(2, "shm", at_once);
}

/* ------------------------------------------------------------------------------------------------- as requests */

static void late(host_rank *r)
{
    unsigned char data[100] = {0};
    psd_op_result result;
    psd_request *request = NULL;
    int32_t sum = r->rank + 1;
    if (r->rank == 0) {
        HOST_CHECK(r, run_one(r, false, data, 100, 5, &result, &request) == PSD_INPROGRESS);
        pthread_barrier_wait(&together);
        HOST_CHECK(r, host_finish(r, &request, &result) == PSD_OK);
        HOST_CHECK(r, result.tag == 5 && data[99] == 7);
    } else {
        pthread_barrier_wait(&together); /* the other is waiting */
        memset(data, 7, sizeof(data));
        start_and_wait(r, true, data, 100, 5);
    }
    psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_I32, 1, &sum, &sum);
    op.redop = PSD_SUM;
    if (r->rank == 1)
        pthread_barrier_wait(&together);
    psd_status status = host->run(r->group, &op, &result, &request);
    HOST_CHECK(r, status == PSD_OK || status == PSD_INPROGRESS);
    if (r->rank == 0) {
        HOST_CHECK(r, status == PSD_INPROGRESS && request != NULL);
        pthread_barrier_wait(&together);
    }
    if (status == PSD_INPROGRESS)
        HOST_CHECK(r, host_finish(r, &request, &result) == PSD_OK);
    HOST_CHECK(r, sum == 3 && result.ordinal == 0);
}

PSD_TEST(host_quick, who_is_late_is_waited_for)
{
    run_ranks(2, "shm", late);
    run_ranks(2, "tcp", late);
}

/* Rank 0 sends far more than a lane holds before rank 1 receives, which asks for the tags the other way round. */
static void more_than_fits(host_rank *r)
{
    enum { MESSAGES = 60, BYTES = 4000 };
    unsigned char *data = calloc(MESSAGES, BYTES);
    psd_op_result result;
    psd_request *requests[MESSAGES] = {NULL};
    for (int i = 0; i < MESSAGES && r->rank == 0; i++) {
        memset(data + i * BYTES, i + 1, BYTES);
        HOST_CHECK(r, run_one(r, true, data + i * BYTES, BYTES, i, &result, &requests[i]) >= 0);
    }
    pthread_barrier_wait(&together);
    for (int i = MESSAGES - 1; i >= 0 && r->rank == 1; i--) {
        psd_request *request = NULL;
        if (run_one(r, false, data + i * BYTES, BYTES, i, &result, &request) != PSD_OK)
            HOST_CHECK(r, host_finish(r, &request, &result) == PSD_OK);
        HOST_CHECK(r, result.tag == i && result.ordinal == (uint64_t)i);
        HOST_CHECK(r, data[i * BYTES] == i + 1 && data[i * BYTES + BYTES - 1] == i + 1);
    }
    for (int i = 0; i < MESSAGES; i++) {
        if (requests[i] != NULL)
            HOST_CHECK(r, host_finish(r, &requests[i], NULL) == PSD_OK);
    }
    free(data);
}

PSD_TEST(host_quick, a_full_lane_and_another_order)
{
    run_ranks(2, "shm", more_than_fits);
}

static void exchange(host_rank *r)
{
    for (int32_t turn = 0; turn < 300; turn++) {
        int32_t out = r->rank * 1000 + turn, in = -1;
        psd_op_p2p pair[2] = {{turn % 2 == 0, PSD_I32, turn % 2 == 0 ? &out : &in, 1, 1 - r->rank, 3},
                              {turn % 2 != 0, PSD_I32, turn % 2 != 0 ? &out : &in, 1, 1 - r->rank, 3}};
        psd_op op = host_op(PSD_OP_BATCH, PSD_I32, 1, NULL, NULL);
        op.p2p = pair;
        op.p2p_count = 2;
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
        HOST_CHECK(r, in == (1 - r->rank) * 1000 + turn);
    }
}

PSD_TEST(host_quick, a_send_and_a_receive_together)
{
    run_ranks(2, "shm", exchange);
    run_ranks(2, "tcp", exchange);
}

/* ---------------------------------------------------------------------------------------- beside other things */

/* A second thread of each rank sends and receives messages of many sizes meanwhile. */
static void *disturb(void *arg)
{
    host_rank *r = arg;
    unsigned char *data = calloc(1, 50000);
    for (int32_t turn = 0; turn < 100; turn++) {
        int64_t count = turn % 7 == 0 ? 50000 : turn;
        start_and_wait(r, r->rank == 0, data, count, 9);
        start_and_wait(r, r->rank == 1, data, count, 9);
    }
    free(data);
    return NULL;
}

static void disturbed(host_rank *r)
{
    pthread_t other;
    HOST_CHECK(r, pthread_create(&other, NULL, disturb, r) == 0);
    for (int32_t turn = 0; turn < 600; turn++) {
        int32_t in[3] = {turn, r->rank, 1}, out[6] = {0};
        psd_op op = host_op(PSD_OP_ALL_GATHER, PSD_I32, 3, in, out);
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
        HOST_CHECK(r, out[0] == turn && out[3] == turn && out[1] == 0 && out[4] == 1 && out[5] == 1);
        op = host_op(PSD_OP_BARRIER, 0, 0, NULL, NULL);
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    }
    pthread_join(other, NULL);
}

PSD_TEST(host_quick, other_threads_at_the_same_time)
{
    run_ranks(2, "shm", disturbed);
}

static void many(host_rank *r)
{
    for (int32_t turn = 0; turn < 60; turn++) {
        int64_t x = r->rank, sum = (int64_t)r->size * (r->size - 1) / 2;
        psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_I64, 1, &x, &x);
        op.redop = PSD_SUM;
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK && x == sum);
        op = host_op(PSD_OP_BROADCAST, PSD_I64, 1, NULL, &x);
        op.root = turn % r->size;
        x = r->rank == op.root ? turn : -1;
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK && x == turn);
        op = host_op(PSD_OP_BARRIER, 0, 0, NULL, NULL);
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
    }
}

PSD_TEST(host_quick, more_ranks_than_cores)
{
    run_ranks(5, "shm", many);
    run_ranks(9, "shm", many);
    run_ranks(1, "shm", many);
}
