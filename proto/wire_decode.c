/* Unpacked protobuf -> message structs, every field checked. One function per message, in the order of msg.h.
 */
#include <string.h>

#include "proto/wire_field.h"

static bool read_hello(psd_reader *r, const Psdpb__Hello *in, psd_msg_hello *out)
{
    if (!psd_read_text(r, "hello.role", in->role, out->role, sizeof out->role) ||
        !psd_read_text(r, "hello.host", in->host, out->host, sizeof out->host) ||
        !psd_read_text(r, "hello.address", in->address, out->address, sizeof out->address) ||
        !psd_read_text(r, "hello.backend", in->backend, out->backend, sizeof out->backend) ||
        !psd_read_range(r, "hello.rank", in->rank, -1, PSD_MAX_WORLD - 1) ||
        !psd_read_range(r, "hello.world_min", in->world_min, 1, PSD_MAX_WORLD) ||
        !psd_read_range(r, "hello.world_max", in->world_max, in->world_min, PSD_MAX_WORLD))
        return false;
    out->pid = in->pid;
    out->rank = in->rank;
    out->world_min = (int32_t)in->world_min;
    out->world_max = (int32_t)in->world_max;
    out->resume_token = in->resume_token;
    out->epoch = in->epoch;
    return true;
}

static bool read_waiting(psd_reader *r, const Psdpb__Waiting *in, psd_msg_waiting *out)
{
    if (!psd_read_range(r, "waiting.have", in->have, 0, PSD_MAX_WORLD) ||
        !psd_read_range(r, "waiting.want", in->want, 0, PSD_MAX_WORLD) ||
        !psd_read_text(r, "waiting.text", in->text, out->text, sizeof out->text))
        return false;
    out->have = (int32_t)in->have;
    out->want = (int32_t)in->want;
    return true;
}

static bool read_welcome(psd_reader *r, const Psdpb__Welcome *in, psd_msg_welcome *out)
{
    if (!psd_read_range(r, "welcome.world", in->world, 1, PSD_MAX_WORLD) ||
        !psd_read_range(r, "welcome.rank", in->rank, 0, (int64_t)in->world - 1) ||
        !psd_read_range(r, "welcome.lease_ms", in->lease_ms, 1, INT32_MAX) ||
        !psd_read_range(r, "welcome.heartbeat_ms", in->heartbeat_ms, 1, INT32_MAX))
        return false;
    out->rank = (int32_t)in->rank;
    out->world = (int32_t)in->world;
    out->epoch = in->epoch;
    out->resume_token = in->resume_token;
    out->world_group = in->world_group;
    out->lease_ms = (int32_t)in->lease_ms;
    out->heartbeat_ms = (int32_t)in->heartbeat_ms;
    return true;
}

static bool read_refuse(psd_reader *r, const Psdpb__Refuse *in, psd_msg_refuse *out)
{
    return psd_read_status(r, "refuse.status", in->status, &out->status) &&
           psd_read_text(r, "refuse.text", in->text, out->text, sizeof out->text);
}

static bool read_current_op(psd_reader *r, const Psdpb__CurrentOp *in, psd_current_op *out)
{
    if (!psd_read_range(r, "current.kind", in->kind, PSD_OP_SEND, PSD_OP_GROUP_DUP) ||
        !psd_read_range(r, "current.dtype", in->dtype, 0, PSD_F8E5M2) ||
        !psd_read_range(r, "current.redop", in->redop, 0, PSD_BXOR) ||
        !psd_read_range(r, "current.peer", in->peer, -1, PSD_MAX_WORLD - 1) ||
        !psd_read_unsigned(r, "current.count", in->count, INT64_MAX) ||
        !psd_read_unsigned(r, "current.age_ns", in->age_ns, INT64_MAX) ||
        !psd_read_text(r, "current.name", in->name, out->name, sizeof out->name) ||
        !psd_read_text(r, "current.site", in->site, out->site, sizeof out->site))
        return false;
    out->kind = (uint8_t)in->kind;
    out->dtype = (uint8_t)in->dtype;
    out->redop = (uint8_t)in->redop;
    out->peer = in->peer;
    out->group = in->group;
    out->ordinal = in->ordinal;
    out->count = (int64_t)in->count;
    out->age_ns = (int64_t)in->age_ns;
    return true;
}

