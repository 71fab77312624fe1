/* Operations as NCCL calls. Where NCCL has no collective (gather, scatter, all_to_all) it is a group of sends and receives.
 * What is only moved is moved as bytes: NCCL does not know i16, u16, bool, and f8 only on some devices. */
#include "worker/backend/nccl/engine.h"

#include <stdio.h>

#include "common/tensor.h"

/* One unit being queued: the first error stays. */
typedef struct launching {
    psd_backend_group *g;
    const nccl_api *nccl;
    ncclResult_t result;
    cudaError_t cuda; /* of our own call, if that is what failed */
    const char *what;
    uint64_t sent, received; /* bytes */
} launching;

static void note(launching *l, const char *what, ncclResult_t result)
{
    if (l->result != ncclSuccess || result == ncclSuccess || result == ncclInProgress)
        return;
    l->result = result;
    l->what = what;
}

static void note_cuda(launching *l, const char *what, cudaError_t error)
{
    if (l->result != ncclSuccess || error == cudaSuccess)
        return;
    l->result = ncclUnhandledCudaError;
    l->cuda = error;
    l->what = what;
}

static ncclDataType_t nccl_type(psd_dtype dtype)
{
    switch (dtype) {
    case PSD_I8:
        return ncclInt8;
    case PSD_I32:
        return ncclInt32;
    case PSD_U32:
        return ncclUint32;
    case PSD_I64:
        return ncclInt64;
    case PSD_U64:
        return ncclUint64;
    case PSD_F16:
        return ncclFloat16;
    case PSD_BF16:
        return ncclBfloat16;
    case PSD_F32:
        return ncclFloat32;
    case PSD_F64:
        return ncclFloat64;
    default:
        return ncclUint8; /* u8; the others are never reduced */
    }
}

static ncclRedOp_t nccl_redop(psd_redop redop)
{
    switch (redop) {
    case PSD_PROD:
        return ncclProd;
    case PSD_MIN:
        return ncclMin;
    case PSD_MAX:
        return ncclMax;
    case PSD_AVG:
        return ncclAvg;
    default:
        return ncclSum; /* bit operations are refused above */
    }
}

static size_t bytes_of(const psd_op *op, int64_t count)
{
    return (size_t)count * psd_dtype_bytes(op->dtype);
}

/* ------------------------------------------------------------------------------------------- point to point */

static void send_bytes(launching *l, const void *data, size_t bytes, int32_t peer)
{
    note(l, "ncclSend", l->nccl->ncclSend(data, bytes, ncclUint8, peer, l->g->comm, l->g->stream));
    l->sent += bytes;
}

static void recv_bytes(launching *l, void *data, size_t bytes, int32_t peer)
{
    note(l, "ncclRecv", l->nccl->ncclRecv(data, bytes, ncclUint8, peer, l->g->comm, l->g->stream));
    l->received += bytes;
}

/* An empty message is one byte of scratch memory, so that its receiver still waits for its sender. */
static void launch_p2p(launching *l, const psd_op *op)
{
    unsigned char *scratch = l->g->backend->scratch;
    for (int32_t i = 0; i < op->p2p_count; i++) {
        const psd_op_p2p *p = &op->p2p[i];
        size_t bytes = (size_t)p->count * psd_dtype_bytes(p->dtype);
        if (p->is_send)
            send_bytes(l, bytes > 0 ? p->data : scratch, bytes > 0 ? bytes : 1, p->peer);
        else
            recv_bytes(l, bytes > 0 ? p->data : scratch + SCRATCH_BYTES / 2, bytes > 0 ? bytes : 1, p->peer);
    }
}

/* A rank's own part of a collective that is made of sends and receives. */
static void copy_own(launching *l, void *out, const void *in, size_t bytes)
{
    const cudart_api *cuda = &l->g->backend->libs.cuda;
    if (bytes == 0 || out == in || l->result != ncclSuccess)
        return;
    note_cuda(l, "cudaMemcpyAsync",
              cuda->cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, l->g->stream));
}

static void launch_scatter(launching *l, const psd_op *op)
{
    const psd_backend_group *g = l->g;
    size_t bytes = bytes_of(op, op->count);
    const char *in = op->in;
    if (op->root != g->rank) {
        recv_bytes(l, op->out, bytes, op->root);
        return;
    }
    for (int32_t i = 0; i < g->size; i++) {
        if (i == g->rank)
            copy_own(l, op->out, in + (size_t)i * bytes, bytes);
        else
            send_bytes(l, in + (size_t)i * bytes, bytes, i);
    }
}

static void launch_gather(launching *l, const psd_op *op)
{
    const psd_backend_group *g = l->g;
    size_t bytes = bytes_of(op, op->count);
    char *out = op->out;
    if (op->root != g->rank) {
        send_bytes(l, op->in, bytes, op->root);
        return;
    }
    for (int32_t i = 0; i < g->size; i++) {
        if (i == g->rank)
            copy_own(l, out + (size_t)i * bytes, op->in, bytes);
        else
            recv_bytes(l, out + (size_t)i * bytes, bytes, i);
    }
}

