/* Fuzzes the coordinator's core: bytes become events of a few workers, jobs and connections, with small
 * numbers, so that they collide. The effects are expanded as the daemon does; every journalled event is
 * replayed at the end, and the replay must give the same state. With -DPSD_FUZZ_MAIN a plain program that
 * replays files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/core.h"

#define MOST_EVENTS  400
#define MOST_MEMBERS 4

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

/* An event that keeps what it points to. */
typedef struct kept {
    psd_event event;
    psd_msg msg;
    uint32_t members[MOST_MEMBERS];
    psd_param params[2];
    psd_snap_thread thread;
    psd_snap_op ops[2];
    uint32_t works[2];
    uint32_t peers[1];
    uint64_t counts[3];
    bool journalled;
} kept;

typedef struct run {
    psd_core *core;
    psd_time_ns now;
    kept *events;
    size_t count;
    uint64_t tokens[8];
    uint64_t hashes[16];
    uint64_t round; /* of snapshots, that was asked for last */
} run;

static uint32_t take(input *in, uint32_t below)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++ % below;
}

static void name_of(char out[PSD_MAX_NAME], char letter, uint32_t number)
{
    (void)snprintf(out, PSD_MAX_NAME, "%c%u", letter, number);
}

static void fill_ident(input *in, psd_ident *ident)
{
    name_of(ident->job, 'j', take(in, 12) == 0);
    name_of(ident->name, 'w', take(in, 5));
    ident->incarnation = take(in, 16) == 0 ? 2 : 1;
}

static void fill_hello(input *in, const run *r, psd_msg_hello *h)
{
    name_of(h->role, take(in, 3) == 0 ? 's' : 't', 0);
    if (h->role[0] == 's')
        memcpy(h->role, "server", 7);
    name_of(h->host, 'h', take(in, 3));
    h->world_min = take(in, 8) == 0 ? (int32_t)take(in, 6) - 1 : 3;
    h->world_max = h->world_min + (take(in, 16) == 0);
    h->rank = (int32_t)take(in, 5) - 1;
    h->resume_token = take(in, 2) == 0 ? 0 : r->tokens[take(in, 8)];
}

static void fill_group_open(input *in, kept *k)
{
    psd_msg_group_open *open = &k->msg.u.group_open;
    open->how = (psd_group_how)take(in, 4);
    open->parent = take(in, 5);
    open->color = (int32_t)take(in, 4) - 2;
    open->key = (int32_t)take(in, 3);
    open->count = take(in, MOST_MEMBERS + 1);
    bool usual = take(in, 2) == 0; /* lists that others ask for too */
    for (uint32_t i = 0; i < MOST_MEMBERS; i++)
        k->members[i] = usual ? i : take(in, 4);
    if (usual)
        open->count = 3;
    open->members = k->members;
}

static void fill_table(input *in, kept *k)
{
    psd_table_spec *spec = &k->msg.u.table_open.spec;
    name_of(spec->name, 'm', take(in, 2));
    spec->optimizer = (uint8_t)take(in, 4);
    spec->lr = 0.1 * take(in, 2);
    spec->param_count = take(in, 3);
    for (int i = 0; i < 2; i++) {
        k->params[i] = (psd_param){.dtype = (uint8_t)(take(in, 16) == 0 ? 99 : PSD_F32),
                                   .count = (int64_t)take(in, 3) - 1};
        name_of(k->params[i].name, 'p', (uint32_t)i);
    }
    spec->params = k->params;
}

static void fill_sides(input *in, psd_msg_abort *out)
{
    static const uint8_t kinds[] = {PSD_OP_SEND, PSD_OP_RECV, PSD_OP_ALL_REDUCE, PSD_OP_ALL_TO_ALL_V};
    out->status = PSD_ERR_MISMATCH;
    out->side_count = 1 + take(in, PSD_ABORT_SIDES);
    for (uint32_t i = 0; i < out->side_count; i++)
        out->sides[i] = (psd_op_side){.rank = (int32_t)take(in, 6),
                                      .kind = kinds[take(in, sizeof(kinds))],
                                      .dtype = (uint8_t)(take(in, 2) * PSD_F32),
                                      .peer = (int32_t)take(in, 6) - 1,
                                      .root = -(int32_t)take(in, 3),
                                      .ordinal = take(in, 2),
                                      .count = take(in, 3),
                                      .name = "x\ty",
                                      .site = "a.c:1"};
}

