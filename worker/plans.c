/* Plans on a rank: has the coordinator compile one, checks the steps that come, agrees on their hash, runs
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/tensor.h"
#include "worker/context.h"
#include "worker/device_memory.h"
#include "worker/handles.h"
#include "worker/plan_steps.h"

/* Progress is told at most so often. */
#define TELL_NS (200 * PSD_NS_PER_MS)

struct psd_plans {
    psd_handles handles;
};

typedef struct plan {
    uint32_t id; /* psd's */
    psd_group group;
    int32_t tag;
    psd_dtype dtype;
    int64_t count;
    plan_list list;
    pthread_mutex_t lock; /* one run at a time */
    uint64_t runs;
    uint64_t bytes; /* sent, all runs */
    int64_t last_run_ns;
    psd_time_ns told;
    bool changed; /* since progress was told */
} plan;

static psd_status get_plans(psd_ctx *ctx, psd_plans **out)
{
    pthread_mutex_lock(&ctx->parts_lock);
    if (ctx->plans == NULL) {
        psd_plans *plans = calloc(1, sizeof(*plans));
        if (plans != NULL && psd_handles_init(&plans->handles) != PSD_OK) {
            free(plans);
            plans = NULL;
        }
        ctx->plans = plans;
    }
    psd_plans *plans = ctx->plans;
    pthread_mutex_unlock(&ctx->parts_lock);
    if (plans == NULL)
        return PSD_ERR_NOMEM;
    *out = plans;
    return PSD_OK;
}

static void tell(psd_ctx *ctx, psd_msg_type type, const plan *p)
{
    psd_msg msg = {
        .type = type,
        .u.plan = {.plan = p->id,
                   .hash = p->list.hash,
                   .runs = p->runs,
                   .bytes = p->bytes,
                   .last_run_ns = p->last_run_ns},
    };
    psd_status status = psd_agent_tell(ctx->agent, &msg);
    if (status != PSD_OK)
        psd_log("plan", PSD_LOG_WARN, "cannot send %s of plan %u: %s", psd_msg_name(type), p->id,
                psd_status_text(status));
}

static void free_plan(plan *p)
{
    plan_list_free(&p->list);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* What the last runs left untold; a plan that runs now tells by itself. */
static void tell_plan(void *item, void *arg)
{
    plan *p = item;
    if (pthread_mutex_trylock(&p->lock) != 0)
        return;
    if (p->changed) {
        p->changed = false;
        tell(arg, PSD_MSG_PLAN_PROGRESS, p);
    }
    pthread_mutex_unlock(&p->lock);
}

void psd_plans_tell(psd_ctx *ctx)
{
    pthread_mutex_lock(&ctx->parts_lock);
    psd_plans *plans = ctx->plans;
    if (plans != NULL)
        psd_handles_each(&plans->handles, tell_plan, ctx);
    pthread_mutex_unlock(&ctx->parts_lock);
}

/* Tells the last progress and that this rank is done with it. */
static void close_plan(psd_ctx *ctx, plan *p)
{
    if (p->changed)
        tell(ctx, PSD_MSG_PLAN_PROGRESS, p);
    tell(ctx, PSD_MSG_PLAN_CLOSE, p);
    free_plan(p);
}

void psd_plans_release(psd_ctx *ctx)
{
    pthread_mutex_lock(&ctx->parts_lock);
    psd_plans *plans = ctx->plans;
    ctx->plans = NULL;
    pthread_mutex_unlock(&ctx->parts_lock);
    if (plans == NULL)
        return;
    for (plan *p = psd_handles_pop(&plans->handles); p != NULL; p = psd_handles_pop(&plans->handles)) {
        psd_log("plan", PSD_LOG_WARN, "plan %u was never destroyed", p->id);
        close_plan(ctx, p);
    }
    psd_handles_destroy(&plans->handles);
    free(plans);
}

/* Asks for one chunk and adds it to the list. The first request opens the plan, and psd answers it once all
 * members have asked for the same. */
static psd_status fetch_chunk(psd_ctx *ctx, const psd_msg *ask, psd_time_ns deadline, plan_list *list,
                              char *why, size_t why_bytes)
{
    psd_msg_box *reply = NULL;
    psd_status status = psd_agent_call(ctx->agent, ask, deadline, &reply, why, why_bytes);
    if (status != PSD_OK)
        return status;
    if (reply->msg.type == PSD_MSG_PLAN_STEPS) {
        status = plan_list_add(list, &reply->msg.u.plan_steps, why, why_bytes);
    } else {
        status = PSD_ERR_PROTOCOL;
        snprintf(why, why_bytes, "psd answered %s instead of PLAN_STEPS", psd_msg_name(reply->msg.type));
    }
    psd_msg_box_free(reply);
    return status;
}

static psd_status fetch_steps(psd_ctx *ctx, const psd_plan_inputs *inputs, psd_time_ns deadline,
                              plan_list *list, char *why, size_t why_bytes)
{
    psd_msg open = {.type = PSD_MSG_PLAN_OPEN, .u.plan_open = {.inputs = *inputs}};
    psd_status status = fetch_chunk(ctx, &open, deadline, list, why, why_bytes);
    while (status == PSD_OK && !plan_list_complete(list)) {
        psd_msg next = {.type = PSD_MSG_PLAN_NEXT, .u.plan = {.plan = list->plan, .chunk = list->chunk}};
        status = fetch_chunk(ctx, &next, deadline, list, why, why_bytes);
    }
    return status == PSD_OK ? plan_list_finish(list, why, why_bytes) : status;
}

/* Returns once all ranks have the same hash. A call, so that psd is asked again when its answer was lost. */
static psd_status await_go(psd_ctx *ctx, const plan *p, psd_time_ns deadline, char *why, size_t why_bytes)
{
    psd_msg_box *go = NULL;
    psd_msg ready = {.type = PSD_MSG_PLAN_READY, .u.plan = {.plan = p->id, .hash = p->list.hash}};
    psd_status status = psd_agent_call(ctx->agent, &ready, deadline, &go, why, why_bytes);
    if (status != PSD_OK)
        return status;
    if (go->msg.type != PSD_MSG_PLAN_GO) {
        status = PSD_ERR_PROTOCOL;
        snprintf(why, why_bytes, "psd answered %s instead of PLAN_GO", psd_msg_name(go->msg.type));
    }
    psd_msg_box_free(go);
    return status;
}

static psd_status check_ring_shift(PSD_AT, psd_ctx *ctx, psd_dtype dtype, int64_t count, const psd_plan *out)
{
    if (out == NULL)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "psd_plan_ring_shift: out is NULL; it takes the plan");
    if (!psd_dtype_valid((int)dtype))
        return psd_error_set(file, line, PSD_ERR_INVAL, "psd_plan_ring_shift: dtype %d is not a psd_dtype",
                             (int)dtype);
    if (count < 0 || count > INT64_MAX / (int64_t)psd_dtype_bytes(dtype))
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_plan_ring_shift: count is %lld; it is 0 or more, and less than 2^63 bytes in all",
            (long long)count);
    return psd_ctx_live(file, line, "psd_plan_ring_shift", ctx);
}

