/* Parameter tables: agreed by all trainers, assigned to all servers, open once every server has made room,
 * freed once every trainer has closed, left or was lost.
 *
 * The trainers are the live ranks of the role of whoever asks first; the servers are the live ranks of role
 * "server". */
#include <stdlib.h>

#include "common/tensor.h"
#include "server/core/state.h"

void table_free(void *object)
{
    table *t = object;
    free((void *)(uintptr_t)t->spec.params);
    free(t->trainers);
    free(t->requests);
    free(t->closed);
    free(t->servers);
    free(t->ready);
    free(t->shards);
    free(t->reason);
    free(t);
}

static void table_remove(psd_core *core, table *t)
{
    shelf_remove(&t->job->tables, t->id);
    if (t->state != TABLE_FAILED) {
        bury(core, t, table_free);
        return;
    }
    bury(core, (void *)(uintptr_t)t->spec.params, free);
    t->spec.params = NULL;
    t->spec.param_count = 0;
    past_add_table(core, t);
}

int64_t trainer_of(const table *t, const member *m)
{
    if (m->rank < 0)
        return -1;
    int64_t at = ranks_find(t->trainers, NULL, t->trainer_count, (uint32_t)m->rank);
    return at >= 0 && !bit_get(t->closed, (uint32_t)at) ? at : -1;
}

/* For a rank that has closed a table its name is free again, though others may not have closed it yet. */
static bool has_closed(const table *t, const member *m)
{
    int64_t at = m->rank < 0 ? -1 : ranks_find(t->trainers, NULL, t->trainer_count, (uint32_t)m->rank);
    return at >= 0 && bit_get(t->closed, (uint32_t)at);
}

static int64_t server_of(const table *t, const member *m)
{
    return m->rank < 0 ? -1 : ranks_find(t->servers, NULL, t->server_count, (uint32_t)m->rank);
}

static void fill_table(const table *t, psd_msg_table_open *out)
{
    *out = (psd_msg_table_open){.table = t->id,
                                .spec = t->spec,
                                .server_count = t->server_count,
                                .servers = t->servers,
                                .trainer_count = t->trainer_count,
                                .trainers = t->trainers};
}

/* The table itself is gone when a server comes back that did not hear of it. */
static void remember_freed(psd_core *core, job *j, uint32_t id)
{
    if (j->freed == NULL)
        j->freed = core_calloc(core, MAX_FREED_KEPT, sizeof(*j->freed));
    if (j->freed != NULL)
        j->freed[j->freed_count++ % MAX_FREED_KEPT] = (freed_table){.id = id, .at = core->now};
}

/* To servers that were assigned the table: when all trainers had asked. */
static void send_free(psd_core *core, const table *t)
{
    if (t->asked != t->trainer_count)
        return;
    send_to(core, to_servers(t), PSD_MSG_TABLE_FREE)->u.table.table = t->id;
    remember_freed(core, t->job, t->id);
}

static void mark_closed(psd_core *core, table *t, uint32_t at)
{
    if (!bit_set(t->closed, at) || ++t->closed_count < t->trainer_count)
        return;
    send_free(core, t);
    table_remove(core, t);
}

void table_refuse(psd_core *core, table *t, psd_status status, const char *text)
{
    uint32_t count = t->trainer_count;
    psd_msg *msg = send_to(core, to_trainers(t), PSD_MSG_REFUSE);
    msg->u.refuse.status = status;
    (void)snprintf(msg->u.refuse.text, sizeof(msg->u.refuse.text), "%s", text);
    note_add(core, t->job, -1, PSD_NOTE_WARN, "table %s was not opened: %s", t->spec.name, text);
    t->state = TABLE_FAILED;
    t->changed = core->now;
    t->reason = core_strdup(core, text);
    t->status = status;
    for (uint32_t at = 0; at < count; at++)
        if (t->requests[at] != 0)
            mark_closed(core, t, at); /* the last one buries the table, which stays readable in this step */
}

/* ------------------------------------------------------------------------------------------------- asking */

/* Checks what a trainer asks for; the reason, or NULL when it is sound. */
static const char *spec_fault(const psd_table_spec *spec)
{
    int64_t total = 0;
    if (!psd_name_valid(spec->name))
        return "its name must be 1 to 63 bytes of letters, digits, '.', '_' and '-'";
    if (spec->optimizer < 1 || spec->optimizer > 2)
        return "its optimizer is not known";
    if (!(spec->lr - spec->lr == 0) || !(spec->momentum - spec->momentum == 0))
        return "its learning rate and momentum must be finite";
    if (spec->param_count == 0 || spec->param_count > PSD_MAX_PARAMS || spec->params == NULL)
        return "it must have 1 to 65536 parameters";
    for (uint32_t i = 0; i < spec->param_count; i++) {
        const psd_param *param = &spec->params[i];
        if (!psd_dtype_valid(param->dtype))
            return "a parameter has a dtype that does not exist";
        int64_t bytes = (int64_t)psd_dtype_bytes((psd_dtype)param->dtype);
        if (param->count < 0 || param->count > (INT64_MAX - total) / bytes)
            return "a parameter has an impossible count";
        total += param->count * bytes;
    }
    return NULL;
}

