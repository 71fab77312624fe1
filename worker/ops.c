/* What all operations share: opening a call, starting it on the backend with its record, waiting for a
 * blocking one. */
#include "worker/ops.h"
#include "worker/quick_clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/tensor.h"

#define ABORT_WAIT_MS 10000 /* for a backend to end what was aborted */
#define LABEL_BYTES   160

void psd_opts_init(psd_opts *opts)
{
    if (opts == NULL)
        return;
    memset(opts, 0, sizeof *opts);
    opts->size = sizeof *opts;
}

int op_error_write(const op_call *call, const char *format, ...)
{
    char sentence[PSD_ERROR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    if (call->item >= 0)
        return psd_error_write(call->file, call->line, "%s: ops[%d]: %s", call->verb, call->item, sentence);
    return psd_error_write(call->file, call->line, "%s: %s", call->verb, sentence);
}

static psd_status take_opts(op_call *call)
{
    const psd_opts *opts = call->opts;
    int64_t timeout_ms = 0;
    if (opts != NULL) {
        if (opts->size != sizeof *opts)
            return op_error(call, PSD_ERR_INVAL, "opts->size is %zu, a psd_opts has %zu; call psd_opts_init",
                            opts->size, sizeof *opts);
        if (opts->stream != NULL && (call->ctx->ops->caps & PSD_CAP_DEVICE_MEMORY) == 0)
            return op_error(call, PSD_ERR_UNSUPPORTED, "opts->stream is set; backend %s has no streams",
                            call->ctx->ops->name);
        timeout_ms = opts->timeout_ms;
        call->tag = opts->tag;
        call->op.stream = opts->stream;
    }
    call->now = psd_quick_now_ns();
    call->op.deadline =
        psd_deadline_ns(call->now, timeout_ms != 0 ? timeout_ms : call->ctx->settings.timeout_ms);
    return PSD_OK;
}

psd_status op_open(op_call *call)
{
    psd_status status = psd_ctx_live(call->file, call->line, call->verb, call->ctx);
    if (status == PSD_OK && call->async && call->work == NULL)
        status = op_error(call, PSD_ERR_INVAL, "work is NULL; it takes the handle to wait for");
    if (status == PSD_OK)
        status = take_opts(call);
    if (status == PSD_OK)
        status = psd_group_acquire(call->file, call->line, call->verb, call->ctx, call->handle, &call->group);
    call->op.root = -1;
    return status;
}

/* -------------------------------------------------------------------------------------------------- label */

static char *put(char *at, const char *end, const char *text)
{
    while (*text != '\0' && at < end)
        *at++ = *text++;
    return at;
}

/* `all_reduce "grad" at train.c:12`. By hand, since printf would cost more than the rest of a small
 * operation. */
static void make_label(const op_call *call, char *out)
{
    const char *end = out + (LABEL_BYTES - 16);
    char *at = put(out, end, psd_op_name(call->op.kind));
    if (call->named != NULL && call->named->name != NULL) {
        at = put(at, end, " \"");
        at = put(at, out + 96, call->named->name);
        at = put(at, end, "\"");
    }
    if (call->file != NULL) {
        at = put(at, end, " at ");
        at = put(at, end, psd_site_file(call->file));
        *at++ = ':';
        char digits[12];
        int count = 0;
        unsigned number = (unsigned)call->line;
        do
            digits[count++] = (char)('0' + number % 10);
        while ((number /= 10) > 0);
        while (count > 0)
            *at++ = digits[--count];
    }
    *at = '\0';
}

/* ----------------------------------------------------------------------------------------------- starting */

static bool is_collective(psd_op_kind kind)
{
    return kind != PSD_OP_SEND && kind != PSD_OP_RECV && kind != PSD_OP_BATCH;
}

static uint64_t begin_record(const op_call *call)
{
    psd_record_start start = {
        .now = call->now,
        .kind = call->op.kind,
        .redop = call->op.redop,
        .tensor = call->named,
        .count = call->op.count,
        .peer = call->peer,
        .tag = call->tag,
        .group = call->group->id,
        .epoch = call->group->epoch,
        .file = call->file,
        .line = call->line,
    };
    return psd_record_begin(&call->ctx->recorder, &start);
}

/* PSD_OK: it is in flight as *request, or, with a `result`, complete already if that is not PSD_INPROGRESS. */
static psd_status start(op_call *call, psd_op_result *result, psd_request **request, uint64_t *record)
{
    char label[LABEL_BYTES];
    psd_group_slot *group = call->group;
    bool collective = is_collective(call->op.kind);
    make_label(call, label);
    call->op.label = label;
    if (collective)
        pthread_mutex_lock(&group->order);
    *record = begin_record(call);
    call->op.record = *record;
    psd_status status = result != NULL && group->ops->run != NULL
                            ? group->ops->run(group->backend, &call->op, result, request)
                            : group->ops->start(group->backend, &call->op, request);
    if (collective)
        pthread_mutex_unlock(&group->order);
    if (status == PSD_OK || status == PSD_INPROGRESS)
        return PSD_OK;
    char text[PSD_MAX_TEXT];
    psd_record_end(&call->ctx->recorder, *record, status, call->peer, 0);
    if (psd_group_broken(group, text, sizeof text) != PSD_OK) {
        atomic_store(&group->told, true);
        return op_error(call, status, "its group is broken: %s", text);
    }
    return op_error(call, status, "backend %s could not start it: %s", group->ops->name,
                    psd_status_text(status));
}

/* ------------------------------------------------------------------------------------------------ waiting */

static psd_status wait_until(op_call *call, psd_request *request, uint64_t record, psd_time_ns deadline,
                             psd_op_result *result)
{
    psd_ctx *ctx = call->ctx;
    int slot = psd_record_wait_begin(&ctx->recorder, &record, 1, PSD_WAIT_ALL);
    ctx->ops->wait(ctx->backend, &request, 1, false, deadline);
    psd_record_wait_end(&ctx->recorder, slot);
    return ctx->ops->test(request, result);
}

/* The backend should have ended the operation itself; psd and the other members are told all the same. */
static void fail_group(const op_call *call, const psd_group_slot *group, const char *what)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    msg.u.abort.group = group->id;
    msg.u.abort.epoch = group->epoch;
    msg.u.abort.status = PSD_ERR_DEADLINE;
    msg.u.abort.culprit = -1;
    snprintf(msg.u.abort.text, sizeof msg.u.abort.text, "group %u: rank %d's %s %s", group->id, group->rank,
             psd_op_name(call->op.kind), what);
    call->ctx->ops->group_abort(group->backend, PSD_ERR_DEADLINE, msg.u.abort.text);
    psd_agent_tell(call->ctx->agent, &msg);
}

