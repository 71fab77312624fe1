/* Communicators: how they form, what state they are in, how they end, and the faults that can be asked
 * for. */
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ncclResult_t start_init(ncclComm_t *comm, int rank, int ranks, shared *s)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    share_id(rank, s);
    return ncclCommInitRankConfig(comm, ranks, s->id, rank, &config);
}

/* User guide, ncclCommInitRank: "implicitly synchronizes with other ranks". User guide,
 * ncclCommGetAsyncError: while in progress no other function may be called. */
static void init_waits_for_all(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    int count = 0;
    OK(cudaSetDevice(rank));
    if (rank == 1)
        wait_step(s, 0, 1);
    CHECK_EQ(start_init(&comm, rank, 2, s), ncclInProgress);
    if (rank == 0) {
        CHECK(comm != NULL);
        CHECK(stays_in_progress(comm));
        CHECK_EQ(ncclCommCount(comm, &count), ncclInvalidArgument);
        CHECK_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
        CHECK_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
        CHECK_EQ(ncclSend(NULL, 0, ncclInt8, 1, comm, NULL), ncclInvalidArgument);
        say_step(s, 0, 1);
    }
    OK(settle(comm));
    OK(ncclCommCount(comm, &count));
    CHECK_EQ(count, 2);
    OK(ncclCommUserRank(comm, &count));
    CHECK_EQ(count, rank);
    OK(ncclCommCuDevice(comm, &count));
    CHECK_EQ(count, rank);
    OK(ncclCommDestroy(comm));
}

static void bad_arguments(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    share_id(rank, s);
    CHECK_EQ(ncclCommInitRank(&comm, 0, s->id, 0), ncclInvalidArgument);
    CHECK_EQ(ncclCommInitRank(&comm, 2, s->id, 2), ncclInvalidArgument);
    CHECK_EQ(ncclCommInitRank(NULL, 1, s->id, 0), ncclInvalidArgument);
    config.blocking = 2;
    CHECK_EQ(ncclCommInitRankConfig(&comm, 1, s->id, 0, &config), ncclInvalidArgument);
    memset(&config, 0, sizeof config);
    CHECK_EQ(ncclCommInitRankConfig(&comm, 1, s->id, 0, &config), ncclInvalidArgument);
    CHECK_EQ(ncclCommCount((ncclComm_t)(void *)&config, &rank), ncclInvalidArgument);
    CHECK_EQ(ncclCommAbort((ncclComm_t)(void *)&config), ncclInvalidArgument);
    OK(ncclCommInitRank(&comm, 1, s->id, 0));
    OK(ncclCommDestroy(comm));
    CHECK_EQ(ncclCommCount(comm, &rank), ncclInvalidArgument);
    CHECK_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
    OK(ncclCommDestroy(NULL));
}

/* NCCL, src/init.cc: "Duplicate GPU detected". */
static void one_gpu_for_two(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    OK(cudaSetDevice(3));
    CHECK_EQ(start_init(&comm, rank, 2, s), ncclInProgress);
    CHECK_EQ(settle(comm), ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comm), "Duplicate GPU") != NULL);
    OK(ncclCommAbort(comm));
}

/* User guide, "Environment Variables", NCCL_HOSTID: with different ones the ranks are on different hosts. */
static void one_gpu_on_two_hosts(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    setenv("NCCL_HOSTID", rank == 0 ? "here" : "there", 1);
    OK(cudaSetDevice(3));
    CHECK_EQ(start_init(&comm, rank, 2, s), ncclInProgress);
    OK(settle(comm));
    OK(ncclCommDestroy(comm)); /* an intra-node call: of this rank alone */
}

/* CUDA_VISIBLE_DEVICES: device 0 of two processes is not the same device. */
static void visible_devices(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    int count = 0;
    setenv("CUDA_VISIBLE_DEVICES", rank == 0 ? "5" : "2,9,3", 1);
    OK(cudaGetDeviceCount(&count));
    CHECK_EQ(count, 1);
    CHECK_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
    CHECK_EQ(start_init(&comm, rank, 2, s), ncclInProgress);
    OK(settle(comm));
    OK(ncclCommDestroy(comm));
}