static bool read_heartbeat(psd_reader *r, const Psdpb__Heartbeat *in, psd_msg_heartbeat *out)
{
    out->epoch = in->epoch;
    out->ops = in->ops;
    out->bytes_sent = in->bytes_sent;
    out->bytes_received = in->bytes_received;
    out->pool_bytes = in->pool_bytes;
    out->resident_bytes = in->resident_bytes;
    out->communicator_bytes = in->communicator_bytes;
    out->communicators = in->communicators;
    out->communicator_budget = in->communicator_budget;
    if (!psd_read_unsigned(r, "heartbeat.doing_ns", in->doing_ns, INT64_MAX))
        return false;
    out->doing = (uint8_t)(in->doing <= PSD_DOING_POLLING ? in->doing : PSD_DOING_UNKNOWN);
    out->doing_ns = (int64_t)in->doing_ns;
    if (in->current == NULL) {
        out->current.peer = -1;
        return true;
    }
    return read_current_op(r, in->current, &out->current);
}

static bool read_group_open(psd_reader *r, const Psdpb__GroupOpen *in, psd_msg_group_open *out)
{
    if (!psd_read_range(r, "group_open.how", in->how, PSD_GROUP_NEW, PSD_GROUP_DUP) ||
        !psd_read_range(r, "group_open.members", (int64_t)in->n_members, 0, PSD_MAX_WORLD) ||
        !psd_read_below(r, "group_open.members", in->members, in->n_members, PSD_MAX_WORLD))
        return false;
    out->how = (psd_group_how)in->how;
    out->parent = in->parent;
    out->color = in->color;
    out->key = in->key;
    out->count = (uint32_t)in->n_members;
    out->members = in->members;
    return true;
}

static bool read_token(psd_reader *r, const char *field, ProtobufCBinaryData in, uint8_t *token,
                       uint32_t *bytes)
{
    if (!psd_read_range(r, field, (int64_t)in.len, 0, PSD_MAX_TOKEN))
        return false;
    if (in.len > 0)
        memcpy(token, in.data, in.len);
    *bytes = (uint32_t)in.len;
    return true;
}

static bool read_group_token(psd_reader *r, const Psdpb__GroupToken *in, psd_msg_group_token *out)
{
    out->group = in->group;
    return read_token(r, "group_token.token", in->token, out->token, &out->bytes);
}

static bool read_group_opened(psd_reader *r, const Psdpb__GroupOpened *in, psd_msg_group_opened *out)
{
    if (!psd_read_range(r, "group_opened.count", in->count, 0, PSD_MAX_WORLD) ||
        (in->n_members > 0 && !psd_read_same(r, "group_opened.members", in->n_members, in->count)) ||
        !psd_read_below(r, "group_opened.members", in->members, in->n_members, PSD_MAX_WORLD) ||
        !psd_read_same(r, "group_opened.addresses", in->n_address_bytes, in->count) ||
        !psd_read_texts(r, "group_opened.addresses", in->addresses, in->address_bytes, in->n_address_bytes,
                        PSD_MAX_ADDR, &out->addresses) ||
        !read_token(r, "group_opened.token", in->token, out->token, &out->token_bytes))
        return false;
    out->group = in->group;
    out->epoch = in->epoch;
    out->count = in->count;
    out->members = in->n_members > 0 ? in->members : NULL;
    return true;
}

static bool read_group(psd_reader *r, const Psdpb__Group *in, psd_msg_group *out)
{
    if (!psd_read_unsigned(r, "group.warmup_ns", in->warmup_ns, INT64_MAX))
        return false;
    out->group = in->group;
    out->warmup_ns = (int64_t)in->warmup_ns;
    return true;
}

