/* A byte ring for one writer and one reader in memory that both map.
 *
 * Indices count bytes since the start and never wrap in practice (64 bits). Each side keeps its own index in
 * private memory and only publishes it; of the shared memory it reads nothing but the other side's index, and
 * believes it only if the distance fits the ring. So a peer that writes nonsense breaks the ring but cannot
 * make us leave it.
 *
 * Publishing is a release store. Who must wake a sleeping peer does the fence of bell.h before it looks at the
 * peer's bell: that is not part of the ring. */
#ifndef PSD_HOST_RING_H
#define PSD_HOST_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/* Two cache lines apart: the adjacent-line prefetcher pairs them. */
typedef struct ring_shared {
    _Alignas(128) _Atomic uint64_t tail; /* written by the writer: bytes put in */
    _Atomic uint32_t wants_room;         /* by the writer: 1 after a write that did not fit */
    _Alignas(128) _Atomic uint64_t head; /* written by the reader: bytes taken out */
} ring_shared;

typedef struct ring_writer {
    ring_shared *shared;
    unsigned char *data;
    uint64_t size; /* a power of two */
    uint64_t tail;
    uint64_t head_seen;
    bool waiting; /* what wants_room says */
    bool corrupt; /* the reader's index is impossible; nothing is written any more */
} ring_writer;

typedef struct ring_reader {
    ring_shared *shared;
    const unsigned char *data;
    uint64_t size;
    uint64_t head;
    uint64_t tail_seen;
    bool corrupt;
} ring_reader;

/* `shared` is zeroed memory and `data` has `size` bytes; both are borrowed. */
void ring_writer_init(ring_writer *w, ring_shared *shared, void *data, uint64_t size);
void ring_reader_init(ring_reader *r, ring_shared *shared, const void *data, uint64_t size);

/* Puts in as much as fits; 0 when full or corrupt. Large amounts are published piece by piece. */
size_t ring_write(ring_writer *w, const struct iovec *iov, int count);
/* Takes out what is there, `bytes` at most; 0 when empty or corrupt. */
size_t ring_read(ring_reader *r, void *to, size_t bytes);

/* Where the next bytes lie, and how many in one piece, not more than are worth publishing together; 0 when empty
 * or corrupt. They stay, and the writer may change them, until ring_take() gives up that many or fewer. */
const void *ring_peek(ring_reader *r, size_t *bytes);
void ring_take(ring_reader *r, size_t bytes);

/* One load. An impossible index counts as readable or writable, so that the next call finds it. */
static inline bool ring_readable(const ring_reader *r)
{
    return r->tail_seen != r->head || atomic_load_explicit(&r->shared->tail, memory_order_acquire) != r->head;
}

static inline bool ring_writable(const ring_writer *w)
{
    return w->tail - w->head_seen != w->size ||
           w->tail - atomic_load_explicit(&w->shared->head, memory_order_acquire) != w->size;
}

/* Does the writer of this ring wait for room? A hint: the writer can say what it likes. */
static inline bool ring_room_wanted(const ring_reader *r)
{
    return atomic_load_explicit(&r->shared->wants_room, memory_order_relaxed) != 0;
}

#endif
