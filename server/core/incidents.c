/* Incidents: hangs that were found, as decided and journalled. One is open until its groups are gone, or somebody has
 * acknowledged it. */
#include <stdlib.h>

#include "common/conf.h"
#include "server/core/cut.h"
#include "server/core/sides.h"

bool incident_is_open(const job *j, const incident *i)
{
    if (i->is_acknowledged || j->state != JOB_RUNNING)
        return false;
    for (uint32_t k = 0; k < i->body.group_count; k++)
        if (shelf_find(&j->groups, i->body.groups[k]) != NULL ||
            shelf_find(&j->pendings, i->body.groups[k]) != NULL)
            return true;
    return false;
}

bool incidents_has(const psd_core *core, const job *j, uint64_t key)
{
    (void)core;
    for (uint32_t i = 0; i < MAX_INCIDENTS; i++)
        if (j->incidents[i] != NULL && j->incidents[i]->body.key == key &&
            incident_is_open(j, j->incidents[i]))
            return true;
    return false;
}

static psd_status status_of(uint32_t kind)
{
    if (kind == WAITS_PEER_FAILED)
        return PSD_ERR_PEER_FAILED;
    return kind == WAITS_MISMATCH ? PSD_ERR_MISMATCH : PSD_ERR_ABORTED;
}

static void add(psd_core *core, job *j, const psd_msg_incident *body)
{
    incident *i = core_calloc(core, 1, sizeof *i);
    if (i == NULL)
        return;
    incident **slot = &j->incidents[j->incident_count % MAX_INCIDENTS];
    i->id = ++j->incident_count;
    i->at = core->now;
    i->body = *body;
    free(*slot);
    *slot = i;
    note_add(core, j, body->culprit, PSD_NOTE_WARN, "incident %u: %s", i->id, body->text);
}

/* ----------------------------------------------------------------------------------- what follows from one */

/* Who leaves after an incident has ended a call of it leaves because of that: whoever then misses it is no incident of
 * its own, until the members have gone on with a new group. */
static void mark_members(job *j, const uint32_t *members, uint32_t count, uint32_t cause)
{
    for (uint32_t at = 0; at < count; at++) {
        member *m = j->ranks[ranks_at(members, at)];
        if (m != NULL && member_is_live(m) && (cause == 0 || m->aborted_by == 0))
            m->aborted_by = cause;
    }
}

void incidents_group_live(const group *g)
{
    mark_members(g->job, g->members, g->count, 0);
}

/* The incident that this one, of a rank that never comes, follows from; 0: none. */
static uint32_t cause_of(const job *j, const psd_msg_incident *body)
{
    bool is_known = body->kind == WAITS_ORPHAN && body->culprit >= 0 && (uint32_t)body->culprit < j->world;
    const member *m = is_known ? j->ranks[body->culprit] : NULL;
    return m != NULL ? m->aborted_by : 0;
}

/* ------------------------------------------------------------------------------ what ranks found by themselves */

static bool is_collective(const psd_op_side *side)
{
    return side->kind > PSD_OP_RECV;
}

/* Is this about the operation that the group's first side is about? */
static bool is_of_same(const group *g, const psd_op_side *side)
{
    const psd_op_side *first = &g->sides[0];
    if (g->side_count == 0)
        return true;
    if (is_collective(first) != is_collective(side) || first->ordinal != side->ordinal)
        return false;
    return is_collective(side) || side->rank == first->peer || side->rank == first->rank;
}

static bool insert_side(group *g, const psd_op_side *side, bool is_own)
{
    uint32_t at = 0;
    while (at < g->side_count && g->sides[at].rank < side->rank)
        at++;
    bool is_known = at < g->side_count && g->sides[at].rank == side->rank;
    if (is_known && (!is_own || (g->own_sides >> at & 1) != 0))
        return false;
    if (!is_known && g->side_count == PSD_INCIDENT_SIDES)
        return false;
    if (!is_known) {
        uint32_t below = (UINT32_C(1) << at) - 1;
        memmove(&g->sides[at + 1], &g->sides[at], (g->side_count++ - at) * sizeof *g->sides);
        g->own_sides = (g->own_sides & below) | (g->own_sides & ~below) << 1;
    }
    g->sides[at] = *side;
    g->own_sides |= (uint32_t)is_own << at;
    return true;
}

/* Takes what a member tells; a rank's own word goes before another's. False: nothing new. */
static bool take_sides(psd_core *core, group *g, const member *m, const psd_msg_abort *fail)
{
    bool is_new = false;
    if (fail->side_count > 0 && g->sides == NULL)
        g->sides = core_calloc(core, PSD_INCIDENT_SIDES, sizeof *g->sides);
    for (uint32_t i = 0; i < fail->side_count && i < PSD_ABORT_SIDES && g->sides != NULL; i++) {
        const psd_op_side *side = &fail->sides[i];
        bool is_member =
            side->rank >= 0 && ranks_find(g->members, g->order, g->count, (uint32_t)side->rank) >= 0;
        if (is_member && is_of_same(g, side) && insert_side(g, side, side->rank == m->rank))
            is_new = true;
    }
    return is_new;
}

static void write_orphan(const group *g, int32_t rank, psd_msg_incident *body)
{
    const psd_op_side *side = g->side_count > 0 ? &g->sides[0] : NULL;
    psd_op_side unknown = {.rank = rank, .peer = -1, .root = -1, .ordinal = UINT64_MAX};
    incident_row row = {side != NULL ? side : &unknown, "cause", g->id, -1, g->culprit};
    psd_append(body->text, sizeof body->text, "orphan: ");
    sides_append_reason(g->reason == NULL ? no_reason : g->reason, body->text, sizeof body->text);
    if (side != NULL)
        psd_append(body->text, sizeof body->text, "; cure: add the missing %s on rank %d, or remove this one",
                   sides_missing(side->kind), g->culprit);
    rows_add(body, &row);
}