static bool read_side(psd_reader *r, const Psdpb__Side *in, psd_op_side *out)
{
    if (!psd_read_range(r, "abort.sides.rank", in->rank, 0, PSD_MAX_WORLD - 1) ||
        !psd_read_range(r, "abort.sides.kind", in->kind, PSD_OP_SEND, PSD_OP_BARRIER) ||
        (in->kind == PSD_OP_BATCH && !psd_read_fail(r, PSD_ERR_FORMAT, "abort.sides.kind", "is batch")) ||
        !psd_read_range(r, "abort.sides.dtype", in->dtype, 0, PSD_F8E5M2) ||
        !psd_read_range(r, "abort.sides.redop", in->redop, 0, PSD_BXOR) ||
        !psd_read_range(r, "abort.sides.peer", in->peer, -1, PSD_MAX_WORLD - 1) ||
        !psd_read_unsigned(r, "abort.sides.count", in->count, INT64_MAX) ||
        !psd_read_text(r, "abort.sides.name", in->name, out->name, sizeof out->name) ||
        !psd_read_text(r, "abort.sides.site", in->site, out->site, sizeof out->site))
        return false;
    out->rank = in->rank;
    out->kind = (uint8_t)in->kind;
    out->dtype = (uint8_t)in->dtype;
    out->redop = (uint8_t)in->redop;
    out->peer = in->peer;
    out->root = in->root;
    out->ordinal = in->ordinal;
    out->count = (int64_t)in->count;
    return true;
}

static bool read_abort(psd_reader *r, const Psdpb__Abort *in, psd_msg_abort *out)
{
    if (!psd_read_status(r, "abort.status", in->status, &out->status) ||
        !psd_read_range(r, "abort.culprit", in->culprit, -1, PSD_MAX_WORLD - 1) ||
        !psd_read_range(r, "abort.sides", (int64_t)in->n_sides, 0, PSD_ABORT_SIDES) ||
        !psd_read_text(r, "abort.text", in->text, out->text, sizeof out->text))
        return false;
    for (size_t i = 0; i < in->n_sides; i++)
        if (!read_side(r, in->sides[i], &out->sides[i]))
            return false;
    out->side_count = (uint32_t)in->n_sides;
    out->group = in->group;
    out->epoch = in->epoch;
    out->culprit = in->culprit;
    return true;
}

/* The bytes of count elements fit into int64_t. */
static bool read_dtype_count(psd_reader *r, const char *dtype_field, uint32_t dtype, const char *count_field,
                             uint64_t count)
{
    return psd_read_range(r, dtype_field, dtype, PSD_I8, PSD_F8E5M2) &&
           psd_read_unsigned(r, count_field, count, INT64_MAX / 8);
}

static bool read_plan_open(psd_reader *r, const Psdpb__PlanOpen *in, psd_msg_plan_open *out)
{
    if (!psd_read_range(r, "plan_open.kind", in->kind, PSD_PLAN_RING_SHIFT, PSD_PLAN_RING_SHIFT) ||
        !psd_read_range(r, "plan_open.ranks", in->ranks, 1, PSD_MAX_WORLD) ||
        !read_dtype_count(r, "plan_open.dtype", in->dtype, "plan_open.count", in->count))
        return false;
    out->inputs = (psd_plan_inputs){
        .kind = (psd_plan_kind)in->kind,
        .group = in->group,
        .ranks = in->ranks,
        .dtype = (psd_dtype)in->dtype,
        .count = (int64_t)in->count,
        .shift = in->shift,
    };
    return true;
}

static bool read_step_columns(psd_reader *r, const Psdpb__PlanSteps *in)
{
    size_t count = in->n_round;
    if ((count > 0 && !psd_read_range(r, "plan_steps.rounds", in->rounds, 1, UINT32_MAX)) ||
        !psd_read_below(r, "plan_steps.round", in->round, count, in->rounds) ||
        !psd_read_same(r, "plan_steps.peer", in->n_peer, count) ||
        !psd_read_below(r, "plan_steps.peer", in->peer, count, PSD_MAX_WORLD) ||
        !psd_read_same(r, "plan_steps.is_send", in->is_send.len, count) ||
        !psd_read_same(r, "plan_steps.offset", in->n_offset, count) ||
        !psd_read_same(r, "plan_steps.bytes", in->n_bytes, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!psd_read_unsigned(r, "plan_steps.is_send", in->is_send.data[i], 1) ||
            !psd_read_unsigned(r, "plan_steps.offset", in->offset[i], INT64_MAX) ||
            !psd_read_unsigned(r, "plan_steps.bytes", in->bytes[i], INT64_MAX - in->offset[i]))
            return false;
    }
    return true;
}

