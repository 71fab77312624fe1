/* Message structs -> frames. One function per message, in the order of msg.h; each fills a protobuf struct
 * that borrows from the message, or from the scratch arena where columns have to be built. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "proto/wire.h"
#include "proto/wire_body.h"

/* Columns are at most as large as the frame they become, eight times over for numbers of one byte. */
#define ENCODE_BUDGET (8 * (size_t)PSD_MAX_FRAME)

typedef union body {
    Psdpb__Hello hello;
    Psdpb__Waiting waiting;
    Psdpb__Welcome welcome;
    Psdpb__Refuse refuse;
    Psdpb__Heartbeat heartbeat;
    Psdpb__GroupOpen group_open;
    Psdpb__GroupToken group_token;
    Psdpb__GroupOpened group_opened;
    Psdpb__Group group;
    Psdpb__Abort abort;
    Psdpb__PlanOpen plan_open;
    Psdpb__PlanSteps plan_steps;
    Psdpb__Plan plan;
    Psdpb__TableOpen table_open;
    Psdpb__Table table;
    Psdpb__Bye bye;
    Psdpb__Stop stop;
    Psdpb__Query query;
    Psdpb__Reply reply;
    Psdpb__Snapshot snapshot;
    Psdpb__Incident incident;
    Psdpb__LostWork lost_work;
    Psdpb__Nothing nothing;
} body;

typedef struct writer {
    psd_arena arena;
    psd_status status;
    Psdpb__CurrentOp current;
} writer;

static bool fail(writer *w, psd_status status)
{
    w->status = status;
    return false;
}

static void *scratch(writer *w, size_t count, size_t bytes)
{
    void *at = psd_arena_array(&w->arena, count, bytes);
    if (at == NULL)
        fail(w, w->arena.over_budget ? PSD_ERR_LIMIT : PSD_ERR_NOMEM);
    return at;
}

/* protobuf-c takes pointers to non-const, and only reads them to pack. */
static ProtobufCBinaryData bytes_of(const void *data, size_t bytes)
{
    return (ProtobufCBinaryData){.len = bytes, .data = (uint8_t *)(uintptr_t)data};
}

static uint32_t *numbers_of(const uint32_t *values)
{
    return (uint32_t *)(uintptr_t)values;
}

static uint64_t *longs_of(const uint64_t *values)
{
    return (uint64_t *)(uintptr_t)values;
}

static ProtobufCBinaryData text_of(const char *text, size_t capacity)
{
    return bytes_of(text, psd_utf8_prefix(text, strnlen(text, capacity - 1)));
}

#define TEXT(array) text_of((array), sizeof(array))

static bool write_hello(writer *w, const psd_msg_hello *in, Psdpb__Hello *out)
{
    (void)w;
    psdpb__hello__init(out);
    out->role = TEXT(in->role);
    out->host = TEXT(in->host);
    out->address = TEXT(in->address);
    out->backend = TEXT(in->backend);
    out->pid = in->pid;
    out->rank = in->rank;
    out->world_min = (uint32_t)in->world_min;
    out->world_max = (uint32_t)in->world_max;
    out->resume_token = in->resume_token;
    out->epoch = in->epoch;
    return true;
}

static bool write_waiting(writer *w, const psd_msg_waiting *in, Psdpb__Waiting *out)
{
    (void)w;
    psdpb__waiting__init(out);
    out->have = (uint32_t)in->have;
    out->want = (uint32_t)in->want;
    out->text = TEXT(in->text);
    return true;
}

static bool write_welcome(writer *w, const psd_msg_welcome *in, Psdpb__Welcome *out)
{
    (void)w;
    psdpb__welcome__init(out);
    out->rank = (uint32_t)in->rank;
    out->world = (uint32_t)in->world;
    out->epoch = in->epoch;
    out->resume_token = in->resume_token;
    out->world_group = in->world_group;
    out->lease_ms = (uint32_t)in->lease_ms;
    out->heartbeat_ms = (uint32_t)in->heartbeat_ms;
    return true;
}

static bool write_refuse(writer *w, const psd_msg_refuse *in, Psdpb__Refuse *out)
{
    (void)w;
    psdpb__refuse__init(out);
    out->status = in->status;
    out->text = TEXT(in->text);
    return true;
}

