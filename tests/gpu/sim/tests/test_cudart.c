/* The simulated CUDA runtime: streams, events, memory, errors. */
#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A host function that holds its stream until it is released. */
typedef struct gate {
    atomic_bool entered, open;
} gate;

static void hold(void *arg)
{
    gate *g = arg;
    atomic_store(&g->entered, true);
    while (!atomic_load(&g->open))
        usleep(500);
}

static void close_stream(cudaStream_t stream, gate *g)
{
    *g = (gate){0};
    OK(cudaLaunchHostFunc(stream, hold, g));
}

static void open_stream(gate *g)
{
    atomic_store(&g->open, true);
}

/* Runtime API, cudaStreamQuery, cudaStreamSynchronize; CUDA C++ Programming Guide, "Streams": in order within
 * a stream, independent between streams. */
static void streams_are_ordered(int rank, shared *s)
{
    gate g;
    (void)rank;
    (void)s;
    cudaStream_t a = make_stream(), b = make_stream();
    char *data = device_bytes(64, 1);
    OK(cudaStreamQuery(a));
    close_stream(a, &g);
    OK(cudaMemsetAsync(data, 2, 32, a));
    OK(cudaMemsetAsync(data, 3, 16, a));
    OK(cudaMemsetAsync(data + 32, 4, 32, b));
    OK(finish(b));
    CHECK(stays_pending(a));
    open_stream(&g);
    OK(cudaStreamSynchronize(a));
    CHECK(all_bytes(data, 16, 3));
    CHECK(all_bytes(data + 16, 16, 2));
    CHECK(all_bytes(data + 32, 32, 4));
    OK(cudaStreamDestroy(a));
    CHECK_EQ(cudaStreamQuery(a), cudaErrorInvalidResourceHandle);
    OK(cudaStreamDestroy(b));
}

/* Runtime API, cudaStreamDestroy: returns at once, the work is done. */
static void destroyed_stream_finishes(int rank, shared *s)
{
    gate g;
    (void)rank;
    (void)s;
    cudaStream_t a = make_stream(), b = make_stream();
    cudaEvent_t event;
    char *data = device_bytes(64, 1);
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    close_stream(a, &g);
    OK(cudaMemsetAsync(data, 2, 64, a));
    OK(cudaEventRecord(event, a));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamWaitEvent(b, event, 0));
    OK(cudaEventDestroy(event)); /* may go while it is waited for */
    CHECK(stays_pending(b));
    open_stream(&g);
    OK(finish(b));
    CHECK(all_bytes(data, 64, 2));
}

/* Runtime API, cudaEventRecord, cudaEventQuery, cudaStreamWaitEvent. */
static void events(int rank, shared *s)
{
    gate g, later;
    (void)rank;
    (void)s;
    cudaStream_t a = make_stream(), b = make_stream();
    cudaEvent_t event, timed;
    float ms = -1;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaEventQuery(event)); /* never recorded: complete */
    OK(cudaEventSynchronize(event));
    OK(cudaStreamWaitEvent(b, event, 0));
    OK(cudaStreamQuery(b));
    close_stream(a, &g);
    OK(cudaEventRecord(event, a));
    CHECK_EQ(cudaEventQuery(event), cudaErrorNotReady);
    OK(cudaStreamWaitEvent(b, event, 0));
    CHECK(stays_pending(b));
    close_stream(a, &later);
    OK(cudaEventRecord(event, a)); /* b still waits for the first */
    open_stream(&g);
    OK(finish(b));
    CHECK_EQ(cudaEventQuery(event), cudaErrorNotReady);
    open_stream(&later);
    OK(cudaEventSynchronize(event));
    CHECK_EQ(cudaEventElapsedTime(&ms, event, event), cudaErrorInvalidResourceHandle);
    OK(cudaEventCreate(&timed));
    OK(cudaEventRecord(timed, a));
    OK(cudaEventSynchronize(timed));
    OK(cudaEventElapsedTime(&ms, timed, timed));
    CHECK(ms == 0);
    OK(cudaSetDevice(1)); /* "must be on the same CUDA context" */
    cudaStream_t other = make_stream();
    CHECK_EQ(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
    OK(cudaStreamWaitEvent(other, event, 0));
    OK(cudaEventDestroy(event));
    CHECK_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(timed));
}

