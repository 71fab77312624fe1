/* One table on a trainer: joins its group, exchanges requests and data with the servers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/tensor.h"
#include "worker/device_memory.h"
#include "worker/tables.h"

static char *format_shape(int32_t ndim, const int64_t *shape, char *out, size_t bytes)
{
    snprintf(out, bytes, "[");
    for (int32_t d = 0; d < ndim && d < PSD_MAX_DIMS; d++)
        psd_append(out, bytes, "%s%lld", d > 0 ? ", " : "", (long long)shape[d]);
    psd_append(out, bytes, "]");
    return out;
}

static psd_status check_tensor(PSD_AT, const char *verb, const psd_ctx *ctx, const table *t, const char *what,
                               const psd_tensor *tensor, uint32_t p)
{
    char got[200], expected[200], why[PSD_MAX_TEXT];
    const table_param *param = &t->params[p];
    if (tensor->size != sizeof(*tensor))
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "%s: table \"%s\", rank %d: %s %u \"%s\" is not a tensor made by psd_tensor_1d or psd_tensor_nd",
            verb, t->name, ctx->rank, what, p, param->name);
    if (tensor->dtype != PSD_F32)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "%s: table \"%s\", rank %d: %s %u \"%s\" is %s, expected f32", verb, t->name,
                             ctx->rank, what, p, param->name, psd_dtype_name(tensor->dtype));
    if (tensor->ndim != param->ndim ||
        (param->ndim > 0 && memcmp(tensor->shape, param->shape, (size_t)param->ndim * sizeof(int64_t)) != 0))
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "%s: table \"%s\", rank %d: %s %u \"%s\" has shape %s, expected %s", verb,
                             t->name, ctx->rank, what, p, param->name,
                             format_shape(tensor->ndim, tensor->shape, got, sizeof(got)),
                             format_shape(param->ndim, param->shape, expected, sizeof(expected)));
    if (tensor->data == NULL && t->layout.counts[p] > 0)
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: table \"%s\", rank %d: %s %u \"%s\" has no data",
                             verb, t->name, ctx->rank, what, p, param->name);
    psd_status status = psd_memory_check(ctx, tensor, (int64_t)t->layout.counts[p], why, sizeof(why));
    if (status != PSD_OK)
        psd_error_set(file, line, status, "%s: table \"%s\", rank %d: %s %u \"%s\" %s", verb, t->name,
                      ctx->rank, what, p, param->name, why);
    return status;
}

psd_status table_check_tensors(PSD_AT, const char *verb, const psd_ctx *ctx, const table *t, const char *what,
                               const psd_tensor *tensors, int32_t count)
{
    if (tensors == NULL || count < 0 || (uint32_t)count != t->param_count)
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: table \"%s\", rank %d: got %d %ss, expected %u",
                             verb, t->name, ctx->rank, tensors == NULL ? 0 : count, what, t->param_count);
    for (uint32_t p = 0; p < t->param_count; p++) {
        psd_status status = check_tensor(file, line, verb, ctx, t, what, &tensors[p], p);
        if (status != PSD_OK)
            return status;
    }
    return PSD_OK;
}

/* One table's copies between its packed memory and the caller's tensors on a device. */
typedef struct device_copies {
    const char *file;
    int line;
    const char *verb;
    psd_ctx *ctx;
    const table *t;
} device_copies;

static psd_status copy_packing(void *arg, uint32_t param, size_t at, size_t packed_at, size_t count)
{
    const device_copies *d = arg;
    float *packed = (float *)d->t->packed.data + packed_at;
    return psd_memory_copy(d->file, d->line, d->verb, d->ctx, packed, d->t->from[param] + at,
                           count * sizeof(float), NULL);
}

static psd_status copy_unpacking(void *arg, uint32_t param, size_t at, size_t packed_at, size_t count)
{
    const device_copies *d = arg;
    const float *packed = (const float *)d->t->packed.data + packed_at;
    return psd_memory_copy(d->file, d->line, d->verb, d->ctx, d->t->to[param] + at, packed,
                           count * sizeof(float), NULL);
}

psd_status table_pack(PSD_AT, const char *verb, psd_ctx *ctx, table *t)
{
    device_copies copies = {file, line, verb, ctx, t};
    if (ctx->has_streams)
        return table_layout_each(&t->layout, copy_packing, &copies);
    table_layout_pack(&t->layout, t->from, t->packed.data);
    return PSD_OK;
}

psd_status table_unpack(PSD_AT, const char *verb, psd_ctx *ctx, table *t)
{
    device_copies copies = {file, line, verb, ctx, t};
    if (ctx->has_streams)
        return table_layout_each(&t->layout, copy_unpacking, &copies);
    table_layout_unpack(&t->layout, t->packed.data, t->to);
    return PSD_OK;
}

