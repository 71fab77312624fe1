/* The host backend under ThreadSanitizer: contexts as threads of one process, and several threads on each
 * context: collectives, point to point with the progress thread at work, the channel, an abort from another
 * thread. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/host_ranks.h"

#define TURNS     60
#define CHAN_STOP 0xffffffffu

static const psd_backend_ops *const host = &psd_backend_host;

/* Messages from each rank to the next, with a tag of its own, waited for by polling. */
static void *ring_of_messages(void *arg)
{
    host_rank *r = arg;
    int32_t next = (r->rank + 1) % r->size;
    int32_t before = (r->rank + r->size - 1) % r->size;
    for (int32_t turn = 0; turn < TURNS; turn++) {
        enum { N = 30000 };
        int32_t *out = calloc(N, sizeof(*out));
        int32_t *in = calloc(N, sizeof(*in));
        int64_t count = turn % 3 == 0 ? N : 10;
        out[count - 1] = turn;
        psd_request *send = host_isend(r, PSD_I32, out, count, next, 1);
        psd_request *receive = host_irecv(r, PSD_I32, in, count, before, 1);
        psd_op_result result;
        while (receive != NULL && host->test(receive, &result) == PSD_INPROGRESS)
            continue;
        HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_OK && in[count - 1] == turn);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
        free(in);
        free(out);
    }
    return NULL;
}

static void *read_channel(void *arg)
{
    host_rank *r = arg;
    psd_chan_msg msg;
    for (int32_t stops = 0; stops < r->size - 1;) {
        uint32_t number = 0;
        psd_status status = host->chan_recv(r->backend, psd_now_ns() + 20 * PSD_NS_PER_S, &msg);
        HOST_CHECK(r, status == PSD_OK);
        if (status != PSD_OK)
            break;
        memcpy(&number, msg.data, sizeof(number));
        stops += number == CHAN_STOP;
    }
    return NULL;
}

static void send_channel(host_rank *r, uint32_t number)
{
    for (uint32_t to = 0; to < (uint32_t)r->size; to++) {
        psd_status status = PSD_AGAIN;
        while (to != (uint32_t)r->rank && status == PSD_AGAIN)
            status = host->chan_send(r->backend, to, &number, sizeof(number));
    }
}

static void collectives(host_rank *r)
{
    for (int32_t turn = 0; turn < TURNS; turn++) {
        enum { N = 40000 };
        float *data = calloc(N, sizeof(*data));
        int64_t count = turn % 4 == 0 ? N : 3;
        data[count - 1] = 1;
        psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_F32, count, data, data);
        op.redop = PSD_SUM;
        psd_request *request = host_start(r, &op);
        send_channel(r, (uint32_t)turn);
        HOST_CHECK(r, host_finish(r, &request, NULL) == PSD_OK);
        HOST_CHECK(r, data[count - 1] == (float)r->size);
        uint64_t sent;
        uint64_t received;
        host->counters(r->backend, &sent, &received);
        free(data);
    }
}

/* In memory that the ranks map of each other, made and given back while messages move. */
static void mapped_collectives(host_rank *r)
{
    enum { N = 30000 };
    for (int turn = 0; turn < TURNS / 4; turn++) {
        void *memory = NULL;
        HOST_CHECK(r, host->mem_alloc(r->backend, 2 * N * sizeof(int32_t), &memory) == PSD_OK);
        int32_t *data = memory;
        if (data == NULL)
            return;
        for (int i = 0; i < N; i++)
            data[i] = turn + r->rank;
        psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_I32, N, data, turn % 2 == 0 ? data : data + N);
        op.redop = PSD_SUM;
        HOST_CHECK(r, host_run(r, &op, NULL) == PSD_OK);
        const int32_t *sum = op.out;
        HOST_CHECK(r, sum[N - 1] == r->size * turn + r->size * (r->size - 1) / 2);
        host->mem_free(r->backend, memory, 2 * N * sizeof(int32_t));
    }
}

static void *abort_group(void *arg)
{
    host_rank *r = arg;
    host->group_abort(r->group, PSD_ERR_ABORTED, "done");
    return NULL;
}

static void body(host_rank *r)
{
    /* Checks of the helper threads count on ranks of their own: no two threads share a counter. */
    host_rank messages = *r;
    host_rank channel = *r;
    pthread_t threads[3];
    HOST_CHECK(r, pthread_create(&threads[0], NULL, ring_of_messages, &messages) == 0);
    HOST_CHECK(r, pthread_create(&threads[1], NULL, read_channel, &channel) == 0);
    collectives(r);
    mapped_collectives(r);
    send_channel(r, CHAN_STOP);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    r->failures += messages.failures + channel.failures;
    psd_op barrier = host_op(PSD_OP_BARRIER, (psd_dtype)0, 0, NULL, NULL);
    HOST_CHECK(r, host_run(r, &barrier, NULL) == PSD_OK);
    int32_t never;
    psd_request *request = host_irecv(r, PSD_I32, &never, 1, (r->rank + 1) % r->size, 77);
    HOST_CHECK(r, host_run(r, &barrier, NULL) == PSD_OK || r->rank != 0);
    if (r->rank == 0)
        HOST_CHECK(r, pthread_create(&threads[2], NULL, abort_group, r) == 0);
    HOST_CHECK(r, host_finish(r, &request, NULL) == PSD_ERR_ABORTED);
    if (r->rank == 0)
        pthread_join(threads[2], NULL);
}

int main(void)
{
    static const char *const transports[] = {"shm", "tcp"};
    int failures = 0;
    for (int i = 0; i < 2; i++) {
        host_ranks all = {.size = 3, .transport = transports[i], .eager_limit = 4096, .body = body};
        failures += host_ranks_run(&all);
    }
    printf("%d passed, %d failed\n", failures == 0, failures != 0);
    return failures == 0 ? 0 : 1;
}