static Psdpb__CurrentOp *write_current_op(writer *w, const psd_current_op *op)
{
    psdpb__current_op__init(&w->current);
    w->current.kind = op->kind;
    w->current.dtype = op->dtype;
    w->current.redop = op->redop;
    w->current.peer = op->peer;
    w->current.group = op->group;
    w->current.ordinal = op->ordinal;
    w->current.count = (uint64_t)op->count;
    w->current.age_ns = (uint64_t)op->age_ns;
    w->current.name = TEXT(op->name);
    w->current.site = TEXT(op->site);
    return &w->current;
}

static bool write_heartbeat(writer *w, const psd_msg_heartbeat *in, Psdpb__Heartbeat *out)
{
    psdpb__heartbeat__init(out);
    out->epoch = in->epoch;
    out->ops = in->ops;
    out->bytes_sent = in->bytes_sent;
    out->bytes_received = in->bytes_received;
    out->pool_bytes = in->pool_bytes;
    out->resident_bytes = in->resident_bytes;
    out->communicator_bytes = in->communicator_bytes;
    out->communicators = in->communicators;
    out->communicator_budget = in->communicator_budget;
    out->doing = in->doing;
    out->doing_ns = (uint64_t)in->doing_ns;
    if (in->current.kind != 0)
        out->current = write_current_op(w, &in->current);
    return true;
}

static bool write_group_open(writer *w, const psd_msg_group_open *in, Psdpb__GroupOpen *out)
{
    if (in->count > 0 && in->members == NULL)
        return fail(w, PSD_ERR_INVAL);
    psdpb__group_open__init(out);
    out->how = (uint32_t)in->how;
    out->parent = in->parent;
    out->color = in->color;
    out->key = in->key;
    out->n_members = in->count;
    out->members = numbers_of(in->members);
    return true;
}

static bool write_token(writer *w, const uint8_t *token, uint32_t bytes, ProtobufCBinaryData *out)
{
    if (bytes > PSD_MAX_TOKEN)
        return fail(w, PSD_ERR_INVAL);
    *out = bytes_of(token, bytes);
    return true;
}

static bool write_group_token(writer *w, const psd_msg_group_token *in, Psdpb__GroupToken *out)
{
    psdpb__group_token__init(out);
    out->group = in->group;
    return write_token(w, in->token, in->bytes, &out->token);
}

/* Joins `count` texts, each `stride` bytes after the one before it. */
static bool join_texts(writer *w, const char *const *first, size_t stride, size_t count, size_t max_bytes,
                       ProtobufCBinaryData *joined, uint32_t **lengths)
{
    const char *at = (const char *)first;
    uint32_t *sizes = scratch(w, count, sizeof *sizes);
    if (sizes == NULL)
        return false;
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        const char *text = *(const char *const *)(const void *)(at + i * stride);
        if (text == NULL)
            return fail(w, PSD_ERR_INVAL);
        sizes[i] = (uint32_t)psd_utf8_prefix(text, strnlen(text, max_bytes - 1));
        total += sizes[i];
    }
    uint8_t *data = scratch(w, total, 1);
    if (data == NULL)
        return false;
    *joined = bytes_of(data, total);
    *lengths = sizes;
    for (size_t i = 0; i < count; i++) {
        memcpy(data, *(const char *const *)(const void *)(at + i * stride), sizes[i]);
        data += sizes[i];
    }
    return true;
}

static bool write_group_opened(writer *w, const psd_msg_group_opened *in, Psdpb__GroupOpened *out)
{
    if (in->count > 0 && in->addresses == NULL)
        return fail(w, PSD_ERR_INVAL);
    psdpb__group_opened__init(out);
    out->group = in->group;
    out->epoch = in->epoch;
    out->count = in->count;
    out->n_members = in->members != NULL ? in->count : 0;
    out->members = numbers_of(in->members);
    out->n_address_bytes = in->count;
    return join_texts(w, in->addresses, sizeof *in->addresses, in->count, PSD_MAX_ADDR, &out->addresses,
                      &out->address_bytes) &&
           write_token(w, in->token, in->token_bytes, &out->token);
}

