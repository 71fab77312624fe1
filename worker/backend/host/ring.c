#include "worker/backend/host/ring.h"

#include <string.h>

/* Bytes copied before they are published: small enough that the other side works at the same time, in its
 * cache. */
#define PIECE ((uint64_t)16 << 10)

void ring_writer_init(ring_writer *w, ring_shared *shared, void *data, uint64_t size)
{
    memset(w, 0, sizeof *w);
    w->shared = shared;
    w->data = data;
    w->size = size;
}

void ring_reader_init(ring_reader *r, ring_shared *shared, const void *data, uint64_t size)
{
    memset(r, 0, sizeof *r);
    r->shared = shared;
    r->data = data;
    r->size = size;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Free bytes, asking the reader only when there seem to be none. */
static uint64_t writer_room(ring_writer *w)
{
    uint64_t room = w->size - (w->tail - w->head_seen);
    if (room > 0)
        return room;
    uint64_t head = atomic_load_explicit(&w->shared->head, memory_order_acquire);
    if (w->tail - head > w->size) {
        w->corrupt = true;
        return 0;
    }
    w->head_seen = head;
    return w->size - (w->tail - head);
}

static void writer_wait(ring_writer *w, bool waiting)
{
    if (w->waiting == waiting)
        return;
    w->waiting = waiting;
    atomic_store_explicit(&w->shared->wants_room, waiting ? 1 : 0, memory_order_relaxed);
}

static void put(ring_writer *w, const unsigned char *from, uint64_t bytes)
{
    uint64_t at = w->tail & (w->size - 1);
    uint64_t first = min_u64(bytes, w->size - at);
    memcpy(w->data + at, from, first);
    if (first < bytes)
        memcpy(w->data, from + first, bytes - first);
    w->tail += bytes;
}

size_t ring_write(ring_writer *w, const struct iovec *iov, int count)
{
    size_t done = 0;
    uint64_t published = w->tail;
    if (w->corrupt)
        return 0;
    for (int i = 0; i < count; i++) {
        const unsigned char *from = iov[i].iov_base;
        uint64_t left = iov[i].iov_len;
        while (left > 0) {
            uint64_t bytes = min_u64(min_u64(left, PIECE), writer_room(w));
            if (bytes == 0)
                goto full;
            put(w, from, bytes);
            from += bytes;
            left -= bytes;
            done += bytes;
            if (w->tail - published >= PIECE) {
                atomic_store_explicit(&w->shared->tail, w->tail, memory_order_release);
                published = w->tail;
            }
        }
    }
    writer_wait(w, false);
    atomic_store_explicit(&w->shared->tail, w->tail, memory_order_release);
    return done;
full:
    writer_wait(w, true);
    atomic_store_explicit(&w->shared->tail, w->tail, memory_order_release);
    return done;
}

/* Bytes to read, asking the writer only when there seem to be none. */
static uint64_t reader_available(ring_reader *r)
{
    if (r->tail_seen != r->head)
        return r->tail_seen - r->head;
    uint64_t tail = atomic_load_explicit(&r->shared->tail, memory_order_acquire);
    if (tail - r->head > r->size) {
        r->corrupt = true;
        return 0;
    }
    r->tail_seen = tail;
    return tail - r->head;
}

size_t ring_read(ring_reader *r, void *to, size_t bytes)
{
    unsigned char *out = to;
    size_t done = 0;
    if (r->corrupt)
        return 0;
    while (done < bytes) {
        uint64_t at = r->head & (r->size - 1);
        uint64_t piece = min_u64(min_u64(bytes - done, PIECE), min_u64(reader_available(r), r->size - at));
        if (piece == 0)
            break;
        memcpy(out + done, r->data + at, piece);
        done += piece;
        r->head += piece;
        atomic_store_explicit(&r->shared->head, r->head, memory_order_release);
    }
    return done;
}

const void *ring_peek(ring_reader *r, size_t *bytes)
{
    uint64_t at = r->head & (r->size - 1);
    *bytes = r->corrupt ? 0 : (size_t)min_u64(min_u64(reader_available(r), r->size - at), PIECE);
    return r->data + at;
}

void ring_take(ring_reader *r, size_t bytes)
{
    r->head += bytes;
    atomic_store_explicit(&r->shared->head, r->head, memory_order_release);
}
