/* Copies between tensors, slices, and what a host backend says to device memory and streams. On devices:
 * tests/gpu/streams.c and the conformance suite. */
#include <string.h>

#include "tests/lib/psd_test.h"
#include "tests/lib/solo.h"

PSD_TEST(device_memory, copies_on_the_host)
{
    solo s = solo_open(NULL, NULL);
    float from[6] = {1, 2, 3, 4, 5, 6};
    psd_tensor host = psd_tensor_1d(from, 6, PSD_F32, "from"), t,
               empty = psd_tensor_1d(NULL, 0, PSD_F32, "empty");
    cr_assert_eq(psd_tensor_alloc(s.ctx, (const int64_t[]){2, 3}, 2, PSD_F32, "t", &t), PSD_OK);
    cr_assert_eq(t.device, PSD_DEVICE_HOST);
    cr_assert_eq(psd_tensor_copy(s.ctx, &t, &host, NULL), PSD_OK, "%s: shapes may differ", psd_last_error());
    cr_assert_eq(memcmp(t.data, from, sizeof from), 0);
    cr_assert_eq(psd_tensor_copy(s.ctx, &empty, &empty, NULL), PSD_OK);
    cr_assert_eq(psd_device_index(s.ctx), -1);
    cr_assert_eq(psd_device_index(NULL), -1);
    cr_assert_eq(psd_stream_synchronize(s.ctx, NULL, 0), PSD_OK, "nothing to wait for");
    cr_assert_eq(psd_tensor_free(s.ctx, &t), PSD_OK);
    solo_close(&s, PSD_OK);
}

PSD_TEST(device_memory, refusals)
{
    solo s = solo_open(NULL, NULL);
    float a[8] = {0}, b[8] = {0};
    psd_opts opts;
    psd_work work;
    psd_opts_init(&opts);
    opts.stream = a;
    psd_tensor to = psd_tensor_1d(a, 4, PSD_F32, "to"), from = psd_tensor_1d(b, 4, PSD_F32, "from");
    psd_tensor other = psd_tensor_1d(b, 4, PSD_I32, "other"),
               shorter = psd_tensor_1d(b, 3, PSD_F32, "shorter");
    psd_tensor across = psd_tensor_1d(a + 2, 4, PSD_F32, "across"), device = to;
    device.device = PSD_DEVICE_CUDA;
    cr_expect_eq(psd_tensor_copy(s.ctx, &to, &other, NULL), PSD_ERR_INVAL);
    expect_error_text("dst has 4 elements of f32 and src has 4 of i32");
    cr_expect_eq(psd_tensor_copy(s.ctx, &to, &shorter, NULL), PSD_ERR_INVAL);
    cr_expect_eq(psd_tensor_copy(s.ctx, &to, &across, NULL), PSD_ERR_INVAL);
    expect_error_text("overlap");
    cr_expect_eq(psd_tensor_copy(s.ctx, NULL, &from, NULL), PSD_ERR_INVAL);
    cr_expect_eq(psd_tensor_copy(NULL, &to, &from, NULL), PSD_ERR_INVAL);
    cr_expect_eq(psd_tensor_copy(s.ctx, &device, &from, NULL), PSD_ERR_UNSUPPORTED);
    expect_error_text("dst is in device memory, which backend host does not move");
    cr_expect_eq(psd_tensor_copy(s.ctx, &to, &from, &opts), PSD_ERR_UNSUPPORTED);
    cr_expect_eq(psd_stream_synchronize(s.ctx, a, 0), PSD_ERR_UNSUPPORTED);
    cr_expect_eq(psd_ibarrier(s.ctx, PSD_WORLD, NULL, &work), PSD_OK);
    cr_expect_eq(psd_wait_stream(s.ctx, work, a, 0), PSD_ERR_UNSUPPORTED);
    cr_expect_eq(psd_wait_stream(s.ctx, work, NULL, 0), PSD_OK, "the default one is the host's");
    cr_expect_eq(psd_all_reduce(s.ctx, PSD_WORLD, &device, &device, PSD_SUM, NULL), PSD_ERR_UNSUPPORTED);
    cr_expect_eq(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, &device, 1, PSD_SUM, 0, NULL),
                 PSD_ERR_UNSUPPORTED);
    solo_close(&s, PSD_OK);
}

PSD_TEST(device_memory, slices)
{
    float a[6] = {0};
    psd_tensor whole = psd_tensor_nd(a, (const int64_t[]){2, 3}, 2, PSD_F32, "whole");
    whole.device = PSD_DEVICE_CUDA;
    whole.device_index = 3;
    psd_tensor part = psd_tensor_slice(&whole, 2, 4);
    cr_assert(part.data == a + 2 && part.ndim == 1 && part.shape[0] == 4 && part.dtype == PSD_F32);
    cr_assert(part.device == PSD_DEVICE_CUDA && part.device_index == 3 && strcmp(part.name, "whole") == 0);
    cr_assert_eq(psd_tensor_count(&part), 4);
    part = psd_tensor_slice(&whole, 6, 0);
    cr_assert_eq(psd_tensor_count(&part), 0);
    const int64_t bad[][2] = {{-1, 2}, {0, 7}, {6, 1}, {2, -1}, {INT64_MAX, INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        part = psd_tensor_slice(&whole, bad[i][0], bad[i][1]);
        cr_assert_eq(psd_tensor_count(&part), -1, "case %zu", i);
    }
    part = psd_tensor_slice(NULL, 0, 0);
    cr_assert_eq(psd_tensor_count(&part), -1);
}
