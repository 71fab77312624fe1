#include "worker/table_transfer.h"

#include <stdio.h>
#include <string.h>

/* Requests waited for in one call of the backend. */
#define SOME 32

psd_status table_transfer_start(psd_ctx *ctx, psd_group_slot *group, const table_post *post,
                                table_transfer *out)
{
    char label[PSD_MAX_NAME + 128];
    psd_tensor tensor = psd_tensor_1d(post->data, (int64_t)post->count, PSD_F32, post->table);
    psd_record_start start = {
        .now = psd_now_ns(),
        .kind = post->is_send ? PSD_OP_SEND : PSD_OP_RECV,
        .tensor = &tensor,
        .count = tensor.shape[0],
        .peer = post->peer,
        .group = group->id,
        .epoch = group->epoch,
        .file = post->file,
        .line = post->line,
    };
    psd_op_p2p p2p = {post->is_send, PSD_F32, post->data, tensor.shape[0], post->peer, 0};
    psd_op op = {
        .kind = start.kind,
        .dtype = PSD_F32,
        .root = -1,
        .count = tensor.shape[0],
        .p2p = &p2p,
        .p2p_count = 1,
        .deadline = psd_ctx_deadline(ctx, 0),
        .label = label,
    };
    snprintf(label, sizeof(label), "%s of table \"%s\" at %s:%d", post->verb, post->table,
             psd_site_file(post->file), post->line);
    uint64_t record = psd_record_begin(&ctx->recorder, &start);
    psd_status status = ctx->ops->start(group->backend, &op, &out->request);
    if (status != PSD_OK) {
        psd_record_end(&ctx->recorder, record, status, post->peer, 0);
        return status;
    }
    out->record = record;
    return PSD_OK;
}

psd_status table_transfer_test(psd_ctx *ctx, table_transfer *transfer, char *why, size_t why_bytes)
{
    psd_op_result result = {.status = PSD_OK};
    if (transfer->request == NULL)
        return PSD_OK;
    psd_status status = ctx->ops->test(transfer->request, &result);
    if (status == PSD_INPROGRESS)
        return status;
    if (status != PSD_OK)
        snprintf(why, why_bytes, "%s", ctx->ops->request_text(transfer->request));
    psd_record_end(&ctx->recorder, transfer->record, status, result.source, result.ordinal);
    ctx->ops->release(transfer->request);
    *transfer = (table_transfer){.request = NULL};
    return status;
}

static psd_status wait_some(psd_ctx *ctx, const table_transfer *list, uint32_t count)
{
    psd_request *requests[SOME];
    uint64_t records[SOME];
    int32_t live = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].request == NULL)
            continue;
        requests[live] = list[i].request;
        records[live++] = list[i].record;
    }
    int slot = psd_record_wait_begin(&ctx->recorder, records, live, PSD_WAIT_ALL);
    psd_status status = ctx->ops->wait(ctx->backend, requests, live, false, PSD_NEVER);
    psd_record_wait_end(&ctx->recorder, slot);
    return status;
}

psd_status table_transfers_wait(psd_ctx *ctx, table_transfer *list, uint32_t count, char *why,
                                size_t why_bytes)
{
    psd_status first = PSD_OK;
    char text[PSD_MAX_TEXT] = "";
    for (uint32_t at = 0; at < count; at += SOME) {
        uint32_t some = count - at < SOME ? count - at : SOME;
        psd_status waited = wait_some(ctx, list + at, some);
        for (uint32_t i = at; i < at + some; i++) {
            psd_status status = table_transfer_test(ctx, &list[i], text, sizeof(text));
            if (status == PSD_INPROGRESS)
                status = waited != PSD_OK ? waited : PSD_ERR_INTERNAL;
            if (status != PSD_OK && first == PSD_OK) {
                first = status;
                snprintf(why, why_bytes, "%s", text);
            }
        }
    }
    return first;
}
