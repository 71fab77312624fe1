/* A lane: small messages between one writer and one reader in memory that both map, each as whole cache lines.
 *
 * A message begins on a line of its own with a header; up to LANE_INLINE bytes of payload are in the same line, more
 * begin on the next one and lie in one piece. The header's number, stored last, tells that the message is there, so a
 * small message is one line that travels, and its reader looks at nothing else. The writer clears the number of the
 * line after a message before it publishes the message: so what lies there from earlier laps is never taken for one.
 *
 * A lane is the fast way beside a ring (ring.h) and keeps one order with it: a message says where the ring's end was
 * when it was written, and is to be taken when all before that has been read from the ring.
 *
 * Of the shared memory the reader believes nothing: it copies a header, checks it, and breaks the lane if it cannot
 * be. The writer believes the reader's index only if the distance fits the lane. */
#ifndef PSD_HOST_LANE_H
#define PSD_HOST_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LANE_LINE   64u
#define LANE_INLINE 24u

/* What a message says of itself; what each field means is the user's, but for `ring_at` and `bytes`. */
typedef struct lane_message {
    uint32_t ring_at; /* low bits of the ring's tail when it was written */
    uint8_t kind;
    uint8_t dtype;
    uint8_t redop;
    uint8_t channel;
    uint32_t bytes; /* of the payload */
    uint32_t group;
    uint32_t source;
    int32_t tag;
    uint32_t count;
    uint64_t ordinal;
} lane_message;

typedef struct lane_line {
    _Atomic uint32_t number; /* of the line since the start, never 0; 0: no message begins here */
    uint32_t ring_at;
    uint8_t kind, dtype, redop, channel;
    uint32_t bytes;
    uint32_t group;
    uint32_t source;
    int32_t tag;
    uint32_t count;
    uint64_t ordinal;
    unsigned char payload[LANE_INLINE];
} lane_line;

_Static_assert(sizeof(lane_line) == LANE_LINE, "a header is one line");

/* On a line of its own: the adjacent-line prefetcher pairs two. */
typedef struct lane_shared {
    _Alignas(128) _Atomic uint64_t head; /* written by the reader now and then: lines given back */
} lane_shared;

typedef struct lane_writer {
    lane_shared *shared;
    lane_line *lines;
    uint32_t size; /* lines, a power of two; 0: there is no lane */
    uint32_t most; /* bytes of a payload */
    uint64_t tail;
    uint64_t head_seen;
    bool corrupt; /* the reader's index is impossible; nothing is written any more */
} lane_writer;

typedef struct lane_reader {
    lane_shared *shared;
    const lane_line *lines;
    uint32_t size;
    uint32_t most;
    uint64_t head;
    uint64_t told;  /* what shared->head says */
    uint32_t taken; /* lines of the message that was peeked at */
    bool corrupt;
} lane_reader;

/* Bytes of a lane beside rings of this size: a power of two of at least 2 KiB. */
size_t lane_bytes(uint64_t ring_bytes);

/* `shared` and `lines` are zeroed memory, `bytes` as lane_bytes() says; both are borrowed. */
void lane_writer_init(lane_writer *w, lane_shared *shared, void *lines, size_t bytes);
void lane_reader_init(lane_reader *r, lane_shared *shared, const void *lines, size_t bytes);

/* False, and nothing happens: there is no room, or the payload is longer than w->most. */
bool lane_write(lane_writer *w, const lane_message *m, const void *payload);

/* One load: is a message there? */
static inline bool lane_readable(const lane_reader *r)
{
    return r->size != 0 && !r->corrupt &&
           atomic_load_explicit(&r->lines[r->head & (r->size - 1)].number, memory_order_acquire) != 0;
}

/* The next message, copied to *out, and where its payload lies, which the writer can change meanwhile; NULL: there is
 * none, or the lane is corrupt. It stays until lane_take(). */
const void *lane_peek(lane_reader *r, lane_message *out);
void lane_take(lane_reader *r);

#endif
