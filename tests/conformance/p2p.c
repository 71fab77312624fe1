/* Cells of sends and receives: every dtype around a ring, tags, any source, batches, and the ways to wait. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/suite.h"

#define SIZES 5

/* Two tensors of one cell: what this rank sends, and where it receives what `source` sends. */
typedef struct exchange {
    psd_dtype dtype;
    int64_t count;
    uint64_t seed;
    guarded sent;
    guarded received;
    psd_tensor in;
    psd_tensor out;
} exchange;

static int64_t size_of(int index, psd_dtype dtype)
{
    const int64_t sizes[SIZES] = {0, 1, 17, 1009, 100003 / (int64_t)ref_bytes(dtype) + 1};
    return sizes[index];
}

/* `salt` tells the exchanges of one cell apart. */
static bool exchange_new(suite *s, psd_dtype dtype, int64_t count, uint64_t salt, exchange *out)
{
    unsigned char period[REF_PERIOD * 8];
    exchange made = {.dtype = dtype, .count = count, .seed = ((uint64_t)s->cell_count << 8) + salt};
    made.sent = guarded_new(s, (size_t)count * ref_bytes(dtype));
    made.received = guarded_new(s, (size_t)count * ref_bytes(dtype));
    if (made.sent.data != NULL) {
        ref_input(dtype, (psd_redop)0, made.seed, s->rank, period);
        ref_fill(dtype, period, 0, count, made.sent.data);
    }
    made.in = guarded_tensor(&made.sent, made.sent.data, count, dtype, "sent");
    made.out = guarded_tensor(&made.received, made.received.data, count, dtype, "received");
    *out = made;
    return made.sent.data != NULL && made.received.data != NULL &&
           suite_judge(s, guarded_give(s, &made.sent)) == OUTCOME_PASSED &&
           suite_judge(s, guarded_give(s, &made.received)) == OUTCOME_PASSED;
}

static void exchange_free(suite *s, exchange *x)
{
    guarded_free(s, &x->sent);
    guarded_free(s, &x->received);
}

static bool came_from(suite *s, exchange *x, int32_t source)
{
    unsigned char period[REF_PERIOD * 8];
    if (suite_judge(s, guarded_take(s, &x->received)) != OUTCOME_PASSED ||
        suite_judge(s, guarded_take(s, &x->sent)) != OUTCOME_PASSED)
        return false;
    ref_input(x->dtype, (psd_redop)0, x->seed, source, period);
    return ref_differs(x->dtype, (psd_redop)0, period, 0, x->count, x->received.data) < 0 &&
           guarded_intact(&x->received) && guarded_intact(&x->sent);
}

static int32_t next_rank(const suite *s)
{
    return (s->rank + 1) % s->ranks;
}

static int32_t rank_before(const suite *s)
{
    return (s->rank + s->ranks - 1) % s->ranks;
}

/* ---- the ring, in every form; alone, a rank sends to itself where that is allowed
 *
 * On a device the operations of a group are one behind the other: a send and a receive that are started apart must
 * stand in an order in which the others' meet them, and what a rank sends to itself must be in one batch. */

typedef psd_status ring_form(suite *s, exchange *x);

/* Rank 0 receives last, so that someone receives first however large the messages are. */
static psd_status ring_blocking(suite *s, exchange *x)
{
    psd_status first, second;
    if (s->rank == 0) {
        first = psd_send(s->ctx, PSD_WORLD, &x->in, next_rank(s), NULL);
        second = first == PSD_OK ? psd_recv(s->ctx, PSD_WORLD, &x->out, rank_before(s), NULL, NULL) : first;
    } else {
        first = psd_recv(s->ctx, PSD_WORLD, &x->out, rank_before(s), NULL, NULL);
        second = first == PSD_OK ? psd_send(s->ctx, PSD_WORLD, &x->in, next_rank(s), NULL) : first;
    }
    return second;
}

