/* Opening a group: ask psd, connect and warm the links, tell psd, wait until all members have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/conf.h"
#include "common/log.h"
#include "worker/context.h"
#include "worker/group_slots.h"

#define POLL_SHORTEST (50 * INT64_C(1000))
#define POLL_LONGEST  (2 * PSD_NS_PER_MS) /* for each 16 ranks: they share cores with what they wait for */

/* What the steps of one opening share. */
typedef struct opening {
    psd_ctx *ctx;
    psd_group_slot *slot;
    psd_time_ns begun;
    psd_time_ns deadline;
    bool psd_knows; /* the failure came from psd: it need not be told */
    char why[PSD_MAX_TEXT];
} opening;

static psd_status fill_slot(opening *o, const psd_msg_group_opened *opened)
{
    psd_ctx *ctx = o->ctx;
    psd_group_slot *slot = o->slot;
    int32_t rank = -1;
    slot->members = malloc((size_t)opened->count * sizeof slot->members[0]);
    if (slot->members == NULL) {
        snprintf(o->why, sizeof o->why, "out of memory for %u members", opened->count);
        return PSD_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < opened->count; i++) {
        slot->members[i] = opened->members != NULL ? opened->members[i] : i;
        if (slot->members[i] == (uint32_t)ctx->rank)
            rank = (int32_t)i;
    }
    if (rank < 0) {
        snprintf(o->why, sizeof o->why, "psd opened group %u without this rank %d", opened->group, ctx->rank);
        return PSD_ERR_PROTOCOL;
    }
    slot->ops = ctx->ops;
    slot->epoch = opened->epoch;
    slot->rank = rank;
    slot->size = (int32_t)opened->count;
    return PSD_OK;
}

static psd_status begin(opening *o, const psd_msg_group_opened *opened, const uint32_t *members, int32_t rank,
                        int32_t size)
{
    psd_groups *groups = &o->ctx->groups;
    psd_group_desc desc = {
        .id = opened->group,
        .epoch = opened->epoch,
        .rank = rank,
        .size = size,
        .members = members,
        .addresses = opened->addresses,
        .token = opened->token,
        .token_bytes = opened->token_bytes,
    };
    psd_backend_group *backend = NULL;
    pthread_mutex_lock(&groups->backend_lock);
    psd_status status = o->ctx->ops->group_begin(o->ctx->backend, &desc, &backend, o->why, sizeof o->why);
    pthread_mutex_unlock(&groups->backend_lock);
    if (status == PSD_OK || status == PSD_INPROGRESS) {
        pthread_mutex_lock(&groups->lock);
        o->slot->backend = backend;
        pthread_mutex_unlock(&groups->lock);
        return PSD_OK;
    }
    return status;
}

/* Has psd aborted the group meanwhile? */
static psd_status check_abort(opening *o)
{
    psd_msg_box *box = NULL;
    char why[PSD_MAX_TEXT];
    psd_status status = psd_agent_take(o->ctx->agent, PSD_MSG_ABORT, o->slot->id, 0, &box, why, sizeof why);
    if (status == PSD_ERR_TIMEOUT)
        return PSD_OK;
    o->psd_knows = true;
    if (status != PSD_OK) {
        snprintf(o->why, sizeof o->why, "%s", why);
        return status;
    }
    status = box->msg.u.abort.status < PSD_OK ? box->msg.u.abort.status : PSD_ERR_ABORTED;
    snprintf(o->why, sizeof o->why, "%s", box->msg.u.abort.text);
    psd_msg_box_free(box);
    return status;
}

static psd_status poll_once(opening *o)
{
    psd_groups *groups = &o->ctx->groups;
    pthread_mutex_lock(&groups->backend_lock);
    psd_status status = o->ctx->ops->group_poll(o->slot->backend, o->why, sizeof o->why);
    pthread_mutex_unlock(&groups->backend_lock);
    return status;
}

/* The backend has no call that waits for links, so this polls, ever more slowly. */
static psd_status warm_up(opening *o)
{
    psd_time_ns pause = POLL_SHORTEST;
    psd_time_ns longest = POLL_LONGEST * (1 + o->slot->size / 16);
    psd_status status = poll_once(o);
    while (status == PSD_INPROGRESS) {
        psd_time_ns now = psd_now_ns();
        psd_status aborted = check_abort(o);
        if (aborted != PSD_OK)
            return aborted;
        if (now >= o->deadline) {
            char took[32], links[512];
            snprintf(links, sizeof links, "%.511s", o->why);
            snprintf(o->why, sizeof o->why, "the links were not up after %s%s%s",
                     psd_format_ns(now - o->begun, took, sizeof took), links[0] != '\0' ? ": " : "", links);
            return PSD_ERR_TIMEOUT;
        }
        struct timespec ts = {0, (long)pause};
        nanosleep(&ts, NULL);
        pause = pause * 2 > longest ? longest : pause * 2;
        status = poll_once(o);
    }
    return status;
}

