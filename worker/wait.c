/* Waiting for works: wait, synchronize, test, waitall, waitany, wait_recv. A wait record is published before
 * a thread blocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/tensor.h"
#include "worker/ops.h"
#include "worker/quick_clock.h"
#include "worker/work_claim.h"

/* A wait without a timeout of its own ends this long after the operation should have ended itself. */
#define GRACE_NS (5 * PSD_NS_PER_S)

/* For a backend to end what has failed. */
#define ABORT_WAIT_NS (10 * PSD_NS_PER_S)

#define FEW 32 /* works of one wait that need no allocation */

/* Of a wait: how long, and whether the caller said so. */
typedef struct patience {
    psd_time_ns deadline;
    uint32_t how; /* PSD_WAIT_TIMED: ends by itself, which no hang does */
} patience;

static psd_time_ns wait_deadline(const psd_work_slot *slot, int64_t timeout_ms)
{
    if (timeout_ms != 0)
        return psd_deadline_ns(psd_now_ns(), timeout_ms);
    return slot->deadline > PSD_NEVER - GRACE_NS ? PSD_NEVER : slot->deadline + GRACE_NS;
}

static patience patience_of(psd_time_ns deadline, int64_t timeout_ms)
{
    return (patience){deadline, timeout_ms > 0 ? PSD_WAIT_TIMED : PSD_WAIT_ALL};
}

static psd_status claim(PSD_AT, const char *verb, psd_ctx *ctx, psd_work work, psd_work_slot **out)
{
    psd_status status = work_claim(&ctx->works, work, out);
    if (status == PSD_ERR_STALE)
        return psd_error_set(file, line, status,
                             "%s: work {%u, %u} has ended or never was; each work is waited for once", verb,
                             work.index, work.generation);
    if (status == PSD_AGAIN)
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "%s: work {%u, %u} is being waited for already; one thread waits for a work, once", verb,
            work.index, work.generation);
    return status;
}

/* `all_reduce from train.c:12`, for sentences. */
static const char *describe(const psd_work_slot *slot, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%s from %s:%d", psd_op_name(slot->kind), psd_site_file(slot->file), slot->line);
    return out;
}

/* Ends a complete work and gives the operation's status, with its sentence if `explain`. */
static psd_status end_work(PSD_AT, const char *verb, psd_ctx *ctx, psd_work_slot *slot,
                           const psd_op_result *result, bool explain)
{
    psd_status status = result->status;
    if (status != PSD_OK && explain) {
        char what[128];
        psd_error_set(file, line, status, "%s: %s: %s", verb, describe(slot, what, sizeof what),
                      ctx->ops->request_text(slot->request));
    }
    if (status != PSD_OK)
        atomic_store(&slot->group->told, true);
    work_end(ctx, slot, result);
    return status;
}

static psd_status explain_timeout(PSD_AT, const char *verb, const psd_work_slot *slot, psd_time_ns waited)
{
    char what[128], took[32];
    return psd_error_set(file, line, PSD_ERR_TIMEOUT, "%s: %s is not complete after %s; the work stays valid",
                         verb, describe(slot, what, sizeof what), psd_format_ns(waited, took, sizeof took));
}

/* Blocks on claimed works; NULL entries are skipped. */
static void block(psd_ctx *ctx, psd_work_slot *const *slots, psd_request **requests, uint64_t *seqs,
                  int32_t count, bool any, patience until)
{
    int32_t named = 0;
    for (int32_t i = 0; i < count; i++) {
        requests[i] = slots[i] != NULL ? slots[i]->request : NULL;
        if (slots[i] != NULL)
            seqs[named++] = slots[i]->record;
    }
    int record =
        psd_record_wait_begin(&ctx->recorder, seqs, named, until.how | (any ? PSD_WAIT_ANY : PSD_WAIT_ALL));
    ctx->ops->wait(ctx->backend, requests, count, any, until.deadline);
    psd_record_wait_end(&ctx->recorder, record);
}

/* ----------------------------------------------------------------------------------------------- one work */

static psd_status wait_one(PSD_AT, const char *verb, psd_ctx *ctx, psd_work work, int64_t timeout_ms,
                           psd_op_result *result)
{
    psd_work_slot *slot = NULL;
    psd_status status = psd_ctx_check(file, line, verb, ctx);
    if (status == PSD_OK)
        status = claim(file, line, verb, ctx, work, &slot);
    if (status != PSD_OK)
        return status;
    status = ctx->ops->test(slot->request, result);
    if (status == PSD_INPROGRESS) {
        psd_request *request = NULL;
        uint64_t seq = 0;
        psd_time_ns begun = psd_now_ns();
        block(ctx, &slot, &request, &seq, 1, false, patience_of(wait_deadline(slot, timeout_ms), timeout_ms));
        status = ctx->ops->test(slot->request, result);
        if (status == PSD_INPROGRESS) {
            status = explain_timeout(file, line, verb, slot, psd_now_ns() - begun);
            work_unclaim(slot);
            return status;
        }
    }
    return end_work(file, line, verb, ctx, slot, result, true);
}