static psd_status ring_async(suite *s, exchange *x)
{
    psd_work works[2];
    bool send_first = !s->on_device || s->rank == 0;
    psd_status status = PSD_OK;
    if (send_first)
        status = psd_isend(s->ctx, PSD_WORLD, &x->in, next_rank(s), NULL, &works[0]);
    if (status == PSD_OK)
        status = psd_irecv(s->ctx, PSD_WORLD, &x->out, rank_before(s), NULL, &works[1]);
    if (status == PSD_OK && !send_first)
        status = psd_isend(s->ctx, PSD_WORLD, &x->in, next_rank(s), NULL, &works[0]);
    return status == PSD_OK ? psd_waitall(s->ctx, works, 2, 0) : status;
}

static psd_status ring_sendrecv(suite *s, exchange *x)
{
    return psd_sendrecv(s->ctx, PSD_WORLD, &x->in, next_rank(s), &x->out, rank_before(s), NULL);
}

static void fill_batch(const suite *s, const exchange *x, psd_p2p *batch)
{
    psd_p2p receive = {PSD_OP_RECV, x->out, rank_before(s), 0}, send = {PSD_OP_SEND, x->in, next_rank(s), 0};
    batch[0] = receive;
    batch[1] = send;
}

static psd_status ring_batch(suite *s, exchange *x)
{
    psd_p2p batch[2];
    fill_batch(s, x, batch);
    return psd_batch(s->ctx, PSD_WORLD, batch, 2, NULL);
}

static psd_status ring_ibatch(suite *s, exchange *x)
{
    psd_p2p batch[2];
    psd_work work;
    fill_batch(s, x, batch);
    psd_status status = psd_ibatch(s->ctx, PSD_WORLD, batch, 2, NULL, &work);
    return status == PSD_OK ? psd_synchronize(s->ctx, work, 0) : status;
}

static psd_status ring_test(suite *s, exchange *x)
{
    psd_work send, receive;
    bool sent = false, received = false;
    bool send_first = s->on_device && s->rank == 0;
    psd_status status = PSD_OK;
    if (send_first)
        status = psd_isend(s->ctx, PSD_WORLD, &x->in, next_rank(s), NULL, &send);
    if (status == PSD_OK)
        status = psd_irecv(s->ctx, PSD_WORLD, &x->out, rank_before(s), NULL, &receive);
    if (status == PSD_OK && !send_first)
        status = psd_isend(s->ctx, PSD_WORLD, &x->in, next_rank(s), NULL, &send);
    while (status == PSD_OK && (!sent || !received)) {
        if (!received)
            status = psd_test(s->ctx, receive, &received);
        if (status == PSD_OK && !sent)
            status = psd_test(s->ctx, send, &sent);
    }
    return status;
}

static void try_ring(suite *s, const char *row, ring_form *form, psd_dtype dtype, int64_t count)
{
    exchange x;
    outcome result = OUTCOME_FAILED;
    if (s->is_broken)
        return;
    if (exchange_new(s, dtype, count, 0, &x)) {
        result = suite_judge(s, form(s, &x));
        if (result == OUTCOME_PASSED && !came_from(s, &x, rank_before(s)))
            result = OUTCOME_FAILED;
    }
    suite_record(s, row, dtype, result, "count %" PRId64, count);
    exchange_free(s, &x);
}

static void try_rings(suite *s)
{
    int64_t huge = s->extent != SUITE_FULL ? (INT64_C(1) << 20) + 3 : (INT64_C(64) << 18) + 3;
    bool apart = s->ranks > 1 || !s->on_device;
    for (int dtype = 1; dtype <= REF_DTYPES; dtype++) {
        for (int size = 0; size < SIZES; size++) {
            int64_t count = size_of(size, (psd_dtype)dtype);
            if (s->extent == SUITE_REDUCED && (size == 1 || size == 3))
                continue;
            if (s->ranks > 1)
                try_ring(s, "send_recv", ring_blocking, (psd_dtype)dtype, count);
            if (apart)
                try_ring(s, "isend_irecv", ring_async, (psd_dtype)dtype, count);
            if (s->ranks > 1)
                try_ring(s, "sendrecv", ring_sendrecv, (psd_dtype)dtype, count);
            try_ring(s, "batch", ring_batch, (psd_dtype)dtype, count);
            try_ring(s, "ibatch", ring_ibatch, (psd_dtype)dtype, count);
            if (apart)
                try_ring(s, "test", ring_test, (psd_dtype)dtype, count);
        }
    }
    try_ring(s, "ibatch", ring_ibatch, PSD_F32, huge);
    if (apart)
        try_ring(s, "isend_irecv", ring_async, PSD_F32, huge);
}

