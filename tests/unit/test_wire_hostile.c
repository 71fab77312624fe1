/* Frames that no honest peer sends: cut, flipped, too many, not text. Each is refused with a sentence or
 * decoded into something that encodes again; none crashes, and none takes more memory than the budget. */
#include <stdlib.h>
#include <string.h>

#include "proto/gen/psd.pb-c.h"
#include "proto/wire.h"
#include "proto/wire_body.h"
#include "tests/lib/psd_test.h"
#include "tests/lib/wire_gen.h"

#define ARENA_BYTES (16 << 20)

static uint64_t state = 1;

static uint64_t rnd(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Decodes from memory of exactly this size, so that a read behind its end is seen. */
static psd_status decode(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    psd_wire_buffer again = {0};
    psd_msg_box *box = NULL;
    char why[512] = "";
    if (bytes > 0)
        memcpy(copy, data, bytes);
    psd_msg_type type;
    uint64_t request;
    psd_status status = psd_wire_decode(copy, bytes, &box, why, sizeof why);
    psd_wire_peek(copy, bytes, &type, &request);
    if (status == PSD_OK) {
        cr_assert_not_null(box);
        cr_assert_eq(type, box->msg.type);
        cr_assert_eq(request, box->msg.request);
        psd_status encoded = psd_wire_encode(&box->msg, &again);
        cr_assert(encoded == PSD_OK || encoded == PSD_ERR_LIMIT, "%d", encoded);
    } else {
        cr_assert_null(box);
        cr_assert_gt(strlen(why), 0);
    }
    psd_msg_box_free(box);
    psd_wire_buffer_free(&again);
    free(copy);
    return status;
}

static void encode_random(psd_msg_type type, uint64_t seed, psd_wire_buffer *buffer)
{
    psd_arena arena;
    psd_msg msg;
    psd_arena_init(&arena, ARENA_BYTES);
    wire_gen(type, seed, &arena, &msg);
    cr_assert_eq(psd_wire_encode(&msg, buffer), PSD_OK);
    psd_arena_free(&arena);
}

PSD_TEST(wire_hostile, cut_at_every_byte)
{
    psd_wire_buffer buffer = {0};
    for (int type = 1; type < PSD_MSG_TYPES; type++) {
        encode_random((psd_msg_type)type, 3, &buffer);
        for (size_t bytes = 0; bytes < buffer.bytes; bytes += bytes < 200 ? 1 : 7)
            decode(buffer.data, bytes);
        cr_assert_eq(decode(buffer.data, buffer.bytes), PSD_OK);
    }
    psd_wire_buffer_free(&buffer);
}

PSD_TEST(wire_hostile, flipped_bits)
{
    psd_wire_buffer buffer = {0};
    for (int type = 1; type < PSD_MSG_TYPES; type++) {
        for (int i = 0; i < 300; i++) {
            encode_random((psd_msg_type)type, (uint64_t)i % 5, &buffer);
            for (uint64_t flips = 1 + rnd() % 4; flips > 0; flips--)
                buffer.data[5 + rnd() % (buffer.bytes - 5)] ^= (uint8_t)(1u << (rnd() % 8));
            decode(buffer.data, buffer.bytes);
        }
    }
    psd_wire_buffer_free(&buffer);
}

PSD_TEST(wire_hostile, garbage_behind_the_prefix)
{
    uint8_t frame[512] = {0x0d, 'p', 's', 'd', PSD_PROTOCOL_VERSION};
    for (int i = 0; i < 20000; i++) {
        size_t bytes = 5 + rnd() % (sizeof frame - 5);
        for (size_t k = 5; k < bytes; k++)
            frame[k] = (uint8_t)rnd();
        decode(frame, bytes);
    }
    cr_assert_eq(decode((const uint8_t *)"GET / HTTP/1.1\r\n", 16), PSD_ERR_FORMAT);
    cr_assert_eq(decode(frame, 0), PSD_ERR_FORMAT);
    cr_assert_eq(decode(frame, 5), PSD_ERR_FORMAT); /* no body */
}

/* A frame of an envelope that the encoder would not make. */
static psd_status decode_envelope(Psdpb__Envelope *envelope)
{
    envelope->version = PSD_WIRE_VERSION;
    size_t bytes = psdpb__envelope__get_packed_size(envelope);
    uint8_t *frame = malloc(bytes);
    psdpb__envelope__pack(envelope, frame);
    psd_status status = decode(frame, bytes);
    free(frame);
    return status;
}

static ProtobufCBinaryData bytes_of(const char *text, size_t bytes)
{
    return (ProtobufCBinaryData){.len = bytes, .data = (uint8_t *)(uintptr_t)text};
}

static psd_status decode_stop(const char *text, size_t bytes)
{
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    Psdpb__Stop stop = PSDPB__STOP__INIT;
    stop.text = bytes_of(text, bytes);
    envelope.body_case = PSDPB__ENVELOPE__BODY_STOP;
    envelope.stop = &stop;
    return decode_envelope(&envelope);
}

PSD_TEST(wire_hostile, text)
{
    char long_text[PSD_MAX_TEXT];
    memset(long_text, 'a', sizeof long_text);
    cr_assert_eq(decode_stop("fine", 4), PSD_OK);
    cr_assert_eq(decode_stop("a\0b", 3), PSD_ERR_FORMAT);
    cr_assert_eq(decode_stop("\xff", 1), PSD_ERR_FORMAT);
    cr_assert_eq(decode_stop("\xc0\x80", 2), PSD_ERR_FORMAT);
    cr_assert_eq(decode_stop("\xed\xa0\x80", 3), PSD_ERR_FORMAT);
    cr_assert_eq(decode_stop(long_text, PSD_MAX_TEXT - 1), PSD_OK);
    cr_assert_eq(decode_stop(long_text, PSD_MAX_TEXT), PSD_ERR_FORMAT);
}

static psd_status decode_hello(int32_t rank, uint32_t world_min, uint32_t world_max)
{
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    Psdpb__Hello hello = PSDPB__HELLO__INIT;
    hello.rank = rank;
    hello.world_min = world_min;
    hello.world_max = world_max;
    envelope.body_case = PSDPB__ENVELOPE__BODY_HELLO;
    envelope.hello = &hello;
    return decode_envelope(&envelope);
}

PSD_TEST(wire_hostile, hello_numbers)
{
    cr_assert_eq(decode_hello(-1, 1, 1), PSD_OK);
    cr_assert_eq(decode_hello(-2, 1, 1), PSD_ERR_FORMAT);
    cr_assert_eq(decode_hello(INT32_MIN, 1, 1), PSD_ERR_FORMAT);
    cr_assert_eq(decode_hello(PSD_MAX_WORLD, 1, 1), PSD_ERR_FORMAT);
    cr_assert_eq(decode_hello(0, 0, 1), PSD_ERR_FORMAT);
    cr_assert_eq(decode_hello(0, 2, 1), PSD_ERR_FORMAT);
    cr_assert_eq(decode_hello(0, 1, 1000000000), PSD_ERR_FORMAT);
    cr_assert_eq(decode_hello(0, 1, UINT32_MAX), PSD_ERR_FORMAT);
}

static psd_status decode_refuse(int32_t code)
{
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    Psdpb__Refuse refuse = PSDPB__REFUSE__INIT;
    refuse.status = code;
    envelope.body_case = PSDPB__ENVELOPE__BODY_REFUSE;
    envelope.refuse = &refuse;
    return decode_envelope(&envelope);
}

PSD_TEST(wire_hostile, statuses)
{
    cr_assert_eq(decode_refuse(PSD_ERR_REFUSED), PSD_OK);
    cr_assert_eq(decode_refuse(77), PSD_ERR_FORMAT);
    cr_assert_eq(decode_refuse(-19), PSD_ERR_FORMAT);
    cr_assert_eq(decode_refuse(INT32_MIN), PSD_ERR_FORMAT);
}

/* A GROUP_FAIL with `count` times this operation. */
static psd_status decode_side(Psdpb__Side *side, size_t count)
{
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    Psdpb__Abort abort = PSDPB__ABORT__INIT;
    Psdpb__Side *sides[4] = {side, side, side, side};
    abort.status = PSD_ERR_MISMATCH;
    abort.sides = sides;
    abort.n_sides = count;
    envelope.body_case = PSDPB__ENVELOPE__BODY_GROUP_FAIL;
    envelope.group_fail = &abort;
    return decode_envelope(&envelope);
}

PSD_TEST(wire_hostile, sides_of_a_mismatch)
{
    Psdpb__Side good = PSDPB__SIDE__INIT, bad;
    good.kind = PSD_OP_ALL_REDUCE;
    good.peer = -1;
    cr_assert_eq(decode_side(&good, 1), PSD_OK);
    cr_assert_eq(decode_side(&good, PSD_ABORT_SIDES), PSD_OK);
    cr_assert_eq(decode_side(&good, PSD_ABORT_SIDES + 1), PSD_ERR_FORMAT);
#define BAD(field, value) (bad = good, bad.field = (value), decode_side(&bad, 1))
    cr_assert_eq(BAD(rank, -1), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(rank, PSD_MAX_WORLD), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(kind, 0), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(kind, PSD_OP_BATCH), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(kind, PSD_OP_BARRIER + 1), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(dtype, 200), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(redop, 200), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(peer, -2), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(count, UINT64_MAX), PSD_ERR_FORMAT);
    cr_assert_eq(BAD(root, INT32_MIN), PSD_OK); /* a hash of what must agree */
    cr_assert_eq(BAD(name, bytes_of("\xff", 1)), PSD_ERR_FORMAT);
#undef BAD
}

static psd_status decode_opened(Psdpb__GroupOpened *opened)
{
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    envelope.body_case = PSDPB__ENVELOPE__BODY_GROUP_OPENED;
    envelope.group_opened = opened;
    return decode_envelope(&envelope);
}

PSD_TEST(wire_hostile, group_opened_columns)
{
    uint32_t members[2] = {0, 1};
    uint32_t lengths[2] = {1, 2};
    Psdpb__GroupOpened opened = PSDPB__GROUP_OPENED__INIT;
    opened.count = 2;
    opened.n_members = 2;
    opened.members = members;
    opened.n_address_bytes = 2;
    opened.address_bytes = lengths;
    opened.addresses = bytes_of("abb", 3);
    cr_assert_eq(decode_opened(&opened), PSD_OK);
    opened.n_members = 1;
    cr_assert_eq(decode_opened(&opened), PSD_ERR_FORMAT);
    opened.n_members = 2;
    members[1] = PSD_MAX_WORLD;
    cr_assert_eq(decode_opened(&opened), PSD_ERR_FORMAT);
    members[1] = 1;
    lengths[1] = UINT32_MAX;
    cr_assert_eq(decode_opened(&opened), PSD_ERR_FORMAT);
    lengths[1] = 1;
    cr_assert_eq(decode_opened(&opened), PSD_ERR_FORMAT);
    lengths[1] = 2;
    opened.count = 1000000;
    cr_assert_eq(decode_opened(&opened), PSD_ERR_FORMAT);
    opened.count = UINT32_MAX;
    cr_assert_eq(decode_opened(&opened), PSD_ERR_FORMAT);
    char token[PSD_MAX_TOKEN + 1] = {0};
    opened.count = 2;
    opened.token = bytes_of(token, sizeof token);
    cr_assert_eq(decode_opened(&opened), PSD_ERR_FORMAT);
}

static psd_status decode_steps(Psdpb__PlanSteps *steps)
{
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    envelope.body_case = PSDPB__ENVELOPE__BODY_PLAN_STEPS;
    envelope.plan_steps = steps;
    return decode_envelope(&envelope);
}

PSD_TEST(wire_hostile, plan_steps_columns)
{
    uint32_t round = 0;
    uint32_t peer = 1;
    uint64_t offset = 8;
    uint64_t bytes = 16;
    Psdpb__PlanSteps steps = PSDPB__PLAN_STEPS__INIT;
    steps.chunks = 1;
    steps.rounds = 1;
    steps.n_round = steps.n_peer = steps.n_offset = steps.n_bytes = 1;
    steps.round = &round;
    steps.peer = &peer;
    steps.offset = &offset;
    steps.bytes = &bytes;
    steps.is_send = bytes_of("\1", 1);
    cr_assert_eq(decode_steps(&steps), PSD_OK);
    steps.is_send = bytes_of("\2", 1);
    cr_assert_eq(decode_steps(&steps), PSD_ERR_FORMAT);
    steps.is_send = bytes_of("\1\1", 2);
    cr_assert_eq(decode_steps(&steps), PSD_ERR_FORMAT);
    steps.is_send = bytes_of("\1", 1);
    offset = UINT64_MAX;
    cr_assert_eq(decode_steps(&steps), PSD_ERR_FORMAT);
    offset = INT64_MAX;
    bytes = 1;
    cr_assert_eq(decode_steps(&steps), PSD_ERR_FORMAT);
    offset = 0;
    round = 1;
    cr_assert_eq(decode_steps(&steps), PSD_ERR_FORMAT);
    round = 0;
    steps.rounds = 0;
    cr_assert_eq(decode_steps(&steps), PSD_ERR_FORMAT);
    steps.rounds = 1;
    steps.chunk = 1;
    cr_assert_eq(decode_steps(&steps), PSD_ERR_FORMAT);
    steps.chunk = 0;
    steps.n_peer = 0;
    cr_assert_eq(decode_steps(&steps), PSD_ERR_FORMAT);
}

static psd_status decode_reply(Psdpb__Reply *reply)
{
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    envelope.body_case = PSDPB__ENVELOPE__BODY_REPLY;
    envelope.reply = reply;
    return decode_envelope(&envelope);
}

PSD_TEST(wire_hostile, reply_columns)
{
    int64_t integers[2] = {1, -1};
    Psdpb__Column column = PSDPB__COLUMN__INIT;
    Psdpb__Column *columns[PSD_MAX_COLUMNS + 1];
    Psdpb__Reply reply = PSDPB__REPLY__INIT;
    for (int i = 0; i <= PSD_MAX_COLUMNS; i++)
        columns[i] = &column;
    column.type = PSD_CELL_INT;
    column.n_integers = 2;
    column.integers = integers;
    reply.rows = 2;
    reply.columns = columns;
    reply.n_columns = 3;
    cr_assert_eq(decode_reply(&reply), PSD_OK);
    column.type = PSD_CELL_BOOL + 1;
    cr_assert_eq(decode_reply(&reply), PSD_ERR_FORMAT);
    column.type = PSD_CELL_TEXT;
    cr_assert_eq(decode_reply(&reply), PSD_ERR_FORMAT);
    column.type = PSD_CELL_INT;
    reply.rows = 1;
    cr_assert_eq(decode_reply(&reply), PSD_ERR_FORMAT);
    reply.rows = UINT32_MAX;
    cr_assert_eq(decode_reply(&reply), PSD_ERR_FORMAT);
    reply.n_columns = 0;
    reply.rows = 1;
    cr_assert_eq(decode_reply(&reply), PSD_ERR_FORMAT);
    reply.n_columns = PSD_MAX_COLUMNS + 1;
    reply.rows = 2;
    cr_assert_eq(decode_reply(&reply), PSD_ERR_FORMAT);
    column.n_integers = 0; /* a table as wide as allowed and as long as a number can say */
    reply.n_columns = PSD_MAX_COLUMNS;
    reply.rows = PSD_MAX_FRAME;
    cr_assert_eq(decode_reply(&reply), PSD_ERR_LIMIT);
}

static psd_status decode_table(double lr, uint8_t dtype, uint64_t count)
{
    Psdpb__Envelope envelope = PSDPB__ENVELOPE__INIT;
    Psdpb__TableOpen table = PSDPB__TABLE_OPEN__INIT;
    uint32_t length = 1;
    char code = (char)dtype;
    table.lr = lr;
    table.param_names = bytes_of("w", 1);
    table.n_param_name_bytes = 1;
    table.param_name_bytes = &length;
    table.param_dtypes = bytes_of(&code, 1);
    table.n_param_counts = 1;
    table.param_counts = &count;
    envelope.body_case = PSDPB__ENVELOPE__BODY_TABLE_OPEN;
    envelope.table_open = &table;
    return decode_envelope(&envelope);
}

PSD_TEST(wire_hostile, table_params)
{
    cr_assert_eq(decode_table(0.1, PSD_F32, 10), PSD_OK);
    cr_assert_eq(decode_table(0.0 / 0.0, PSD_F32, 10), PSD_ERR_FORMAT);
    cr_assert_eq(decode_table(1e308 * 10, PSD_F32, 10), PSD_ERR_FORMAT);
    cr_assert_eq(decode_table(0.1, 0, 10), PSD_ERR_FORMAT);
    cr_assert_eq(decode_table(0.1, 200, 10), PSD_ERR_FORMAT);
    cr_assert_eq(decode_table(0.1, PSD_F32, UINT64_MAX), PSD_ERR_FORMAT);
    cr_assert_eq(decode_table(0.1, PSD_F32, INT64_MAX), PSD_ERR_FORMAT);
}

PSD_TEST(wire_hostile, two_versions_in_one_frame)
{
    psd_wire_buffer buffer = {0};
    encode_random(PSD_MSG_BYE, 1, &buffer);
    uint8_t *frame = malloc(buffer.bytes + 5);
    memcpy(frame, buffer.data, buffer.bytes);
    static const uint8_t other[5] = {0x0d, 'p', 's', 'd', 9};
    memcpy(frame + buffer.bytes, other, sizeof other);
    cr_assert_eq(decode(frame, buffer.bytes + 5), PSD_ERR_FORMAT);
    free(frame);
    psd_wire_buffer_free(&buffer);
}

/* Many tiny things: unknown fields, empty sub-messages, one-byte numbers. */
static psd_status decode_repeated(const char *unit, size_t unit_bytes, size_t total)
{
    static const uint8_t prefix[5] = {0x0d, 'p', 's', 'd', PSD_PROTOCOL_VERSION};
    size_t bytes = sizeof prefix + total / unit_bytes * unit_bytes;
    uint8_t *frame = malloc(bytes);
    memcpy(frame, prefix, sizeof prefix);
    for (size_t at = sizeof prefix; at < bytes; at += unit_bytes)
        memcpy(frame + at, unit, unit_bytes);
    psd_status status = decode(frame, bytes);
    free(frame);
    return status;
}

PSD_TEST(wire_hostile, many_tiny_fields)
{
    size_t most = PSD_MAX_FRAME - 5;
    cr_assert_eq(decode_repeated("\xf8\x3f\x01", 3, most), PSD_ERR_LIMIT);   /* unknown field 1023 */
    cr_assert_neq(decode_repeated("\x92\x03\x00", 3, most), PSD_OK);         /* empty replies */
    cr_assert_neq(decode_repeated("\x92\x03\x02\x2a\x00", 5, most), PSD_OK); /* replies of one empty column */
    cr_assert_neq(decode_repeated("\x12\x00", 2, most), PSD_OK);             /* empty jobs */
    cr_assert_eq(decode_repeated("\x00", 1, most + 1), PSD_ERR_LIMIT);       /* over the frame limit */
    cr_assert_eq(decode_repeated("\x0b", 1, 4096), PSD_ERR_FORMAT);          /* groups, never closed */
}
