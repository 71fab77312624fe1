/* Collectives: the checks of each against the table in psd.h, in both forms. */
#include <string.h>

#include "common/tensor.h"
#include "worker/ops.h"

/* ------------------------------------------------------------------------------------------------- checks */

static psd_status open_collective(op_call *call)
{
    psd_status status = op_open(call);
    if (status == PSD_OK && call->tag != 0)
        status = op_error(call, PSD_ERR_INVAL, "opts->tag is %d; collectives have no tags", call->tag);
    return status;
}

static psd_status check_root(op_call *call, int32_t root)
{
    psd_status status = op_check_rank(call, "root", root);
    call->op.root = root;
    call->peer = root;
    return status;
}

/* Both tensors, of one dtype; their counts. */
static psd_status check_both(op_call *call, const psd_tensor *in, const psd_tensor *out, int64_t *in_count,
                             int64_t *out_count)
{
    psd_status status = op_check_tensor(call, "in", in, in_count);
    if (status == PSD_OK)
        status = op_check_tensor(call, "out", out, out_count);
    if (status == PSD_OK)
        status = op_check_same_dtype(call, in, out);
    return status;
}

static void set_op(op_call *call, const psd_tensor *named, int64_t count, const psd_tensor *in,
                   const psd_tensor *out)
{
    call->named = named;
    call->op.dtype = named->dtype;
    call->op.count = count;
    call->op.in = in != NULL ? in->data : NULL;
    call->op.out = out != NULL ? out->data : NULL;
}

static int64_t bytes_of(const psd_tensor *tensor, int64_t count)
{
    return count * (int64_t)psd_dtype_bytes(tensor->dtype);
}

/* --------------------------------------------------------------------------------------------- operations */

static psd_status broadcast(op_call *call, const psd_tensor *out, int32_t root)
{
    int64_t count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_root(call, root);
    if (status == PSD_OK)
        status = op_check_tensor(call, "out", out, &count);
    if (status == PSD_OK)
        set_op(call, out, count, NULL, out);
    return op_close(call, status);
}

static psd_status all_reduce(op_call *call, const psd_tensor *in, const psd_tensor *out, psd_redop redop,
                             int32_t parts)
{
    int64_t in_count = 0, out_count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_both(call, in, out, &in_count, &out_count);
    if (status == PSD_OK)
        status = op_check_redop(call, redop, in->dtype);
    if (status == PSD_OK)
        status = op_check_count(call, "out", out_count, 1, in_count);
    if (status == PSD_OK)
        status = op_check_in_place(call, in, 0, out, 0);
    if (status == PSD_OK)
        set_op(call, in, in_count, in, out);
    call->op.redop = redop;
    call->op.root = parts;
    return op_close(call, status);
}

static psd_status reduce(op_call *call, const psd_tensor *in, const psd_tensor *out, psd_redop redop,
                         int32_t root)
{
    int64_t in_count = 0, out_count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_root(call, root);
    bool is_root = status == PSD_OK && root == call->group->rank;
    if (status == PSD_OK)
        status = is_root ? check_both(call, in, out, &in_count, &out_count)
                         : op_check_tensor(call, "in", in, &in_count);
    if (status == PSD_OK)
        status = op_check_redop(call, redop, in->dtype);
    if (status == PSD_OK && is_root)
        status = op_check_count(call, "out", out_count, 1, in_count);
    if (status == PSD_OK && is_root)
        status = op_check_in_place(call, in, 0, out, 0);
    if (status == PSD_OK)
        set_op(call, in, in_count, in, is_root ? out : NULL);
    call->op.redop = redop;
    return op_close(call, status);
}

static psd_status scatter(op_call *call, const psd_tensor *in, const psd_tensor *out, int32_t root)
{
    int64_t in_count = 0, out_count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_root(call, root);
    bool is_root = status == PSD_OK && root == call->group->rank;
    if (status == PSD_OK)
        status = is_root ? check_both(call, in, out, &in_count, &out_count)
                         : op_check_tensor(call, "out", out, &out_count);
    if (status == PSD_OK && is_root)
        status = op_check_count(call, "in", in_count, call->group->size, out_count);
    if (status == PSD_OK && is_root)
        status =
            call->group->size == 1 ? op_check_in_place(call, in, 0, out, 0) : op_check_overlap(call, in, out);
    if (status == PSD_OK)
        set_op(call, out, out_count, is_root ? in : NULL, out);
    return op_close(call, status);
}

