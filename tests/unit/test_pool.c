/* psd_tensor_alloc and its limit. */
#include <string.h>

#include "tests/lib/psd_test.h"
#include "tests/lib/solo.h"

PSD_TEST(pool, gives_aligned_zeroed_memory)
{
    solo s = solo_open(NULL, NULL);
    int64_t shape[2] = {3, 5};
    psd_tensor t;
    cr_assert_eq(psd_tensor_alloc(s.ctx, shape, 2, PSD_F64, "w", &t), PSD_OK);
    cr_assert_eq((uintptr_t)t.data % 64, 0);
    for (int i = 0; i < 15; i++)
        cr_assert_eq(((double *)t.data)[i], 0.0);
    memset(t.data, 0xff, 15 * sizeof(double));
    cr_assert_eq(psd_tensor_count(&t), 15);
    cr_assert_eq(psd_tensor_free(s.ctx, &t), PSD_OK);
    cr_assert_null(t.data);
    cr_assert_eq(psd_tensor_free(s.ctx, &t), PSD_OK, "freeing nothing is fine");
    cr_assert_eq(psd_tensor_alloc(s.ctx, shape, 2, PSD_F64, "w", &t), PSD_OK);
    for (int i = 0; i < 15; i++)
        cr_assert_eq(((double *)t.data)[i], 0.0);
    cr_assert_eq(psd_tensor_free(s.ctx, &t), PSD_OK);
    solo_close(&s, PSD_OK);
}

PSD_TEST(pool, names_the_holders_at_the_limit)
{
    solo s = solo_open(NULL, NULL); /* with a limit of 1 MiB */
    int64_t big = 600 << 10, small = 100 << 10;
    psd_tensor a, b, c;
    cr_assert_eq(psd_tensor_alloc(s.ctx, &big, 1, PSD_U8, "weights", &a), PSD_OK);
    cr_assert_eq(psd_tensor_alloc(s.ctx, &small, 1, PSD_U8, NULL, &b), PSD_OK);
    cr_assert_eq(psd_tensor_alloc(s.ctx, &big, 1, PSD_U8, "copy", &c), PSD_ERR_LIMIT);
    expect_error_text("\"copy\" needs 600 KiB");
    expect_error_text("\"weights\" (600 KiB, test_pool.c:");
    expect_error_text("PSD_POOL_LIMIT");
    cr_assert_eq(psd_tensor_free(s.ctx, &a), PSD_OK);
    cr_assert_eq(psd_tensor_alloc(s.ctx, &big, 1, PSD_U8, "copy", &c), PSD_OK);
    cr_assert_eq(psd_tensor_free(s.ctx, &b), PSD_OK);
    cr_assert_eq(psd_tensor_free(s.ctx, &c), PSD_OK);
    int64_t huge = INT64_MAX / 8;
    cr_assert_eq(psd_tensor_alloc(s.ctx, &huge, 1, PSD_F64, "huge", &c), PSD_ERR_LIMIT);
    expect_error_text("nothing is held");
    solo_close(&s, PSD_OK);
}

PSD_TEST(pool, refuses_what_is_not_valid)
{
    solo s = solo_open(NULL, NULL);
    int64_t shape[2] = {-1, 2}, overflow[2] = {INT64_MAX, 2};
    float mine[4];
    psd_tensor t = psd_tensor_1d(mine, 4, PSD_F32, NULL), out = {0};
    cr_assert_eq(psd_tensor_alloc(s.ctx, shape, 2, PSD_F32, "x", &out), PSD_ERR_INVAL);
    cr_assert_eq(psd_tensor_alloc(s.ctx, overflow, 2, PSD_F32, "x", &out), PSD_ERR_INVAL);
    cr_assert_eq(psd_tensor_alloc(s.ctx, shape, 9, PSD_F32, "x", &out), PSD_ERR_INVAL);
    cr_assert_eq(psd_tensor_alloc(s.ctx, NULL, 1, PSD_F32, "x", &out), PSD_ERR_INVAL);
    cr_assert_eq(psd_tensor_alloc(s.ctx, shape, 0, (psd_dtype)99, "x", &out), PSD_ERR_INVAL);
    cr_assert_eq(psd_tensor_alloc(s.ctx, shape, 0, PSD_F32, "x", NULL), PSD_ERR_INVAL);
    cr_assert_eq(psd_tensor_alloc(NULL, shape, 0, PSD_F32, "x", &out), PSD_ERR_INVAL);
    cr_assert_null(out.data, "out-parameters are written only on success");
    cr_assert_eq(psd_tensor_free(s.ctx, &t), PSD_ERR_INVAL);
    expect_error_text("not from psd_tensor_alloc");
    solo_close(&s, PSD_OK);
}

PSD_TEST(pool, takes_scalars_and_empty_tensors)
{
    solo s = solo_open(NULL, NULL);
    int64_t empty[3] = {4, 0, 2};
    psd_tensor t;
    cr_assert_eq(psd_tensor_alloc(s.ctx, NULL, 0, PSD_F32, "scalar", &t), PSD_OK);
    cr_assert_eq(psd_tensor_count(&t), 1);
    cr_assert_eq(psd_tensor_free(s.ctx, &t), PSD_OK);
    cr_assert_eq(psd_tensor_alloc(s.ctx, empty, 3, PSD_F32, "empty", &t), PSD_OK);
    cr_assert_eq(psd_tensor_count(&t), 0);
    cr_assert_eq(psd_tensor_free(s.ctx, &t), PSD_OK);
    solo_close(&s, PSD_OK);
}

PSD_TEST(pool, frees_at_finalize_what_was_forgotten)
{
    solo s = solo_open(NULL, NULL);
    int64_t count = 100;
    psd_tensor t;
    cr_assert_eq(psd_tensor_alloc(s.ctx, &count, 1, PSD_F32, "forgotten", &t), PSD_OK);
    solo_close(&s, PSD_OK); /* and the leak check of the test */
}
