/* The table of works: reserving, publishing and ending them. Waiting is wait.c. */
#include "worker/works.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "common/tensor.h"
#include "worker/context.h"
#include "worker/work_claim.h"

#define SETTLE_MS 2000 /* at finalize: for operations that are nearly done */
/* An operation on a device that was waited for on its stream ends by its own deadline, or soon after. */
#define DRAIN_GRACE_NS (5 * PSD_NS_PER_S)
#define MOST_TOLD      5 /* of those that were never waited for; the others are counted */

psd_status psd_works_init(psd_works *works)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return PSD_ERR_NOMEM;
    int failed = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) != 0 ||
                 pthread_cond_init(&works->detached_done, &attr) != 0;
    pthread_condattr_destroy(&attr);
    if (failed)
        return PSD_ERR_NOMEM;
    if (pthread_mutex_init(&works->lock, NULL) == 0)
        return PSD_OK;
    pthread_cond_destroy(&works->detached_done);
    return PSD_ERR_NOMEM;
}

void psd_works_destroy(psd_works *works)
{
    uint32_t chunks = atomic_load(&works->used) / PSD_WORKS_CHUNK;
    for (uint32_t i = 0; i < chunks; i++)
        free(atomic_load(&works->chunks[i]));
    pthread_cond_destroy(&works->detached_done);
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

/* ----------------------------------------------------------------------------------------------- detached */

static void set_phase(psd_work_slot *slot, uint32_t generation, psd_work_phase phase)
{
    atomic_store_explicit(&slot->tag, (uint64_t)generation << 32 | phase, memory_order_release);
}

void work_detach(psd_ctx *ctx, psd_work_slot *slot)
{
    psd_works *works = &ctx->works;
    psd_request *request = slot->request;
    uint64_t generation = atomic_load_explicit(&slot->tag, memory_order_relaxed) >> 32;
    pthread_mutex_lock(&works->lock);
    slot->request = NULL;
    slot->previous_detached = NULL;
    slot->next_detached = works->detached;
    if (works->detached != NULL)
        works->detached->previous_detached = slot;
    works->detached = slot;
    set_phase(slot, (uint32_t)generation + 1, PSD_WORK_DETACHED);
    pthread_mutex_unlock(&works->lock);
    ctx->ops->release(request); /* may call work_detached_done */
}

void work_detached_done(psd_ctx *ctx, uint64_t cookie, const psd_op_result *result)
{
    psd_works *works = &ctx->works;
    psd_work_slot *slot = (psd_work_slot *)(uintptr_t)cookie;
    psd_record_end(&ctx->recorder, slot->record, result->status,
                   slot->peer >= 0 ? slot->peer : result->source, result->ordinal);
    pthread_mutex_lock(&works->lock);
    psd_group_release(slot->group);
    slot->group = NULL;
    if (slot->previous_detached != NULL)
        slot->previous_detached->next_detached = slot->next_detached;
    else
        works->detached = slot->next_detached;
    if (slot->next_detached != NULL)
        slot->next_detached->previous_detached = slot->previous_detached;
    set_phase(slot, (uint32_t)(atomic_load_explicit(&slot->tag, memory_order_relaxed) >> 32), PSD_WORK_FREE);
    slot->next_free = works->free;
    works->free = slot;
    pthread_cond_broadcast(&works->detached_done);
    pthread_mutex_unlock(&works->lock);
}

/* How long those that are left may take, by their own deadlines; 0: none is left. Under the lock. */
static psd_time_ns drain_deadline(const psd_works *works, const psd_group_slot *group)
{
    psd_time_ns latest = 0;
    for (const psd_work_slot *slot = works->detached; slot != NULL; slot = slot->next_detached) {
        if ((group == NULL || slot->group == group) && slot->deadline > latest)
            latest = slot->deadline;
    }
    return latest > PSD_NEVER - DRAIN_GRACE_NS ? PSD_NEVER : latest > 0 ? latest + DRAIN_GRACE_NS : 0;
}

psd_status psd_works_drain(psd_works *works, const psd_group_slot *group)
{
    psd_status status = PSD_INPROGRESS;
    pthread_mutex_lock(&works->lock);
    while (status == PSD_INPROGRESS) {
        psd_time_ns deadline = drain_deadline(works, group);
        struct timespec at = {.tv_sec = deadline / PSD_NS_PER_S, .tv_nsec = deadline % PSD_NS_PER_S};
        if (deadline == 0)
            status = PSD_OK;
        else if (deadline == PSD_NEVER)
            pthread_cond_wait(&works->detached_done, &works->lock);
        else if (psd_now_ns() >= deadline)
            status = PSD_ERR_TIMEOUT;
        else
            pthread_cond_timedwait(&works->detached_done, &works->lock, &at);
    }
    pthread_mutex_unlock(&works->lock);
    return status;
}

int32_t psd_works_on_stream(psd_works *works, const void *stream, uint64_t *seqs, int32_t capacity)
{
    int32_t count = 0;
    pthread_mutex_lock(&works->lock);
    for (const psd_work_slot *slot = works->detached; slot != NULL; slot = slot->next_detached) {
        if (slot->stream != stream)
            continue;
        if (count < capacity)
            seqs[count] = slot->record;
        count++;
    }
    pthread_mutex_unlock(&works->lock);
    return count;
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

/* What is known of a work: from its record, or from the slot once the ring has gone round. */
static void describe(psd_ctx *ctx, const psd_work_slot *slot, psd_current_op *out)
{
    if (psd_record_describe(&ctx->recorder, slot->record, psd_now_ns(), out))
        return;
    memset(out, 0, sizeof *out);
    out->kind = (uint8_t)slot->kind;
    out->peer = slot->peer;
    out->group = slot->group->id;
    snprintf(out->site, sizeof out->site, "%.32s:%d", psd_site_file(slot->file), slot->line);
}

/* One that failed was broken by something else, which has been told elsewhere. */
static void tell_lost(psd_ctx *ctx, const psd_current_op *op, const psd_work_slot *slot, psd_status status,
                      uint32_t total)
{
    psd_msg msg = {.type = PSD_MSG_LOST_WORK};
    psd_log("ops", PSD_LOG_WARN, "never waited for: %s%s%s from %s", psd_op_name((psd_op_kind)op->kind),
            op->name[0] != '\0' ? " of " : "", op->name, op->site);
    if (status < PSD_OK && status != PSD_INPROGRESS)
        return;
    msg.u.lost_work.op = *op;
    msg.u.lost_work.seq = slot->record;
    msg.u.lost_work.total = total;
    msg.u.lost_work.is_done = status == PSD_OK;
    psd_agent_tell(ctx->agent, &msg);
}

static void abort_unfinished(psd_ctx *ctx, const psd_work_slot *slot, const psd_current_op *op)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    char *text = msg.u.abort.text;
    snprintf(text, sizeof msg.u.abort.text, "rank %d left with an operation unfinished: %s%s%s from %s",
             ctx->rank, psd_op_name((psd_op_kind)op->kind), op->name[0] != '\0' ? " of " : "", op->name,
             op->site);
    msg.u.abort.group = slot->group->id;
    msg.u.abort.epoch = slot->group->epoch;
    msg.u.abort.status = PSD_ERR_ABORTED;
    msg.u.abort.culprit = ctx->rank;
    psd_agent_tell(ctx->agent, &msg);
    ctx->ops->group_abort(slot->group->backend, PSD_ERR_ABORTED, text);
}

/* Its memory may be gone when psd_finalize returns, so the operation must end here. */
static void settle(psd_ctx *ctx, psd_work_slot *slot, psd_time_ns deadline, bool tell, uint32_t total)
{
    psd_op_result result;
    psd_current_op op;
    describe(ctx, slot, &op);
    psd_status status = wait_for(ctx, slot, deadline, &result);
    if (tell)
        tell_lost(ctx, &op, slot, status == PSD_INPROGRESS ? status : result.status, total);
    if (status == PSD_INPROGRESS) {
        abort_unfinished(ctx, slot, &op);
        status = wait_for(ctx, slot, psd_deadline_ns(psd_now_ns(), SETTLE_MS), &result);
    }
    if (status == PSD_INPROGRESS)
        psd_log("ops", PSD_LOG_ERROR, "backend %s did not end an aborted operation", ctx->ops->name);
    else
        work_end(ctx, slot, &result);
}

static bool is_lost(const psd_work_slot *slot)
{
    uint32_t phase = (uint32_t)atomic_load(&slot->tag);
    return phase != PSD_WORK_FREE && phase != PSD_WORK_DETACHED;
}

void psd_works_settle(psd_ctx *ctx)
{
    uint32_t used = atomic_load(&ctx->works.used);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), SETTLE_MS);
    uint32_t found = 0, total = 0;
    for (uint32_t i = 0; i < used; i++)
        total += is_lost(slot_at(&ctx->works, i));
    for (uint32_t i = 0; i < used && found < total; i++) {
        psd_work_slot *slot = slot_at(&ctx->works, i);
        if (is_lost(slot))
            settle(ctx, slot, deadline, ++found <= MOST_TOLD, total);
    }
    if (found > MOST_TOLD)
        psd_log("ops", PSD_LOG_WARN, "never waited for: %u operations more", found - MOST_TOLD);
    if (psd_works_drain(&ctx->works, NULL) == PSD_OK)
        return;
    psd_log("ops", PSD_LOG_ERROR, "the device did not end its operations by their deadlines");
    psd_group_abort_all(ctx, PSD_ERR_ABORTED, "a rank left with an operation unfinished");
    psd_works_drain(&ctx->works, NULL);
}
