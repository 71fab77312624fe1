/* Requests that wait for other ranks, given up by one that asked. It cannot be complete any more, so all who
 * asked are answered, with who has not. */
#include "server/core/state.h"

/* --------------------------------------------------------------------------- what a rank asks for instead */

static const char *pending_asks(psd_core *core, const pending *p)
{
    char list[128];
    if (p->how != PSD_GROUP_NEW)
        return arena_text(core, "a %s of group %u", p->how == PSD_GROUP_SPLIT ? "split" : "dup", p->parent);
    ranks_text(p->members, p->count, list, sizeof(list));
    return arena_text(core, "a group of ranks %s", list);
}

static bool has_asked(const pending *p, uint32_t rank)
{
    int64_t at = ranks_find(p->members, p->order, p->count, rank);
    return at >= 0 && p->requests != NULL && p->requests[at] != 0;
}

static const char *open_asks(psd_core *core, const job *j, uint32_t rank)
{
    for (size_t i = 0; i < j->pendings.count; i++)
        if (has_asked(j->pendings.items[i], rank))
            return pending_asks(core, j->pendings.items[i]);
    for (size_t i = 0; i < j->plans.count; i++) {
        const plan *p = j->plans.items[i];
        int64_t at = ranks_find(p->members, p->order, p->inputs.ranks, rank);
        if (p->state == PLAN_AGREEING && at >= 0 && p->requests[at] != 0)
            return arena_text(core, "a plan of group %u", p->group);
    }
    for (size_t i = 0; i < j->tables.count; i++) {
        const table *t = j->tables.items[i];
        int64_t at = ranks_find(t->trainers, NULL, t->trainer_count, rank);
        if (t->state == TABLE_AGREEING && at >= 0 && t->requests[at] != 0)
            return arena_text(core, "table %s", t->spec.name);
    }
    return NULL;
}

/* Those whose requests cross give up one after the other: the last must still learn what the first wanted.
 * `not_this`: what the others wait for, which it may have given up too. */
static const char *gave_up_asking(psd_core *core, const job *j, uint32_t rank, const char *not_this)
{
    for (size_t i = 0; i < PAST_KEPT; i++) {
        const pending *p = j->past_pendings.items[i];
        if (p != NULL && p->status == PSD_ERR_TIMEOUT && p->changed >= core->now - core->lease_ns &&
            has_asked(p, rank) && strcmp(pending_asks(core, p), not_this) != 0)
            return pending_asks(core, p);
    }
    for (size_t i = 0; i < j->tables.count; i++) { /* it stays until all have asked */
        const table *t = j->tables.items[i];
        int64_t at = ranks_find(t->trainers, NULL, t->trainer_count, rank);
        bool recent = t->state == TABLE_FAILED && t->status == PSD_ERR_TIMEOUT &&
                      t->changed >= core->now - core->lease_ns;
        const char *text = arena_text(core, "table %s", t->spec.name);
        if (recent && at >= 0 && t->requests[at] != 0 && strcmp(text, not_this) != 0)
            return text;
    }
    return NULL;
}

/* "it asks for table b"; NULL: for nothing. */
static const char *asks_text(psd_core *core, const job *j, uint32_t rank, const char *not_this)
{
    const char *what = open_asks(core, j, rank);
    if (what != NULL)
        return arena_text(core, "it asks for %s", what);
    what = gave_up_asking(core, j, rank, not_this);
    return what == NULL ? NULL : arena_text(core, "it asked for %s", what);
}

/* ------------------------------------------------------------------------------------------ who is missing */

/* "rank 3 has not asked; it asks for table b", "rank 3 and 2 more have not asked": the first of those whose
 * request is 0. `what`: the text of what they have not asked for. */
static const char *not_asked_text(psd_core *core, const job *j, const char *what, const uint32_t *members,
                                  const uint64_t *requests, uint32_t count, uint32_t asked)
{
    uint32_t at = 0;
    while (at + 1 < count && requests[at] != 0)
        at++;
    uint32_t rank = ranks_at(members, at);
    uint32_t more = count - asked - 1;
    const char *instead = asks_text(core, j, rank, what);
    const char *missing = more == 0 ? arena_text(core, "rank %u has not asked", rank)
                                    : arena_text(core, "rank %u and %u more have not asked", rank, more);
    if (instead == NULL)
        return missing;
    return more == 0 ? arena_text(core, "%s; %s", missing, instead)
                     : arena_text(core, "%s; of rank %u, %s", missing, rank, instead);
}

