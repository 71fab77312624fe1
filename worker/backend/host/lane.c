#include "worker/backend/host/lane.h"

#include <string.h>

#define SKIP        UINT32_MAX /* as bytes: the rest of the lap is empty */
#define LEAST_BYTES ((uint64_t)2 << 10)
#define MOST_BYTES  ((uint64_t)32 << 10) /* stays in a first-level cache beside the program's data */
#define SHARE       8                    /* of a ring */
#define PARTS       4 /* of a lane: the longest payload is one, and the reader's index moves by one */

size_t lane_bytes(uint64_t ring_bytes)
{
    uint64_t bytes = ring_bytes / SHARE;
    return (size_t)(bytes < LEAST_BYTES ? LEAST_BYTES : bytes > MOST_BYTES ? MOST_BYTES : bytes);
}

void lane_writer_init(lane_writer *w, lane_shared *shared, void *lines, size_t bytes)
{
    memset(w, 0, sizeof *w);
    w->shared = shared;
    w->lines = lines;
    w->size = (uint32_t)(bytes / LANE_LINE);
    w->most = (uint32_t)(bytes / PARTS);
}

void lane_reader_init(lane_reader *r, lane_shared *shared, const void *lines, size_t bytes)
{
    memset(r, 0, sizeof *r);
    r->shared = shared;
    r->lines = lines;
    r->size = (uint32_t)(bytes / LANE_LINE);
    r->most = (uint32_t)(bytes / PARTS);
}

/* Lines of a message with its header. */
static uint32_t lines_of(uint32_t bytes)
{
    return bytes <= LANE_INLINE ? 1 : 1 + (bytes + LANE_LINE - 1) / LANE_LINE;
}

static uint32_t number_of(uint64_t position)
{
    return (uint32_t)position | 1;
}

/* Are so many lines free? Asks the reader only when there seem to be too few. */
static bool has_room(lane_writer *w, uint64_t lines)
{
    if (w->size - (w->tail - w->head_seen) >= lines)
        return true;
    uint64_t head = atomic_load_explicit(&w->shared->head, memory_order_acquire);
    if (w->tail - head > w->size) {
        w->corrupt = true;
        return false;
    }
    w->head_seen = head;
    return w->size - (w->tail - head) >= lines;
}

/* The message at the tail is written but for its number. */
static void publish(lane_writer *w, uint32_t lines)
{
    lane_line *next = &w->lines[(w->tail + lines) & (w->size - 1)];
    atomic_store_explicit(&next->number, 0, memory_order_relaxed);
    atomic_store_explicit(&w->lines[w->tail & (w->size - 1)].number, number_of(w->tail),
                          memory_order_release);
    w->tail += lines;
}

bool lane_write(lane_writer *w, const lane_message *m, const void *payload)
{
    uint32_t lines = lines_of(m->bytes);
    uint32_t at = (uint32_t)w->tail & (w->size - 1);
    uint32_t skipped = w->size - at < lines ? w->size - at : 0;
    if (m->bytes > w->most || w->corrupt || !has_room(w, (uint64_t)skipped + lines + 1))
        return false;
    if (skipped > 0) {
        w->lines[at].bytes = SKIP;
        publish(w, skipped);
        at = 0;
    }
    lane_line *line = &w->lines[at];
    line->ring_at = m->ring_at;
    line->kind = m->kind;
    line->dtype = m->dtype;
    line->redop = m->redop;
    line->channel = m->channel;
    line->bytes = m->bytes;
    line->group = m->group;
    line->source = m->source;
    line->tag = m->tag;
    line->count = m->count;
    line->ordinal = m->ordinal;
    if (m->bytes > 0)
        memcpy(lines == 1 ? line->payload : (unsigned char *)(line + 1), payload, m->bytes);
    publish(w, lines);
    return true;
}

static void go_past(lane_reader *r, uint32_t lines)
{
    r->head += lines;
    if (r->head - r->told < r->size / PARTS)
        return;
    r->told = r->head;
    atomic_store_explicit(&r->shared->head, r->head, memory_order_release);
}

static const void *give_up(lane_reader *r)
{
    r->corrupt = true;
    return NULL;
}

const void *lane_peek(lane_reader *r, lane_message *out)
{
    for (;;) {
        uint32_t at = (uint32_t)r->head & (r->size - 1);
        const lane_line *line = &r->lines[at];
        if (!lane_readable(r))
            return NULL;
        if (atomic_load_explicit(&line->number, memory_order_relaxed) != number_of(r->head))
            return give_up(r);
        uint32_t bytes =
            __atomic_load_n(&line->bytes, __ATOMIC_RELAXED); /* once: the writer may be hostile */
        if (bytes == SKIP && at != 0) {
            go_past(r, r->size - at);
            continue;
        }
        uint32_t lines = bytes <= r->most ? lines_of(bytes) : UINT32_MAX;
        if (lines > r->size - at)
            return give_up(r);
        out->ring_at = line->ring_at;
        out->kind = line->kind;
        out->dtype = line->dtype;
        out->redop = line->redop;
        out->channel = line->channel;
        out->bytes = bytes;
        out->group = line->group;
        out->source = line->source;
        out->tag = line->tag;
        out->count = line->count;
        out->ordinal = line->ordinal;
        r->taken = lines;
        return lines == 1 ? line->payload : (const unsigned char *)(line + 1);
    }
}

void lane_take(lane_reader *r)
{
    go_past(r, r->taken);
}