/* Runtime API, "Stream synchronization behavior", Legacy default stream. */
static void legacy_stream(int rank, shared *s)
{
    gate g;
    (void)rank;
    (void)s;
    cudaStream_t blocking, apart = make_stream();
    OK(cudaStreamCreate(&blocking));
    close_stream(blocking, &g);
    char *data = NULL;
    OK(cudaMalloc((void **)&data, 64));
    OK(cudaMemsetAsync(data, 1, 64, NULL)); /* waits for the blocking stream */
    CHECK(stays_pending(NULL));
    OK(cudaStreamQuery(apart));
    OK(cudaMemsetAsync(data + 32, 2, 32, apart));
    OK(finish(apart));
    open_stream(&g);
    OK(finish(NULL));
    CHECK(all_bytes(data, 64, 1));
    close_stream(NULL, &g);
    OK(cudaMemsetAsync(data, 3, 64, blocking)); /* waits for the legacy stream */
    CHECK(stays_pending(blocking));
    open_stream(&g);
    OK(finish(blocking));
    CHECK(all_bytes(data, 64, 3));
}

static void *other_thread(void *arg)
{
    (void)arg;
    return cudaStreamQuery(cudaStreamPerThread) == cudaSuccess ? NULL : arg;
}

/* The same, Per-thread default stream. */
static void per_thread_stream(int rank, shared *s)
{
    gate g;
    pthread_t thread;
    void *failed = NULL;
    (void)rank;
    (void)s;
    close_stream(cudaStreamPerThread, &g);
    CHECK_EQ(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady);
    CHECK_EQ(pthread_create(&thread, NULL, other_thread, &g), 0);
    CHECK_EQ(pthread_join(thread, &failed), 0);
    CHECK(failed == NULL);
    open_stream(&g);
    OK(cudaStreamSynchronize(cudaStreamPerThread));
}

static int order[4], order_count;

static void note(void *arg)
{
    order[order_count++] = *(int *)arg;
}

static void calls_cuda(void *arg)
{
    void *memory = NULL;
    cudaError_t *errors = arg;
    errors[0] = cudaMalloc(&memory, 16);
    errors[1] = cudaStreamSynchronize(NULL);
    errors[2] = cudaSetDevice(0);
}

/* Runtime API, cudaLaunchHostFunc: in stream order, and without CUDA calls inside. */
static void host_functions(int rank, shared *s)
{
    (void)rank;
    (void)s;
    cudaStream_t a = make_stream();
    int values[4] = {0, 1, 2, 3};
    cudaError_t errors[3] = {cudaSuccess};
    for (int i = 0; i < 4; i++)
        OK(cudaLaunchHostFunc(a, note, &values[i]));
    OK(cudaLaunchHostFunc(a, calls_cuda, errors));
    OK(cudaStreamSynchronize(a));
    CHECK_EQ(order_count, 4);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(order[i], i);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(errors[i], cudaErrorNotPermitted);
    CHECK_EQ(cudaLaunchHostFunc(a, NULL, NULL), cudaErrorInvalidValue);
}

