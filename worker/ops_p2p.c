/* Point-to-point operations: send, recv, sendrecv, and batches of them. */
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "worker/ops.h"

#define FEW       16        /* of a batch that need no allocation */
#define BATCH_MAX (1 << 20) /* operations of one batch */

/* ------------------------------------------------------------------------------------------------- checks */

/* One send or receive of a call, checked and in the backend's form. */
static psd_status check_p2p(op_call *call, const char *param, const psd_tensor *tensor, bool is_send,
                            const char *peer_param, int32_t peer, int32_t tag, psd_op_p2p *out)
{
    int64_t count = 0;
    psd_status status = op_check_tensor(call, param, tensor, &count);
    if (status != PSD_OK)
        return status;
    if (!is_send && peer == PSD_ANY_SOURCE) {
        if ((call->ctx->ops->caps & PSD_CAP_ANY_SOURCE) == 0)
            return op_error(call, PSD_ERR_UNSUPPORTED, "backend %s has no PSD_ANY_SOURCE",
                            call->ctx->ops->name);
    } else {
        status = op_check_rank(call, peer_param, peer);
    }
    if (status == PSD_OK)
        status = op_check_tag(call, tag, !is_send);
    if (status != PSD_OK)
        return status;
    out->is_send = is_send;
    out->dtype = tensor->dtype;
    out->data = tensor->data;
    out->count = count;
    out->peer = peer;
    out->tag = tag;
    return PSD_OK;
}

/* The call is this one transfer. */
static void set_single(op_call *call, const psd_tensor *tensor, const psd_op_p2p *p2p)
{
    call->named = tensor;
    call->peer = p2p->peer;
    call->op.dtype = p2p->dtype;
    call->op.count = p2p->count;
    call->op.p2p = p2p;
    call->op.p2p_count = 1;
}

/* ------------------------------------------------------------------------------------------ send, receive */

static psd_status send_one(op_call *call, const psd_tensor *in, int32_t dst)
{
    psd_op_p2p p2p;
    psd_status status = op_open(call);
    if (status == PSD_OK)
        status = check_p2p(call, "in", in, true, "dst", dst, call->tag, &p2p);
    if (status == PSD_OK && !call->async && dst == call->group->rank)
        status = op_error(
            call, PSD_ERR_INVAL,
            "dst is %d, this rank itself, which would wait for ever; use psd_isend or psd_sendrecv", dst);
    if (status == PSD_OK)
        set_single(call, in, &p2p);
    return op_close(call, status);
}

psd_status psd_send_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, int32_t dst,
                       const psd_opts *opts)
{
    op_call call = OP_CALL("psd_send", PSD_OP_SEND);
    return send_one(&call, in, dst);
}

psd_status psd_isend_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, int32_t dst,
                        const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_isend", PSD_OP_SEND);
    return send_one(&call, in, dst);
}

static psd_status receive_one(op_call *call, psd_tensor *out, int32_t src)
{
    psd_op_p2p p2p;
    psd_status status = op_open(call);
    if (status == PSD_OK && call->info != NULL && call->info->size != sizeof *call->info)
        status = op_error(call, PSD_ERR_INVAL, "info->size is %zu; set it to sizeof(psd_recv_info)",
                          call->info->size);
    if (status == PSD_OK)
        status = check_p2p(call, "out", out, false, "src", src, call->tag, &p2p);
    if (status == PSD_OK)
        set_single(call, out, &p2p);
    return op_close(call, status);
}

psd_status psd_recv_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *out, int32_t src,
                       const psd_opts *opts, psd_recv_info *info)
{
    op_call call = OP_CALL("psd_recv", PSD_OP_RECV);
    call.info = info;
    return receive_one(&call, out, src);
}

psd_status psd_irecv_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *out, int32_t src,
                        const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_irecv", PSD_OP_RECV);
    return receive_one(&call, out, src);
}

psd_status psd_sendrecv_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, int32_t dst,
                           psd_tensor *out, int32_t src, const psd_opts *opts)
{
    psd_op_p2p pair[2];
    op_call call = OP_CALL("psd_sendrecv", PSD_OP_BATCH);
    psd_status status = op_open(&call);
    if (status == PSD_OK)
        status = check_p2p(&call, "in", in, true, "dst", dst, call.tag, &pair[0]);
    if (status == PSD_OK)
        status = check_p2p(&call, "out", out, false, "src", src, call.tag, &pair[1]);
    if (status == PSD_OK)
        status = op_check_overlap(&call, in, out);
    if (status == PSD_OK) {
        call.named = in;
        call.peer = dst;
        call.op.count = pair[0].count;
        call.op.p2p = pair;
        call.op.p2p_count = 2;
    }
    return op_close(&call, status);
}

