/* Streams of the caller's own through psd.h, on a device or over the simulator, 2 ranks: what waits for what, and that the
 * host does not. Ends with "streams: N passed, N failed" from rank 0. Exit: 0, 1 something failed, 4 did not join. */
#include <dlfcn.h>
#include <psd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000, NON_BLOCKING = 1 };

static psd_ctx *ctx;
static int32_t rank;
static int passed, failed;

static void check_at(int line, int holds, const char *what)
{
    passed += holds != 0;
    failed += holds == 0;
    if (!holds)
        printf("streams: rank %d: FAIL line %d: %s; last error: %s\n", rank, line, what, psd_last_error());
}

#define CHECK(condition) check_at(__LINE__, condition, #condition)
#define OK(call)         CHECK((call) == PSD_OK)

static int (*destroy)(void *); /* cudaStreamDestroy */

static void *make_stream(void)
{
    int (*create)(void **, unsigned) = NULL;
    int (*set_device)(int) = NULL;
    void *stream = NULL;
    const char *given = getenv("PSD_CUDART_LIBRARY");
    void *library =
        dlopen(given != NULL && given[0] != '\0' ? given : "libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) {
        *(void **)&set_device = dlsym(library, "cudaSetDevice");
        *(void **)&create = dlsym(library, "cudaStreamCreateWithFlags");
        *(void **)&destroy = dlsym(library, "cudaStreamDestroy");
    }
    if (set_device == NULL || create == NULL || destroy == NULL || set_device(psd_device_index(ctx)) != 0 ||
        create(&stream, NON_BLOCKING) != 0)
        exit((fprintf(stderr, "streams: no CUDA stream\n"), 4));
    return stream;
}

static psd_tensor alloc(void)
{
    psd_tensor t = {0};
    OK(psd_tensor_alloc(ctx, (const int64_t[]){COUNT}, 1, PSD_F32, "t", &t));
    return t;
}

static float out[COUNT];

static void set(psd_tensor *t, float value, const psd_opts *opts)
{
    psd_tensor host = psd_tensor_1d(out, COUNT, PSD_F32, "host");
    for (int i = 0; i < COUNT; i++)
        out[i] = value;
    OK(psd_tensor_copy(ctx, t, &host, opts));
}

static int holds(const psd_tensor *t, float value, const psd_opts *opts)
{
    psd_tensor host = psd_tensor_1d(out, COUNT, PSD_F32, "host");
    int right = psd_tensor_copy(ctx, &host, t, opts) == PSD_OK;
    for (int i = 0; i < COUNT; i++)
        right = right && out[i] == value;
    return right;
}

/* All ranks are here, on the host. */
static void meet(void)
{
    psd_work work;
    OK(psd_ibarrier(ctx, PSD_WORLD, NULL, &work));
    OK(psd_synchronize(ctx, work, 0));
}

static void own_stream(psd_tensor *t, const psd_opts *opts)
{
    psd_work work;
    set(t, (float)(rank + 1), opts);
    OK(psd_iall_reduce(ctx, PSD_WORLD, t, t, PSD_SUM, opts, &work));
    OK(psd_wait(ctx, work, 0));
    CHECK(psd_wait(ctx, work, 0) == PSD_ERR_STALE);
    CHECK(holds(t, 3, opts));
    OK(psd_all_reduce(ctx, PSD_WORLD, t, t, PSD_SUM, opts)); /* blocking: queued */
    CHECK(holds(t, 6, opts));
}

static void another_stream(psd_tensor *t, const psd_opts *first, const psd_opts *second)
{
    psd_work work;
    set(t, 1, first);
    OK(psd_iall_reduce(ctx, PSD_WORLD, t, t, PSD_SUM, first, &work));
    OK(psd_wait_stream(ctx, work, second->stream, 0));
    CHECK(holds(t, 2, second));
    OK(psd_stream_synchronize(ctx, first->stream, 0));
    OK(psd_stream_synchronize(ctx, NULL, 0));
}

