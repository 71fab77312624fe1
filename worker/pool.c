#include "worker/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/log.h"
#include "common/tensor.h"
#include "worker/context.h"

#define ALIGNMENT     ((size_t)64)
#define HOLDERS_NAMED 3

psd_status psd_pool_init(psd_pool *pool, const psd_backend_ops *ops, psd_backend *backend, int64_t limit)
{
    memset(pool, 0, sizeof *pool);
    pool->ops = ops;
    pool->backend = backend;
    pool->limit = limit;
    return pthread_mutex_init(&pool->lock, NULL) == 0 ? PSD_OK : PSD_ERR_NOMEM;
}

int64_t psd_pool_held(psd_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    int64_t held = pool->held;
    pthread_mutex_unlock(&pool->lock);
    return held;
}

/* ------------------------------------------------------------------------------------------------- memory */

static psd_status take_memory(psd_pool *pool, size_t bytes, void **out)
{
    if (pool->ops->mem_alloc != NULL)
        return pool->ops->mem_alloc(pool->backend, bytes, out);
    void *data = aligned_alloc(ALIGNMENT, bytes);
    if (data == NULL)
        return PSD_ERR_NOMEM;
    *out = data;
    return PSD_OK;
}

static void give_memory(psd_pool *pool, void *data, size_t bytes)
{
    if (pool->ops->mem_alloc != NULL)
        pool->ops->mem_free(pool->backend, data, bytes);
    else
        free(data);
}

void psd_pool_destroy(psd_pool *pool)
{
    while (pool->blocks != NULL) {
        psd_pool_block *block = pool->blocks;
        char size[32];
        psd_log("psd", PSD_LOG_WARN, "never freed: tensor \"%s\", %s, from psd_tensor_alloc at %s",
                block->name, psd_format_bytes((int64_t)block->bytes, size, sizeof size), block->site);
        pool->blocks = block->next;
        give_memory(pool, block->data, block->bytes);
        free(block);
    }
    pthread_mutex_destroy(&pool->lock);
}

/* -------------------------------------------------------------------------------------------------- limit */

/* The largest holders, by name: what a user would free. Under the lock. */
static void name_holders(const psd_pool *pool, char *out, size_t out_bytes)
{
    const psd_pool_block *named[HOLDERS_NAMED] = {NULL};
    size_t count = 0, blocks = 0;
    for (const psd_pool_block *b = pool->blocks; b != NULL; b = b->next)
        blocks++;
    out[0] = '\0';
    while (count < HOLDERS_NAMED && count < blocks) {
        const psd_pool_block *largest = NULL;
        for (const psd_pool_block *b = pool->blocks; b != NULL; b = b->next) {
            bool seen = false;
            for (size_t i = 0; i < count; i++)
                seen = seen || named[i] == b;
            if (!seen && (largest == NULL || b->bytes > largest->bytes))
                largest = b;
        }
        if (largest == NULL)
            break;
        char size[32];
        psd_append(out, out_bytes, "%s\"%s\" (%s, %s)", count > 0 ? ", " : "", largest->name,
                   psd_format_bytes((int64_t)largest->bytes, size, sizeof size), largest->site);
        named[count++] = largest;
    }
    if (blocks > count)
        psd_append(out, out_bytes, " and %zu more", blocks - count);
}

/* Under the lock. */
static psd_status refuse(PSD_AT, const psd_pool *pool, const char *name, int64_t bytes)
{
    char need[32], held[32], limit[32], holders[512];
    psd_format_bytes(bytes, need, sizeof need);
    psd_format_bytes(pool->held, held, sizeof held);
    psd_format_bytes(pool->limit, limit, sizeof limit);
    if (pool->blocks == NULL)
        return psd_error_set(
            file, line, PSD_ERR_LIMIT,
            "psd_tensor_alloc: \"%s\" needs %s, the pool's limit is %s and nothing is held; raise "
            "PSD_POOL_LIMIT",
            name, need, limit);
    name_holders(pool, holders, sizeof holders);
    return psd_error_set(
        file, line, PSD_ERR_LIMIT,
        "psd_tensor_alloc: \"%s\" needs %s, %s of the pool's limit of %s are held, by %s; free some of "
        "these, or raise PSD_POOL_LIMIT",
        name, need, held, limit, holders);
}