static void fill_small(input *in, const run *r, kept *k)
{
    psd_msg *msg = &k->msg;
    switch (msg->type) {
    case PSD_MSG_GROUP_TOKEN:
        msg->u.group_token.group = take(in, 6);
        msg->u.group_token.bytes = take(in, 16) == 0 ? 1000 : 3;
        break;
    case PSD_MSG_GROUP_READY:
    case PSD_MSG_GROUP_CLOSE:
        msg->u.group.group = take(in, 6);
        break;
    case PSD_MSG_GROUP_FAIL:
        msg->u.abort.group = take(in, 6);
        msg->u.abort.culprit = (int32_t)take(in, 6) - 2;
        msg->u.abort.status = take(in, 2) == 0 ? PSD_OK : PSD_ERR_LINK;
        if (take(in, 2) == 0)
            fill_sides(in, &msg->u.abort);
        break;
    case PSD_MSG_PLAN_OPEN:
        msg->u.plan_open.inputs = (psd_plan_inputs){.kind = (psd_plan_kind)(take(in, 16) != 0),
                                                    .group = take(in, 6),
                                                    .ranks = take(in, 8) == 0 ? 3 : 0,
                                                    .dtype = PSD_F32,
                                                    .count = (int64_t)take(in, 8) - 1,
                                                    .shift = (int32_t)take(in, 9) - 4};
        break;
    case PSD_MSG_BYE:
        msg->u.bye.status = take(in, 3) == 0 ? PSD_ERR_IO : PSD_OK;
        break;
    default:
        msg->u.plan.plan = take(in, 6); /* and table: both begin with their number */
        if (msg->type == PSD_MSG_PLAN_READY)
            msg->u.plan.hash =
                take(in, 8) == 0
                    ? 1
                    : r->hashes[(msg->u.plan.plan * 4 + (uint32_t)(msg->ident.name[1] & 3)) % 16];
        if (msg->type == PSD_MSG_TABLE_READY)
            msg->u.table.status = take(in, 8) == 0 ? PSD_ERR_NOMEM : PSD_OK;
        break;
    }
}

/* One thread that waits for one or two operations, each a unit. */
static void fill_snapshot(input *in, const run *r, kept *k)
{
    static const uint8_t kinds[] = {PSD_OP_SEND, PSD_OP_RECV, PSD_OP_RECV, PSD_OP_ALL_REDUCE, PSD_OP_BARRIER};
    psd_msg_snapshot *s = &k->msg.u.snapshot;
    s->round = r->round - (take(in, 16) == 15);
    s->moved = take(in, 16) == 15;
    s->report_only = take(in, 8) == 7;
    s->thread_count = take(in, 8) != 7;
    s->op_count = s->unit_count = 1 + take(in, 2);
    k->thread =
        (psd_snap_thread){.id = 1, .wait_seq = 1 + (take(in, 16) == 15), .is_blocked = take(in, 8) != 7};
    k->thread.any = take(in, 4) == 3;
    k->thread.work_count = s->op_count;
    for (uint32_t i = 0; i < s->op_count; i++) {
        k->works[i] = i;
        k->ops[i] = (psd_snap_op){.unit = i,
                                  .kind = kinds[take(in, sizeof(kinds))],
                                  .is_matched = take(in, 16) == 15,
                                  .group = 1 + (take(in, 8) == 7),
                                  .peer = (int32_t)take(in, 5) - 1,
                                  .root = -1,
                                  .tag = (int32_t)take(in, 3) - 1,
                                  .ordinal = take(in, 3),
                                  .count = take(in, 16) == 15};
    }
    k->thread.works = k->works;
    s->threads = &k->thread;
    s->ops = k->ops;
    s->group_count = s->peer_count = take(in, 4) == 3;
    k->peers[0] = 1;
    for (int i = 0; i < 3; i++)
        k->counts[i] = take(in, 3);
    s->groups = k->peers;
    s->started = &k->counts[2];
    s->peers = k->peers;
    s->sent = k->counts;
    s->received = k->counts + 1;
}

static void fill_msg(input *in, const run *r, kept *k)
{
    k->event.msg = &k->msg;
    k->event.peer = take(in, 8) == 0 ? take(in, 7) : 1 + take(in, 3);
    k->msg.type = (psd_msg_type)take(in, PSD_MSG_TYPES + 1);
    k->msg.request = take(in, 8);
    if (take(in, 16) == 0) {
        fill_ident(in, &k->msg.ident);
    } else { /* mostly, each connection speaks for its own worker */
        name_of(k->msg.ident.job, 'j', 0);
        name_of(k->msg.ident.name, 'w', (uint32_t)k->event.peer % 3);
        k->msg.ident.incarnation = 1;
    }
    if (k->msg.type == PSD_MSG_HELLO) {
        fill_hello(in, r, &k->msg.u.hello);
    } else if (k->msg.type == PSD_MSG_GROUP_OPEN) {
        fill_group_open(in, k);
    } else if (k->msg.type == PSD_MSG_TABLE_OPEN) {
        fill_table(in, k);
    } else if (k->msg.type == PSD_MSG_SNAPSHOT) {
        fill_snapshot(in, r, k);
    } else if (k->msg.type == PSD_MSG_QUERY) {
        static const char *const views[] = {"status", "ranks", "groups",    "plans",    "ops",   "tables",
                                            "events", "why",   "incidents", "incident", "ack/1", "stop"};
        (void)snprintf(k->msg.u.query.view, sizeof(k->msg.u.query.view), "%s", views[take(in, 12)]);
        k->msg.u.query.after = take(in, 3);
        k->msg.u.query.limit = take(in, 4);
    } else {
        fill_small(in, r, k);
    }
}