/* Rank 1 comes late to an operation that rank 0 has queued: only who waits for the data notices. */
static void late_peer(psd_tensor *t, const psd_opts *opts, const psd_opts *other)
{
    psd_work work;
    psd_group apart;
    OK(psd_group_dup(ctx, PSD_WORLD, &apart));
    set(t, 5, opts);
    if (rank == 0) {
        OK(psd_iall_reduce(ctx, apart, t, t, PSD_SUM, opts, &work));
        OK(psd_wait_stream(ctx, work, other->stream, 0));
        OK(psd_stream_synchronize(ctx, opts->stream, 0)); /* only the other stream waits */
        CHECK(psd_stream_synchronize(ctx, other->stream, 50) == PSD_ERR_TIMEOUT);
        CHECK(strstr(psd_last_error(), "with 1 operations of psd on it") != NULL);
    }
    meet();
    if (rank == 1)
        OK(psd_all_reduce(ctx, apart, t, t, PSD_SUM, opts));
    OK(psd_stream_synchronize(ctx, rank == 0 ? other->stream : opts->stream, 0));
    CHECK(holds(t, 10, opts));
    /* A group goes once what was waited for on a stream is through the device. */
    OK(psd_all_reduce(ctx, apart, t, t, PSD_SUM, opts));
    OK(psd_group_destroy(ctx, apart));
    CHECK(holds(t, 20, opts));
}

static void buckets(psd_tensor list[3], const psd_opts *first, const psd_opts *second)
{
    for (int round = 0; round < 6; round++) {
        const psd_opts *opts = round % 2 == 0 ? first : second;
        for (int i = 0; i < 3; i++)
            set(&list[i], (float)(i + 1), opts);
        OK(psd_all_reduce_coalesced(ctx, PSD_WORLD, list, 3, PSD_SUM, round < 3 ? 0 : 2 * COUNT * 4, opts));
        for (int i = 0; i < 3; i++)
            CHECK(holds(&list[i], (float)(2 * (i + 1)), opts));
    }
}

/* The stream of an earlier call is the caller's to destroy. */
static void destroyed_stream(psd_tensor list[3], const psd_opts *opts)
{
    psd_opts passing = *opts;
    passing.stream = make_stream();
    OK(psd_all_reduce_coalesced(ctx, PSD_WORLD, list, 3, PSD_SUM, 0, &passing));
    OK(psd_stream_synchronize(ctx, passing.stream, 0));
    CHECK(destroy(passing.stream) == 0);
    for (int i = 0; i < 3; i++)
        set(&list[i], 4, opts);
    OK(psd_all_reduce_coalesced(ctx, PSD_WORLD, list, 3, PSD_SUM, 0, opts));
    for (int i = 0; i < 3; i++)
        CHECK(holds(&list[i], 8, opts));
}

static void many(psd_tensor list[3], const psd_opts *first, const psd_opts *second)
{
    psd_work works[3];
    int32_t index = -1;
    for (int i = 0; i < 3; i++)
        set(&list[i], 1, i % 2 == 0 ? first : second);
    for (int i = 0; i < 3; i++)
        OK(psd_iall_reduce(ctx, PSD_WORLD, &list[i], &list[i], PSD_SUM, i % 2 == 0 ? first : second,
                           &works[i]));
    OK(psd_waitany(ctx, works, 3, 0, &index));
    CHECK(index >= 0 && index < 3);
    psd_work left[2];
    for (int i = 0, n = 0; i < 3; i++)
        if (i != index)
            left[n++] = works[i];
    OK(psd_waitall(ctx, left, 2, 0));
    CHECK(psd_waitall(ctx, left, 2, 0) == PSD_ERR_STALE);
    for (int i = 0; i < 3; i++)
        CHECK(holds(&list[i], 2, i % 2 == 0 ? first : second));
}

int main(void)
{
    psd_tensor list[3];
    psd_opts first, second;
    if (psd_init(NULL, &ctx) != PSD_OK || psd_world_size(ctx) != 2 || psd_device_index(ctx) < 0)
        return fprintf(stderr, "streams: needs 2 ranks on devices: %s\n", psd_last_error()), 4;
    rank = psd_rank(ctx);
    psd_opts_init(&first);
    psd_opts_init(&second);
    first.stream = make_stream();
    second.stream = make_stream();
    for (int i = 0; i < 3; i++)
        list[i] = alloc();
    own_stream(&list[0], &first);
    another_stream(&list[0], &first, &second);
    late_peer(&list[0], &first, &second);
    buckets(list, &first, &second);
    destroyed_stream(list, &first);
    many(list, &first, &second);
    /* Left in flight, waited for on its stream: psd_finalize waits until the device is through. */
    OK(psd_all_reduce(ctx, PSD_WORLD, &list[0], &list[0], PSD_SUM, &second));
    OK(psd_stream_synchronize(ctx, second.stream, 0));
    for (int i = 0; i < 3; i++)
        OK(psd_tensor_free(ctx, &list[i]));
    OK(psd_barrier(ctx, PSD_WORLD, &first));
    OK(psd_finalize(&ctx));
    printf("streams: rank %d: %d passed, %d failed\n", rank, passed, failed);
    return failed == 0 ? 0 : 1;
}