static void write_mismatch(const group *g, int32_t rank, psd_msg_incident *body)
{
    const char *reason = g->reason == NULL ? no_reason : g->reason;
    psd_op_side unknown = {.rank = rank, .peer = -1, .root = -1, .ordinal = UINT64_MAX};
    incident_row row = {&unknown, "suspect", g->id, -1, g->culprit};
    if (g->side_count > 0) {
        sides_write(g->sides, g->side_count, g->id, reason, body);
        if (is_collective(&g->sides[0]) && g->sides[0].kind != PSD_OP_ALL_TO_ALL_V)
            body->more += g->count - g->side_count;
        return;
    }
    psd_append(body->text, sizeof body->text, "mismatch: ");
    sides_append_reason(reason, body->text, sizeof body->text);
    rows_add(body, &row);
}

static psd_msg_incident body_of(const group *g, int32_t rank)
{
    psd_msg_incident body = {.culprit = g->culprit, .group_count = 1, .groups = {g->id}};
    body.kind = g->status == PSD_ERR_MISMATCH ? WAITS_MISMATCH : WAITS_ORPHAN;
    if (body.kind == WAITS_MISMATCH)
        write_mismatch(g, rank, &body);
    else
        write_orphan(g, rank, &body);
    return body;
}

static void add_of_group(psd_core *core, group *g, int32_t rank)
{
    if (g->incident != 0)
        return;
    psd_msg_incident body = body_of(g, rank);
    if (cause_of(g->job, &body) != 0)
        return;
    add(core, g->job, &body);
    g->incident = g->job->incident_count;
    mark_members(g->job, g->members, g->count, g->incident);
}

void incidents_group_failed(psd_core *core, group *g, const member *m, const psd_msg_abort *fail)
{
    int64_t at = g->culprit < 0 ? -1 : ranks_find(g->members, g->order, g->count, (uint32_t)g->culprit);
    (void)take_sides(core, g, m, fail);
    if (g->status == PSD_ERR_MISMATCH)
        add_of_group(core, g, m->rank);
    else if (g->status == PSD_ERR_PEER_FAILED && at >= 0 && bit_get(g->closed, (uint32_t)at))
        add_of_group(core, g, m->rank);
    else
        g->failed_at = m->rank;
}

/* Only of a mismatch do several ranks tell: it is written anew. */
void incidents_group_told(psd_core *core, group *g, const member *m, const psd_msg_abort *fail)
{
    if (g->incident == 0 || g->status != PSD_ERR_MISMATCH || fail->status != PSD_ERR_MISMATCH ||
        !take_sides(core, g, m, fail))
        return;
    mark_journal(core);
    incident *i = g->job->incidents[(g->incident - 1) % MAX_INCIDENTS];
    if (i != NULL && i->id == g->incident)
        i->body = body_of(g, m->rank);
}

void incidents_member_closed(psd_core *core, group *g, uint32_t at)
{
    if (g->state == GROUP_BROKEN && g->status == PSD_ERR_PEER_FAILED && g->failed_at >= 0 &&
        (int64_t)ranks_at(g->members, at) == g->culprit)
        add_of_group(core, g, g->failed_at);
}

static void end_groups(psd_core *core, job *j, const psd_msg_incident *body, uint32_t cause, const char *text)
{
    psd_status status = status_of(body->kind);
    for (uint32_t k = 0; k < body->group_count && !body->report_only; k++) {
        group *g = shelf_find(&j->groups, body->groups[k]);
        pending *p = g == NULL ? shelf_find(&j->pendings, body->groups[k]) : NULL;
        if (p != NULL) {
            mark_members(j, p->members, p->count, cause);
            pending_refuse(core, p, status, text);
        }
        if (g != NULL) {
            mark_members(j, g->members, g->count, cause);
            groups_abort(core, g, status, body->culprit, text);
        }
    }
}

void incidents_decided(psd_core *core, const psd_event *event)
{
    job *j = jobs_find(core, event->ident.job);
    if (j == NULL || j->state != JOB_RUNNING || event->msg == NULL || event->msg->type != PSD_MSG_INCIDENT)
        return;
    const psd_msg_incident *body = &event->msg->u.incident;
    uint32_t cause = cause_of(j, body);
    char text[PSD_MAX_TEXT];
    mark_journal(core);
    if (cause == 0) {
        add(core, j, body);
        (void)snprintf(text, sizeof text, "%s", body->text);
    } else {
        (void)snprintf(text, sizeof text,
                       "rank %d has left the job after incident %u; cure: psctl incidents show %u",
                       body->culprit, cause, cause);
    }
    end_groups(core, j, body, cause != 0 ? cause : j->incident_count, text);
}

/* Told when the worker leaves, and again after a resync. */
void incidents_lost_work(psd_core *core, member *m, const psd_msg *msg)
{
    psd_msg_incident body;
    job *j = m->job;
    if (m->rank < 0 || j->state != JOB_RUNNING)
        return;
    report_lost_work(m->rank, &msg->u.lost_work, &body);
    body.key ^= m->incarnation;
    for (uint32_t i = 0; i < MAX_INCIDENTS; i++)
        if (j->incidents[i] != NULL && j->incidents[i]->body.key == body.key)
            return;
    mark_journal(core);
    add(core, j, &body);
}

void incidents_free(job *j)
{
    for (uint32_t i = 0; i < MAX_INCIDENTS; i++) {
        free(j->incidents[i]);
        j->incidents[i] = NULL;
    }
}
