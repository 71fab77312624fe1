/* The table of works: reserving, publishing and ending them. Waiting is wait.c. */
#include "worker/works.h"

#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/tensor.h"
#include "worker/context.h"
#include "worker/work_claim.h"

#define SETTLE_MS 2000 /* at finalize: for operations that are nearly done */
#define MOST_TOLD 5    /* of those that were never waited for; the others are counted */

psd_status psd_works_init(psd_works *works)
{
    return pthread_mutex_init(&works->lock, NULL) == 0 ? PSD_OK : PSD_ERR_NOMEM;
}

void psd_works_destroy(psd_works *works)
{
    uint32_t chunks = atomic_load(&works->used) / PSD_WORKS_CHUNK;
    for (uint32_t i = 0; i < chunks; i++)
        free(atomic_load(&works->chunks[i]));
    pthread_mutex_destroy(&works->lock);
}

/* Under the lock. */
static bool grow(psd_works *works)
{
    uint32_t used = atomic_load(&works->used);
    psd_work_slot *chunk = used < PSD_MAX_WORKS ? calloc(PSD_WORKS_CHUNK, sizeof *chunk) : NULL;
    if (chunk == NULL)
        return false;
    for (uint32_t i = PSD_WORKS_CHUNK; i-- > 0;) {
        chunk[i].index = used + i;
        chunk[i].next_free = works->free;
        works->free = &chunk[i];
    }
    atomic_store(&works->chunks[used / PSD_WORKS_CHUNK], chunk);
    atomic_store_explicit(&works->used, used + PSD_WORKS_CHUNK, memory_order_release);
    return true;
}

psd_work_slot *psd_work_reserve(psd_works *works)
{
    psd_work_slot *slot = NULL;
    pthread_mutex_lock(&works->lock);
    if (works->free != NULL || grow(works)) {
        slot = works->free;
        works->free = slot->next_free;
    }
    pthread_mutex_unlock(&works->lock);
    return slot;
}

void psd_work_cancel(psd_works *works, psd_work_slot *slot)
{
    pthread_mutex_lock(&works->lock);
    slot->next_free = works->free;
    works->free = slot;
    pthread_mutex_unlock(&works->lock);
}

psd_work psd_work_publish(psd_work_slot *slot)
{
    uint64_t tag = atomic_load_explicit(&slot->tag, memory_order_relaxed);
    psd_work work = {slot->index, (uint32_t)(tag >> 32)};
    atomic_store_explicit(&slot->tag, (tag & ~UINT64_C(0xffffffff)) | PSD_WORK_READY, memory_order_release);
    return work;
}

static psd_work_slot *slot_at(psd_works *works, uint32_t index)
{
    if (index >= atomic_load_explicit(&works->used, memory_order_acquire))
        return NULL;
    return &atomic_load_explicit(&works->chunks[index / PSD_WORKS_CHUNK],
                                 memory_order_acquire)[index % PSD_WORKS_CHUNK];
}

psd_status work_claim(psd_works *works, psd_work work, psd_work_slot **out)
{
    psd_work_slot *slot = slot_at(works, work.index);
    uint64_t ready = (uint64_t)work.generation << 32 | PSD_WORK_READY;
    if (slot == NULL)
        return PSD_ERR_STALE;
    uint64_t tag = ready;
    if (!atomic_compare_exchange_strong_explicit(&slot->tag, &tag,
                                                 (ready & ~UINT64_C(0xffffffff)) | PSD_WORK_BUSY,
                                                 memory_order_acquire, memory_order_relaxed))
        return tag == ((ready & ~UINT64_C(0xffffffff)) | PSD_WORK_BUSY) ? PSD_AGAIN : PSD_ERR_STALE;
    *out = slot;
    return PSD_OK;
}

void work_unclaim(psd_work_slot *slot)
{
    uint64_t tag = atomic_load_explicit(&slot->tag, memory_order_relaxed);
    atomic_store_explicit(&slot->tag, (tag & ~UINT64_C(0xffffffff)) | PSD_WORK_READY, memory_order_release);
}

void work_end(psd_ctx *ctx, psd_work_slot *slot, const psd_op_result *result)
{
    psd_record_end(&ctx->recorder, slot->record, result->status,
                   slot->peer >= 0 ? slot->peer : result->source, result->ordinal);
    ctx->ops->release(slot->request);
    psd_group_release(slot->group);
    slot->request = NULL;
    slot->group = NULL;
    uint64_t generation = atomic_load_explicit(&slot->tag, memory_order_relaxed) >> 32;
    atomic_store_explicit(&slot->tag, (uint64_t)((uint32_t)generation + 1) << 32 | PSD_WORK_FREE,
                          memory_order_release);
    psd_work_cancel(&ctx->works, slot);
}

/* ------------------------------------------------------------------------------------------------- settle */

static psd_status wait_for(psd_ctx *ctx, psd_work_slot *slot, psd_time_ns deadline, psd_op_result *result)
{
    psd_status status = ctx->ops->test(slot->request, result);
    if (status == PSD_INPROGRESS) {
        ctx->ops->wait(ctx->backend, &slot->request, 1, false, deadline);
        status = ctx->ops->test(slot->request, result);
    }
    return status;
}

/* Its memory may be gone when psd_finalize returns, so the operation must end here. */
static void settle(psd_ctx *ctx, psd_work_slot *slot, psd_time_ns deadline, bool tell)
{
    static const char text[] = "a rank left with an operation unfinished";
    psd_op_result result;
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    if (tell)
        psd_log("ops", PSD_LOG_WARN, "never waited for: %s from %s:%d", psd_op_name(slot->kind),
                psd_site_file(slot->file), slot->line);
    psd_status status = wait_for(ctx, slot, deadline, &result);
    if (status == PSD_INPROGRESS) {
        msg.u.abort.group = slot->group->id;
        msg.u.abort.epoch = slot->group->epoch;
        msg.u.abort.status = PSD_ERR_ABORTED;
        msg.u.abort.culprit = ctx->rank;
        memcpy(msg.u.abort.text, text, sizeof text);
        psd_agent_tell(ctx->agent, &msg);
        ctx->ops->group_abort(slot->group->backend, PSD_ERR_ABORTED, text);
        status = wait_for(ctx, slot, psd_deadline_ns(psd_now_ns(), SETTLE_MS), &result);
    }
    if (status == PSD_INPROGRESS)
        psd_log("ops", PSD_LOG_ERROR, "backend %s did not end an aborted operation", ctx->ops->name);
    else
        work_end(ctx, slot, &result);
}

void psd_works_settle(psd_ctx *ctx)
{
    uint32_t used = atomic_load(&ctx->works.used);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), SETTLE_MS);
    uint32_t found = 0;
    for (uint32_t i = 0; i < used; i++) {
        psd_work_slot *slot = slot_at(&ctx->works, i);
        if ((atomic_load(&slot->tag) & UINT32_MAX) != PSD_WORK_FREE)
            settle(ctx, slot, deadline, ++found <= MOST_TOLD);
    }
    if (found > MOST_TOLD)
        psd_log("ops", PSD_LOG_WARN, "never waited for: %u operations more", found - MOST_TOLD);
}
