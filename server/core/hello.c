/* HELLO: who may come, with which rank, in whose place. */
#include <stdarg.h>
#include <stdlib.h>

#include "server/core/state.h"

/* The worker is told, and so are those who read the log: a world that never gets complete has its reason
 * there. */
static void refuse_hello(psd_core *core, const psd_event *event, psd_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void refuse_hello(psd_core *core, const psd_event *event, psd_status status, const char *format, ...)
{
    char text[PSD_MAX_TEXT];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    refuse_peer(core, event->peer, event->msg, status, "%s", text);
    note_add(core, jobs_find(core, event->msg->ident.job), -1, PSD_NOTE_WARN, "a worker was refused: %.900s",
             text);
}

/* -------------------------------------------------------------------------------------------- the message */

static bool hello_valid(psd_core *core, const psd_event *event)
{
    const psd_msg *msg = event->msg;
    const psd_msg_hello *h = &msg->u.hello;
    if (!psd_name_valid(msg->ident.job) || !psd_name_valid(msg->ident.name) || !psd_name_valid(h->role))
        refuse_hello(core, event, PSD_ERR_INVAL,
                     "job, worker and role names are 1 to %d bytes of letters, digits, '.', '_' and '-'",
                     PSD_MAX_NAME - 1);
    else if (msg->ident.incarnation == 0)
        refuse_hello(core, event, PSD_ERR_INVAL, "an incarnation must not be 0");
    else if (h->world_min <= 0 || h->world_max < h->world_min)
        refuse_hello(
            core, event, PSD_ERR_INVAL,
            "a world of %d to %d ranks is not possible: the size is at least 1 and min is not above max",
            h->world_min, h->world_max);
    else if (h->world_max > PSD_MAX_WORLD || (uint32_t)h->world_min > core->config.max_ranks)
        refuse_hello(core, event, PSD_ERR_LIMIT, "a world of %d ranks is over the limit of %u",
                     h->world_max > PSD_MAX_WORLD ? h->world_max : h->world_min, core->config.max_ranks);
    else if (h->rank < -1)
        refuse_hello(core, event, PSD_ERR_INVAL,
                     "rank %d is not possible: 0 or above, or -1 to let psd choose", h->rank);
    else if (h->rank >= h->world_min && h->rank < h->world_max)
        refuse_hello(core, event, PSD_ERR_UNSUPPORTED,
                     "rank %d is beyond the %d ranks with which job %s starts; growing a running world is "
                     "not built yet",
                     h->rank, h->world_min, msg->ident.job);
    else if (h->rank >= h->world_max)
        refuse_hello(core, event, PSD_ERR_INVAL, "rank %d is outside a world of %d ranks, which has 0 to %d",
                     h->rank, h->world_max, h->world_max - 1);
    else
        return true;
    return false;
}

/* ---------------------------------------------------------------------------------------------- answering */

void members_fill_welcome(const psd_core *core, const job *j, psd_msg_welcome *out)
{
    out->world = (int32_t)j->world;
    out->epoch = j->epoch;
    out->world_group = j->world_group;
    out->lease_ms = core->config.lease_ms;
    out->heartbeat_ms = core->config.heartbeat_ms;
}

static void send_welcome(psd_core *core, const member *m, uint32_t world_group)
{
    psd_msg *msg = send_to_member(core, m, PSD_MSG_WELCOME);
    members_fill_welcome(core, m->job, &msg->u.welcome);
    msg->u.welcome.world_group = world_group;
    msg->u.welcome.rank = m->rank;
    msg->u.welcome.resume_token = m->token;
}

static void send_waiting(psd_core *core, const member *m)
{
    psd_msg *msg = send_to_member(core, m, PSD_MSG_WAITING);
    msg->u.waiting.have = (int32_t)m->job->have;
    msg->u.waiting.want = (int32_t)m->job->world;
    job_waiting_text(m->job, true, msg->u.waiting.text, sizeof(msg->u.waiting.text));
}

static void send_stop(psd_core *core, const member *m)
{
    psd_msg *stop = send_to_member(core, m, PSD_MSG_STOP);
    (void)snprintf(stop->u.stop.text, sizeof(stop->u.stop.text), "%s", m->job->stop_text);
}

/* The world of this name is over, but not all of its ranks have left: the next one waits for that. Nobody's
 * member yet, and nothing to journal. */
static void send_leaving(psd_core *core, const psd_event *event, job *j)
{
    psd_msg *msg = send_to_peer(core, event->peer, PSD_MSG_WAITING);
    msg->ident = event->msg->ident;
    msg->u.waiting.have = (int32_t)j->have;
    msg->u.waiting.want = (int32_t)j->world;
    (void)snprintf(msg->u.waiting.text, sizeof(msg->u.waiting.text),
                   "the last world of job %s is still leaving: %u of %u ranks left", j->name,
                   j->world - j->have, j->world);
    jobs_wait_for_end(core, j, event->peer);
}

/* A worker that psd knows, on a new connection or asking once more. Nothing changes but its connection; what
 * it may have missed is sent again. */
static void hello_again(psd_core *core, member *m, const psd_event *event)
{
    const psd_msg *msg = event->msg;
    const psd_msg_hello *hello = &msg->u.hello;
    if (hello->resume_token != 0 && hello->resume_token != m->token) {
        refuse_hello(core, event, PSD_ERR_REFUSED,
                     "the resume token is not that of worker %s of job %s: only the same process can resume",
                     m->name, m->job->name);
        return;
    }
    bool fresh = m->peer != event->peer;
    member_attach(core, m, event->peer);
    if (fresh)
        mark_journal(core);
    if (m->state == MEMBER_WAITING) {
        send_waiting(core, m);
    } else {
        send_welcome(core, m, m->in_world_group ? m->job->world_group : 0);
        groups_resume(core, m);
        plans_resume(core, m);
        tables_resume(core, m);
    }
    if (m->job->stopping)
        send_stop(core, m);
    m->seen = core->now;
}

/* ---------------------------------------------------------------------------------------------- admitting */

static const char *keep(char **at, const char *text)
{
    char *start = *at;
    size_t bytes = strlen(text) + 1;
    memcpy(start, text, bytes);
    *at = start + bytes;
    return start;
}

/* One allocation holds the member and its texts. */
static member *member_make(psd_core *core, job *j, const psd_msg *msg)
{
    const psd_msg_hello *h = &msg->u.hello;
    size_t bytes = strlen(msg->ident.name) + strlen(h->role) + strlen(h->host) + strlen(h->address) +
                   strlen(h->backend) + 5;
    member *m = core_calloc(core, 1, sizeof(*m) + bytes);
    if (m == NULL)
        return NULL;
    char *at = m->text;
    m->name = keep(&at, msg->ident.name);
    m->role = keep(&at, h->role);
    m->host = keep(&at, h->host);
    m->address = keep(&at, h->address);
    m->backend = keep(&at, h->backend);
    m->job = j;
    m->incarnation = msg->ident.incarnation;
    m->token = psd_hash_u64(core->entropy + j->arrivals) | 1;
    m->pid = h->pid;
    m->asked = h->rank;
    m->rank = -1;
    m->seen = core->now;
    m->arrival = j->arrivals++;
    m->state = MEMBER_WAITING;
    return m;
}

static bool member_enter(psd_core *core, member *m, psd_peer peer)
{
    job *j = m->job;
    uint64_t key = name_key(j, m->name);
    if (!roster_add(core, j, m)) {
        free(m);
        return false;
    }
    m->same_hash = psd_map_get(&core->names, key);
    if (!psd_map_put(&core->names, key, m)) {
        core->oom = true;
        return false;
    }
    member_attach(core, m, peer);
    j->have++;
    j->helpers += member_is_server(m);
    return !core->oom;
}

static bool has_left(const job *j, uint32_t rank)
{
    const member *holder = rank < j->world ? j->ranks[rank] : NULL;
    return holder != NULL && holder->state == MEMBER_LEFT;
}

/* The rank for a newcomer to a running job whose name is new: a place that was lost, not one that was left.
 */
static int32_t vacant_rank(const job *j)
{
    for (uint32_t rank = 0; rank < j->world && j->have < j->world; rank++)
        if (members_at(j, rank) == NULL && !has_left(j, rank))
            return (int32_t)rank;
    return -1;
}

/* Does this worker belong to the job's next world? A rank that left cleanly has ended its world: who comes
 * for its place is not a part of that one. Only a lost rank is replaced in a running job. */
static bool is_for_the_next(const job *j, const member *former, int32_t asked)
{
    if (j == NULL || j->state != JOB_RUNNING || (j->stopping && !j->drained) || j->have == j->world)
        return false;
    if (asked < 0 && former != NULL)
        asked = former->rank;
    return asked >= 0 ? has_left(j, (uint32_t)asked) : vacant_rank(j) < 0;
}

/* Chooses the rank; -1 while forming: at the end. False: refused. `former` is the earlier holder of the name.
 */
static bool choose_rank(psd_core *core, const psd_event *event, const job *j, const member *former,
                        int32_t *out)
{
    const psd_msg *msg = event->msg;
    int32_t rank = msg->u.hello.rank;
    if (rank < 0 && former != NULL && former->rank >= 0) {
        const member *holder = members_at(j, (uint32_t)former->rank);
        if (holder == NULL || holder == former)
            rank = former->rank;
    }
    const member *holder = rank >= 0 ? members_at(j, (uint32_t)rank) : NULL;
    if (holder != NULL && holder != former) {
        char who[256];
        member_text(holder, who, sizeof(who));
        refuse_hello(core, event, PSD_ERR_EXISTS,
                     "worker %s on host %s, pid %u, asks for rank %d, which %s has in job %s: give each "
                     "worker its own rank",
                     msg->ident.name, msg->u.hello.host, msg->u.hello.pid, rank, who, j->name);
        return false;
    }
    if (rank < 0 && j->state == JOB_RUNNING) {
        rank = vacant_rank(j);
        if (rank < 0) {
            refuse_hello(core, event, PSD_ERR_LIMIT,
                         "job %s already has its %u ranks, all alive%s: start the worker in another job",
                         j->name, j->world,
                         j->world_max > j->world_min ? "; growing a running world is not built yet" : "");
            return false;
        }
    }
    *out = rank;
    return true;
}

/* Ranks exchange data only over one and the same backend, and each chooses its own. */
static bool backend_agrees(psd_core *core, const psd_event *event, const job *j, const member *former)
{
    const psd_msg *msg = event->msg;
    const member *other = NULL;
    for (uint32_t i = 0; i < j->roster_count && other == NULL; i++)
        if (j->roster[i] != former && member_is_live(j->roster[i]))
            other = j->roster[i];
    if (other == NULL || strcmp(other->backend, msg->u.hello.backend) == 0)
        return true;
    char who[256];
    member_text(other, who, sizeof(who));
    refuse_hello(core, event, PSD_ERR_MISMATCH,
                 "worker %s on host %s, pid %u, has backend %s, but %s of job %s has %s: set PSD_BACKEND to "
                 "the same for all ranks",
                 msg->ident.name, msg->u.hello.host, msg->u.hello.pid, msg->u.hello.backend, who, j->name,
                 other->backend);
    return false;
}

/* The newcomer waits, or completes the world. */
static void join_forming(psd_core *core, member *m)
{
    job *j = m->job;
    j->claimed += m->asked >= 0;
    if (j->have == j->world) {
        jobs_form(core, j);
        return;
    }
    send_waiting(core, m);
    j->notice = true;
    if (core->notice_at == PSD_NEVER)
        core->notice_at = core->now + NOTICE_INTERVAL_NS;
}

/* Takes the place of one who left or was lost. The world's group is not for it: that was opened with its
 * predecessor. */
static void join_running(psd_core *core, member *m)
{
    job *j = m->job;
    char who[256];
    j->epoch++;
    member_activate(core, m);
    member_text(m, who, sizeof(who));
    note_add(core, j, m->rank, PSD_NOTE_INFO, "%s joined the running job; epoch %llu", who,
             (unsigned long long)j->epoch);
    send_welcome(core, m, 0);
}

static void hello_admit(psd_core *core, const psd_event *event, member *former)
{
    const psd_msg *msg = event->msg;
    char why[PSD_MAX_TEXT] = "";
    psd_status status = PSD_OK;
    int32_t rank = -1;
    job *j = jobs_find(core, msg->ident.job);
    if (is_for_the_next(j, former, msg->u.hello.rank)) {
        send_leaving(core, event, j);
        return;
    }
    j = jobs_take(core, msg, &status, why, sizeof(why));
    if (j == NULL) {
        refuse_hello(core, event, status, "%s", why);
        return;
    }
    /* An ended job was started anew, and forgot its members. */
    former = former == NULL ? NULL : members_find(core, &msg->ident);
    if (!backend_agrees(core, event, j, former) || !choose_rank(core, event, j, former, &rank))
        return;
    mark_journal(core);
    if (former != NULL && member_is_live(former)) {
        member_lose(core, former, "a new life of the same worker took its place");
        former = members_find(core, &msg->ident);
    }
    if (former != NULL)
        member_forget(core, former);
    if (rank >= 0 && j->ranks[rank] != NULL)
        member_forget(core, j->ranks[rank]);
    member *m = member_make(core, j, msg);
    if (m == NULL || !member_enter(core, m, event->peer))
        return;
    m->rank = rank;
    if (j->state == JOB_FORMING && m->asked < 0)
        m->rank = -1;
    if (m->rank >= 0)
        j->ranks[m->rank] = m;
    if (j->state == JOB_FORMING)
        join_forming(core, m);
    else
        join_running(core, m);
}

/* May a new life take the place of a live one? */
static bool may_replace(const psd_core *core, const member *m, const psd_msg_hello *hello)
{
    bool lease_over = m->list == LIST_LEASE && m->since + core->lease_ns <= core->now;
    return m->peer == 0 || lease_over || (hello->resume_token != 0 && hello->resume_token == m->token);
}

/* Of a life that was welcome before, as no psd that this one knows of has welcomed it. Taking it for new
 * would let it go on with groups, plans and tables that only it knows. */
static void refuse_unknown(psd_core *core, const psd_event *event)
{
    const psd_ident *ident = &event->msg->ident;
    const psd_msg_hello *hello = &event->msg->u.hello;
    const job *j = jobs_find(core, ident->job);
    if (j != NULL && j->state == JOB_ENDED)
        refuse_hello(core, event, PSD_ERR_REFUSED, "job %s ended: start the worker again", j->name);
    else
        refuse_hello(
            core, event, PSD_ERR_REFUSED,
            "psd was restarted and does not know this job (rank %d of job %s, epoch %llu): start psd "
            "with --state to let jobs survive a restart",
            hello->rank, ident->job, (unsigned long long)hello->epoch);
}

static bool resumes_unknown(const member *m, bool same_life, const psd_msg_hello *hello)
{
    bool resumes = hello->epoch > 0 && hello->resume_token != 0 && !same_life;
    return resumes && (m == NULL || m->token != hello->resume_token);
}

void members_hello(psd_core *core, const psd_event *event)
{
    const psd_msg *msg = event->msg;
    if (!hello_valid(core, event))
        return;
    member *m = members_find(core, &msg->ident);
    member *speaker = psd_map_get(&core->peers, event->peer);
    bool same_life = m != NULL && m->incarnation == msg->ident.incarnation;
    if (speaker != NULL && (speaker != m || !same_life)) {
        refuse_hello(core, event, PSD_ERR_INVAL,
                     "this connection speaks for worker %s already: use one connection for each context",
                     speaker->name);
    } else if (resumes_unknown(m, same_life, &msg->u.hello)) {
        refuse_unknown(core, event);
    } else if (same_life && m->job->state == JOB_ENDED) {
        refuse_hello(core, event, PSD_ERR_REFUSED, "job %s ended: start the worker again", m->job->name);
    } else if (same_life && member_is_live(m)) {
        hello_again(core, m, event);
    } else if (same_life) {
        refuse_hello(core, event, PSD_ERR_REFUSED,
                     "worker %s of job %s %s; a process cannot come back after that: start it again", m->name,
                     m->job->name, m->state == MEMBER_LOST ? "was taken for lost" : "has left");
    } else if (m != NULL && member_is_live(m) && !may_replace(core, m, &msg->u.hello)) {
        refuse_hello(core, event, PSD_ERR_EXISTS,
                     "the name %s is taken in job %s by a live worker on host %s, pid %u: choose another "
                     "PSD_NAME, or end that one first",
                     m->name, m->job->name, m->host, m->pid);
    } else {
        hello_admit(core, event, m);
    }
}