static psd_status make_plan(PSD_AT, psd_ctx *ctx, const psd_plan_inputs *inputs, plan *p)
{
    char why[PSD_MAX_TEXT] = "";
    psd_time_ns deadline = psd_ctx_deadline(ctx, 0);
    plan_list_begin(&p->list, inputs->ranks, (uint64_t)inputs->count * psd_dtype_bytes(inputs->dtype));
    psd_status status = fetch_steps(ctx, inputs, deadline, &p->list, why, sizeof(why));
    p->id = p->list.plan;
    if (status == PSD_OK)
        status = await_go(ctx, p, deadline, why, sizeof(why));
    if (status == PSD_OK)
        return PSD_OK;
    if (p->list.chunk > 0)
        tell(ctx, PSD_MSG_PLAN_CLOSE, p);
    return psd_error_set(file, line, status, "psd_plan_ring_shift: %s", why);
}

psd_status psd_plan_ring_shift_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_dtype dtype, int64_t count,
                                  int32_t shift, psd_plan *out)
{
    psd_plans *plans = NULL;
    psd_group_slot *slot = NULL;
    psd_plan handle;
    psd_status status = check_ring_shift(file, line, ctx, dtype, count, out);
    if (status != PSD_OK)
        return status;
    status = psd_group_acquire(file, line, "psd_plan_ring_shift", ctx, group, &slot);
    if (status != PSD_OK)
        return status;
    plan *p = calloc(1, sizeof(*p));
    if (p == NULL || get_plans(ctx, &plans) != PSD_OK || pthread_mutex_init(&p->lock, NULL) != 0) {
        status = psd_error_set(file, line, PSD_ERR_NOMEM, "psd_plan_ring_shift: out of memory");
        free(p);
        goto release;
    }
    p->group = group;
    p->tag = (ctx->ops->caps & PSD_CAP_TAGS) != 0 ? PSD_MAX_TAG : 0;
    p->dtype = dtype;
    p->count = count;
    psd_plan_inputs inputs = {PSD_PLAN_RING_SHIFT, slot->id, (uint32_t)slot->size, dtype, count, shift};
    status = make_plan(file, line, ctx, &inputs, p);
    if (status != PSD_OK) {
        free_plan(p);
        goto release;
    }
    status = psd_handles_add(&plans->handles, p, &handle.index, &handle.generation);
    if (status != PSD_OK) {
        psd_error_set(file, line, status, "psd_plan_ring_shift: out of memory");
        close_plan(ctx, p);
        goto release;
    }
    *out = handle;
release:
    psd_group_release(slot);
    return status;
}

