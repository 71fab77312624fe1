/* Rounds: when somebody says that it is stuck, all who have said so are asked what they wait for, until two rounds
 * agree on who is stuck and why, or nobody is. A rank that never said so is running, as far as anybody knows. A round
 * that does not agree with the one before is repeated, with growing pauses; nothing is ever guessed. */
#include <stdlib.h>

#include "server/core/cut.h"

#define ANSWERS_WITHIN (PSD_NS_PER_S)       /* who does not answer counts as running */
#define SHORTEST_PAUSE (20 * PSD_NS_PER_MS) /* between two rounds */
#define LONGEST_PAUSE  (1000 * PSD_NS_PER_MS)

static void set_due(psd_core *core, watch *w, psd_time_ns due)
{
    w->due = due;
    if (due < core->watch_at)
        core->watch_at = due;
}

static void forget_before(watch *w)
{
    cut_free(w->before);
    w->before = NULL;
}

static void forget_decided(watch *w)
{
    for (uint32_t i = 0; i < w->decided_count; i++)
        free(w->decided[i]);
    free(w->decided);
    w->decided = NULL;
    w->decided_count = 0;
}

static void remove_stuck(watch *w, member *m)
{
    if (m->is_stuck) {
        w->stuck[m->stuck_at] = w->stuck[--w->count];
        w->stuck[m->stuck_at]->stuck_at = m->stuck_at;
    }
    m->is_stuck = false;
    m->is_asked = false;
}

static bool add_stuck(psd_core *core, watch *w, member *m)
{
    if (w->count == w->capacity) {
        uint32_t capacity = w->capacity == 0 ? 8 : 2 * w->capacity;
        member **more = realloc(w->stuck, capacity * sizeof(member *));
        if (more == NULL) {
            core->oom = true;
            return false;
        }
        w->stuck = more;
        w->capacity = capacity;
    }
    m->stuck_at = w->count;
    w->stuck[w->count++] = m;
    m->is_stuck = true;
    return true;
}

/* ------------------------------------------------------------------------------------------------ deciding */

static void decide(psd_core *core, job *j, psd_msg *decided)
{
    psd_effect *effect = add_effect(core, PSD_EFFECT_EVENT);
    psd_event *event = core_calloc(core, 1, sizeof *event);
    if (effect == NULL || event == NULL) {
        free(event);
        return;
    }
    event->type = PSD_EVENT_INCIDENT;
    event->now = core->now;
    event->msg = decided;
    memcpy(event->ident.job, j->name, sizeof event->ident.job);
    effect->event = event;
}

/* Every finding that is not an open incident already becomes one. */
static void decide_all(psd_core *core, job *j, const cut *c)
{
    watch *w = &j->watch;
    forget_decided(w);
    w->decided = core_calloc(core, c->result.finding_count, sizeof(psd_msg *));
    for (uint32_t i = 0; i < c->result.finding_count && w->decided != NULL; i++) {
        psd_msg *msg = core_calloc(core, 1, sizeof *msg);
        if (msg == NULL)
            return;
        msg->type = PSD_MSG_INCIDENT;
        memcpy(msg->ident.job, j->name, sizeof msg->ident.job);
        report_write(c, &c->result.findings[i], i == 0, &msg->u.incident);
        w->decided[w->decided_count++] = msg;
        if (!incidents_has(core, j, msg->u.incident.key))
            decide(core, j, msg);
    }
}

/* ------------------------------------------------------------------------------------------------- rounds */

static void begin_round(psd_core *core, job *j)
{
    watch *w = &j->watch;
    w->round++;
    w->is_asking = true;
    w->is_wanted = false;
    w->unanswered = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        member *m = w->stuck[i];
        free(m->snap);
        m->snap = NULL;
        m->is_asked = m->peer != 0;
        if (!m->is_asked)
            continue;
        send_to_member(core, m, PSD_MSG_SNAPSHOT_ASK)->u.snapshot.round = w->round;
        w->unanswered++;
    }
    set_due(core, w, core->now + ANSWERS_WITHIN);
}