/* NCCL, src/init.cc: "Mismatched NCCL version detected". */
static void mixed_versions(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    int version = 0;
    setenv("PSD_GPUSIM_NCCL_VERSION", rank == 0 ? "21805" : "22809", 1);
    OK(ncclGetVersion(&version));
    CHECK_EQ(version, rank == 0 ? 21805 : 22809);
    OK(cudaSetDevice(rank));
    CHECK_EQ(start_init(&comm, rank, 2, s), ncclInProgress);
    CHECK_EQ(settle(comm), ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comm), "version") != NULL);
    OK(ncclCommAbort(comm));
}

/* NCCL, src/bootstrap.cc: the root gives up, the ranks wait. Both say they are rank 0, or differ in the
 * number. */
static void wrong_rank_hangs(int rank, shared *s)
{
    ncclComm_t comms[2] = {NULL, NULL};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    share_id(rank, s);
    OK(cudaSetDevice(rank));
    CHECK_EQ(ncclCommInitRankConfig(&comms[0], 2, s->id, 0, &config), ncclInProgress);
    CHECK_EQ(ncclCommInitRankConfig(&comms[1], 2 + rank, s->other_id, rank, &config), ncclInProgress);
    CHECK(stays_in_progress(comms[0]));
    CHECK(stays_in_progress(comms[1]));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comms[0]));
    OK(ncclCommAbort(comms[1]));
}

/* User guide, "Fault Tolerance": ncclCommAbort "can be called at any point, during initialization". */
static void abort_in_init(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    CHECK_EQ(start_init(&comm, rank, 2, s), ncclInProgress);
    CHECK(stays_in_progress(comm));
    OK(ncclCommAbort(comm));
    CHECK_EQ(ncclCommCount(comm, &rank), ncclInvalidArgument);
}

/* PSD_GPUSIM_INIT_HANG: the peer of a rank that never arrives waits; so does that rank. */
static void init_that_never_finishes(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    OK(cudaSetDevice(rank));
    CHECK_EQ(start_init(&comm, rank, 2, s), ncclInProgress);
    CHECK(stays_in_progress(comm));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
}

typedef struct init_call {
    ncclComm_t comm;
    ncclUniqueId id;
    ncclResult_t result;
    atomic_bool done;
} init_call;

static void *blocking_init(void *arg)
{
    init_call *call = arg;
    call->result = ncclCommInitRank(&call->comm, 2, call->id, 0);
    atomic_store(&call->done, true);
    return NULL;
}

/* The same for a blocking communicator, from another thread. */
static void abort_blocking_init(int rank, shared *s)
{
    static init_call call;
    pthread_t thread;
    share_id(rank, s);
    call.id = s->id;
    CHECK_EQ(pthread_create(&thread, NULL, blocking_init, &call), 0);
    ncclComm_t comm = NULL;
    while ((comm = __atomic_load_n(&call.comm, __ATOMIC_ACQUIRE)) == NULL)
        usleep(500);
    ncclResult_t aborted;
    while ((aborted = ncclCommAbort(comm)) == ncclInvalidArgument)
        usleep(500);
    OK(aborted);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(call.result != ncclSuccess);
}

static void *synchronize(void *arg)
{
    return cudaStreamSynchronize(arg) == cudaSuccess ? NULL : arg;
}

/* ncclCommAbort "aborts any uncompleted operations": it frees the kernel that another thread waits for, and
 * the stream goes on; the peer's own kernel is not touched. */
static void abort_frees_a_kernel(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, rank);
    pthread_t thread;
    void *failed = NULL;
    OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, stream));
    OK(finish(stream));
    /* Each misses what the other does not send. */
    OK(ncclGroupStart());
    OK(ncclRecv(data, 16, ncclInt8, 1 - rank, comm, stream));
    OK(ncclSend(data, 16, ncclInt8, 1 - rank, comm, stream));
    OK(ncclGroupEnd());
    OK(finish(stream));
    OK(ncclRecv(data, 16, ncclInt8, 1 - rank, comm, stream));
    OK(cudaMemsetAsync(data, 9, 16, stream));
    CHECK(stays_pending(stream));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    if (rank == 1) {
        wait_step(s, 0, 2);
        CHECK(stays_pending(stream));
    }
    CHECK_EQ(pthread_create(&thread, NULL, synchronize, stream), 0);
    OK(ncclCommAbort(comm));
    CHECK_EQ(pthread_join(thread, &failed), 0);
    CHECK(failed == NULL);
    CHECK(all_bytes(data, 16, 9));
    say_step(s, rank, 2);
}

