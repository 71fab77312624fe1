/* Calls that are wrong in themselves: the status, and a text that names the caller's file and line. They
 * never reach the other ranks, and the world works afterwards. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "tests/conformance/suite.h"

/* Does the error text say where the call stands, as bad_calls.c:<number>? */
static bool names_place(const char *text)
{
    const char *at = strstr(text, "bad_calls.c:");
    return at != NULL && isdigit((unsigned char)at[strlen("bad_calls.c:")]);
}

static void judge_bad(suite *s, const char *row, const char *what, psd_status status, psd_status expected)
{
    bool fine = status == expected && names_place(psd_last_error());
    suite_record(s, row, (psd_dtype)0, fine ? OUTCOME_PASSED : OUTCOME_FAILED,
                 "%s: status %d, expected %d, text: %s", what, (int)status, (int)expected, psd_last_error());
}

#define BAD(expected, call) judge_bad(s, "bad_call", #call, call, expected)

typedef struct bad_tensors {
    psd_tensor f32;
    psd_tensor f32_out;
    psd_tensor boolean;
    psd_tensor dtype; /* not a dtype */
    psd_tensor count; /* negative */
    psd_tensor longer;
    psd_tensor no_data;
    psd_tensor no_size;
} bad_tensors;

/* `like` is 16 floats, in the memory that the backend moves. */
static bad_tensors make_tensors(const psd_tensor *like)
{
    float *data = like->data;
    bad_tensors t = {
        .f32 = psd_tensor_1d(data, 4, PSD_F32, "x"),
        .f32_out = psd_tensor_1d(data + 8, 4, PSD_F32, "y"),
        .boolean = psd_tensor_1d(data, 4, PSD_BOOL, "b"),
        .dtype = psd_tensor_1d(data, 4, PSD_F32, "d"),
        .count = psd_tensor_1d(data, 4, PSD_F32, "c"),
        .longer = psd_tensor_1d(data + 8, 5, PSD_F32, "l"),
        .no_data = psd_tensor_1d(NULL, 4, PSD_F32, "n"),
        .no_size = psd_tensor_1d(data, 4, PSD_F32, "s"),
    };
    t.dtype.dtype = (psd_dtype)99;
    t.count.shape[0] = -4;
    t.no_size.size = 0;
    psd_tensor *all[] = {&t.f32,   &t.f32_out, &t.boolean, &t.dtype,
                         &t.count, &t.longer,  &t.no_data, &t.no_size};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        all[i]->device = like->device;
        all[i]->device_index = like->device_index;
    }
    return t;
}

/* Memory that is not where it says, or not where the backend moves it. */
static void bad_places(suite *s, bad_tensors *t)
{
    psd_ctx *ctx = s->ctx;
    float on_host[8] = {0};
    psd_tensor host = psd_tensor_1d(on_host, 4, PSD_F32, "host"), claims = host, elsewhere = t->f32;
    psd_opts stream;
    psd_opts_init(&stream);
    claims.device = elsewhere.device = PSD_DEVICE_CUDA;
    claims.device_index = psd_device_index(ctx);
    elsewhere.device_index = psd_device_index(ctx) + 1;
    BAD(PSD_ERR_INVAL, psd_tensor_copy(ctx, &t->f32, &t->longer, NULL));
    BAD(PSD_ERR_INVAL, psd_tensor_copy(ctx, &t->f32, &t->boolean, NULL));
    BAD(PSD_ERR_INVAL, psd_tensor_copy(ctx, &t->f32, &t->f32, NULL));
    BAD(PSD_ERR_INVAL, psd_tensor_copy(ctx, NULL, &t->f32, NULL));
    if (s->on_device) {
        psd_tensor hides = t->f32;
        hides.device = PSD_DEVICE_HOST;
        BAD(PSD_ERR_UNSUPPORTED, psd_all_reduce(ctx, PSD_WORLD, &host, &host, PSD_SUM, NULL));
        BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &claims, &claims, PSD_SUM, NULL));
        BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &elsewhere, &elsewhere, PSD_SUM, NULL));
        BAD(PSD_ERR_INVAL, psd_tensor_copy(ctx, &host, &hides, NULL));
        BAD(PSD_ERR_INVAL, psd_tensor_copy(ctx, &host, &claims, NULL));
        return;
    }
    stream.stream = on_host;
    BAD(PSD_ERR_UNSUPPORTED, psd_all_reduce(ctx, PSD_WORLD, &claims, &claims, PSD_SUM, NULL));
    BAD(PSD_ERR_UNSUPPORTED, psd_all_reduce(ctx, PSD_WORLD, &host, &host, PSD_SUM, &stream));
    BAD(PSD_ERR_UNSUPPORTED, psd_stream_synchronize(ctx, on_host, 0));
    BAD(PSD_ERR_UNSUPPORTED, psd_tensor_copy(ctx, &claims, &host, NULL));
}

