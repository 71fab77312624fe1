#include "worker/table_wire.h"

#include <string.h>

#include "common/conf.h"

#define MAGIC        UINT32_C(0x54445350) /* "PSDT" */
#define VERSION      1
#define HEADER_BYTES 56

const char *table_kind_name(table_kind kind)
{
    switch (kind) {
    case TABLE_JOIN:
        return "join";
    case TABLE_INIT:
        return "init";
    case TABLE_PUSH:
        return "push";
    case TABLE_PULL:
        return "pull";
    case TABLE_ACK:
        return "ack";
    case TABLE_NAK:
        return "nak";
    case TABLE_SERVER:
        return "server";
    }
    return "?";
}

static void put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << 8 * i;
    return value;
}

uint32_t table_msg_encode(const table_msg *msg, uint8_t out[PSD_TABLE_MSG_BYTES])
{
    size_t text = strnlen(msg->text, PSD_TABLE_TEXT - 1);
    put(out, MAGIC, 4);
    put(out + 4, VERSION, 2);
    put(out + 6, (uint64_t)msg->kind, 1);
    put(out + 7, (uint64_t)msg->answers, 1);
    put(out + 8, msg->table, 4);
    put(out + 12, (uint32_t)msg->status, 4);
    put(out + 16, msg->incarnation, 8);
    put(out + 24, msg->sequence, 8);
    put(out + 32, msg->clock, 8);
    put(out + 40, msg->bytes, 8);
    put(out + 48, text, 8);
    memcpy(out + HEADER_BYTES, msg->text, text);
    return (uint32_t)(HEADER_BYTES + text);
}

static bool kinds_fit(uint64_t kind, uint64_t answers)
{
    if (kind < TABLE_JOIN || kind > TABLE_SERVER)
        return false;
    bool is_answer = kind == TABLE_ACK || kind == TABLE_NAK;
    return is_answer ? answers >= TABLE_JOIN && answers <= TABLE_PULL : answers == 0;
}

bool table_msg_decode(const uint8_t *data, uint32_t bytes, table_msg *out)
{
    if (bytes < HEADER_BYTES || bytes >= PSD_TABLE_MSG_BYTES || get(data, 4) != MAGIC ||
        get(data + 4, 2) != VERSION)
        return false;
    size_t text = bytes - HEADER_BYTES;
    int32_t status = (int32_t)(uint32_t)get(data + 12, 4);
    if (get(data + 48, 8) != text || !kinds_fit(data[6], data[7]) || (data[6] == TABLE_NAK) != (status < 0) ||
        memchr(data + HEADER_BYTES, 0, text) != NULL ||
        !psd_utf8_valid((const char *)data + HEADER_BYTES, text))
        return false;
    *out = (table_msg){
        .kind = (table_kind)data[6],
        .answers = (table_kind)data[7],
        .table = (uint32_t)get(data + 8, 4),
        .status = (psd_status)status,
        .incarnation = get(data + 16, 8),
        .sequence = get(data + 24, 8),
        .clock = get(data + 32, 8),
        .bytes = get(data + 40, 8),
    };
    memcpy(out->text, data + HEADER_BYTES, text);
    return true;
}