static psd_status wait_for_go(opening *o)
{
    psd_msg ready = {.type = PSD_MSG_GROUP_READY};
    psd_msg_box *go = NULL;
    ready.u.group.group = o->slot->id;
    ready.u.group.warmup_ns = psd_now_ns() - o->begun;
    psd_status status = psd_agent_tell(o->ctx->agent, &ready);
    if (status != PSD_OK) {
        snprintf(o->why, sizeof o->why, "psd cannot be told that the links are up");
        return status;
    }
    status =
        psd_agent_take(o->ctx->agent, PSD_MSG_GROUP_GO, o->slot->id, o->deadline, &go, o->why, sizeof o->why);
    psd_msg_box_free(go);
    o->psd_knows = status != PSD_OK && status != PSD_ERR_TIMEOUT;
    return status;
}

/* Tells psd, so that no other member waits for this one, and leaves nothing behind. */
static void give_up(opening *o, psd_status status)
{
    psd_agent *agent = o->ctx->agent;
    uint32_t id = o->slot->id;
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    msg.u.abort.group = id;
    msg.u.abort.epoch = o->slot->epoch;
    msg.u.abort.status = status;
    msg.u.abort.culprit = -1;
    snprintf(msg.u.abort.text, sizeof msg.u.abort.text, "rank %d could not open group %u: %.900s",
             o->ctx->rank, id, o->why);
    if (!o->psd_knows)
        psd_agent_tell(agent, &msg);
    group_slot_give_back(&o->ctx->groups, o->slot);
    memset(&msg, 0, sizeof msg);
    msg.type = PSD_MSG_GROUP_CLOSE;
    msg.u.group.group = id;
    psd_agent_tell(agent, &msg);
    psd_agent_forget_group(agent, id);
}

/* From psd's GROUP_OPENED to a group in use; on failure everything is undone and `why` set. */
static psd_status open_it(psd_ctx *ctx, const psd_msg_group_opened *opened, psd_time_ns deadline,
                          psd_group *out, char *why, size_t why_bytes)
{
    opening o = {.ctx = ctx, .begun = psd_now_ns(), .deadline = deadline};
    o.slot = group_slot_take(&ctx->groups, opened->group);
    if (o.slot == NULL) {
        snprintf(why, why_bytes, "out of memory, or %d groups are open: destroy some", PSD_MAX_GROUPS);
        return PSD_ERR_LIMIT;
    }
    psd_status status = fill_slot(&o, opened);
    if (status == PSD_OK)
        status = begin(&o, opened, o.slot->members, o.slot->rank, o.slot->size);
    if (status == PSD_OK)
        status = warm_up(&o);
    if (status == PSD_OK)
        status = wait_for_go(&o);
    if (status != PSD_OK) {
        snprintf(why, why_bytes, "%s", o.why);
        give_up(&o, status);
        return status;
    }
    psd_log("host", PSD_LOG_INFO, "group %u of %d ranks is open after %.1f ms", o.slot->id, o.slot->size,
            (double)(psd_now_ns() - o.begun) / 1e6);
    out->index = o.slot->index;
    out->generation = (uint32_t)(atomic_load(&o.slot->tag) >> 32);
    atomic_store_explicit(&o.slot->open, true, memory_order_release);
    return PSD_OK;
}

/* What others who wait for this rank, and psd, know of the request: `group_new "ranks 0 2 5"`. */
static uint64_t begin_record(PSD_AT, psd_ctx *ctx, const psd_msg_group_open *how)
{
    char name[PSD_MAX_NAME] = "";
    if (how->how == PSD_GROUP_NEW)
        psd_append(name, sizeof name, "ranks");
    for (uint32_t i = 0; how->how == PSD_GROUP_NEW && i < how->count && strlen(name) < sizeof name - 12; i++)
        psd_append(name, sizeof name, " %u", how->members[i]);
    psd_tensor named = {.size = sizeof named, .name = name};
    psd_record_start start = {
        .now = psd_now_ns(),
        .kind = how->how == PSD_GROUP_NEW     ? PSD_OP_GROUP_NEW
                : how->how == PSD_GROUP_SPLIT ? PSD_OP_GROUP_SPLIT
                                              : PSD_OP_GROUP_DUP,
        .tensor = &named,
        .peer = -1,
        .group = how->parent,
        .file = file,
        .line = line,
    };
    return psd_record_begin(&ctx->recorder, &start);
}