/* User guide, "Creating more communicators". */
static void split_halves(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 4, s, true), half = NULL, two = NULL;
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, 1 << rank);
    int value = 0;
    OK(ncclCommSplit(comm, rank / 2, -rank, &half, NULL)); /* in reversed order */
    OK(ncclCommUserRank(half, &value));
    CHECK_EQ(value, 1 - rank % 2);
    OK(ncclCommCount(half, &value));
    CHECK_EQ(value, 2);
    OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, half, stream));
    OK(finish(stream));
    CHECK(all_bytes(data, 16, rank < 2 ? 3 : 12));
    OK(ncclCommSplit(comm, rank < 2 ? 7 : NCCL_SPLIT_NOCOLOR, 0, &two, NULL));
    CHECK((two != NULL) == (rank < 2));
    CHECK_EQ(ncclCommSplit(comm, -2, 0, &two, NULL), ncclInvalidArgument);
    if (rank < 2) {
        OK(ncclCommUserRank(two, &value));
        CHECK_EQ(value, rank);
        OK(ncclCommDestroy(two));
    }
    OK(ncclCommDestroy(half));
    OK(ncclCommDestroy(comm));
}

/* User guide, ncclCommSplit: "needs to be called by all ranks", those without a color, too. */
static void split_waits_for_all(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, false), child = NULL;
    if (rank == 1)
        wait_step(s, 0, 1);
    CHECK_EQ(ncclCommSplit(comm, rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &child, NULL), ncclInProgress);
    if (rank == 0) {
        CHECK(stays_in_progress(comm));
        CHECK(child == NULL);
        say_step(s, 0, 1);
    }
    OK(settle(comm));
    CHECK((child != NULL) == (rank == 0));
    if (child != NULL)
        OK(ncclCommDestroy(child));
    OK(ncclCommDestroy(comm));
}

/* User guide, "Creating more communicators": a split is stopped by aborting the parent. */
static void abort_stops_split(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, false), child = NULL;
    if (rank == 0) {
        CHECK_EQ(ncclCommSplit(comm, 0, 0, &child, NULL), ncclInProgress);
        CHECK(stays_in_progress(comm));
    }
    OK(ncclCommAbort(comm));
    CHECK(child == NULL);
}

/* User guide, ncclCommFinalize: "an intra-node collective call"; in progress until the others come. */
static void finalize_waits(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, false);
    char *data = device_bytes(16, rank);
    if (rank == 1)
        wait_step(s, 0, 1);
    CHECK_EQ(ncclCommFinalize(comm), ncclInProgress);
    if (rank == 0) {
        CHECK(stays_in_progress(comm));
        say_step(s, 0, 1);
    }
    OK(settle(comm));
    CHECK_EQ(ncclSend(data, 16, ncclInt8, 1 - rank, comm, NULL), ncclInvalidUsage);
    CHECK_EQ(ncclCommFinalize(comm), ncclInvalidUsage);
    OK(ncclCommDestroy(comm));
}

/* User guide, ncclCommFinalize: "all uncompleted operations ... are flushed". */
static void finalize_flushes(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, false);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, rank + 1);
    if (rank == 0)
        ncclSend(data, 16, ncclInt8, 1, comm, stream);
    else
        ncclRecv(data, 16, ncclInt8, 0, comm, stream);
    OK(settle(comm));
    OK(finish(stream));
    if (rank == 0) {
        ncclSend(data, 16, ncclInt8, 1, comm, stream);
        OK(settle(comm));
    }
    CHECK_EQ(ncclCommFinalize(comm), ncclInProgress);
    if (rank == 0)
        CHECK(stays_in_progress(comm));
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
}

/* PSD_GPUSIM_ASYNC_ERROR=0:2: user guide, "Asynchronous errors and error handling": the operation "will
 * usually not progress and never complete"; the communicator should be aborted. */