/* The data of this request to or from server s; count 0: none. */
static table_post shard_post(PSD_AT, const char *verb, table *t, uint32_t s, bool is_send)
{
    return (table_post){
        .is_send = is_send,
        .peer = (int32_t)s,
        .data = (float *)t->packed.data + t->layout.offsets[s],
        .count = table_shard_count(&t->layout, s),
        .table = t->name,
        .verb = verb,
        .file = file,
        .line = line,
    };
}

/* A table that failed halfway is of no use to anybody: all its members are told. Only a push whose answer is
 * late can be asked for again. */
static psd_status fail_table(PSD_AT, const char *verb, psd_ctx *ctx, table *t, psd_status status,
                             const char *why)
{
    char reason[PSD_MAX_TEXT];
    snprintf(reason, sizeof(reason), "table \"%s\": %s", t->name,
             why[0] != '\0' ? why : psd_status_text(status));
    bool can_push_again = status == PSD_ERR_TIMEOUT && t->push_sent;
    if (!can_push_again) {
        t->failed = status;
        psd_group_abort_at(file, line, ctx, t->handle, reason);
    }
    return psd_error_set(file, line, status, "%s: %s", verb, reason);
}

static psd_status send_data(PSD_AT, const char *verb, psd_ctx *ctx, table *t, char *why, size_t why_bytes)
{
    psd_status status = PSD_OK;
    for (uint32_t s = 0; s < t->layout.servers && status == PSD_OK; s++) {
        table_post post = shard_post(file, line, verb, t, s, true);
        if (post.count > 0)
            status = table_transfer_start(ctx, t->group, &post, &t->transfers[s]);
    }
    if (status != PSD_OK)
        ctx->ops->group_error(t->group->backend, why, why_bytes);
    psd_status waited = table_transfers_wait(ctx, t->transfers, t->layout.servers, why, why_bytes);
    return status != PSD_OK ? status : waited;
}

/* Tells every server, then sends what follows: the requests are there before the data. */
static psd_status send_request(PSD_AT, const char *verb, psd_ctx *ctx, table *t, table_kind kind,
                               bool with_data, char *why, size_t why_bytes)
{
    psd_time_ns deadline = psd_ctx_deadline(ctx, 0);
    table_msg msg = {
        .kind = kind,
        .table = t->id,
        .incarnation = ctx->ident.incarnation,
        .sequence = t->sequence,
        .clock = kind == TABLE_PUSH ? t->clock + 1 : t->clock,
    };
    for (uint32_t s = 0; s < t->layout.servers; s++) {
        msg.bytes = with_data ? table_shard_count(&t->layout, s) * sizeof(float) : 0;
        psd_status status = table_channel_send(ctx, t->servers[s], &msg, deadline);
        if (status != PSD_OK) {
            snprintf(why, why_bytes, "cannot tell server rank %u of the %s: %s", t->servers[s],
                     table_kind_name(kind), psd_status_text(status));
            return status;
        }
    }
    return with_data ? send_data(file, line, verb, ctx, t, why, why_bytes) : PSD_OK;
}

/* The refusal among the answers, or PSD_OK. */
static psd_status check_answers(const table *t, table_kind kind, char *why, size_t why_bytes)
{
    for (uint32_t s = 0; s < t->layout.servers; s++) {
        const table_msg *answer = &t->inbox.answers[s];
        if (answer->kind == TABLE_NAK) {
            snprintf(why, why_bytes, "server rank %u refused the %s: %s", t->servers[s],
                     table_kind_name(kind), answer->text);
            return answer->status;
        }
        if (answer->answers != kind) {
            snprintf(why, why_bytes, "server rank %u answered a %s to a %s", t->servers[s],
                     table_kind_name(answer->answers), table_kind_name(kind));
            return PSD_ERR_PROTOCOL;
        }
    }
    return PSD_OK;
}

/* The answers come on the channel, which has no operations: a record stands for them, so that who asks what
 * this thread waits for gets an answer. */
static uint64_t begin_record(PSD_AT, psd_ctx *ctx, const table *t, table_kind kind, int32_t server)
{
    char name[PSD_MAX_NAME];
    snprintf(name, sizeof(name), "%s of %.50s", table_kind_name(kind), t->name);
    psd_tensor answers = psd_tensor_1d(NULL, 0, PSD_U8, name);
    psd_record_start start = {
        .now = psd_now_ns(),
        .kind = PSD_OP_RECV,
        .tensor = &answers,
        .peer = server,
        .group = t->group->id,
        .epoch = t->group->epoch,
        .file = file,
        .line = line,
    };
    return psd_record_begin(&ctx->recorder, &start);
}

