/* Incidents: hangs that were found, as decided and journalled. One is open until its groups are gone, or somebody has
 * acknowledged it. */
#include <stdlib.h>

#include "server/core/cut.h"

bool incident_is_open(const job *j, const incident *i)
{
    if (i->is_acknowledged || j->state != JOB_RUNNING)
        return false;
    for (uint32_t k = 0; k < i->body.group_count; k++)
        if (shelf_find(&j->groups, i->body.groups[k]) != NULL)
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

/* What the ranks found by themselves, from the headers of their messages. */
static void add_of_group(psd_core *core, group *g, uint32_t kind, const char *word, int32_t rank)
{
    psd_msg_incident body = {.kind = kind, .culprit = g->culprit, .group_count = 1, .groups = {g->id}};
    if (g->has_incident)
        return;
    g->has_incident = true;
    (void)snprintf(body.text, sizeof body.text, "%s: %s", word, g->reason == NULL ? no_reason : g->reason);
    (void)snprintf(body.rows, sizeof body.rows, "%d\tcause\t\t%u\t-1\t\t-1\t\t-1\t%d\n", rank, g->id,
                   g->culprit);
    add(core, g->job, &body);
}

void incidents_group_failed(psd_core *core, group *g, int32_t rank)
{
    int64_t at = g->culprit < 0 ? -1 : ranks_find(g->members, g->order, g->count, (uint32_t)g->culprit);
    if (g->status == PSD_ERR_MISMATCH)
        add_of_group(core, g, WAITS_MISMATCH, "mismatch", rank);
    else if (g->status == PSD_ERR_PEER_FAILED && at >= 0 && bit_get(g->closed, (uint32_t)at))
        add_of_group(core, g, WAITS_ORPHAN, "orphan", rank);
    else
        g->failed_at = rank;
}

void incidents_member_closed(psd_core *core, group *g, uint32_t at)
{
    if (g->state == GROUP_BROKEN && g->status == PSD_ERR_PEER_FAILED && g->failed_at >= 0 &&
        (int64_t)ranks_at(g->members, at) == g->culprit)
        add_of_group(core, g, WAITS_ORPHAN, "orphan", g->failed_at);
}

void incidents_decided(psd_core *core, const psd_event *event)
{
    job *j = jobs_find(core, event->ident.job);
    if (j == NULL || j->state != JOB_RUNNING || event->msg == NULL || event->msg->type != PSD_MSG_INCIDENT)
        return;
    const psd_msg_incident *body = &event->msg->u.incident;
    mark_journal(core);
    add(core, j, body);
    for (uint32_t k = 0; k < body->group_count && !body->report_only; k++) {
        group *g = shelf_find(&j->groups, body->groups[k]);
        if (g != NULL)
            groups_abort(core, g, status_of(body->kind), body->culprit, body->text);
    }
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
