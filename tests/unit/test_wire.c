/* Every message type there and back, as a property of random messages; limits of the encoder; versions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "proto/wire.h"
#include "tests/lib/psd_test.h"
#include "tests/lib/wire_gen.h"

enum { ROUNDS = 60 };
#define ARENA_BYTES (16 << 20)

static void assert_same_texts(const char *const *a, const char *const *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        cr_assert_str_eq(a[i], b[i]);
}

static void assert_same_columns(const void *a, const void *b, size_t count, size_t bytes)
{
    if (count > 0)
        cr_assert_eq(memcmp(a, b, count * bytes), 0);
}

static void assert_same_group_opened(const psd_msg_group_opened *a, const psd_msg_group_opened *b)
{
    cr_assert(a->group == b->group && a->epoch == b->epoch && a->count == b->count);
    cr_assert_eq(a->members == NULL, b->members == NULL);
    if (a->members != NULL)
        assert_same_columns(a->members, b->members, a->count, sizeof *a->members);
    assert_same_texts(a->addresses, b->addresses, a->count);
    cr_assert_eq(a->token_bytes, b->token_bytes);
    cr_assert_eq(memcmp(a->token, b->token, sizeof a->token), 0);
}

static void assert_same_steps(const psd_msg_plan_steps *a, const psd_msg_plan_steps *b)
{
    cr_assert(a->plan == b->plan && a->hash == b->hash && a->chunk == b->chunk && a->chunks == b->chunks);
    cr_assert(a->rounds == b->rounds && a->count == b->count);
    assert_same_columns(a->round, b->round, a->count, sizeof *a->round);
    assert_same_columns(a->peer, b->peer, a->count, sizeof *a->peer);
    assert_same_columns(a->is_send, b->is_send, a->count, sizeof *a->is_send);
    assert_same_columns(a->offset, b->offset, a->count, sizeof *a->offset);
    assert_same_columns(a->bytes, b->bytes, a->count, sizeof *a->bytes);
}

static void assert_same_table_open(const psd_msg_table_open *a, const psd_msg_table_open *b)
{
    cr_assert_str_eq(a->spec.name, b->spec.name);
    cr_assert(a->table == b->table && a->spec.optimizer == b->spec.optimizer &&
              a->spec.average == b->spec.average);
    cr_assert(a->spec.lr == b->spec.lr && a->spec.momentum == b->spec.momentum);
    cr_assert_eq(a->spec.param_count, b->spec.param_count);
    for (uint32_t i = 0; i < a->spec.param_count; i++) {
        cr_assert_str_eq(a->spec.params[i].name, b->spec.params[i].name);
        cr_assert_eq(a->spec.params[i].dtype, b->spec.params[i].dtype);
        cr_assert_eq(a->spec.params[i].count, b->spec.params[i].count);
    }
    cr_assert(a->server_count == b->server_count && a->trainer_count == b->trainer_count);
    assert_same_columns(a->servers, b->servers, a->server_count, sizeof *a->servers);
    assert_same_columns(a->trainers, b->trainers, a->trainer_count, sizeof *a->trainers);
}

static void assert_same_snapshot(const psd_msg_snapshot *a, const psd_msg_snapshot *b)
{
    cr_assert(a->round == b->round && a->moved == b->moved && a->report_only == b->report_only &&
              a->unit_count == b->unit_count);
    cr_assert_eq(a->thread_count, b->thread_count);
    for (uint32_t i = 0; i < a->thread_count; i++) {
        cr_assert_eq(memcmp(&a->threads[i], &b->threads[i], offsetof(psd_snap_thread, works)), 0);
        assert_same_columns(a->threads[i].works, b->threads[i].works, a->threads[i].work_count, 4);
    }
    cr_assert_eq(a->op_count, b->op_count);
    for (uint32_t i = 0; i < a->op_count; i++) {
        cr_assert_eq(memcmp(&a->ops[i], &b->ops[i], offsetof(psd_snap_op, file)), 0);
        cr_assert_str_eq(a->ops[i].file, b->ops[i].file);
        cr_assert_str_eq(a->ops[i].name, b->ops[i].name);
    }
    cr_assert(a->group_count == b->group_count && a->peer_count == b->peer_count);
    assert_same_columns(a->groups, b->groups, a->group_count, 4);
    assert_same_columns(a->started, b->started, a->group_count, 8);
    assert_same_columns(a->peers, b->peers, a->peer_count, 4);
    assert_same_columns(a->sent, b->sent, a->peer_count, 8);
    assert_same_columns(a->received, b->received, a->peer_count, 8);
}

static void assert_same_reply(const psd_msg_reply *a, const psd_msg_reply *b)
{
    cr_assert(a->status == b->status && a->next == b->next);
    cr_assert_str_eq(a->text, b->text);
    cr_assert(a->column_count == b->column_count && a->row_count == b->row_count);
    for (uint32_t c = 0; c < a->column_count; c++) {
        cr_assert_str_eq(a->columns[c].name, b->columns[c].name);
        cr_assert_eq(a->columns[c].type, b->columns[c].type);
        for (uint32_t r = 0; r < a->row_count; r++) {
            const psd_cell *x = &a->cells[r * a->column_count + c];
            const psd_cell *y = &b->cells[r * a->column_count + c];
            if (a->columns[c].type == PSD_CELL_TEXT)
                cr_assert_str_eq(x->text, y->text);
            else
                cr_assert_eq(x->integer, y->integer); /* of a real: its bits */
        }
    }
}

