/* Sends, receives and groups. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#define STEP ((size_t)32 << 10) /* what the simulator moves at once */

/* Connects both directions of a pair, so that later calls only queue. */
static void warm(ncclComm_t comm, int peer, cudaStream_t stream)
{
    void *bytes = device_bytes(2, 0);
    OK(ncclGroupStart());
    OK(ncclSend(bytes, 1, ncclInt8, peer, comm, stream));
    OK(ncclRecv((char *)bytes + 1, 1, ncclInt8, peer, comm, stream));
    OK(ncclGroupEnd());
    OK(finish(stream));
    OK(cudaFree(bytes));
}

/* User guide, "Point-to-point communication": a send and its receive, same count and type. */
static void send_and_receive(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    size_t bytes = 3 * STEP + 17;
    void *data = device_bytes(bytes, rank == 0 ? 7 : 0);
    if (rank == 0)
        OK(ncclSend(data, bytes, ncclUint8, 1, comm, stream));
    else
        OK(ncclRecv(data, bytes, ncclUint8, 0, comm, stream));
    OK(finish(stream));
    CHECK(all_bytes(data, bytes, 7));
    OK(cudaFree(data));
    OK(ncclCommDestroy(comm));
    OK(cudaStreamDestroy(stream));
}

/* nccl.h, ncclSend: "This operation is blocking for the GPU": it ends with its receive. */
static void send_waits_for_receive(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    void *data = device_bytes(16, rank);
    warm(comm, 1 - rank, stream);
    if (rank == 0) {
        OK(ncclSend(data, 16, ncclInt8, 1, comm, stream));
        CHECK(stays_pending(stream));
        say_step(s, 0, 1);
    } else {
        wait_step(s, 0, 1);
        OK(ncclRecv(data, 16, ncclInt8, 0, comm, stream));
    }
    OK(finish(stream));
    CHECK(all_bytes(data, 16, 0));
    OK(ncclCommDestroy(comm));
}

/* The same with PSD_GPUSIM_BUFFER: small sends complete at once, larger ones do not. */
static void buffered_send(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    void *data = device_bytes(200, rank);
    warm(comm, 1 - rank, stream);
    if (rank == 0) {
        OK(ncclSend(data, 100, ncclInt8, 1, comm, stream));
        OK(finish(stream));
        OK(ncclSend(data, 200, ncclInt8, 1, comm, stream));
        CHECK(stays_pending(stream));
        say_step(s, 0, 1);
    } else {
        wait_step(s, 0, 1);
        OK(ncclRecv(data, 100, ncclInt8, 0, comm, stream));
        OK(ncclRecv(data, 200, ncclInt8, 0, comm, stream));
    }
    OK(finish(stream));
    OK(ncclCommDestroy(comm));
}

/* nccl.h, ncclSend: calls that need each other "must be fused within a ncclGroupStart/ncclGroupEnd section":
 * two ranks that both send first wait for ever. */
static void crossed_sends_hang(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    void *data = device_bytes(32, rank);
    warm(comm, 1 - rank, stream);
    OK(ncclSend(data, 16, ncclInt8, 1 - rank, comm, stream));
    OK(ncclRecv((char *)data + 16, 16, ncclInt8, 1 - rank, comm, stream));
    CHECK(stays_pending(stream));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
    OK(finish(stream));
}

/* User guide, "Point-to-point communication": calls within a group progress independently. */
static void grouped_exchange(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    size_t bytes = 40 * STEP; /* more than the buffers between the ranks hold */
    char *out = device_bytes(bytes, rank + 1), *in = device_bytes(bytes, 0);
    OK(ncclGroupStart());
    OK(ncclSend(out, bytes, ncclInt8, 1 - rank, comm, stream));
    OK(ncclRecv(in, bytes, ncclInt8, 1 - rank, comm, stream));
    OK(ncclGroupEnd());
    OK(finish(stream));
    CHECK(all_bytes(in, bytes, 2 - rank));
    OK(ncclCommDestroy(comm));
}

/* nccl.h, ncclGroupStart: "Nothing will be started on the CUDA stream until ncclGroupEnd". */
static void group_starts_at_its_end(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    void *data = device_bytes(16, rank);
    warm(comm, 1 - rank, stream);
    if (rank == 0) {
        OK(ncclSend(data, 16, ncclInt8, 1, comm, stream));
        wait_step(s, 1, 1);
        CHECK(stays_pending(stream));
        say_step(s, 0, 1);
    } else {
        OK(ncclGroupStart());
        OK(ncclRecv(data, 16, ncclInt8, 0, comm, stream));
        OK(cudaStreamQuery(stream));
        say_step(s, 1, 1);
        wait_step(s, 0, 1);
        OK(ncclGroupEnd());
    }
    OK(finish(stream));
    OK(ncclCommDestroy(comm));
}

