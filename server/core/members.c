/* Members: leases, losses, leaves. How they come is in hello.c.
 *
 * Time. An active member is on the lease list, oldest first; any message moves it to the tail. When its
 * connection is gone it moves to the grace list, to be lost unless it comes back with RESYNC's HELLO. One
 * that waits for the world is on neither: it has nothing to lose yet, and its connection tells when it goes.
 */
#include <stdlib.h>

#include "server/core/state.h"

/* --------------------------------------------------------------------------------------------- time lists */

static time_list *list_of(psd_core *core, uint8_t which)
{
    return which == LIST_LEASE ? &core->leases : &core->graces;
}

static void list_take(psd_core *core, member *m)
{
    if (m->list == LIST_NONE)
        return;
    time_list *list = list_of(core, m->list);
    *(m->prev == NULL ? &list->head : &m->prev->next) = m->next;
    *(m->next == NULL ? &list->tail : &m->next->prev) = m->prev;
    m->prev = NULL;
    m->next = NULL;
    m->list = LIST_NONE;
}

static void list_put(psd_core *core, member *m, member_list which)
{
    list_take(core, m);
    time_list *list = list_of(core, (uint8_t)which);
    m->list = (uint8_t)which;
    m->since = core->now;
    m->prev = list->tail;
    *(list->tail == NULL ? &list->head : &list->tail->next) = m;
    list->tail = m;
}

void members_touch(psd_core *core, member *m)
{
    m->seen = core->now;
    if (m->list == LIST_LEASE)
        list_put(core, m, LIST_LEASE);
}

/* A message that came says nothing of one that went the other way, and a dead connection may take this long
 * to be noticed. */
psd_time_ns member_missed_since(const psd_core *core, const member *m)
{
    return m->seen == INT64_MIN ? INT64_MIN : m->seen - core->lease_ns;
}

void member_activate(psd_core *core, member *m)
{
    m->state = MEMBER_ACTIVE;
    m->epoch = m->job->epoch;
    list_put(core, m, m->peer == 0 ? LIST_GRACE : LIST_LEASE);
}

/* ------------------------------------------------------------------------------------------------- lookup */

uint64_t name_key(const job *j, const char *name)
{
    return psd_hash_text(name, j->index);
}

member *members_find(const psd_core *core, const psd_ident *ident)
{
    const job *j = jobs_find(core, ident->job);
    if (j == NULL)
        return NULL;
    member *m = psd_map_get(&core->names, name_key(j, ident->name));
    while (m != NULL && (m->job != j || strcmp(m->name, ident->name) != 0))
        m = m->same_hash;
    return m;
}

member *members_at(const job *j, uint32_t rank)
{
    member *m = j->ranks != NULL && rank < j->world ? j->ranks[rank] : NULL;
    return m != NULL && member_is_live(m) ? m : NULL;
}

void member_text(const member *m, char *out, size_t out_bytes)
{
    if (m->rank >= 0)
        (void)snprintf(out, out_bytes, "rank %d (worker %s on host %s, pid %u)", m->rank, m->name, m->host,
                       m->pid);
    else
        (void)snprintf(out, out_bytes, "worker %s on host %s, pid %u", m->name, m->host, m->pid);
}

/* -------------------------------------------------------------------------------------------- connections */

void member_attach(psd_core *core, member *m, psd_peer peer)
{
    if (m->peer == peer)
        return;
    if (m->peer != 0) {
        (void)psd_map_remove(&core->peers, m->peer);
        drop_peer(core, m->peer);
    }
    if (!psd_map_put(&core->peers, peer, m))
        core->oom = true;
    m->peer = peer;
    if (m->state == MEMBER_ACTIVE)
        list_put(core, m, LIST_LEASE);
    else
        list_take(core, m);
}

void members_gone(psd_core *core, psd_peer peer)
{
    member *m = psd_map_remove(&core->peers, peer);
    if (m == NULL)
        return;
    m->peer = 0;
    if (member_is_live(m))
        list_put(core, m, LIST_GRACE);
    mark_journal(core);
}