static bool read_plan_steps(psd_reader *r, const Psdpb__PlanSteps *in, psd_msg_plan_steps *out)
{
    if (!psd_read_range(r, "plan_steps.chunks", in->chunks, 1, UINT32_MAX) ||
        !psd_read_range(r, "plan_steps.chunk", in->chunk, 0, (int64_t)in->chunks - 1) ||
        !read_step_columns(r, in))
        return false;
    out->plan = in->plan;
    out->hash = in->hash;
    out->chunk = in->chunk;
    out->chunks = in->chunks;
    out->rounds = in->rounds;
    out->count = (uint32_t)in->n_round;
    out->round = in->round;
    out->peer = in->peer;
    out->is_send = in->is_send.data;
    out->offset = in->offset;
    out->bytes = in->bytes;
    return true;
}

static bool read_plan(psd_reader *r, const Psdpb__Plan *in, psd_msg_plan *out)
{
    if (!psd_read_unsigned(r, "plan.last_run_ns", in->last_run_ns, INT64_MAX))
        return false;
    out->plan = in->plan;
    out->chunk = in->chunk;
    out->hash = in->hash;
    out->runs = in->runs;
    out->bytes = in->bytes;
    out->last_run_ns = (int64_t)in->last_run_ns;
    return true;
}

static bool read_params(psd_reader *r, const Psdpb__TableOpen *in, psd_table_spec *out)
{
    size_t count = in->n_param_counts;
    if (!psd_read_range(r, "table_open.params", (int64_t)count, 0, PSD_MAX_PARAMS) ||
        !psd_read_same(r, "table_open.param_dtypes", in->param_dtypes.len, count) ||
        !psd_read_same(r, "table_open.param_names", in->n_param_name_bytes, count))
        return false;
    psd_param *params = psd_read_array(r, "table_open.params", count, sizeof *params);
    if (params == NULL)
        return false;
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = in->param_name_bytes[i];
        if (bytes > in->param_names.len - used)
            return psd_read_fail(r, PSD_ERR_FORMAT, "table_open.param_names",
                                 "is shorter than its lengths say");
        ProtobufCBinaryData name = {.len = bytes, .data = bytes > 0 ? in->param_names.data + used : NULL};
        if (!psd_read_text(r, "table_open.param_names", name, params[i].name, sizeof params[i].name) ||
            !read_dtype_count(r, "table_open.param_dtypes", in->param_dtypes.data[i],
                              "table_open.param_counts", in->param_counts[i]))
            return false;
        params[i].dtype = in->param_dtypes.data[i];
        params[i].count = (int64_t)in->param_counts[i];
        used += bytes;
    }
    out->param_count = (uint32_t)count;
    out->params = params;
    return psd_read_same(r, "table_open.param_names bytes", in->param_names.len, used);
}

static bool read_table_open(psd_reader *r, const Psdpb__TableOpen *in, psd_msg_table_open *out)
{
    if (!psd_read_text(r, "table_open.name", in->name, out->spec.name, sizeof out->spec.name) ||
        !psd_read_range(r, "table_open.optimizer", in->optimizer, 0, UINT8_MAX) ||
        !psd_read_finite(r, "table_open.lr", in->lr, &out->spec.lr) ||
        !psd_read_finite(r, "table_open.momentum", in->momentum, &out->spec.momentum) ||
        !read_params(r, in, &out->spec) ||
        !psd_read_range(r, "table_open.servers", (int64_t)in->n_servers, 0, PSD_MAX_WORLD) ||
        !psd_read_below(r, "table_open.servers", in->servers, in->n_servers, PSD_MAX_WORLD) ||
        !psd_read_range(r, "table_open.trainers", (int64_t)in->n_trainers, 0, PSD_MAX_WORLD) ||
        !psd_read_below(r, "table_open.trainers", in->trainers, in->n_trainers, PSD_MAX_WORLD))
        return false;
    out->table = in->table;
    out->spec.optimizer = (uint8_t)in->optimizer;
    out->spec.average = in->average;
    out->server_count = (uint32_t)in->n_servers;
    out->servers = in->servers;
    out->trainer_count = (uint32_t)in->n_trainers;
    out->trainers = in->trainers;
    return true;
}