static void asynchronous_error(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, false);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, rank);
    for (int i = 0; i < 2; i++) {
        ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, stream);
        ncclResult_t state = settle(comm);
        CHECK(state == ncclSuccess || (i == 1 && rank == 0 && state == ncclRemoteError));
        if (i == 0)
            OK(finish(stream));
    }
    CHECK(stays_pending(stream));
    if (rank == 0) {
        CHECK_EQ(settle(comm), ncclRemoteError);
        CHECK_EQ(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, stream), ncclRemoteError);
        CHECK_EQ(ncclCommDestroy(comm), ncclRemoteError);
    } else {
        OK(settle(comm)); /* nobody tells it */
    }
    say_step(s, rank, 1);
    wait_step(s, 1 - rank, 1);
    OK(ncclCommAbort(comm));
    OK(finish(stream));
}

static void *abort_thread(void *arg)
{
    void **call = arg;
    ncclCommAbort(call[0]);
    atomic_store((atomic_bool *)call[1], true);
    return NULL;
}

/* PSD_GPUSIM_ABORT_HANG */
static void abort_that_hangs(int rank, shared *s)
{
    static atomic_bool returned;
    static void *call[2];
    ncclComm_t comm = make_comm(rank, 1, s, false);
    pthread_t thread;
    call[0] = comm;
    call[1] = &returned;
    CHECK_EQ(pthread_create(&thread, NULL, abort_thread, call), 0);
    pthread_detach(thread);
    for (int i = 0; i < 200; i++) {
        CHECK(!atomic_load(&returned));
        usleep(500);
    }
}

/* PSD_GPUSIM_SLOW: the peer waits; its own result is right. */
static void slow_peer(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, 1);
    OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, stream));
    CHECK(stays_pending(stream));
    OK(finish(stream));
    CHECK(all_bytes(data, 16, 2));
    OK(ncclCommDestroy(comm));
}

/* NCCL, src/misc/argcheck.cc (NCCL_CHECK_POINTERS=1). User guide, "Data Pointers": registered host memory is
 * fine, memory of another device is not. */
static void pointers(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 1, s, true);
    char host[64], *data = device_bytes(64, 4), *other, *locked;
    OK(cudaSetDevice(1));
    other = device_bytes(64, 0);
    OK(cudaSetDevice(0));
    OK(cudaMallocHost((void **)&locked, 64));
    CHECK_EQ(ncclAllReduce(data, host, 64, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(host, data, 64, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(NULL, data, 64, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(data, other, 64, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(data, data, 65, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(data, data, 64, (ncclDataType_t)ncclNumTypes, ncclSum, comm, NULL),
             ncclInvalidArgument);
    CHECK_EQ(ncclBroadcast(data, data, 64, ncclInt8, 1, comm, NULL), ncclInvalidArgument);
    OK(ncclAllReduce(data, locked, 64, ncclInt8, ncclSum, comm, NULL));
    OK(cudaDeviceSynchronize());
    CHECK(locked[63] == 4);
    OK(cudaFreeHost(locked));
    OK(ncclCommDestroy(comm));
}

/* Without the check: Runtime API, cudaErrorIllegalAddress: every later call returns it. */
static void unchecked_pointers(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 1, s, true);
    cudaStream_t stream = make_stream();
    char host[64];
    void *more = NULL;
    OK(ncclAllReduce(host, host, 64, ncclInt8, ncclSum, comm, stream));
    CHECK_EQ(finish(stream), cudaErrorIllegalAddress);
    CHECK_EQ(cudaMalloc(&more, 64), cudaErrorIllegalAddress);
    CHECK_EQ(ncclAllReduce(host, host, 64, ncclInt8, ncclSum, comm, stream), ncclUnhandledCudaError);
    CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
}

static void registration(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 1, s, true);
    char host[64];
    void *memory = NULL, *handle = NULL, *second = NULL;
    OK(ncclMemAlloc(&memory, 1000));
    OK(ncclCommRegister(comm, memory, 1000, &handle));
    OK(ncclCommRegister(comm, (char *)memory + 100, 900, &second));
    CHECK_EQ(ncclCommRegister(comm, host, 64, &second), ncclInvalidArgument);
    CHECK_EQ(ncclCommRegister(comm, memory, 1001, &second), ncclInvalidArgument);
    OK(cudaSetDevice(1));
    void *other = device_bytes(64, 0);
    CHECK_EQ(ncclCommRegister(comm, other, 64, &second), ncclInvalidArgument);
    OK(ncclCommDeregister(comm, handle));
    CHECK_EQ(ncclCommDeregister(comm, handle), ncclInvalidArgument);
    OK(ncclCommDestroy(comm)); /* gives up what is left */
    OK(ncclMemFree(memory));
}

/* User guide, "Management Of Multiple GPUs From One Thread". */
static void one_thread_many_devices(int rank, shared *s)
{
    ncclComm_t comms[4];
    cudaStream_t streams[4];
    char *data[4];
    (void)rank;
    (void)s;
    OK(ncclCommInitAll(comms, 4, NULL));
    OK(ncclGroupStart());
    for (int i = 0; i < 4; i++) {
        OK(cudaSetDevice(i));
        streams[i] = make_stream();
        data[i] = device_bytes(16, 1 << i);
        OK(ncclAllReduce(data[i], data[i], 16, ncclInt8, ncclSum, comms[i], streams[i]));
    }
    OK(ncclGroupEnd());
    for (int i = 0; i < 4; i++) {
        OK(finish(streams[i]));
        CHECK(all_bytes(data[i], 16, 15));
    }
    CHECK_EQ(ncclAllReduce(data[0], data[0], 16, ncclInt8, ncclSum, comms[0], streams[1]),
             ncclUnhandledCudaError);
    OK(ncclGroupStart());
    for (int i = 0; i < 4; i++)
        OK(ncclCommDestroy(comms[i]));
    OK(ncclGroupEnd());
}

/* NCCL, src/group.cc: blocking and non-blocking communicators do not mix; user guide, "Group Calls": nor do
 * init and operations. */
static void groups_do_not_mix(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 1, s, true), other = NULL, third = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    char *data = device_bytes(16, 0);
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    ncclCommInitRankConfig(&other, 1, id, 0, &config);
    OK(settle(other));
    OK(ncclGroupStart());
    OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, NULL));
    CHECK_EQ(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, other, NULL), ncclInvalidArgument);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidArgument);
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, NULL));
    OK(ncclCommInitRank(&third, 1, id, 0));
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
    OK(ncclCommDestroy(comm));
    OK(ncclCommDestroy(other));
}

