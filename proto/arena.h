/* Memory of one message: allocations that are all freed together, within a budget. protobuf-c's unpack
 * allocates from it, so a hostile frame can cost no more than the budget. */
#ifndef PSD_PROTO_ARENA_H
#define PSD_PROTO_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

typedef struct psd_arena_block psd_arena_block;

typedef struct psd_arena {
    psd_arena_block *blocks; /* owned; the newest first */
    size_t left;             /* bytes unused in the newest */
    size_t budget;           /* bytes that may still be asked for */
    bool over_budget;        /* an allocation was refused for the budget, */
    bool no_memory;          /* or by malloc */
} psd_arena;

void psd_arena_init(psd_arena *arena, size_t budget);
void psd_arena_free(psd_arena *arena);

/* count * bytes, aligned for any type, not initialised. NULL when over the budget or out of memory. */
void *psd_arena_array(psd_arena *arena, size_t count, size_t bytes);

/* For protobuf-c; borrows the arena. Its free does nothing. */
ProtobufCAllocator psd_arena_allocator(psd_arena *arena);

#endif