static void launch_all_to_all(launching *l, const psd_op *op)
{
    const psd_backend_group *g = l->g;
    const char *in = op->in;
    char *out = op->out;
    for (int32_t i = 0; i < g->size; i++) {
        size_t send = bytes_of(op, op->in_splits != NULL ? op->in_splits[i] : op->count);
        size_t recv = bytes_of(op, op->out_splits != NULL ? op->out_splits[i] : op->count);
        if (i == g->rank) {
            copy_own(l, out, in, send);
        } else {
            if (send > 0)
                send_bytes(l, in, send, i);
            if (recv > 0)
                recv_bytes(l, out, recv, i);
        }
        in += send;
        out += recv;
    }
}

/* -------------------------------------------------------------------------------------------- NCCL's own ones */

static void launch_barrier(launching *l)
{
    psd_backend_group *g = l->g;
    void *scratch = g->backend->scratch;
    note(l, "ncclAllReduce",
         l->nccl->ncclAllReduce(scratch, scratch, 1, ncclUint8, ncclMax, g->comm, g->stream));
}

static void launch_collective(launching *l, const psd_op *op)
{
    const nccl_api *nccl = l->nccl;
    ncclComm_t comm = l->g->comm;
    cudaStream_t stream = l->g->stream;
    size_t count = (size_t)op->count;
    size_t bytes = bytes_of(op, op->count);
    ncclDataType_t type = nccl_type(op->dtype);
    ncclRedOp_t redop = nccl_redop(op->redop);
    switch (op->kind) {
    case PSD_OP_BROADCAST:
        note(l, "ncclBroadcast",
             nccl->ncclBroadcast(op->out, op->out, bytes, ncclUint8, op->root, comm, stream));
        break;
    case PSD_OP_ALL_REDUCE:
        note(l, "ncclAllReduce", nccl->ncclAllReduce(op->in, op->out, count, type, redop, comm, stream));
        break;
    case PSD_OP_REDUCE:
        note(l, "ncclReduce", nccl->ncclReduce(op->in, op->out, count, type, redop, op->root, comm, stream));
        break;
    case PSD_OP_ALL_GATHER:
        note(l, "ncclAllGather", nccl->ncclAllGather(op->in, op->out, bytes, ncclUint8, comm, stream));
        break;
    case PSD_OP_REDUCE_SCATTER:
        note(l, "ncclReduceScatter",
             nccl->ncclReduceScatter(op->in, op->out, count, type, redop, comm, stream));
        break;
    default:
        note(l, psd_op_name(op->kind), ncclInternalError);
        break;
    }
    l->sent += bytes;
    l->received += bytes;
}

static void launch_one(launching *l, const psd_op *op)
{
    if (op->p2p_count > 0)
        launch_p2p(l, op);
    else if (op->kind == PSD_OP_BARRIER)
        launch_barrier(l);
    else if (op->kind == PSD_OP_ALL_TO_ALL || op->kind == PSD_OP_ALL_TO_ALL_V)
        launch_all_to_all(l, op);
    else if (op->count == 0)
        return; /* nothing moves, as in NCCL */
    else if (op->kind == PSD_OP_SCATTER)
        launch_scatter(l, op);
    else if (op->kind == PSD_OP_GATHER)
        launch_gather(l, op);
    else
        launch_collective(l, op);
}

/* After what the callers had queued before. */
static void wait_for_callers(launching *l, list *requests)
{
    const cudart_api *cuda = &l->g->backend->libs.cuda;
    for (list *node = requests->next; node != requests && l->result == ncclSuccess; node = node->next) {
        const psd_request *r = LIST_ENTRY(node, psd_request, node);
        note_cuda(l, "cudaStreamWaitEvent", cuda->cudaStreamWaitEvent(l->g->stream, r->event, 0));
    }
}

ncclResult_t launch(psd_backend_group *g, list *requests, launch_failure *failure)
{
    psd_backend *b = g->backend;
    launching l = {.g = g, .nccl = &b->libs.nccl, .result = ncclSuccess, .cuda = cudaSuccess};
    int before = device_enter(&b->device);
    wait_for_callers(&l, requests);
    if (l.result == ncclSuccess) {
        note(&l, "ncclGroupStart", l.nccl->ncclGroupStart());
        for (list *node = requests->next; node != requests && l.result == ncclSuccess; node = node->next)
            launch_one(&l, &LIST_ENTRY(node, psd_request, node)->op);
        ncclResult_t end = l.nccl->ncclGroupEnd();
        note(&l, "ncclGroupEnd", end);
        if (l.result == ncclSuccess)
            l.result = end; /* perhaps ncclInProgress */
    }
    if (l.result != ncclSuccess && l.result != ncclInProgress)
        *failure = (launch_failure){l.what, l.cuda};
    atomic_fetch_add_explicit(&b->bytes_sent, l.sent, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->bytes_received, l.received, memory_order_relaxed);
    device_leave(&b->device, before);
    return l.result;
}