/* What a worker would have learned. */
static void learn(run *r, const psd_msg *msg)
{
    if (msg->type == PSD_MSG_WELCOME)
        r->tokens[msg->u.welcome.rank % 8] = msg->u.welcome.resume_token;
    if (msg->type == PSD_MSG_SNAPSHOT_ASK)
        r->round = msg->u.snapshot.round;
    if (msg->type == PSD_MSG_PLAN_STEPS)
        r->hashes[(msg->u.plan_steps.plan * 4 + (uint32_t)(msg->ident.name[1] & 3)) % 16] =
            msg->u.plan_steps.hash;
}

static void expand(run *r, psd_effect *effect)
{
    uint64_t cursor = 0;
    psd_peer peer = 0;
    while (psd_core_next_addressee(r->core, effect, &cursor, &peer)) {
        if (peer == 0)
            abort(); /* no message may go to nobody */
        learn(r, effect->msg);
    }
}

static void step(run *r, kept *k);

static void follow(run *r, const psd_effect *effect)
{
    kept *k = &r->events[r->count];
    if (r->count + 1 >= 4 * MOST_EVENTS)
        return;
    psd_plan_steps steps;
    char text[256];
    if (effect->type == PSD_EFFECT_EVENT) {
        k->event = *effect->event;
        if (k->event.msg != NULL) { /* the core's own */
            k->msg = *k->event.msg;
            k->event.msg = &k->msg;
        }
        step(r, k);
    } else if (effect->type == PSD_EFFECT_COMPILE) {
        k->event = (psd_event){.type = PSD_EVENT_COMPILED, .plan = effect->plan, .now = r->now};
        k->event.status = psd_plan_compile(&effect->inputs, &steps, text, sizeof(text));
        k->event.compiled = k->event.status == PSD_OK ? &steps : NULL;
        step(r, k);
        k->event.compiled = NULL;
    }
}

static void step(run *r, kept *k)
{
    psd_effects effects = {0};
    r->count++;
    if (psd_core_step(r->core, &k->event, &effects) != PSD_OK)
        abort();
    k->journalled = effects.journal;
    for (size_t i = 0; i < effects.count; i++)
        if (effects.items[i]->type == PSD_EFFECT_SEND)
            expand(r, effects.items[i]);
    for (size_t i = 0; i < effects.count; i++)
        follow(r, effects.items[i]);
    psd_effects_free(&effects);
}

static void say(run *r, psd_peer peer, psd_msg msg)
{
    kept *k = &r->events[r->count];
    *k = (kept){.event = {.type = PSD_EVENT_MSG, .entropy = r->count + 1, .now = r->now, .peer = peer},
                .msg = msg};
    k->event.msg = &k->msg;
    name_of(k->msg.ident.job, 'j', 0);
    name_of(k->msg.ident.name, 'w', (uint32_t)peer % 3);
    k->msg.ident.incarnation = 1;
    step(r, k);
}

/* All three say the same, each with what it was sent: most of what needs everybody would never happen by
 * chance. */
static void chorus(run *r, const kept *first)
{
    for (psd_peer peer = 1; peer <= 3 && r->count + 8 < 4 * MOST_EVENTS; peer++) {
        psd_msg msg = first->msg;
        msg.request += peer;
        if (msg.type == PSD_MSG_PLAN_READY)
            msg.u.plan.hash = r->hashes[(msg.u.plan.plan * 4 + (uint32_t)(peer % 3)) % 16];
        say(r, peer, msg);
    }
}