static void bad_tensor_arguments(suite *s, bad_tensors *t)
{
    psd_ctx *ctx = s->ctx;
    BAD(PSD_ERR_INVAL, psd_all_reduce(NULL, PSD_WORLD, &t->f32, &t->f32, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, NULL, &t->f32, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->f32, NULL, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->dtype, &t->dtype, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->count, &t->count, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->no_data, &t->no_data, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->no_size, &t->no_size, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->f32, &t->longer, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->f32, &t->boolean, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_to_all(ctx, PSD_WORLD, &t->f32, &t->f32, NULL));
    BAD(PSD_ERR_INVAL, psd_broadcast(ctx, PSD_WORLD, NULL, 0, NULL));
    BAD(PSD_ERR_INVAL, psd_send(ctx, PSD_WORLD, NULL, 0, NULL));
    BAD(PSD_ERR_INVAL, psd_batch(ctx, PSD_WORLD, NULL, 1, NULL));
    BAD(PSD_ERR_INVAL, psd_all_to_all_v(ctx, PSD_WORLD, &t->f32, NULL, &t->f32_out, NULL, NULL));
}

static void bad_reductions(suite *s, bad_tensors *t)
{
    psd_ctx *ctx = s->ctx;
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->boolean, &t->boolean, PSD_SUM, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->f32, &t->f32, PSD_BXOR, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->f32, &t->f32, (psd_redop)0, NULL));
    BAD(PSD_ERR_INVAL, psd_all_reduce(ctx, PSD_WORLD, &t->f32, &t->f32, (psd_redop)99, NULL));
    BAD(PSD_ERR_INVAL, psd_reduce(ctx, PSD_WORLD, &t->f32, &t->f32, (psd_redop)-1, 0, NULL));
}

static void bad_ranks_and_tags(suite *s, bad_tensors *t)
{
    psd_ctx *ctx = s->ctx;
    psd_opts tag, huge_tag;
    psd_work work;
    psd_opts_init(&tag);
    psd_opts_init(&huge_tag);
    tag.tag = -7;
    huge_tag.tag = PSD_MAX_TAG + 1;
    BAD(PSD_ERR_INVAL, psd_broadcast(ctx, PSD_WORLD, &t->f32, s->ranks, NULL));
    BAD(PSD_ERR_INVAL, psd_broadcast(ctx, PSD_WORLD, &t->f32, -1, NULL));
    BAD(PSD_ERR_INVAL, psd_reduce(ctx, PSD_WORLD, &t->f32, &t->f32, PSD_SUM, s->ranks, NULL));
    BAD(PSD_ERR_INVAL, psd_gather(ctx, PSD_WORLD, &t->f32, &t->f32, s->ranks + 5, NULL));
    BAD(PSD_ERR_INVAL, psd_scatter(ctx, PSD_WORLD, &t->f32, &t->f32, -2, NULL));
    BAD(PSD_ERR_INVAL, psd_isend(ctx, PSD_WORLD, &t->f32, s->ranks, NULL, &work));
    BAD(PSD_ERR_INVAL, psd_isend(ctx, PSD_WORLD, &t->f32, PSD_ANY_SOURCE, NULL, &work));
    BAD(PSD_ERR_INVAL, psd_irecv(ctx, PSD_WORLD, &t->f32, -2, NULL, &work));
    BAD(PSD_ERR_INVAL, psd_isend(ctx, PSD_WORLD, &t->f32, 0, &tag, &work));
    BAD(PSD_ERR_INVAL, psd_isend(ctx, PSD_WORLD, &t->f32, 0, &huge_tag, &work));
    BAD(PSD_ERR_INVAL, psd_irecv(ctx, PSD_WORLD, &t->f32, 0, &huge_tag, &work));
    BAD(PSD_ERR_INVAL, psd_send(ctx, PSD_WORLD, &t->f32, s->rank, NULL)); /* to oneself, blocking */
    BAD(PSD_ERR_INVAL, psd_isend(ctx, PSD_WORLD, &t->f32, 0, NULL, NULL));
}

