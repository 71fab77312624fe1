/* The tensor pool of a context: aligned, zeroed memory under a limit, whose holders are known by name. */
#ifndef PSD_POOL_H
#define PSD_POOL_H

#include <pthread.h>

#include "worker/backend/backend.h"
#include "worker/psd.h"

typedef struct psd_pool_block {
    struct psd_pool_block *next;
    void *data;
    size_t bytes; /* as allocated */
    char name[PSD_MAX_NAME];
    char site[PSD_MAX_SITE];
} psd_pool_block;

typedef struct psd_pool {
    pthread_mutex_t lock;
    const psd_backend_ops *ops; /* mem_alloc is used if the backend has it */
    psd_backend *backend;
    int64_t limit;
    int64_t held;
    psd_pool_block *blocks; /* newest first */
} psd_pool;

psd_status psd_pool_init(psd_pool *pool, const psd_backend_ops *ops, psd_backend *backend, int64_t limit);
/* Warns of each block that was never freed, and frees it. */
void psd_pool_destroy(psd_pool *pool);
int64_t psd_pool_held(psd_pool *pool);

#endif