static psd_status gather(op_call *call, const psd_tensor *in, const psd_tensor *out, int32_t root)
{
    int64_t in_count = 0, out_count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_root(call, root);
    bool is_root = status == PSD_OK && root == call->group->rank;
    if (status == PSD_OK)
        status = is_root ? check_both(call, in, out, &in_count, &out_count)
                         : op_check_tensor(call, "in", in, &in_count);
    if (status == PSD_OK && is_root)
        status = op_check_count(call, "out", out_count, call->group->size, in_count);
    if (status == PSD_OK && is_root)
        status =
            call->group->size == 1 ? op_check_in_place(call, in, 0, out, 0) : op_check_overlap(call, in, out);
    if (status == PSD_OK)
        set_op(call, in, in_count, in, is_root ? out : NULL);
    return op_close(call, status);
}

static psd_status all_gather(op_call *call, const psd_tensor *in, const psd_tensor *out)
{
    int64_t in_count = 0, out_count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_both(call, in, out, &in_count, &out_count);
    if (status == PSD_OK)
        status = op_check_count(call, "out", out_count, call->group->size, in_count);
    if (status == PSD_OK)
        status = op_check_in_place(call, in, 0, out, call->group->rank * bytes_of(in, in_count));
    if (status == PSD_OK)
        set_op(call, in, in_count, in, out);
    return op_close(call, status);
}

static psd_status reduce_scatter(op_call *call, const psd_tensor *in, const psd_tensor *out, psd_redop redop)
{
    int64_t in_count = 0, out_count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_both(call, in, out, &in_count, &out_count);
    if (status == PSD_OK)
        status = op_check_redop(call, redop, in->dtype);
    if (status == PSD_OK)
        status = op_check_count(call, "in", in_count, call->group->size, out_count);
    if (status == PSD_OK)
        status = op_check_in_place(call, in, call->group->rank * bytes_of(in, out_count), out, 0);
    if (status == PSD_OK)
        set_op(call, in, out_count, in, out);
    call->op.redop = redop;
    return op_close(call, status);
}

static psd_status all_to_all(op_call *call, const psd_tensor *in, const psd_tensor *out)
{
    int64_t in_count = 0, out_count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_both(call, in, out, &in_count, &out_count);
    if (status == PSD_OK && in_count % call->group->size != 0)
        status = op_error(call, PSD_ERR_INVAL, "in has %lld elements, which %d ranks cannot share evenly",
                          (long long)in_count, call->group->size);
    if (status == PSD_OK)
        status = op_check_count(call, "out", out_count, 1, in_count);
    if (status == PSD_OK)
        status = op_check_overlap(call, in, out);
    if (status == PSD_OK)
        set_op(call, in, in_count / call->group->size, in, out);
    return op_close(call, status);
}

/* The splits must add up to the tensor. */
static psd_status check_splits(op_call *call, const char *param, const int64_t *splits, const char *tensor,
                               int64_t count)
{
    int64_t rest = count;
    if (splits == NULL)
        return op_error(call, PSD_ERR_INVAL, "%s is NULL; it has a count for each of the %d ranks", param,
                        call->group->size);
    for (int32_t i = 0; i < call->group->size; i++) {
        if (splits[i] < 0)
            return op_error(call, PSD_ERR_INVAL, "%s[%d] is %lld; it is 0 or more", param, i,
                            (long long)splits[i]);
        if (splits[i] > rest)
            return op_error(call, PSD_ERR_INVAL, "%s add up to more than the %lld elements of %s", param,
                            (long long)count, tensor);
        rest -= splits[i];
    }
    if (rest != 0)
        return op_error(call, PSD_ERR_INVAL, "%s add up to %lld, and %s has %lld elements", param,
                        (long long)(count - rest), tensor, (long long)count);
    return PSD_OK;
}

static psd_status all_to_all_v(op_call *call, const psd_tensor *in, const int64_t *in_splits,
                               const psd_tensor *out, const int64_t *out_splits)
{
    int64_t in_count = 0, out_count = 0;
    psd_status status = open_collective(call);
    if (status == PSD_OK)
        status = check_both(call, in, out, &in_count, &out_count);
    if (status == PSD_OK)
        status = check_splits(call, "in_splits", in_splits, "in", in_count);
    if (status == PSD_OK)
        status = check_splits(call, "out_splits", out_splits, "out", out_count);
    if (status == PSD_OK && in_splits[call->group->rank] != out_splits[call->group->rank])
        status = op_error(call, PSD_ERR_INVAL,
                          "in_splits[%d] is %lld and out_splits[%d] is %lld: this rank's own part",
                          call->group->rank, (long long)in_splits[call->group->rank], call->group->rank,
                          (long long)out_splits[call->group->rank]);
    if (status == PSD_OK)
        status = op_check_overlap(call, in, out);
    if (status == PSD_OK)
        set_op(call, in, in_count, in, out);
    call->op.in_splits = in_splits;
    call->op.out_splits = out_splits;
    return op_close(call, status);
}

static psd_status barrier(op_call *call)
{
    return op_close(call, open_collective(call));
}

/* ---------------------------------------------------------------------------------------------------- api */

