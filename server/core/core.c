/* The step: which file answers which event. */
#include <stdlib.h>

#include "server/core/state.h"

psd_status psd_core_new(const psd_core_config *config, psd_core **out)
{
    psd_core *core = calloc(1, sizeof(*core));
    if (core == NULL)
        return PSD_ERR_NOMEM;
    if (config != NULL)
        core->config = *config;
    if (core->config.lease_ms <= 0)
        core->config.lease_ms = 5000;
    if (core->config.heartbeat_ms <= 0)
        core->config.heartbeat_ms = core->config.lease_ms < 5 ? 1 : core->config.lease_ms / 5;
    if (core->config.max_ranks == 0 || core->config.max_ranks > PSD_MAX_WORLD)
        core->config.max_ranks = PSD_MAX_WORLD;
    if (core->config.max_jobs == 0)
        core->config.max_jobs = 1024;
    core->lease_ns = core->config.lease_ms * PSD_NS_PER_MS;
    core->grace_ns = core->lease_ns < GRACE_LONGEST_NS ? core->lease_ns : GRACE_LONGEST_NS;
    core->notice_at = PSD_NEVER;
    core->watch_at = PSD_NEVER;
    core->next_plan = 1;
    *out = core;
    return PSD_OK;
}

void psd_core_free(psd_core *core)
{
    if (core == NULL)
        return;
    graves_empty(core);
    for (uint32_t i = 0; i < core->job_count; i++)
        job_free(core->jobs[i]);
    for (size_t i = 0; i < MAX_NOTES; i++)
        free(core->notes[i].text);
    psd_map_free(&core->peers);
    psd_map_free(&core->names);
    arena_empty(core, true);
    free(core->jobs);
    free(core->graves);
    free(core->addresses);
    free(core->columns);
    free(core);
}

typedef void (*handler)(psd_core *core, member *m, const psd_msg *msg);

static const handler handlers[PSD_MSG_TYPES] = {
    [PSD_MSG_HEARTBEAT] = members_heartbeat,
    [PSD_MSG_GROUP_OPEN] = groups_open,
    [PSD_MSG_GROUP_TOKEN] = groups_token,
    [PSD_MSG_GROUP_READY] = groups_ready,
    [PSD_MSG_GROUP_FAIL] = groups_fail,
    [PSD_MSG_GROUP_CLOSE] = groups_close,
    [PSD_MSG_PLAN_OPEN] = plans_open,
    [PSD_MSG_PLAN_NEXT] = plans_next,
    [PSD_MSG_PLAN_READY] = plans_ready,
    [PSD_MSG_PLAN_PROGRESS] = plans_progress,
    [PSD_MSG_PLAN_CLOSE] = plans_close,
    [PSD_MSG_TABLE_OPEN] = tables_open,
    [PSD_MSG_TABLE_READY] = tables_ready,
    [PSD_MSG_TABLE_PROGRESS] = tables_progress,
    [PSD_MSG_TABLE_CLOSE] = tables_close,
    [PSD_MSG_BYE] = members_bye,
    [PSD_MSG_CANCEL] = requests_cancel,
    [PSD_MSG_STUCK] = watch_stuck,
    [PSD_MSG_SNAPSHOT] = watch_snapshot,
    [PSD_MSG_LOG] = asks_answer,
    [PSD_MSG_OPS] = asks_answer,
    [PSD_MSG_LOST_WORK] = incidents_lost_work,
};

static bool same_ident(const member *m, const psd_ident *ident)
{
    return m->incarnation == ident->incarnation && strcmp(m->name, ident->name) == 0 &&
           strcmp(m->job->name, ident->job) == 0;
}

/* An unknown connection, or one that speaks for somebody else. A BYE of somebody who is no member, or no
 * longer (it is sent again when its answer was lost), is answered: there is nothing to leave. Who has left has
 * nothing else to say. All others must say HELLO first. RESYNC answers no request: the request is still
 * open, and comes again after the HELLO. */
static void answer_stranger(psd_core *core, psd_peer peer, const psd_msg *msg)
{
    const member *m = members_find(core, &msg->ident);
    bool same_life = m != NULL && m->incarnation == msg->ident.incarnation;
    bool is_member = same_life && member_is_live(m);
    bool acknowledge = !is_member && msg->type == PSD_MSG_BYE;
    core->dropped++;
    if (same_life && m->state == MEMBER_LEFT && !acknowledge)
        return;
    psd_msg *answer = send_to_peer(core, peer, acknowledge ? PSD_MSG_BYE_ACK : PSD_MSG_RESYNC);
    answer->ident = msg->ident;
    answer->request = acknowledge ? msg->request : 0;
}