/* Who shows no thread that waits is not asked again before it says that it is stuck again. */
static void drop_free(watch *w)
{
    for (uint32_t i = w->count; i-- > 0;) {
        member *m = w->stuck[i];
        bool is_blocked = m->snap == NULL; /* did not answer, or came during the round: perhaps */
        for (uint32_t t = 0; m->snap != NULL && t < m->snap->thread_count; t++)
            is_blocked = is_blocked || m->snap->threads[t].is_blocked;
        if (!is_blocked)
            remove_stuck(w, m);
    }
}

static void end_round(psd_core *core, job *j)
{
    watch *w = &j->watch;
    w->is_asking = false;
    drop_free(w);
    cut *now = cut_take(core, j);
    bool is_stuck = now != NULL && now->result.stuck > 0;
    bool agrees =
        is_stuck && w->before != NULL && waits_confirmed(&w->before->in, &w->before->result, &now->in);
    if (agrees)
        decide_all(core, j, w->before);
    forget_before(w);
    psd_time_ns due = w->is_wanted ? core->now + SHORTEST_PAUSE : PSD_NEVER;
    if (is_stuck && !agrees) {
        w->before = now;
        now = NULL;
        due = core->now + w->pause;
        w->pause = w->pause < LONGEST_PAUSE / 2 ? 2 * w->pause : LONGEST_PAUSE;
    } else {
        w->pause = SHORTEST_PAUSE;
    }
    cut_free(now);
    set_due(core, w, due);
}

static void look_again(psd_core *core, job *j)
{
    watch *w = &j->watch;
    w->is_wanted = true;
    if (w->is_asking || w->count == 0 || j->state != JOB_RUNNING)
        return;
    if (w->pause == 0)
        w->pause = SHORTEST_PAUSE;
    if (w->due == 0 || w->due > core->now + SHORTEST_PAUSE)
        set_due(core, w, w->before == NULL ? core->now : core->now + SHORTEST_PAUSE);
}

void watch_stuck(psd_core *core, member *m, const psd_msg *msg)
{
    (void)msg;
    job *j = m->job;
    if (j->state != JOB_RUNNING || m->rank < 0)
        return;
    /* Also who said so before an incident, and has been freed by it: it may be stuck anew. */
    if (m->is_stuck || add_stuck(core, &j->watch, m))
        look_again(core, j);
}

void watch_snapshot(psd_core *core, member *m, const psd_msg *msg)
{
    watch *w = &m->job->watch;
    if (!w->is_asking || !m->is_asked || msg->u.snapshot.round != w->round)
        return;
    m->is_asked = false;
    m->snap = snap_copy(&msg->u.snapshot);
    if (m->snap == NULL)
        core->oom = true;
    if (--w->unanswered == 0)
        end_round(core, m->job);
}

void watch_member_ended(psd_core *core, member *m)
{
    job *j = m->job;
    watch *w = &j->watch;
    bool was_asked = m->is_asked;
    free(m->snap);
    m->snap = NULL;
    remove_stuck(w, m);
    if (was_asked && --w->unanswered == 0 && w->is_asking)
        set_due(core, w, core->now); /* not in the middle of its end */
    look_again(core, j);
}

void watch_timer(psd_core *core)
{
    if (core->now < core->watch_at)
        return;
    core->watch_at = PSD_NEVER;
    for (uint32_t i = 0; i < core->job_count; i++) {
        job *j = core->jobs[i];
        watch *w = &j->watch;
        if (w->due == 0 || w->due == PSD_NEVER)
            continue;
        if (w->due > core->now) {
            set_due(core, w, w->due);
            continue;
        }
        w->due = PSD_NEVER;
        if (w->is_asking)
            end_round(core, j);
        else if (w->count > 0 && j->state == JOB_RUNNING)
            begin_round(core, j);
    }
}

/* Every connection is new: who is stuck says so again. */
void watch_restart(psd_core *core)
{
    core->watch_at = PSD_NEVER;
    for (uint32_t i = 0; i < core->job_count; i++) {
        watch *w = &core->jobs[i]->watch;
        while (w->count > 0) {
            member *m = w->stuck[w->count - 1];
            free(m->snap);
            m->snap = NULL;
            remove_stuck(w, m);
        }
        forget_before(w);
        w->is_asking = false;
        w->due = PSD_NEVER;
    }
}

void watch_free(job *j)
{
    forget_before(&j->watch);
    forget_decided(&j->watch);
    free(j->watch.stuck);
    j->watch = (watch){0};
}