/* A group is one kernel: its stream is done when the last of its operations is. */
static void group_completes_as_one(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 3, s, true);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(32, rank + 1);
    if (rank == 0) {
        warm(comm, 1, stream);
        warm(comm, 2, stream);
        OK(ncclGroupStart());
        OK(ncclSend(data, 16, ncclInt8, 1, comm, stream));
        OK(ncclSend(data + 16, 16, ncclInt8, 2, comm, stream));
        OK(ncclGroupEnd());
        wait_step(s, 1, 1); /* rank 1 has its part */
        CHECK(stays_pending(stream));
        say_step(s, 0, 1);
    } else {
        warm(comm, 0, stream);
        if (rank == 2)
            wait_step(s, 0, 1);
        OK(ncclRecv(data, 16, ncclInt8, 0, comm, stream));
    }
    OK(finish(stream));
    say_step(s, rank, 2);
    CHECK(all_bytes(data, 16, 1));
    OK(ncclCommDestroy(comm));
}

/* There are no tags: messages of a pair match in the order of the calls. */
static void pair_is_fifo(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    char *data[4];
    for (int i = 0; i < 4; i++)
        data[i] = device_bytes(100 + (size_t)i, rank == 0 ? 10 + i : 0);
    OK(ncclGroupStart());
    for (int i = 0; i < 4; i++) {
        if (rank == 0)
            OK(ncclSend(data[i], 100 + (size_t)i, ncclInt8, 1, comm, stream));
        else
            OK(ncclRecv(data[i], 100 + (size_t)i, ncclInt8, 0, comm, stream));
    }
    OK(ncclGroupEnd());
    OK(finish(stream));
    for (int i = 0; i < 4; i++)
        CHECK(all_bytes(data[i], 100 + (size_t)i, 10 + i));
    OK(ncclCommDestroy(comm));
}

/* nccl.h, ncclRecv: the peer needs to send "the same count". A sender with more steps than the receiver takes
 * hangs; its receiver does not. */
static void longer_send_hangs(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    void *data = device_bytes(4 * STEP, rank);
    if (rank == 0)
        OK(ncclSend(data, 4 * STEP, ncclInt8, 1, comm, stream));
    else
        OK(ncclRecv(data, 2 * STEP, ncclInt8, 0, comm, stream));
    if (rank == 1)
        OK(finish(stream));
    else
        CHECK(stays_pending(stream));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
    OK(finish(stream));
}

/* ...and a receiver that wants more steps than were sent hangs, too. */
static void longer_receive_hangs(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    void *data = device_bytes(4 * STEP, rank);
    if (rank == 0)
        OK(ncclSend(data, 2 * STEP, ncclInt8, 1, comm, stream));
    else
        OK(ncclRecv(data, 4 * STEP, ncclInt8, 0, comm, stream));
    if (rank == 0)
        OK(finish(stream));
    else
        CHECK(stays_pending(stream));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
}

/* Within one step nothing notices: the receiver gets as many bytes as it asked for. */
static void shorter_receive_truncates(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(1000, rank == 0 ? 5 : 9);
    if (rank == 0)
        OK(ncclSend(data, 1000, ncclInt8, 1, comm, stream));
    else
        OK(ncclRecv(data, 300, ncclInt8, 0, comm, stream));
    OK(finish(stream));
    CHECK(all_bytes(data, 300, 5));
    CHECK(all_bytes(data + 300, 700, rank == 0 ? 5 : 9));
    OK(ncclCommDestroy(comm));
}

/* A count of 0 is an operation: it needs its partner. */
static void empty_send_waits(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    warm(comm, 1 - rank, stream);
    if (rank == 0) {
        OK(ncclSend(NULL, 0, ncclFloat, 1, comm, stream));
        CHECK(stays_pending(stream));
        say_step(s, 0, 1);
    } else {
        wait_step(s, 0, 1);
        OK(ncclRecv(NULL, 0, ncclFloat, 0, comm, stream));
    }
    OK(finish(stream));
    OK(ncclCommDestroy(comm));
}

/* NCCL, src/enqueue.cc: "Trying to send to self without a matching recv". */
static void send_to_self(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 1, s, true);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(200, 3);
    OK(cudaMemset(data + 100, 0, 100));
    OK(cudaDeviceSynchronize());
    CHECK_EQ(ncclSend(data, 100, ncclInt8, 0, comm, stream), ncclInvalidUsage);
    OK(ncclGroupStart());
    OK(ncclRecv(data + 100, 100, ncclInt8, 0, comm, stream));
    OK(ncclSend(data, 100, ncclInt8, 0, comm, stream));
    OK(ncclGroupEnd());
    OK(finish(stream));
    CHECK(all_bytes(data, 200, 3));
    OK(ncclCommDestroy(comm));
}

