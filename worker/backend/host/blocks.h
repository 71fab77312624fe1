/* Memory of the engine that is used again: blocks in powers of two, kept in free lists up to a limit, so that
 * in steady state no call allocates. Not thread safe: used under the engine's lock. */
#ifndef PSD_HOST_BLOCKS_H
#define PSD_HOST_BLOCKS_H

#include <stddef.h>

#define BLOCKS_CLASSES 27 /* 64 bytes to 4 GiB */

typedef struct blocks {
    void *free[BLOCKS_CLASSES];
    size_t kept;  /* bytes in the free lists */
    size_t limit; /* the most that is kept */
} blocks;

void blocks_init(blocks *p, size_t limit);
void blocks_destroy(blocks *p); /* frees what is kept; blocks still out are the caller's mistake */

/* 64-byte aligned, contents undefined; NULL when out of memory. `bytes` 0 is taken as 1. */
void *blocks_get(blocks *p, size_t bytes);
/* `bytes` as asked for. Accepts NULL. */
void blocks_put(blocks *p, void *block, size_t bytes);

#endif
