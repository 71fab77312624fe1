#include "tests/lib/wire_gen.h"

#include <string.h>

#include "proto/wire_body.h"

typedef struct gen {
    uint64_t state;
    psd_arena *arena;
} gen;

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next(gen *g)
{
    uint64_t z = g->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t below(gen *g, uint64_t limit)
{
    return next(g) % limit;
}

/* Small as often as large. */
static uint64_t any64(gen *g)
{
    return next(g) >> below(g, 64);
}

static uint32_t any32(gen *g)
{
    return (uint32_t)(any64(g) >> 32);
}

static int64_t natural(gen *g)
{
    return (int64_t)(any64(g) >> 1);
}

static void fill_text(gen *g, char *out, size_t capacity)
{
    static const char *const pieces[] = {
        "a", "Z", "7", "_", ".", " ", "\xc3\xa9", "\xe2\x86\x92", "\xf0\x9f\x90\x9d", "\n"};
    size_t want = below(g, 4) == 0 ? capacity - 1 : below(g, capacity);
    size_t used = 0;
    for (;;) {
        const char *piece = pieces[below(g, sizeof pieces / sizeof pieces[0])];
        size_t bytes = strlen(piece);
        if (used + bytes > want)
            break;
        memcpy(out + used, piece, bytes);
        used += bytes;
    }
    out[used] = '\0';
}

#define TEXT(array) fill_text(g, (array), sizeof(array))

static const char *new_text(gen *g, size_t capacity)
{
    char *text = psd_arena_array(g->arena, capacity, 1);
    fill_text(g, text, capacity);
    return text;
}

static psd_status any_status(gen *g)
{
    static const psd_status all[] = {
#define PSD_X(name, value, text) name,
        PSD_STATUS_MAP(PSD_X)
#undef PSD_X
    };
    return all[below(g, sizeof all / sizeof all[0])];
}

static uint32_t *ranks(gen *g, uint32_t count)
{
    uint32_t *values = psd_arena_array(g->arena, count, sizeof *values);
    for (uint32_t i = 0; i < count; i++)
        values[i] = (uint32_t)below(g, PSD_MAX_WORLD);
    return values;
}

static void fill_bytes(gen *g, uint8_t *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint8_t)next(g);
}

static void gen_hello(gen *g, psd_msg_hello *out)
{
    TEXT(out->role);
    TEXT(out->host);
    TEXT(out->address);
    TEXT(out->backend);
    out->pid = any32(g);
    out->rank = (int32_t)below(g, PSD_MAX_WORLD + 1) - 1;
    out->world_min = 1 + (int32_t)below(g, PSD_MAX_WORLD);
    out->world_max = out->world_min + (int32_t)below(g, (uint64_t)(PSD_MAX_WORLD - out->world_min) + 1);
    out->resume_token = any64(g);
    out->epoch = any64(g);
}

static void gen_waiting(gen *g, psd_msg_waiting *out)
{
    out->have = (int32_t)below(g, PSD_MAX_WORLD + 1);
    out->want = (int32_t)below(g, PSD_MAX_WORLD + 1);
    TEXT(out->text);
}

static void gen_welcome(gen *g, psd_msg_welcome *out)
{
    out->world = 1 + (int32_t)below(g, PSD_MAX_WORLD);
    out->rank = (int32_t)below(g, (uint64_t)out->world);
    out->epoch = any64(g);
    out->resume_token = any64(g);
    out->world_group = any32(g);
    out->lease_ms = 1 + (int32_t)below(g, INT32_MAX);
    out->heartbeat_ms = 1 + (int32_t)below(g, INT32_MAX);
}

static void gen_refuse(gen *g, psd_msg_refuse *out)
{
    out->status = any_status(g);
    TEXT(out->text);
}

static void gen_current_op(gen *g, psd_current_op *out)
{
    out->kind = (uint8_t)(1 + below(g, PSD_OP_BARRIER));
    out->dtype = (uint8_t)below(g, PSD_F8E5M2 + 1);
    out->redop = (uint8_t)below(g, PSD_BXOR + 1);
    out->peer = (int32_t)below(g, PSD_MAX_WORLD + 1) - 1;
    out->group = any32(g);
    out->ordinal = any64(g);
    out->count = natural(g);
    out->age_ns = natural(g);
    TEXT(out->name);
    TEXT(out->site);
}

