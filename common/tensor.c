#include "common/tensor.h"

#include <string.h>

struct dtype_row {
    const char *name;
    unsigned char bytes;
    bool reduces;
};

static const struct dtype_row dtypes[] = {
#define PSD_X(name, value, text, size, reduces) [value] = {text, size, reduces},
    PSD_DTYPE_MAP(PSD_X)
#undef PSD_X
};
static const char *const redops[] = {[0] = "-",
#define PSD_X(name, value, text) [value] = text,
                                     PSD_REDOP_MAP(PSD_X)
#undef PSD_X
};
static const char *const kinds[] = {
#define PSD_X(name, value, text) [value] = text,
    PSD_OP_MAP(PSD_X)
#undef PSD_X
};

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

bool psd_dtype_valid(int dtype)
{
    return dtype > 0 && dtype < COUNT(dtypes);
}

size_t psd_dtype_bytes(psd_dtype dtype)
{
    return psd_dtype_valid((int)dtype) ? dtypes[dtype].bytes : 0;
}

const char *psd_dtype_name(psd_dtype dtype)
{
    return psd_dtype_valid((int)dtype) ? dtypes[dtype].name : "?";
}

bool psd_dtype_parse(const char *name, psd_dtype *out)
{
    for (int i = 1; i < COUNT(dtypes); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (psd_dtype)i;
            return true;
        }
    }
    return false;
}

bool psd_dtype_is_integer(psd_dtype dtype)
{
    return dtype >= PSD_I8 && dtype <= PSD_U64;
}

bool psd_redop_valid(int redop)
{
    return redop > 0 && redop < COUNT(redops);
}

const char *psd_redop_name(psd_redop redop)
{
    return (int)redop >= 0 && (int)redop < COUNT(redops) ? redops[redop] : "?";
}

bool psd_redop_parse(const char *name, psd_redop *out)
{
    for (int i = 1; i < COUNT(redops); i++) {
        if (strcmp(redops[i], name) == 0) {
            *out = (psd_redop)i;
            return true;
        }
    }
    return false;
}

bool psd_redop_allowed(psd_redop redop, psd_dtype dtype)
{
    if (!psd_redop_valid((int)redop) || !psd_dtype_valid((int)dtype) || !dtypes[dtype].reduces)
        return false;
    return redop < PSD_BAND || psd_dtype_is_integer(dtype);
}

const char *psd_op_name(psd_op_kind kind)
{
    return (int)kind > 0 && (int)kind < COUNT(kinds) ? kinds[kind] : "?";
}

bool psd_shape_count(const int64_t *shape, int ndim, psd_dtype dtype, int64_t *count)
{
    int64_t product = 1;
    int64_t bytes;
    if (ndim < 0 || ndim > PSD_MAX_DIMS)
        return false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(product, shape[i], &product))
            return false;
    }
    if (__builtin_mul_overflow(product, (int64_t)psd_dtype_bytes(dtype), &bytes))
        return false;
    *count = product;
    return true;
}