static bool write_group(writer *w, const psd_msg_group *in, Psdpb__Group *out)
{
    (void)w;
    psdpb__group__init(out);
    out->group = in->group;
    out->warmup_ns = (uint64_t)in->warmup_ns;
    return true;
}

static bool write_sides(writer *w, const psd_msg_abort *in, Psdpb__Abort *out)
{
    if (in->side_count > PSD_ABORT_SIDES)
        return fail(w, PSD_ERR_LIMIT);
    Psdpb__Side *sides = scratch(w, in->side_count, sizeof *sides);
    out->sides = scratch(w, in->side_count, sizeof(Psdpb__Side *));
    if (sides == NULL || out->sides == NULL)
        return false;
    out->n_sides = in->side_count;
    for (uint32_t i = 0; i < in->side_count; i++) {
        const psd_op_side *from = &in->sides[i];
        psdpb__side__init(&sides[i]);
        sides[i].rank = from->rank;
        sides[i].kind = from->kind;
        sides[i].dtype = from->dtype;
        sides[i].redop = from->redop;
        sides[i].peer = from->peer;
        sides[i].root = from->root;
        sides[i].ordinal = from->ordinal;
        sides[i].count = (uint64_t)from->count;
        sides[i].name = TEXT(from->name);
        sides[i].site = TEXT(from->site);
        out->sides[i] = &sides[i];
    }
    return true;
}

static bool write_abort(writer *w, const psd_msg_abort *in, Psdpb__Abort *out)
{
    psdpb__abort__init(out);
    out->group = in->group;
    out->epoch = in->epoch;
    out->status = in->status;
    out->culprit = in->culprit;
    out->text = TEXT(in->text);
    return write_sides(w, in, out);
}

static bool write_plan_open(writer *w, const psd_msg_plan_open *in, Psdpb__PlanOpen *out)
{
    (void)w;
    psdpb__plan_open__init(out);
    out->kind = (uint32_t)in->inputs.kind;
    out->group = in->inputs.group;
    out->ranks = in->inputs.ranks;
    out->dtype = (uint32_t)in->inputs.dtype;
    out->count = (uint64_t)in->inputs.count;
    out->shift = in->inputs.shift;
    return true;
}

static bool write_plan_steps(writer *w, const psd_msg_plan_steps *in, Psdpb__PlanSteps *out)
{
    if (in->count > 0 && (in->round == NULL || in->peer == NULL || in->is_send == NULL ||
                          in->offset == NULL || in->bytes == NULL))
        return fail(w, PSD_ERR_INVAL);
    psdpb__plan_steps__init(out);
    out->plan = in->plan;
    out->hash = in->hash;
    out->chunk = in->chunk;
    out->chunks = in->chunks;
    out->rounds = in->rounds;
    out->n_round = in->count;
    out->round = numbers_of(in->round);
    out->n_peer = in->count;
    out->peer = numbers_of(in->peer);
    out->is_send = bytes_of(in->is_send, in->count);
    out->n_offset = in->count;
    out->offset = longs_of(in->offset);
    out->n_bytes = in->count;
    out->bytes = longs_of(in->bytes);
    return true;
}

static bool write_plan(writer *w, const psd_msg_plan *in, Psdpb__Plan *out)
{
    (void)w;
    psdpb__plan__init(out);
    out->plan = in->plan;
    out->chunk = in->chunk;
    out->hash = in->hash;
    out->runs = in->runs;
    out->bytes = in->bytes;
    out->last_run_ns = (uint64_t)in->last_run_ns;
    return true;
}

static bool write_params(writer *w, const psd_table_spec *in, Psdpb__TableOpen *out)
{
    size_t count = in->param_count;
    if (count > PSD_MAX_PARAMS)
        return fail(w, PSD_ERR_LIMIT);
    if (count > 0 && in->params == NULL)
        return fail(w, PSD_ERR_INVAL);
    const char **names = scratch(w, count, sizeof *names);
    uint8_t *dtypes = scratch(w, count, 1);
    uint64_t *counts = scratch(w, count, sizeof *counts);
    if (names == NULL || dtypes == NULL || counts == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        names[i] = in->params[i].name;
        dtypes[i] = in->params[i].dtype;
        counts[i] = (uint64_t)in->params[i].count;
    }
    out->param_dtypes = bytes_of(dtypes, count);
    out->n_param_counts = count;
    out->param_counts = counts;
    out->n_param_name_bytes = count;
    return join_texts(w, names, sizeof *names, count, PSD_MAX_NAME, &out->param_names,
                      &out->param_name_bytes);
}