/* Runtime API, "API synchronization behavior", Memcpy. */
static void copies(int rank, shared *s)
{
    gate g;
    (void)rank;
    (void)s;
    cudaStream_t a = make_stream();
    char pageable[64], *locked, *data = device_bytes(64, 1);
    memset(pageable, 2, sizeof pageable);
    OK(cudaMallocHost((void **)&locked, 64));
    memset(locked, 3, 64);
    close_stream(a, &g);
    OK(cudaMemcpyAsync(data, pageable, 32, cudaMemcpyHostToDevice, a)); /* staged */
    memset(pageable, 9, sizeof pageable);
    OK(cudaMemcpyAsync(data + 32, locked, 32, cudaMemcpyHostToDevice, a)); /* read when it runs */
    memset(locked, 4, 64);
    CHECK(stays_pending(a));
    open_stream(&g);
    OK(cudaMemcpyAsync(pageable, data, 64, cudaMemcpyDeviceToHost, a)); /* complete on return */
    CHECK(pageable[0] == 2 && pageable[31] == 2 && pageable[32] == 4 && pageable[63] == 4);
    CHECK_EQ(cudaMemcpyAsync(pageable, data, 65, cudaMemcpyDeviceToHost, a), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpyAsync(pageable, data, 64, cudaMemcpyHostToDevice, a), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpyAsync(data, pageable, 64, cudaMemcpyDeviceToDevice, a), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemsetAsync(pageable, 0, 64, a), cudaErrorInvalidValue);
    OK(cudaMemcpyAsync(locked, data, 64, cudaMemcpyDefault, a));
    OK(cudaStreamSynchronize(a));
    CHECK(locked[0] == 2 && locked[63] == 4);
    OK(cudaFreeHost(locked));
}

static void *copy_in(void *arg)
{
    static char pageable[16] = {7, 7, 7, 7};
    return cudaMemcpy(arg, pageable, 16, cudaMemcpyHostToDevice) == cudaSuccess ? NULL : arg;
}

/* cudaMemcpy from pageable memory first waits for the default stream, and so for every blocking one. */
static void copy_waits(int rank, shared *s)
{
    gate g;
    pthread_t thread;
    void *failed = NULL;
    (void)rank;
    (void)s;
    cudaStream_t a;
    OK(cudaStreamCreate(&a));
    char *data = device_bytes(16, 1), got[16];
    close_stream(a, &g);
    CHECK_EQ(pthread_create(&thread, NULL, copy_in, data), 0);
    while (cudaStreamQuery(NULL) == cudaSuccess) /* until the copy is at it */
        usleep(500);
    CHECK(stays_pending(NULL));
    CHECK(pthread_tryjoin_np(thread, &failed) != 0);
    open_stream(&g);
    CHECK_EQ(pthread_join(thread, &failed), 0);
    CHECK(failed == NULL);
    read_back(got, data, sizeof got);
    CHECK(got[0] == 7);
}

/* Runtime API, cudaPointerGetAttributes, cudaMalloc, cudaFree. */
static void memory(int rank, shared *s)
{
    struct cudaPointerAttributes at;
    size_t before, after, total;
    void *first = NULL, *second = NULL;
    static char host[4096];
    (void)rank;
    (void)s;
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc(&first, 1000));
    OK(cudaMemGetInfo(&after, NULL));
    CHECK_EQ(before - after, 1000);
    CHECK(((size_t)first & 255) == 0);
    CHECK(!all_bytes(first, 1000, 0)); /* "not cleared" */
    OK(cudaSetDevice(2));
    OK(cudaMalloc(&second, 1000));
    OK(cudaPointerGetAttributes(&at, (char *)first + 999));
    CHECK(at.type == cudaMemoryTypeDevice && at.device == 0 && at.devicePointer == (char *)first + 999);
    OK(cudaPointerGetAttributes(&at, second));
    CHECK(at.type == cudaMemoryTypeDevice && at.device == 2);
    OK(cudaPointerGetAttributes(&at, host));
    CHECK(at.type == cudaMemoryTypeUnregistered && at.devicePointer == NULL);
    OK(cudaHostRegister(host, sizeof host, cudaHostRegisterDefault));
    CHECK_EQ(cudaHostRegister(host + 10, 10, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaPointerGetAttributes(&at, host + 100));
    CHECK(at.type == cudaMemoryTypeHost);
    OK(cudaHostUnregister(host));
    CHECK_EQ(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
    CHECK_EQ(cudaFree((char *)first + 1), cudaErrorInvalidValue);
    CHECK_EQ(cudaFree(host), cudaErrorInvalidValue);
    OK(cudaFree(NULL));
    OK(cudaFree(first));
    CHECK_EQ(cudaFree(first), cudaErrorInvalidValue);
    OK(cudaFree(second));
    CHECK_EQ(cudaMalloc(&first, total + 1), cudaErrorMemoryAllocation);
    CHECK_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaGetLastError());
}