static void assert_same(const psd_msg *a, const psd_msg *b)
{
    cr_assert_eq(a->type, b->type);
    cr_assert_str_eq(a->ident.job, b->ident.job);
    cr_assert_str_eq(a->ident.name, b->ident.name);
    cr_assert_eq(a->ident.incarnation, b->ident.incarnation);
    cr_assert_eq(a->request, b->request);
    switch ((int)a->type) {
    case PSD_MSG_GROUP_OPEN:
        cr_assert(a->u.group_open.how == b->u.group_open.how &&
                  a->u.group_open.parent == b->u.group_open.parent);
        cr_assert(a->u.group_open.color == b->u.group_open.color &&
                  a->u.group_open.key == b->u.group_open.key);
        cr_assert_eq(a->u.group_open.count, b->u.group_open.count);
        assert_same_columns(a->u.group_open.members, b->u.group_open.members, a->u.group_open.count, 4);
        break;
    case PSD_MSG_GROUP_OPENED:
        assert_same_group_opened(&a->u.group_opened, &b->u.group_opened);
        break;
    case PSD_MSG_PLAN_STEPS:
        assert_same_steps(&a->u.plan_steps, &b->u.plan_steps);
        break;
    case PSD_MSG_TABLE_OPEN:
    case PSD_MSG_TABLE_ASSIGN:
    case PSD_MSG_TABLE_OPENED:
        assert_same_table_open(&a->u.table_open, &b->u.table_open);
        break;
    case PSD_MSG_SNAPSHOT_ASK:
    case PSD_MSG_SNAPSHOT:
        assert_same_snapshot(&a->u.snapshot, &b->u.snapshot);
        break;
    case PSD_MSG_REPLY:
        assert_same_reply(&a->u.reply, &b->u.reply);
        break;
    default: /* plain values, from zeroed memory: padding and the tails of texts are equal too, up to their
                NUL */
        break;
    }
}

/* Bodies without pointers: both sides start from zero, but a text is compared up to its NUL only, so the
 * comparison is of what they encode to. */
static void round_trip(psd_msg_type type, uint64_t seed, psd_wire_buffer *first, psd_wire_buffer *second)
{
    psd_arena arena;
    psd_msg msg;
    psd_msg_box *box = NULL;
    char why[256] = "";
    psd_arena_init(&arena, ARENA_BYTES);
    wire_gen(type, seed, &arena, &msg);
    cr_assert_eq(psd_wire_encode(&msg, first), PSD_OK, "encode %s", psd_msg_name(type));
    cr_assert_eq(psd_wire_decode(first->data, first->bytes, &box, why, sizeof why), PSD_OK, "decode %s: %s",
                 psd_msg_name(type), why);
    assert_same(&msg, &box->msg);
    cr_assert_eq(psd_wire_encode(&box->msg, second), PSD_OK);
    cr_assert_eq(first->bytes, second->bytes, "%s", psd_msg_name(type));
    cr_assert_eq(memcmp(first->data, second->data, first->bytes), 0, "%s", psd_msg_name(type));
    psd_msg_box_free(box);
    psd_arena_free(&arena);
}

PSD_TEST(wire, every_type_round_trips)
{
    psd_wire_buffer first = {0};
    psd_wire_buffer second = {0};
    for (int type = PSD_MSG_NONE + 1; type < PSD_MSG_TYPES; type++) {
        for (uint64_t seed = 0; seed < ROUNDS; seed++)
            round_trip((psd_msg_type)type, seed, &first, &second);
    }
    psd_wire_buffer_free(&first);
    psd_wire_buffer_free(&second);
}

static psd_msg *decode_again(const psd_msg *msg, psd_msg_box **box)
{
    psd_wire_buffer buffer = {0};
    char why[256] = "";
    cr_assert_eq(psd_wire_encode(msg, &buffer), PSD_OK);
    cr_assert_eq(psd_wire_decode(buffer.data, buffer.bytes, box, why, sizeof why), PSD_OK, "%s", why);
    psd_wire_buffer_free(&buffer);
    return &(*box)->msg;
}