/* -------------------------------------------------------------------------------------------------- batch */

typedef struct range {
    uintptr_t start;
    uintptr_t end;
    int32_t index;
    bool is_send;
} range;

static int by_start(const void *a, const void *b)
{
    const range *left = a, *right = b;
    return (left->start > right->start) - (left->start < right->start);
}

/* What a batch receives into must not be touched by another of its operations. */
static psd_status check_ranges(const op_call *call, range *ranges, int32_t count)
{
    const range *last = NULL, *last_recv = NULL; /* those that reach furthest */
    qsort(ranges, (size_t)count, sizeof *ranges, by_start);
    for (int32_t i = 0; i < count; i++) {
        const range *r = &ranges[i];
        const range *other = r->is_send ? last_recv : last;
        if (r->start == r->end)
            continue;
        if (other != NULL && r->start < other->end)
            return op_error(call, PSD_ERR_INVAL, "ops[%d] and ops[%d] overlap, and at least one receives",
                            other->index < r->index ? other->index : r->index,
                            other->index < r->index ? r->index : other->index);
        if (last == NULL || r->end > last->end)
            last = r;
        if (!r->is_send && (last_recv == NULL || r->end > last_recv->end))
            last_recv = r;
    }
    return PSD_OK;
}

static psd_status check_batch(op_call *call, const psd_p2p *ops, int32_t count, psd_op_p2p *out,
                              range *ranges)
{
    psd_status status = PSD_OK;
    for (int32_t i = 0; i < count && status == PSD_OK; i++) {
        call->item = i;
        if (ops[i].kind != PSD_OP_SEND && ops[i].kind != PSD_OP_RECV)
            return op_error(call, PSD_ERR_INVAL, "kind is %d; it is PSD_OP_SEND or PSD_OP_RECV",
                            (int)ops[i].kind);
        status = check_p2p(call, "tensor", &ops[i].tensor, ops[i].kind == PSD_OP_SEND, "peer", ops[i].peer,
                           ops[i].tag, &out[i]);
        if (status != PSD_OK)
            continue;
        ranges[i].start = (uintptr_t)out[i].data;
        ranges[i].end = ranges[i].start + (uintptr_t)out[i].count * psd_dtype_bytes(out[i].dtype);
        ranges[i].index = i;
        ranges[i].is_send = out[i].is_send;
        if (__builtin_add_overflow(call->op.count, out[i].count, &call->op.count))
            call->op.count = INT64_MAX; /* it is only told */
    }
    if (status != PSD_OK)
        return status;
    call->item = -1;
    return check_ranges(call, ranges, count);
}

static psd_status batch(op_call *call, const psd_p2p *ops, int32_t count)
{
    psd_op_p2p few[FEW];
    range few_ranges[FEW];
    psd_op_p2p *list = few;
    range *ranges = few_ranges;
    psd_status status = op_open(call);
    if (status == PSD_OK && (ops == NULL || count < 1 || count > BATCH_MAX))
        status = op_error(call, PSD_ERR_INVAL, "%s; give a list of 1 to %d operations",
                          ops == NULL ? "ops is NULL" : "count is not valid", BATCH_MAX);
    if (status == PSD_OK && count > FEW) {
        list = malloc((size_t)count * sizeof *list);
        ranges = malloc((size_t)count * sizeof *ranges);
        if (list == NULL || ranges == NULL)
            status = op_error(call, PSD_ERR_NOMEM, "out of memory for %d operations", count);
    }
    if (status == PSD_OK)
        status = check_batch(call, ops, count, list, ranges);
    if (status == PSD_OK) {
        call->named = &ops[0].tensor;
        call->peer = count == 1 ? ops[0].peer : -1;
        call->op.p2p = list;
        call->op.p2p_count = count;
    }
    status = op_close(call, status);
    if (list != few)
        free(list);
    if (ranges != few_ranges)
        free(ranges);
    return status;
}

psd_status psd_batch_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_p2p *ops, int32_t count,
                        const psd_opts *opts)
{
    op_call call = OP_CALL("psd_batch", PSD_OP_BATCH);
    return batch(&call, ops, count);
}

psd_status psd_ibatch_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_p2p *ops, int32_t count,
                         const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_ibatch", PSD_OP_BATCH);
    return batch(&call, ops, count);
}
