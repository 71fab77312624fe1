#include "worker/backend/host/frame.h"

#include <stdio.h>
#include <string.h>

#include "common/tensor.h"
#include "worker/backend/backend.h"

/* The most payload that a frame of this type may carry. */
static uint32_t payload_limit(frame_type type)
{
    switch (type) {
    case FRAME_EAGER:
        return FRAME_MAX_EAGER;
    case FRAME_DATA:
        return FRAME_MAX_SLICE;
    case FRAME_PING:
        return PSD_MAX_TOKEN;
    case FRAME_BROKEN:
        return PSD_MAX_TEXT;
    case FRAME_COMPARE:
        return FRAME_MAX_LABEL;
    case FRAME_CHAN:
        return PSD_CHAN_MAX;
    default:
        return 0;
    }
}

bool frame_is_message(frame_type type)
{
    return type == FRAME_EAGER || type == FRAME_RTS || type == FRAME_EXPOSE;
}

static bool message_is_legal(const frame *f)
{
    if (f->count < 0 || f->bytes > (uint64_t)INT64_MAX)
        return false;
    if (f->type == FRAME_EAGER && f->bytes != f->payload)
        return false;
    if (f->type == FRAME_RTS && f->other > FRAME_ACCESS_PLACE)
        return false;
    if (f->type == FRAME_EXPOSE && f->channel != FRAME_COLL)
        return false;
    if (f->channel == FRAME_COLL)
        return f->kind >= PSD_OP_BROADCAST && f->kind <= PSD_OP_BARRIER;
    size_t size = psd_dtype_bytes((psd_dtype)f->dtype);
    return f->kind == PSD_OP_SEND && size != 0 && f->tag >= 0 && f->bytes / size == (uint64_t)f->count &&
           f->bytes % size == 0;
}

bool frame_check(const frame *f, char *why, size_t why_bytes)
{
    const char *what = NULL;
    if (f->magic != FRAME_MAGIC)
        what = "not a psd frame, or of another byte order";
    else if (f->type == 0 || f->type >= FRAME_TYPES || f->channel > FRAME_COLL)
        what = "a frame of unknown type";
    else if (f->payload > payload_limit((frame_type)f->type))
        what = "a frame that is too long";
    else if (frame_is_message((frame_type)f->type) && !message_is_legal(f))
        what = "a message header that contradicts itself";
    if (what != NULL)
        snprintf(why, why_bytes, "%s (type %u, %u bytes)", what, f->type, f->payload);
    return what == NULL;
}

/* Bytes of the UTF-8 character that begins here; 0 if it is none. Rare blocks (e0, f0, f4) are refused with
 * the overlong forms. */
static size_t utf8_bytes(const unsigned char *at)
{
    size_t more = at[0] >= 0xc2 && at[0] < 0xe0   ? 1
                  : at[0] >= 0xe1 && at[0] < 0xf0 ? 2
                  : at[0] >= 0xf1 && at[0] < 0xf4 ? 3
                                                  : 0;
    if (more == 0)
        return at[0] < 0x80 ? 1 : 0;
    for (size_t i = 1; i <= more; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    }
    return at[0] == 0xed && at[1] >= 0xa0 ? 0 : more + 1;
}

void text_clean(char *text)
{
    unsigned char *at = (unsigned char *)text;
    while (*at != '\0') {
        size_t bytes = utf8_bytes(at);
        if (bytes == 0 || (bytes == 1 && (*at < 0x20 || *at == 0x7f))) {
            *at = '?';
            bytes = 1;
        }
        at += bytes;
    }
}
