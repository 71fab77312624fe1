/* Checks of operations' arguments, each with its sentence. */
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "worker/device_memory.h"
#include "worker/ops.h"

psd_status op_check_tensor(const op_call *call, const char *param, const psd_tensor *tensor, int64_t *count)
{
    if (tensor == NULL)
        return op_error(call, PSD_ERR_INVAL, "%s is NULL; give a tensor", param);
    if (tensor->size != sizeof *tensor)
        return op_error(call, PSD_ERR_INVAL,
                        "%s->size is %zu, a psd_tensor has %zu; make it with psd_tensor_1d or _nd", param,
                        tensor->size, sizeof *tensor);
    if (!psd_dtype_valid((int)tensor->dtype))
        return op_error(call, PSD_ERR_INVAL, "%s->dtype is %d; it is one of the psd_dtype", param,
                        (int)tensor->dtype);
    if (tensor->ndim < 0 || tensor->ndim > PSD_MAX_DIMS)
        return op_error(call, PSD_ERR_INVAL, "%s->ndim is %d; it is 0 to %d", param, tensor->ndim,
                        PSD_MAX_DIMS);
    for (int32_t i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] < 0)
            return op_error(call, PSD_ERR_INVAL, "%s->shape[%d] is %lld; it is 0 or more", param, i,
                            (long long)tensor->shape[i]);
    int64_t elements = psd_tensor_count(tensor);
    if (elements < 0)
        return op_error(call, PSD_ERR_INVAL, "%s has more elements than 2^63 bytes can hold", param);
    if (tensor->data == NULL && elements > 0)
        return op_error(call, PSD_ERR_INVAL, "%s->data is NULL, with %lld elements", param,
                        (long long)elements);
    if (tensor->device != PSD_DEVICE_HOST || (call->ctx->ops->caps & PSD_CAP_HOST_MEMORY) == 0) {
        char why[PSD_MAX_TEXT];
        psd_status status = psd_memory_check(call->ctx, tensor, elements, why, sizeof why);
        if (status != PSD_OK)
            return op_error(call, status, "%s %s", param, why);
    }
    *count = elements;
    return PSD_OK;
}

psd_status op_check_rank(const op_call *call, const char *param, int32_t rank)
{
    if (rank < 0 || rank >= call->group->size)
        return op_error(call, PSD_ERR_INVAL, "%s is %d; ranks of this group are 0 to %d", param, rank,
                        call->group->size - 1);
    return PSD_OK;
}

psd_status op_check_tag(const op_call *call, int32_t tag, bool receives)
{
    uint32_t caps = call->ctx->ops->caps;
    if (receives && tag == PSD_ANY_TAG) {
        if ((caps & PSD_CAP_ANY_SOURCE) == 0)
            return op_error(call, PSD_ERR_UNSUPPORTED, "backend %s has no PSD_ANY_TAG", call->ctx->ops->name);
        return PSD_OK;
    }
    if (tag < 0 || tag > PSD_MAX_TAG)
        return op_error(call, PSD_ERR_INVAL, "the tag is %d; it is 0 to %d%s", tag, PSD_MAX_TAG,
                        receives ? ", or PSD_ANY_TAG" : "");
    if (tag != 0 && (caps & PSD_CAP_TAGS) == 0)
        return op_error(call, PSD_ERR_UNSUPPORTED, "the tag is %d; backend %s has no tags but 0", tag,
                        call->ctx->ops->name);
    return PSD_OK;
}

psd_status op_check_redop(const op_call *call, psd_redop redop, psd_dtype dtype)
{
    if (!psd_redop_valid((int)redop))
        return op_error(call, PSD_ERR_INVAL, "redop is %d; it is one of the psd_redop", (int)redop);
    if (!psd_redop_allowed(redop, dtype))
        return op_error(call, PSD_ERR_INVAL, "%s is not defined for %s", psd_redop_name(redop),
                        psd_dtype_name(dtype));
    bool bits = redop == PSD_BAND || redop == PSD_BOR || redop == PSD_BXOR;
    if (bits && (call->ctx->ops->caps & PSD_CAP_BIT_OPS) == 0)
        return op_error(call, PSD_ERR_UNSUPPORTED, "backend %s has no %s", call->ctx->ops->name,
                        psd_redop_name(redop));
    return PSD_OK;
}

psd_status op_check_same_dtype(const op_call *call, const psd_tensor *in, const psd_tensor *out)
{
    if (in->dtype != out->dtype)
        return op_error(call, PSD_ERR_INVAL, "in is %s and out is %s; their dtypes must be the same",
                        psd_dtype_name(in->dtype), psd_dtype_name(out->dtype));
    return PSD_OK;
}

psd_status op_check_count(const op_call *call, const char *param, int64_t have, int64_t times, int64_t c)
{
    if (c <= INT64_MAX / times && have == times * c)
        return PSD_OK;
    if (times == 1)
        return op_error(call, PSD_ERR_INVAL, "%s has %lld elements, the other tensor has %lld", param,
                        (long long)have, (long long)c);
    return op_error(call, PSD_ERR_INVAL, "%s has %lld elements, it needs %lld for each of %lld ranks", param,
                    (long long)have, (long long)c, (long long)times);
}

static uintptr_t start_of(const psd_tensor *t)
{
    return (uintptr_t)t->data;
}

static uintptr_t end_of(const psd_tensor *t)
{
    return (uintptr_t)t->data + (uintptr_t)psd_tensor_count(t) * psd_dtype_bytes(t->dtype);
}

static bool overlap(const psd_tensor *a, const psd_tensor *b)
{
    return start_of(a) < end_of(b) && start_of(b) < end_of(a);
}

psd_status op_check_overlap(const op_call *call, const psd_tensor *in, const psd_tensor *out)
{
    if (overlap(in, out))
        return op_error(call, PSD_ERR_INVAL, "in and out overlap; this operation does not work in place");
    return PSD_OK;
}

psd_status op_check_in_place(const op_call *call, const psd_tensor *in, int64_t in_offset,
                             const psd_tensor *out, int64_t out_offset)
{
    if (overlap(in, out) && start_of(in) + (uintptr_t)in_offset != start_of(out) + (uintptr_t)out_offset)
        return op_error(
            call, PSD_ERR_INVAL,
            "in and out overlap, but not as this operation works in place (see the table in psd.h)");
    return PSD_OK;
}
