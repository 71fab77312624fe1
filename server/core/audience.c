/* Expansion of audiences: an effect names who it is for, and the connections and the fields that differ are
 * filled in one by one while the daemon sends. A list of peers never exists. */
#include "server/core/state.h"

/* The object of an audience may have ended in this very step: then it is among the past, or the buried. */
static void *find_even_buried(const psd_core *core, const shelf *s, const past *kept, uint32_t id,
                              bury_free free_object)
{
    void *found = shelf_find(s, id);
    if (found == NULL)
        found = past_find(kept, id);
    for (size_t i = 0; found == NULL && i < core->grave_count; i++) {
        uint32_t grave_id;
        if (core->graves[i].free_object != free_object)
            continue;
        memcpy(&grave_id, core->graves[i].object, sizeof(grave_id));
        if (grave_id == id)
            found = core->graves[i].object;
    }
    return found;
}

static bool address_to(psd_msg *msg, const member *m, uint64_t request, psd_peer *peer)
{
    if (m == NULL || m->peer == 0)
        return false;
    memcpy(msg->ident.job, m->job->name, sizeof(msg->ident.job));
    (void)snprintf(msg->ident.name, sizeof(msg->ident.name), "%s", m->name);
    msg->ident.incarnation = m->incarnation;
    msg->request = request;
    *peer = m->peer;
    return true;
}

static bool next_in_job(const job *j, psd_msg *msg, uint64_t *cursor, psd_peer *peer)
{
    while (*cursor < j->roster_count) {
        const member *m = j->roster[(*cursor)++];
        if (!member_is_live(m) || (msg->type == PSD_MSG_WAITING && m->state != MEMBER_WAITING))
            continue;
        if (!address_to(msg, m, 0, peer))
            continue;
        if (msg->type == PSD_MSG_WELCOME) {
            msg->u.welcome.rank = m->rank;
            msg->u.welcome.resume_token = m->token;
        }
        return true;
    }
    return false;
}

static bool next_in_group(const job *j, const group *g, psd_msg *msg, uint64_t *cursor, psd_peer *peer)
{
    while (*cursor < g->count) {
        uint32_t at = (uint32_t)(*cursor)++;
        bool answers = msg->type == PSD_MSG_GROUP_OPENED || msg->type == PSD_MSG_REFUSE;
        uint64_t request = answers && g->requests != NULL ? g->requests[at] : 0;
        if (!bit_get(g->closed, at) &&
            address_to(msg, members_at(j, ranks_at(g->members, at)), request, peer))
            return true;
    }
    return false;
}

/* REFUSE goes to all who asked; GROUP_OPENED to those whose color gives them no group. */
static bool next_in_pending(const job *j, const pending *p, psd_msg *msg, uint64_t *cursor, psd_peer *peer)
{
    while (p->requests != NULL && *cursor < p->count) {
        uint32_t at = (uint32_t)(*cursor)++;
        bool meant = msg->type != PSD_MSG_GROUP_OPENED || (p->colors != NULL && p->colors[at] < 0);
        if (meant && p->requests[at] != 0 &&
            address_to(msg, members_at(j, ranks_at(p->members, at)), p->requests[at], peer))
            return true;
    }
    return false;
}

static bool next_in_plan(psd_core *core, const job *j, const plan *p, psd_msg *msg, uint64_t *cursor,
                         psd_peer *peer)
{
    while (*cursor < p->inputs.ranks) {
        uint32_t at = (uint32_t)(*cursor)++;
        if (bit_get(p->closed, at) || (msg->type == PSD_MSG_REFUSE && p->requests[at] == 0))
            continue;
        if (!address_to(msg, members_at(j, ranks_at(p->members, at)), p->requests[at], peer))
            continue;
        if (msg->type == PSD_MSG_PLAN_STEPS && !plans_fill(core, p, at, 0, &msg->u.plan_steps))
            return false;
        return true;
    }
    return false;
}

static bool next_trainer(const job *j, const table *t, psd_msg *msg, uint64_t *cursor, psd_peer *peer)
{
    while (*cursor < t->trainer_count) {
        uint32_t at = (uint32_t)(*cursor)++;
        if ((msg->type == PSD_MSG_REFUSE || !bit_get(t->closed, at)) && t->requests[at] != 0 &&
            address_to(msg, members_at(j, t->trainers[at]), t->requests[at], peer))
            return true;
    }
    return false;
}

static bool next_server(const job *j, const table *t, psd_msg *msg, uint64_t *cursor, psd_peer *peer)
{
    while (*cursor < t->server_count)
        if (address_to(msg, members_at(j, t->servers[(*cursor)++]), 0, peer))
            return true;
    return false;
}

static bool next_by_group(const psd_core *core, const job *j, psd_effect *effect, uint64_t *cursor,
                          psd_peer *peer)
{
    uint32_t id = effect->audience.id;
    if (id < PENDING_IDS) {
        const group *g = find_even_buried(core, &j->groups, &j->past_groups, id, group_free);
        return g != NULL && next_in_group(j, g, effect->msg, cursor, peer);
    }
    const pending *p = find_even_buried(core, &j->pendings, &j->past_pendings, id, pending_free);
    return p != NULL && next_in_pending(j, p, effect->msg, cursor, peer);
}

static bool next_by_table(const psd_core *core, const job *j, psd_effect *effect, uint64_t *cursor,
                          psd_peer *peer)
{
    const table *t = find_even_buried(core, &j->tables, &j->past_tables, effect->audience.id, table_free);
    if (t == NULL)
        return false;
    return effect->audience.kind == PSD_TO_TRAINERS ? next_trainer(j, t, effect->msg, cursor, peer)
                                                    : next_server(j, t, effect->msg, cursor, peer);
}

static bool next_single(const psd_effect *effect, uint64_t *cursor, psd_peer *peer)
{
    if ((*cursor)++ != 0 || effect->audience.peer == 0)
        return false;
    *peer = effect->audience.peer;
    return true;
}

bool psd_core_next_addressee(psd_core *core, psd_effect *effect, uint64_t *cursor, psd_peer *peer)
{
    const psd_audience *to = &effect->audience;
    psd_msg *msg = effect->msg;
    const job *j = to->job < core->job_count ? core->jobs[to->job] : NULL;
    /* Once for each effect. */
    if (*cursor == 0 && msg->type == PSD_MSG_GROUP_OPENED && msg->u.group_opened.group != 0 &&
        (j == NULL || !groups_fill_addresses(core, j, &msg->u.group_opened)))
        return false;
    if (to->kind == PSD_TO_PEER)
        return next_single(effect, cursor, peer);
    if (j == NULL)
        return false;
    if (to->kind == PSD_TO_JOB)
        return next_in_job(j, msg, cursor, peer);
    if (to->kind == PSD_TO_GROUP)
        return next_by_group(core, j, effect, cursor, peer);
    if (to->kind == PSD_TO_PLAN) {
        const plan *p = find_even_buried(core, &j->plans, &j->past_plans, to->id, plan_free);
        return p != NULL && next_in_plan(core, j, p, msg, cursor, peer);
    }
    return next_by_table(core, j, effect, cursor, peer);
}