/* ---- tags: received in another order than sent */

static psd_status tags_once(suite *s, exchange *low, exchange *high)
{
    psd_work works[4];
    psd_opts one, two;
    psd_opts_init(&one);
    psd_opts_init(&two);
    one.tag = 1;
    two.tag = PSD_MAX_TAG;
    psd_status status = psd_isend(s->ctx, PSD_WORLD, &low->in, next_rank(s), &one, &works[0]);
    if (status == PSD_OK)
        status = psd_isend(s->ctx, PSD_WORLD, &high->in, next_rank(s), &two, &works[1]);
    if (status == PSD_OK)
        status = psd_irecv(s->ctx, PSD_WORLD, &high->out, rank_before(s), &two, &works[2]);
    if (status == PSD_OK)
        status = psd_irecv(s->ctx, PSD_WORLD, &low->out, rank_before(s), &one, &works[3]);
    return status == PSD_OK ? psd_waitall(s->ctx, works, 4, 0) : status;
}

static void try_tags(suite *s, psd_dtype dtype, int64_t count)
{
    exchange low, high;
    outcome result = OUTCOME_FAILED;
    if (s->is_broken)
        return;
    bool fine = exchange_new(s, dtype, count, 0, &low);
    fine = exchange_new(s, dtype, count + 1, 1, &high) && fine;
    if (fine) {
        result = suite_judge_refusal(s, tags_once(s, &low, &high), !s->has_tags);
        if (result == OUTCOME_PASSED &&
            (!came_from(s, &low, rank_before(s)) || !came_from(s, &high, rank_before(s))))
            result = OUTCOME_FAILED;
    }
    suite_record(s, "tags", dtype, result, "count %" PRId64, count);
    exchange_free(s, &low);
    exchange_free(s, &high);
}

/* ---- rank 0 receives from whoever comes; everybody sends with its rank as the tag */

static outcome receive_any(suite *s, exchange *x, const psd_opts *opts, bool async)
{
    outcome result = OUTCOME_PASSED;
    for (int32_t i = 1; i < s->ranks && result == OUTCOME_PASSED; i++) {
        psd_recv_info info = {.size = sizeof info, .source = -1, .tag = -1};
        psd_status status;
        psd_work work;
        if (async) {
            status = psd_irecv(s->ctx, PSD_WORLD, &x->out, PSD_ANY_SOURCE, opts, &work);
            if (status == PSD_OK)
                status = psd_wait_recv(s->ctx, work, 0, &info);
        } else {
            status = psd_recv(s->ctx, PSD_WORLD, &x->out, PSD_ANY_SOURCE, opts, &info);
        }
        result = suite_judge_refusal(s, status, !s->has_tags);
        if (result == OUTCOME_PASSED && (info.source < 1 || info.source >= s->ranks ||
                                         info.tag != info.source || !came_from(s, x, info.source)))
            result = OUTCOME_FAILED;
    }
    return result;
}

static void try_any(suite *s, int64_t count, bool async)
{
    exchange x;
    outcome result = OUTCOME_FAILED;
    psd_opts opts;
    if (s->is_broken || s->ranks < 2)
        return;
    psd_opts_init(&opts);
    opts.tag = s->rank == 0 ? PSD_ANY_TAG : s->rank;
    if (exchange_new(s, PSD_F32, count, 0, &x)) {
        if (s->rank == 0)
            result = receive_any(s, &x, &opts, async);
        else
            result = suite_judge_refusal(s, psd_send(s->ctx, PSD_WORLD, &x.in, 0, &opts), !s->has_tags);
    }
    suite_record(s, "any_source", PSD_F32, result, "count %" PRId64 "%s", count, async ? " async" : "");
    exchange_free(s, &x);
    /* The next cell's messages must not be taken for this one's. */
    if (!s->is_broken)
        (void)suite_judge(s, psd_barrier(s->ctx, PSD_WORLD, NULL));
}

/* ---- everybody to everybody, oneself included, in one batch */

