/* all_reduce of many tensors, packed into buckets: one bucket travels while the next is packed, as PyTorch's
 * DDP does. A tensor larger than a bucket travels by itself, without a copy. */
#include "worker/coalesced.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/tensor.h"
#include "worker/device_memory.h"
#include "worker/ops.h"

#define DEFAULT_BUCKET_BYTES (INT64_C(25) << 20)

static const char VERB[] = "psd_all_reduce_coalesced";

/* Tensors [first, last) that travel together. */
typedef struct bucket {
    int32_t first;
    int32_t last;
    int64_t count;
    bool packed; /* in memory[slot], else in the tensor itself */
    int slot;
    bool started;
    psd_work work;
} bucket;

typedef struct run {
    const char *file;
    int line;
    psd_ctx *ctx;
    psd_group group;
    psd_tensor *tensors;
    int32_t count;
    psd_redop redop;
    int64_t bucket_elements;
    const psd_opts *opts;
} run;

psd_status psd_buckets_init(psd_buckets *buckets)
{
    return pthread_mutex_init(&buckets->lock, NULL) == 0 ? PSD_OK : PSD_ERR_NOMEM;
}

void psd_buckets_release(psd_ctx *ctx)
{
    for (int i = 0; i < PSD_BUCKETS; i++)
        psd_tensor_free_at(NULL, 0, ctx, &ctx->buckets.memory[i]);
}

static psd_status check(const run *r)
{
    if (r->count < 1 || r->tensors == NULL)
        return psd_error_set(r->file, r->line, PSD_ERR_INVAL, "%s: %s; give a list of 1 or more tensors",
                             VERB, r->tensors == NULL ? "tensors is NULL" : "count is below 1");
    for (int32_t i = 0; i < r->count; i++) {
        const psd_tensor *t = &r->tensors[i];
        int64_t count = psd_tensor_count(t);
        if (t->size != sizeof *t || count < 0 || (t->data == NULL && count > 0))
            return psd_error_set(r->file, r->line, PSD_ERR_INVAL,
                                 "%s: tensors[%d] is not valid: its size, dtype, shape or NULL data", VERB,
                                 i);
        if (t->dtype != r->tensors[0].dtype)
            return psd_error_set(r->file, r->line, PSD_ERR_INVAL,
                                 "%s: tensors[%d] is %s and tensors[0] is %s; all have one dtype", VERB, i,
                                 psd_dtype_name(t->dtype), psd_dtype_name(r->tensors[0].dtype));
        char why[PSD_MAX_TEXT];
        psd_status status = psd_memory_check(r->ctx, t, count, why, sizeof why);
        if (status != PSD_OK)
            return psd_error_set(r->file, r->line, status, "%s: tensors[%d] %s", VERB, i, why);
    }
    return PSD_OK;
}

typedef struct extent {
    uintptr_t begin;
    uintptr_t end;
    int32_t index;
} extent;

