#include "worker/backend/fingerprint.h"

#include <stdio.h>

#include "common/conf.h"
#include "common/tensor.h"

#define CALL_BYTES 300

fingerprint fingerprint_of(const psd_op *op)
{
    fingerprint fp = {
        .kind = (uint8_t)op->kind,
        .dtype = (uint8_t)op->dtype,
        .redop = (uint8_t)op->redop,
        .root = op->root,
        .count = op->kind == PSD_OP_ALL_TO_ALL_V || op->kind == PSD_OP_BARRIER ? 0 : op->count,
    };
    return fp;
}

bool fingerprint_equal(const fingerprint *a, const fingerprint *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->redop == b->redop && a->root == b->root &&
           a->count == b->count;
}

void fingerprint_format(const fingerprint *fp, const char *label, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s", psd_op_name((psd_op_kind)fp->kind));
    if (fp->dtype != 0)
        psd_append(out, bytes, " %s", psd_dtype_name((psd_dtype)fp->dtype));
    if (fp->kind != PSD_OP_BARRIER && fp->kind != PSD_OP_ALL_TO_ALL_V)
        psd_append(out, bytes, " count %lld", (long long)fp->count);
    if (fp->redop != 0)
        psd_append(out, bytes, " %s", psd_redop_name((psd_redop)fp->redop));
    if (fp->root >= 0)
        psd_append(out, bytes, " root %d", fp->root);
    else if (fp->root != -1)
        psd_append(out, bytes, " of several tensors (their counts hash to %08x)", (unsigned)(-2 - fp->root));
    if (label != NULL && label[0] != '\0')
        psd_append(out, bytes, " (%s)", label);
}

void fingerprint_format_mismatch(uint32_t group, uint64_t ordinal, fingerprint_call a, fingerprint_call b,
                                 char *out, size_t bytes)
{
    char first[CALL_BYTES], second[CALL_BYTES];
    fingerprint_call low = a.rank < b.rank ? a : b, high = a.rank < b.rank ? b : a;
    fingerprint_format(low.what, low.label, first, sizeof first);
    fingerprint_format(high.what, high.label, second, sizeof second);
    snprintf(out, bytes, "group %u collective %llu: rank %d called %s, rank %d called %s", group,
             (unsigned long long)ordinal, low.rank, first, high.rank, second);
}

void fingerprint_format_long_ago(uint32_t group, uint64_t ordinal, fingerprint_call theirs, int32_t rank,
                                 uint64_t next, char *out, size_t bytes)
{
    char what[CALL_BYTES];
    fingerprint_format(theirs.what, theirs.label, what, sizeof what);
    snprintf(out, bytes,
             "group %u collective %llu: rank %d called %s, which rank %d completed long ago (it is at %llu)",
             group, (unsigned long long)ordinal, theirs.rank, what, rank, (unsigned long long)next);
}
