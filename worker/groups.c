/* The table of groups: handles, slots, aborts, and the public questions about a group. Opening is
 * group_open.c. */
#include "worker/groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/context.h"
#include "worker/group_slots.h"

#define GENERATION(tag) ((uint32_t)((tag) >> 32))
#define USERS(tag)      ((uint32_t)(tag))

psd_status psd_groups_init(psd_groups *groups)
{
    if (pthread_mutex_init(&groups->lock, NULL) != 0)
        return PSD_ERR_NOMEM;
    if (pthread_mutex_init(&groups->backend_lock, NULL) != 0) {
        pthread_mutex_destroy(&groups->lock);
        return PSD_ERR_NOMEM;
    }
    return PSD_OK;
}

void psd_groups_destroy(psd_groups *groups)
{
    uint32_t used = atomic_load(&groups->used);
    for (uint32_t i = 0; i < used; i++) {
        psd_group_slot *slot = atomic_load(&groups->slots[i]);
        pthread_mutex_destroy(&slot->order);
        free(slot->members);
        free(slot);
    }
    pthread_mutex_destroy(&groups->backend_lock);
    pthread_mutex_destroy(&groups->lock);
}

/* ------------------------------------------------------------------------------------------------ handles */

/* One more user of the slot, if its generation is still this one and it is open. */
static bool try_acquire(psd_group_slot *slot, uint32_t generation)
{
    uint64_t tag = atomic_load_explicit(&slot->tag, memory_order_acquire);
    do {
        if (GENERATION(tag) != generation || USERS(tag) == UINT32_MAX)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&slot->tag, &tag, tag + 1, memory_order_acquire,
                                                    memory_order_acquire));
    if (atomic_load_explicit(&slot->open, memory_order_acquire))
        return true;
    psd_group_release(slot);
    return false;
}

psd_status psd_group_acquire(PSD_AT, const char *verb, psd_ctx *ctx, psd_group group, psd_group_slot **out)
{
    psd_groups *groups = &ctx->groups;
    if (group.index < atomic_load_explicit(&groups->used, memory_order_acquire)) {
        psd_group_slot *slot = atomic_load_explicit(&groups->slots[group.index], memory_order_acquire);
        if (try_acquire(slot, group.generation)) {
            *out = slot;
            return PSD_OK;
        }
    }
    if (group.index == UINT32_MAX)
        return psd_error_set(file, line, PSD_ERR_STALE,
                             "%s: this is the null group, which psd_group_split gives a rank of color -1",
                             verb);
    return psd_error_set(file, line, PSD_ERR_STALE,
                         "%s: group {%u, %u} was destroyed or is not of this context", verb, group.index,
                         group.generation);
}

void psd_group_release(psd_group_slot *slot)
{
    atomic_fetch_sub_explicit(&slot->tag, 1, memory_order_release);
}

/* -------------------------------------------------------------------------------------------------- slots */

static psd_group_slot *add_slot(psd_groups *groups)
{
    uint32_t index = atomic_load(&groups->used);
    psd_group_slot *slot = index < PSD_MAX_GROUPS ? calloc(1, sizeof *slot) : NULL;
    if (slot == NULL)
        return NULL;
    if (pthread_mutex_init(&slot->order, NULL) != 0) {
        free(slot);
        return NULL;
    }
    slot->index = index;
    atomic_store(&groups->slots[index], slot);
    atomic_store_explicit(&groups->used, index + 1, memory_order_release);
    return slot;
}

psd_group_slot *group_slot_take(psd_groups *groups, uint32_t id)
{
    psd_group_slot *found = NULL;
    pthread_mutex_lock(&groups->lock);
    uint32_t used = atomic_load(&groups->used);
    for (uint32_t i = 0; i < used && found == NULL; i++) {
        psd_group_slot *slot = atomic_load(&groups->slots[i]);
        if (!slot->taken)
            found = slot;
    }
    if (found == NULL)
        found = add_slot(groups);
    if (found != NULL) {
        found->taken = true;
        atomic_store(&found->told, false);
        found->id = id;
    }
    pthread_mutex_unlock(&groups->lock);
    return found;
}

