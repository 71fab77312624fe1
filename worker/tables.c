/* The public calls of tables, on trainers. */
#include "worker/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/log.h"
#include "common/tensor.h"
#include "worker/device_memory.h"
#include "worker/optim.h"

void psd_table_config_init(psd_table_config *config)
{
    if (config == NULL)
        return;
    *config = (psd_table_config){
        .size = sizeof(*config),
        .optimizer = PSD_OPT_SGD,
        .lr = 0.01,
        .momentum = 0,
        .average = true,
    };
}

static psd_tables *make_tables(void)
{
    psd_tables *tables = calloc(1, sizeof(*tables));
    if (tables == NULL || psd_handles_init(&tables->handles) != PSD_OK)
        goto free_tables;
    if (table_channel_init(&tables->channel) != PSD_OK)
        goto destroy_handles;
    if (pthread_mutex_init(&tables->opening, NULL) != 0)
        goto destroy_channel;
    return tables;
destroy_channel:
    table_channel_destroy(&tables->channel);
destroy_handles:
    psd_handles_destroy(&tables->handles);
free_tables:
    free(tables);
    return NULL;
}

/* The context's tables, made at the first use. */
static psd_status get_tables(psd_ctx *ctx, psd_tables **out)
{
    pthread_mutex_lock(&ctx->parts_lock);
    if (ctx->tables == NULL)
        ctx->tables = make_tables();
    psd_tables *tables = ctx->tables;
    pthread_mutex_unlock(&ctx->parts_lock);
    if (tables == NULL)
        return PSD_ERR_NOMEM;
    *out = tables;
    return PSD_OK;
}

static void tell_close(psd_ctx *ctx, uint32_t id)
{
    psd_msg msg = {.type = PSD_MSG_TABLE_CLOSE, .u.table = {.table = id}};
    psd_agent_tell(ctx->agent, &msg);
}

void psd_tables_release(psd_ctx *ctx)
{
    psd_tables *tables = ctx->tables;
    if (tables == NULL)
        return;
    for (table *t = psd_handles_pop(&tables->handles); t != NULL; t = psd_handles_pop(&tables->handles)) {
        psd_log("tables", PSD_LOG_WARN, "table \"%s\" was never closed", t->name);
        tell_close(ctx, t->id);
        table_detach(NULL, 0, ctx, t);
    }
    pthread_mutex_destroy(&tables->opening);
    table_channel_destroy(&tables->channel);
    psd_handles_destroy(&tables->handles);
    free(tables);
    ctx->tables = NULL;
}

static psd_status check_param(PSD_AT, const psd_ctx *ctx, const char *name, int32_t p,
                              const psd_tensor *param)
{
    char why[PSD_MAX_TEXT];
    const char *called = param->name != NULL ? param->name : "";
    if (param->size != sizeof(*param) || psd_tensor_count(param) < 0)
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_table_open: table \"%s\", rank %d: parameter %d \"%s\" is not a tensor with a valid shape",
            name, ctx->rank, p, called);
    if (param->dtype != PSD_F32)
        return psd_error_set(
            file, line, PSD_ERR_UNSUPPORTED,
            "psd_table_open: table \"%s\", rank %d: parameter %d \"%s\" is %s; tables hold f32 "
            "parameters",
            name, ctx->rank, p, called, psd_dtype_name(param->dtype));
    if (param->data == NULL && psd_tensor_count(param) > 0)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "psd_table_open: table \"%s\", rank %d: parameter %d \"%s\" has no data", name,
                             ctx->rank, p, called);
    if (called[0] == '\0')
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_table_open: table \"%s\", rank %d: parameter %d has no name; name each in its "
            "tensor",
            name, ctx->rank, p);
    if (strlen(called) >= PSD_MAX_NAME || !psd_utf8_valid(called, strlen(called)))
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "psd_table_open: table \"%s\", rank %d: the name of parameter %d is not UTF-8 "
                             "of at most %d bytes",
                             name, ctx->rank, p, PSD_MAX_NAME - 1);
    psd_status status = psd_memory_check(ctx, param, psd_tensor_count(param), why, sizeof(why));
    if (status != PSD_OK)
        psd_error_set(file, line, status, "psd_table_open: table \"%s\", rank %d: parameter %d \"%s\" %s",
                      name, ctx->rank, p, called, why);
    return status;
}