/* PSD_GPUSIM_INLINE_LAUNCH: as older versions, a connected group is launched by ncclGroupEnd itself. */
static void inline_launch(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 1, s, false);
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, 1);
    CHECK_EQ(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, stream), ncclInProgress);
    OK(settle(comm));
    OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, stream));
    OK(finish(stream));
    OK(ncclCommDestroy(comm));
}

static void *late_send(void *arg)
{
    void **call = arg;
    ncclSend(call[1], 16, ncclInt8, 1, call[0], NULL);
    return NULL;
}

/* User guide, "Thread Safety": one thread at a time. */
static void two_threads(int rank, shared *s)
{
    ncclComm_t comm = make_comm(rank, 2, s, true);
    char *data = device_bytes(16, rank);
    void *call[2] = {comm, data};
    pthread_t thread;
    int count;
    ncclResult_t result = ncclSuccess;
    if (rank == 0) {
        CHECK_EQ(pthread_create(&thread, NULL, late_send, call), 0);
        while (result == ncclSuccess) { /* until the other thread is inside its call */
            result = ncclCommCount(comm, &count);
            usleep(500);
        }
        CHECK_EQ(result, ncclInvalidUsage);
        say_step(s, 0, 1);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    } else {
        wait_step(s, 0, 1);
        OK(ncclRecv(data, 16, ncclInt8, 0, comm, NULL));
    }
    OK(cudaDeviceSynchronize());
    OK(ncclCommDestroy(comm));
}

/* Two communicators in opposite orders on two streams: fine where kernels run side by side, a deadlock where
 * the device runs one at a time (PSD_GPUSIM_SERIAL). User guide, "Using multiple NCCL communicators
 * concurrently". */