static bool may_ask(psd_core *core, const member *m, const psd_msg *msg)
{
    const psd_table_spec *spec = &msg->u.table_open.spec;
    const char *fault = spec_fault(spec);
    if (fault != NULL)
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL, "rank %d asks for a table, but %s", m->rank, fault);
    else if (member_is_server(m))
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL,
                    "rank %d has role server and asks for table %s: trainers open tables, servers serve them",
                    m->rank, spec->name);
    else if (m->job->helpers == 0)
        refuse_peer(core, m->peer, msg, PSD_ERR_NOT_FOUND,
                    "table %s needs ranks of role server, and job %s has none: start psworker --role server",
                    spec->name, m->job->name);
    else
        return true;
    return false;
}

static uint32_t *ranks_where(psd_core *core, const job *j, const char *role, uint32_t *count)
{
    uint32_t found = 0;
    for (uint32_t rank = 0; rank < j->world; rank++) {
        const member *m = members_at(j, rank);
        found += m != NULL && strcmp(m->role, role) == 0;
    }
    uint32_t *ranks = core_calloc(core, found, sizeof(*ranks));
    if (ranks == NULL)
        return NULL;
    *count = 0;
    for (uint32_t rank = 0; rank < j->world; rank++) {
        const member *m = members_at(j, rank);
        if (m != NULL && strcmp(m->role, role) == 0)
            ranks[(*count)++] = rank;
    }
    return ranks;
}

/* Servers and trainers are told all of it in one message. */
static bool spec_fits(psd_core *core, const member *m, const psd_msg *msg, const table *t)
{
    psd_msg_table_open open;
    fill_table(t, &open);
    uint64_t bytes = psd_table_open_bound(&open);
    if (bytes > PSD_MAX_FRAME)
        refuse_peer(core, m->peer, msg, PSD_ERR_LIMIT,
                    "table %s with its %u parameters takes some %llu bytes to describe, a message holds %d: "
                    "make several tables, or shorten the names",
                    t->spec.name, t->spec.param_count, (unsigned long long)bytes, PSD_MAX_FRAME);
    return bytes <= PSD_MAX_FRAME;
}

static table *table_make(psd_core *core, const member *m, const psd_msg *msg)
{
    job *j = m->job;
    const psd_table_spec *spec = &msg->u.table_open.spec;
    if (j->tables.count >= MAX_TABLES_PER_JOB) {
        refuse_peer(core, m->peer, msg, PSD_ERR_LIMIT,
                    "job %s has %zu tables, which is the limit: close some", j->name, j->tables.count);
        return NULL;
    }
    table *t = core_calloc(core, 1, sizeof(*t));
    if (t == NULL)
        return NULL;
    *t = (table){.state = TABLE_AGREEING, .job = j, .spec = *spec, .changed = core->now};
    t->spec.params = core_copy(core, spec->params, spec->param_count, sizeof(*spec->params));
    (void)snprintf(t->role, sizeof(t->role), "%s", m->role);
    t->trainers = ranks_where(core, j, m->role, &t->trainer_count);
    t->servers = ranks_where(core, j, "server", &t->server_count);
    t->requests = core_calloc(core, t->trainer_count, sizeof(*t->requests));
    t->closed = core_calloc(core, bits_words(t->trainer_count), sizeof(uint64_t));
    t->ready = core_calloc(core, bits_words(t->server_count), sizeof(uint64_t));
    t->shards = core_calloc(core, t->server_count, sizeof(*t->shards));
    if (!core->oom && !spec_fits(core, m, msg, t)) {
        table_free(t);
        return NULL;
    }
    if (core->oom || !shelf_add(&j->tables, t)) {
        core->oom = true;
        table_free(t);
        return NULL;
    }
    t->id = j->next_table++;
    t->first = (uint32_t)m->rank;
    return t;
}

