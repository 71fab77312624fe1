/* Point to point: scenarios 2, 3, 4, 5, 9 and 10. */
#include "tests/scenarios/scenario.h"

/* 2: two stages of a pipeline that both send before they receive. */
static void pipeline(void)
{
    int64_t count = parameter("count", MANY);
    psd_tensor out = tensor(0, count, rank % 2 == 0 ? "fwd1" : "fwd0'"), in = tensor(1, count, "stage");
    int32_t peer = rank ^ 1;
    if (peer >= size)
        return;
    if (wrong || rank % 2 == 0) {
        TRY(psd_send(ctx, group, &out, peer, NULL)); /* @pipeline */
        TRY(psd_recv(ctx, group, &in, peer, NULL, NULL));
    } else if (parameter("batch", 0) != 0) {
        psd_p2p ops[] = {{PSD_OP_SEND, out, peer, 0}, {PSD_OP_RECV, in, peer, 0}};
        TRY(psd_batch(ctx, group, ops, 2, NULL));
    } else {
        TRY(psd_recv(ctx, group, &in, peer, NULL, NULL));
        TRY(psd_send(ctx, group, &out, peer, NULL));
    }
}

/* 3: receive, send, receive against receive, send, send: as blocking calls a cycle, asynchronous legal; with missing=1
 * the last send does not come. */
static void queue_order(void)
{
    psd_tensor first = tensor(0, MANY, "first"), back = tensor(1, MANY, "back"),
               last = tensor(2, MANY, "last");
    psd_work works[3];
    int32_t peer = 1 - rank;
    bool is_missing = wrong && parameter("missing", 0) != 0;
    if (rank > 1)
        return;
    TRY(psd_sendrecv(ctx, group, &first, peer, &back, peer, NULL));
    if (wrong && !is_missing)
        TRY(psd_recv(ctx, group, &first, peer, NULL, NULL)); /* @queue_order_cycle */
    TRY(psd_irecv(ctx, group, &first, peer, NULL, &works[0]));
    TRY(psd_isend(ctx, group, &back, peer, NULL, &works[1]));
    if (rank == 0)
        TRY(psd_irecv(ctx, group, &last, 1, NULL, &works[2])); /* @queue_order_missing */
    else if (!is_missing)
        TRY(psd_isend(ctx, group, &last, 0, NULL, &works[2]));
    TRY(psd_waitall(ctx, works, rank == 1 && is_missing ? 2 : 3, 0));
}

/* 4: a send of 3 elements, a receive of another number. */
static void p2p_count(void)
{
    int64_t sent = parameter("sent", 3), received = wrong ? parameter("received", 5) : sent;
    psd_tensor out = tensor(0, sent, "out"), in = tensor(1, received, "in");
    psd_work work;
    if (rank == 0) {
        TRY(psd_isend(ctx, group, &out, 1, NULL, &work)); /* @p2p_count */
        TRY(psd_wait(ctx, work, 0));
    } else if (rank == 1) {
        TRY(psd_irecv(ctx, group, &in, 0, NULL, &work)); /* @p2p_count */
        TRY(psd_wait(ctx, work, 0));
    }
    TRY(psd_barrier(ctx, group, NULL));
}

/* 5: a batch whose ends differ in dtype, and not in bytes. */
static void p2p_dtype(void)
{
    int64_t count = parameter("count", 4);
    psd_tensor out = psd_tensor_1d(memory[0], count, PSD_F32, "out");
    psd_tensor in = psd_tensor_1d(memory[1], count, wrong && rank == 0 ? PSD_I32 : PSD_F32, "in");
    psd_p2p ops[] = {{PSD_OP_SEND, out, 1 - rank, 0}, {PSD_OP_RECV, in, 1 - rank, 0}};
    if (rank < 2)
        TRY(psd_batch(ctx, group, ops, 2, NULL)); /* @p2p_dtype */
    TRY(psd_barrier(ctx, group, NULL));
}