static int by_name(const void *a, const void *b)
{
    const char *const *left = a, *const *right = b;
    return strcmp(*left, *right);
}

/* Names are how people tell parameters apart, here and in checkpoints. */
static psd_status check_names_differ(PSD_AT, const psd_ctx *ctx, const char *name, const psd_tensor *params,
                                     int32_t count)
{
    psd_status status = PSD_OK;
    const char **sorted = malloc((size_t)count * sizeof(*sorted));
    if (sorted == NULL)
        return psd_error_set(file, line, PSD_ERR_NOMEM, "psd_table_open: out of memory for table \"%s\"",
                             name);
    for (int32_t p = 0; p < count; p++)
        sorted[p] = params[p].name;
    qsort(sorted, (size_t)count, sizeof(*sorted), by_name);
    for (int32_t p = 1; p < count && status == PSD_OK; p++)
        if (by_name(&sorted[p - 1], &sorted[p]) == 0)
            status = psd_error_set(file, line, PSD_ERR_INVAL,
                                   "psd_table_open: table \"%s\", rank %d: two parameters are named \"%s\"",
                                   name, ctx->rank, sorted[p]);
    free(sorted);
    return status;
}

static psd_status check_open(PSD_AT, const psd_ctx *ctx, const char *name, const psd_tensor *params,
                             int32_t count, const psd_table_config *config, const psd_table *out)
{
    char why[256];
    optim o;
    if (name == NULL || !psd_name_valid(name))
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_table_open: the table's name is \"%s\"; use 1 to %d of letters, digits, . _ and -",
            name != NULL ? name : "(null)", PSD_MAX_NAME - 1);
    if (params == NULL || out == NULL)
        return psd_error_set(file, line, PSD_ERR_INVAL, "psd_table_open: table \"%s\": %s is NULL", name,
                             params == NULL ? "params" : "out");
    if (count < 1 || count > PSD_MAX_PARAMS)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "psd_table_open: table \"%s\": count is %d; a table has 1 to %d parameters",
                             name, count, PSD_MAX_PARAMS);
    if (config->size != sizeof(*config))
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_table_open: table \"%s\": config.size is %zu; call psd_table_config_init first", name,
            config->size);
    if (!optim_make((int)config->optimizer, config->lr, config->momentum, config->average, &o, why,
                    sizeof(why)))
        return psd_error_set(file, line, PSD_ERR_INVAL, "psd_table_open: table \"%s\": %s", name, why);
    if ((ctx->ops->caps & PSD_CAP_CHANNEL) == 0)
        return psd_error_set(
            file, line, PSD_ERR_UNSUPPORTED,
            "psd_table_open: table \"%s\": the %s backend has no small-message channel; use --backend host",
            name, ctx->ops->name);
    for (int32_t p = 0; p < count; p++) {
        psd_status status = check_param(file, line, ctx, name, p, &params[p]);
        if (status != PSD_OK)
            return status;
    }
    return check_names_differ(file, line, ctx, name, params, count);
}

/* What psd answers is checked too: ranks ascending and of this world, this rank a trainer, nobody both. */
static bool opened_is_valid(const psd_ctx *ctx, const psd_msg_table_open *opened)
{
    uint32_t t = 0;
    bool mine = false;
    if (opened->server_count == 0 || opened->trainer_count == 0 ||
        (int64_t)opened->server_count + opened->trainer_count > ctx->world)
        return false;
    for (uint32_t i = 0; i < opened->trainer_count; i++) {
        mine = mine || opened->trainers[i] == (uint32_t)ctx->rank;
        if (opened->trainers[i] >= (uint32_t)ctx->world ||
            (i > 0 && opened->trainers[i] <= opened->trainers[i - 1]))
            return false;
    }
    for (uint32_t s = 0; s < opened->server_count; s++) {
        uint32_t rank = opened->servers[s];
        while (t < opened->trainer_count && opened->trainers[t] < rank)
            t++;
        if (rank >= (uint32_t)ctx->world || (s > 0 && rank <= opened->servers[s - 1]) ||
            (t < opened->trainer_count && opened->trainers[t] == rank))
            return false;
    }
    return mine;
}

