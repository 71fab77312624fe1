/* Plans: agreed by all members of a group, compiled on a helper thread, checked, loaded in chunks, agreed by
 * hash, run.
 *
 * The lists by group rank are the plan's own, because its group may be destroyed before it. */
#include <stdlib.h>

#include "common/tensor.h"
#include "server/core/state.h"

void plan_free(void *object)
{
    plan *p = object;
    free(p->members);
    free(p->order);
    free(p->requests);
    free(p->ready);
    free(p->closed);
    free(p->sent);
    free(p->compiled.steps);
    free(p->first_step);
    free(p->step_of);
    free(p->hashes);
    free(p->reason);
    free(p);
}

void plan_remove(psd_core *core, plan *p)
{
    shelf_remove(&p->job->plans, p->id);
    bury(core, p, plan_free);
}

int64_t plan_rank_of(const plan *p, const member *m)
{
    if (m->rank < 0)
        return -1;
    int64_t at = ranks_find(p->members, p->order, p->inputs.ranks, (uint32_t)m->rank);
    return at >= 0 && !bit_get(p->closed, (uint32_t)at) ? at : -1;
}

/* The reason goes to all who wait for an answer. A plan that nobody has loaded yet is then forgotten. */
void plans_refuse(psd_core *core, plan *p, psd_status status, const char *text)
{
    if (p->state == PLAN_FAILED)
        return;
    bool unknown = p->state == PLAN_AGREEING || p->state == PLAN_COMPILING;
    psd_msg *msg = send_to(core, to_plan(p), PSD_MSG_REFUSE);
    msg->u.refuse.status = status;
    (void)snprintf(msg->u.refuse.text, sizeof(msg->u.refuse.text), "%s", text);
    p->state = PLAN_FAILED;
    p->changed = core->now;
    p->status = status;
    p->reason = core_strdup(core, text);
    note_add(core, p->job, -1, PSD_NOTE_WARN, "plan %u of group %u failed: %s", p->id, p->group, text);
    if (unknown) {
        shelf_remove(&p->job->plans, p->id);
        past_add_plan(core, p);
    }
}

void plans_refuse_failed(psd_core *core, const member *m, const psd_msg *msg, const plan *p)
{
    refuse_peer(core, m->peer, msg, p->status, "plan %u failed: %s", p->id,
                p->reason == NULL ? no_reason : p->reason);
}

/* ------------------------------------------------------------------------------------------------- asking */

static bool inputs_valid(psd_core *core, const member *m, const psd_msg *msg, const group *g)
{
    const psd_plan_inputs *in = &msg->u.plan_open.inputs;
    if (in->kind != PSD_PLAN_RING_SHIFT)
        refuse_peer(core, m->peer, msg, PSD_ERR_UNSUPPORTED, "there is no plan of kind %d", (int)in->kind);
    else if (!psd_dtype_valid((int)in->dtype))
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL,
                    "a plan by rank %d names dtype %d, which does not exist", m->rank, (int)in->dtype);
    else if (in->count < 0 || in->count > INT64_MAX / (int64_t)psd_dtype_bytes(in->dtype))
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL,
                    "a plan by rank %d moves %lld elements, which is not possible", m->rank,
                    (long long)in->count);
    else if (in->ranks != 0 && in->ranks != g->count)
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL,
                    "a plan by rank %d is for %u ranks, but group %u has %u", m->rank, in->ranks, g->id,
                    g->count);
    else
        return true;
    return false;
}

static group *plan_group(psd_core *core, const member *m, const psd_msg *msg)
{
    uint32_t id = msg->u.plan_open.inputs.group;
    group *g = shelf_find(&m->job->groups, id);
    if (g == NULL || group_rank_of(g, m) < 0)
        refuse_peer(core, m->peer, msg, PSD_ERR_STALE, "a plan by rank %d: it is in no open group %u",
                    m->rank, id);
    else if (g->state == GROUP_BROKEN)
        refuse_peer(core, m->peer, msg, g->status, "a plan by rank %d: group %u was aborted: %s", m->rank, id,
                    g->reason == NULL ? no_reason : g->reason);
    else if (g->state != GROUP_LIVE || g->closed_count > 0)
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL,
                    "a plan by rank %d: group %u is not open on all its ranks", m->rank, id);
    else if (inputs_valid(core, m, msg, g))
        return g;
    return NULL;
}