static bool write_table_open(writer *w, const psd_msg_table_open *in, Psdpb__TableOpen *out)
{
    if ((in->server_count > 0 && in->servers == NULL) || (in->trainer_count > 0 && in->trainers == NULL))
        return fail(w, PSD_ERR_INVAL);
    psdpb__table_open__init(out);
    out->table = in->table;
    out->name = TEXT(in->spec.name);
    out->optimizer = in->spec.optimizer;
    out->average = in->spec.average;
    out->lr = in->spec.lr;
    out->momentum = in->spec.momentum;
    out->n_servers = in->server_count;
    out->servers = numbers_of(in->servers);
    out->n_trainers = in->trainer_count;
    out->trainers = numbers_of(in->trainers);
    return write_params(w, &in->spec, out);
}

static bool write_table(writer *w, const psd_msg_table *in, Psdpb__Table *out)
{
    (void)w;
    psdpb__table__init(out);
    out->table = in->table;
    out->status = in->status;
    out->clock = in->clock;
    out->pushes = in->pushes;
    out->pulls = in->pulls;
    out->bytes = in->bytes;
    out->text = TEXT(in->text);
    return true;
}

static bool write_bye(writer *w, const psd_msg_bye *in, Psdpb__Bye *out)
{
    (void)w;
    psdpb__bye__init(out);
    out->status = in->status;
    out->text = TEXT(in->text);
    return true;
}

static bool write_stop(writer *w, const psd_msg_stop *in, Psdpb__Stop *out)
{
    (void)w;
    psdpb__stop__init(out);
    out->text = TEXT(in->text);
    return true;
}

static bool write_query(writer *w, const psd_msg_query *in, Psdpb__Query *out)
{
    (void)w;
    psdpb__query__init(out);
    out->view = TEXT(in->view);
    out->job = TEXT(in->job);
    out->after = in->after;
    out->limit = in->limit;
    return true;
}

static bool write_reals(writer *w, const psd_cell *cells, size_t stride, uint32_t rows, Psdpb__Column *out)
{
    double *reals = scratch(w, rows, sizeof *reals);
    if (reals == NULL)
        return false;
    for (uint32_t i = 0; i < rows; i++)
        reals[i] = cells[i * stride].real;
    out->n_reals = rows;
    out->reals = reals;
    return true;
}

static bool write_integers(writer *w, const psd_cell *cells, size_t stride, uint32_t rows, Psdpb__Column *out)
{
    int64_t *integers = scratch(w, rows, sizeof *integers);
    if (integers == NULL)
        return false;
    for (uint32_t i = 0; i < rows; i++)
        integers[i] = cells[i * stride].integer;
    out->n_integers = rows;
    out->integers = integers;
    return true;
}

static bool write_column(writer *w, const psd_msg_reply *in, uint32_t index, Psdpb__Column *out)
{
    const psd_column *head = &in->columns[index];
    psdpb__column__init(out);
    out->name = TEXT(head->name);
    out->type = (uint32_t)head->type;
    if (in->row_count == 0)
        return true;
    const psd_cell *cells = in->cells + index;
    switch (head->type) {
    case PSD_CELL_TEXT:
        out->n_text_bytes = in->row_count;
        return join_texts(w, &cells->text, in->column_count * sizeof *cells, in->row_count, PSD_MAX_FRAME,
                          &out->texts, &out->text_bytes);
    case PSD_CELL_REAL:
        return write_reals(w, cells, in->column_count, in->row_count, out);
    case PSD_CELL_INT:
    case PSD_CELL_BYTES:
    case PSD_CELL_NS:
    case PSD_CELL_BOOL:
        return write_integers(w, cells, in->column_count, in->row_count, out);
    }
    return fail(w, PSD_ERR_INVAL);
}