static int by_begin(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Of memory that is in two tensors the later copy would win, or be added up twice. */
static psd_status check_overlap(const run *r)
{
    psd_status status = PSD_OK;
    size_t used = 0;
    extent *list = malloc((size_t)r->count * sizeof *list);
    if (list == NULL)
        return psd_error_set(r->file, r->line, PSD_ERR_NOMEM, "%s: out of memory", VERB);
    for (int32_t i = 0; i < r->count; i++) {
        const psd_tensor *t = &r->tensors[i];
        size_t bytes = (size_t)psd_tensor_count(t) * psd_dtype_bytes(t->dtype);
        if (bytes > 0)
            list[used++] = (extent){(uintptr_t)t->data, (uintptr_t)t->data + bytes, i};
    }
    qsort(list, used, sizeof *list, by_begin);
    for (size_t i = 1; i < used && status == PSD_OK; i++) {
        if (list[i].begin < list[i - 1].end)
            status = psd_error_set(r->file, r->line, PSD_ERR_INVAL,
                                   "%s: tensors[%d] and tensors[%d] overlap in memory", VERB,
                                   list[i - 1].index, list[i].index);
    }
    free(list);
    return status;
}

/* The next bucket from `first` on. All ranks cut alike, since they have the same tensors. */
static bucket cut(const run *r, int32_t first)
{
    bucket b = {.first = first, .last = first + 1, .count = psd_tensor_count(&r->tensors[first])};
    while (b.last < r->count) {
        int64_t more = psd_tensor_count(&r->tensors[b.last]);
        if (b.count + more > r->bucket_elements)
            break;
        b.count += more;
        b.last++;
    }
    b.packed = b.last - b.first > 1;
    return b;
}

static psd_status need_memory(const run *r, int slot, int64_t bytes)
{
    psd_tensor *memory = &r->ctx->buckets.memory[slot];
    if (memory->data != NULL && psd_tensor_count(memory) >= bytes)
        return PSD_OK;
    if (memory->data != NULL && r->ctx->has_streams) {
        psd_status status = psd_stream_synchronize_at(r->file, r->line, r->ctx, r->ctx->buckets.stream, 0);
        if (status != PSD_OK)
            return status;
    }
    psd_tensor_free_at(r->file, r->line, r->ctx, memory);
    return psd_tensor_alloc_at(r->file, r->line, r->ctx, &bytes, 1, PSD_U8, "all_reduce bucket", memory);
}

/* In device memory: queues the copies on the call's stream. */
static psd_status copy(const run *r, const bucket *b, bool pack)
{
    psd_status status = PSD_OK;
    unsigned char *at = r->ctx->buckets.memory[b->slot].data;
    for (int32_t i = b->first; i < b->last && status == PSD_OK; i++) {
        size_t bytes = (size_t)psd_tensor_count(&r->tensors[i]) * psd_dtype_bytes(r->tensors[i].dtype);
        void *data = r->tensors[i].data;
        status = psd_memory_copy(r->file, r->line, VERB, r->ctx, pack ? at : data, pack ? data : at, bytes,
                                 r->ctx->buckets.stream);
        at += bytes;
    }
    return status;
}

/* The tensors of a packed bucket in their order: ranks that list others, or in another order, add up what does not
 * belong together. */
static int32_t parts_of(const run *r, const bucket *b)
{
    uint64_t hash = 0;
    for (int32_t i = b->first; i < b->last; i++) {
        int64_t count = psd_tensor_count(&r->tensors[i]);
        hash = XXH64(&count, sizeof count, hash);
    }
    return b->packed ? PSD_ROOT_PARTS(hash) : -1;
}

static psd_status begin(const run *r, bucket *b, int slot)
{
    psd_tensor tensor = r->tensors[b->first];
    psd_status status = PSD_OK;
    b->slot = slot;
    if (b->packed) {
        status = need_memory(r, slot, b->count * (int64_t)psd_dtype_bytes(tensor.dtype));
        if (status != PSD_OK)
            return status;
        status = copy(r, b, true);
        if (status != PSD_OK)
            return status;
        tensor.data = r->ctx->buckets.memory[slot].data;
        tensor.ndim = 1;
        tensor.shape[0] = b->count;
    }
    status = op_iall_reduce(VERB, r->file, r->line, r->ctx, r->group, &tensor, &tensor, r->redop,
                            parts_of(r, b), r->opts, &b->work);
    b->started = status == PSD_OK;
    return status;
}

static psd_status finish(const run *r, bucket *b)
{
    if (!b->started)
        return PSD_OK;
    b->started = false;
    psd_status status = op_wait(VERB, r->file, r->line, r->ctx, b->work, 0);
    if (status == PSD_OK && b->packed)
        status = copy(r, b, false);
    return status;
}

static psd_status run_all(const run *r)
{
    bucket flying[PSD_BUCKETS] = {{.started = false}};
    psd_status status = PSD_OK;
    int slot = 0;
    for (int32_t next = 0; next < r->count && status == PSD_OK; slot = (slot + 1) % PSD_BUCKETS) {
        status = finish(r, &flying[slot]);
        if (status != PSD_OK)
            break;
        flying[slot] = cut(r, next);
        next = flying[slot].last;
        status = begin(r, &flying[slot], slot);
    }
    /* Oldest first; after an error too, since the tensors are borrowed until all is complete. */
    for (int i = 0; i < PSD_BUCKETS; i++, slot = (slot + 1) % PSD_BUCKETS) {
        psd_status ended = finish(r, &flying[slot]);
        if (status == PSD_OK)
            status = ended;
    }
    return status;
}

/* The buckets are of this call's stream now. What the last call has left on another may still use them, and that stream may
 * be destroyed since, so it cannot be asked: their memory goes, which waits for the device. */
static void take_stream(const run *r)
{
    psd_buckets *buckets = &r->ctx->buckets;
    void *stream = r->opts != NULL ? r->opts->stream : NULL;
    if (stream != buckets->stream)
        psd_buckets_release(r->ctx);
    buckets->stream = stream;
}

psd_status psd_all_reduce_coalesced_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *tensors,
                                       int32_t count, psd_redop redop, int64_t bucket_bytes,
                                       const psd_opts *opts)
{
    psd_status status = psd_ctx_live(file, line, VERB, ctx);
    if (status != PSD_OK)
        return status;
    run r = {file, line, ctx, group, tensors, count, redop, 0, opts};
    if (bucket_bytes < 0)
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: bucket_bytes is %lld; it is 0 or more", VERB,
                             (long long)bucket_bytes);
    status = check(&r);
    if (status == PSD_OK)
        status = check_overlap(&r);
    if (status != PSD_OK)
        return status;
    r.bucket_elements = (bucket_bytes != 0 ? bucket_bytes : DEFAULT_BUCKET_BYTES) /
                        (int64_t)psd_dtype_bytes(tensors[0].dtype);
    pthread_mutex_lock(&ctx->buckets.lock);
    take_stream(&r);
    status = run_all(&r);
    pthread_mutex_unlock(&ctx->buckets.lock);
    return status;
}
