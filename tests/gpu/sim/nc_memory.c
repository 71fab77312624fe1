/* Memory for NCCL, registration, and custom reductions. */
#include "nc.h"

#include <stdlib.h>
#include <string.h>

struct nc_registration {
    nc_registration *next;
};

GPUSIM_EXPORT ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    if (out == NULL || bytes == 0)
        return ncclInvalidArgument;
    return cudaMalloc(out, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

GPUSIM_EXPORT ncclResult_t ncclMemFree(void *pointer)
{
    return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

void nc_registrations_free(nc_registration *list)
{
    while (list != NULL) {
        nc_registration *next = list->next;
        free(list);
        list = next;
    }
}

/* User guide, "User Buffer Registration": device memory of the communicator's device. */
GPUSIM_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
    ncclResult_t result = nc_call_begin(comm, "CommRegister");
    if (result != ncclSuccess)
        return result;
    gpusim_pointer at = psd_gpusim_pointer(buffer);
    nc_registration *made = NULL;
    if (handle == NULL || at.type != cudaMemoryTypeDevice || at.device != comm->device || bytes == 0 ||
        at.bytes < bytes) {
        nc_warn("CommRegister : buffer %p is not %zu bytes of device %d", buffer, bytes, comm->device);
        result = ncclInvalidArgument;
    } else if ((made = calloc(1, sizeof *made)) == NULL) {
        result = ncclSystemError;
    } else {
        made->next = comm->registered;
        comm->registered = made;
        *handle = made;
    }
    nc_call_end(comm);
    return result;
}

GPUSIM_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    ncclResult_t result = nc_call_begin(comm, "CommDeregister");
    if (result != ncclSuccess)
        return result;
    nc_registration **at = &comm->registered;
    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    nc_registration *gone = *at;
    if (gone != NULL)
        *at = gone->next;
    else
        nc_warn("CommDeregister : handle %p is unknown to this communicator", handle);
    free(gone);
    nc_call_end(comm);
    return gone != NULL ? ncclSuccess : ncclInvalidArgument;
}

/* User guide, "User Defined Reduction Operators". */
GPUSIM_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t dtype,
                                                    ncclScalarResidence_t residence, ncclComm_t comm)
{
    ncclResult_t result = nc_call_begin(comm, "RedOpCreatePreMulSum");
    if (result != ncclSuccess)
        return result;
    int at = 0;
    while (at < NC_REDOPS && comm->redops[at].used)
        at++;
    size_t size = nc_type_size(dtype);
    if (op == NULL || scalar == NULL || size == 0 || at == NC_REDOPS) {
        result = at == NC_REDOPS ? ncclInternalError : ncclInvalidArgument;
    } else {
        nc_redop *made = &comm->redops[at];
        *made = (nc_redop){
            .used = true, .dtype = dtype, .on_device = residence == ncclScalarDevice, .scalar = scalar};
        if (!made->on_device)
            memcpy(made->value, scalar, size);
        *op = (ncclRedOp_t)(ncclNumOps + at);
    }
    nc_call_end(comm);
    return result;
}

GPUSIM_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    ncclResult_t result = nc_call_begin(comm, "RedOpDestroy");
    if (result != ncclSuccess)
        return result;
    int at = (int)op - ncclNumOps;
    if (at < 0 || at >= NC_REDOPS || !comm->redops[at].used)
        result = ncclInvalidArgument;
    else
        comm->redops[at].used = false;
    nc_call_end(comm);
    return result;
}