static bool read_table(psd_reader *r, const Psdpb__Table *in, psd_msg_table *out)
{
    if (!psd_read_status(r, "table.status", in->status, &out->status) ||
        !psd_read_text(r, "table.text", in->text, out->text, sizeof out->text))
        return false;
    out->table = in->table;
    out->clock = in->clock;
    out->pushes = in->pushes;
    out->pulls = in->pulls;
    out->bytes = in->bytes;
    return true;
}

static bool read_bye(psd_reader *r, const Psdpb__Bye *in, psd_msg_bye *out)
{
    return psd_read_status(r, "bye.status", in->status, &out->status) &&
           psd_read_text(r, "bye.text", in->text, out->text, sizeof out->text);
}

static bool read_stop(psd_reader *r, const Psdpb__Stop *in, psd_msg_stop *out)
{
    return psd_read_text(r, "stop.text", in->text, out->text, sizeof out->text);
}

static bool read_query(psd_reader *r, const Psdpb__Query *in, psd_msg_query *out)
{
    if (!psd_read_text(r, "query.view", in->view, out->view, sizeof out->view) ||
        !psd_read_text(r, "query.job", in->job, out->job, sizeof out->job))
        return false;
    out->after = in->after;
    out->limit = in->limit;
    return true;
}

/* Writes one column into the row-major cells, whose rows are `stride` cells long. */
static bool read_column_cells(psd_reader *r, const Psdpb__Column *in, uint32_t rows, psd_cell *cells,
                              size_t stride)
{
    if (in->type == PSD_CELL_TEXT) {
        const char *const *texts;
        if (!psd_read_same(r, "reply.columns.texts", in->n_text_bytes, rows) ||
            !psd_read_texts(r, "reply.columns.texts", in->texts, in->text_bytes, rows, PSD_MAX_FRAME, &texts))
            return false;
        for (uint32_t i = 0; i < rows; i++)
            cells[i * stride].text = texts[i];
    } else if (in->type == PSD_CELL_REAL) {
        if (!psd_read_same(r, "reply.columns.reals", in->n_reals, rows))
            return false;
        for (uint32_t i = 0; i < rows; i++)
            cells[i * stride].real = in->reals[i];
    } else {
        if (!psd_read_same(r, "reply.columns.integers", in->n_integers, rows))
            return false;
        for (uint32_t i = 0; i < rows; i++)
            cells[i * stride].integer = in->integers[i];
    }
    return true;
}

static bool read_reply(psd_reader *r, const Psdpb__Reply *in, psd_msg_reply *out)
{
    size_t columns = in->n_columns;
    if (!psd_read_status(r, "reply.status", in->status, &out->status) ||
        !psd_read_text(r, "reply.text", in->text, out->text, sizeof out->text) ||
        !psd_read_range(r, "reply.columns", (int64_t)columns, 0, PSD_MAX_COLUMNS) ||
        !psd_read_range(r, "reply.rows", in->rows, 0, columns > 0 ? PSD_MAX_FRAME : 0))
        return false;
    psd_column *heads = psd_read_array(r, "reply.columns", columns, sizeof *heads);
    if (heads == NULL)
        return false;
    psd_cell *cells = psd_read_array(r, "reply.columns", columns * in->rows, sizeof *cells);
    if (cells == NULL)
        return false;
    for (size_t i = 0; i < columns; i++) {
        const Psdpb__Column *column = in->columns[i];
        if (!psd_read_text(r, "reply.columns.name", column->name, heads[i].name, sizeof heads[i].name) ||
            !psd_read_range(r, "reply.columns.type", column->type, PSD_CELL_TEXT, PSD_CELL_BOOL) ||
            !read_column_cells(r, column, in->rows, cells + i, columns))
            return false;
        heads[i].type = (psd_cell_type)column->type;
    }
    out->next = in->next;
    out->column_count = (uint32_t)columns;
    out->columns = heads;
    out->row_count = in->rows;
    out->cells = cells;
    return true;
}