PSD_TEST(wire, hello_keeps_every_field)
{
    psd_msg msg = {.type = PSD_MSG_HELLO,
                   .ident = {.job = "job", .name = "w-3", .incarnation = UINT64_C(0x8000000000000001)},
                   .request = 7,
                   .u.hello = {.role = "trainer",
                               .host = "node1",
                               .address = "[::1]:4711",
                               .backend = "host",
                               .pid = 4000000000,
                               .rank = -1,
                               .world_min = 1,
                               .world_max = PSD_MAX_WORLD,
                               .resume_token = UINT64_MAX,
                               .epoch = 9}};
    psd_msg_box *box;
    psd_msg *got = decode_again(&msg, &box);
    cr_assert_eq(memcmp(&got->u.hello, &msg.u.hello, sizeof msg.u.hello), 0);
    cr_assert_eq(memcmp(&got->ident, &msg.ident, sizeof msg.ident), 0);
    psd_msg_box_free(box);
}

PSD_TEST(wire, heartbeat_keeps_every_field)
{
    psd_msg msg = {.type = PSD_MSG_HEARTBEAT};
    msg.u.heartbeat = (psd_msg_heartbeat){.epoch = 1,
                                          .ops = 2,
                                          .bytes_sent = 3,
                                          .bytes_received = 4,
                                          .pool_bytes = 5,
                                          .resident_bytes = 6,
                                          .communicator_bytes = 7,
                                          .communicators = 8,
                                          .communicator_budget = 9};
    msg.u.heartbeat.current = (psd_current_op){.kind = PSD_OP_ALL_REDUCE,
                                               .dtype = PSD_F32,
                                               .redop = PSD_SUM,
                                               .peer = -1,
                                               .group = 8,
                                               .ordinal = 9,
                                               .count = INT64_MAX,
                                               .age_ns = 10,
                                               .name = "grad",
                                               .site = "train.c:40"};
    psd_msg_box *box;
    psd_msg *got = decode_again(&msg, &box);
    const psd_msg_heartbeat *a = &msg.u.heartbeat;
    const psd_msg_heartbeat *b = &got->u.heartbeat;
    cr_assert(a->epoch == b->epoch && a->ops == b->ops && a->pool_bytes == b->pool_bytes);
    cr_assert(a->bytes_sent == b->bytes_sent && a->bytes_received == b->bytes_received);
    cr_assert_eq(a->resident_bytes, b->resident_bytes);
    cr_assert_eq(a->communicator_bytes, b->communicator_bytes);
    cr_assert(a->communicators == b->communicators && a->communicator_budget == b->communicator_budget);
    cr_assert(a->current.kind == b->current.kind && a->current.dtype == b->current.dtype);
    cr_assert(a->current.redop == b->current.redop && a->current.peer == b->current.peer);
    cr_assert(a->current.group == b->current.group && a->current.ordinal == b->current.ordinal);
    cr_assert(a->current.count == b->current.count && a->current.age_ns == b->current.age_ns);
    cr_assert_str_eq(a->current.name, b->current.name);
    cr_assert_str_eq(a->current.site, b->current.site);
    psd_msg_box_free(box);
}

PSD_TEST(wire, text_cut_inside_a_character_arrives_without_it)
{
    psd_msg msg = {.type = PSD_MSG_STOP};
    strcpy(msg.u.stop.text, "stopped by Ren\xc3\xa9");
    msg.u.stop.text[strlen(msg.u.stop.text) - 1] = '\0';
    psd_msg_box *box;
    cr_assert_str_eq(decode_again(&msg, &box)->u.stop.text, "stopped by Ren");
    psd_msg_box_free(box);
}

PSD_TEST(wire, text_without_a_nul_stays_inside_its_array)
{
    psd_msg msg = {.type = PSD_MSG_STOP};
    memset(msg.u.stop.text, 'x', sizeof msg.u.stop.text);
    psd_msg_box *box;
    cr_assert_eq(strlen(decode_again(&msg, &box)->u.stop.text), sizeof msg.u.stop.text - 1);
    psd_msg_box_free(box);
}

PSD_TEST(wire, real_cells_may_be_anything)
{
    psd_column column = {.name = "x", .type = PSD_CELL_REAL};
    psd_cell cells[2] = {{.real = NAN}, {.real = -INFINITY}};
    psd_msg msg = {.type = PSD_MSG_REPLY,
                   .u.reply = {.column_count = 1, .columns = &column, .row_count = 2, .cells = cells}};
    psd_msg_box *box;
    psd_msg *got = decode_again(&msg, &box);
    cr_assert(isnan(got->u.reply.cells[0].real) && got->u.reply.cells[1].real < 0);
    psd_msg_box_free(box);
}