static void names_remove(psd_core *core, member *m)
{
    uint64_t key = name_key(m->job, m->name);
    member *at = psd_map_get(&core->names, key);
    if (at == m) {
        if (m->same_hash == NULL)
            (void)psd_map_remove(&core->names, key);
        else
            (void)psd_map_put(&core->names, key, m->same_hash);
        return;
    }
    while (at != NULL && at->same_hash != m)
        at = at->same_hash;
    if (at != NULL)
        at->same_hash = m->same_hash;
}

void member_forget(psd_core *core, member *m)
{
    job *j = m->job;
    list_take(core, m);
    names_remove(core, m);
    roster_remove(j, m);
    if (m->rank >= 0 && j->ranks != NULL && j->ranks[m->rank] == m)
        j->ranks[m->rank] = NULL;
    free(m->current);
    m->current = NULL;
    free(m->snap);
    m->snap = NULL;
    asks_member_ended(core, m);
    bury(core, m, free);
}

/* ----------------------------------------------------------------------------------------- losses, leaves */

static void member_end(psd_core *core, member *m, member_state state)
{
    job *j = m->job;
    list_take(core, m);
    if (m->peer != 0)
        (void)psd_map_remove(&core->peers, m->peer);
    m->peer = 0;
    m->state = (uint8_t)state;
    free(m->current);
    m->current = NULL;
    asks_member_ended(core, m);
    watch_member_ended(core, m);
    j->have--;
    j->helpers -= member_is_server(m);
    if (m->rank >= 0 && (uint32_t)m->rank < j->lowest_free)
        j->lowest_free = (uint32_t)m->rank;
    if (j->state == JOB_FORMING) {
        j->claimed -= m->asked >= 0;
        j->notice = true;
        if (core->notice_at == PSD_NEVER)
            core->notice_at = core->now + NOTICE_INTERVAL_NS;
    } else {
        j->epoch++;
    }
}

/* A worker that went before the world was complete and held no rank leaves nothing to remember. */
static void forget_unranked(psd_core *core, member *m)
{
    if (m->rank < 0)
        member_forget(core, m);
}

static void objects_member_ended(psd_core *core, member *m, bool failed, const char *text)
{
    tables_member_ended(core, m, failed, text);
    pendings_member_ended(core, m, text);
    groups_member_ended(core, m, failed, text);
    plans_member_ended(core, m);
    past_member_ended(m);
}

void member_lose(psd_core *core, member *m, const char *why)
{
    job *j = m->job;
    bool running = j->state == JOB_RUNNING;
    char who[256];
    char text[PSD_MAX_TEXT];
    member_text(m, who, sizeof(who));
    (void)snprintf(text, sizeof(text), "%s was lost: %s", who, why);
    if (m->peer != 0)
        drop_peer(core, m->peer);
    member_end(core, m, MEMBER_LOST);
    j->lost++;
    note_add(core, j, m->rank, PSD_NOTE_WARN, "%s; epoch %llu", text, (unsigned long long)j->epoch);
    if (!running) {
        forget_unranked(core, m);
        return;
    }
    objects_member_ended(core, m, true, text);
}

void members_lost(psd_core *core, const psd_ident *ident)
{
    member *m = members_find(core, ident);
    if (m == NULL || m->incarnation != ident->incarnation || !member_is_live(m))
        return;
    char why[160];
    if (m->seen == INT64_MIN)
        (void)snprintf(why, sizeof(why), "it did not come back within %d ms after psd was restarted",
                       core->config.lease_ms);
    else if (m->peer == 0)
        (void)snprintf(why, sizeof(why), "its connection closed and it did not come back within %d ms",
                       (int)(core->grace_ns / PSD_NS_PER_MS));
    else
        (void)snprintf(why, sizeof(why), "it was silent for its lease of %d ms", core->config.lease_ms);
    mark_journal(core);
    member_lose(core, m, why);
    jobs_member_ended(core, m);
}