/* What differs between two specs of one table, as text; false when they agree. */
static bool specs_differ(const psd_table_spec *a, const psd_table_spec *b, char *out, size_t out_bytes)
{
    if (a->optimizer != b->optimizer || a->average != b->average || a->lr != b->lr ||
        a->momentum != b->momentum) {
        (void)snprintf(out, out_bytes, "optimizer, learning rate, momentum or averaging differ");
        return true;
    }
    if (a->param_count != b->param_count) {
        (void)snprintf(out, out_bytes, "one has %u parameters, the other %u", a->param_count, b->param_count);
        return true;
    }
    for (uint32_t i = 0; i < a->param_count; i++) {
        const psd_param *x = &a->params[i];
        const psd_param *y = &b->params[i];
        if (strcmp(x->name, y->name) == 0 && x->dtype == y->dtype && x->count == y->count)
            continue;
        (void)snprintf(out, out_bytes, "parameter %u is %s (%lld %s) on one, %s (%lld %s) on the other", i,
                       x->name, (long long)x->count, psd_dtype_name((psd_dtype)x->dtype), y->name,
                       (long long)y->count, psd_dtype_name((psd_dtype)y->dtype));
        return true;
    }
    return false;
}

static void answer_opened(psd_core *core, const table *t, const member *m, uint64_t request)
{
    psd_msg *answer = send_to_member(core, m, PSD_MSG_TABLE_OPENED);
    answer->request = request;
    fill_table(t, &answer->u.table_open);
}

static void refuse_failed(psd_core *core, const member *m, const psd_msg *msg, const table *t)
{
    refuse_peer(core, m->peer, msg, t->status, "table %s failed: %s", t->spec.name,
                t->reason == NULL ? no_reason : t->reason);
}

/* The table of this name, if this rank may still ask for it; NULL when it was answered. */
static table *take_named(psd_core *core, const member *m, const psd_msg *msg, table *t)
{
    const psd_table_spec *spec = &msg->u.table_open.spec;
    int64_t at = trainer_of(t, m);
    char text[512];
    char differ[256];
    if (t->state == TABLE_FAILED) {
        refuse_failed(core, m, msg, t);
        if (at >= 0 && t->requests[at] == 0) {
            mark_journal(core);
            mark_closed(core, t, (uint32_t)at);
        }
        return NULL;
    }
    if (t->state != TABLE_AGREEING || at < 0 || t->requests[at] != 0) {
        refuse_peer(core, m->peer, msg, PSD_ERR_EXISTS,
                    "table %s exists in job %s already, opened by the ranks of role %s: close it first or "
                    "choose another name",
                    spec->name, m->job->name, t->role);
        return NULL;
    }
    if (!specs_differ(&t->spec, spec, differ, sizeof(differ)))
        return t;
    (void)snprintf(text, sizeof(text), "ranks %u and %d disagree on table %s: %s", t->first, m->rank,
                   spec->name, differ);
    mark_journal(core);
    t->requests[at] = msg->request; /* answered with the others */
    table_refuse(core, t, PSD_ERR_MISMATCH, text);
    return NULL;
}

/* A request that came before, sent again after a resync: counted once, answered again. One that is refused
 * has closed the table: it does not know its number. */
static bool asked_before(psd_core *core, const member *m, const psd_msg *msg)
{
    for (size_t i = 0; i < m->job->tables.count; i++) {
        table *t = m->job->tables.items[i];
        int64_t at = ranks_find(t->trainers, NULL, t->trainer_count, (uint32_t)m->rank);
        if (at < 0 || t->requests[at] != msg->request)
            continue;
        if (t->state == TABLE_LIVE && !bit_get(t->closed, (uint32_t)at)) {
            answer_opened(core, t, m, msg->request);
        } else if (t->state == TABLE_FAILED) {
            refuse_failed(core, m, msg, t);
            if (!bit_get(t->closed, (uint32_t)at)) {
                mark_journal(core);
                mark_closed(core, t, (uint32_t)at);
            }
        }
        return true;
    }
    return past_answers(core, m, msg);
}

void tables_open(psd_core *core, member *m, const psd_msg *msg)
{
    if (msg->request == 0 || asked_before(core, m, msg) || !may_ask(core, m, msg))
        return;
    table *t = NULL;
    for (size_t i = 0; i < m->job->tables.count && t == NULL; i++) {
        table *each = m->job->tables.items[i];
        if (strcmp(each->spec.name, msg->u.table_open.spec.name) == 0 && !has_closed(each, m))
            t = each;
    }
    t = t != NULL ? take_named(core, m, msg, t) : table_make(core, m, msg);
    if (t == NULL)
        return;
    mark_journal(core);
    t->requests[trainer_of(t, m)] = msg->request;
    if (++t->asked < t->trainer_count)
        return;
    t->state = TABLE_ASSIGNING;
    t->changed = core->now;
    fill_table(t, &send_to(core, to_servers(t), PSD_MSG_TABLE_ASSIGN)->u.table_open);
}

/* ------------------------------------------------------------------------------------------------ serving */

