/* The ring alone: wrap-around, fullness, and peers that write nonsense into the indices. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "worker/backend/host/ring.h"

#define SIZE 4096

typedef struct fixture {
    ring_shared shared;
    unsigned char data[SIZE];
    ring_writer w;
    ring_reader r;
} fixture;

static void setup(fixture *f)
{
    memset(f, 0, sizeof *f);
    ring_writer_init(&f->w, &f->shared, f->data, SIZE);
    ring_reader_init(&f->r, &f->shared, f->data, SIZE);
}

static size_t put(fixture *f, const void *data, size_t bytes)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    return ring_write(&f->w, &iov, 1);
}

PSD_TEST(ring, empty_and_full)
{
    fixture f;
    unsigned char in[SIZE + 10];
    unsigned char out[SIZE + 10];
    setup(&f);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 7);
    cr_assert_not(ring_readable(&f.r));
    cr_assert(ring_writable(&f.w));
    cr_assert_eq(ring_read(&f.r, out, sizeof out), 0);
    cr_assert_eq(put(&f, in, sizeof in), SIZE);
    cr_assert_not(ring_writable(&f.w));
    cr_assert(ring_room_wanted(&f.r));
    cr_assert_eq(put(&f, in, 1), 0);
    cr_assert_eq(ring_read(&f.r, out, 1), 1);
    cr_assert(ring_writable(&f.w));
    cr_assert_eq(put(&f, in + SIZE, 1), 1);
    cr_assert_not(ring_room_wanted(&f.r));
    cr_assert_eq(ring_read(&f.r, out + 1, sizeof out - 1), SIZE);
    cr_assert_eq(memcmp(in, out, SIZE + 1), 0);
}

PSD_TEST(ring, gathers_and_wraps)
{
    fixture f;
    unsigned char in[3000];
    unsigned char out[3000];
    setup(&f);
    for (size_t round = 0; round < 100; round++) {
        for (size_t i = 0; i < sizeof in; i++)
            in[i] = (unsigned char)(i + round * 13);
        struct iovec iov[4] = {{in, 1}, {NULL, 0}, {in + 1, 1999}, {in + 2000, 1000}};
        cr_assert_eq(ring_write(&f.w, iov, 4), sizeof in);
        for (size_t got = 0; got < sizeof out;)
            got += ring_read(&f.r, out + got, 1 + (round * 37 + got) % (sizeof out - got));
        cr_assert_eq(memcmp(in, out, sizeof in), 0, "round %zu", round);
    }
}

PSD_TEST(ring, impossible_tail)
{
    const uint64_t bad[] = {SIZE + 1, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - SIZE};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fixture f;
        unsigned char out[64];
        setup(&f);
        f.shared.tail = bad[i];
        cr_assert(ring_readable(&f.r), "it must be looked at");
        cr_assert_eq(ring_read(&f.r, out, sizeof out), 0);
        cr_assert(f.r.corrupt);
        f.shared.tail = 10;
        cr_assert_eq(ring_read(&f.r, out, sizeof out), 0, "stays corrupt");
    }
}

PSD_TEST(ring, tail_that_goes_back)
{
    fixture f;
    unsigned char bytes[100] = {0};
    setup(&f);
    cr_assert_eq(put(&f, bytes, 100), 100);
    cr_assert_eq(ring_read(&f.r, bytes, 100), 100);
    f.shared.tail = 50;
    cr_assert_eq(ring_read(&f.r, bytes, 100), 0);
    cr_assert(f.r.corrupt);
}

PSD_TEST(ring, impossible_head)
{
    const uint64_t bad[] = {SIZE + 1, UINT64_MAX, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fixture f;
        unsigned char in[SIZE] = {0};
        setup(&f);
        cr_assert_eq(put(&f, in, SIZE), SIZE);
        f.shared.head = bad[i];
        cr_assert(ring_writable(&f.w), "it must be looked at");
        cr_assert_eq(put(&f, in, 1), 0);
        cr_assert(f.w.corrupt);
    }
}

PSD_TEST(ring, peek_gives_pieces_up_to_the_end_and_take_makes_room)
{
    fixture f;
    unsigned char in[SIZE];
    size_t bytes = 1;
    setup(&f);
    for (size_t i = 0; i < SIZE; i++)
        in[i] = (unsigned char)(i * 7);
    (void)ring_peek(&f.r, &bytes);
    cr_assert_eq(bytes, 0);
    cr_assert_eq(put(&f, in, 1000), 1000);
    cr_assert_eq(ring_read(&f.r, in, 1000), 1000);
    cr_assert_eq(put(&f, in, SIZE), SIZE);
    const unsigned char *at = ring_peek(&f.r, &bytes);
    cr_assert_eq(bytes, SIZE - 1000);
    cr_assert_eq(memcmp(at, in, bytes), 0);
    cr_assert_eq(put(&f, in, 1), 0);
    ring_take(&f.r, 10);
    cr_assert_eq(put(&f, in, SIZE), 10);
    at = ring_peek(&f.r, &bytes);
    cr_assert_eq(bytes, SIZE - 1010);
    ring_take(&f.r, bytes);
    at = ring_peek(&f.r, &bytes);
    cr_assert_eq(bytes, 1000, "what came since is seen when this is gone");
    cr_assert_eq(memcmp(at, in + SIZE - 1000, 1000), 0);
    f.shared.tail = f.r.head + bytes + SIZE + 1;
    ring_take(&f.r, bytes);
    (void)ring_peek(&f.r, &bytes);
    cr_assert_eq(bytes, 0);
    cr_assert(f.r.corrupt);
}