/* 9: with two stages the previous is the next: what one sends as output, then gradient, the other receives in the
 * opposite order. */
static void prev_is_next(void)
{
    const int64_t output[] = {4, 8}, grad[] = {parameter("rows", 2), 8};
    psd_tensor x = psd_tensor_nd(memory[0], output, 2, PSD_F32, "output");
    psd_tensor y = psd_tensor_nd(memory[1], grad, 2, PSD_F32, "grad");
    psd_work works[2];
    if (rank == 0) {
        TRY(psd_isend(ctx, group, &x, 1, NULL, &works[0])); /* @prev_is_next */
        TRY(psd_isend(ctx, group, &y, 1, NULL, &works[1]));
    } else if (rank == 1) {
        TRY(psd_irecv(ctx, group, wrong ? &y : &x, 0, NULL, &works[0])); /* @prev_is_next */
        TRY(psd_irecv(ctx, group, wrong ? &x : &y, 0, NULL, &works[1]));
    }
    if (rank < 2)
        TRY(psd_waitall(ctx, works, 2, 0));
    TRY(psd_barrier(ctx, group, NULL));
}

/* 10: two receives of which the neighbour sends one; it leaves, or waits for them too. */
static void one_grad(void)
{
    psd_tensor x = tensor(0, 10, "grad"), y = tensor(1, 10, "grad2");
    bool waits = parameter("waits", 0) != 0;
    if (rank == 0) {
        TRY(psd_send(ctx, group, &x, 1, NULL));
        if (!wrong)
            TRY(psd_send(ctx, group, &x, 1, NULL));
    } else if (rank == 1) {
        TRY(psd_recv(ctx, group, &x, 0, NULL, NULL));
        TRY(psd_recv(ctx, group, &y, 0, NULL, NULL)); /* @one_grad */
    }
    if (waits)
        TRY(psd_barrier(ctx, group, NULL));
}

static void must_time_out(psd_status status)
{
    if (status == PSD_ERR_TIMEOUT)
        return;
    printf("rank %d: a wait was to end by its timeout, and gave %s\n", world_rank, psd_status_text(status));
    fflush(stdout);
    exit(8);
}

/* Waits with a timeout of their own come back, and what follows wakes the peer; wrong: it does not. */
static void own_timeout(void)
{
    psd_tensor x = tensor(0, 10, "x"), y = tensor(1, 10, "y"), wake = tensor(2, 10, "wake");
    const char *how = parameter_text("how", "wait");
    psd_work works[2];
    int32_t index;
    if (rank == 0) {
        TRY(psd_irecv(ctx, group, &x, 1, NULL, &works[0]));
        TRY(psd_irecv(ctx, group, &y, 1, NULL, &works[1]));
        if (how[0] == 'a')
            must_time_out(psd_waitany(ctx, works, 2, 1000, &index));
        for (int i = 0; i < 3 && how[0] == 'l'; i++)
            must_time_out(psd_wait(ctx, works[0], 400));
        if (how[0] == 'w')
            must_time_out(psd_wait(ctx, works[0], 1000));
        if (!wrong)
            TRY(psd_send(ctx, group, &wake, 1, NULL));
        TRY(psd_waitall(ctx, works, 2, 0));
    } else if (rank == 1) {
        TRY(psd_recv(ctx, group, &wake, 0, NULL, NULL)); /* @own_timeout */
        TRY(psd_send(ctx, group, &x, 0, NULL));
        TRY(psd_send(ctx, group, &y, 0, NULL));
    }
    TRY(psd_barrier(ctx, group, NULL));
}

const scenario scenarios_p2p[] = {
    {"pipeline", pipeline},         {"queue_order", queue_order},
    {"p2p_count", p2p_count},       {"p2p_dtype", p2p_dtype},
    {"prev_is_next", prev_is_next}, {"one_grad", one_grad},
    {"own_timeout", own_timeout},   {NULL, NULL},
};
