/* A lane alone: order, wrap-around, fullness, and a writer or reader that writes nonsense. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "worker/backend/host/lane.h"

#define RING  ((uint64_t)256 << 10)
#define BYTES ((size_t)32 << 10)

typedef struct fixture {
    lane_shared shared;
    _Alignas(64) unsigned char lines[BYTES];
    lane_writer w;
    lane_reader r;
} fixture;

static fixture *open_lane(void)
{
    fixture *f = aligned_alloc(128, (sizeof *f + 127) / 128 * 128);
    cr_assert_not_null(f);
    memset(f, 0, sizeof *f);
    lane_writer_init(&f->w, &f->shared, f->lines, BYTES);
    lane_reader_init(&f->r, &f->shared, f->lines, BYTES);
    return f;
}

static lane_message message_of(uint32_t i, uint32_t bytes)
{
    lane_message m = {.ring_at = i * 3,
                      .kind = (uint8_t)i,
                      .dtype = 2,
                      .redop = 3,
                      .channel = 1,
                      .bytes = bytes,
                      .group = i + 5,
                      .source = i + 6,
                      .tag = -(int32_t)i,
                      .count = i + 7,
                      .ordinal = (uint64_t)i << 33};
    return m;
}

static void fill(unsigned char *data, uint32_t bytes, uint32_t i)
{
    for (uint32_t k = 0; k < bytes; k++)
        data[k] = (unsigned char)(0xff - k - i); /* never 0 where a number would be looked for */
}

static bool put(fixture *f, uint32_t i, uint32_t bytes)
{
    static unsigned char data[BYTES];
    lane_message m = message_of(i, bytes);
    fill(data, bytes, i);
    return lane_write(&f->w, &m, data);
}

static bool same(const lane_message *a, const lane_message *b)
{
    return a->ring_at == b->ring_at && a->kind == b->kind && a->dtype == b->dtype && a->redop == b->redop &&
           a->channel == b->channel && a->bytes == b->bytes && a->group == b->group &&
           a->source == b->source && a->tag == b->tag && a->count == b->count && a->ordinal == b->ordinal;
}

static void get(fixture *f, uint32_t i, uint32_t bytes)
{
    static unsigned char want[BYTES];
    lane_message m, expected = message_of(i, bytes);
    cr_assert(lane_readable(&f->r));
    const void *payload = lane_peek(&f->r, &m);
    cr_assert_not_null(payload);
    cr_assert(same(&m, &expected), "message %u", i);
    fill(want, bytes, i);
    cr_assert_eq(memcmp(payload, want, bytes), 0, "message %u of %u bytes", i, bytes);
    lane_take(&f->r);
}

PSD_TEST(lane, sizes)
{
    cr_assert_eq(lane_bytes(RING), BYTES);
    cr_assert_eq(lane_bytes((uint64_t)1 << 30), BYTES);
    cr_assert_eq(lane_bytes(4096), 2048);
    cr_assert_eq(lane_bytes((uint64_t)64 << 10), 8192);
}

PSD_TEST(lane, one_message_after_the_other)
{
    static const uint32_t sizes[] = {0, 1, 4, LANE_INLINE, LANE_INLINE + 1, 64, 65, 1000, 4096, 8192};
    fixture *f = open_lane();
    lane_message m;
    cr_assert_not(lane_readable(&f->r));
    cr_assert_null(lane_peek(&f->r, &m));
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t bytes = sizes[i * 7 % 10];
        cr_assert(put(f, i, bytes), "message %u", i);
        get(f, i, bytes);
        cr_assert_not(lane_readable(&f->r), "message %u", i);
    }
    free(f);
}

PSD_TEST(lane, many_before_any_is_read)
{
    fixture *f = open_lane();
    uint32_t written = 0, read = 0;
    for (uint32_t round = 0; round < 200; round++) {
        while (put(f, written, written * 37 % 700))
            written++;
        cr_assert_gt(written, read, "it holds some");
        uint32_t leave = round % 3;
        for (; read + leave < written; read++)
            get(f, read, read * 37 % 700);
    }
    free(f);
}

PSD_TEST(lane, what_does_not_fit_is_refused)
{
    fixture *f = open_lane();
    cr_assert_eq(f->w.most, 8192);
    cr_assert_not(put(f, 0, 8193));
    for (uint32_t i = 0; i < BYTES / LANE_LINE - 1; i++)
        cr_assert(put(f, i, 0), "line %u", i);
    cr_assert_not(put(f, 511, 0), "one line stays empty: its number says that nothing begins there");
    for (uint32_t i = 0; i < BYTES / LANE_LINE - 1; i++)
        get(f, i, 0);
    cr_assert_not(lane_readable(&f->r));
    cr_assert(put(f, 511, 8192));
    get(f, 511, 8192);
    free(f);
}

static lane_line *line_at(fixture *f, size_t at)
{
    return (lane_line *)(void *)f->lines + at;
}

static void expect_corrupt(fixture *f)
{
    lane_message m;
    cr_expect_null(lane_peek(&f->r, &m));
    cr_expect(f->r.corrupt);
    cr_expect_not(lane_readable(&f->r));
    free(f);
}

PSD_TEST(lane, nonsense_from_the_writer)
{
    static const uint32_t bad[] = {8193, 65536, UINT32_MAX - 1, UINT32_MAX, (uint32_t)INT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fixture *f = open_lane();
        line_at(f, 0)->bytes = bad[i]; /* UINT32_MAX: to skip a whole lap */
        line_at(f, 0)->number = 1;
        expect_corrupt(f);
    }
    fixture *f = open_lane();
    line_at(f, 0)->number = 3;
    expect_corrupt(f);
    f = open_lane();
    for (uint32_t i = 0; i < 500; i++) {
        cr_assert(put(f, i, 0));
        get(f, i, 0);
    }
    line_at(f, 500)->bytes = 4096; /* beyond the end of the lane */
    line_at(f, 500)->number = 501;
    expect_corrupt(f);
}

PSD_TEST(lane, nonsense_from_the_reader)
{
    static const uint64_t bad[] = {512, UINT64_MAX - 1, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fixture *f = open_lane();
        while (put(f, 0, 0))
            continue;
        f->shared.head = bad[i];
        cr_expect_not(put(f, 0, 0));
        cr_expect(f->w.corrupt);
        f->shared.head = f->w.tail;
        cr_expect_not(put(f, 0, 0), "it stays so");
        free(f);
    }
}