static void gen_heartbeat(gen *g, psd_msg_heartbeat *out)
{
    out->epoch = any64(g);
    out->ops = any64(g);
    out->bytes_sent = any64(g);
    out->bytes_received = any64(g);
    out->pool_bytes = any64(g);
    out->resident_bytes = any64(g);
    out->communicator_bytes = any64(g);
    out->communicators = any32(g);
    out->communicator_budget = any32(g);
    out->doing = (uint8_t)below(g, PSD_DOING_POLLING + 1);
    out->doing_ns = natural(g);
    out->current.peer = -1;
    if (below(g, 3) != 0)
        gen_current_op(g, &out->current);
}

static void gen_group_open(gen *g, psd_msg_group_open *out)
{
    out->how = (psd_group_how)(1 + below(g, 3));
    out->parent = any32(g);
    out->color = (int32_t)any32(g);
    out->key = -(int32_t)below(g, INT32_MAX);
    out->count = (uint32_t)below(g, 50);
    out->members = ranks(g, out->count);
}

static void gen_group_token(gen *g, psd_msg_group_token *out)
{
    out->group = any32(g);
    out->bytes = (uint32_t)below(g, PSD_MAX_TOKEN + 1);
    fill_bytes(g, out->token, out->bytes);
}

static void gen_group_opened(gen *g, psd_msg_group_opened *out)
{
    out->group = any32(g);
    out->epoch = any64(g);
    out->count = (uint32_t)below(g, 50);
    out->members = out->count > 0 && below(g, 2) == 0 ? ranks(g, out->count) : NULL;
    const char **addresses = psd_arena_array(g->arena, out->count, sizeof *addresses);
    for (uint32_t i = 0; i < out->count; i++)
        addresses[i] = new_text(g, PSD_MAX_ADDR);
    out->addresses = addresses;
    out->token_bytes = (uint32_t)below(g, PSD_MAX_TOKEN + 1);
    fill_bytes(g, out->token, out->token_bytes);
}

static void gen_group(gen *g, psd_msg_group *out)
{
    out->group = any32(g);
    out->warmup_ns = natural(g);
}

static void gen_side(gen *g, psd_op_side *out)
{
    static const uint8_t kinds[] = {PSD_OP_SEND, PSD_OP_RECV, PSD_OP_BROADCAST, PSD_OP_BARRIER};
    out->rank = (int32_t)below(g, PSD_MAX_WORLD);
    out->kind = kinds[below(g, sizeof kinds)];
    out->dtype = (uint8_t)below(g, PSD_F8E5M2 + 1);
    out->redop = (uint8_t)below(g, PSD_BXOR + 1);
    out->peer = (int32_t)below(g, PSD_MAX_WORLD + 1) - 1;
    out->root = (int32_t)any32(g);
    out->ordinal = any64(g);
    out->count = natural(g);
    TEXT(out->name);
    TEXT(out->site);
}

static void gen_abort(gen *g, psd_msg_abort *out)
{
    out->group = any32(g);
    out->epoch = any64(g);
    out->status = any_status(g);
    out->culprit = (int32_t)below(g, PSD_MAX_WORLD + 1) - 1;
    TEXT(out->text);
    out->side_count = (uint32_t)below(g, PSD_ABORT_SIDES + 1);
    for (uint32_t i = 0; i < out->side_count; i++)
        gen_side(g, &out->sides[i]);
}

static void gen_plan_open(gen *g, psd_msg_plan_open *out)
{
    out->inputs.kind = PSD_PLAN_RING_SHIFT;
    out->inputs.group = any32(g);
    out->inputs.ranks = 1 + (uint32_t)below(g, PSD_MAX_WORLD);
    out->inputs.dtype = (psd_dtype)(1 + below(g, PSD_F8E5M2));
    out->inputs.count = natural(g) / 8;
    out->inputs.shift = (int32_t)any32(g) - INT32_MAX / 2;
}

static void gen_plan_steps(gen *g, psd_msg_plan_steps *out)
{
    uint32_t count = (uint32_t)below(g, 60);
    uint32_t *round = psd_arena_array(g->arena, count, sizeof *round);
    uint8_t *is_send = psd_arena_array(g->arena, count, sizeof *is_send);
    uint64_t *offset = psd_arena_array(g->arena, count, sizeof *offset);
    uint64_t *bytes = psd_arena_array(g->arena, count, sizeof *bytes);
    out->plan = any32(g);
    out->hash = any64(g);
    out->chunks = 1 + any32(g) / 2;
    out->chunk = (uint32_t)below(g, out->chunks);
    out->rounds = 1 + any32(g) / 2;
    for (uint32_t i = 0; i < count; i++) {
        round[i] = (uint32_t)below(g, out->rounds);
        is_send[i] = (uint8_t)below(g, 2);
        offset[i] = (uint64_t)natural(g) / 2;
        bytes[i] = (uint64_t)natural(g) / 2;
    }
    out->count = count;
    out->round = round;
    out->peer = ranks(g, count);
    out->is_send = is_send;
    out->offset = offset;
    out->bytes = bytes;
}