static bool write_reply(writer *w, const psd_msg_reply *in, Psdpb__Reply *out)
{
    uint32_t columns = in->column_count;
    if (columns > PSD_MAX_COLUMNS || in->row_count > PSD_MAX_FRAME)
        return fail(w, PSD_ERR_LIMIT);
    if ((columns > 0 && in->columns == NULL) || (in->row_count > 0 && (columns == 0 || in->cells == NULL)))
        return fail(w, PSD_ERR_INVAL);
    psdpb__reply__init(out);
    out->status = in->status;
    out->text = TEXT(in->text);
    out->next = in->next;
    out->rows = in->row_count;
    out->n_columns = columns;
    out->columns = scratch(w, columns, sizeof(Psdpb__Column *));
    Psdpb__Column *heads = scratch(w, columns, sizeof *heads);
    if (out->columns == NULL || heads == NULL)
        return false;
    for (uint32_t i = 0; i < columns; i++) {
        out->columns[i] = &heads[i];
        if (!write_column(w, in, i, &heads[i]))
            return false;
    }
    return true;
}

static bool write_snap_threads(writer *w, const psd_msg_snapshot *in, Psdpb__Snapshot *out)
{
    Psdpb__SnapThread *threads = scratch(w, in->thread_count, sizeof *threads);
    out->threads = scratch(w, in->thread_count, sizeof(Psdpb__SnapThread *));
    if (threads == NULL || out->threads == NULL)
        return false;
    out->n_threads = in->thread_count;
    for (uint32_t i = 0; i < in->thread_count; i++) {
        const psd_snap_thread *from = &in->threads[i];
        psdpb__snap_thread__init(&threads[i]);
        threads[i].id = from->id;
        threads[i].wait_seq = from->wait_seq;
        threads[i].waiting_ns = (uint64_t)from->waiting_ns;
        threads[i].is_blocked = from->is_blocked;
        threads[i].any = from->any;
        threads[i].is_partial = from->is_partial;
        threads[i].n_works = from->work_count;
        threads[i].works = numbers_of(from->works);
        out->threads[i] = &threads[i];
    }
    return true;
}

static bool write_snap_ops(writer *w, const psd_msg_snapshot *in, Psdpb__Snapshot *out)
{
    Psdpb__SnapOp *ops = scratch(w, in->op_count, sizeof *ops);
    out->ops = scratch(w, in->op_count, sizeof(Psdpb__SnapOp *));
    if (ops == NULL || out->ops == NULL)
        return false;
    out->n_ops = in->op_count;
    for (uint32_t i = 0; i < in->op_count; i++) {
        const psd_snap_op *from = &in->ops[i];
        psdpb__snap_op__init(&ops[i]);
        ops[i].unit = from->unit;
        ops[i].kind = from->kind;
        ops[i].dtype = from->dtype;
        ops[i].redop = from->redop;
        ops[i].is_matched = from->is_matched;
        ops[i].group = from->group;
        ops[i].peer = from->peer;
        ops[i].root = from->root;
        ops[i].tag = from->tag;
        ops[i].ordinal = from->ordinal;
        ops[i].count = from->count;
        ops[i].line = from->line;
        ops[i].other_tag = from->other_tag;
        ops[i].file = TEXT(from->file);
        ops[i].name = TEXT(from->name);
        out->ops[i] = &ops[i];
    }
    return true;
}

static bool write_snapshot(writer *w, const psd_msg_snapshot *in, Psdpb__Snapshot *out)
{
    if (in->thread_count > PSD_MAX_SNAP_THREADS || in->op_count > PSD_MAX_SNAP_OPS ||
        in->group_count > PSD_MAX_WORLD || in->peer_count > PSD_MAX_WORLD)
        return fail(w, PSD_ERR_LIMIT);
    psdpb__snapshot__init(out);
    out->round = in->round;
    out->moved = in->moved;
    out->report_only = in->report_only;
    out->units = in->unit_count;
    out->n_groups = in->group_count;
    out->groups = numbers_of(in->groups);
    out->n_started = in->group_count;
    out->started = longs_of(in->started);
    out->n_peers = in->peer_count;
    out->peers = numbers_of(in->peers);
    out->n_sent = in->peer_count;
    out->sent = longs_of(in->sent);
    out->n_received = in->peer_count;
    out->received = longs_of(in->received);
    return write_snap_threads(w, in, out) && write_snap_ops(w, in, out);
}

