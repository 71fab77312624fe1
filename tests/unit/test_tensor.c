#include <string.h>

#include "common/tensor.h"
#include "tests/lib/psd_test.h"

PSD_TEST(tensor, every_dtype_has_size_and_name)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 4, 8, 1, 1};
    for (int code = PSD_I8; code <= PSD_F8E5M2; code++) {
        psd_dtype parsed;
        psd_dtype dtype = (psd_dtype)code;
        cr_assert(psd_dtype_valid(code));
        cr_assert_eq(psd_dtype_bytes(dtype), sizes[code - 1]);
        cr_assert(psd_dtype_parse(psd_dtype_name(dtype), &parsed));
        cr_assert_eq(parsed, dtype);
    }
}

PSD_TEST(tensor, unknown_codes)
{
    psd_dtype dtype = PSD_F32;
    psd_redop redop = PSD_SUM;
    static const int bad[] = {-1, 0, PSD_F8E5M2 + 1, 1 << 30, -(1 << 30)};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_not(psd_dtype_valid(bad[i]));
        cr_assert_eq(psd_dtype_bytes((psd_dtype)bad[i]), 0);
        cr_assert_str_eq(psd_dtype_name((psd_dtype)bad[i]), "?");
        cr_assert_str_eq(psd_op_name((psd_op_kind)(bad[i] == PSD_F8E5M2 + 1 ? PSD_OP_GROUP_DUP + 1 : bad[i])),
                         "?");
        cr_assert_not(psd_redop_valid(bad[i]));
    }
    cr_assert_not(psd_dtype_parse("float", &dtype));
    cr_assert_not(psd_dtype_parse("", &dtype));
    cr_assert_eq(dtype, PSD_F32);
    cr_assert_not(psd_redop_parse("-", &redop));
    cr_assert_eq(redop, PSD_SUM);
    cr_assert_str_eq(psd_redop_name((psd_redop)0), "-");
    cr_assert_str_eq(psd_redop_name((psd_redop)9), "?");
}

PSD_TEST(tensor, redop_names_round_trip)
{
    for (int code = PSD_SUM; code <= PSD_BXOR; code++) {
        psd_redop parsed;
        cr_assert(psd_redop_parse(psd_redop_name((psd_redop)code), &parsed));
        cr_assert_eq((int)parsed, code);
    }
}

PSD_TEST(tensor, what_may_be_reduced)
{
    static const psd_dtype moved_only[] = {PSD_I16, PSD_U16, PSD_BOOL, PSD_F8E4M3, PSD_F8E5M2};
    for (size_t i = 0; i < sizeof moved_only / sizeof moved_only[0]; i++) {
        for (int redop = PSD_SUM; redop <= PSD_BXOR; redop++)
            cr_assert_not(psd_redop_allowed((psd_redop)redop, moved_only[i]));
    }
    cr_assert(psd_redop_allowed(PSD_AVG, PSD_BF16));
    cr_assert(psd_redop_allowed(PSD_AVG, PSD_I32));
    cr_assert(psd_redop_allowed(PSD_BXOR, PSD_U64));
    cr_assert_not(psd_redop_allowed(PSD_BAND, PSD_F32));
    cr_assert_not(psd_redop_allowed((psd_redop)0, PSD_F32));
    cr_assert_not(psd_redop_allowed(PSD_SUM, (psd_dtype)0));
    cr_assert(psd_dtype_is_integer(PSD_U64));
    cr_assert_not(psd_dtype_is_integer(PSD_BOOL));
    cr_assert_not(psd_dtype_is_integer(PSD_F32));
}

PSD_TEST(tensor, shapes)
{
    int64_t count = -1;
    cr_assert(psd_shape_count((int64_t[]){2, 3, 4}, 3, PSD_F32, &count));
    cr_assert_eq(count, 24);
    cr_assert(psd_shape_count(NULL, 0, PSD_F32, &count));
    cr_assert_eq(count, 1);
    cr_assert(psd_shape_count((int64_t[]){5, 0}, 2, PSD_F32, &count));
    cr_assert_eq(count, 0);
    count = -1;
    cr_assert_not(psd_shape_count((int64_t[]){-1}, 1, PSD_F32, &count));
    cr_assert_not(psd_shape_count((int64_t[]){INT64_MAX}, 1, PSD_F32, &count));
    cr_assert_not(psd_shape_count((int64_t[]){1 << 30, 1 << 30, 16}, 3, PSD_U8, &count));
    cr_assert_not(psd_shape_count((int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, PSD_MAX_DIMS + 1, PSD_U8, &count));
    cr_assert_not(psd_shape_count(NULL, -1, PSD_U8, &count));
    cr_assert_eq(count, -1);
}

PSD_TEST(tensor, operation_names)
{
    cr_assert_str_eq(psd_op_name(PSD_OP_SEND), "send");
    cr_assert_str_eq(psd_op_name(PSD_OP_ALL_TO_ALL_V), "all_to_all_v");
    cr_assert_str_eq(psd_op_name(PSD_OP_BARRIER), "barrier");
}