void members_bye(psd_core *core, member *m, const psd_msg *msg)
{
    const psd_msg_bye *bye = &msg->u.bye;
    char who[256];
    char text[PSD_MAX_TEXT];
    mark_journal(core);
    psd_msg *ack = send_to_member(core, m, PSD_MSG_BYE_ACK);
    ack->request = msg->request;
    member_text(m, who, sizeof(who));
    bool failed = bye->status < 0;
    bool running = m->job->state == JOB_RUNNING;
    member_end(core, m, MEMBER_LEFT);
    m->job->left++;
    if (failed)
        (void)snprintf(text, sizeof(text), "%s left with an error: %.700s", who, bye->text);
    else
        (void)snprintf(text, sizeof(text), "%s left the job", who);
    note_add(core, m->job, m->rank, failed ? PSD_NOTE_WARN : PSD_NOTE_INFO, "%s; epoch %llu", text,
             (unsigned long long)m->job->epoch);
    if (running) {
        objects_member_ended(core, m, failed, text);
    } else {
        forget_unranked(core, m);
    }
    jobs_member_ended(core, m);
}

/* ---------------------------------------------------------------------------------------------- heartbeat */

void members_heartbeat(psd_core *core, member *m, const psd_msg *msg)
{
    const psd_msg_heartbeat *beat = &msg->u.heartbeat;
    m->epoch = beat->epoch;
    m->ops = beat->ops;
    m->bytes_sent = beat->bytes_sent;
    m->bytes_received = beat->bytes_received;
    m->pool_bytes = beat->pool_bytes;
    m->doing = beat->doing;
    m->doing_ns = beat->doing_ns;
    m->resident_bytes = beat->resident_bytes;
    m->communicator_bytes = beat->communicator_bytes;
    m->communicators = beat->communicators;
    m->communicator_budget = beat->communicator_budget;
    if (beat->current.kind == 0) {
        free(m->current);
        m->current = NULL;
        return;
    }
    if (m->current == NULL)
        m->current = core_calloc(core, 1, sizeof(*m->current));
    if (m->current != NULL)
        *m->current = beat->current;
}

/* -------------------------------------------------------------------------------------- timer and restart */

static void ask_lost(psd_core *core, member *m)
{
    list_take(core, m);
    psd_effect *effect = add_effect(core, PSD_EFFECT_EVENT);
    if (effect == NULL)
        return;
    effect->event = core_calloc(core, 1, sizeof(*effect->event));
    if (effect->event == NULL)
        return;
    effect->event->type = PSD_EVENT_LOST;
    effect->event->now = core->now;
    (void)snprintf(effect->event->ident.job, sizeof(effect->event->ident.job), "%s", m->job->name);
    (void)snprintf(effect->event->ident.name, sizeof(effect->event->ident.name), "%s", m->name);
    effect->event->ident.incarnation = m->incarnation;
}

static void end_overdue(psd_core *core, const time_list *list, psd_time_ns length)
{
    for (int i = 0; i < MAX_LOST_PER_TIMER && list->head != NULL && list->head->since + length <= core->now;
         i++)
        ask_lost(core, list->head);
}

void members_timer(psd_core *core)
{
    end_overdue(core, &core->leases, core->lease_ns + core->slack_ns);
    end_overdue(core, &core->graces, core->grace_ns);
    if (core->now < core->notice_at)
        return;
    core->notice_at = PSD_NEVER;
    for (uint32_t i = 0; i < core->job_count; i++) {
        job *j = core->jobs[i];
        if (!j->notice)
            continue;
        j->notice = false;
        psd_msg *msg = send_to(core, to_job(j), PSD_MSG_WAITING);
        msg->u.waiting.have = (int32_t)j->have;
        msg->u.waiting.want = (int32_t)j->world;
        job_waiting_text(j, false, msg->u.waiting.text, sizeof(msg->u.waiting.text));
    }
}

/* Every connection is gone, and nobody is to blame: leases begin anew, also for those who waited. */
void members_restart(psd_core *core)
{
    psd_map_free(&core->peers);
    core->notice_at = PSD_NEVER;
    for (uint32_t i = 0; i < core->job_count; i++) {
        job *j = core->jobs[i];
        j->notice = false;
        jobs_forget_waiters(j);
        for (uint32_t k = 0; k < j->roster_count; k++) {
            member *m = j->roster[k];
            m->peer = 0;
            m->seen = INT64_MIN;
            if (member_is_live(m))
                list_put(core, m, LIST_LEASE);
        }
    }
    mark_journal(core);
}