static psd_status all_pairs(suite *s, exchange *x, psd_p2p *batch)
{
    for (int32_t i = 0; i < s->ranks; i++) {
        psd_p2p receive = {PSD_OP_RECV, x[i].out, i, 0}, send = {PSD_OP_SEND, x[0].in, i, 0};
        batch[2 * i] = receive;
        batch[2 * i + 1] = send;
    }
    return psd_batch(s->ctx, PSD_WORLD, batch, 2 * s->ranks, NULL);
}

static void try_all_pairs(suite *s, int64_t count)
{
    exchange *x = calloc((size_t)s->ranks, sizeof *x);
    psd_p2p *batch = calloc(2 * (size_t)s->ranks, sizeof *batch);
    bool fine = x != NULL && batch != NULL && !s->is_broken;
    outcome result = OUTCOME_FAILED;
    for (int32_t i = 0; fine && i < s->ranks; i++)
        fine = exchange_new(s, PSD_U8, count, 0, &x[i]);
    if (fine) {
        result = suite_judge(s, all_pairs(s, x, batch));
        for (int32_t i = 0; i < s->ranks && result == OUTCOME_PASSED; i++)
            result = came_from(s, &x[i], i) ? OUTCOME_PASSED : OUTCOME_FAILED;
    }
    if (!s->is_broken)
        suite_record(s, "batch_all_pairs", PSD_U8, result, "count %" PRId64, count);
    for (int32_t i = 0; x != NULL && i < s->ranks; i++)
        exchange_free(s, &x[i]);
    free(x);
    free(batch);
}

/* ---- waitany: one receive from each other rank, taken as they complete */

static psd_status start_receives(suite *s, exchange *x, psd_work *works)
{
    psd_status status = PSD_OK;
    for (int32_t i = 0; i < s->ranks && status == PSD_OK; i++)
        status = psd_irecv(s->ctx, PSD_WORLD, &x[i].out, i, NULL, &works[i]);
    for (int32_t i = 0; i < s->ranks && status == PSD_OK; i++)
        status = psd_isend(s->ctx, PSD_WORLD, &x[0].in, i, NULL, &works[s->ranks + i]);
    return status;
}

/* On a device: in each step every rank exchanges with one other, or with itself, in one batch. work i receives from
 * rank i. */
static psd_status start_exchanges(suite *s, exchange *x, psd_work *works)
{
    psd_status status = PSD_OK;
    for (int32_t step = 0; step < s->ranks && status == PSD_OK; step++) {
        int32_t i = (step - s->rank + s->ranks) % s->ranks;
        psd_p2p batch[2] = {{PSD_OP_RECV, x[i].out, i, 0}, {PSD_OP_SEND, x[0].in, i, 0}};
        status = psd_ibatch(s->ctx, PSD_WORLD, batch, 2, NULL, &works[i]);
    }
    return status;
}

/* Every index comes once, and its data is there; then all are stale. */
static outcome take_any(suite *s, exchange *x, psd_work *works, int32_t count, bool *seen)
{
    outcome result = OUTCOME_PASSED;
    int32_t index;
    for (int32_t k = 0; k < count && result == OUTCOME_PASSED; k++) {
        index = -1;
        result = suite_judge(s, psd_waitany(s->ctx, works, count, 0, &index));
        if (result != OUTCOME_PASSED)
            break;
        if (index < 0 || index >= count || seen[index] ||
            (index < s->ranks && !came_from(s, &x[index], index)))
            return OUTCOME_FAILED;
        seen[index] = true;
    }
    if (result == OUTCOME_PASSED && psd_waitany(s->ctx, works, count, 0, &index) != PSD_ERR_STALE)
        result = OUTCOME_FAILED;
    return result;
}

static void try_waitany(suite *s, int64_t count)
{
    size_t n = (size_t)s->ranks;
    exchange *x = calloc(n, sizeof *x);
    psd_work *works = calloc(2 * n, sizeof *works);
    bool *seen = calloc(2 * n, sizeof *seen);
    bool fine = x != NULL && works != NULL && seen != NULL && !s->is_broken;
    outcome result = OUTCOME_FAILED;
    for (size_t i = 0; fine && i < n; i++)
        fine = exchange_new(s, PSD_I32, count, 0, &x[i]);
    if (fine) {
        result = suite_judge(s, s->on_device ? start_exchanges(s, x, works) : start_receives(s, x, works));
        if (result == OUTCOME_PASSED)
            result = take_any(s, x, works, s->on_device ? s->ranks : 2 * s->ranks, seen);
    }
    if (!s->is_broken)
        suite_record(s, "waitany", PSD_I32, result, "count %" PRId64, count);
    for (size_t i = 0; x != NULL && i < n; i++)
        exchange_free(s, &x[i]);
    free(x);
    free(works);
    free(seen);
}