static bool read_snap_thread(psd_reader *r, const Psdpb__SnapThread *in, uint32_t units, psd_snap_thread *out)
{
    if (!psd_read_unsigned(r, "snapshot.threads.waiting_ns", in->waiting_ns, INT64_MAX) ||
        !psd_read_below(r, "snapshot.threads.works", in->works, in->n_works, units))
        return false;
    out->id = in->id;
    out->wait_seq = in->wait_seq;
    out->waiting_ns = (int64_t)in->waiting_ns;
    out->is_blocked = in->is_blocked;
    out->any = in->any;
    out->is_partial = in->is_partial;
    out->work_count = (uint32_t)in->n_works;
    out->works = in->works;
    return true;
}

static bool read_snap_op(psd_reader *r, const Psdpb__SnapOp *in, psd_snap_op *out)
{
    if (!psd_read_range(r, "snapshot.ops.kind", in->kind, PSD_OP_SEND, PSD_OP_GROUP_DUP) ||
        (in->kind == PSD_OP_BATCH && !psd_read_fail(r, PSD_ERR_FORMAT, "snapshot.ops.kind", "is batch")) ||
        !psd_read_range(r, "snapshot.ops.dtype", in->dtype, 0, PSD_F8E5M2) ||
        !psd_read_range(r, "snapshot.ops.redop", in->redop, 0, PSD_BXOR) ||
        !psd_read_range(r, "snapshot.ops.peer", in->peer, -1, PSD_MAX_WORLD - 1) ||
        !psd_read_range(r, "snapshot.ops.count", in->count, 0, INT64_MAX) ||
        !psd_read_range(r, "snapshot.ops.tag", in->tag, -1, INT32_MAX) ||
        !psd_read_range(r, "snapshot.ops.other_tag", in->other_tag, 0, INT32_MAX) ||
        !psd_read_text(r, "snapshot.ops.file", in->file, out->file, sizeof out->file) ||
        !psd_read_text(r, "snapshot.ops.name", in->name, out->name, sizeof out->name))
        return false;
    out->unit = in->unit;
    out->kind = (uint8_t)in->kind;
    out->dtype = (uint8_t)in->dtype;
    out->redop = (uint8_t)in->redop;
    out->is_matched = in->is_matched;
    out->group = in->group;
    out->peer = in->peer;
    out->root = in->root;
    out->tag = in->tag;
    out->ordinal = in->ordinal;
    out->count = in->count;
    out->line = in->line;
    out->other_tag = in->other_tag;
    return true;
}

static bool read_snap_lists(psd_reader *r, const Psdpb__Snapshot *in, psd_msg_snapshot *out)
{
    psd_snap_thread *threads = psd_read_array(r, "snapshot.threads", in->n_threads, sizeof *threads);
    psd_snap_op *ops = psd_read_array(r, "snapshot.ops", in->n_ops, sizeof *ops);
    if (threads == NULL || ops == NULL)
        return false;
    memset(threads, 0, in->n_threads * sizeof *threads);
    memset(ops, 0, in->n_ops * sizeof *ops);
    for (size_t i = 0; i < in->n_threads; i++)
        if (!read_snap_thread(r, in->threads[i], in->units, &threads[i]))
            return false;
    uint32_t next = 0; /* unit */
    for (size_t i = 0; i < in->n_ops; i++) {
        if (!read_snap_op(r, in->ops[i], &ops[i]) ||
            !psd_read_range(r, "snapshot.ops.unit", ops[i].unit, next > 0 ? next - 1 : 0, next))
            return false;
        next = ops[i].unit + 1;
    }
    if (!psd_read_same(r, "snapshot.units", in->units, next))
        return false;
    out->thread_count = (uint32_t)in->n_threads;
    out->threads = threads;
    out->unit_count = next;
    out->op_count = (uint32_t)in->n_ops;
    out->ops = ops;
    return true;
}

