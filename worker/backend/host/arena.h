/* Memory that the peers of this host map: one sealed memfd for each context, as large as anybody may need and sparse,
 * so that only what is in use takes memory. What lies in it is named by its place, the offset: a peer reads and writes
 * it there without a copy in between. Its fd travels in the handshake of a link. Under the engine's lock. */
#ifndef PSD_HOST_ARENA_H
#define PSD_HOST_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/psd_types.h"

#define ARENA_BLOCK_MIN ((size_t)16 << 10) /* less is not worth pages of its own */

typedef struct arena_block {
    uint64_t place;
    uint64_t bytes;   /* whole pages */
    bool is_detached; /* the place is used no more: see arena_detach() */
} arena_block;

/* Whole pages, from one place up to another. */
typedef struct arena_range {
    uint64_t from, end;
} arena_range;

/* Our own. */
typedef struct arena {
    int fd; /* -1: there is none */
    unsigned char *base;
    uint64_t bytes;      /* of the memfd and of its mapping */
    arena_block *blocks; /* `count` of them, by place */
    size_t count;
    size_t capacity;
    arena_range *ranges; /* `range_count` detached ones, none twice */
    size_t range_count;
    pid_t pid; /* whose it is: a forked child shares the pages, and must not free them */
} arena;

/* As large as twice this machine's memory, less where limits on files or address space say so. On failure `why`
 * tells, and there is none. */
psd_status arena_open(arena *a, char *why, size_t why_bytes);
/* Also one that is not open. */
void arena_close(arena *a);

/* Zeroed, on pages of its own, in huge pages where they fit. NULL: no arena, no place or no memory. */
void *arena_get(arena *a, size_t bytes);
/* False: `memory` is not from arena_get(). */
bool arena_put(arena *a, void *memory);
/* Where these bytes lie; false if not, all of them, in memory of arena_get(). */
bool arena_place(const arena *a, const void *data, uint64_t bytes, uint64_t *place);
/* For memory that a peer may write to later, though nobody waits for it any more: the pages that these bytes lie in get
 * new memory, with what they hold now, and are seen by no peer from then on. Other bytes of the first and the last page go
 * along: what this process writes to them meanwhile is kept; what peers write to them later is lost, so the operations
 * in which they do must not succeed (arena_share_page). What peers read of them stays as it is now. Where there is no
 * memory for it, the pages stay; no other block comes to lie there. */
void arena_detach(arena *a, const void *data, uint64_t bytes);
/* Does detaching one take pages of the other along? */
bool arena_share_page(const void *data, uint64_t bytes, const void *other, uint64_t other_bytes);

/* A peer's, as mapped here. */
typedef struct peer_arena {
    unsigned char *base; /* NULL: none */
    uint64_t bytes;
} peer_arena;

/* Maps what a peer has sent: only a memfd of exactly that size, sealed against shrinking. The fd stays the caller's. */
psd_status peer_arena_open(peer_arena *p, int fd, uint64_t bytes, char *why, size_t why_bytes);
void peer_arena_close(peer_arena *p); /* also one that is not open */

/* The bytes at a place; NULL if it is not, all of it, in the arena. */
static inline unsigned char *peer_arena_at(const peer_arena *p, uint64_t place, uint64_t bytes)
{
    return p->base == NULL || place > p->bytes || bytes > p->bytes - place ? NULL : p->base + place;
}

#endif
