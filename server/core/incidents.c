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

void incidents_decided(psd_core *core, const psd_event *event)
{
    job *j = jobs_find(core, event->ident.job);
    if (j == NULL || j->state != JOB_RUNNING || event->msg == NULL || event->msg->type != PSD_MSG_INCIDENT)
        return;
    const psd_msg_incident *body = &event->msg->u.incident;
    mark_journal(core);
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
    for (uint32_t k = 0; k < body->group_count && !body->report_only; k++) {
        group *g = shelf_find(&j->groups, body->groups[k]);
        if (g != NULL)
            groups_abort(core, g, status_of(body->kind), body->culprit, body->text);
    }
}

void incidents_free(job *j)
{
    for (uint32_t i = 0; i < MAX_INCIDENTS; i++) {
        free(j->incidents[i]);
        j->incidents[i] = NULL;
    }
}