/* Asks psd, which asks the servers to make room; then `box` holds who takes part. */
static psd_status ask_open(PSD_AT, psd_ctx *ctx, const psd_table_spec *spec, psd_msg_box **box)
{
    char why[PSD_MAX_TEXT] = "";
    psd_msg_box *reply = NULL;
    psd_msg msg = {.type = PSD_MSG_TABLE_OPEN, .u.table_open = {.spec = *spec}};
    psd_status status = psd_agent_call(ctx->agent, &msg, psd_ctx_deadline(ctx, 0), &reply, why, sizeof(why));
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "psd_table_open: table \"%s\": %s", spec->name, why);
    if (reply->msg.type != PSD_MSG_TABLE_OPENED || !opened_is_valid(ctx, &reply->msg.u.table_open)) {
        psd_msg_box_free(reply);
        return psd_error_set(
            file, line, PSD_ERR_PROTOCOL,
            "psd_table_open: table \"%s\": psd answered with %s, or with ranks that cannot be; "
            "are psd and this library of one version?",
            spec->name, psd_msg_name(reply->msg.type));
    }
    *box = reply;
    return PSD_OK;
}

static psd_status open_table(PSD_AT, psd_ctx *ctx, psd_tables *tables, const psd_table_spec *spec,
                             const psd_tensor *params, psd_table *out)
{
    psd_msg_box *box = NULL;
    table *t = NULL;
    psd_table handle;
    psd_status status = ask_open(file, line, ctx, spec, &box);
    if (status != PSD_OK)
        return status;
    uint32_t id = box->msg.u.table_open.table;
    psd_msg_table_open opened = box->msg.u.table_open;
    opened.spec = *spec; /* the one this rank means, whatever was repeated */
    status = table_attach(file, line, ctx, tables, &opened, params, &t);
    psd_msg_box_free(box);
    if (status != PSD_OK)
        goto close;
    status = psd_handles_add(&tables->handles, t, &handle.index, &handle.generation);
    if (status != PSD_OK) {
        psd_error_set(file, line, status, "psd_table_open: out of memory for table \"%s\"", spec->name);
        table_detach(file, line, ctx, t);
        goto close;
    }
    *out = handle;
    return PSD_OK;
close:
    tell_close(ctx, id);
    return status;
}

static void fill_spec(psd_table_spec *spec, psd_param *list, const psd_tensor *params)
{
    for (uint32_t p = 0; p < spec->param_count; p++) {
        snprintf(list[p].name, sizeof(list[p].name), "%s", params[p].name);
        list[p].dtype = PSD_F32;
        list[p].count = psd_tensor_count(&params[p]);
    }
    spec->params = list;
}

psd_status psd_table_open_at(PSD_AT, psd_ctx *ctx, const char *name, const psd_tensor *params, int32_t count,
                             const psd_table_config *config, psd_table *out)
{
    psd_table_config defaults;
    psd_tables *tables = NULL;
    psd_table_config_init(&defaults);
    config = config != NULL ? config : &defaults;
    psd_status status = psd_ctx_live(file, line, "psd_table_open", ctx);
    if (status == PSD_OK)
        status = check_open(file, line, ctx, name, params, count, config, out);
    if (status != PSD_OK)
        return status;
    psd_table_spec spec = {
        .optimizer = (uint8_t)config->optimizer,
        .average = config->average,
        .lr = config->lr,
        .momentum = config->momentum,
        .param_count = (uint32_t)count,
    };
    snprintf(spec.name, sizeof(spec.name), "%s", name);
    psd_param *list = calloc((size_t)count, sizeof(*list));
    if (list == NULL || get_tables(ctx, &tables) != PSD_OK) {
        free(list);
        return psd_error_set(file, line, PSD_ERR_NOMEM, "psd_table_open: out of memory for table \"%s\"",
                             name);
    }
    fill_spec(&spec, list, params);
    pthread_mutex_lock(&tables->opening);
    status = open_table(file, line, ctx, tables, &spec, params, out);
    pthread_mutex_unlock(&tables->opening);
    free(list);
    return status;
}