void tables_ready(psd_core *core, member *m, const psd_msg *msg)
{
    table *t = shelf_find(&m->job->tables, msg->u.table.table);
    int64_t at = t == NULL ? -1 : server_of(t, m);
    if (at < 0 || t->state != TABLE_ASSIGNING)
        return;
    mark_journal(core);
    if (msg->u.table.status != PSD_OK) {
        char text[PSD_MAX_TEXT];
        (void)snprintf(text, sizeof(text), "server rank %d (worker %s) has no room for table %s: %.700s",
                       m->rank, m->name, t->spec.name, msg->u.table.text);
        table_refuse(core, t, msg->u.table.status, text);
        return;
    }
    t->shards[at].bytes = msg->u.table.bytes;
    if (!bit_set(t->ready, (uint32_t)at) || ++t->ready_count < t->server_count)
        return;
    t->state = TABLE_LIVE;
    t->changed = core->now;
    fill_table(t, &send_to(core, to_trainers(t), PSD_MSG_TABLE_OPENED)->u.table_open);
}

void tables_progress(psd_core *core, member *m, const psd_msg *msg)
{
    (void)core;
    table *t = shelf_find(&m->job->tables, msg->u.table.table);
    int64_t at = t == NULL ? -1 : server_of(t, m);
    if (at < 0)
        return;
    t->shards[at] = (shard){.clock = msg->u.table.clock,
                            .pushes = msg->u.table.pushes,
                            .pulls = msg->u.table.pulls,
                            .bytes = msg->u.table.bytes};
}

void tables_close(psd_core *core, member *m, const psd_msg *msg)
{
    table *t = shelf_find(&m->job->tables, msg->u.table.table);
    int64_t at = t == NULL ? -1 : trainer_of(t, m);
    if (at < 0)
        return;
    mark_journal(core);
    if (t->state == TABLE_AGREEING || t->state == TABLE_ASSIGNING) {
        char text[128];
        (void)snprintf(text, sizeof(text), "rank %d closed it while it was being opened", m->rank);
        table_refuse(core, t, PSD_ERR_ABORTED, text);
        return;
    }
    mark_closed(core, t, (uint32_t)at);
}

/* ------------------------------------------------------------------------------------- failures, resuming */

/* A clock needs every trainer and every server: without one of them an open table has failed. A trainer that
 * left cleanly has closed it. */
void tables_member_ended(psd_core *core, member *m, bool failed, const char *text)
{
    shelf *tables = &m->job->tables;
    for (size_t i = tables->count; i-- > 0;) {
        table *t = tables->items[i];
        int64_t trainer = trainer_of(t, m);
        bool server = server_of(t, m) >= 0 && member_is_server(m);
        if (trainer < 0 && !server)
            continue;
        uint32_t id = t->id;
        if (t->state == TABLE_AGREEING || t->state == TABLE_ASSIGNING)
            table_refuse(core, t, PSD_ERR_PEER_FAILED, text);
        if (shelf_find(tables, id) == NULL)
            continue;
        if (t->state == TABLE_LIVE && (failed || server)) {
            t->state = TABLE_FAILED;
            t->changed = core->now;
            t->status = PSD_ERR_PEER_FAILED;
            t->reason = core_strdup(core, text);
            note_add(core, t->job, m->rank, PSD_NOTE_WARN, "table %s failed: %s", t->spec.name, text);
        }
        if (trainer >= 0) {
            t->requests[trainer] = 0; /* the next life at this rank numbers its own anew */
            mark_closed(core, t, (uint32_t)trainer);
        }
    }
}

/* A server may free a table twice: it does not know the second one. */
static void resume_freed(psd_core *core, const member *m)
{
    const job *j = m->job;
    psd_time_ns since = member_missed_since(core, m);
    uint64_t first = j->freed_count > MAX_FREED_KEPT ? j->freed_count - MAX_FREED_KEPT : 0;
    for (uint64_t i = first; i < j->freed_count; i++) {
        const freed_table *freed = &j->freed[i % MAX_FREED_KEPT];
        if (freed->at >= since)
            send_to_member(core, m, PSD_MSG_TABLE_FREE)->u.table.table = freed->id;
    }
}

/* Trainers ask again by themselves; a server may have missed what it was assigned, and what it is to free. */
void tables_resume(psd_core *core, member *m)
{
    if (member_is_server(m))
        resume_freed(core, m);
    for (size_t i = 0; i < m->job->tables.count; i++) {
        const table *t = m->job->tables.items[i];
        int64_t at = server_of(t, m);
        if (at < 0 || t->state != TABLE_ASSIGNING || bit_get(t->ready, (uint32_t)at))
            continue;
        fill_table(t, &send_to_member(core, m, PSD_MSG_TABLE_ASSIGN)->u.table_open);
    }
}