static void *free_memory(void *arg)
{
    return cudaFree(arg) == cudaSuccess ? NULL : arg;
}

/* cudaFree waits for the device's work. */
static void free_waits(int rank, shared *s)
{
    gate g;
    pthread_t thread;
    void *failed = NULL;
    struct cudaPointerAttributes at;
    (void)rank;
    (void)s;
    cudaStream_t a = make_stream();
    char *data = device_bytes(64, 1);
    close_stream(a, &g);
    CHECK_EQ(pthread_create(&thread, NULL, free_memory, data), 0);
    CHECK(stays_pending(a));
    OK(cudaPointerGetAttributes(&at, data));
    CHECK(at.type == cudaMemoryTypeDevice);
    open_stream(&g);
    CHECK_EQ(pthread_join(thread, &failed), 0);
    CHECK(failed == NULL);
}

static void no_device(int rank, shared *s)
{
    int count = -1;
    void *memory = NULL;
    (void)rank;
    (void)s;
    CHECK_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    CHECK_EQ(cudaMalloc(&memory, 1), cudaErrorNoDevice);
    CHECK(strcmp(cudaGetErrorName(cudaGetLastError()), "cudaErrorNoDevice") == 0);
}

static void old_driver(int rank, shared *s)
{
    int count = -1, version = -1;
    (void)rank;
    (void)s;
    CHECK_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    OK(cudaDriverGetVersion(&version));
    CHECK_EQ(version, atoi(getenv("PSD_GPUSIM_DRIVER_VERSION")));
    OK(cudaRuntimeGetVersion(&version));
    CHECK_EQ(version, CUDART_VERSION);
}

static void devices(int rank, shared *s)
{
    int count = 0, value = 0;
    char id[32], other[32];
    (void)rank;
    (void)s;
    OK(cudaGetDeviceCount(&count));
    CHECK_EQ(count, 3);
    CHECK_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
    CHECK_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
    OK(cudaDeviceGetPCIBusId(id, sizeof id, 1));
    OK(cudaDeviceGetPCIBusId(other, sizeof other, 2));
    CHECK(strcmp(id, other) != 0);
    OK(cudaDeviceGetByPCIBusId(&value, id));
    CHECK_EQ(value, 1);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK_EQ(value, 9);
}

static const check_case cases[] = {
    {.name = "streams are ordered", .run = streams_are_ordered, .ranks = 1},
    {.name = "a destroyed stream finishes", .run = destroyed_stream_finishes, .ranks = 1},
    {.name = "events", .run = events, .ranks = 1},
    {.name = "the legacy default stream", .run = legacy_stream, .ranks = 1},
    {.name = "the per-thread default stream", .run = per_thread_stream, .ranks = 1},
    {.name = "host functions", .run = host_functions, .ranks = 1},
    {.name = "copies", .run = copies, .ranks = 1},
    {.name = "a copy waits for the default stream", .run = copy_waits, .ranks = 1},
    {.name = "memory", .run = memory, .ranks = 1},
    {.name = "free waits for the device", .run = free_waits, .ranks = 1},
    {.name = "no device", .run = no_device, .ranks = 1, .env = {"PSD_GPUSIM_DEVICES=0"}},
    {.name = "an old driver", .run = old_driver, .ranks = 1, .env = {"PSD_GPUSIM_DRIVER_VERSION=11080"}},
    {.name = "no driver", .run = old_driver, .ranks = 1, .env = {"PSD_GPUSIM_DRIVER_VERSION=0"}},
    {.name = "devices", .run = devices, .ranks = 1, .env = {"PSD_GPUSIM_DEVICES=3"}},
};

int main(void)
{
    return check_main("test_cudart", cases, sizeof cases / sizeof cases[0]);
}