/* Returns when psd has heard all who must ask. Until then this is a wait for them, as in a collective. */
static psd_status ask(PSD_AT, psd_ctx *ctx, const psd_msg_group_open *how, psd_time_ns deadline,
                      psd_msg_box **box, char *why, size_t why_bytes)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_OPEN};
    msg.u.group_open = *how;
    uint64_t record = begin_record(file, line, ctx, how);
    int slot = psd_record_wait_begin(&ctx->recorder, &record, 1, false);
    psd_status status = psd_agent_call(ctx->agent, &msg, deadline, box, why, why_bytes);
    psd_record_wait_end(&ctx->recorder, slot);
    psd_record_end(&ctx->recorder, record, status, -1, 0);
    return status;
}

psd_status psd_group_open(PSD_AT, const char *verb, psd_ctx *ctx, const psd_msg_group_open *how,
                          psd_group *out)
{
    char why[PSD_MAX_TEXT] = "";
    psd_msg_box *box = NULL;
    psd_time_ns deadline = psd_ctx_deadline(ctx, 0);
    psd_status status = ask(file, line, ctx, how, deadline, &box, why, sizeof why);
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "%s: %s", verb, why);
    const psd_msg_group_opened *opened = &box->msg.u.group_opened;
    if (box->msg.type != PSD_MSG_GROUP_OPENED) {
        status = PSD_ERR_PROTOCOL;
        snprintf(why, sizeof why, "psd answered with %s", psd_msg_name(box->msg.type));
    } else if (opened->group == 0) {
        out->index = UINT32_MAX;
        out->generation = 0;
    } else {
        status = open_it(ctx, opened, deadline, out, why, sizeof why);
    }
    psd_msg_box_free(box);
    if (status != PSD_OK)
        psd_error_set(file, line, status, "%s: %s", verb, why);
    return status;
}

/* The world of a rank that took the place of one that was lost: the others' group of it is broken or closed
 * to it, so here it is a group that only answers its error. */
static psd_status open_closed_world(psd_ctx *ctx, char *why, size_t why_bytes)
{
    char address[PSD_MAX_ADDR];
    const char *addresses[] = {address};
    opening o = {.ctx = ctx, .psd_knows = true};
    psd_msg_group_opened self = {
        .group = GROUP_CLOSED_WORLD, .count = (uint32_t)ctx->world, .addresses = addresses};
    psd_status status = ctx->ops->address(ctx->backend, address, sizeof address);
    o.slot = status == PSD_OK ? group_slot_take(&ctx->groups, self.group) : NULL;
    if (o.slot == NULL) {
        snprintf(why, why_bytes, "out of memory");
        return status != PSD_OK ? status : PSD_ERR_NOMEM;
    }
    status = fill_slot(&o, &self);
    if (status == PSD_OK)
        status = begin(&o, &self, &o.slot->members[o.slot->rank], 0, 1);
    if (status != PSD_OK) {
        snprintf(why, why_bytes, "%s", o.why);
        group_slot_give_back(&ctx->groups, o.slot);
        return status;
    }
    ctx->ops->group_abort(
        o.slot->backend, PSD_ERR_ABORTED,
        "this rank came to a running job, after the world's group was opened: make a group with "
        "psd_group_new");
    atomic_store_explicit(&o.slot->open, true, memory_order_release);
    return PSD_OK;
}