static psd_status check_tensor(PSD_AT, const psd_ctx *ctx, const plan *p, const psd_tensor *tensor,
                               const char *which)
{
    if (tensor == NULL || tensor->size != sizeof(*tensor))
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_plan_run: plan %u: %s is not a tensor made by psd_tensor_1d or psd_tensor_nd", p->id, which);
    if (tensor->dtype != p->dtype || psd_tensor_count(tensor) != p->count)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "psd_plan_run: plan %u: %s has %lld elements of %s, expected %lld of %s", p->id,
                             which, (long long)psd_tensor_count(tensor), psd_dtype_name(tensor->dtype),
                             (long long)p->count, psd_dtype_name(p->dtype));
    if (tensor->data == NULL && p->count > 0)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "psd_plan_run: plan %u: %s->data is NULL, with %lld elements", p->id, which,
                             (long long)p->count);
    char why[PSD_MAX_TEXT];
    psd_status status = psd_memory_check(ctx, tensor, p->count, why, sizeof(why));
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "psd_plan_run: plan %u: %s %s", p->id, which, why);
    return PSD_OK;
}

static psd_status check_run(PSD_AT, const psd_ctx *ctx, const plan *p, const psd_tensor *in,
                            const psd_tensor *out)
{
    psd_status status = check_tensor(file, line, ctx, p, in, "in");
    if (status == PSD_OK)
        status = check_tensor(file, line, ctx, p, out, "out");
    if (status != PSD_OK || p->count == 0)
        return status;
    uintptr_t a = (uintptr_t)in->data;
    uintptr_t b = (uintptr_t)out->data;
    if (a < b + p->list.tensor_bytes && b < a + p->list.tensor_bytes)
        return psd_error_set(file, line, PSD_ERR_INVAL, "psd_plan_run: plan %u: in and out share memory",
                             p->id);
    return PSD_OK;
}

/* The steps of one round as one batch; `at` moves on to the next round. */
static psd_status run_round(PSD_AT, psd_ctx *ctx, plan *p, const psd_tensor *in, const psd_tensor *out,
                            size_t *at)
{
    psd_p2p ops[2];
    char name[PSD_MAX_NAME];
    int32_t count = 0;
    uint32_t round = p->list.steps[*at].round;
    snprintf(name, sizeof(name), "plan %u round %u", p->id, round);
    for (; *at < p->list.count && count < 2 && p->list.steps[*at].round == round; ++*at) {
        const plan_step *step = &p->list.steps[*at];
        const psd_tensor *whole = step->is_send ? in : out;
        unsigned char *data = (unsigned char *)whole->data + step->offset;
        ops[count] = (psd_p2p){
            .kind = step->is_send ? PSD_OP_SEND : PSD_OP_RECV,
            .tensor = psd_tensor_1d(data, (int64_t)step->bytes, PSD_U8, name),
            .peer = (int32_t)step->peer,
            .tag = p->tag,
        };
        ops[count].tensor.device = whole->device;
        ops[count++].tensor.device_index = whole->device_index;
        p->bytes += step->is_send ? step->bytes : 0;
    }
    return psd_batch_at(file, line, ctx, p->group, ops, count, NULL);
}

static psd_status run_plan(PSD_AT, psd_ctx *ctx, plan *p, const psd_tensor *in, const psd_tensor *out)
{
    psd_status status = PSD_OK;
    psd_time_ns begun = psd_now_ns();
    for (size_t at = 0; at < p->list.count && status == PSD_OK;)
        status = run_round(file, line, ctx, p, in, out, &at);
    if (status != PSD_OK)
        return status;
    psd_time_ns now = psd_now_ns();
    p->runs++;
    p->last_run_ns = now - begun;
    p->changed = true;
    if (now - p->told >= TELL_NS) {
        p->told = now;
        p->changed = false;
        tell(ctx, PSD_MSG_PLAN_PROGRESS, p);
    }
    return PSD_OK;
}

psd_status psd_plan_run_at(PSD_AT, psd_ctx *ctx, psd_plan handle, const psd_tensor *in, psd_tensor *out)
{
    psd_status status = psd_ctx_live(file, line, "psd_plan_run", ctx);
    if (status != PSD_OK)
        return status;
    plan *p = ctx->plans != NULL ? psd_handles_acquire(&ctx->plans->handles, handle.index, handle.generation)
                                 : NULL;
    if (p == NULL)
        return psd_error_set(file, line, PSD_ERR_STALE, "psd_plan_run: the plan was destroyed or never made");
    pthread_mutex_lock(&p->lock);
    status = check_run(file, line, ctx, p, in, out);
    if (status == PSD_OK)
        status = run_plan(file, line, ctx, p, in, out);
    pthread_mutex_unlock(&p->lock);
    psd_handles_release(&ctx->plans->handles, handle.index);
    return status;
}

psd_status psd_plan_destroy_at(PSD_AT, psd_ctx *ctx, psd_plan handle)
{
    void *item = NULL;
    psd_status status = psd_ctx_check(file, line, "psd_plan_destroy", ctx);
    if (status != PSD_OK)
        return status;
    status = PSD_ERR_STALE;
    if (ctx->plans != NULL)
        status = psd_handles_remove(&ctx->plans->handles, handle.index, handle.generation, &item);
    if (status == PSD_ERR_STALE)
        return psd_error_set(file, line, status, "psd_plan_destroy: the plan was destroyed or never made");
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "psd_plan_destroy: another thread runs the plan");
    close_plan(ctx, item);
    return PSD_OK;
}
