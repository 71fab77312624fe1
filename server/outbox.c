#include "server/outbox.h"

#include <stdlib.h>
#include <string.h>

#define LARGE_BYTES   ((size_t)16 << 20)
#define LARGE_LETTERS ((size_t)1 << 17)

static bool reserve_letter(psd_outbox *outbox)
{
    if (outbox->count < outbox->capacity)
        return true;
    size_t capacity = outbox->capacity == 0 ? 256 : outbox->capacity * 2;
    psd_letter *grown = realloc(outbox->letters, capacity * sizeof(psd_letter));
    if (grown == NULL)
        return false;
    outbox->letters = grown;
    outbox->capacity = capacity;
    return true;
}

static bool reserve_frame(psd_outbox *outbox, size_t bytes)
{
    if (outbox->frames_capacity - outbox->bytes >= bytes)
        return true;
    size_t capacity = (outbox->bytes + bytes) * 2;
    uint8_t *grown = realloc(outbox->frames, capacity);
    if (grown == NULL)
        return false;
    outbox->frames = grown;
    outbox->frames_capacity = capacity;
    return true;
}

psd_status psd_outbox_put(psd_outbox *outbox, psd_peer peer, const psd_msg *msg)
{
    psd_status status = psd_wire_encode(msg, &outbox->buffer);
    if (status != PSD_OK)
        return status;
    size_t bytes = outbox->buffer.bytes;
    if (!reserve_letter(outbox) || !reserve_frame(outbox, bytes))
        return PSD_ERR_NOMEM;
    memcpy(outbox->frames + outbox->bytes, outbox->buffer.data, bytes);
    outbox->letters[outbox->count++] = (psd_letter){.peer = peer, .offset = outbox->bytes, .bytes = bytes};
    outbox->bytes += bytes;
    return PSD_OK;
}

bool psd_outbox_is_large(const psd_outbox *outbox)
{
    return outbox->bytes > LARGE_BYTES || outbox->count > LARGE_LETTERS;
}

void psd_outbox_clear(psd_outbox *outbox)
{
    outbox->count = 0;
    outbox->bytes = 0;
}

void psd_outbox_free(psd_outbox *outbox)
{
    free(outbox->letters);
    free(outbox->frames);
    psd_wire_buffer_free(&outbox->buffer);
    *outbox = (psd_outbox){0};
}