static void step_member_msg(psd_core *core, const psd_event *event)
{
    const psd_msg *msg = event->msg;
    member *m = psd_map_get(&core->peers, event->peer);
    if (m == NULL || !same_ident(m, &msg->ident)) {
        answer_stranger(core, event->peer, msg);
        return;
    }
    members_touch(core, m);
    if (msg->type <= PSD_MSG_NONE || msg->type >= PSD_MSG_TYPES || handlers[msg->type] == NULL) {
        core->dropped++;
        refuse_peer(core, event->peer, msg, PSD_ERR_PROTOCOL, "psd takes no message of type %d from a worker",
                    (int)msg->type);
    } else if (m->state == MEMBER_WAITING && msg->type != PSD_MSG_HEARTBEAT && msg->type != PSD_MSG_BYE) {
        core->dropped++;
        refuse_peer(core, event->peer, msg, PSD_ERR_REFUSED,
                    "the world of job %s is not complete yet: wait for WELCOME", m->job->name);
    } else {
        handlers[msg->type](core, m, msg);
    }
}

static void step_msg(psd_core *core, const psd_event *event)
{
    core->messages++;
    if (event->msg == NULL || event->peer == 0)
        return;
    if (event->msg->type == PSD_MSG_QUERY)
        views_answer(core, event);
    else if (event->msg->type == PSD_MSG_HELLO)
        members_hello(core, event);
    else
        step_member_msg(core, event);
}

static void step_stop(psd_core *core)
{
    for (uint32_t i = 0; i < core->job_count; i++)
        if (core->jobs[i]->state != JOB_ENDED) {
            psd_msg *msg = send_to(core, to_job(core->jobs[i]), PSD_MSG_STOP);
            (void)snprintf(msg->u.stop.text, sizeof(msg->u.stop.text), "the coordinator shuts down");
        }
}

psd_status psd_core_step(psd_core *core, const psd_event *event, psd_effects *effects)
{
    if (core->oom)
        return PSD_ERR_NOMEM;
    graves_empty(core);
    arena_empty(core, false);
    core->now = event->now;
    core->entropy = event->entropy;
    core->effects = effects;
    switch (event->type) {
    case PSD_EVENT_MSG:
        step_msg(core, event);
        break;
    case PSD_EVENT_GONE:
        members_gone(core, event->peer);
        break;
    case PSD_EVENT_TIMER:
        members_timer(core);
        watch_timer(core);
        asks_timer(core);
        break;
    case PSD_EVENT_COMPILED:
        plans_compiled(core, event);
        break;
    case PSD_EVENT_LOST:
        members_lost(core, &event->ident);
        break;
    case PSD_EVENT_RESTART:
        members_restart(core);
        plans_restart(core);
        watch_restart(core);
        asks_restart(core);
        break;
    case PSD_EVENT_INCIDENT:
        incidents_decided(core, event);
        break;
    case PSD_EVENT_STOP:
        step_stop(core);
        break;
    case PSD_EVENT_NOTE:
        note_add(core, NULL, -1, PSD_NOTE_WARN, "%s", event->text);
        break;
    }
    core->effects = NULL;
    return core->oom ? PSD_ERR_NOMEM : PSD_OK;
}

static psd_time_ns head_deadline(const time_list *list, psd_time_ns length)
{
    return list->head == NULL ? PSD_NEVER : list->head->since + length;
}

psd_time_ns psd_core_deadline(const psd_core *core)
{
    psd_time_ns lease = head_deadline(&core->leases, core->lease_ns + core->slack_ns);
    psd_time_ns grace = head_deadline(&core->graces, core->grace_ns);
    psd_time_ns first = lease < grace ? lease : grace;
    first = core->notice_at < first ? core->notice_at : first;
    psd_time_ns answer = asks_deadline(core);
    first = answer < first ? answer : first;
    return core->watch_at < first ? core->watch_at : first;
}

void psd_core_set_slack(psd_core *core, psd_time_ns slack)
{
    core->slack_ns = slack;
}

bool psd_core_idle(const psd_core *core)
{
    return core->reserved == 0; /* only jobs that have ended give their ranks back */
}