void group_slot_give_back(psd_groups *groups, psd_group_slot *slot)
{
    pthread_mutex_lock(&groups->lock);
    psd_backend_group *backend = slot->backend;
    slot->backend = NULL;
    slot->id = 0;
    pthread_mutex_unlock(&groups->lock);
    if (backend != NULL) {
        pthread_mutex_lock(&groups->backend_lock);
        slot->ops->group_close(backend);
        pthread_mutex_unlock(&groups->backend_lock);
    }
    free(slot->members);
    slot->members = NULL;
    pthread_mutex_lock(&groups->lock);
    slot->taken = false;
    pthread_mutex_unlock(&groups->lock);
}

/* ------------------------------------------------------------------------------------------------ closing */

/* Ends the handle of this generation, if nobody uses the slot. Gives the slot's tag, in which the generation
 * is another when the handle had ended before. */
static bool retire(psd_group_slot *slot, uint32_t generation, uint64_t *tag)
{
    uint64_t next = (uint64_t)(generation + 1) << 32;
    *tag = (uint64_t)generation << 32;
    return atomic_compare_exchange_strong(&slot->tag, tag, next);
}

static void close_slot(psd_ctx *ctx, psd_group_slot *slot)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_CLOSE};
    uint32_t id = slot->id;
    msg.u.group.group = id;
    atomic_store(&slot->open, false);
    group_slot_give_back(&ctx->groups, slot);
    psd_agent_tell(ctx->agent, &msg);
    psd_agent_forget_group(ctx->agent, id);
}

psd_status psd_group_close(PSD_AT, const char *verb, psd_ctx *ctx, psd_group group)
{
    psd_group_slot *slot = NULL;
    uint64_t tag = 0;
    if (group.index == 0 && group.generation == 0)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "%s: the world cannot be destroyed; psd_finalize leaves it", verb);
    psd_status status = psd_group_acquire(file, line, verb, ctx, group, &slot);
    if (status != PSD_OK)
        return status;
    psd_group_release(slot);
    if (ctx->has_streams && psd_works_drain(&ctx->works, slot) != PSD_OK)
        return psd_error_set(
            file, line, PSD_ERR_TIMEOUT,
            "%s: operations of group %u that were waited for on a stream are still on the device", verb,
            slot->id);
    if (retire(slot, group.generation, &tag)) {
        close_slot(ctx, slot);
        return PSD_OK;
    }
    if (GENERATION(tag) != group.generation)
        return psd_error_set(file, line, PSD_ERR_STALE, "%s: another thread has just destroyed the group",
                             verb);
    return psd_error_set(file, line, PSD_ERR_INVAL,
                         "%s: %u operations or users of the group are still there; wait for its works first",
                         verb, USERS(tag));
}

psd_status psd_group_close_all(psd_ctx *ctx)
{
    psd_status untold = PSD_OK;
    uint32_t used = atomic_load(&ctx->groups.used);
    while (used > 0) { /* the world last */
        char text[PSD_MAX_TEXT];
        psd_group_slot *slot = atomic_load(&ctx->groups.slots[--used]);
        if (!atomic_load(&slot->open))
            continue;
        psd_status status = psd_group_broken(slot, text, sizeof text);
        if (status != PSD_OK && status != PSD_ERR_STOPPED && !atomic_load(&slot->told))
            untold = status;
        close_slot(ctx, slot);
    }
    return untold;
}

/* ------------------------------------------------------------------------------------- all that are open */

psd_status psd_group_broken(const psd_group_slot *slot, char *text, size_t text_bytes)
{
    text[0] = '\0';
    return slot->ops->group_error(slot->backend, text, text_bytes);
}

static void visit_slot(const psd_group_slot *slot,
                       void (*visit)(void *arg, uint32_t world_rank, psd_status state), void *arg)
{
    for (int32_t i = 0; i < slot->size; i++) {
        if (i != slot->rank)
            visit(arg, slot->members[i], slot->ops->group_member(slot->backend, i));
    }
}

void psd_groups_visit(psd_ctx *ctx, void (*visit)(void *arg, uint32_t world_rank, psd_status state),
                      void *arg)
{
    psd_groups *groups = &ctx->groups;
    pthread_mutex_lock(&groups->lock);
    uint32_t used = atomic_load(&groups->used);
    for (uint32_t i = 0; i < used; i++) {
        const psd_group_slot *slot = atomic_load(&groups->slots[i]);
        if (slot->backend != NULL && slot->id != GROUP_CLOSED_WORLD)
            visit_slot(slot, visit, arg);
    }
    pthread_mutex_unlock(&groups->lock);
}