/* -------------------------------------------------------------------------------------------- on a stream */

/* Until the operation is queued; without a trace if it is already. */
static psd_status queue_on(psd_ctx *ctx, const psd_work_slot *slot, void *stream, patience until)
{
    psd_status status = ctx->ops->stream_wait(slot->request, stream, 0);
    if (status != PSD_ERR_TIMEOUT)
        return status;
    int record = psd_record_wait_begin(&ctx->recorder, &slot->record, 1, until.how);
    status = ctx->ops->stream_wait(slot->request, stream, until.deadline);
    psd_record_wait_end(&ctx->recorder, record);
    return status;
}

/* A claimed work that failed before it was queued. The backend may need a moment until nothing uses the buffers. */
static psd_status end_failed(PSD_AT, const char *verb, psd_ctx *ctx, psd_work_slot *slot, psd_status failed,
                             bool explain)
{
    psd_op_result result;
    psd_status status = ctx->ops->test(slot->request, &result);
    if (status == PSD_INPROGRESS) {
        psd_request *request = slot->request;
        ctx->ops->wait(ctx->backend, &request, 1, false, psd_now_ns() + ABORT_WAIT_NS);
        status = ctx->ops->test(slot->request, &result);
    }
    if (status != PSD_INPROGRESS)
        return end_work(file, line, verb, ctx, slot, &result, explain);
    work_unclaim(slot);
    if (explain)
        psd_error_set(file, line, failed, "%s: the device did not take it: %s; the work stays valid", verb,
                      psd_status_text(failed));
    return failed;
}

/* Makes the stream wait for a claimed work, whose handle then ends. */
static psd_status queue_claimed(PSD_AT, const char *verb, psd_ctx *ctx, psd_work_slot *slot, void *stream,
                                patience until, bool explain)
{
    psd_time_ns begun = psd_now_ns();
    psd_status status = queue_on(ctx, slot, stream, until);
    if (status == PSD_OK) {
        slot->stream = stream; /* where it is to be found from now on */
        work_detach(ctx, slot);
        return PSD_OK;
    }
    if (status != PSD_ERR_TIMEOUT)
        return end_failed(file, line, verb, ctx, slot, status, explain);
    if (explain)
        explain_timeout(file, line, verb, slot, psd_now_ns() - begun);
    work_unclaim(slot);
    return PSD_ERR_TIMEOUT;
}

/* psd_wait where there are streams. Without a stream of the caller's it is the operation's own. */
static psd_status queue_one(PSD_AT, const char *verb, psd_ctx *ctx, psd_work work, void *const *stream,
                            int64_t timeout_ms, int32_t *source)
{
    psd_work_slot *slot = NULL;
    psd_status status = psd_ctx_check(file, line, verb, ctx);
    if (status == PSD_OK)
        status = claim(file, line, verb, ctx, work, &slot);
    if (status != PSD_OK)
        return status;
    *source = slot->source;
    return queue_claimed(file, line, verb, ctx, slot, stream != NULL ? *stream : slot->stream,
                         patience_of(wait_deadline(slot, timeout_ms), timeout_ms), true);
}

static bool has_streams(const psd_ctx *ctx)
{
    return ctx != NULL && ctx->has_streams;
}

/* -------------------------------------------------------------------------------------------- public: one */

psd_status op_wait(const char *verb, PSD_AT, psd_ctx *ctx, psd_work work, int64_t timeout_ms)
{
    psd_op_result result;
    int32_t source = -1;
    if (has_streams(ctx))
        return queue_one(file, line, verb, ctx, work, NULL, timeout_ms, &source);
    return wait_one(file, line, verb, ctx, work, timeout_ms, &result);
}

psd_status psd_wait_at(PSD_AT, psd_ctx *ctx, psd_work work, int64_t timeout_ms)
{
    return op_wait("psd_wait", file, line, ctx, work, timeout_ms);
}

psd_status psd_wait_stream_at(PSD_AT, psd_ctx *ctx, psd_work work, void *stream, int64_t timeout_ms)
{
    static const char verb[] = "psd_wait_stream";
    psd_op_result result;
    int32_t source = -1;
    if (has_streams(ctx))
        return queue_one(file, line, verb, ctx, work, &stream, timeout_ms, &source);
    if (ctx != NULL && stream != NULL)
        return psd_error_set(file, line, PSD_ERR_UNSUPPORTED,
                             "%s: a stream is given; backend %s has no streams", verb, ctx->ops->name);
    return wait_one(file, line, verb, ctx, work, timeout_ms, &result);
}