/* ---- a wait that times out leaves the work valid */

static outcome wait_twice(suite *s, exchange *x)
{
    psd_work work;
    outcome result = suite_judge(s, psd_irecv(s->ctx, PSD_WORLD, &x->out, rank_before(s), NULL, &work));
    if (result != OUTCOME_PASSED)
        return result;
    bool timed_out = psd_wait(s->ctx, work, 1) == PSD_ERR_TIMEOUT;
    result = suite_judge(s, psd_barrier(s->ctx, PSD_WORLD, NULL)); /* nobody has sent before */
    psd_work send;
    if (result == OUTCOME_PASSED)
        result = suite_judge(s, psd_isend(s->ctx, PSD_WORLD, &x->in, next_rank(s), NULL, &send));
    if (result == OUTCOME_PASSED)
        result = suite_judge(s, psd_wait(s->ctx, work, 0));
    if (result == OUTCOME_PASSED)
        result = suite_judge(s, psd_wait(s->ctx, send, 0));
    if (result == OUTCOME_PASSED && (!timed_out || !came_from(s, x, rank_before(s))))
        result = OUTCOME_FAILED;
    return result;
}

/* The same on a device: there a wait is over once the receive is queued, so the host waits for its data; what stands
 * behind it on its group is not reached, so that the ranks meet on another. Rank 0 receives, the last rank sends. */
static outcome synchronize_twice(suite *s, exchange *x)
{
    psd_work work;
    outcome result = OUTCOME_PASSED;
    int32_t last = s->ranks - 1;
    bool timed_out = true;
    if (s->rank == 0) {
        result = suite_judge(s, psd_irecv(s->ctx, PSD_WORLD, &x->out, last, NULL, &work));
        timed_out = result == OUTCOME_PASSED && psd_synchronize(s->ctx, work, 20) == PSD_ERR_TIMEOUT;
    }
    if (result == OUTCOME_PASSED)
        result = suite_judge(s, psd_barrier(s->ctx, s->groups[3].handle, NULL));
    if (result == OUTCOME_PASSED)
        result = suite_judge(s, psd_stream_synchronize(s->ctx, NULL, 0));
    if (result == OUTCOME_PASSED && s->rank == last)
        result = suite_judge(s, psd_send(s->ctx, PSD_WORLD, &x->in, 0, NULL));
    if (result == OUTCOME_PASSED && s->rank == 0)
        result = suite_judge(s, psd_synchronize(s->ctx, work, 0));
    if (result == OUTCOME_PASSED && (!timed_out || (s->rank == 0 && !came_from(s, x, last))))
        result = OUTCOME_FAILED;
    return result;
}

static void try_wait_timeout(suite *s)
{
    exchange x;
    if (s->is_broken || (s->on_device && s->ranks < 2))
        return;
    bool fine = exchange_new(s, PSD_F64, 33, 0, &x);
    outcome result = OUTCOME_FAILED;
    if (fine)
        result = s->on_device ? synchronize_twice(s, &x) : wait_twice(s, &x);
    suite_record(s, "wait_timeout", PSD_F64, result, "33 elements");
    exchange_free(s, &x);
}

void suite_p2p(suite *s)
{
    static const int64_t counts[] = {0, 1, 1009, 100003};
    try_rings(s);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (s->extent == SUITE_REDUCED && i != 2)
            continue;
        for (int dtype = 1; dtype <= REF_DTYPES; dtype++)
            try_tags(s, (psd_dtype)dtype, counts[i]);
        try_any(s, counts[i], false);
        try_any(s, counts[i], true);
        try_all_pairs(s, counts[i]);
        try_waitany(s, counts[i]);
    }
    try_wait_timeout(s);
}