/* NCCL connects a pair when it is first used: a blocking call waits for the peer, then later ones only
 * queue. */
static void first_use_connects(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, false);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, rank);
    if (rank == 0) {
        CHECK_EQ(ncclSend(data, 16, ncclInt8, 1, comm, stream), ncclInProgress);
        CHECK(stays_in_progress(comm));
        say_step(s, 0, 1);
        OK(settle(comm));
        OK(finish(stream));
        ncclResult_t again = ncclSend(data, 16, ncclInt8, 1, comm, stream);
        CHECK(again == ncclSuccess || again == ncclInProgress);
        OK(settle(comm)); /* although the peer does nothing */
        CHECK(stays_pending(stream));
        say_step(s, 0, 2);
    } else {
        wait_step(s, 0, 1);
        ncclRecv(data, 16, ncclInt8, 0, comm, stream);
        OK(settle(comm));
        OK(finish(stream));
        wait_step(s, 0, 2);
        ncclRecv(data, 16, ncclInt8, 0, comm, stream);
        OK(settle(comm));
    }
    OK(finish(stream));
    OK(ncclCommDestroy(comm));
}

/* nccl.h, group semantics: the group fails as a whole. */
static void failed_group_does_nothing(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, rank);
    warm(comm, 1 - rank, stream);
    OK(ncclGroupStart());
    OK(rank == 0 ? ncclSend(data, 16, ncclInt8, 1, comm, stream)
                 : ncclRecv(data, 16, ncclInt8, 0, comm, stream));
    CHECK_EQ(ncclSend(data, 16, ncclInt8, 2, comm, stream), ncclInvalidArgument);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidArgument);
    OK(cudaStreamQuery(stream));
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
    OK(ncclCommDestroy(comm));
}

/* User guide, "Mixing Multiple Streams within the same ncclGroupStart/End() group". */
static void group_joins_streams(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t streams[2] = {make_stream(), make_stream()};
    char *data = device_bytes(32, rank);
    warm(comm, 1 - rank, streams[0]);
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        if (rank == 0)
            OK(ncclSend(data + 16 * i, 16, ncclInt8, 1, comm, streams[i]));
        else if (i == 0)
            OK(ncclRecv(data, 16, ncclInt8, 0, comm, streams[0]));
    }
    OK(ncclGroupEnd());
    if (rank == 0) {
        CHECK(stays_pending(streams[0])); /* whose own send was received */
        CHECK(stays_pending(streams[1]));
        say_step(s, 0, 1);
    } else {
        wait_step(s, 0, 1);
        OK(ncclRecv(data + 16, 16, ncclInt8, 0, comm, streams[1]));
    }
    OK(finish(streams[0]));
    OK(finish(streams[1]));
    OK(ncclCommDestroy(comm));
}

static const check_case cases[] = {
    {.name = "a send and its receive", .run = send_and_receive, .ranks = 2},
    {.name = "a send waits for its receive", .run = send_waits_for_receive, .ranks = 2},
    {.name = "buffered sends", .run = buffered_send, .ranks = 2, .env = {"PSD_GPUSIM_BUFFER=100"}},
    {.name = "crossed ungrouped sends hang", .run = crossed_sends_hang, .ranks = 2},
    {.name = "a grouped exchange larger than the buffers", .run = grouped_exchange, .ranks = 2},
    {.name = "a group starts at its end", .run = group_starts_at_its_end, .ranks = 2},
    {.name = "a group completes as one", .run = group_completes_as_one, .ranks = 3},
    {.name = "a pair is first in, first out", .run = pair_is_fifo, .ranks = 2},
    {.name = "a longer send hangs", .run = longer_send_hangs, .ranks = 2},
    {.name = "a longer receive hangs", .run = longer_receive_hangs, .ranks = 2},
    {.name = "a shorter receive truncates", .run = shorter_receive_truncates, .ranks = 2},
    {.name = "an empty send waits", .run = empty_send_waits, .ranks = 2},
    {.name = "send to self", .run = send_to_self, .ranks = 1},
    {.name = "the first use of a peer connects", .run = first_use_connects, .ranks = 2},
    {.name = "a failed group does nothing", .run = failed_group_does_nothing, .ranks = 2},
    {.name = "a group joins its streams", .run = group_joins_streams, .ranks = 2},
};

int main(void)
{
    return check_main("test_p2p", cases, sizeof cases / sizeof cases[0]);
}