static void bad_groups(suite *s, bad_tensors *t)
{
    psd_ctx *ctx = s->ctx;
    psd_group gone, none = {UINT32_MAX, 0}, group;
    int32_t twice[2] = {s->rank, s->rank}, beyond[1] = {s->ranks}, others[1] = {(s->rank + 1) % s->ranks};
    BAD(PSD_ERR_INVAL, psd_group_destroy(ctx, PSD_WORLD));
    BAD(PSD_ERR_INVAL, psd_group_new(ctx, NULL, 1, &group));
    BAD(PSD_ERR_INVAL, psd_group_new(ctx, twice, 2, &group));
    BAD(PSD_ERR_INVAL, psd_group_new(ctx, beyond, 1, &group));
    BAD(PSD_ERR_INVAL, psd_group_new(ctx, twice, 0, &group));
    if (s->ranks > 1)
        BAD(PSD_ERR_INVAL, psd_group_new(ctx, others, 1, &group)); /* without oneself */
    BAD(PSD_ERR_INVAL, psd_group_split(ctx, PSD_WORLD, -2, 0, &group));
    BAD(PSD_ERR_STALE, psd_barrier(ctx, none, NULL));
    if (suite_judge(s, psd_group_dup(ctx, PSD_WORLD, &gone)) != OUTCOME_PASSED ||
        suite_judge(s, psd_group_destroy(ctx, gone)) != OUTCOME_PASSED) {
        suite_record(s, "bad_call", (psd_dtype)0, OUTCOME_FAILED, "group made and destroyed");
        return;
    }
    BAD(PSD_ERR_STALE, psd_all_reduce(ctx, gone, &t->f32, &t->f32, PSD_SUM, NULL));
    BAD(PSD_ERR_STALE, psd_barrier(ctx, gone, NULL));
    BAD(PSD_ERR_STALE, psd_group_destroy(ctx, gone));
}

static void bad_works(suite *s)
{
    psd_ctx *ctx = s->ctx;
    psd_work work, none = {77, 0};
    bool done = false;
    BAD(PSD_ERR_STALE, psd_wait(ctx, none, 0));
    if (suite_judge(s, psd_ibarrier(ctx, PSD_WORLD, NULL, &work)) != OUTCOME_PASSED ||
        suite_judge(s, psd_wait(ctx, work, 0)) != OUTCOME_PASSED) {
        suite_record(s, "bad_call", (psd_dtype)0, OUTCOME_FAILED, "work waited for");
        return;
    }
    BAD(PSD_ERR_STALE, psd_wait(ctx, work, 0));
    BAD(PSD_ERR_STALE, psd_synchronize(ctx, work, 0));
    BAD(PSD_ERR_STALE, psd_test(ctx, work, &done));
    BAD(PSD_ERR_STALE, psd_waitall(ctx, &work, 1, 0));
}

void suite_bad_calls(suite *s)
{
    const int64_t count = 16;
    psd_tensor data;
    if (s->is_broken ||
        suite_judge(s, psd_tensor_alloc(s->ctx, &count, 1, PSD_F32, "data", &data)) != OUTCOME_PASSED)
        return;
    bad_tensors t = make_tensors(&data);
    bad_tensor_arguments(s, &t);
    bad_reductions(s, &t);
    bad_ranks_and_tags(s, &t);
    bad_groups(s, &t);
    bad_works(s);
    bad_places(s, &t);
    outcome result = suite_judge(s, psd_barrier(s->ctx, PSD_WORLD, NULL));
    suite_record(s, "bad_call", (psd_dtype)0, result, "the world works afterwards");
    (void)suite_judge(s, psd_tensor_free(s->ctx, &data));
}