static const char LATE[] = "did not end by its deadline";

static psd_status not_ended(const op_call *call)
{
    return op_error(call, PSD_ERR_INTERNAL,
                    "backend %s did not end an aborted operation; its buffers stay borrowed",
                    call->ctx->ops->name);
}

/* What a blocking call tells of a complete operation. */
static void tell(op_call *call, uint64_t record, const psd_op_result *result)
{
    psd_record_end(&call->ctx->recorder, record, result->status,
                   call->peer >= 0 ? call->peer : result->source, result->ordinal);
    if (result->status == PSD_OK && call->info != NULL) {
        call->info->source = result->source;
        call->info->tag = result->tag;
    }
}

/* A blocking call does not return while the backend may touch the caller's memory. */
static psd_status run_to_end(op_call *call, psd_request *request, uint64_t record)
{
    static const psd_time_ns grace = 5 * PSD_NS_PER_S;
    psd_ctx *ctx = call->ctx;
    psd_time_ns deadline = call->op.deadline > PSD_NEVER - grace ? PSD_NEVER : call->op.deadline + grace;
    psd_op_result result = {.status = PSD_INPROGRESS};
    psd_status status = ctx->ops->test(request, &result);
    if (status == PSD_INPROGRESS)
        status = wait_until(call, request, record, deadline, &result);
    if (status == PSD_INPROGRESS) {
        fail_group(call, call->group, LATE);
        status = wait_until(call, request, record, psd_deadline_ns(psd_now_ns(), ABORT_WAIT_MS), &result);
    }
    if (status == PSD_INPROGRESS)
        return not_ended(call);
    result.status = status;
    tell(call, record, &result);
    if (status != PSD_OK) {
        op_error(call, status, "%s", ctx->ops->request_text(request));
        atomic_store(&call->group->told, true);
    }
    ctx->ops->release(request);
    return status;
}

