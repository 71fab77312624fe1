/* Answers to psctl: each view is a list of columns and a function that visits its rows. Rows are counted from
 * 0, and a page begins after the rows already given; a row that is not on the page costs no more than being
 * counted. */
#include <stdlib.h>

#include "common/tensor.h"
#include "server/core/views.h"

#define DEFAULT_ROWS 256
#define NAMED_JOBS   8
#define MOST_ROWS    512 /* of at most 2 KiB each: a page stays under PSD_MAX_FRAME */

/* -------------------------------------------------------------------------------------------------- pages */

psd_cell *page_row(page *p)
{
    uint64_t row = p->row++;
    if (row < p->after || p->full)
        return NULL;
    if (p->count == p->limit) {
        p->full = true;
        return NULL;
    }
    return &p->cells[(size_t)p->count++ * p->columns];
}

psd_cell cell_text(const char *text)
{
    return (psd_cell){.text = text == NULL ? "" : text};
}

psd_cell cell_int(int64_t value)
{
    return (psd_cell){.integer = value};
}

psd_cell cell_none(void)
{
    return (psd_cell){.integer = -1};
}

psd_cell cell_bytes(uint64_t value)
{
    return (psd_cell){.integer = value > INT64_MAX ? INT64_MAX : (int64_t)value};
}

psd_cell cell_ranks(psd_core *core, const uint32_t *members, uint32_t count)
{
    char text[160];
    ranks_text(members, count, text, sizeof(text));
    return cell_text(arena_text(core, "%s", text));
}

/* ------------------------------------------------------------------------------------------------- status */

static const psd_column status_columns[] = {
    {"job", PSD_CELL_TEXT},       {"state", PSD_CELL_TEXT}, {"have", PSD_CELL_INT},  {"want", PSD_CELL_INT},
    {"epoch", PSD_CELL_INT},      {"groups", PSD_CELL_INT}, {"plans", PSD_CELL_INT}, {"tables", PSD_CELL_INT},
    {"oldest_beat", PSD_CELL_NS}, {"left", PSD_CELL_INT},   {"lost", PSD_CELL_INT},  {"text", PSD_CELL_TEXT},
};

static const char *job_state_name(const job *j)
{
    if (j->state == JOB_ENDED)
        return "ended";
    if (j->stopping)
        return "stopping";
    return j->state == JOB_FORMING ? "forming" : "running";
}

/* Of the active members; negative if there are none. */
static psd_time_ns oldest_beat(const psd_core *core, const job *j)
{
    psd_time_ns oldest = -1;
    for (uint32_t i = 0; i < j->roster_count; i++) {
        const member *m = j->roster[i];
        psd_time_ns age = m->list == LIST_NONE ? 0 : core->now - m->since;
        if (m->state == MEMBER_ACTIVE && age > oldest)
            oldest = age;
    }
    return oldest;
}

static const char *job_text(psd_core *core, job *j)
{
    char text[PSD_MAX_TEXT];
    if (j->state == JOB_ENDED)
        return "";
    if (j->stopping)
        return j->stop_text;
    if (j->have == j->world)
        return "";
    job_waiting_text(j, false, text, sizeof(text));
    return arena_text(core, "%s", text);
}

static void visit_status(psd_core *core, job *j, page *p)
{
    psd_cell *row = page_row(p);
    if (row == NULL)
        return;
    *row++ = cell_text(j->name);
    *row++ = cell_text(job_state_name(j));
    *row++ = cell_int(j->have);
    *row++ = cell_int(j->world);
    *row++ = cell_int((int64_t)j->epoch);
    *row++ = cell_int((int64_t)j->groups.count);
    *row++ = cell_int((int64_t)j->plans.count);
    *row++ = cell_int((int64_t)j->tables.count);
    *row++ = cell_int(oldest_beat(core, j));
    *row++ = cell_int(j->left);
    *row++ = cell_int(j->lost);
    *row = cell_text(job_text(core, j));
}

/* -------------------------------------------------------------------------------------------------- ranks */