static void opposite_orders(int rank, shared *s)
{
    ncclComm_t comms[2] = {make_comm(rank, 2, s, true), NULL};
    cudaStream_t streams[2] = {make_stream(), make_stream()};
    char *data = device_bytes(32, rank);
    OK(ncclCommSplit(comms[0], 0, rank, &comms[1], NULL));
    for (int i = 0; i < 2; i++) {
        OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comms[i], streams[i]));
        OK(finish(streams[i]));
    }
    for (int i = 0; i < 2; i++) {
        int which = rank == 0 ? i : 1 - i;
        OK(ncclAllReduce(data + 16 * which, data + 16 * which, 16, ncclInt8, ncclSum, comms[which],
                         streams[which]));
    }
    if (getenv("PSD_GPUSIM_SERIAL") != NULL) {
        CHECK(stays_pending(streams[0]));
        CHECK(stays_pending(streams[1]));
        say_step(s, rank, 1);
        wait_step(s, 1 - rank, 1);
        OK(ncclCommAbort(comms[rank])); /* the one whose kernel runs */
        OK(ncclCommAbort(comms[1 - rank]));
        return;
    }
    OK(finish(streams[0]));
    OK(finish(streams[1]));
    OK(ncclCommDestroy(comms[1]));
    OK(ncclCommDestroy(comms[0]));
}

static int files_in(const char *dir)
{
    int count = 0;
    DIR *list = opendir(dir);
    CHECK(list != NULL);
    for (struct dirent *e = readdir(list); e != NULL; e = readdir(list))
        count += e->d_name[0] != '.';
    closedir(list);
    return count;
}

/* A killed rank's peer hangs until it aborts (nothing tells a kernel of a dead peer in the same host); names
 * of communicators are gone once they are formed, and those of dead processes at the next start. */
static void killed_rank(int rank, shared *s)
{
    char *dir = s->text;
    if (rank == 0) {
        const char *tmp = getenv("TMPDIR");
        snprintf(dir, sizeof s->text, "%s/gpusim-test-XXXXXX", tmp != NULL ? tmp : "/tmp");
        CHECK(mkdtemp(dir) != NULL);
    }
    share_id(rank, s);
    setenv("PSD_GPUSIM_DIR", dir, 1);
    ncclComm_t comm = NULL, alone = NULL;
    OK(cudaSetDevice(rank));
    OK(ncclCommInitRank(&comm, 2, s->id, rank));
    cudaStream_t stream = make_stream();
    char *data = device_bytes(16, rank);
    OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, stream));
    OK(finish(stream));
    say_step(s, rank, 2);
    wait_step(s, 1 - rank, 2);
    CHECK_EQ(files_in(dir), 0);
    say_step(s, rank, 3);
    wait_step(s, 1 - rank, 3);
    if (rank == 1) { /* dies within the init of another communicator */
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclUniqueId id;
        config.blocking = 0;
        OK(ncclGetUniqueId(&id));
        ncclCommInitRankConfig(&alone, 2, id, 0, &config);
        while (files_in(dir) == 0)
            usleep(500);
        raise(SIGKILL);
    }
    OK(ncclAllReduce(data, data, 16, ncclInt8, ncclSum, comm, stream));
    CHECK(stays_pending(stream));
    OK(ncclCommAbort(comm));
    OK(finish(stream));
    while (files_in(dir) == 0)
        usleep(500);
    ncclUniqueId id;
    do { /* the dead process's lock goes with it */
        OK(ncclGetUniqueId(&id));
        OK(ncclCommInitRank(&comm, 1, id, 0));
        OK(ncclCommDestroy(comm));
    } while (files_in(dir) > 0);
    CHECK_EQ(rmdir(dir), 0);
}

/* An orderly end within an init leaves no file, either. */
static void exit_in_init(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    CHECK_EQ(start_init(&comm, rank, 2, s), ncclInProgress);
    CHECK(stays_in_progress(comm));
}

/* User guide, "Environment Variables", NCCL_DEBUG, NCCL_DEBUG_FILE (%p is the process). */
static void log_file(int rank, shared *s)
{
    char path[300], pattern[300], text[1000] = "";
    const char *tmp = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    snprintf(path, sizeof path, "%s/gpusim-log-%d", tmp, (int)getpid());
    snprintf(pattern, sizeof pattern, "%s/gpusim-log-%%p", tmp);
    setenv("NCCL_DEBUG_FILE", pattern, 1);
    ncclComm_t comm = make_comm(rank, 1, s, true);
    CHECK_EQ(ncclSend(NULL, 1, ncclInt8, 3, comm, NULL), ncclInvalidArgument);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    unlink(path);
    CHECK(strstr(text, "NCCL version 2.") != NULL);
    CHECK(strstr(text, "NCCL INFO comm") != NULL);
    CHECK(strstr(text, "NCCL WARN Send : invalid root 3") != NULL);
    CHECK(strstr(ncclGetLastError(comm), "invalid root 3") != NULL);
    OK(ncclCommDestroy(comm));
}

