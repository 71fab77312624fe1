/* psctl logs: the last lines that the library of a rank's backend has logged. psd has none of them: it asks the rank, and
 * remembers only who asked. */
#include <stdio.h>
#include <string.h>

#include "server/core/state.h"
#include "server/core/views.h"

static const char command[] = "log/";
static const psd_column columns[] = {{"line", PSD_CELL_TEXT}};

bool logs_is_question(const psd_msg_query *query)
{
    return strncmp(query->view, command, sizeof(command) - 1) == 0;
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
static member *find_rank(psd_core *core, const psd_msg_query *query, psd_msg_reply *reply)
{
    const job *j = jobs_find(core, query->job);
    const char *digits = query->view + sizeof(command) - 1;
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
    (void)snprintf(
        reply->text, sizeof(reply->text),
        "rank %d of job %s is not connected: its log, if it was killed, is beside its record file on %s",
        rank, j->name, m->host);
    return NULL;
}

void logs_ask(psd_core *core, const psd_event *event)
{
    const psd_msg_query *query = &event->msg->u.query;
    psd_msg_reply why = {.status = PSD_OK};
    member *m = find_rank(core, query, &why);
    if (m == NULL) {
        *reply_to(core, event->peer, event->msg->request) = why;
        return;
    }
    if (m->log_peer != 0) {
        psd_msg_reply *reply = reply_to(core, m->log_peer, m->log_request);
        reply->status = PSD_ERR_ABORTED;
        (void)snprintf(reply->text, sizeof(reply->text),
                       "another psctl asked rank %d before it answered: ask again", m->rank);
    }
    m->log_peer = event->peer;
    m->log_request = event->msg->request;
    psd_msg *ask = send_to_member(core, m, PSD_MSG_LOG_ASK);
    ask->u.query.limit = query->limit;
    ask->u.query.after = ++m->log_asked;
}

/* The lines outlive the rank's message until the next step. */
static void copy_lines(psd_core *core, const psd_msg_reply *from, psd_msg_reply *to)
{
    psd_cell *cells = arena_take(core, (size_t)(from->row_count + 1) * sizeof(*cells));
    for (uint32_t i = 0; cells != NULL && i < from->row_count; i++) {
        size_t bytes = strlen(from->cells[i].text) + 1;
        char *line = arena_take(core, bytes);
        if (line == NULL)
            return;
        memcpy(line, from->cells[i].text, bytes);
        cells[i].text = line;
    }
    if (cells == NULL)
        return;
    to->column_count = 1;
    to->columns = columns;
    to->row_count = from->row_count;
    to->cells = cells;
}

void logs_answer(psd_core *core, member *m, const psd_msg *msg)
{
    const psd_msg_reply *answer = &msg->u.reply;
    bool is_of_text = answer->column_count == 1 && answer->columns[0].type == PSD_CELL_TEXT;
    if (m->log_peer == 0 || answer->next != m->log_asked)
        return; /* nobody waits for it any more */
    psd_msg_reply *reply = reply_to(core, m->log_peer, m->log_request);
    m->log_peer = 0;
    reply->status = answer->status;
    memcpy(reply->text, answer->text, sizeof(reply->text));
    if (answer->status == PSD_OK && is_of_text)
        copy_lines(core, answer, reply);
}
