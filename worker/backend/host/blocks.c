#include "worker/backend/host/blocks.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST  64u
#define SIZE_BITS (8 * (unsigned)sizeof(unsigned long))

/* The class of a size, and the bytes of its blocks; BLOCKS_CLASSES for sizes above the largest class. */
static unsigned class_of(size_t bytes, size_t *block_bytes)
{
    if (bytes <= SMALLEST) {
        *block_bytes = SMALLEST;
        return 0;
    }
    unsigned class = SIZE_BITS - (unsigned)__builtin_clzl((bytes - 1) / SMALLEST);
    if (class >= BLOCKS_CLASSES) {
        *block_bytes = bytes;
        return BLOCKS_CLASSES;
    }
    *block_bytes = (size_t)SMALLEST << class;
    return class;
}

void blocks_init(blocks *p, size_t limit)
{
    memset(p, 0, sizeof(*p));
    p->limit = limit;
}

void blocks_destroy(blocks *p)
{
    for (unsigned i = 0; i < BLOCKS_CLASSES; i++) {
        while (p->free[i] != NULL) {
            void *block = p->free[i];
            memcpy(&p->free[i], block, sizeof(void *));
            free(block);
        }
    }
    p->kept = 0;
}

void *blocks_get(blocks *p, size_t bytes)
{
    size_t block_bytes;
    unsigned class = class_of(bytes, &block_bytes);
    if (class < BLOCKS_CLASSES && p->free[class] != NULL) {
        void *block = p->free[class];
        memcpy(&p->free[class], block, sizeof(void *));
        p->kept -= block_bytes;
        return block;
    }
    if (block_bytes > SIZE_MAX - SMALLEST)
        return NULL;
    return aligned_alloc(SMALLEST, (block_bytes + SMALLEST - 1) & ~(size_t)(SMALLEST - 1));
}

void blocks_put(blocks *p, void *block, size_t bytes)
{
    if (block == NULL)
        return;
    size_t block_bytes;
    unsigned class = class_of(bytes, &block_bytes);
    if (class == BLOCKS_CLASSES || p->kept + block_bytes > p->limit) {
        free(block);
        return;
    }
    memcpy(block, &p->free[class], sizeof(void *));
    p->free[class] = block;
    p->kept += block_bytes;
}