static const psd_column ranks_columns[] = {
    {"job", PSD_CELL_TEXT},        {"rank", PSD_CELL_INT},         {"name", PSD_CELL_TEXT},
    {"role", PSD_CELL_TEXT},       {"host", PSD_CELL_TEXT},        {"pid", PSD_CELL_INT},
    {"state", PSD_CELL_TEXT},      {"epoch", PSD_CELL_INT},        {"backend", PSD_CELL_TEXT},
    {"beat_age", PSD_CELL_NS},     {"resident", PSD_CELL_BYTES},   {"pool", PSD_CELL_BYTES},
    {"sent", PSD_CELL_BYTES},      {"received", PSD_CELL_BYTES},   {"comms", PSD_CELL_INT},
    {"comm_budget", PSD_CELL_INT}, {"comm_bytes", PSD_CELL_BYTES},
};

static const char *member_state_name(const member *m)
{
    if (member_is_live(m) && m->peer == 0)
        return "disconnected";
    switch (m->state) {
    case MEMBER_WAITING:
        return "waiting";
    case MEMBER_ACTIVE:
        return "active";
    case MEMBER_LEFT:
        return "left";
    default:
        return "lost";
    }
}

static void visit_member(psd_core *core, const job *j, const member *m, page *p)
{
    psd_cell *row = page_row(p);
    if (row == NULL)
        return;
    *row++ = cell_text(j->name);
    *row++ = cell_int(m->rank);
    *row++ = cell_text(m->name);
    *row++ = cell_text(m->role);
    *row++ = cell_text(m->host);
    *row++ = cell_int(m->pid);
    *row++ = cell_text(member_state_name(m));
    *row++ = cell_int((int64_t)m->epoch);
    *row++ = cell_text(m->backend);
    *row++ = m->seen == INT64_MIN ? cell_none() : cell_int(core->now - m->seen);
    *row++ = cell_bytes(m->resident_bytes);
    *row++ = cell_bytes(m->pool_bytes);
    *row++ = cell_bytes(m->bytes_sent);
    *row++ = cell_bytes(m->bytes_received);
    bool has_comms = m->communicator_budget > 0;
    *row++ = has_comms ? cell_int(m->communicators) : cell_none();
    *row++ = has_comms ? cell_int(m->communicator_budget) : cell_none();
    *row = has_comms ? cell_bytes(m->communicator_bytes) : cell_none();
}

/* By rank, then those that have none yet, in the order of the roster. */
static void visit_ranks(psd_core *core, job *j, page *p)
{
    for (uint32_t rank = 0; j->ranks != NULL && rank < j->world; rank++)
        if (j->ranks[rank] != NULL)
            visit_member(core, j, j->ranks[rank], p);
    for (uint32_t i = 0; i < j->roster_count; i++)
        if (j->roster[i]->rank < 0)
            visit_member(core, j, j->roster[i], p);
}

/* ---------------------------------------------------------------------------------------------------- ops */

static const psd_column ops_columns[] = {
    {"job", PSD_CELL_TEXT},   {"rank", PSD_CELL_INT},       {"ops", PSD_CELL_INT},
    {"sent", PSD_CELL_BYTES}, {"received", PSD_CELL_BYTES}, {"current", PSD_CELL_TEXT},
    {"peer", PSD_CELL_INT},   {"count", PSD_CELL_INT},      {"dtype", PSD_CELL_TEXT},
    {"age", PSD_CELL_NS},     {"tensor", PSD_CELL_TEXT},    {"site", PSD_CELL_TEXT},
};

static void visit_op(psd_core *core, const job *j, const member *m, page *p)
{
    const psd_current_op *op = m->current;
    psd_cell *row = page_row(p);
    if (row == NULL)
        return;
    *row++ = cell_text(j->name);
    *row++ = cell_int(m->rank);
    *row++ = cell_int((int64_t)m->ops);
    *row++ = cell_bytes(m->bytes_sent);
    *row++ = cell_bytes(m->bytes_received);
    *row++ = cell_text(op == NULL ? "-" : psd_op_name((psd_op_kind)op->kind));
    *row++ = op == NULL || op->peer < 0 ? cell_none() : cell_int(op->peer);
    *row++ = op == NULL ? cell_none() : cell_int(op->count);
    *row++ = cell_text(op == NULL || op->dtype == 0 ? "-" : psd_dtype_name((psd_dtype)op->dtype));
    *row++ =
        op == NULL ? cell_none() : cell_int(op->age_ns + (m->seen == INT64_MIN ? 0 : core->now - m->seen));
    *row++ = cell_text(op == NULL ? "" : op->name);
    *row = cell_text(op == NULL ? "" : op->site);
}

static void visit_ops(psd_core *core, job *j, page *p)
{
    for (uint32_t rank = 0; j->ranks != NULL && rank < j->world; rank++)
        if (j->ranks[rank] != NULL && j->state != JOB_FORMING)
            visit_op(core, j, j->ranks[rank], p);
}

