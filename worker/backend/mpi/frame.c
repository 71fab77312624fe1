#include "worker/backend/mpi/frame.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "common/tensor.h"

static bool message_is_legal(const frame *f)
{
    if (f->count < 0 || f->bytes > (uint64_t)INT64_MAX)
        return false;
    if (f->type == FRAME_EAGER && f->bytes != f->payload)
        return false;
    if (f->channel == FRAME_COLL)
        return f->kind >= PSD_OP_BROADCAST && f->kind <= PSD_OP_BARRIER;
    size_t size = psd_dtype_bytes((psd_dtype)f->dtype);
    return f->kind == PSD_OP_SEND && size != 0 && f->tag >= 0 && f->bytes % size == 0 &&
           f->bytes / size == (uint64_t)f->count;
}

bool frame_check(frame *f, size_t received, char *why, size_t why_bytes)
{
    const char *what = NULL;
    bool has_payload = f->type == FRAME_EAGER;
    if (received < sizeof *f)
        what = "shorter than a header";
    else if (f->magic != FRAME_MAGIC)
        what = "not psd's, or of another byte order";
    else if (f->type == 0 || f->type >= FRAME_TYPES || f->channel > FRAME_COLL)
        what = "of an unknown type";
    else if (received != sizeof *f + f->payload || (f->payload > 0 && !has_payload))
        what = "of a wrong length";
    else if ((f->type == FRAME_EAGER || f->type == FRAME_RTS) && !message_is_legal(f))
        what = "one whose header contradicts itself";
    else if (f->type == FRAME_CTS && (f->bytes == 0 || f->bytes > INT32_MAX))
        what = "one whose header contradicts itself";
    if (what != NULL) {
        snprintf(why, why_bytes, "%s (type %u, %zu bytes)", what, received < sizeof *f ? 0u : f->type,
                 received);
        return false;
    }
    f->label[FRAME_LABEL - 1] = '\0';
    f->label[psd_utf8_prefix(f->label, strlen(f->label))] = '\0';
    for (char *c = f->label; *c != '\0'; c++)
        if (iscntrl((unsigned char)*c) != 0)
            *c = '?';
    return true;
}

fingerprint fingerprint_of_frame(const frame *f)
{
    return (fingerprint){
        .kind = f->kind, .dtype = f->dtype, .redop = f->redop, .root = f->tag, .count = f->count};
}
