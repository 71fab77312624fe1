/* The communication functions: their arguments are checked here, then they join the thread's group. */
#include "nc.h"

/* NCCL, src/misc/argcheck.cc: pointers are looked at with NCCL_CHECK_POINTERS=1. The simulator does it unless
 * that is 0, because what happens otherwise, an illegal address in a kernel, fails the whole process. */
static ncclResult_t check_pointer(const nc_op *op, const void *pointer, size_t bytes, const char *name,
                                  const char *call)
{
    gpusim_pointer at = psd_gpusim_pointer(pointer);
    if (pointer == NULL || at.type == cudaMemoryTypeUnregistered) {
        nc_warn("%s : %s %p is not a valid pointer", call, name, pointer);
        return ncclInvalidArgument;
    }
    if (at.type == cudaMemoryTypeDevice && at.device != op->comm->device) {
        nc_warn("%s : %s allocated on device %d mismatchs with NCCL device %d", call, name, at.device,
                op->comm->device);
        return ncclInvalidArgument;
    }
    if (at.bytes < bytes) {
        nc_warn("%s : %s %p has %zu bytes to the end of its allocation, needs %zu", call, name, pointer,
                at.bytes, bytes);
        return ncclInvalidArgument;
    }
    return ncclSuccess;
}

/* How many times count the operands have; 0: this rank does not use it. */
static void operands(const nc_op *op, size_t *in, size_t *out)
{
    size_t ranks = (size_t)op->comm->ranks;
    bool is_root = op->root == op->comm->rank;
    *in = *out = 1;
    switch (op->kind) {
    case NC_SEND:
        *out = 0;
        break;
    case NC_RECV:
        *in = 0;
        break;
    case NC_BROADCAST:
        *in = is_root;
        break;
    case NC_REDUCE:
        *out = is_root;
        break;
    case NC_ALL_GATHER:
        *out = ranks;
        break;
    case NC_REDUCE_SCATTER:
        *in = ranks;
        break;
    case NC_ALL_REDUCE:
        break;
    }
}

static bool redop_known(const nc_op *op)
{
    int custom = (int)op->redop - ncclNumOps;
    if ((int)op->redop < 0 || custom >= NC_REDOPS)
        return false;
    return custom < 0 || (op->comm->redops[custom].used && op->comm->redops[custom].dtype == op->dtype);
}

static ncclResult_t check(const nc_op *op, const char *call)
{
    size_t size = nc_type_size(op->dtype), in = 0, out = 0;
    ncclResult_t result = ncclSuccess;
    if (op->root < 0 || op->root >= op->comm->ranks) {
        nc_warn("%s : invalid root %d (root should be in the 0..%d range)", call, op->root, op->comm->ranks);
        return ncclInvalidArgument;
    }
    if (size == 0) {
        nc_warn("%s : invalid type %d", call, (int)op->dtype);
        return ncclInvalidArgument;
    }
    if (op->count > SIZE_MAX / size / (size_t)op->comm->ranks) {
        nc_warn("%s : count %zu is too large", call, op->count);
        return ncclInvalidArgument;
    }
    if (!redop_known(op)) {
        nc_warn("%s : invalid reduction operation %d", call, (int)op->redop);
        return ncclInvalidArgument;
    }
    if (op->comm->finalized) {
        nc_warn("%s : communicator was finalized", call);
        return ncclInvalidUsage;
    }
    if (op->count == 0 || !settings_get()->checks_pointers)
        return ncclSuccess;
    operands(op, &in, &out);
    if (in > 0)
        result = check_pointer(op, op->in, in * op->count * size, "sendbuff", call);
    if (result == ncclSuccess && out > 0)
        result = check_pointer(op, op->out, out * op->count * size, "recvbuff", call);
    return result;
}

/* NCCL, src/enqueue.cc, taskAppend: "Empty collectives can be discarded"; an empty send or receive is one. */
static ncclResult_t enqueue(nc_op op, ncclComm_t handle, const char *call)
{
    nc_group_enter();
    ncclResult_t result = nc_call_begin(handle, call);
    if (result != ncclSuccess)
        return nc_group_leave(result);
    op.comm = handle;
    result = check(&op, call);
    if (result == ncclSuccess && (op.count > 0 || op.kind == NC_SEND || op.kind == NC_RECV))
        result = nc_group_add_op(&op);
    result = nc_group_leave(result);
    nc_call_end(handle);
    return result;
}

GPUSIM_EXPORT ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t dtype, int peer,
                                    ncclComm_t comm, cudaStream_t stream)
{
    return enqueue(
        (nc_op){.kind = NC_SEND, .in = in, .count = count, .dtype = dtype, .root = peer, .stream = stream},
        comm, "Send");
}

GPUSIM_EXPORT ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                                    cudaStream_t stream)
{
    return enqueue(
        (nc_op){.kind = NC_RECV, .out = out, .count = count, .dtype = dtype, .root = peer, .stream = stream},
        comm, "Recv");
}

GPUSIM_EXPORT ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t dtype,
                                         int root, ncclComm_t comm, cudaStream_t stream)
{
    nc_op op = {.kind = NC_BROADCAST, .in = in, .out = out, .count = count, .dtype = dtype, .root = root};
    op.stream = stream;
    return enqueue(op, comm, "Broadcast");
}

GPUSIM_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t dtype, int root,
                                     ncclComm_t comm, cudaStream_t stream)
{
    return ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream);
}

GPUSIM_EXPORT ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t dtype,
                                      ncclRedOp_t redop, int root, ncclComm_t comm, cudaStream_t stream)
{
    nc_op op = {.kind = NC_REDUCE, .in = in, .out = out, .count = count, .dtype = dtype, .redop = redop};
    op.root = root;
    op.stream = stream;
    return enqueue(op, comm, "Reduce");
}

GPUSIM_EXPORT ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t dtype,
                                         ncclRedOp_t redop, ncclComm_t comm, cudaStream_t stream)
{
    nc_op op = {.kind = NC_ALL_REDUCE, .in = in, .out = out, .count = count, .dtype = dtype, .redop = redop};
    op.stream = stream;
    return enqueue(op, comm, "AllReduce");
}

GPUSIM_EXPORT ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t dtype,
                                             ncclRedOp_t redop, ncclComm_t comm, cudaStream_t stream)
{
    nc_op op = {
        .kind = NC_REDUCE_SCATTER, .in = in, .out = out, .count = count, .dtype = dtype, .redop = redop};
    op.stream = stream;
    return enqueue(op, comm, "ReduceScatter");
}

GPUSIM_EXPORT ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t dtype,
                                         ncclComm_t comm, cudaStream_t stream)
{
    nc_op op = {
        .kind = NC_ALL_GATHER, .in = in, .out = out, .count = count, .dtype = dtype, .stream = stream};
    return enqueue(op, comm, "AllGather");
}
