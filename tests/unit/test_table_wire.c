/* The requests of tables: what is written is read back, and nothing else is read. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "worker/table_wire.h"

static table_msg sample(void)
{
    return (table_msg){
        .kind = TABLE_NAK,
        .answers = TABLE_PUSH,
        .table = 0xdeadbeef,
        .status = PSD_ERR_STALE,
        .incarnation = UINT64_C(0x0123456789abcdef),
        .sequence = 42,
        .clock = UINT64_MAX,
        .bytes = 1u << 20,
        .text = "rank 3 pushes clock 7",
    };
}

PSD_TEST(table_wire, round_trip)
{
    for (int kind = TABLE_JOIN; kind <= TABLE_SERVER; kind++) {
        uint8_t data[PSD_TABLE_MSG_BYTES];
        table_msg in = sample(), out;
        in.kind = (table_kind)kind;
        in.answers = kind == TABLE_ACK || kind == TABLE_NAK ? TABLE_PULL : 0;
        in.status = kind == TABLE_NAK ? PSD_ERR_LIMIT : PSD_OK;
        cr_assert(table_msg_decode(data, table_msg_encode(&in, data), &out));
        cr_assert_eq(out.kind, in.kind);
        cr_assert_eq(out.answers, in.answers);
        cr_assert_eq(out.table, in.table);
        cr_assert_eq(out.status, in.status);
        cr_assert_eq(out.incarnation, in.incarnation);
        cr_assert_eq(out.sequence, in.sequence);
        cr_assert_eq(out.clock, in.clock);
        cr_assert_eq(out.bytes, in.bytes);
        cr_assert_str_eq(out.text, in.text);
        cr_assert_str_neq(table_kind_name(in.kind), "?");
    }
}

PSD_TEST(table_wire, longest_text_fits_the_channel)
{
    uint8_t data[PSD_TABLE_MSG_BYTES];
    table_msg in = sample(), out;
    memset(in.text, 'x', sizeof(in.text)); /* not even ended */
    uint32_t bytes = table_msg_encode(&in, data);
    cr_assert_leq(bytes, (uint32_t)PSD_CHAN_MAX);
    cr_assert(table_msg_decode(data, bytes, &out));
    cr_assert_eq(strlen(out.text), (size_t)PSD_TABLE_TEXT - 1);
}

PSD_TEST(table_wire, refuses_what_is_not_a_message)
{
    uint8_t data[PSD_TABLE_MSG_BYTES], bad[PSD_TABLE_MSG_BYTES];
    table_msg in = sample(), out;
    uint32_t bytes = table_msg_encode(&in, data);
    for (uint32_t cut = 0; cut < bytes; cut++)
        cr_assert_not(table_msg_decode(data, cut, &out), "cut to %u", cut);
    /* Byte by byte: magic, version, kind, answers, sign of the status, length, NUL in the text, not UTF-8. */
    static const struct {
        uint32_t at;
        uint8_t value;
    } changes[] = {{0, 0},         {4, 2},  {6, 0},  {6, 7},  {6, TABLE_PUSH}, {7, 0},
                   {7, TABLE_ACK}, {15, 0}, {48, 1}, {55, 1}, {56, 0},         {57, 0xff}};
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        memcpy(bad, data, bytes);
        bad[changes[i].at] = changes[i].value;
        cr_assert_not(table_msg_decode(bad, bytes, &out), "change %zu", i);
    }
}

/* Random bytes behind a valid beginning never do more than fail. */
PSD_TEST(table_wire, survives_noise)
{
    unsigned seed = 1;
    for (int i = 0; i < 20000; i++) {
        uint8_t data[PSD_TABLE_MSG_BYTES];
        table_msg in = sample(), out;
        uint32_t bytes = table_msg_encode(&in, data);
        for (int n = 0; n < 3; n++) {
            seed = seed * 1664525u + 1013904223u;
            data[6 + (seed >> 8) % (bytes - 6)] = (uint8_t)(seed >> 24);
        }
        if (table_msg_decode(data, bytes, &out))
            cr_assert_lt(strlen(out.text), sizeof(out.text));
    }
}
