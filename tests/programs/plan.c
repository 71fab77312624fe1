/* Plans for the integration tests: plan. Every shift, odd sizes and dtypes, groups of some ranks, and what must be an
 * error. Exit: 0 what was expected, 1 not, 4 did not join. */
#define _POSIX_C_SOURCE 200809L /* pause */

#include <psd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wrong;

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("%s; last error: %s\n", what, psd_last_error());
        wrong++;
    }
}

static unsigned char byte_of(int32_t rank, int64_t i, int run)
{
    return (unsigned char)(rank * 71 + i * 13 + run);
}

/* Runs one plan a few times with different data; the group's ranks may be any of the world's. */
static void shift_once(psd_ctx *ctx, psd_group group, psd_dtype dtype, int64_t count, int64_t bytes,
                       int32_t shift)
{
    psd_plan plan;
    int32_t rank, size;
    unsigned char *in = malloc((size_t)bytes + 1), *out = malloc((size_t)bytes + 1);
    check(in != NULL && out != NULL, "memory");
    check(psd_group_rank(ctx, group, &rank) == PSD_OK && psd_group_size(ctx, group, &size) == PSD_OK,
          "group");
    int32_t origin = (int32_t)((((int64_t)rank - shift) % size + size) % size);
    if (psd_plan_ring_shift(ctx, group, dtype, count, shift, &plan) != PSD_OK) {
        check(0, "psd_plan_ring_shift");
        goto done;
    }
    for (int run = 0; run < 3; run++) {
        psd_tensor from = psd_tensor_1d(in, count, dtype, "from");
        psd_tensor to = psd_tensor_1d(out, count, dtype, "to");
        int64_t bad = 0;
        for (int64_t i = 0; i < bytes; i++)
            in[i] = byte_of(rank, i, run);
        memset(out, 0xee, (size_t)bytes + 1);
        check(psd_plan_run(ctx, plan, &from, &to) == PSD_OK, "psd_plan_run");
        for (int64_t i = 0; i < bytes; i++)
            bad += out[i] != byte_of(origin, i, run);
        check(bad == 0 && out[bytes] == 0xee, "wrong bytes");
    }
    check(psd_plan_destroy(ctx, plan) == PSD_OK, "psd_plan_destroy");
    check(psd_plan_destroy(ctx, plan) == PSD_ERR_STALE, "destroyed twice");
done:
    free(in);
    free(out);
}

static void errors(psd_ctx *ctx)
{
    float a[8] = {0}, b[8] = {0};
    psd_plan plan, none = {0, 0};
    psd_tensor in = psd_tensor_1d(a, 8, PSD_F32, "in"), out = psd_tensor_1d(b, 8, PSD_F32, "out");
    psd_tensor fewer = psd_tensor_1d(b, 7, PSD_F32, "out"), over = psd_tensor_1d(a, 8, PSD_F32, "out");
    check(psd_plan_ring_shift(ctx, PSD_WORLD, (psd_dtype)99, 8, 1, &plan) == PSD_ERR_INVAL, "dtype 99");
    check(psd_plan_ring_shift(ctx, PSD_WORLD, PSD_F32, -1, 1, &plan) == PSD_ERR_INVAL, "count -1");
    check(psd_plan_ring_shift(ctx, PSD_WORLD, PSD_F32, INT64_MAX, 1, &plan) == PSD_ERR_INVAL,
          "count too large");
    check(psd_plan_ring_shift(ctx, PSD_WORLD, PSD_F32, 8, 1, NULL) == PSD_ERR_INVAL, "no result");
    check(psd_plan_run(ctx, none, &in, &out) == PSD_ERR_STALE, "null plan");
    /* A disagreement breaks its group, and only that; who comes last finds it broken. */
    psd_group other;
    check(psd_group_dup(ctx, PSD_WORLD, &other) == PSD_OK, "dup");
    psd_status status = psd_plan_ring_shift(ctx, other, PSD_F32, 8 + psd_rank(ctx), 1, &plan);
    if (psd_world_size(ctx) > 1)
        check(status == PSD_ERR_MISMATCH && strstr(psd_last_error(), "disagree") != NULL, "different counts");
    else
        check(status == PSD_OK && psd_plan_destroy(ctx, plan) == PSD_OK, "one rank");
    check(psd_group_destroy(ctx, other) == PSD_OK, "destroy the broken group");
    check(psd_plan_ring_shift(ctx, PSD_WORLD, PSD_F32, 8, 1, &plan) == PSD_OK, "after the errors");
    check(psd_plan_run(ctx, plan, &in, &fewer) == PSD_ERR_INVAL, "fewer elements");
    check(psd_plan_run(ctx, plan, &in, &over) == PSD_ERR_INVAL, "shared memory");
    check(psd_plan_run(ctx, plan, NULL, &out) == PSD_ERR_INVAL, "no input");
    check(psd_plan_run(ctx, plan, &in, &out) == PSD_OK, "run after the errors");
    check(psd_plan_destroy(ctx, plan) == PSD_OK, "destroy");
}

/* Runs a plan three times at once and stays, to be looked at from outside: rank 0 in a receive, the others outside psd,
 * as otherwise it would be a deadlock. */
static int hold(psd_ctx *ctx)
{
    float in[8] = {0}, out[8];
    psd_tensor src = psd_tensor_1d(in, 8, PSD_F32, "in");
    psd_tensor dst = psd_tensor_1d(out, 8, PSD_F32, "out");
    psd_plan plan;
    check(psd_plan_ring_shift(ctx, PSD_WORLD, PSD_F32, 8, 1, &plan) == PSD_OK, "open");
    for (int i = 0; i < 3; i++)
        check(psd_plan_run(ctx, plan, &src, &dst) == PSD_OK, "run");
    printf("plan: ran\n");
    if (psd_rank(ctx) != 0)
        pause();
    (void)psd_recv(ctx, PSD_WORLD, &dst, PSD_ANY_SOURCE, NULL, NULL);
    psd_finalize(&ctx);
    return wrong;
}

int main(int argc, char **argv)
{
    psd_ctx *ctx = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (psd_init(NULL, &ctx) != PSD_OK)
        return printf("did not join: %s\n", psd_last_error()), 4;
    if (argc > 1 && strcmp(argv[1], "hold") == 0)
        return hold(ctx);
    for (int32_t shift = -5; shift <= 5; shift++)
        shift_once(ctx, PSD_WORLD, PSD_F32, 1001, 4004, shift);
    shift_once(ctx, PSD_WORLD, PSD_U8, 0, 0, 1);
    shift_once(ctx, PSD_WORLD, PSD_U8, 1, 1, 1);
    shift_once(ctx, PSD_WORLD, PSD_F64, 1000003, 8000024, 2);
    psd_group odd;
    check(psd_group_split(ctx, PSD_WORLD, psd_rank(ctx) % 2, -psd_rank(ctx), &odd) == PSD_OK, "split");
    shift_once(ctx, odd, PSD_I16, 333, 666, 1);
    check(psd_group_destroy(ctx, odd) == PSD_OK, "destroy");
    errors(ctx);
    printf("plan: rank %d, %d wrong\n", psd_rank(ctx), wrong);
    psd_finalize(&ctx);
    return wrong == 0 ? 0 : 1;
}
