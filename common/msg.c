#include "common/msg.h"

#include <string.h>

static const char *const names[] = {
    [PSD_MSG_NONE] = "none",
    [PSD_MSG_HELLO] = "hello",
    [PSD_MSG_HEARTBEAT] = "heartbeat",
    [PSD_MSG_GROUP_OPEN] = "group_open",
    [PSD_MSG_GROUP_TOKEN] = "group_token",
    [PSD_MSG_GROUP_READY] = "group_ready",
    [PSD_MSG_GROUP_FAIL] = "group_fail",
    [PSD_MSG_GROUP_CLOSE] = "group_close",
    [PSD_MSG_PLAN_OPEN] = "plan_open",
    [PSD_MSG_PLAN_NEXT] = "plan_next",
    [PSD_MSG_PLAN_READY] = "plan_ready",
    [PSD_MSG_PLAN_PROGRESS] = "plan_progress",
    [PSD_MSG_PLAN_CLOSE] = "plan_close",
    [PSD_MSG_TABLE_OPEN] = "table_open",
    [PSD_MSG_TABLE_READY] = "table_ready",
    [PSD_MSG_TABLE_PROGRESS] = "table_progress",
    [PSD_MSG_TABLE_CLOSE] = "table_close",
    [PSD_MSG_BYE] = "bye",
    [PSD_MSG_WAITING] = "waiting",
    [PSD_MSG_WELCOME] = "welcome",
    [PSD_MSG_REFUSE] = "refuse",
    [PSD_MSG_RESYNC] = "resync",
    [PSD_MSG_GROUP_ASK_TOKEN] = "group_ask_token",
    [PSD_MSG_GROUP_OPENED] = "group_opened",
    [PSD_MSG_GROUP_GO] = "group_go",
    [PSD_MSG_ABORT] = "abort",
    [PSD_MSG_PLAN_STEPS] = "plan_steps",
    [PSD_MSG_PLAN_GO] = "plan_go",
    [PSD_MSG_TABLE_ASSIGN] = "table_assign",
    [PSD_MSG_TABLE_OPENED] = "table_opened",
    [PSD_MSG_TABLE_FREE] = "table_free",
    [PSD_MSG_BYE_ACK] = "bye_ack",
    [PSD_MSG_STOP] = "stop",
    [PSD_MSG_QUERY] = "query",
    [PSD_MSG_REPLY] = "reply",
    [PSD_MSG_CANCEL] = "cancel",
    [PSD_MSG_STUCK] = "stuck",
    [PSD_MSG_SNAPSHOT_ASK] = "snapshot_ask",
    [PSD_MSG_SNAPSHOT] = "snapshot",
    [PSD_MSG_INCIDENT] = "incident",
    [PSD_MSG_LOG_ASK] = "log_ask",
    [PSD_MSG_LOG] = "log",
    [PSD_MSG_OPS_ASK] = "ops_ask",
    [PSD_MSG_OPS] = "ops",
    [PSD_MSG_LOST_WORK] = "lost_work",
};

_Static_assert(sizeof names / sizeof names[0] == PSD_MSG_TYPES, "every message type has a name");

const char *psd_msg_name(psd_msg_type type)
{
    return (unsigned)type < PSD_MSG_TYPES ? names[type] : "?";
}

/* The envelope, a token or a name, and the fields of fixed size. */
enum { HEAD_BYTES = 1024 };

/* Of a number as protobuf writes it, 7 bits a byte. */
static uint64_t varint_bytes(uint64_t value)
{
    uint64_t bytes = 1;
    for (; value > 0x7f; value >>= 7)
        bytes++;
    return bytes;
}

static uint64_t text_bytes(const char *text)
{
    size_t length = strlen(text);
    return length + varint_bytes(length);
}

static uint64_t list_bytes(const uint32_t *numbers, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; numbers != NULL && i < count; i++)
        bytes += varint_bytes(numbers[i]);
    return bytes;
}

uint64_t psd_group_opened_bound(const psd_msg_group_opened *opened)
{
    uint64_t bytes = HEAD_BYTES + list_bytes(opened->members, opened->count);
    for (uint32_t i = 0; i < opened->count; i++)
        bytes += text_bytes(opened->addresses[i]);
    return bytes;
}

uint64_t psd_table_open_bound(const psd_msg_table_open *open)
{
    uint64_t bytes = HEAD_BYTES + list_bytes(open->servers, open->server_count) +
                     list_bytes(open->trainers, open->trainer_count);
    for (uint32_t i = 0; i < open->spec.param_count; i++)
        bytes +=
            text_bytes(open->spec.params[i].name) + 1 + varint_bytes((uint64_t)open->spec.params[i].count);
    return bytes;
}
