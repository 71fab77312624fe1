/* Requests that have had their answer: an answer that was lost with psd or with a connection is given again
 * when its request comes again, and not taken for a new one that others would have to make too.
 *
 * What was refused, or gave a rank no group, is kept here instead of being buried; what was opened answers
 * for itself. All of it comes from journalled events, so a replay knows it too. */
#include <stdlib.h>

#include "server/core/state.h"

static void past_add(psd_core *core, past *kept, void *object, bury_free free_object)
{
    void **slot = &kept->items[kept->count++ % PAST_KEPT];
    if (*slot != NULL)
        bury(core, *slot, free_object);
    *slot = object;
}

void past_add_pending(psd_core *core, pending *p)
{
    past_add(core, &p->job->past_pendings, p, pending_free);
}

void past_add_group(psd_core *core, group *g)
{
    past_add(core, &g->job->past_groups, g, group_free);
}

void past_add_plan(psd_core *core, plan *p)
{
    past_add(core, &p->job->past_plans, p, plan_free);
}

void past_add_table(psd_core *core, table *t)
{
    past_add(core, &t->job->past_tables, t, table_free);
}

void *past_find(const past *kept, uint32_t id)
{
    for (size_t i = 0; i < PAST_KEPT; i++) {
        uint32_t kept_id;
        if (kept->items[i] == NULL)
            continue;
        memcpy(&kept_id, kept->items[i], sizeof(kept_id)); /* first in each */
        if (kept_id == id)
            return kept->items[i];
    }
    return NULL;
}

/* --------------------------------------------------------------------------------------- forgetting again */

static void each_past(job *j, psd_core *core,
                      void (*end)(psd_core *core, void *object, bury_free free_object))
{
    struct {
        past *kept;
        bury_free free_object;
    } all[] = {{&j->past_pendings, pending_free},
               {&j->past_groups, group_free},
               {&j->past_plans, plan_free},
               {&j->past_tables, table_free}};
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        for (size_t i = 0; i < PAST_KEPT; i++)
            if (all[k].kept->items[i] != NULL)
                end(core, all[k].kept->items[i], all[k].free_object);
        *all[k].kept = (past){0};
    }
}

static void free_now(psd_core *core, void *object, bury_free free_object)
{
    (void)core;
    free_object(object);
}

void past_free(job *j)
{
    each_past(j, NULL, free_now);
}

void past_bury(psd_core *core, job *j)
{
    each_past(j, core, bury);
}

static void forget_at(uint64_t *requests, int64_t at)
{
    if (at >= 0 && requests != NULL)
        requests[at] = 0;
}

/* The next life at this rank numbers its requests anew, and nobody is told any more what a disagreement with
 * this one was. */
void past_member_ended(const member *m)
{
    job *j = m->job;
    uint32_t rank = (uint32_t)m->rank;
    for (size_t i = 0; i < PAST_KEPT && m->rank >= 0; i++) {
        pending *p = j->past_pendings.items[i];
        group *g = j->past_groups.items[i];
        plan *l = j->past_plans.items[i];
        table *t = j->past_tables.items[i];
        int64_t at = p == NULL ? -1 : ranks_find(p->members, p->order, p->count, rank);
        if (at >= 0) {
            p->disagreed = false;
            forget_at(p->requests, at);
        }
        if (g != NULL)
            forget_at(g->requests, ranks_find(g->members, g->order, g->count, rank));
        if (l != NULL)
            forget_at(l->requests, ranks_find(l->members, l->order, l->inputs.ranks, rank));
        if (t != NULL)
            forget_at(t->requests, ranks_find(t->trainers, NULL, t->trainer_count, rank));
    }
}

/* ---------------------------------------------------------------------------------------- answering again */

static bool is_request(const uint64_t *requests, int64_t at, uint64_t request)
{
    return at >= 0 && requests != NULL && requests[at] == request;
}

static const char *or_sentence(const char *reason)
{
    return reason == NULL ? no_reason : reason;
}

/* A split after which this rank has a group is answered by that group. */
static bool answer_pending(psd_core *core, const member *m, const psd_msg *msg, const pending *p)
{
    int64_t at = p == NULL ? -1 : ranks_find(p->members, p->order, p->count, (uint32_t)m->rank);
    if (at < 0 || !is_request(p->requests, at, msg->request))
        return false;
    if (p->status < 0) {
        refuse_peer(core, m->peer, msg, p->status, "%s", or_sentence(p->reason));
        return true;
    }
    if (p->colors == NULL || p->colors[at] >= 0)
        return false;
    send_to_member(core, m, PSD_MSG_GROUP_OPENED)->request = msg->request;
    return true;
}

static bool answer_group(psd_core *core, const member *m, const psd_msg *msg, const group *g)
{
    int64_t at = g == NULL ? -1 : ranks_find(g->members, g->order, g->count, (uint32_t)m->rank);
    if (at < 0 || !is_request(g->requests, at, msg->request))
        return false;
    refuse_peer(core, m->peer, msg, g->status, "%s", or_sentence(g->reason));
    return true;
}

static bool answer_plan(psd_core *core, const member *m, const psd_msg *msg, const plan *p)
{
    int64_t at = p == NULL ? -1 : ranks_find(p->members, p->order, p->inputs.ranks, (uint32_t)m->rank);
    if (at < 0 || !is_request(p->requests, at, msg->request))
        return false;
    refuse_peer(core, m->peer, msg, p->status, "%s", or_sentence(p->reason));
    return true;
}

static bool answer_table(psd_core *core, const member *m, const psd_msg *msg, const table *t)
{
    int64_t at = t == NULL ? -1 : ranks_find(t->trainers, NULL, t->trainer_count, (uint32_t)m->rank);
    if (at < 0 || !is_request(t->requests, at, msg->request))
        return false;
    refuse_peer(core, m->peer, msg, t->status, "%s", or_sentence(t->reason));
    return true;
}

bool past_answers(psd_core *core, const member *m, const psd_msg *msg)
{
    const job *j = m->job;
    bool answered = false;
    for (size_t i = 0; i < PAST_KEPT && !answered && m->rank >= 0; i++)
        answered = answer_pending(core, m, msg, j->past_pendings.items[i]) ||
                   answer_group(core, m, msg, j->past_groups.items[i]) ||
                   answer_plan(core, m, msg, j->past_plans.items[i]) ||
                   answer_table(core, m, msg, j->past_tables.items[i]);
    return answered;
}