/* The first of those whose bit is not set. */
static uint32_t first_without(const uint64_t *bits, const uint32_t *members, uint32_t count)
{
    uint32_t at = 0;
    while (at + 1 < count && bit_get(bits, at))
        at++;
    return ranks_at(members, at);
}

const char *pending_text(psd_core *core, const pending *p)
{
    static const char *const hows[] = {"", "new", "split", "dup"};
    const char *missing =
        not_asked_text(core, p->job, pending_asks(core, p), p->members, p->requests, p->count, p->asked);
    return p->how == PSD_GROUP_NEW ? arena_text(core, "new: %s", missing)
                                   : arena_text(core, "%s of group %u: %s", hows[p->how], p->parent, missing);
}

static const char *gave_up(psd_core *core, const member *m, const char *what)
{
    return arena_text(core, "%s; rank %d (worker %s) gave up waiting", what, m->rank, m->name);
}

static bool cancel_group(psd_core *core, const member *m, uint64_t request)
{
    const shelf *pendings = &m->job->pendings;
    for (size_t i = 0; i < pendings->count; i++) {
        pending *p = pendings->items[i];
        int64_t at = ranks_find(p->members, p->order, p->count, (uint32_t)m->rank);
        if (at >= 0 && p->requests[at] == request) {
            const char *text = arena_text(core, "group of %u ranks, %s", p->count, pending_text(core, p));
            pending_refuse(core, p, PSD_ERR_TIMEOUT, gave_up(core, m, text));
            return true;
        }
    }
    const shelf *groups = &m->job->groups;
    for (size_t i = 0; i < groups->count; i++) {
        group *g = groups->items[i];
        int64_t at = group_rank_of(g, m);
        if (g->state == GROUP_ASKING && g->requests != NULL && at >= 0 && g->requests[at] == request) {
            const char *text = arena_text(core, "group of %u ranks: rank %u has not made its token", g->count,
                                          ranks_at(g->members, 0));
            groups_abort(core, g, PSD_ERR_TIMEOUT, -1, gave_up(core, m, text));
            return true;
        }
    }
    return false;
}

static const char *plan_waits_text(psd_core *core, const plan *p)
{
    if (p->state == PLAN_AGREEING)
        return not_asked_text(core, p->job, "", p->members, p->requests, p->inputs.ranks, p->asked);
    if (p->state == PLAN_COMPILING)
        return "psd still compiles it";
    return arena_text(core, "rank %u has not loaded it",
                      first_without(p->ready, p->members, p->inputs.ranks));
}

static bool cancel_plan(psd_core *core, const member *m, uint64_t request)
{
    const shelf *plans = &m->job->plans;
    for (size_t i = 0; i < plans->count; i++) {
        plan *p = plans->items[i];
        int64_t at = plan_rank_of(p, m);
        bool opening = p->state != PLAN_LIVE && p->state != PLAN_FAILED;
        if (opening && at >= 0 && p->requests[at] == request) {
            const char *text = arena_text(core, "plan of group %u: %s", p->group, plan_waits_text(core, p));
            plans_refuse(core, p, PSD_ERR_TIMEOUT, gave_up(core, m, text));
            return true;
        }
    }
    return false;
}

static const char *table_waits_text(psd_core *core, const table *t)
{
    if (t->state == TABLE_AGREEING)
        return not_asked_text(core, t->job, arena_text(core, "table %s", t->spec.name), t->trainers,
                              t->requests, t->trainer_count, t->asked);
    return arena_text(core, "server rank %u has not made room",
                      first_without(t->ready, t->servers, t->server_count));
}

static bool cancel_table(psd_core *core, const member *m, uint64_t request)
{
    const shelf *tables = &m->job->tables;
    for (size_t i = 0; i < tables->count; i++) {
        table *t = tables->items[i];
        int64_t at = trainer_of(t, m);
        bool opening = t->state == TABLE_AGREEING || t->state == TABLE_ASSIGNING;
        if (opening && at >= 0 && t->requests[at] == request) {
            const char *text = arena_text(core, "table %s: %s", t->spec.name, table_waits_text(core, t));
            table_refuse(core, t, PSD_ERR_TIMEOUT, gave_up(core, m, text));
            return true;
        }
    }
    return false;
}

/* A request that is complete already, or was never heard of, has had its answer or gets it. */
void requests_cancel(psd_core *core, member *m, const psd_msg *msg)
{
    if (m->rank >= 0 && (cancel_group(core, m, msg->request) || cancel_plan(core, m, msg->request) ||
                         cancel_table(core, m, msg->request)))
        mark_journal(core);
}
