/* Headers of the mpi backend's frames: what is legal, whatever comes. And how operations are told. */
#include <string.h>

#include "tests/lib/psd_test.h"
#include "worker/backend/mpi/frame.h"

static frame legal(frame_type type)
{
    frame f;
    memset(&f, 0, sizeof f);
    f.magic = FRAME_MAGIC;
    f.type = (uint8_t)type;
    f.kind = PSD_OP_SEND;
    f.dtype = PSD_F32;
    f.count = 4;
    f.bytes = 16;
    f.payload = type == FRAME_EAGER ? 16 : 0;
    return f;
}

static size_t length(const frame *f)
{
    return sizeof *f + f->payload;
}

static void expect_refused(frame f, size_t received, const char *text)
{
    char why[160] = "";
    cr_assert_not(frame_check(&f, received, why, sizeof why));
    cr_assert(strstr(why, text) != NULL, "\"%s\" is not in: %s", text, why);
}

PSD_TEST(mpi_frame, legal_ones_pass)
{
    char why[160] = "";
    for (int type = FRAME_EAGER; type < FRAME_TYPES; type++) {
        frame f = legal((frame_type)type);
        cr_assert(frame_check(&f, length(&f), why, sizeof why), "type %d: %s", type, why);
    }
}

PSD_TEST(mpi_frame, lengths_are_checked)
{
    frame f = legal(FRAME_EAGER);
    expect_refused(f, 0, "shorter than a header");
    expect_refused(f, sizeof f - 1, "shorter than a header");
    expect_refused(f, length(&f) - 1, "of a wrong length");
    expect_refused(f, length(&f) + 1, "of a wrong length");
    f = legal(FRAME_RTS);
    f.payload = 8;
    expect_refused(f, length(&f), "of a wrong length");
}

PSD_TEST(mpi_frame, headers_must_agree_with_themselves)
{
    frame f = legal(FRAME_EAGER);
    f.magic = 1;
    expect_refused(f, length(&f), "not psd's");
    f = legal(FRAME_TYPES);
    expect_refused(f, length(&f), "unknown type");
    f = legal(FRAME_EAGER);
    f.bytes = 12;
    expect_refused(f, length(&f), "contradicts itself");
    f = legal(FRAME_RTS);
    f.count = -1;
    expect_refused(f, length(&f), "contradicts itself");
    f = legal(FRAME_RTS);
    f.bytes = UINT64_MAX;
    expect_refused(f, length(&f), "contradicts itself");
    f = legal(FRAME_RTS);
    f.dtype = 99;
    expect_refused(f, length(&f), "contradicts itself");
    f = legal(FRAME_RTS);
    f.tag = -1;
    expect_refused(f, length(&f), "contradicts itself");
    f = legal(FRAME_RTS);
    f.channel = FRAME_COLL;
    expect_refused(f, length(&f), "contradicts itself");
    f = legal(FRAME_CTS);
    f.bytes = 0;
    expect_refused(f, length(&f), "contradicts itself");
    f = legal(FRAME_CTS);
    f.bytes = (uint64_t)INT32_MAX + 1;
    expect_refused(f, length(&f), "contradicts itself");
}

PSD_TEST(mpi_frame, labels_are_made_printable)
{
    char why[160];
    frame f = legal(FRAME_RTS);
    memset(f.label, 'a', sizeof f.label);
    cr_assert(frame_check(&f, length(&f), why, sizeof why));
    cr_assert_eq(strlen(f.label), FRAME_LABEL - 1);
    f.label[3] = (char)0xff;
    cr_assert(frame_check(&f, length(&f), why, sizeof why));
    cr_assert_str_eq(f.label, "aaa");
    f.label[1] = '\n';
    cr_assert(frame_check(&f, length(&f), why, sizeof why));
    cr_assert_str_eq(f.label, "a?a");
}

PSD_TEST(mpi_frame, fingerprints_are_told)
{
    char text[200];
    fingerprint a = {PSD_OP_ALL_REDUCE, PSD_F32, PSD_SUM, -1, 100};
    fingerprint b = {PSD_OP_BROADCAST, PSD_I8, 0, 2, 7};
    fingerprint c = {PSD_OP_BARRIER, 0, 0, -1, 0};
    cr_assert(fingerprint_equal(&a, &a));
    cr_assert_not(fingerprint_equal(&a, &b));
    fingerprint_format(&a, "all_reduce \"grad\" at train.c:12", text, sizeof text);
    cr_assert_str_eq(text, "all_reduce f32 count 100 sum (all_reduce \"grad\" at train.c:12)");
    fingerprint_format(&b, NULL, text, sizeof text);
    cr_assert_str_eq(text, "broadcast i8 count 7 root 2");
    fingerprint_format(&c, "", text, sizeof text);
    cr_assert_str_eq(text, "barrier");
}
