/* The views of hangs: why (the rows of the open incidents, or else of the last one), incidents (a row each), incident
 * (the rows of all). */
#include <stdlib.h>

#include "common/conf.h"
#include "common/tensor.h"
#include "server/core/cut.h"
#include "server/core/views.h"

#define COLUMNS(list) list, sizeof(list) / sizeof((list)[0])
#define FIELDS        14

static const char *const kinds[] = {"", "deadlock", "orphan", "peer-failed", "mismatch", "lost-work"};

static const char *kind_name(const incident *i)
{
    return i->body.kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[i->body.kind] : "?";
}

/* "mismatch.count" */
static psd_cell class_cell(psd_core *core, const incident *i)
{
    if (i->body.detail[0] == 0)
        return cell_text(kind_name(i));
    return cell_text(arena_text(core, "%s.%s", kind_name(i), i->body.detail));
}

static const char *state_name(const job *j, const incident *i)
{
    if (i->is_acknowledged)
        return "acknowledged";
    if (i->body.kind == INCIDENT_LOST_WORK)
        return "information";
    return incident_is_open(j, i) ? "open" : "closed";
}

/* In the order of their ids, oldest first; NULL at the end. */
static incident *incident_at(const job *j, uint32_t at)
{
    uint32_t kept = j->incident_count < MAX_INCIDENTS ? j->incident_count : MAX_INCIDENTS;
    return at < kept ? j->incidents[(j->incident_count - kept + at) % MAX_INCIDENTS] : NULL;
}

static incident *incident_find(const job *j, uint32_t id)
{
    incident *i = id > 0 ? j->incidents[(id - 1) % MAX_INCIDENTS] : NULL;
    return i != NULL && i->id == id ? i : NULL;
}

/* -------------------------------------------------------------------------------------------------- rows */

static const psd_column why_columns[] = {
    {"job", PSD_CELL_TEXT},    {"incident", PSD_CELL_INT},  {"class", PSD_CELL_TEXT},
    {"state", PSD_CELL_TEXT},  {"rank", PSD_CELL_INT},      {"role", PSD_CELL_TEXT},
    {"op", PSD_CELL_TEXT},     {"group", PSD_CELL_INT},     {"ordinal", PSD_CELL_INT},
    {"tensor", PSD_CELL_TEXT}, {"peer", PSD_CELL_INT},      {"site", PSD_CELL_TEXT},
    {"waiting", PSD_CELL_NS},  {"waits_for", PSD_CELL_INT}, {"dtype", PSD_CELL_TEXT},
    {"count", PSD_CELL_INT},   {"root", PSD_CELL_INT},      {"redop", PSD_CELL_TEXT},
    {"more", PSD_CELL_INT},    {"text", PSD_CELL_TEXT},
};

/* Cuts a row of `text` at its tabs; the rest of the text, or NULL. */
static char *next_row(char *text, const char *fields[FIELDS])
{
    for (int i = 0; i < FIELDS; i++)
        fields[i] = "";
    char *end = strchr(text, '\n');
    if (end == NULL)
        return NULL;
    *end = 0;
    for (int i = 0; i < FIELDS; i++) {
        char *tab = strchr(text, '\t');
        fields[i] = text;
        if (tab == NULL)
            break;
        *tab = 0;
        text = tab + 1;
    }
    return end + 1;
}

static int64_t number_of(const char *text)
{
    bool is_negative = *text == '-';
    int64_t value = 0;
    for (text += is_negative; *text >= '0' && *text <= '9' && value < INT64_MAX / 10 - 1; text++)
        value = value * 10 + (*text - '0');
    return is_negative ? -value : value;
}

static void fill_row(psd_core *core, psd_cell *row, const job *j, const incident *i,
                     const char *const fields[FIELDS])
{
    *row++ = cell_text(j->name);
    *row++ = cell_int(i->id);
    *row++ = class_cell(core, i);
    *row++ = cell_text(state_name(j, i));
    *row++ = cell_int(number_of(fields[0]));
    *row++ = cell_text(fields[1]);
    *row++ = cell_text(fields[2]);
    *row++ = cell_int(number_of(fields[3]));
    *row++ = cell_int(number_of(fields[4]));
    *row++ = cell_text(fields[5]);
    *row++ = cell_int(number_of(fields[6]));
    *row++ = cell_text(fields[7]);
    *row++ = cell_int(number_of(fields[8]));
    *row++ = cell_int(number_of(fields[9]));
    *row++ = cell_text(fields[10]);
    *row++ = cell_int(fields[11][0] == 0 ? -1 : number_of(fields[11]));
    *row++ = cell_int(fields[12][0] == 0 ? -1 : number_of(fields[12]));
    *row++ = cell_text(fields[13]);
    *row++ = cell_int((int64_t)i->body.more);
    *row = cell_text(i->body.text);
}