/* Counts the bytes before they are taken, so that threads cannot pass the limit together. */
static psd_status charge(PSD_AT, psd_pool *pool, const char *name, size_t bytes)
{
    psd_status status = PSD_OK;
    pthread_mutex_lock(&pool->lock);
    if (bytes > (size_t)pool->limit || pool->held > pool->limit - (int64_t)bytes)
        status = refuse(file, line, pool, name, (int64_t)bytes);
    else
        pool->held += (int64_t)bytes;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static void uncharge(psd_pool *pool, size_t bytes)
{
    pthread_mutex_lock(&pool->lock);
    pool->held -= (int64_t)bytes;
    pthread_mutex_unlock(&pool->lock);
}

/* ---------------------------------------------------------------------------------------------------- api */

static void describe_block(psd_pool_block *block, PSD_AT, const char *name)
{
    snprintf(block->name, sizeof block->name, "%.63s", name);
    snprintf(block->site, sizeof block->site, "%.32s:%d", psd_site_file(file), line);
}

static psd_status alloc_block(PSD_AT, psd_pool *pool, const char *name, size_t bytes, void **data)
{
    psd_status status = charge(file, line, pool, name, bytes);
    if (status != PSD_OK)
        goto fail;
    psd_pool_block *block = calloc(1, sizeof *block);
    if (block == NULL) {
        status = psd_error_set(file, line, PSD_ERR_NOMEM, "psd_tensor_alloc: out of memory");
        goto fail_charge;
    }
    void *memory = NULL;
    status = take_memory(pool, bytes, &memory);
    if (status != PSD_OK) {
        char need[32];
        const bool is_device = (pool->ops->caps & PSD_CAP_DEVICE_MEMORY) != 0;
        psd_error_set(file, line, status, "psd_tensor_alloc: the %s has no %s for \"%s\": %s",
                      is_device ? "device" : "system", psd_format_bytes((int64_t)bytes, need, sizeof need),
                      name, psd_status_text(status));
        goto fail_block;
    }
    if ((pool->ops->caps & PSD_CAP_DEVICE_MEMORY) == 0)
        memset(memory, 0, bytes);
    block->data = memory;
    block->bytes = bytes;
    describe_block(block, file, line, name);
    pthread_mutex_lock(&pool->lock);
    block->next = pool->blocks;
    pool->blocks = block;
    pthread_mutex_unlock(&pool->lock);
    *data = memory;
    return PSD_OK;

fail_block:
    free(block);
fail_charge:
    uncharge(pool, bytes);
fail:
    return status;
}

psd_status psd_tensor_alloc_at(PSD_AT, psd_ctx *ctx, const int64_t *shape, int32_t ndim, psd_dtype dtype,
                               const char *name, psd_tensor *out)
{
    psd_status status = psd_ctx_check(file, line, "psd_tensor_alloc", ctx);
    if (status != PSD_OK)
        return status;
    if (out == NULL || (shape == NULL && ndim != 0))
        return psd_error_set(file, line, PSD_ERR_INVAL, "psd_tensor_alloc: %s is NULL",
                             out == NULL ? "out" : "shape");
    psd_tensor tensor = psd_tensor_nd(NULL, shape, ndim, dtype, name);
    int64_t count = psd_tensor_count(&tensor);
    if (count < 0)
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_tensor_alloc: %s; give a psd_dtype, 0 to %d dimensions, none negative, and fewer than "
            "2^63 bytes in all",
            psd_dtype_valid((int)dtype) ? "the shape is not valid" : "the dtype is not valid", PSD_MAX_DIMS);
    size_t bytes = ((size_t)count * psd_dtype_bytes(dtype) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes > 0)
        status = alloc_block(file, line, &ctx->pool, name != NULL ? name : "", bytes, &tensor.data);
    if (status == PSD_OK && ctx->has_streams) {
        tensor.device = PSD_DEVICE_CUDA;
        tensor.device_index = ctx->device_index;
    }
    if (status == PSD_OK)
        *out = tensor;
    return status;
}

psd_status psd_tensor_free_at(PSD_AT, psd_ctx *ctx, psd_tensor *tensor)
{
    psd_status status = psd_ctx_check(file, line, "psd_tensor_free", ctx);
    if (status != PSD_OK)
        return status;
    if (tensor == NULL || tensor->data == NULL)
        return PSD_OK;
    psd_pool *pool = &ctx->pool;
    psd_pool_block *block = NULL;
    pthread_mutex_lock(&pool->lock);
    for (psd_pool_block **link = &pool->blocks; *link != NULL; link = &(*link)->next) {
        if ((*link)->data == tensor->data) {
            block = *link;
            *link = block->next;
            pool->held -= (int64_t)block->bytes;
            break;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    if (block == NULL)
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_tensor_free: this memory is not from psd_tensor_alloc of this context, or was freed "
            "before");
    give_memory(pool, block->data, block->bytes);
    free(block);
    tensor->data = NULL;
    return PSD_OK;
}