static plan *plan_make(psd_core *core, const member *m, const psd_msg *msg, const group *g)
{
    job *j = m->job;
    if (j->plans.count >= MAX_PLANS_PER_JOB) {
        refuse_peer(core, m->peer, msg, PSD_ERR_LIMIT,
                    "job %s has %zu plans, which is the limit: destroy some", j->name, j->plans.count);
        return NULL;
    }
    plan *p = core_calloc(core, 1, sizeof(*p));
    if (p == NULL)
        return NULL;
    size_t words = bits_words(g->count);
    *p = (plan){.state = PLAN_AGREEING,
                .job = j,
                .group = g->id,
                .inputs = msg->u.plan_open.inputs,
                .changed = core->now};
    p->inputs.ranks = g->count;
    p->requests = core_calloc(core, g->count, sizeof(*p->requests));
    p->ready = core_calloc(core, words, sizeof(uint64_t));
    p->closed = core_calloc(core, words, sizeof(uint64_t));
    p->sent = core_calloc(core, g->count, sizeof(*p->sent));
    if (g->members != NULL)
        p->members = core_copy(core, g->members, g->count, sizeof(*p->members));
    if (g->order != NULL)
        p->order = core_copy(core, g->order, g->count, sizeof(*p->order));
    if (core->oom || !shelf_add(&j->plans, p)) {
        core->oom = true;
        plan_free(p);
        return NULL;
    }
    p->id = core->next_plan++;
    p->first = (uint32_t)group_rank_of(g, m);
    return p;
}

static bool same_inputs(const psd_plan_inputs *a, const psd_plan_inputs *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->count == b->count && a->shift == b->shift;
}

/* As with any operation that ranks disagree on, the group is broken: those yet to ask must not wait for the
 * others. */
static void refuse_differing(psd_core *core, const member *m, const psd_msg *msg, const plan *p, group *g)
{
    const psd_plan_inputs *mine = &msg->u.plan_open.inputs;
    char text[320];
    (void)snprintf(text, sizeof(text),
                   "ranks disagree on a plan of group %u: rank %d asks for a ring shift by %d of %lld %s, "
                   "rank %u for one by %d of %lld %s",
                   p->group, m->rank, mine->shift, (long long)mine->count, psd_dtype_name(mine->dtype),
                   ranks_at(p->members, p->first), p->inputs.shift, (long long)p->inputs.count,
                   psd_dtype_name(p->inputs.dtype));
    refuse_peer(core, m->peer, msg, PSD_ERR_MISMATCH, "%s", text);
    groups_abort(core, g, PSD_ERR_MISMATCH, -1, text);
}

/* A request that came before, sent again after a resync: counted once, answered again. */
static bool asked_before(psd_core *core, const member *m, const psd_msg *msg)
{
    for (size_t i = m->job->plans.count; i-- > 0;) {
        plan *p = m->job->plans.items[i];
        int64_t at = plan_rank_of(p, m);
        if (at < 0 || p->requests[at] != msg->request)
            continue;
        if (p->state == PLAN_LOADING || p->state == PLAN_LIVE)
            plans_send_steps(core, p, (uint32_t)at, 0, m, msg->request);
        else if (p->state == PLAN_FAILED)
            plans_refuse_failed(core, m, msg, p);
        return true;
    }
    return past_answers(core, m, msg);
}

static void ask_compile(psd_core *core, plan *p)
{
    p->state = PLAN_COMPILING;
    p->changed = core->now;
    psd_effect *effect = add_effect(core, PSD_EFFECT_COMPILE);
    if (effect == NULL)
        return;
    effect->audience = to_plan(p);
    effect->plan = p->id;
    effect->inputs = p->inputs;
}

void plans_open(psd_core *core, member *m, const psd_msg *msg)
{
    if (msg->request == 0 || asked_before(core, m, msg))
        return;
    group *g = plan_group(core, m, msg);
    if (g == NULL)
        return;
    plan *p = NULL;
    for (size_t i = 0; i < m->job->plans.count && p == NULL; i++) {
        plan *each = m->job->plans.items[i];
        int64_t at = plan_rank_of(each, m);
        if (each->state == PLAN_AGREEING && each->group == g->id && at >= 0 && each->requests[at] == 0)
            p = each;
    }
    if (p == NULL)
        p = plan_make(core, m, msg, g);
    if (p == NULL)
        return;
    mark_journal(core);
    if (!same_inputs(&p->inputs, &msg->u.plan_open.inputs)) {
        refuse_differing(core, m, msg, p, g);
        return;
    }
    p->requests[plan_rank_of(p, m)] = msg->request;
    if (++p->asked == p->inputs.ranks)
        ask_compile(core, p);
}

void plans_restart(psd_core *core)
{
    for (uint32_t i = 0; i < core->job_count; i++)
        for (size_t k = 0; k < core->jobs[i]->plans.count; k++) {
            plan *p = core->jobs[i]->plans.items[k];
            if (p->state == PLAN_COMPILING)
                ask_compile(core, p);
        }
}