/* ------------------------------------------------------------------------------------------------- events */

static const psd_column events_columns[] = {
    {"age", PSD_CELL_NS},   {"level", PSD_CELL_TEXT}, {"job", PSD_CELL_TEXT},
    {"rank", PSD_CELL_INT}, {"text", PSD_CELL_TEXT},
};

/* The last notes, oldest first. */
static void visit_events(psd_core *core, const char *job_name, page *p)
{
    uint64_t first = core->note_count > MAX_NOTES ? core->note_count - MAX_NOTES : 0;
    for (uint64_t i = first; i < core->note_count; i++) {
        const note *n = &core->notes[i % MAX_NOTES];
        if (job_name[0] != 0 && strcmp(n->job, job_name) != 0)
            continue;
        psd_cell *row = page_row(p);
        if (row == NULL)
            continue;
        *row++ = cell_int(core->now - n->at);
        *row++ = cell_text(n->level == PSD_NOTE_WARN ? "warn" : "info");
        *row++ = cell_text(n->job);
        *row++ = cell_int(n->rank);
        *row = cell_text(n->text);
    }
}

/* ------------------------------------------------------------------------------------------------ version */

static const psd_column version_columns[] = {
    {"version", PSD_CELL_TEXT}, {"protocol", PSD_CELL_INT}, {"lease", PSD_CELL_NS},
    {"heartbeat", PSD_CELL_NS}, {"jobs", PSD_CELL_INT},     {"max_ranks", PSD_CELL_INT},
    {"messages", PSD_CELL_INT}, {"dropped", PSD_CELL_INT},
};

static void visit_version(psd_core *core, const char *job_name, page *p)
{
    (void)job_name;
    psd_cell *row = page_row(p);
    if (row == NULL)
        return;
    *row++ = cell_text(PSD_VERSION);
    *row++ = cell_int(PSD_PROTOCOL_VERSION);
    *row++ = cell_int(core->lease_ns);
    *row++ = cell_int(core->config.heartbeat_ms * PSD_NS_PER_MS);
    *row++ = cell_int(core->job_count);
    *row++ = cell_int(core->config.max_ranks);
    *row++ = cell_int((int64_t)core->messages);
    *row = cell_int((int64_t)core->dropped);
}

/* ------------------------------------------------------------------------------------------- the question */

#define COLUMNS(list) list, sizeof(list) / sizeof((list)[0])

static const view views[] = {
    {"status", COLUMNS(status_columns), visit_status, NULL},
    {"ranks", COLUMNS(ranks_columns), visit_ranks, NULL},
    {"ops", COLUMNS(ops_columns), visit_ops, NULL},
    {"events", COLUMNS(events_columns), NULL, visit_events},
    {"version", COLUMNS(version_columns), NULL, visit_version},
};

static const view *view_find(const char *name)
{
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++)
        if (strcmp(views[i].name, name) == 0)
            return &views[i];
    const view *hang = hang_view_find(name);
    return hang != NULL ? hang : work_view_find(name);
}

/* Of the jobs that have ended, or of those that have not. */
static void visit_jobs(psd_core *core, const view *v, const char *name, bool ended, page *p)
{
    for (uint32_t i = 0; i < core->job_count && !p->full; i++) {
        job *j = core->jobs[i];
        if ((j->state == JOB_ENDED) == ended && (name[0] == 0 || strcmp(j->name, name) == 0))
            v->visit_job(core, j, p);
    }
}

/* What people work with comes first: the rows of jobs that have ended follow those of all others. */
static void answer_rows(psd_core *core, const view *v, const psd_msg_query *query, psd_msg_reply *reply)
{
    uint32_t limit = query->limit == 0 ? DEFAULT_ROWS : query->limit > MOST_ROWS ? MOST_ROWS : query->limit;
    page p = {.after = query->after, .limit = limit, .columns = (uint32_t)v->column_count};
    p.cells = arena_take(core, (size_t)limit * v->column_count * sizeof(psd_cell));
    if (p.cells == NULL)
        return;
    if (v->visit_core != NULL)
        v->visit_core(core, query->job, &p);
    if (v->visit_job != NULL) {
        visit_jobs(core, v, query->job, false, &p);
        visit_jobs(core, v, query->job, true, &p);
    }
    reply->next = p.full ? query->after + p.count : 0;
    reply->column_count = (uint32_t)v->column_count;
    reply->columns = v->columns;
    reply->row_count = p.count;
    reply->cells = p.cells;
}

