#include "proto/arena.h"

#include <stdalign.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif

/* Allocations share blocks; under AddressSanitizer each is one of malloc's, so that its ends are watched. */
#ifdef ASAN
#define BLOCK_BYTES 0
#else
#define BLOCK_BYTES 4032
#endif

struct psd_arena_block {
    psd_arena_block *older;
    size_t bytes;
    alignas(max_align_t) unsigned char data[];
};

void psd_arena_init(psd_arena *arena, size_t budget)
{
    *arena = (psd_arena){.budget = budget};
}

void psd_arena_free(psd_arena *arena)
{
    while (arena->blocks != NULL) {
        psd_arena_block *older = arena->blocks->older;
        free(arena->blocks);
        arena->blocks = older;
    }
    arena->left = 0;
}

static bool grow(psd_arena *arena, size_t need)
{
    size_t bytes = need > BLOCK_BYTES ? need : BLOCK_BYTES;
    psd_arena_block *block = malloc(sizeof *block + bytes);
    if (block == NULL) {
        arena->no_memory = true;
        return false;
    }
    block->older = arena->blocks;
    block->bytes = bytes;
    arena->blocks = block;
    arena->left = bytes;
    return true;
}

static void *allocate(psd_arena *arena, size_t bytes)
{
    size_t mask = alignof(max_align_t) - 1;
    if (bytes == 0)
        bytes = 1; /* an address of its own */
    if (bytes > arena->budget || arena->budget - bytes < mask) {
        arena->over_budget = true;
        return NULL;
    }
    bytes = (bytes + mask) & ~mask;
    if (bytes > arena->left && !grow(arena, bytes))
        return NULL;
    void *at = arena->blocks->data + (arena->blocks->bytes - arena->left);
    arena->left -= bytes;
    arena->budget -= bytes;
    return at;
}

void *psd_arena_array(psd_arena *arena, size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) {
        arena->over_budget = true;
        return NULL;
    }
    return allocate(arena, total);
}

static void *allocator_alloc(void *arena, size_t bytes)
{
    return allocate(arena, bytes);
}

static void allocator_free(void *arena, void *at)
{
    (void)arena;
    (void)at;
}

ProtobufCAllocator psd_arena_allocator(psd_arena *arena)
{
    return (ProtobufCAllocator){.alloc = allocator_alloc, .free = allocator_free, .allocator_data = arena};
}