PSD_TEST(wire, a_reply_of_a_full_frame_decodes)
{
    enum { ROWS = 20000, COLUMNS = 8 };
    psd_column columns[COLUMNS];
    psd_cell *cells = calloc((size_t)ROWS * COLUMNS, sizeof *cells);
    for (int c = 0; c < COLUMNS; c++)
        columns[c] = (psd_column){.name = "c", .type = c % 2 == 0 ? PSD_CELL_TEXT : PSD_CELL_INT};
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i += 2)
        cells[i].text = "worker-1";
    psd_msg msg = {.type = PSD_MSG_REPLY};
    msg.u.reply =
        (psd_msg_reply){.column_count = COLUMNS, .columns = columns, .row_count = ROWS, .cells = cells};
    psd_msg_box *box;
    cr_assert_eq(decode_again(&msg, &box)->u.reply.row_count, ROWS);
    psd_msg_box_free(box);
    free(cells);
}

PSD_TEST(wire, a_frame_over_the_limit_is_not_encoded)
{
    uint32_t count = PSD_MAX_FRAME / 2;
    uint32_t *members = malloc(count * sizeof *members);
    for (uint32_t i = 0; i < count; i++)
        members[i] = PSD_MAX_WORLD - 1;
    psd_msg msg = {.type = PSD_MSG_GROUP_OPEN};
    msg.u.group_open = (psd_msg_group_open){.how = PSD_GROUP_NEW, .count = count, .members = members};
    psd_wire_buffer buffer = {0};
    cr_assert_eq(psd_wire_encode(&msg, &buffer), PSD_ERR_LIMIT);
    cr_assert_eq(buffer.bytes, 0);
    msg.u.group_open.members = NULL;
    cr_assert_eq(psd_wire_encode(&msg, &buffer), PSD_ERR_INVAL);
    msg.type = PSD_MSG_TYPES;
    cr_assert_eq(psd_wire_encode(&msg, &buffer), PSD_ERR_INVAL);
    psd_wire_buffer_free(&buffer);
    free(members);
}

/* What the core refuses by these bounds must be what cannot be sent, and nothing much smaller. */
PSD_TEST(wire, bounds_hold)
{
    static const psd_msg_type types[] = {PSD_MSG_GROUP_OPENED, PSD_MSG_TABLE_OPENED};
    psd_wire_buffer buffer = {0};
    for (uint64_t seed = 1; seed <= 400; seed++) {
        psd_msg_type type = types[seed % 2];
        psd_arena arena;
        psd_msg msg;
        psd_arena_init(&arena, ARENA_BYTES);
        wire_gen(type, seed, &arena, &msg);
        uint64_t bound = type == PSD_MSG_GROUP_OPENED ? psd_group_opened_bound(&msg.u.group_opened)
                                                      : psd_table_open_bound(&msg.u.table_open);
        cr_assert_eq(psd_wire_encode(&msg, &buffer), PSD_OK);
        cr_assert_leq(buffer.bytes, bound, "seed %d", (int)seed);
        cr_assert_leq(bound, buffer.bytes + 1024, "seed %d", (int)seed);
        psd_arena_free(&arena);
    }
    psd_wire_buffer_free(&buffer);
}

PSD_TEST(wire, another_version_is_named)
{
    psd_msg msg = {.type = PSD_MSG_RESYNC};
    psd_wire_buffer buffer = {0};
    psd_msg_box *box = NULL;
    char why[256] = "";
    cr_assert_eq(psd_wire_encode(&msg, &buffer), PSD_OK);
    cr_assert_eq(buffer.data[4], PSD_PROTOCOL_VERSION);
    buffer.data[4] = 9;
    cr_assert_eq(psd_wire_decode(buffer.data, buffer.bytes, &box, why, sizeof why), PSD_ERR_PROTOCOL);
    cr_assert_not_null(strstr(why, "version 9"));
    cr_assert_not_null(strstr(why, "version 2"));
    cr_assert_null(box);
    psd_wire_buffer_free(&buffer);
}

/* The bound that the daemon's loop counts on, here only as a guard against something quadratic. */
PSD_TEST(wire, many_heartbeats)
{
    psd_wire_buffer buffer = {0};
    psd_arena arena;
    psd_msg msg;
    char why[256];
    psd_arena_init(&arena, ARENA_BYTES);
    wire_gen(PSD_MSG_HEARTBEAT, 1, &arena, &msg);
    cr_assert_eq(psd_wire_encode(&msg, &buffer), PSD_OK);
    for (int i = 0; i < 100000; i++) {
        psd_msg_box *box = NULL;
        cr_assert_eq(psd_wire_decode(buffer.data, buffer.bytes, &box, why, sizeof why), PSD_OK);
        psd_msg_box_free(box);
    }
    psd_wire_buffer_free(&buffer);
    psd_arena_free(&arena);
}
