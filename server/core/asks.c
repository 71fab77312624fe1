/* Questions of psctl that a rank answers: psctl logs, the last lines that the library of its backend has logged, and psctl
 * ops --rank, its last operations. psd has none of them: it asks the rank, and remembers only who asked, until the rank
 * answers, ends, or has not answered in time. */
#include <stdio.h>
#include <string.h>

#include "server/core/state.h"
#include "server/core/views.h"

#define ANSWER_WITHIN (3 * PSD_NS_PER_S) /* psctl waits 5 s */

static const struct {
    const char *prefix; /* of the view; the rank follows */
    psd_msg_type ask;
    const char *where; /* it is to be found when the process is gone */
} kinds[] = {
    {"log/", PSD_MSG_LOG_ASK, "its log, if it was killed, is beside its record file on"},
    {"ops/", PSD_MSG_OPS_ASK, "psctl ops --dump reads the record file that it left, if it was killed, on"},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static int kind_of(const psd_msg_query *query)
{
    int kind = 0;
    while (kind < KINDS && strncmp(query->view, kinds[kind].prefix, strlen(kinds[kind].prefix)) != 0)
        kind++;
    return kind;
}

bool asks_is_question(const psd_msg_query *query)
{
    return kind_of(query) < KINDS;
}

/* -1: no number of a rank. */
static int32_t parse_rank(const char *digits)
{
    int32_t rank = 0;
    if (*digits == '\0')
        return -1;
    for (; *digits != '\0'; digits++) {
        if (*digits < '0' || *digits > '9' || rank > PSD_MAX_WORLD)
            return -1;
        rank = rank * 10 + (*digits - '0');
    }
    return rank;
}

static psd_msg_reply *reply_to(psd_core *core, psd_peer peer, uint64_t request)
{
    psd_msg *msg = send_to_peer(core, peer, PSD_MSG_REPLY);
    msg->request = request;
    return &msg->u.reply;
}

/* The rank that is asked; NULL, and the reply says why there is none. */
static member *find_rank(psd_core *core, const psd_msg_query *query, int kind, psd_msg_reply *reply)
{
    const job *j = jobs_find(core, query->job);
    const char *digits = query->view + strlen(kinds[kind].prefix);
    int32_t rank = parse_rank(digits);
    reply->status = PSD_ERR_NOT_FOUND;
    if (j == NULL) {
        (void)snprintf(reply->text, sizeof(reply->text), "there is no job %.63s at this coordinator",
                       query->job);
        return NULL;
    }
    if (rank < 0 || rank >= j->world_min || j->ranks == NULL || j->ranks[rank] == NULL) {
        (void)snprintf(reply->text, sizeof(reply->text), "job %s has no rank %.16s", j->name, digits);
        return NULL;
    }
    member *m = j->ranks[rank];
    if (member_is_live(m) && m->peer != 0)
        return m;
    (void)snprintf(reply->text, sizeof(reply->text), "rank %d of job %s is not connected: %s %s", rank,
                   j->name, kinds[kind].where, m->host);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ asking */

static void refuse(psd_core *core, question *q, psd_status status, const char *text)
{
    psd_msg_reply *reply = reply_to(core, q->peer, q->request);
    reply->status = status;
    (void)snprintf(reply->text, sizeof(reply->text), "rank %d %s", q->asked->rank, text);
    q->asked = NULL;
}

/* A free place, or that of the oldest question. */
static question *find_place(psd_core *core)
{
    question *oldest = &core->questions[0];
    for (int i = 0; i < MAX_QUESTIONS; i++) {
        question *q = &core->questions[i];
        if (q->asked == NULL)
            return q;
        oldest = q->number < oldest->number ? q : oldest;
    }
    refuse(core, oldest, PSD_ERR_LIMIT, "had not answered when too many other questions came: ask again");
    return oldest;
}

void asks_put(psd_core *core, const psd_event *event)
{
    const psd_msg_query *query = &event->msg->u.query;
    int kind = kind_of(query);
    psd_msg_reply why = {.status = PSD_OK};
    member *m = find_rank(core, query, kind, &why);
    if (m == NULL) {
        *reply_to(core, event->peer, event->msg->request) = why;
        return;
    }
    question *q = find_place(core);
    *q = (question){.asked = m,
                    .peer = event->peer,
                    .request = event->msg->request,
                    .number = ++core->question_count,
                    .due = core->now + ANSWER_WITHIN};
    psd_msg *ask = send_to_member(core, m, kinds[kind].ask);
    ask->u.query.limit = query->limit;
    ask->u.query.after = q->number;
}

/* --------------------------------------------------------------------------------------------- answering */

/* What a rank says outlives its message until the next step. */
static void copy_rows(psd_core *core, const psd_msg_reply *from, psd_msg_reply *to)
{
    size_t count = (size_t)from->row_count * from->column_count;
    psd_column *columns = arena_take(core, (from->column_count + 1) * sizeof(*columns));
    psd_cell *cells = arena_take(core, (count + 1) * sizeof(*cells));
    if (columns == NULL || cells == NULL)
        return;
    for (uint32_t c = 0; c < from->column_count; c++)
        columns[c] = from->columns[c];
    for (size_t i = 0; i < count; i++) {
        cells[i] = from->cells[i];
        if (columns[i % from->column_count].type == PSD_CELL_TEXT)
            cells[i].text = arena_text(core, "%s", from->cells[i].text);
    }
    to->column_count = from->column_count;
    to->columns = columns;
    to->row_count = from->row_count;
    to->cells = cells;
}

void asks_answer(psd_core *core, member *m, const psd_msg *msg)
{
    const psd_msg_reply *answer = &msg->u.reply;
    for (int i = 0; i < MAX_QUESTIONS; i++) {
        question *q = &core->questions[i];
        if (q->asked != m || q->number != answer->next)
            continue;
        psd_msg_reply *reply = reply_to(core, q->peer, q->request);
        q->asked = NULL;
        reply->status = answer->status;
        memcpy(reply->text, answer->text, sizeof(reply->text));
        if (answer->status == PSD_OK)
            copy_rows(core, answer, reply);
    }
}

/* ------------------------------------------------------------------------------------- not being answered */

psd_time_ns asks_deadline(const psd_core *core)
{
    psd_time_ns first = PSD_NEVER;
    for (int i = 0; i < MAX_QUESTIONS; i++)
        if (core->questions[i].asked != NULL && core->questions[i].due < first)
            first = core->questions[i].due;
    return first;
}

void asks_timer(psd_core *core)
{
    for (int i = 0; i < MAX_QUESTIONS; i++) {
        question *q = &core->questions[i];
        if (q->asked != NULL && q->due <= core->now)
            refuse(
                core, q, PSD_ERR_TIMEOUT,
                "did not answer within 3 s: its process is stopped, or has no processor to run on (psctl ops "
                "--dump reads its record file on its host)");
    }
}

void asks_member_ended(psd_core *core, const member *m)
{
    for (int i = 0; i < MAX_QUESTIONS; i++)
        if (core->questions[i].asked == m)
            refuse(core, &core->questions[i], PSD_ERR_NOT_FOUND, "ended before it answered");
}

void asks_restart(psd_core *core)
{
    memset(core->questions, 0, sizeof(core->questions));
}