static void gen_plan(gen *g, psd_msg_plan *out)
{
    out->plan = any32(g);
    out->chunk = any32(g);
    out->hash = any64(g);
    out->runs = any64(g);
    out->bytes = any64(g);
    out->last_run_ns = natural(g);
}

static void gen_table_open(gen *g, psd_msg_table_open *out)
{
    uint32_t count = (uint32_t)below(g, 30);
    psd_param *params = psd_arena_array(g->arena, count, sizeof *params);
    memset(params, 0, count * sizeof *params);
    for (uint32_t i = 0; i < count; i++) {
        TEXT(params[i].name);
        params[i].dtype = (uint8_t)(1 + below(g, PSD_F8E5M2));
        params[i].count = natural(g) / 8;
    }
    out->table = any32(g);
    TEXT(out->spec.name);
    out->spec.optimizer = (uint8_t)next(g);
    out->spec.average = below(g, 2) == 0;
    out->spec.lr = (double)natural(g) / 1e15 - 1;
    out->spec.momentum = (double)below(g, 1000) / 1000;
    out->spec.param_count = count;
    out->spec.params = params;
    out->server_count = (uint32_t)below(g, 20);
    out->servers = ranks(g, out->server_count);
    out->trainer_count = (uint32_t)below(g, 20);
    out->trainers = ranks(g, out->trainer_count);
}

static void gen_table(gen *g, psd_msg_table *out)
{
    out->table = any32(g);
    out->status = any_status(g);
    out->clock = any64(g);
    out->pushes = any64(g);
    out->pulls = any64(g);
    out->bytes = any64(g);
    TEXT(out->text);
}

static void gen_bye(gen *g, psd_msg_bye *out)
{
    out->status = any_status(g);
    TEXT(out->text);
}

static void gen_stop(gen *g, psd_msg_stop *out)
{
    TEXT(out->text);
}

static void gen_query(gen *g, psd_msg_query *out)
{
    TEXT(out->view);
    TEXT(out->job);
    out->after = any64(g);
    out->limit = any32(g);
}

static void gen_reply(gen *g, psd_msg_reply *out)
{
    uint32_t columns = 1 + (uint32_t)below(g, 12);
    uint32_t rows = (uint32_t)below(g, 40);
    psd_column *heads = psd_arena_array(g->arena, columns, sizeof *heads);
    psd_cell *cells = psd_arena_array(g->arena, (size_t)columns * rows, sizeof *cells);
    memset(heads, 0, columns * sizeof *heads);
    out->status = any_status(g);
    TEXT(out->text);
    out->next = any64(g);
    for (uint32_t c = 0; c < columns; c++) {
        TEXT(heads[c].name);
        heads[c].type = (psd_cell_type)(1 + below(g, PSD_CELL_BOOL));
        for (uint32_t r = 0; r < rows; r++) {
            psd_cell *cell = &cells[r * columns + c];
            if (heads[c].type == PSD_CELL_TEXT)
                cell->text = new_text(g, 40);
            else if (heads[c].type == PSD_CELL_REAL)
                cell->real = (double)any64(g) / 7;
            else
                cell->integer = natural(g) - natural(g);
        }
    }
    out->column_count = columns;
    out->columns = heads;
    out->row_count = rows;
    out->cells = cells;
}

static uint32_t *new_numbers(gen *g, uint32_t count, uint32_t limit)
{
    uint32_t *list = psd_arena_array(g->arena, count + 1, sizeof *list);
    for (uint32_t i = 0; i < count; i++)
        list[i] = (uint32_t)below(g, limit);
    return list;
}

static uint64_t *new_longs(gen *g, uint32_t count)
{
    uint64_t *list = psd_arena_array(g->arena, count + 1, sizeof *list);
    for (uint32_t i = 0; i < count; i++)
        list[i] = any64(g);
    return list;
}