static void abort_where(psd_ctx *ctx, bool all, uint32_t id, psd_status status, const char *text)
{
    psd_groups *groups = &ctx->groups;
    pthread_mutex_lock(&groups->lock);
    uint32_t used = atomic_load(&groups->used);
    for (uint32_t i = 0; i < used; i++) {
        psd_group_slot *slot = atomic_load(&groups->slots[i]);
        if (slot->backend == NULL || !(all || slot->id == id))
            continue;
        slot->ops->group_abort(slot->backend, status, text);
    }
    pthread_mutex_unlock(&groups->lock);
}

void psd_group_abort_id(psd_ctx *ctx, uint32_t id, psd_status status, const char *text)
{
    abort_where(ctx, false, id, status, text);
}

void psd_group_abort_all(psd_ctx *ctx, psd_status status, const char *text)
{
    abort_where(ctx, true, 0, status, text);
}

psd_status psd_group_abort_at(PSD_AT, psd_ctx *ctx, psd_group group, const char *reason)
{
    static const char verb[] = "psd_group_abort";
    psd_group_slot *slot = NULL;
    psd_status status = psd_ctx_check(file, line, verb, ctx);
    if (status == PSD_OK)
        status = psd_group_acquire(file, line, verb, ctx, group, &slot);
    if (status != PSD_OK)
        return status;
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    msg.u.abort.group = slot->id;
    msg.u.abort.epoch = slot->epoch;
    msg.u.abort.status = PSD_ERR_ABORTED;
    msg.u.abort.culprit = ctx->rank;
    snprintf(msg.u.abort.text, sizeof msg.u.abort.text, "rank %d aborted group %u at %s:%d: %.512s",
             ctx->rank, slot->id, psd_site_file(file), line, reason != NULL ? reason : "no reason given");
    slot->ops->group_abort(slot->backend, PSD_ERR_ABORTED, msg.u.abort.text);
    atomic_store(&slot->told, true);
    status = psd_agent_tell(ctx->agent, &msg);
    if (status != PSD_OK)
        psd_error_set(file, line, status, "%s: the other members cannot be told: %s", verb,
                      psd_status_text(status));
    psd_group_release(slot);
    return status;
}

/* ---------------------------------------------------------------------------------------------- questions */

psd_status psd_group_destroy_at(PSD_AT, psd_ctx *ctx, psd_group group)
{
    psd_status status = psd_ctx_check(file, line, "psd_group_destroy", ctx);
    return status == PSD_OK ? psd_group_close(file, line, "psd_group_destroy", ctx, group) : status;
}

static psd_status look(const char *verb, psd_ctx *ctx, psd_group group, const void *out,
                       psd_group_slot **slot)
{
    psd_status status = psd_ctx_check(NULL, 0, verb, ctx);
    if (status == PSD_OK && out == NULL)
        status = psd_error_set(NULL, 0, PSD_ERR_INVAL, "%s: the out-parameter is NULL", verb);
    return status == PSD_OK ? psd_group_acquire(NULL, 0, verb, ctx, group, slot) : status;
}

psd_status psd_group_rank(psd_ctx *ctx, psd_group group, int32_t *rank)
{
    psd_group_slot *slot = NULL;
    psd_status status = look("psd_group_rank", ctx, group, rank, &slot);
    if (status != PSD_OK)
        return status;
    *rank = slot->rank;
    psd_group_release(slot);
    return PSD_OK;
}

psd_status psd_group_size(psd_ctx *ctx, psd_group group, int32_t *size)
{
    psd_group_slot *slot = NULL;
    psd_status status = look("psd_group_size", ctx, group, size, &slot);
    if (status != PSD_OK)
        return status;
    *size = slot->size;
    psd_group_release(slot);
    return PSD_OK;
}

psd_status psd_group_world_rank(psd_ctx *ctx, psd_group group, int32_t group_rank, int32_t *world_rank)
{
    psd_group_slot *slot = NULL;
    psd_status status = look("psd_group_world_rank", ctx, group, world_rank, &slot);
    if (status != PSD_OK)
        return status;
    if (group_rank < 0 || group_rank >= slot->size)
        status =
            psd_error_set(NULL, 0, PSD_ERR_INVAL, "psd_group_world_rank: group rank %d is not in 0 to %d",
                          group_rank, slot->size - 1);
    else
        *world_rank = (int32_t)slot->members[group_rank];
    psd_group_release(slot);
    return status;
}
