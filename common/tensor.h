/* dtypes, reductions and operation kinds as data: sizes, names, what may be reduced. */
#ifndef PSD_COMMON_TENSOR_H
#define PSD_COMMON_TENSOR_H

#include <stdbool.h>

#include "common/psd_types.h"

bool psd_dtype_valid(int dtype);
size_t psd_dtype_bytes(psd_dtype dtype);     /* 0 for an unknown code */
const char *psd_dtype_name(psd_dtype dtype); /* "?" for an unknown code */
bool psd_dtype_parse(const char *name, psd_dtype *out);
bool psd_dtype_is_integer(psd_dtype dtype); /* bool is not */

bool psd_redop_valid(int redop);
const char *psd_redop_name(psd_redop redop); /* "-" for 0, "?" for an unknown code */
bool psd_redop_parse(const char *name, psd_redop *out);
/* May this dtype be reduced with this operation? */
bool psd_redop_allowed(psd_redop redop, psd_dtype dtype);

const char *psd_op_name(psd_op_kind kind); /* "?" for an unknown code */

/* Product of the dimensions; false on a negative dimension or overflow of int64_t or of count * element size.
 */
bool psd_shape_count(const int64_t *shape, int ndim, psd_dtype dtype, int64_t *count);

#endif
