#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire_body.h"

/* A decoded message may take several times its frame: a one-byte number becomes eight bytes, a text a pointer
 * more. */
#define DECODE_BUDGET (8 * (size_t)PSD_MAX_FRAME)

#define PSD_X(type, field, codec)                                                                            \
    _Static_assert((int)PSDPB__ENVELOPE__BODY_##type == 16 + (int)PSD_MSG_##type, "field number of " #type);
PSD_WIRE_BODY_MAP(PSD_X)
PSD_X(RESYNC, resync, none)
PSD_X(BYE_ACK, bye_ack, none)
PSD_X(CANCEL, cancel, none)
#undef PSD_X

typedef struct decoded {
    psd_msg_box box; /* first: a box pointer is a pointer to this */
    psd_arena arena;
} decoded;

static psd_status check_prefix(const uint8_t *frame, size_t bytes, char *why, size_t why_bytes)
{
    static const uint8_t magic[4] = {0x0d, 'p', 's', 'd'};
    if (bytes > PSD_MAX_FRAME) {
        snprintf(why, why_bytes, "a message of %zu bytes is over the limit of %d", bytes, PSD_MAX_FRAME);
        return PSD_ERR_LIMIT;
    }
    if (bytes < PSD_WIRE_PREFIX || memcmp(frame, magic, sizeof magic) != 0) {
        snprintf(why, why_bytes, "%zu bytes that are not a psd message", bytes);
        return PSD_ERR_FORMAT;
    }
    if (frame[4] != PSD_PROTOCOL_VERSION) {
        snprintf(why, why_bytes,
                 "the peer speaks protocol version %d, this program version %d: use the same release",
                 frame[4], PSD_PROTOCOL_VERSION);
        return PSD_ERR_PROTOCOL;
    }
    return PSD_OK;
}

static psd_status unpack(const uint8_t *frame, size_t bytes, decoded *out, char *why, size_t why_bytes)
{
    ProtobufCAllocator allocator = psd_arena_allocator(&out->arena);
    Psdpb__Envelope *envelope = psdpb__envelope__unpack(&allocator, bytes, frame);
    if (envelope == NULL && out->arena.over_budget) {
        snprintf(why, why_bytes, "a message of %zu bytes takes over %zu to decode", bytes, DECODE_BUDGET);
        return PSD_ERR_LIMIT;
    }
    if (envelope == NULL && out->arena.no_memory) {
        snprintf(why, why_bytes, "no memory for a message of %zu bytes", bytes);
        return PSD_ERR_NOMEM;
    }
    if (envelope == NULL) {
        snprintf(why, why_bytes, "a psd message of %zu bytes that is damaged", bytes);
        return PSD_ERR_FORMAT;
    }
    if (envelope->version != PSD_WIRE_VERSION) {
        snprintf(why, why_bytes, "a psd message that names two versions");
        return PSD_ERR_FORMAT;
    }
    return psd_wire_read(envelope, &out->arena, &out->box.msg, why, why_bytes);
}

psd_status psd_wire_decode(const void *frame, size_t bytes, psd_msg_box **out, char *why, size_t why_bytes)
{
    psd_status status = check_prefix(frame, bytes, why, why_bytes);
    if (status != PSD_OK)
        return status;
    decoded *d = calloc(1, sizeof *d);
    if (d == NULL) {
        snprintf(why, why_bytes, "no memory for a message");
        return PSD_ERR_NOMEM;
    }
    psd_arena_init(&d->arena, DECODE_BUDGET);
    d->box.arena = &d->arena;
    status = unpack(frame, bytes, d, why, why_bytes);
    if (status != PSD_OK)
        psd_msg_box_free(&d->box);
    else
        *out = &d->box;
    return status;
}

/* ------------------------------------------------------------------------------------------------ peeking */

/* The part of a frame that has not been read yet. */
typedef struct tail {
    const uint8_t *at;
    const uint8_t *end;
} tail;

static bool take_varint(tail *t, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && t->at < t->end; shift += 7) {
        uint8_t byte = *t->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* Takes the value of a field, by the wire types of protobuf's encoding; *number is set for a varint. */
static bool take_value(tail *t, unsigned wire_type, uint64_t *number)
{
    uint64_t bytes = 0;
    switch (wire_type) {
    case 0:
        return take_varint(t, number);
    case 1:
        bytes = 8;
        break;
    case 2:
        if (!take_varint(t, &bytes))
            return false;
        break;
    case 5:
        bytes = 4;
        break;
    default:
        return false;
    }
    if (bytes > (uint64_t)(t->end - t->at))
        return false;
    t->at += bytes;
    return true;
}

void psd_wire_peek(const void *frame, size_t bytes, psd_msg_type *type, uint64_t *request)
{
    enum { REQUEST_FIELD = 5, FIRST_BODY = 16 };
    char why[128];
    uint64_t key;
    tail t = {.at = frame, .end = (const uint8_t *)frame + bytes};
    *type = PSD_MSG_NONE;
    *request = 0;
    if (check_prefix(frame, bytes, why, sizeof why) != PSD_OK)
        return;
    while (take_varint(&t, &key)) {
        uint64_t number = 0;
        unsigned wire_type = key & 7;
        uint64_t field = key >> 3;
        if (field > FIRST_BODY && field < FIRST_BODY + PSD_MSG_TYPES && wire_type == 2)
            *type = (psd_msg_type)(field - FIRST_BODY);
        if (!take_value(&t, wire_type, &number))
            return;
        if (field == REQUEST_FIELD && wire_type == 0)
            *request = number;
    }
}

void psd_msg_box_free(psd_msg_box *box)
{
    if (box == NULL)
        return;
    psd_arena_free(box->arena);
    free(box);
}