static bool read_snapshot(psd_reader *r, const Psdpb__Snapshot *in, psd_msg_snapshot *out)
{
    if (!psd_read_range(r, "snapshot.threads", (int64_t)in->n_threads, 0, PSD_MAX_SNAP_THREADS) ||
        !psd_read_range(r, "snapshot.ops", (int64_t)in->n_ops, 0, PSD_MAX_SNAP_OPS) ||
        !psd_read_same(r, "snapshot.started", in->n_started, in->n_groups) ||
        !psd_read_below(r, "snapshot.peers", in->peers, in->n_peers, PSD_MAX_WORLD) ||
        !psd_read_same(r, "snapshot.sent", in->n_sent, in->n_peers) ||
        !psd_read_same(r, "snapshot.received", in->n_received, in->n_peers))
        return false;
    for (size_t i = 1; i < in->n_peers; i++)
        if (in->peers[i - 1] >= in->peers[i])
            return psd_read_fail(r, PSD_ERR_FORMAT, "snapshot.peers", "do not ascend");
    out->round = in->round;
    out->moved = in->moved;
    out->report_only = in->report_only;
    out->group_count = (uint32_t)in->n_groups;
    out->groups = in->groups;
    out->started = in->started;
    out->peer_count = (uint32_t)in->n_peers;
    out->peers = in->peers;
    out->sent = in->sent;
    out->received = in->received;
    return read_snap_lists(r, in, out);
}

static bool read_incident(psd_reader *r, const Psdpb__Incident *in, psd_msg_incident *out)
{
    if (!psd_read_range(r, "incident.kind", in->kind, 0, UINT8_MAX) ||
        !psd_read_range(r, "incident.culprit", in->culprit, -1, PSD_MAX_WORLD - 1) ||
        !psd_read_range(r, "incident.groups", (int64_t)in->n_groups, 0, PSD_INCIDENT_GROUPS) ||
        !psd_read_text(r, "incident.text", in->text, out->text, sizeof out->text) ||
        !psd_read_text(r, "incident.rows", in->rows, out->rows, sizeof out->rows) ||
        !psd_read_text(r, "incident.detail", in->detail, out->detail, sizeof out->detail))
        return false;
    out->more = in->more;
    out->kind = in->kind;
    out->report_only = in->report_only;
    out->key = in->key;
    out->culprit = in->culprit;
    out->group_count = (uint32_t)in->n_groups;
    for (size_t i = 0; i < in->n_groups; i++)
        out->groups[i] = in->groups[i];
    return true;
}

static bool read_lost_work(psd_reader *r, const Psdpb__LostWork *in, psd_msg_lost_work *out)
{
    if (in->op == NULL)
        return psd_read_fail(r, PSD_ERR_FORMAT, "lost_work.op", "is missing");
    out->seq = in->seq;
    out->total = in->total;
    out->is_done = in->is_done;
    return read_current_op(r, in->op, &out->op);
}

static bool read_body(psd_reader *r, const Psdpb__Envelope *in, psd_msg *out)
{
    switch (in->body_case) {
#define PSD_X(type_name, field, codec)                                                                       \
    case PSDPB__ENVELOPE__BODY_##type_name:                                                                  \
        out->type = PSD_MSG_##type_name;                                                                     \
        return read_##codec(r, in->field, &out->u.codec);
        PSD_WIRE_BODY_MAP(PSD_X)
#undef PSD_X
    case PSDPB__ENVELOPE__BODY_RESYNC:
        out->type = PSD_MSG_RESYNC;
        return true;
    case PSDPB__ENVELOPE__BODY_BYE_ACK:
        out->type = PSD_MSG_BYE_ACK;
        return true;
    case PSDPB__ENVELOPE__BODY_CANCEL:
        out->type = PSD_MSG_CANCEL;
        return true;
    case PSDPB__ENVELOPE__BODY_STUCK:
        out->type = PSD_MSG_STUCK;
        return true;
    default:
        return psd_read_fail(r, PSD_ERR_FORMAT, "body", "is none that this version knows");
    }
}

psd_status psd_wire_read(const Psdpb__Envelope *envelope, psd_arena *arena, psd_msg *msg, char *why,
                         size_t why_bytes)
{
    psd_reader reader = {.arena = arena, .status = PSD_OK, .why = why, .why_bytes = why_bytes};
    if (!psd_read_text(&reader, "job", envelope->job, msg->ident.job, sizeof msg->ident.job) ||
        !psd_read_text(&reader, "name", envelope->name, msg->ident.name, sizeof msg->ident.name) ||
        !read_body(&reader, envelope, msg))
        return reader.status;
    msg->ident.incarnation = envelope->incarnation;
    msg->request = envelope->request;
    return PSD_OK;
}