static psd_status await_answers(PSD_AT, psd_ctx *ctx, table *t, table_kind kind, char *why, size_t why_bytes)
{
    int32_t server = t->layout.servers == 1 ? 0 : -1;
    uint64_t record = begin_record(file, line, ctx, t, kind, server);
    int slot = psd_record_wait_begin(&ctx->recorder, &record, 1, PSD_WAIT_ALL);
    psd_status status = table_channel_await(ctx, &ctx->tables->channel, &t->inbox, t->group,
                                            psd_ctx_deadline(ctx, 0), why, why_bytes);
    psd_record_wait_end(&ctx->recorder, slot);
    psd_record_end(&ctx->recorder, record, status, server, 0);
    return status == PSD_OK ? check_answers(t, kind, why, why_bytes) : status;
}

psd_status table_request(PSD_AT, const char *verb, psd_ctx *ctx, table *t, table_kind kind, bool with_data)
{
    char why[PSD_MAX_TEXT] = "";
    table_channel_expect(&ctx->tables->channel, &t->inbox, t->sequence);
    psd_status status = send_request(file, line, verb, ctx, t, kind, with_data, why, sizeof(why));
    if (status == PSD_OK) {
        t->push_sent = kind == TABLE_PUSH;
        status = await_answers(file, line, ctx, t, kind, why, sizeof(why));
    }
    table_channel_forget(&ctx->tables->channel, &t->inbox);
    return status == PSD_OK ? PSD_OK : fail_table(file, line, verb, ctx, t, status, why);
}

psd_status table_receive(PSD_AT, const char *verb, psd_ctx *ctx, table *t)
{
    char why[PSD_MAX_TEXT] = "";
    psd_status status = PSD_OK;
    for (uint32_t s = 0; s < t->layout.servers && status == PSD_OK; s++) {
        table_post post = shard_post(file, line, verb, t, s, false);
        if (post.count > 0)
            status = table_transfer_start(ctx, t->group, &post, &t->transfers[s]);
    }
    if (status != PSD_OK)
        ctx->ops->group_error(t->group->backend, why, sizeof(why));
    psd_status waited = table_transfers_wait(ctx, t->transfers, t->layout.servers, why, sizeof(why));
    status = status != PSD_OK ? status : waited;
    return status == PSD_OK ? PSD_OK : fail_table(file, line, verb, ctx, t, status, why);
}