static void no_device(int rank, shared *s)
{
    ncclComm_t comm = NULL;
    share_id(rank, s);
    CHECK_EQ(ncclCommInitRank(&comm, 1, s->id, 0), ncclUnhandledCudaError);
    CHECK(strstr(ncclGetLastError(NULL), "no CUDA-capable device") != NULL);
    CHECK(comm == NULL);
}

static const check_case cases[] = {
    {.name = "init waits for all ranks", .run = init_waits_for_all, .ranks = 2},
    {.name = "bad arguments and dead handles", .run = bad_arguments, .ranks = 1},
    {.name = "one GPU for two ranks", .run = one_gpu_for_two, .ranks = 2},
    {.name = "one GPU, two hosts", .run = one_gpu_on_two_hosts, .ranks = 2},
    {.name = "visible devices", .run = visible_devices, .ranks = 2},
    {.name = "mixed versions", .run = mixed_versions, .ranks = 2},
    {.name = "a rank twice, or another number of ranks, hangs", .run = wrong_rank_hangs, .ranks = 2},
    {.name = "abort in init", .run = abort_in_init, .ranks = 1},
    {.name = "init that never finishes",
     .run = init_that_never_finishes,
     .ranks = 2,
     .env = {"PSD_GPUSIM_INIT_HANG=1"}},
    {.name = "abort of a blocking init", .run = abort_blocking_init, .ranks = 1},
    {.name = "abort frees a kernel", .run = abort_frees_a_kernel, .ranks = 2},
    {.name = "split", .run = split_halves, .ranks = 4},
    {.name = "split waits for all ranks", .run = split_waits_for_all, .ranks = 2},
    {.name = "abort stops a split", .run = abort_stops_split, .ranks = 2},
    {.name = "finalize waits for the host's ranks", .run = finalize_waits, .ranks = 2},
    {.name = "finalize flushes", .run = finalize_flushes, .ranks = 2},
    {.name = "an asynchronous error",
     .run = asynchronous_error,
     .ranks = 2,
     .env = {"PSD_GPUSIM_ASYNC_ERROR=0:2"}},
    {.name = "an abort that hangs",
     .run = abort_that_hangs,
     .ranks = 1,
     .env = {"PSD_GPUSIM_ABORT_HANG=all"}},
    {.name = "a slow peer", .run = slow_peer, .ranks = 2, .env = {"PSD_GPUSIM_SLOW=1:1500"}},
    {.name = "pointers", .run = pointers, .ranks = 1},
    {.name = "unchecked pointers", .run = unchecked_pointers, .ranks = 1, .env = {"NCCL_CHECK_POINTERS=0"}},
    {.name = "registration", .run = registration, .ranks = 1},
    {.name = "one thread, many devices", .run = one_thread_many_devices, .ranks = 1},
    {.name = "groups do not mix", .run = groups_do_not_mix, .ranks = 1},
    {.name = "launch by ncclGroupEnd",
     .run = inline_launch,
     .ranks = 1,
     .env = {"PSD_GPUSIM_INLINE_LAUNCH=1"}},
    {.name = "two threads", .run = two_threads, .ranks = 2},
    {.name = "two communicators in opposite orders", .run = opposite_orders, .ranks = 2},
    {.name = "the same where kernels are serial",
     .run = opposite_orders,
     .ranks = 2,
     .env = {"PSD_GPUSIM_SERIAL=1"}},
    {.name = "a killed rank", .run = killed_rank, .ranks = 2, .is_killed = {false, true}},
    {.name = "exit in init", .run = exit_in_init, .ranks = 1},
    {.name = "the log", .run = log_file, .ranks = 1, .env = {"NCCL_DEBUG=INFO"}},
    {.name = "no device", .run = no_device, .ranks = 1, .env = {"PSD_GPUSIM_DEVICES=0"}},
};

int main(void)
{
    return check_main("test_comm", cases, sizeof cases / sizeof cases[0]);
}