static void visit_rows_of(psd_core *core, const job *j, const incident *i, page *p)
{
    const char *fields[FIELDS];
    char *text = arena_text(core, "%s", i->body.rows), *next;
    for (; text != NULL && (next = next_row(text, fields)) != NULL; text = next) {
        psd_cell *row = page_row(p);
        if (row != NULL)
            fill_row(core, row, j, i, fields);
    }
}

/* -------------------------------------------------------------------------------------------- stragglers */

#define LATE            PSD_NS_PER_S /* who has waited so long is asked for whom */
#define MOST_STRAGGLERS 16           /* rows */
#define MOST_MARKED     64           /* groups of which all members are looked at */

static bool has_done(const psd_core *core, const member *m, uint8_t doing)
{
    return m != NULL && member_is_live(m) && m->peer != 0 && m->seen != INT64_MIN && m->doing == doing &&
           m->doing_ns + (core->now - m->seen) >= LATE;
}

/* Whom a rank waits for, as far as its heartbeat tells: the peer, or all members of the group. */
static void mark_awaited(const job *j, const psd_current_op *op, bool *awaited, uint32_t *last,
                         uint32_t *marked)
{
    const group *g = shelf_find(&j->groups, op->group);
    bool is_p2p = op->kind == PSD_OP_SEND || op->kind == PSD_OP_RECV;
    if (g == NULL || (!is_p2p && (g->id == *last || *marked == MOST_MARKED)))
        return;
    if (is_p2p && op->peer >= 0 && (uint32_t)op->peer < g->count)
        awaited[ranks_at(g->members, (uint32_t)op->peer)] = true;
    for (uint32_t i = 0; !is_p2p && i < g->count; i++)
        awaited[ranks_at(g->members, i)] = true;
    *last = is_p2p ? *last : g->id;
    *marked += !is_p2p;
}

static const char *straggler_text(psd_core *core, const member *m, int64_t since)
{
    char span[32];
    const psd_current_op *op = m->current;
    psd_format_ns(since, span, sizeof span);
    if (op == NULL)
        return arena_text(core, "straggler: rank %d is outside psd since %s; others wait for it", m->rank,
                          span);
    return arena_text(
        core,
        m->doing == PSD_DOING_POLLING
            ? "straggler: rank %d polls %s%s%s from %s since %s; others wait for it"
            : "straggler: rank %d is outside psd with %s%s%s from %s unfinished, since %s; others "
              "wait for it",
        m->rank, psd_op_name((psd_op_kind)op->kind), op->name[0] != 0 ? " of " : "", op->name, op->site,
        span);
}

static void add_straggler(psd_core *core, const job *j, const member *m, page *p)
{
    const psd_current_op *op = m->current;
    int64_t since = m->doing_ns + (core->now - m->seen);
    psd_cell *row = page_row(p);
    if (row == NULL)
        return;
    *row++ = cell_text(j->name);
    *row++ = cell_none();
    *row++ = cell_text("straggler");
    *row++ = cell_text("information");
    *row++ = cell_int(m->rank);
    *row++ = cell_text("straggler");
    *row++ = cell_text(op == NULL ? "" : psd_op_name((psd_op_kind)op->kind));
    *row++ = op == NULL ? cell_none() : cell_int(op->group);
    *row++ = cell_none();
    *row++ = cell_text(op == NULL ? "" : op->name);
    *row++ = op == NULL ? cell_none() : cell_int(op->peer);
    *row++ = cell_text(op == NULL ? "" : op->site);
    *row++ = cell_int(since);
    *row++ = cell_none();
    *row++ = cell_text(op == NULL || op->dtype == 0 ? "" : psd_dtype_name((psd_dtype)op->dtype));
    *row++ = op == NULL ? cell_none() : cell_int(op->count);
    *row++ = cell_none(); /* root */
    *row++ = cell_text("");
    *row++ = cell_none();
    *row = cell_text(straggler_text(core, m, since));
}