static void one_event(run *r, input *in)
{
    kept *k = &r->events[r->count];
    *k = (kept){.event = {.entropy = r->count + 1}};
    uint32_t kind = take(in, 128);
    if (kind >= 8)
        k->event.type = PSD_EVENT_MSG;
    else if (kind >= 5)
        k->event.type = PSD_EVENT_TIMER;
    else
        k->event.type = (psd_event_type)((const int[]){PSD_EVENT_GONE, PSD_EVENT_GONE, PSD_EVENT_LOST,
                                                       PSD_EVENT_RESTART, PSD_EVENT_STOP}[kind]);
    if (k->event.type == PSD_EVENT_MSG)
        fill_msg(in, r, k);
    else if (k->event.type == PSD_EVENT_GONE)
        k->event.peer = take(in, 7);
    else if (k->event.type == PSD_EVENT_LOST)
        fill_ident(in, &k->event.ident);
    else if (k->event.type == PSD_EVENT_TIMER)
        r->now += take(in, 8) * PSD_NS_PER_S / 2;
    k->event.now = r->now;
    bool all = k->event.type == PSD_EVENT_MSG && k->msg.type != PSD_MSG_BYE && take(in, 2) == 0;
    step(r, k);
    if (all)
        chorus(r, k);
}

/* A server and two trainers form a world, whose group opens: without it, bytes would hardly come that far. */
static void form_world(run *r)
{
    for (psd_peer peer = 1; peer <= 3; peer++) {
        psd_msg hello = {.type = PSD_MSG_HELLO,
                         .u.hello = {.rank = (int32_t)peer - 1, .world_min = 3, .world_max = 3}};
        (void)snprintf(hello.u.hello.role, sizeof(hello.u.hello.role), "%s", peer == 1 ? "server" : "t0");
        say(r, peer, hello);
    }
    say(r, 1, (psd_msg){.type = PSD_MSG_GROUP_TOKEN, .u.group_token = {.group = 1, .bytes = 3}});
    for (psd_peer peer = 1; peer <= 3; peer++)
        say(r, peer, (psd_msg){.type = PSD_MSG_GROUP_READY, .u.group = {.group = 1}});
}

/* The groups, plans and tables views, and who has which rank, as one number. */
static uint64_t state_of(psd_core *core, psd_time_ns now)
{
    static const char *const views[] = {"status", "ranks",     "groups",  "plans",
                                        "tables", "incidents", "incident"};
    uint64_t hash = 1;
    for (size_t v = 0; v < sizeof(views) / sizeof(views[0]); v++) {
        psd_effects effects = {0};
        psd_msg msg = {.type = PSD_MSG_QUERY, .request = 1};
        (void)snprintf(msg.u.query.view, sizeof(msg.u.query.view), "%s", views[v]);
        psd_event event = {.type = PSD_EVENT_MSG, .now = now, .peer = 99, .msg = &msg};
        if (psd_core_step(core, &event, &effects) != PSD_OK)
            abort();
        const psd_msg_reply *reply = &effects.items[0]->msg->u.reply;
        for (uint32_t i = 0; i < reply->row_count * reply->column_count; i++) {
            if (reply->columns[i % reply->column_count].type != PSD_CELL_TEXT)
                continue;
            for (const char *c = reply->cells[i].text; *c != 0; c++)
                hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
        }
        psd_effects_free(&effects);
    }
    return hash;
}

static void check_replay(const run *r)
{
    psd_core *again = NULL;
    if (psd_core_new(NULL, &again) != PSD_OK)
        abort();
    for (size_t i = 0; i < r->count; i++) {
        psd_effects effects = {0};
        psd_event event = r->events[i].event;
        if (!r->events[i].journalled)
            continue;
        if (psd_core_step(again, &event, &effects) != PSD_OK)
            abort();
        psd_effects_free(&effects);
    }
    if (state_of(again, r->now) != state_of(r->core, r->now))
        abort(); /* a restart would lose something */
    psd_core_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input in = {data, bytes};
    run r = {.now = PSD_NS_PER_S};
    r.events = calloc(4 * MOST_EVENTS, sizeof(*r.events));
    if (r.events == NULL || psd_core_new(NULL, &r.core) != PSD_OK)
        abort();
    if (take(&in, 4) != 0)
        form_world(&r);
    for (int i = 0; i < MOST_EVENTS && in.left > 0 && r.count + 1 < 4 * MOST_EVENTS; i++)
        one_event(&r, &in);
    check_replay(&r);
    psd_core_free(r.core);
    free(r.events);
    return 0;
}

#ifdef PSD_FUZZ_MAIN
int main(int argc, char **argv)
{
    static uint8_t data[1 << 20];
    for (int i = 1; i < argc; i++) {
        FILE *in = fopen(argv[i], "rb");
        if (in == NULL) {
            (void)fprintf(stderr, "fuzz_core: cannot read %s\n", argv[i]);
            return 1;
        }
        size_t bytes = fread(data, 1, sizeof(data), in);
        (void)fclose(in);
        (void)LLVMFuzzerTestOneInput(data, bytes);
    }
    (void)printf("%d files\n", argc - 1);
    return 0;
}
#endif
