/* What operations refuse, each with its sentence, and that a world of one computes what it should. Between
 * ranks it is the conformance suite that checks. */
#include <string.h>

#include "tests/lib/psd_test.h"
#include "tests/lib/solo.h"

static float in_data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static float out_data[8];

static psd_tensor in_of(int64_t count)
{
    return psd_tensor_1d(in_data, count, PSD_F32, "in");
}

static psd_tensor out_of(int64_t count)
{
    return psd_tensor_1d(out_data, count, PSD_F32, "out");
}

/* The error of the call, and that its sentence has the place and these words. */
#define REFUSED(call, status, words)                                                                         \
    do {                                                                                                     \
        cr_expect_eq(call, status, "%s", #call);                                                             \
        expect_error_text("test_ops.c:");                                                                    \
        expect_error_text(words);                                                                            \
    } while (0)

PSD_TEST(ops, tensors_are_checked)
{
    solo s = solo_open(NULL, NULL);
    psd_ctx *c = s.ctx;
    psd_tensor good = in_of(4), out = out_of(4), bad = in_of(4);
    REFUSED(psd_all_reduce(c, PSD_WORLD, NULL, &out, PSD_SUM, NULL), PSD_ERR_INVAL,
            "psd_all_reduce: in is NULL");
    REFUSED(psd_all_reduce(c, PSD_WORLD, &good, NULL, PSD_SUM, NULL), PSD_ERR_INVAL, "out is NULL");
    bad.size = 0;
    REFUSED(psd_broadcast(c, PSD_WORLD, &bad, 0, NULL), PSD_ERR_INVAL, "out->size is 0");
    bad = in_of(4);
    bad.dtype = (psd_dtype)99;
    REFUSED(psd_broadcast(c, PSD_WORLD, &bad, 0, NULL), PSD_ERR_INVAL, "out->dtype is 99");
    bad = in_of(4);
    bad.ndim = 9;
    REFUSED(psd_broadcast(c, PSD_WORLD, &bad, 0, NULL), PSD_ERR_INVAL, "out->ndim is 9");
    bad = in_of(-1);
    REFUSED(psd_broadcast(c, PSD_WORLD, &bad, 0, NULL), PSD_ERR_INVAL, "out->shape[0] is -1");
    bad = in_of(INT64_MAX);
    REFUSED(psd_broadcast(c, PSD_WORLD, &bad, 0, NULL), PSD_ERR_INVAL, "more elements than");
    bad = in_of(4);
    bad.data = NULL;
    REFUSED(psd_broadcast(c, PSD_WORLD, &bad, 0, NULL), PSD_ERR_INVAL, "out->data is NULL");
    bad = in_of(4);
    bad.device = PSD_DEVICE_CUDA;
    REFUSED(psd_broadcast(c, PSD_WORLD, &bad, 0, NULL), PSD_ERR_UNSUPPORTED, "device memory");
    bad.device = (psd_device_kind)7;
    REFUSED(psd_broadcast(c, PSD_WORLD, &bad, 0, NULL), PSD_ERR_INVAL, "device is 7");
    psd_tensor empty = psd_tensor_1d(NULL, 0, PSD_F32, "empty");
    cr_expect_eq(psd_broadcast(c, PSD_WORLD, &empty, 0, NULL), PSD_OK);
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, counts_and_dtypes_agree)
{
    solo s = solo_open(NULL, NULL);
    psd_ctx *c = s.ctx;
    psd_tensor in = in_of(4), longer = out_of(5), other = psd_tensor_1d(out_data, 4, PSD_I32, "i");
    int64_t four = 4, five = 5, minus = -1;
    REFUSED(psd_all_reduce(c, PSD_WORLD, &in, &longer, PSD_SUM, NULL), PSD_ERR_INVAL, "out has 5 elements");
    REFUSED(psd_all_reduce(c, PSD_WORLD, &in, &other, PSD_SUM, NULL), PSD_ERR_INVAL,
            "in is f32 and out is i32");
    REFUSED(psd_reduce(c, PSD_WORLD, &in, &longer, PSD_SUM, 0, NULL), PSD_ERR_INVAL, "out has 5 elements");
    REFUSED(psd_scatter(c, PSD_WORLD, &in, &longer, 0, NULL), PSD_ERR_INVAL, "in has 4 elements");
    REFUSED(psd_gather(c, PSD_WORLD, &in, &longer, 0, NULL), PSD_ERR_INVAL, "out has 5 elements");
    REFUSED(psd_all_gather(c, PSD_WORLD, &in, &longer, NULL), PSD_ERR_INVAL, "out has 5 elements");
    REFUSED(psd_reduce_scatter(c, PSD_WORLD, &in, &longer, PSD_SUM, NULL), PSD_ERR_INVAL,
            "in has 4 elements");
    REFUSED(psd_all_to_all(c, PSD_WORLD, &in, &longer, NULL), PSD_ERR_INVAL, "out has 5 elements");
    REFUSED(psd_all_to_all_v(c, PSD_WORLD, &in, NULL, &longer, &five, NULL), PSD_ERR_INVAL,
            "in_splits is NULL");
    REFUSED(psd_all_to_all_v(c, PSD_WORLD, &in, &five, &longer, &five, NULL), PSD_ERR_INVAL,
            "add up to more");
    REFUSED(psd_all_to_all_v(c, PSD_WORLD, &in, &minus, &longer, &five, NULL), PSD_ERR_INVAL,
            "in_splits[0] is -1");
    REFUSED(psd_all_to_all_v(c, PSD_WORLD, &in, &four, &longer, &four, NULL), PSD_ERR_INVAL,
            "out_splits add up to 4");
    REFUSED(psd_all_to_all_v(c, PSD_WORLD, &in, &four, &longer, &five, NULL), PSD_ERR_INVAL, "own part");
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, roots_peers_and_tags_are_checked)
{
    solo s = solo_open(NULL, NULL);
    psd_ctx *c = s.ctx;
    psd_tensor in = in_of(4), out = out_of(4);
    psd_opts opts;
    psd_work work;
    psd_opts_init(&opts);
    REFUSED(psd_broadcast(c, PSD_WORLD, &out, 1, NULL), PSD_ERR_INVAL,
            "root is 1; ranks of this group are 0 to 0");
    REFUSED(psd_reduce(c, PSD_WORLD, &in, &out, PSD_SUM, -1, NULL), PSD_ERR_INVAL, "root is -1");
    REFUSED(psd_isend(c, PSD_WORLD, &in, 1, NULL, &work), PSD_ERR_INVAL, "dst is 1");
    REFUSED(psd_isend(c, PSD_WORLD, &in, PSD_ANY_SOURCE, NULL, &work), PSD_ERR_INVAL, "dst is -1");
    REFUSED(psd_irecv(c, PSD_WORLD, &out, -2, NULL, &work), PSD_ERR_INVAL, "src is -2");
    REFUSED(psd_send(c, PSD_WORLD, &in, 0, NULL), PSD_ERR_INVAL, "this rank itself");
    REFUSED(psd_isend(c, PSD_WORLD, &in, 0, NULL, NULL), PSD_ERR_INVAL, "work is NULL");
    opts.tag = -1;
    REFUSED(psd_isend(c, PSD_WORLD, &in, 0, &opts, &work), PSD_ERR_INVAL, "the tag is -1");
    opts.tag = PSD_MAX_TAG + 1;
    REFUSED(psd_irecv(c, PSD_WORLD, &out, 0, &opts, &work), PSD_ERR_INVAL, "or PSD_ANY_TAG");
    opts.tag = 5;
    REFUSED(psd_barrier(c, PSD_WORLD, &opts), PSD_ERR_INVAL, "collectives have no tags");
    opts.size = 4;
    REFUSED(psd_barrier(c, PSD_WORLD, &opts), PSD_ERR_INVAL, "psd_opts_init");
    psd_opts_init(&opts);
    opts.stream = &opts;
    REFUSED(psd_barrier(c, PSD_WORLD, &opts), PSD_ERR_UNSUPPORTED, "no streams");
    REFUSED(psd_barrier(NULL, PSD_WORLD, NULL), PSD_ERR_INVAL, "the context is NULL");
    psd_recv_info info = {0};
    REFUSED(psd_recv(c, PSD_WORLD, &out, 0, NULL, &info), PSD_ERR_INVAL, "sizeof(psd_recv_info)");
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, reductions_are_checked)
{
    solo s = solo_open(NULL, NULL);
    psd_ctx *c = s.ctx;
    psd_tensor in = in_of(4), out = out_of(4), moved = psd_tensor_1d(out_data, 4, PSD_U16, "u");
    REFUSED(psd_all_reduce(c, PSD_WORLD, &in, &out, (psd_redop)77, NULL), PSD_ERR_INVAL, "redop is 77");
    REFUSED(psd_all_reduce(c, PSD_WORLD, &in, &out, PSD_BXOR, NULL), PSD_ERR_INVAL,
            "bxor is not defined for f32");
    REFUSED(psd_all_reduce(c, PSD_WORLD, &moved, &moved, PSD_SUM, NULL), PSD_ERR_INVAL,
            "sum is not defined for u16");
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, overlap_is_refused_unless_in_place)
{
    solo s = solo_open(NULL, NULL);
    psd_ctx *c = s.ctx;
    psd_tensor a = in_of(4), shifted = psd_tensor_1d(in_data + 1, 4, PSD_F32, "shifted");
    int64_t four = 4;
    REFUSED(psd_all_reduce(c, PSD_WORLD, &a, &shifted, PSD_SUM, NULL), PSD_ERR_INVAL, "overlap");
    REFUSED(psd_all_gather(c, PSD_WORLD, &a, &shifted, NULL), PSD_ERR_INVAL, "overlap");
    REFUSED(psd_reduce_scatter(c, PSD_WORLD, &a, &shifted, PSD_SUM, NULL), PSD_ERR_INVAL, "overlap");
    REFUSED(psd_all_to_all(c, PSD_WORLD, &a, &a, NULL), PSD_ERR_INVAL, "does not work in place");
    REFUSED(psd_all_to_all_v(c, PSD_WORLD, &a, &four, &a, &four, NULL), PSD_ERR_INVAL,
            "does not work in place");
    REFUSED(psd_sendrecv(c, PSD_WORLD, &a, 0, &shifted, 0, NULL), PSD_ERR_INVAL, "overlap");
    cr_expect_eq(psd_all_reduce(c, PSD_WORLD, &a, &a, PSD_SUM, NULL), PSD_OK);
    cr_expect_eq(psd_all_gather(c, PSD_WORLD, &a, &a, NULL), PSD_OK);
    cr_expect_eq(psd_gather(c, PSD_WORLD, &a, &a, 0, NULL), PSD_OK);
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, batches_are_checked)
{
    solo s = solo_open(NULL, NULL);
    psd_ctx *c = s.ctx;
    psd_p2p ops[3] = {
        {PSD_OP_SEND, in_of(4), 0, 0},
        {PSD_OP_RECV, out_of(4), 0, 0},
        {PSD_OP_RECV, psd_tensor_1d(out_data + 2, 4, PSD_F32, "b"), 0, 1},
    };
    REFUSED(psd_batch(c, PSD_WORLD, NULL, 1, NULL), PSD_ERR_INVAL, "ops is NULL");
    REFUSED(psd_batch(c, PSD_WORLD, ops, 0, NULL), PSD_ERR_INVAL, "count is not valid");
    REFUSED(psd_batch(c, PSD_WORLD, ops, 3, NULL), PSD_ERR_INVAL, "ops[1] and ops[2] overlap");
    ops[1].kind = PSD_OP_BARRIER;
    REFUSED(psd_batch(c, PSD_WORLD, ops, 2, NULL), PSD_ERR_INVAL, "ops[1]: kind is 13");
    ops[1].kind = PSD_OP_RECV;
    ops[1].peer = 4;
    REFUSED(psd_batch(c, PSD_WORLD, ops, 2, NULL), PSD_ERR_INVAL, "ops[1]: peer is 4");
    ops[1].peer = 0;
    ops[1].tensor.data = in_data + 3;
    REFUSED(psd_batch(c, PSD_WORLD, ops, 2, NULL), PSD_ERR_INVAL, "ops[0] and ops[1] overlap");
    ops[1].tensor.data = out_data;
    cr_expect_eq(psd_batch(c, PSD_WORLD, ops, 2, NULL), PSD_OK, "%s", psd_last_error());
    cr_expect_eq(memcmp(in_data, out_data, 4 * sizeof(float)), 0);
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, a_batch_may_be_long)
{
    enum { COUNT = 100 };
    solo s = solo_open(NULL, NULL);
    static int32_t from[COUNT], to[COUNT];
    static psd_p2p ops[2 * COUNT];
    for (int i = 0; i < COUNT; i++) {
        from[i] = i;
        ops[i] = (psd_p2p){PSD_OP_RECV, psd_tensor_1d(&to[i], 1, PSD_I32, "to"), 0, i};
        ops[COUNT + i] = (psd_p2p){PSD_OP_SEND, psd_tensor_1d(&from[i], 1, PSD_I32, "from"), 0, i};
    }
    cr_assert_eq(psd_batch(s.ctx, PSD_WORLD, ops, 2 * COUNT, NULL), PSD_OK, "%s", psd_last_error());
    cr_assert_eq(memcmp(from, to, sizeof to), 0);
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, a_world_of_one_computes)
{
    solo s = solo_open(NULL, NULL);
    psd_ctx *c = s.ctx;
    psd_tensor in = in_of(8), out = out_of(8);
    int64_t eight = 8;
#define GIVES_INPUT(call)                                                                                    \
    do {                                                                                                     \
        memset(out_data, 0, sizeof out_data);                                                                \
        cr_expect_eq(call, PSD_OK, "%s", psd_last_error());                                                  \
        cr_expect_eq(memcmp(in_data, out_data, sizeof in_data), 0, "%s", #call);                             \
    } while (0)
    GIVES_INPUT(psd_all_reduce(c, PSD_WORLD, &in, &out, PSD_AVG, NULL));
    GIVES_INPUT(psd_reduce(c, PSD_WORLD, &in, &out, PSD_MAX, 0, NULL));
    GIVES_INPUT(psd_scatter(c, PSD_WORLD, &in, &out, 0, NULL));
    GIVES_INPUT(psd_gather(c, PSD_WORLD, &in, &out, 0, NULL));
    GIVES_INPUT(psd_all_gather(c, PSD_WORLD, &in, &out, NULL));
    GIVES_INPUT(psd_reduce_scatter(c, PSD_WORLD, &in, &out, PSD_PROD, NULL));
    GIVES_INPUT(psd_all_to_all(c, PSD_WORLD, &in, &out, NULL));
    GIVES_INPUT(psd_all_to_all_v(c, PSD_WORLD, &in, &eight, &out, &eight, NULL));
    GIVES_INPUT(psd_sendrecv(c, PSD_WORLD, &in, 0, &out, 0, NULL));
    cr_expect_eq(psd_barrier(c, PSD_WORLD, NULL), PSD_OK);
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, coalesced_packs_and_checks)
{
    solo s = solo_open(NULL, NULL);
    float a[3] = {1, 2, 3}, b[100], c[2] = {8, 9};
    for (int i = 0; i < 100; i++)
        b[i] = (float)i;
    psd_tensor tensors[4] = {psd_tensor_1d(a, 3, PSD_F32, "a"), psd_tensor_1d(b, 100, PSD_F32, "b"),
                             psd_tensor_1d(c, 2, PSD_F32, "c"), psd_tensor_1d(NULL, 0, PSD_F32, "none")};
    for (int64_t bucket = 0; bucket <= 64; bucket += 16)
        cr_assert_eq(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, tensors, 4, PSD_SUM, bucket, NULL), PSD_OK,
                     "%s", psd_last_error());
    cr_assert(a[2] == 3 && b[99] == 99 && c[1] == 9);
    REFUSED(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, NULL, 4, PSD_SUM, 0, NULL), PSD_ERR_INVAL,
            "tensors is NULL");
    REFUSED(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, tensors, 0, PSD_SUM, 0, NULL), PSD_ERR_INVAL,
            "count is below 1");
    REFUSED(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, tensors, 4, PSD_SUM, -1, NULL), PSD_ERR_INVAL,
            "bucket_bytes");
    REFUSED(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, tensors, 4, PSD_BOR, 0, NULL), PSD_ERR_INVAL,
            "psd_all_reduce_coalesced: ");
    expect_error_text("bor");
    psd_tensor over[] = {tensors[2], psd_tensor_1d(b + 10, 5, PSD_F32, "inside"), tensors[0], tensors[1]};
    REFUSED(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, over, 4, PSD_SUM, 0, NULL), PSD_ERR_INVAL,
            "tensors[3] and tensors[1] overlap");
    psd_tensor side_by_side[] = {psd_tensor_1d(b + 50, 50, PSD_F32, "b1"),
                                 psd_tensor_1d(b, 50, PSD_F32, "b0")};
    cr_assert_eq(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, side_by_side, 2, PSD_SUM, 0, NULL), PSD_OK);
    tensors[2].dtype = PSD_I32;
    REFUSED(psd_all_reduce_coalesced(s.ctx, PSD_WORLD, tensors, 4, PSD_SUM, 0, NULL), PSD_ERR_INVAL,
            "tensors[2] is i32");
    solo_close(&s, PSD_OK);
}

PSD_TEST(ops, an_own_deadline_breaks_the_group)
{
    solo s = solo_open(NULL, NULL);
    psd_tensor out = out_of(4);
    psd_opts opts;
    psd_opts_init(&opts);
    opts.timeout_ms = 50;
    cr_assert_eq(psd_recv(s.ctx, PSD_WORLD, &out, 0, &opts, NULL), PSD_ERR_DEADLINE);
    cr_assert_eq(psd_barrier(s.ctx, PSD_WORLD, NULL), PSD_ERR_DEADLINE);
    cr_assert(fake_psd_wait(s.psd, PSD_MSG_GROUP_FAIL, 1));
    solo_close(&s, PSD_OK); /* told already */
}
