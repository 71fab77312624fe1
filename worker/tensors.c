/* psd_tensor as a value: making one over the caller's memory, counting its elements. */
#include <string.h>

#include "common/tensor.h"
#include "worker/psd.h"

psd_tensor psd_tensor_nd(void *data, const int64_t *shape, int32_t ndim, psd_dtype dtype, const char *name)
{
    psd_tensor tensor = {.size = sizeof tensor, .data = data, .dtype = dtype, .ndim = ndim, .name = name};
    /* A shape that is not valid is kept as it is: the operation that gets the tensor refuses it by name. */
    if (shape != NULL && ndim > 0 && ndim <= PSD_MAX_DIMS)
        memcpy(tensor.shape, shape, (size_t)ndim * sizeof shape[0]);
    else if (ndim != 0)
        tensor.ndim = -1;
    return tensor;
}

psd_tensor psd_tensor_1d(void *data, int64_t count, psd_dtype dtype, const char *name)
{
    return psd_tensor_nd(data, &count, 1, dtype, name);
}

psd_tensor psd_tensor_slice(const psd_tensor *tensor, int64_t first, int64_t count)
{
    psd_tensor slice = {.size = sizeof slice, .ndim = -1};
    int64_t have = psd_tensor_count(tensor);
    if (have < 0)
        return slice;
    slice = psd_tensor_1d(tensor->data, count, tensor->dtype, tensor->name);
    slice.device = tensor->device;
    slice.device_index = tensor->device_index;
    if (first < 0 || count < 0 || first > have || count > have - first)
        slice.ndim = -1;
    else if (tensor->data != NULL)
        slice.data = (unsigned char *)tensor->data + (size_t)first * psd_dtype_bytes(tensor->dtype);
    return slice;
}

int64_t psd_tensor_count(const psd_tensor *tensor)
{
    int64_t count = 0;
    if (tensor == NULL || tensor->ndim < 0 || tensor->ndim > PSD_MAX_DIMS ||
        !psd_dtype_valid((int)tensor->dtype) ||
        !psd_shape_count(tensor->shape, tensor->ndim, tensor->dtype, &count))
        return -1;
    return count;
}