psd_status psd_group_open_world(PSD_AT, psd_ctx *ctx, uint32_t world_group, psd_time_ns deadline)
{
    char why[PSD_MAX_TEXT] = "";
    psd_msg_box *box = NULL;
    psd_group world = {0, 0};
    psd_status status = world_group == 0 ? open_closed_world(ctx, why, sizeof why)
                                         : psd_agent_take(ctx->agent, PSD_MSG_GROUP_OPENED, world_group,
                                                          deadline, &box, why, sizeof why);
    if (status == PSD_OK && world_group != 0) {
        status = open_it(ctx, &box->msg.u.group_opened, deadline, &world, why, sizeof why);
        psd_msg_box_free(box);
    }
    if (status != PSD_OK)
        psd_error_set(file, line, status, "psd_init: the world's group did not open: %s", why);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- api */

static psd_status check_ranks(PSD_AT, const psd_ctx *ctx, const int32_t *ranks, int32_t count,
                              uint32_t *members)
{
    static const char verb[] = "psd_group_new";
    bool mine = false;
    for (int32_t i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= ctx->world)
            return psd_error_set(file, line, PSD_ERR_INVAL, "%s: ranks[%d] is %d; world ranks are 0 to %d",
                                 verb, i, ranks[i], ctx->world - 1);
        members[i] = (uint32_t)ranks[i];
        mine = mine || ranks[i] == ctx->rank;
    }
    if (!mine)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "%s: this rank %d is not in the list; only the members call it", verb,
                             ctx->rank);
    return PSD_OK;
}

static psd_status check_distinct(PSD_AT, const psd_ctx *ctx, const int32_t *ranks, int32_t count)
{
    int32_t *place = calloc((size_t)ctx->world, sizeof *place);
    if (place == NULL)
        return psd_error_set(file, line, PSD_ERR_NOMEM, "psd_group_new: out of memory");
    psd_status status = PSD_OK;
    for (int32_t i = 0; i < count && status == PSD_OK; i++) {
        if (place[ranks[i]] != 0)
            status = psd_error_set(file, line, PSD_ERR_INVAL,
                                   "psd_group_new: rank %d is at both %d and %d of the list", ranks[i],
                                   place[ranks[i]] - 1, i);
        place[ranks[i]] = i + 1;
    }
    free(place);
    return status;
}

psd_status psd_group_new_at(PSD_AT, psd_ctx *ctx, const int32_t *ranks, int32_t count, psd_group *out)
{
    static const char verb[] = "psd_group_new";
    psd_status status = psd_ctx_live(file, line, verb, ctx);
    if (status != PSD_OK)
        return status;
    if (out == NULL || ranks == NULL)
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: %s is NULL", verb,
                             out == NULL ? "out" : "ranks");
    if (count < 1 || count > ctx->world)
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: count is %d; a group has 1 to %d ranks", verb,
                             count, ctx->world);
    uint32_t *members = malloc((size_t)count * sizeof *members);
    if (members == NULL)
        return psd_error_set(file, line, PSD_ERR_NOMEM, "%s: out of memory", verb);
    status = check_ranks(file, line, ctx, ranks, count, members);
    if (status == PSD_OK)
        status = check_distinct(file, line, ctx, ranks, count);
    psd_msg_group_open how = {.how = PSD_GROUP_NEW, .count = (uint32_t)count, .members = members};
    if (status == PSD_OK)
        status = psd_group_open(file, line, verb, ctx, &how, out);
    free(members);
    return status;
}

/* Split and dup: of a parent that this rank is in. */
static psd_status open_from(PSD_AT, const char *verb, psd_ctx *ctx, psd_group parent, psd_msg_group_open *how,
                            psd_group *out)
{
    psd_group_slot *slot = NULL;
    psd_status status = psd_ctx_live(file, line, verb, ctx);
    if (status == PSD_OK && out == NULL)
        status = psd_error_set(file, line, PSD_ERR_INVAL, "%s: out is NULL", verb);
    if (status == PSD_OK)
        status = psd_group_acquire(file, line, verb, ctx, parent, &slot);
    if (status != PSD_OK)
        return status;
    how->parent = slot->id;
    status = psd_group_open(file, line, verb, ctx, how, out);
    psd_group_release(slot);
    return status;
}

psd_status psd_group_split_at(PSD_AT, psd_ctx *ctx, psd_group parent, int32_t color, int32_t key,
                              psd_group *out)
{
    if (color < -1)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "psd_group_split: color is %d; it is 0 or more, or -1 for no group", color);
    psd_msg_group_open how = {.how = PSD_GROUP_SPLIT, .color = color, .key = key};
    return open_from(file, line, "psd_group_split", ctx, parent, &how, out);
}

psd_status psd_group_dup_at(PSD_AT, psd_ctx *ctx, psd_group parent, psd_group *out)
{
    psd_msg_group_open how = {.how = PSD_GROUP_DUP};
    return open_from(file, line, "psd_group_dup", ctx, parent, &how, out);
}