/* Of an operation's last receive; -1: it has none, or takes any. */
static int32_t last_source(const psd_op *op)
{
    int32_t source = -1;
    for (int32_t i = 0; i < op->p2p_count; i++)
        source = op->p2p[i].is_send ? source : op->p2p[i].peer;
    return source;
}

/* Starts it with a work, which holds the group from then on. */
static psd_status start_work(op_call *call, psd_work_slot **out)
{
    psd_request *request = NULL;
    uint64_t record = 0;
    psd_work_slot *slot = psd_work_reserve(&call->ctx->works);
    if (slot == NULL)
        return op_error(call, PSD_ERR_LIMIT,
                        "no room for another work: out of memory, or %d are in flight; wait for some",
                        PSD_MAX_WORKS);
    call->op.cookie = (uint64_t)(uintptr_t)slot;
    psd_status status = start(call, NULL, &request, &record);
    if (status != PSD_OK) {
        psd_work_cancel(&call->ctx->works, slot);
        return status;
    }
    slot->request = request;
    slot->group = call->group;
    slot->record = record;
    slot->deadline = call->op.deadline;
    slot->kind = call->op.kind;
    slot->peer = call->peer;
    slot->file = call->file;
    slot->line = call->line;
    slot->stream = call->op.stream;
    if (call->ctx->has_streams)
        slot->source = last_source(&call->op);
    call->group = NULL; /* the work holds it now */
    *out = slot;
    return PSD_OK;
}

static psd_status run_async(op_call *call)
{
    psd_work_slot *slot = NULL;
    psd_status status = start_work(call, &slot);
    if (status == PSD_OK)
        *call->work = psd_work_publish(slot);
    return status;
}

/* The blocking form on a device: as the other one and psd_wait. */
static psd_status run_on_stream(op_call *call)
{
    psd_work_slot *slot = NULL;
    const psd_group_slot *group = call->group;
    psd_status status = start_work(call, &slot);
    if (status != PSD_OK)
        return status;
    int32_t source = slot->source;
    psd_work work = psd_work_publish(slot);
    status = op_wait(call->verb, call->file, call->line, call->ctx, work, 0);
    if (status == PSD_ERR_TIMEOUT) {
        fail_group(call, group, LATE);
        status = op_wait(call->verb, call->file, call->line, call->ctx, work, ABORT_WAIT_MS);
        if (status == PSD_ERR_TIMEOUT)
            return not_ended(call);
    }
    if (status == PSD_OK && call->info != NULL) {
        call->info->source = source;
        call->info->tag = 0;
    }
    return status;
}

psd_status op_close(op_call *call, psd_status status)
{
    if (status == PSD_OK && call->async) {
        status = run_async(call);
    } else if (status == PSD_OK && call->ctx->has_streams) {
        status = run_on_stream(call);
    } else if (status == PSD_OK) {
        psd_request *request = NULL;
        uint64_t record = 0;
        psd_op_result result = {.status = PSD_INPROGRESS};
        status = start(call, &result, &request, &record);
        if (status == PSD_OK && result.status == PSD_INPROGRESS)
            status = run_to_end(call, request, record);
        else if (status == PSD_OK)
            tell(call, record, &result);
    }
    if (call->group != NULL)
        psd_group_release(call->group);
    return status;
}