psd_status psd_synchronize_at(PSD_AT, psd_ctx *ctx, psd_work work, int64_t timeout_ms)
{
    psd_op_result result;
    return wait_one(file, line, "psd_synchronize", ctx, work, timeout_ms, &result);
}

psd_status psd_wait_recv_at(PSD_AT, psd_ctx *ctx, psd_work work, int64_t timeout_ms, psd_recv_info *info)
{
    psd_op_result result = {.tag = 0};
    if (info != NULL && info->size != sizeof *info)
        return psd_error_set(file, line, PSD_ERR_INVAL,
                             "psd_wait_recv: info->size is %zu; set it to sizeof(psd_recv_info)", info->size);
    psd_status status =
        has_streams(ctx) ? queue_one(file, line, "psd_wait_recv", ctx, work, NULL, timeout_ms, &result.source)
                         : wait_one(file, line, "psd_wait_recv", ctx, work, timeout_ms, &result);
    if (status == PSD_OK && info != NULL) {
        info->source = result.source;
        info->tag = result.tag;
    }
    return status;
}

psd_status psd_test_at(PSD_AT, psd_ctx *ctx, psd_work work, bool *done)
{
    static const char verb[] = "psd_test";
    psd_work_slot *slot = NULL;
    psd_op_result result;
    psd_status status = psd_ctx_check(file, line, verb, ctx);
    if (status == PSD_OK && done == NULL)
        status = psd_error_set(file, line, PSD_ERR_INVAL, "%s: done is NULL", verb);
    if (status == PSD_OK)
        status = claim(file, line, verb, ctx, work, &slot);
    if (status != PSD_OK)
        return status;
    status = ctx->ops->test(slot->request, &result);
    if (status == PSD_INPROGRESS) {
        atomic_store_explicit(&ctx->hang.polled, slot->record, memory_order_relaxed);
        atomic_store_explicit(&ctx->hang.polled_at, psd_quick_now_ns(), memory_order_release);
        work_unclaim(slot);
        *done = false;
        return PSD_OK;
    }
    status = end_work(file, line, verb, ctx, slot, &result, true);
    if (status == PSD_OK)
        *done = true;
    return status;
}

/* ------------------------------------------------------------------------------------------------ several */

typedef struct few {
    psd_work_slot *slots[FEW];
    psd_request *requests[FEW];
    uint64_t seqs[FEW];
    psd_status errors[FEW];
} few;

/* The works of one waitall or waitany, claimed. */
typedef struct many {
    psd_work_slot **slots; /* NULL: could not be claimed, see errors */
    psd_request **requests;
    uint64_t *seqs;
    psd_status *errors;
    few space;    /* where the arrays are when they are short */
    void *memory; /* else; NULL */
    int32_t count;
    int32_t claimed;
} many;

static bool make_room(many *m, int32_t count)
{
    size_t n = (size_t)count;
    m->count = count;
    m->claimed = 0;
    m->memory = NULL;
    m->slots = m->space.slots;
    m->requests = m->space.requests;
    m->seqs = m->space.seqs;
    m->errors = m->space.errors;
    if (count <= FEW)
        return true;
    m->memory = calloc(n, 2 * sizeof(void *) + sizeof(uint64_t) + sizeof(psd_status));
    if (m->memory == NULL)
        return false;
    m->slots = m->memory;
    m->requests = (psd_request **)(void *)(m->slots + n);
    m->seqs = (uint64_t *)(void *)(m->requests + n);
    m->errors = (psd_status *)(void *)(m->seqs + n);
    return true;
}

static patience latest_deadline(const many *m, int64_t timeout_ms)
{
    psd_time_ns latest = timeout_ms != 0 ? psd_deadline_ns(psd_now_ns(), timeout_ms) : 0;
    for (int32_t i = 0; i < m->count && timeout_ms == 0; i++) {
        psd_time_ns own = m->slots[i] != NULL ? wait_deadline(m->slots[i], 0) : 0;
        latest = own > latest ? own : latest;
    }
    return patience_of(latest, timeout_ms);
}

static psd_status begin_many(PSD_AT, const char *verb, psd_ctx *ctx, const psd_work *works, int32_t count,
                             many *m)
{
    psd_status status = psd_ctx_check(file, line, verb, ctx);
    if (status != PSD_OK)
        return status;
    if (count < 0 || (works == NULL && count > 0))
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: %s; give a list of works and its length", verb,
                             count < 0 ? "count is negative" : "works is NULL");
    if (!make_room(m, count))
        return psd_error_set(file, line, PSD_ERR_NOMEM, "%s: out of memory for %d works", verb, count);
    for (int32_t i = 0; i < count; i++) {
        m->slots[i] = NULL;
        m->errors[i] = work_claim(&ctx->works, works[i], &m->slots[i]);
        m->claimed += m->errors[i] == PSD_OK;
    }
    return PSD_OK;
}