/* The table of a handle, locked for this call. */
static psd_status enter(PSD_AT, const char *verb, psd_ctx *ctx, psd_table handle, table **out)
{
    psd_status status = psd_ctx_live(file, line, verb, ctx);
    if (status != PSD_OK)
        return status;
    table *t = NULL;
    if (ctx->tables != NULL)
        t = psd_handles_acquire(&ctx->tables->handles, handle.index, handle.generation);
    if (t == NULL)
        return psd_error_set(file, line, PSD_ERR_STALE,
                             "%s: the table was closed or never opened: every trainer opens it first, with "
                             "psd_table_open and the "
                             "initial values",
                             verb);
    pthread_mutex_lock(&t->lock);
    if (t->failed == PSD_OK) {
        *out = t;
        return PSD_OK;
    }
    status = psd_error_set(file, line, t->failed,
                           "%s: table \"%s\" failed before; close it and open it again", verb, t->name);
    pthread_mutex_unlock(&t->lock);
    psd_handles_release(&ctx->tables->handles, handle.index);
    return status;
}

static void leave(psd_ctx *ctx, psd_table handle, table *t)
{
    pthread_mutex_unlock(&t->lock);
    psd_handles_release(&ctx->tables->handles, handle.index);
}

/* After a timeout the gradients are on their way: a push again only asks for what became of them. */
static psd_status push(PSD_AT, psd_ctx *ctx, table *t, const psd_tensor *grads)
{
    bool is_repeat = t->push_sent;
    if (!is_repeat) {
        for (uint32_t p = 0; p < t->param_count; p++)
            t->from[p] = grads[p].data;
        psd_status packed = table_pack(file, line, "psd_table_push", ctx, t);
        if (packed != PSD_OK)
            return packed;
        t->sequence++;
    }
    psd_status status = table_request(file, line, "psd_table_push", ctx, t, TABLE_PUSH, !is_repeat);
    if (status == PSD_OK) {
        t->push_sent = false;
        t->clock++;
    }
    return status;
}

psd_status psd_table_push_at(PSD_AT, psd_ctx *ctx, psd_table handle, const psd_tensor *grads, int32_t count)
{
    table *t = NULL;
    psd_status status = enter(file, line, "psd_table_push", ctx, handle, &t);
    if (status != PSD_OK)
        return status;
    status = table_check_tensors(file, line, "psd_table_push", ctx, t, "gradient", grads, count);
    if (status == PSD_OK)
        status = push(file, line, ctx, t, grads);
    leave(ctx, handle, t);
    return status;
}

static psd_status pull(PSD_AT, psd_ctx *ctx, table *t, psd_tensor *params)
{
    if (t->push_sent)
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_table_pull: table \"%s\": the push of clock %llu timed out; push again first", t->name,
            (unsigned long long)t->clock + 1);
    t->sequence++;
    psd_status status = table_request(file, line, "psd_table_pull", ctx, t, TABLE_PULL, false);
    if (status == PSD_OK)
        status = table_receive(file, line, "psd_table_pull", ctx, t);
    if (status != PSD_OK)
        return status;
    for (uint32_t p = 0; p < t->param_count; p++)
        t->to[p] = params[p].data;
    return table_unpack(file, line, "psd_table_pull", ctx, t);
}

psd_status psd_table_pull_at(PSD_AT, psd_ctx *ctx, psd_table handle, psd_tensor *params, int32_t count)
{
    table *t = NULL;
    psd_status status = enter(file, line, "psd_table_pull", ctx, handle, &t);
    if (status == PSD_ERR_STALE && params != NULL && count > 0)
        return psd_error_set(
            file, line, status,
            "psd_table_pull of %d parameters, the first \"%s\": the table was closed or never "
            "opened: every trainer opens it first, with psd_table_open and the initial values",
            count, params[0].name == NULL ? "" : params[0].name);
    if (status != PSD_OK)
        return status;
    status = table_check_tensors(file, line, "psd_table_pull", ctx, t, "parameter", params, count);
    if (status == PSD_OK)
        status = pull(file, line, ctx, t, params);
    leave(ctx, handle, t);
    return status;
}

psd_status psd_table_close_at(PSD_AT, psd_ctx *ctx, psd_table handle)
{
    void *item = NULL;
    psd_status status = psd_ctx_check(file, line, "psd_table_close", ctx);
    if (status != PSD_OK)
        return status;
    status = PSD_ERR_STALE;
    if (ctx->tables != NULL)
        status = psd_handles_remove(&ctx->tables->handles, handle.index, handle.generation, &item);
    if (status == PSD_ERR_STALE)
        return psd_error_set(file, line, status, "psd_table_close: the table was closed or never opened");
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "psd_table_close: another thread uses the table");
    table *t = item;
    tell_close(ctx, t->id);
    table_detach(file, line, ctx, t);
    return PSD_OK;
}