psd_status psd_broadcast_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *out, int32_t root,
                            const psd_opts *opts)
{
    op_call call = OP_CALL("psd_broadcast", PSD_OP_BROADCAST);
    return broadcast(&call, out, root);
}

psd_status psd_ibroadcast_at(PSD_AT, psd_ctx *ctx, psd_group group, psd_tensor *out, int32_t root,
                             const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_ibroadcast", PSD_OP_BROADCAST);
    return broadcast(&call, out, root);
}

psd_status psd_all_reduce_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                             psd_redop redop, const psd_opts *opts)
{
    op_call call = OP_CALL("psd_all_reduce", PSD_OP_ALL_REDUCE);
    return all_reduce(&call, in, out, redop, -1);
}

psd_status psd_iall_reduce_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                              psd_redop redop, const psd_opts *opts, psd_work *work)
{
    return op_iall_reduce("psd_iall_reduce", file, line, ctx, group, in, out, redop, -1, opts, work);
}

psd_status op_iall_reduce(const char *verb, PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                          psd_tensor *out, psd_redop redop, int32_t parts, const psd_opts *opts,
                          psd_work *work)
{
    op_call call = OP_CALL_ASYNC(verb, PSD_OP_ALL_REDUCE);
    return all_reduce(&call, in, out, redop, parts);
}

psd_status psd_reduce_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                         psd_redop redop, int32_t root, const psd_opts *opts)
{
    op_call call = OP_CALL("psd_reduce", PSD_OP_REDUCE);
    return reduce(&call, in, out, redop, root);
}

psd_status psd_ireduce_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                          psd_redop redop, int32_t root, const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_ireduce", PSD_OP_REDUCE);
    return reduce(&call, in, out, redop, root);
}

psd_status psd_scatter_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                          int32_t root, const psd_opts *opts)
{
    op_call call = OP_CALL("psd_scatter", PSD_OP_SCATTER);
    return scatter(&call, in, out, root);
}

psd_status psd_iscatter_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                           int32_t root, const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_iscatter", PSD_OP_SCATTER);
    return scatter(&call, in, out, root);
}

psd_status psd_gather_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                         int32_t root, const psd_opts *opts)
{
    op_call call = OP_CALL("psd_gather", PSD_OP_GATHER);
    return gather(&call, in, out, root);
}

psd_status psd_igather_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                          int32_t root, const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_igather", PSD_OP_GATHER);
    return gather(&call, in, out, root);
}

psd_status psd_all_gather_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                             const psd_opts *opts)
{
    op_call call = OP_CALL("psd_all_gather", PSD_OP_ALL_GATHER);
    return all_gather(&call, in, out);
}

psd_status psd_iall_gather_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                              const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_iall_gather", PSD_OP_ALL_GATHER);
    return all_gather(&call, in, out);
}

psd_status psd_reduce_scatter_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                                 psd_redop redop, const psd_opts *opts)
{
    op_call call = OP_CALL("psd_reduce_scatter", PSD_OP_REDUCE_SCATTER);
    return reduce_scatter(&call, in, out, redop);
}

psd_status psd_ireduce_scatter_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                  psd_tensor *out, psd_redop redop, const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_ireduce_scatter", PSD_OP_REDUCE_SCATTER);
    return reduce_scatter(&call, in, out, redop);
}

psd_status psd_all_to_all_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                             const psd_opts *opts)
{
    op_call call = OP_CALL("psd_all_to_all", PSD_OP_ALL_TO_ALL);
    return all_to_all(&call, in, out);
}

psd_status psd_iall_to_all_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in, psd_tensor *out,
                              const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_iall_to_all", PSD_OP_ALL_TO_ALL);
    return all_to_all(&call, in, out);
}

psd_status psd_all_to_all_v_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                               const int64_t *in_splits, psd_tensor *out, const int64_t *out_splits,
                               const psd_opts *opts)
{
    op_call call = OP_CALL("psd_all_to_all_v", PSD_OP_ALL_TO_ALL_V);
    return all_to_all_v(&call, in, in_splits, out, out_splits);
}

psd_status psd_iall_to_all_v_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                                const int64_t *in_splits, psd_tensor *out, const int64_t *out_splits,
                                const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_iall_to_all_v", PSD_OP_ALL_TO_ALL_V);
    return all_to_all_v(&call, in, in_splits, out, out_splits);
}

psd_status psd_barrier_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_opts *opts)
{
    op_call call = OP_CALL("psd_barrier", PSD_OP_BARRIER);
    return barrier(&call);
}

psd_status psd_ibarrier_at(PSD_AT, psd_ctx *ctx, psd_group group, const psd_opts *opts, psd_work *work)
{
    op_call call = OP_CALL_ASYNC("psd_ibarrier", PSD_OP_BARRIER);
    return barrier(&call);
}