/* Ends work i of a waitall, or leaves it valid; the first error in list order is explained. */
static psd_status end_of_all(PSD_AT, psd_ctx *ctx, const psd_work *works, many *m, int32_t i, bool explain,
                             psd_time_ns waited)
{
    static const char verb[] = "psd_waitall";
    psd_op_result result;
    psd_work_slot *slot = m->slots[i];
    if (slot == NULL) {
        if (explain)
            psd_error_set(file, line, PSD_ERR_STALE, "%s: works[%d] = {%u, %u} %s", verb, i, works[i].index,
                          works[i].generation,
                          m->errors[i] == PSD_AGAIN ? "is in the list twice, or another thread waits for it"
                                                    : "has ended or never was");
        return m->errors[i] == PSD_AGAIN ? PSD_ERR_INVAL : PSD_ERR_STALE;
    }
    if (ctx->ops->test(slot->request, &result) != PSD_INPROGRESS)
        return end_work(file, line, verb, ctx, slot, &result, explain);
    if (explain)
        explain_timeout(file, line, verb, slot, waited);
    work_unclaim(slot);
    return PSD_ERR_TIMEOUT;
}

/* psd_waitall where there are streams. */
static psd_status queue_of_all(PSD_AT, psd_ctx *ctx, const psd_work *works, many *m, int32_t i,
                               patience until, bool explain)
{
    psd_work_slot *slot = m->slots[i];
    if (slot == NULL)
        return end_of_all(file, line, ctx, works, m, i, explain, 0);
    return queue_claimed(file, line, "psd_waitall", ctx, slot, slot->stream, until, explain);
}

psd_status psd_waitall_at(PSD_AT, psd_ctx *ctx, const psd_work *works, int32_t count, int64_t timeout_ms)
{
    many m;
    psd_status first = begin_many(file, line, "psd_waitall", ctx, works, count, &m);
    if (first != PSD_OK)
        return first;
    psd_time_ns begun = psd_now_ns();
    patience until = latest_deadline(&m, timeout_ms);
    if (m.claimed > 0 && !ctx->has_streams)
        block(ctx, m.slots, m.requests, m.seqs, count, false, until);
    for (int32_t i = 0; i < count; i++) {
        psd_status status =
            ctx->has_streams
                ? queue_of_all(file, line, ctx, works, &m, i, until, first == PSD_OK)
                : end_of_all(file, line, ctx, works, &m, i, first == PSD_OK, psd_now_ns() - begun);
        if (first == PSD_OK)
            first = status;
    }
    free(m.memory);
    return first;
}

/* The first complete one of a waitany ends, all others stay. */
static psd_status end_of_any(PSD_AT, psd_ctx *ctx, many *m, int32_t *index, psd_time_ns waited)
{
    static const char verb[] = "psd_waitany";
    psd_op_result result;
    psd_status status = PSD_INPROGRESS;
    psd_work_slot *unfinished = NULL;
    for (int32_t i = 0; i < m->count; i++) {
        psd_work_slot *slot = m->slots[i];
        if (slot == NULL)
            continue;
        if (status == PSD_INPROGRESS && ctx->ops->test(slot->request, &result) != PSD_INPROGRESS) {
            status = end_work(file, line, verb, ctx, slot, &result, true);
            if (status == PSD_OK)
                *index = i;
            continue;
        }
        unfinished = slot;
        work_unclaim(slot);
    }
    if (status == PSD_INPROGRESS && unfinished != NULL)
        status = explain_timeout(file, line, verb, unfinished, waited);
    return status;
}

psd_status psd_waitany_at(PSD_AT, psd_ctx *ctx, const psd_work *works, int32_t count, int64_t timeout_ms,
                          int32_t *index)
{
    static const char verb[] = "psd_waitany";
    many m;
    if (index == NULL)
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: index is NULL", verb);
    psd_status status = begin_many(file, line, verb, ctx, works, count, &m);
    if (status != PSD_OK)
        return status;
    psd_time_ns begun = psd_now_ns();
    if (m.claimed > 0) {
        block(ctx, m.slots, m.requests, m.seqs, count, true, latest_deadline(&m, timeout_ms));
        status = end_of_any(file, line, ctx, &m, index, psd_now_ns() - begun);
    } else {
        status = psd_error_set(file, line, PSD_ERR_STALE, "%s: all %d works have ended or never were", verb,
                               count);
    }
    free(m.memory);
    return status;
}