static bool write_incident(writer *w, const psd_msg_incident *in, Psdpb__Incident *out)
{
    if (in->group_count > PSD_INCIDENT_GROUPS)
        return fail(w, PSD_ERR_LIMIT);
    psdpb__incident__init(out);
    out->kind = in->kind;
    out->report_only = in->report_only;
    out->key = in->key;
    out->culprit = in->culprit;
    out->n_groups = in->group_count;
    out->groups = numbers_of(in->groups);
    out->text = TEXT(in->text);
    out->rows = TEXT(in->rows);
    out->more = in->more;
    out->detail = TEXT(in->detail);
    return true;
}

static bool write_lost_work(writer *w, const psd_msg_lost_work *in, Psdpb__LostWork *out)
{
    psdpb__lost_work__init(out);
    out->op = write_current_op(w, &in->op);
    out->seq = in->seq;
    out->total = in->total;
    out->is_done = in->is_done;
    return true;
}

static bool write_body(writer *w, const psd_msg *msg, body *b, Psdpb__Envelope *out)
{
    switch (msg->type) {
#define PSD_X(type_name, field, codec)                                                                       \
    case PSD_MSG_##type_name:                                                                                \
        out->body_case = PSDPB__ENVELOPE__BODY_##type_name;                                                  \
        out->field = &b->codec;                                                                              \
        return write_##codec(w, &msg->u.codec, &b->codec);
        PSD_WIRE_BODY_MAP(PSD_X)
#undef PSD_X
    case PSD_MSG_RESYNC:
        psdpb__nothing__init(&b->nothing);
        out->body_case = PSDPB__ENVELOPE__BODY_RESYNC;
        out->resync = &b->nothing;
        return true;
    case PSD_MSG_BYE_ACK:
        psdpb__nothing__init(&b->nothing);
        out->body_case = PSDPB__ENVELOPE__BODY_BYE_ACK;
        out->bye_ack = &b->nothing;
        return true;
    case PSD_MSG_CANCEL:
        psdpb__nothing__init(&b->nothing);
        out->body_case = PSDPB__ENVELOPE__BODY_CANCEL;
        out->cancel = &b->nothing;
        return true;
    case PSD_MSG_STUCK:
        psdpb__nothing__init(&b->nothing);
        out->body_case = PSDPB__ENVELOPE__BODY_STUCK;
        out->stuck = &b->nothing;
        return true;
    case PSD_MSG_NONE:
    case PSD_MSG_TYPES:
        break;
    }
    return fail(w, PSD_ERR_INVAL);
}

static psd_status pack(const Psdpb__Envelope *envelope, psd_wire_buffer *buffer)
{
    size_t bytes = psdpb__envelope__get_packed_size(envelope);
    if (bytes > PSD_MAX_FRAME)
        return PSD_ERR_LIMIT;
    if (bytes > buffer->capacity) {
        uint8_t *data = realloc(buffer->data, bytes + bytes / 2);
        if (data == NULL)
            return PSD_ERR_NOMEM;
        buffer->data = data;
        buffer->capacity = bytes + bytes / 2;
    }
    buffer->bytes = psdpb__envelope__pack(envelope, buffer->data);
    return PSD_OK;
}

psd_status psd_wire_encode(const psd_msg *msg, psd_wire_buffer *buffer)
{
    body b;
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    writer w = {.status = PSD_OK};
    psd_arena_init(&w.arena, ENCODE_BUDGET);
    buffer->bytes = 0;
    envelope.version = PSD_WIRE_VERSION;
    envelope.job = TEXT(msg->ident.job);
    envelope.name = TEXT(msg->ident.name);
    envelope.incarnation = msg->ident.incarnation;
    envelope.request = msg->request;
    psd_status status = write_body(&w, msg, &b, &envelope) ? pack(&envelope, buffer) : w.status;
    psd_arena_free(&w.arena);
    return status;
}

void psd_wire_buffer_free(psd_wire_buffer *buffer)
{
    free(buffer->data);
    *buffer = (psd_wire_buffer){0};
}
