/* Requests that wait for other ranks, given up by one that asked. It cannot be complete any more, so all who
 * asked are answered, with who has not. */
#include "server/core/state.h"

/* "rank 3 has not asked", "rank 3 and 2 more have not asked": the first of those whose request is 0. */
static const char *not_asked_text(psd_core *core, const uint32_t *members, const uint64_t *requests,
                                  uint32_t count, uint32_t asked)
{
    uint32_t at = 0;
    while (at + 1 < count && requests[at] != 0)
        at++;
    uint32_t more = count - asked - 1;
    return more == 0 ? arena_text(core, "rank %u has not asked", ranks_at(members, at))
                     : arena_text(core, "rank %u and %u more have not asked", ranks_at(members, at), more);
}

const char *pending_text(psd_core *core, const pending *p)
{
    static const char *const hows[] = {"", "new", "split", "dup"};
    const char *missing = not_asked_text(core, p->members, p->requests, p->count, p->asked);
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
    return false;
}

static bool cancel_plan(psd_core *core, const member *m, uint64_t request)
{
    const shelf *plans = &m->job->plans;
    for (size_t i = 0; i < plans->count; i++) {
        plan *p = plans->items[i];
        int64_t at = plan_rank_of(p, m);
        if (p->state == PLAN_AGREEING && at >= 0 && p->requests[at] == request) {
            const char *missing = not_asked_text(core, p->members, p->requests, p->inputs.ranks, p->asked);
            const char *text = arena_text(core, "plan of group %u: %s", p->group, missing);
            plans_refuse(core, p, PSD_ERR_TIMEOUT, gave_up(core, m, text));
            return true;
        }
    }
    return false;
}

static bool cancel_table(psd_core *core, const member *m, uint64_t request)
{
    const shelf *tables = &m->job->tables;
    for (size_t i = 0; i < tables->count; i++) {
        table *t = tables->items[i];
        int64_t at = trainer_of(t, m);
        if (t->state == TABLE_AGREEING && at >= 0 && t->requests[at] == request) {
            const char *missing = not_asked_text(core, t->trainers, t->requests, t->trainer_count, t->asked);
            const char *text = arena_text(core, "table %s: %s", t->spec.name, missing);
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