/* ------------------------------------------------------------------------------------------------- stopping */

static const psd_column stop_columns[] = {{"job", PSD_CELL_TEXT}, {"ranks", PSD_CELL_INT}};

static bool job_may_stop(const job *j, const char *name)
{
    return j->state != JOB_ENDED && (name[0] == 0 || strcmp(j->name, name) == 0);
}

/* "; jobs that run: a, b and 3 more" */
static void append_running(const psd_core *core, char *out, size_t out_bytes)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->job_count; i++) {
        const job *j = core->jobs[i];
        if (j->state == JOB_ENDED)
            continue;
        if (count++ < NAMED_JOBS)
            psd_append(out, out_bytes, "%s%s", count == 1 ? "; jobs that run: " : ", ", j->name);
    }
    if (count > NAMED_JOBS)
        psd_append(out, out_bytes, " and %u more", count - NAMED_JOBS);
    if (count == 0)
        psd_append(out, out_bytes, "; no job runs");
}

static void refuse_stop(const psd_core *core, const char *name, psd_msg_reply *reply)
{
    const job *j = jobs_find(core, name);
    reply->status = j == NULL ? PSD_ERR_NOT_FOUND : PSD_ERR_STOPPED;
    if (name[0] == 0)
        (void)snprintf(reply->text, sizeof(reply->text), "there is nothing to stop");
    else
        (void)snprintf(reply->text, sizeof(reply->text), "%s %.63s%s", j == NULL ? "there is no job" : "job",
                       name, j == NULL ? "" : " has ended already");
    append_running(core, reply->text, sizeof(reply->text));
}

/* A row for each job, with the ranks that were told. */
static void answer_stop(psd_core *core, const psd_msg_query *query, psd_msg_reply *reply)
{
    uint32_t ranks = 0;
    uint32_t jobs = 0;
    page p = {.limit = core->job_count, .columns = 2};
    p.cells = arena_take(core, (size_t)(core->job_count + 1) * 2 * sizeof(psd_cell));
    for (uint32_t i = 0; i < core->job_count && p.cells != NULL; i++) {
        job *j = core->jobs[i];
        if (!job_may_stop(j, query->job))
            continue;
        psd_cell *row = page_row(&p);
        row[0] = cell_text(j->name);
        row[1] = cell_int(j->have);
        ranks += j->have;
        jobs++;
        jobs_stop(core, j, "stopped by psctl stop");
    }
    if (jobs == 0) {
        refuse_stop(core, query->job, reply);
        return;
    }
    mark_journal(core);
    reply->column_count = 2;
    reply->columns = stop_columns;
    reply->row_count = p.count;
    reply->cells = p.cells;
    (void)snprintf(reply->text, sizeof(reply->text), "told %u rank%s of %u job%s to stop", ranks,
                   ranks == 1 ? "" : "s", jobs, jobs == 1 ? "" : "s");
}

/* --------------------------------------------------------------------------------------------------- answer */

void views_answer(psd_core *core, const psd_event *event)
{
    const psd_msg_query *query = &event->msg->u.query;
    const view *v = view_find(query->view);
    if (asks_is_question(query)) {
        asks_put(core, event);
        return;
    }
    psd_msg *msg = send_to_peer(core, event->peer, PSD_MSG_REPLY);
    psd_msg_reply *reply = &msg->u.reply;
    msg->request = event->msg->request;
    bool is_stop = strcmp(query->view, "stop") == 0;
    if (!is_stop && query->job[0] != 0 && jobs_find(core, query->job) == NULL) {
        reply->status = PSD_ERR_NOT_FOUND;
        (void)snprintf(reply->text, sizeof(reply->text), "there is no job %.63s at this coordinator",
                       query->job);
    } else if (is_stop) {
        answer_stop(core, query, reply);
    } else if (hang_acknowledge(core, query, reply)) {
        reply->next = 0;
    } else if (v != NULL) {
        answer_rows(core, v, query, reply);
    } else {
        reply->status = PSD_ERR_INVAL;
        (void)snprintf(
            reply->text, sizeof(reply->text),
            "there is no view %.23s: status, ranks, groups, plans, ops, tables, events, why, incidents, "
            "incident, version, log/RANK, or the commands stop and ack/ID",
            query->view);
    }
}