static void free_table(PSD_AT, psd_ctx *ctx, table *t)
{
    if (t->packed.data != NULL)
        psd_tensor_free_at(file, line, ctx, &t->packed);
    table_layout_free(&t->layout);
    free(t->params);
    free((void *)t->from);
    free(t->to);
    free(t->servers);
    free(t->inbox.answers);
    free(t->transfers);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static void describe_params(table *t, const psd_tensor *params)
{
    for (uint32_t p = 0; p < t->param_count; p++) {
        table_param *param = &t->params[p];
        if (params[p].name != NULL)
            snprintf(param->name, sizeof(param->name), "%s", params[p].name);
        else
            snprintf(param->name, sizeof(param->name), "param%u", p);
        param->ndim = params[p].ndim;
        memcpy(param->shape, params[p].shape, sizeof(param->shape));
    }
}

/* The arrays, and the memory in which shards are packed. */
static psd_status make_buffers(PSD_AT, psd_ctx *ctx, table *t)
{
    uint32_t servers = t->layout.servers;
    int64_t total = (int64_t)t->layout.total;
    t->params = calloc(t->param_count, sizeof(*t->params));
    t->from = calloc(t->param_count, sizeof(*t->from));
    t->to = calloc(t->param_count, sizeof(*t->to));
    t->servers = calloc(servers, sizeof(*t->servers));
    t->inbox.answers = calloc(servers, sizeof(*t->inbox.answers));
    t->transfers = calloc(servers, sizeof(*t->transfers));
    if (t->params == NULL || t->from == NULL || t->to == NULL || t->servers == NULL ||
        t->inbox.answers == NULL || t->transfers == NULL)
        return psd_error_set(file, line, PSD_ERR_NOMEM, "psd_table_open: out of memory for table \"%s\"",
                             t->name);
    if (total == 0)
        return PSD_OK;
    return psd_tensor_alloc_at(file, line, ctx, &total, 1, PSD_F32, t->name, &t->packed);
}

static psd_status make_table(PSD_AT, psd_ctx *ctx, const psd_msg_table_open *opened, const psd_tensor *params,
                             table **out)
{
    char why[PSD_MAX_TEXT] = "";
    table *t = calloc(1, sizeof(*t));
    if (t == NULL || pthread_mutex_init(&t->lock, NULL) != 0) {
        free(t);
        return psd_error_set(file, line, PSD_ERR_NOMEM, "psd_table_open: out of memory");
    }
    snprintf(t->name, sizeof(t->name), "%s", opened->spec.name);
    t->id = opened->table;
    t->param_count = opened->spec.param_count;
    t->is_lowest = opened->trainers[0] == (uint32_t)ctx->rank;
    t->sequence = 1;
    psd_status status = table_layout_make(opened->spec.params, t->param_count, opened->server_count,
                                          &t->layout, why, sizeof(why));
    if (status == PSD_OK)
        status = make_buffers(file, line, ctx, t);
    else
        psd_error_set(file, line, status, "psd_table_open: table \"%s\": %s", t->name, why);
    if (status != PSD_OK) {
        free_table(file, line, ctx, t);
        return status;
    }
    describe_params(t, params);
    memcpy(t->servers, opened->servers, opened->server_count * sizeof(*t->servers));
    t->inbox.table = t->id;
    t->inbox.server_count = opened->server_count;
    t->inbox.servers = t->servers;
    *out = t;
    return PSD_OK;
}

/* Tells the servers that this rank is about to join, and joins: servers first, then trainers. */
static psd_status join_group(PSD_AT, psd_ctx *ctx, table *t, const psd_msg_table_open *opened)
{
    char why[PSD_MAX_TEXT] = "";
    uint32_t count = opened->server_count + opened->trainer_count;
    psd_status status = send_request(file, line, "open", ctx, t, TABLE_JOIN, false, why, sizeof(why));
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "psd_table_open: table \"%s\": %s", t->name, why);
    uint32_t *members = calloc(count, sizeof(*members));
    if (members == NULL)
        return psd_error_set(file, line, PSD_ERR_NOMEM, "psd_table_open: out of memory for table \"%s\"",
                             t->name);
    memcpy(members, opened->servers, opened->server_count * sizeof(*members));
    memcpy(members + opened->server_count, opened->trainers, opened->trainer_count * sizeof(*members));
    psd_msg_group_open how = {.how = PSD_GROUP_NEW, .count = count, .members = members};
    status = psd_group_open(file, line, "psd_table_open", ctx, &how, &t->handle);
    free(members);
    if (status != PSD_OK)
        return status;
    status = psd_group_acquire(file, line, "psd_table_open", ctx, t->handle, &t->group);
    if (status != PSD_OK)
        psd_group_close(file, line, "psd_table_open", ctx, t->handle);
    return status;
}

/* The lowest trainer sends the initial values; everybody waits until each server has them. */
static psd_status initialise(PSD_AT, psd_ctx *ctx, table *t, const psd_tensor *params)
{
    char why[PSD_MAX_TEXT] = "";
    psd_status status = PSD_OK;
    if (t->is_lowest) {
        for (uint32_t p = 0; p < t->param_count; p++)
            t->from[p] = params[p].data;
        status = table_pack(file, line, "psd_table_open", ctx, t);
        if (status != PSD_OK)
            snprintf(why, sizeof(why), "%s", psd_last_error());
        else
            status = send_request(file, line, "init", ctx, t, TABLE_INIT, true, why, sizeof(why));
    }
    if (status == PSD_OK)
        status = await_answers(file, line, ctx, t, TABLE_INIT, why, sizeof(why));
    return status == PSD_OK ? PSD_OK : fail_table(file, line, "psd_table_open", ctx, t, status, why);
}

psd_status table_attach(PSD_AT, psd_ctx *ctx, psd_tables *tables, const psd_msg_table_open *opened,
                        const psd_tensor *params, table **out)
{
    table *t = NULL;
    psd_status status = make_table(file, line, ctx, opened, params, &t);
    if (status != PSD_OK)
        return status;
    /* From before the JOIN on: the answer to the lowest trainer's INIT may be here before this rank is. */
    table_channel_expect(&tables->channel, &t->inbox, t->sequence);
    status = join_group(file, line, ctx, t, opened);
    if (status == PSD_OK)
        status = initialise(file, line, ctx, t, params);
    table_channel_forget(&tables->channel, &t->inbox);
    if (status != PSD_OK) {
        table_detach(file, line, ctx, t);
        return status;
    }
    *out = t;
    return PSD_OK;
}

void table_detach(PSD_AT, psd_ctx *ctx, table *t)
{
    if (t == NULL)
        return;
    if (t->group != NULL) {
        psd_group_release(t->group);
        psd_group_close(file, line, "psd_table_close", ctx, t->handle);
    }
    free_table(file, line, ctx, t);
}