/* Ranks that others wait for and that are not in psd themselves: slow, or lost in something else. No incident. */
static void visit_stragglers(psd_core *core, const job *j, page *p)
{
    uint32_t last = 0, marked = 0, shown = 0;
    uint32_t world = j->state == JOB_RUNNING && j->ranks != NULL ? (uint32_t)j->world : 0;
    bool *awaited = world > 0 ? arena_take(core, world) : NULL;
    if (awaited == NULL)
        return;
    memset(awaited, 0, world);
    for (uint32_t r = 0; r < world; r++)
        if (has_done(core, j->ranks[r], PSD_DOING_WAITING) && j->ranks[r]->current != NULL)
            mark_awaited(j, j->ranks[r]->current, awaited, &last, &marked);
    for (uint32_t r = 0; r < world && shown < MOST_STRAGGLERS; r++) {
        const member *m = j->ranks[r];
        if (!awaited[r] || !(has_done(core, m, PSD_DOING_OUTSIDE) || has_done(core, m, PSD_DOING_POLLING)))
            continue;
        shown++;
        add_straggler(core, j, m, p);
    }
}

/* ------------------------------------------------------------------------------------------------- why */

/* What is open, or else the last hang; and works that were never waited for. */
static void visit_why(psd_core *core, job *j, page *p)
{
    const incident *i, *last = NULL;
    bool any = false;
    for (uint32_t at = 0; (i = incident_at(j, at)) != NULL; at++) {
        last = i->body.kind != INCIDENT_LOST_WORK ? i : last;
        any = any || incident_is_open(j, i);
        if (incident_is_open(j, i))
            visit_rows_of(core, j, i, p);
    }
    if (!any && last != NULL)
        visit_rows_of(core, j, last, p);
    for (uint32_t at = 0; (i = incident_at(j, at)) != NULL; at++)
        if (i->body.kind == INCIDENT_LOST_WORK && !i->is_acknowledged)
            visit_rows_of(core, j, i, p);
    visit_stragglers(core, j, p);
}

/* -------------------------------------------------------------------------------------------------- lists */

static const psd_column incidents_columns[] = {
    {"job", PSD_CELL_TEXT},   {"incident", PSD_CELL_INT}, {"class", PSD_CELL_TEXT},
    {"state", PSD_CELL_TEXT}, {"age", PSD_CELL_NS},       {"text", PSD_CELL_TEXT},
};

static void visit_incidents(psd_core *core, job *j, page *p)
{
    const incident *i;
    for (uint32_t at = 0; (i = incident_at(j, at)) != NULL; at++) {
        psd_cell *row = page_row(p);
        if (row == NULL)
            continue;
        *row++ = cell_text(j->name);
        *row++ = cell_int(i->id);
        *row++ = class_cell(core, i);
        *row++ = cell_text(state_name(j, i));
        *row++ = cell_int(core->now - i->at);
        *row = cell_text(i->body.text);
    }
}

static void visit_all(psd_core *core, job *j, page *p)
{
    const incident *i;
    for (uint32_t at = 0; (i = incident_at(j, at)) != NULL; at++)
        visit_rows_of(core, j, i, p);
}

const view *hang_view_find(const char *name)
{
    static const view views[] = {
        {"why", COLUMNS(why_columns), visit_why, NULL},
        {"incidents", COLUMNS(incidents_columns), visit_incidents, NULL},
        {"incident", COLUMNS(why_columns), visit_all, NULL},
    };
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++)
        if (strcmp(views[i].name, name) == 0)
            return &views[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- acknowledge */

bool hang_acknowledge(psd_core *core, const psd_msg_query *query, psd_msg_reply *reply)
{
    static const char command[] = "ack/";
    if (strncmp(query->view, command, sizeof(command) - 1) != 0)
        return false;
    uint32_t id = (uint32_t)number_of(query->view + sizeof(command) - 1);
    for (uint32_t k = 0; k < core->job_count; k++) {
        job *j = core->jobs[k];
        incident *i = query->job[0] == 0 || strcmp(query->job, j->name) == 0 ? incident_find(j, id) : NULL;
        if (i == NULL)
            continue;
        i->is_acknowledged = true;
        mark_journal(core);
        (void)snprintf(reply->text, sizeof(reply->text), "incident %u of job %s is acknowledged", id,
                       j->name);
        return true;
    }
    reply->status = PSD_ERR_NOT_FOUND;
    (void)snprintf(reply->text, sizeof(reply->text), "there is no incident %u", id);
    return true;
}