static void gen_snap_op(gen *g, psd_snap_op *o, uint32_t unit)
{
    static const uint8_t kinds[] = {PSD_OP_SEND, PSD_OP_RECV, PSD_OP_BROADCAST, PSD_OP_BARRIER};
    memset(o, 0, sizeof *o);
    o->unit = unit;
    o->kind = kinds[below(g, sizeof kinds)];
    o->dtype = (uint8_t)below(g, PSD_F8E5M2 + 1);
    o->redop = (uint8_t)below(g, PSD_BXOR + 1);
    o->is_matched = below(g, 2) == 0;
    o->group = any32(g);
    o->peer = (int32_t)below(g, 100) - 1;
    o->root = (int32_t)below(g, 100) - 50;
    o->tag = (int32_t)below(g, 100) - 1;
    o->other_tag = (uint32_t)below(g, 100);
    o->ordinal = any64(g);
    o->count = natural(g);
    o->line = any32(g);
    TEXT(o->file);
    TEXT(o->name);
}

static void gen_snapshot(gen *g, psd_msg_snapshot *out)
{
    uint32_t threads = (uint32_t)below(g, 5), ops = (uint32_t)below(g, 9);
    psd_snap_thread *t = psd_arena_array(g->arena, threads + 1, sizeof *t);
    psd_snap_op *o = psd_arena_array(g->arena, ops + 1, sizeof *o);
    out->round = any64(g);
    out->moved = any64(g);
    out->report_only = below(g, 2) == 0;
    for (uint32_t i = 0; i < ops; i++) {
        out->unit_count += i == 0 || below(g, 2) == 0;
        gen_snap_op(g, &o[i], out->unit_count - 1);
    }
    for (uint32_t i = 0; i < threads; i++) {
        memset(&t[i], 0, sizeof t[i]);
        t[i].id = any32(g);
        t[i].wait_seq = any64(g);
        t[i].waiting_ns = natural(g);
        t[i].is_blocked = below(g, 2) == 0;
        t[i].any = below(g, 2) == 0;
        t[i].is_partial = below(g, 2) == 0;
        t[i].work_count = out->unit_count > 0 ? (uint32_t)below(g, 4) : 0;
        t[i].works = new_numbers(g, t[i].work_count, out->unit_count + 1 - (out->unit_count > 0));
    }
    out->thread_count = threads;
    out->threads = t;
    out->op_count = ops;
    out->ops = o;
    out->group_count = (uint32_t)below(g, 5);
    out->groups = new_numbers(g, out->group_count, UINT32_MAX);
    out->started = new_longs(g, out->group_count);
    out->peer_count = (uint32_t)below(g, 5);
    uint32_t *peers = new_numbers(g, out->peer_count, 1);
    for (uint32_t i = 0; i < out->peer_count; i++)
        peers[i] = (i > 0 ? peers[i - 1] + 1 : 0) + (uint32_t)below(g, 9);
    out->peers = peers;
    out->sent = new_longs(g, out->peer_count);
    out->received = new_longs(g, out->peer_count);
}

static void gen_incident(gen *g, psd_msg_incident *out)
{
    out->kind = (uint32_t)below(g, 256);
    out->report_only = below(g, 2) == 0;
    out->key = any64(g);
    out->culprit = (int32_t)below(g, 100) - 1;
    out->group_count = (uint32_t)below(g, PSD_INCIDENT_GROUPS + 1);
    for (uint32_t i = 0; i < out->group_count; i++)
        out->groups[i] = any32(g);
    TEXT(out->text);
    TEXT(out->rows);
    out->more = any64(g);
    TEXT(out->detail);
}

static void gen_lost_work(gen *g, psd_msg_lost_work *out)
{
    gen_current_op(g, &out->op);
    out->seq = any64(g);
    out->total = any32(g);
    out->is_done = below(g, 2) == 0;
}

static void gen_body(gen *g, psd_msg *out)
{
    switch (out->type) {
#define PSD_X(type_name, field, codec)                                                                       \
    case PSD_MSG_##type_name:                                                                                \
        gen_##codec(g, &out->u.codec);                                                                       \
        break;
        PSD_WIRE_BODY_MAP(PSD_X)
#undef PSD_X
    default: /* no body */
        break;
    }
}

void wire_gen(psd_msg_type type, uint64_t seed, psd_arena *arena, psd_msg *out)
{
    gen g = {.state = seed * 1000003 + (uint64_t)type, .arena = arena};
    memset(out, 0, sizeof *out);
    out->type = type;
    fill_text(&g, out->ident.job, sizeof out->ident.job);
    fill_text(&g, out->ident.name, sizeof out->ident.name);
    out->ident.incarnation = any64(&g);
    out->request = any64(&g);
    gen_body(&g, out);
}
