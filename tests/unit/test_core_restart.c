/* psd is restarted after every single step of a job that opens groups, a plan and a table: nothing may hang,
 * be refused or be aborted. Three workers say what an agent says (see worker/agent_loop.c) over a network of
 * frames, of which a restart loses all that is in flight; the core comes back from its journal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan.h"
#include "proto/wire.h"
#include "server/core/core.h"
#include "tests/lib/psd_test.h"

#define WORKERS    3
#define TELLS      64
#define FRAMES     4096
#define TAKEN      64
#define STEPS_MOST 4000 /* far more than any run has */

/* ----------------------------------------------------------------------------------------------- the world */

typedef struct frame {
    int worker; /* of it, or to it */
    bool to_psd;
    void *data;
    size_t bytes;
} frame;

typedef struct row {
    psd_event event;
    void *data;
    size_t bytes;
} row;

typedef struct told {
    psd_msg msg;
    bool sent;
} told;

typedef struct kept {
    psd_msg_type type;
    uint32_t key;
} kept;

typedef struct worker {
    psd_msg_hello hello;
    psd_peer peer;
    bool joined;
    bool synced;
    told tells[TELLS];
    int tell_count;
    psd_msg call; /* the request that waits; request 0: none */
    bool call_sent;
    bool answered;
    psd_msg answer; /* by value: its pointers are not valid */
    uint64_t hash;  /* of the plan's steps */
    uint64_t next_request;
    kept inbox[TAKEN];
    int inbox_count;
    int phase;
    uint32_t group;
    bool done;
} worker;

typedef struct world {
    psd_core *core;
    psd_effects effects;
    psd_time_ns now;
    uint64_t entropy;
    psd_peer next_peer;
    worker workers[WORKERS];
    frame frames[FRAMES];
    size_t frame_first;
    size_t frame_count;
    row *rows;
    size_t row_count;
    psd_plan_inputs compile;
    uint32_t compile_plan; /* 0: none asked for */
    psd_wire_buffer buffer;
    const char *where; /* for messages of failures */
    int restart_at[2];
    bool answers_arrive; /* a restart loses only what is on the way to psd */
} world;

static void fill_ident(int at, psd_ident *out)
{
    *out = (psd_ident){.incarnation = (uint64_t)at + 1};
    (void)snprintf(out->job, sizeof(out->job), "j");
    (void)snprintf(out->name, sizeof(out->name), "w%d", at);
}

static void send_frame(world *w, int at, bool to_psd, psd_msg *msg)
{
    if (to_psd)
        fill_ident(at, &msg->ident);
    cr_assert_eq(psd_wire_encode(msg, &w->buffer), PSD_OK);
    cr_assert_lt(w->frame_count, FRAMES);
    frame *f = &w->frames[w->frame_count++];
    *f = (frame){.worker = at, .to_psd = to_psd, .bytes = w->buffer.bytes};
    f->data = malloc(f->bytes);
    cr_assert_not_null(f->data);
    memcpy(f->data, w->buffer.data, f->bytes);
}

/* ----------------------------------------------------------------------------------------------------- psd */

static int worker_of(const world *w, psd_peer peer)
{
    for (int i = 0; i < WORKERS; i++)
        if (w->workers[i].peer == peer)
            return i;
    return -1;
}

static void add_row(world *w, const psd_event *event, const frame *f)
{
    w->rows = realloc(w->rows, (w->row_count + 1) * sizeof(*w->rows));
    cr_assert_not_null(w->rows);
    row *r = &w->rows[w->row_count++];
    *r = (row){.event = *event};
    r->event.compiled = NULL;
    r->event.msg = NULL;
    if (f == NULL)
        return;
    r->bytes = f->bytes;
    r->data = malloc(f->bytes);
    cr_assert_not_null(r->data);
    memcpy(r->data, f->data, f->bytes);
}

static void apply(world *w, psd_effect *effect)
{
    uint64_t cursor = 0;
    psd_peer peer;
    if (effect->type == PSD_EFFECT_COMPILE) {
        w->compile = effect->inputs;
        w->compile_plan = effect->plan;
    }
    while (effect->type == PSD_EFFECT_SEND && psd_core_next_addressee(w->core, effect, &cursor, &peer)) {
        int at = worker_of(w, peer);
        if (at >= 0)
            send_frame(w, at, false, effect->msg);
    }
}

static void step(world *w, psd_event *event, const frame *f)
{
    event->now = w->now += 1000;
    event->entropy = ++w->entropy;
    psd_effects_clear(&w->effects);
    cr_assert_eq(psd_core_step(w->core, event, &w->effects), PSD_OK);
    if (w->effects.journal)
        add_row(w, event, f);
    for (size_t i = 0; i < w->effects.count; i++)
        apply(w, w->effects.items[i]);
}

static void compile(world *w)
{
    char text[256] = "";
    psd_plan_steps steps;
    psd_event event = {.type = PSD_EVENT_COMPILED, .plan = w->compile_plan, .text = text, .compiled = &steps};
    w->compile_plan = 0;
    cr_assert_eq(psd_plan_compile(&w->compile, &steps, text, sizeof(text)), PSD_OK);
    step(w, &event, NULL);
}

static void replay(world *w)
{
    psd_core_free(w->core);
    cr_assert_eq(psd_core_new(NULL, &w->core), PSD_OK);
    for (size_t i = 0; i < w->row_count; i++) {
        psd_event event = w->rows[i].event;
        psd_msg_box *box = NULL;
        char why[128];
        psd_effects_clear(&w->effects);
        if (w->rows[i].data != NULL) {
            cr_assert_eq(psd_wire_decode(w->rows[i].data, w->rows[i].bytes, &box, why, sizeof(why)), PSD_OK);
            event.msg = &box->msg;
        }
        cr_assert_eq(psd_core_step(w->core, &event, &w->effects), PSD_OK);
        psd_msg_box_free(box);
    }
    psd_effects_clear(&w->effects);
}

/* ------------------------------------------------------------------------------------------------ an agent */

static void say_hello(world *w, int at)
{
    psd_msg msg = {.type = PSD_MSG_HELLO, .u.hello = w->workers[at].hello};
    send_frame(w, at, true, &msg);
}

static void flush(world *w, int at)
{
    worker *me = &w->workers[at];
    if (!me->synced)
        return;
    for (int i = 0; i < me->tell_count; i++)
        if (!me->tells[i].sent) {
            me->tells[i].sent = true;
            psd_msg msg = me->tells[i].msg;
            send_frame(w, at, true, &msg);
        }
    if (me->call.request != 0 && !me->call_sent) {
        me->call_sent = true;
        psd_msg msg = me->call;
        send_frame(w, at, true, &msg);
    }
}

static void tell(world *w, int at, psd_msg msg)
{
    worker *me = &w->workers[at];
    cr_assert_lt(me->tell_count, TELLS);
    me->tells[me->tell_count++] = (told){.msg = msg};
    flush(w, at);
}

/* What `msg` points to must last. */
static void call(world *w, int at, psd_msg msg)
{
    worker *me = &w->workers[at];
    msg.request = ++me->next_request;
    me->call = msg;
    me->call_sent = false;
    me->answered = false;
    flush(w, at);
}

static void welcome(world *w, int at, const psd_msg_welcome *msg)
{
    worker *me = &w->workers[at];
    bool again = me->joined && !me->synced;
    me->hello.rank = msg->rank;
    me->hello.epoch = msg->epoch;
    me->hello.resume_token = msg->resume_token;
    me->joined = true;
    me->synced = true;
    for (int i = 0; i < me->tell_count && again; i++)
        me->tells[i].sent = false;
    if (again)
        me->call_sent = me->answered;
    flush(w, at);
}

static void keep(worker *me, const psd_msg *msg)
{
    uint32_t key = msg->type == PSD_MSG_GROUP_OPENED   ? msg->u.group_opened.group
                   : msg->type == PSD_MSG_GROUP_GO     ? msg->u.group.group
                   : msg->type == PSD_MSG_TABLE_ASSIGN ? msg->u.table_open.table
                                                       : msg->u.table.table;
    cr_assert_lt(me->inbox_count, TAKEN);
    me->inbox[me->inbox_count++] = (kept){msg->type, key};
}

static void receive(world *w, int at, const psd_msg *msg)
{
    worker *me = &w->workers[at];
    cr_assert_neq(msg->type, PSD_MSG_ABORT, "%s: worker %d: group %u aborted: %s", w->where, at,
                  msg->u.abort.group, msg->u.abort.text);
    cr_assert_neq(msg->type, PSD_MSG_REFUSE, "%s, restarts after %d and %d: worker %d in phase %d: %s",
                  w->where, w->restart_at[0], w->restart_at[1], at, me->phase, msg->u.refuse.text);
    if (msg->request != 0 && msg->type != PSD_MSG_GROUP_ASK_TOKEN) {
        if (msg->request != me->call.request || me->answered)
            return; /* an answer that nobody waits for */
        me->answered = true;
        me->answer = *msg;
        if (msg->type == PSD_MSG_PLAN_STEPS)
            me->hash = psd_plan_rank_hash(&msg->u.plan_steps, 0);
    } else if (msg->type == PSD_MSG_WELCOME) {
        welcome(w, at, &msg->u.welcome);
    } else if (msg->type == PSD_MSG_RESYNC) {
        me->synced = false;
        say_hello(w, at);
    } else if (msg->type == PSD_MSG_GROUP_ASK_TOKEN) {
        psd_msg token = {.type = PSD_MSG_GROUP_TOKEN};
        token.u.group_token =
            (psd_msg_group_token){.group = msg->u.group_token.group, .bytes = 3, .token = "tok"};
        tell(w, at, token);
    } else if (msg->type != PSD_MSG_WAITING && msg->type != PSD_MSG_STOP) {
        keep(me, msg);
    }
}

/* --------------------------------------------------------------------------------------------- the program */

static bool take(worker *me, psd_msg_type type, uint32_t key)
{
    for (int i = 0; i < me->inbox_count; i++)
        if (me->inbox[i].type == type && (key == 0 || me->inbox[i].key == key)) {
            me->group = me->inbox[i].key;
            me->inbox[i] = me->inbox[--me->inbox_count];
            return true;
        }
    return false;
}

static bool reply(worker *me, psd_msg_type type)
{
    if (!me->answered)
        return false;
    cr_assert_eq(me->answer.type, type, "phase %d was answered with %s", me->phase,
                 psd_msg_name(me->answer.type));
    me->call.request = 0;
    me->answered = false;
    return true;
}

static psd_msg about_group(psd_msg_type type, uint32_t group)
{
    psd_msg msg = {.type = type};
    msg.u.group.group = group;
    return msg;
}

static psd_msg about_table(psd_msg_type type, uint32_t table)
{
    psd_msg msg = {.type = type};
    msg.u.table.table = table;
    return msg;
}

static psd_msg open_group(psd_group_how how, int32_t color)
{
    static const uint32_t turned[] = {2, 0, 1};
    psd_msg msg = {.type = PSD_MSG_GROUP_OPEN, .u.group_open = {.how = how, .parent = 1, .color = color}};
    if (how == PSD_GROUP_NEW) {
        msg.u.group_open.parent = 0;
        msg.u.group_open.count = WORKERS;
        msg.u.group_open.members = turned;
    }
    return msg;
}

static psd_msg open_plan(void)
{
    psd_msg msg = {.type = PSD_MSG_PLAN_OPEN};
    msg.u.plan_open.inputs = (psd_plan_inputs){
        .kind = PSD_PLAN_RING_SHIFT, .group = 1, .ranks = WORKERS, .dtype = PSD_F32, .count = 8, .shift = 1};
    return msg;
}

static psd_msg open_table(void)
{
    static const psd_param param = {.name = "p", .dtype = PSD_F32, .count = 4};
    psd_msg msg = {.type = PSD_MSG_TABLE_OPEN};
    msg.u.table_open.spec =
        (psd_table_spec){.name = "t", .optimizer = 1, .lr = 0.1, .param_count = 1, .params = &param};
    return msg;
}

/* The server's part, and the trainers' part, of a table. */
static bool play_table(world *w, int at)
{
    worker *me = &w->workers[at];
    if (at == 0 && me->phase == 0x20) {
        if (!take(me, PSD_MSG_TABLE_ASSIGN, 0))
            return false;
        tell(w, at, about_table(PSD_MSG_TABLE_READY, me->group));
    } else if (at == 0) {
        if (!take(me, PSD_MSG_TABLE_FREE, 0))
            return false;
        call(w, at, (psd_msg){.type = PSD_MSG_BYE});
    } else if (me->phase == 0x20) {
        call(w, at, open_table());
    } else {
        if (!reply(me, PSD_MSG_TABLE_OPENED))
            return false;
        tell(w, at, about_table(PSD_MSG_TABLE_CLOSE, me->answer.u.table_open.table));
        call(w, at, (psd_msg){.type = PSD_MSG_BYE});
    }
    me->phase = me->phase == 0x20 ? 0x21 : 0x30;
    return true;
}

static bool play_plan(world *w, int at)
{
    worker *me = &w->workers[at];
    psd_msg msg = {.type = PSD_MSG_PLAN_READY};
    if (me->phase == 0x10) {
        call(w, at, open_plan());
    } else if (me->phase == 0x11) {
        if (!reply(me, PSD_MSG_PLAN_STEPS))
            return false;
        msg.u.plan = (psd_msg_plan){.plan = me->answer.u.plan_steps.plan, .hash = me->hash};
        call(w, at, msg);
    } else {
        if (!reply(me, PSD_MSG_PLAN_GO))
            return false;
        msg.type = PSD_MSG_PLAN_CLOSE;
        msg.u.plan.plan = me->answer.u.plan.plan;
        tell(w, at, msg);
    }
    me->phase = me->phase == 0x12 ? 0x20 : me->phase + 1;
    return true;
}

/* Odd phases wait for GO. */
static bool play_groups(world *w, int at)
{
    worker *me = &w->workers[at];
    if (me->phase % 2 != 0) {
        if (!take(me, PSD_MSG_GROUP_GO, me->group))
            return false;
        if (me->phase == 1)
            call(w, at, open_group(PSD_GROUP_DUP, 0));
        else if (me->phase == 3)
            call(w, at, open_group(PSD_GROUP_NEW, 0));
        else
            tell(w, at, about_group(PSD_MSG_GROUP_CLOSE, me->group));
        if (me->phase == 5)
            call(w, at, open_group(PSD_GROUP_SPLIT, at < 2 ? 0 : -1));
    } else if (me->phase == 0) {
        if (!take(me, PSD_MSG_GROUP_OPENED, 1))
            return false;
    } else {
        if (!reply(me, PSD_MSG_GROUP_OPENED))
            return false;
        me->group = me->answer.u.group_opened.group;
    }
    if (me->phase % 2 == 0 && me->group != 0)
        tell(w, at, about_group(PSD_MSG_GROUP_READY, me->group));
    bool none = me->phase == 6 && me->group == 0;
    me->phase = none || me->phase == 7 ? 0x10 : me->phase + 1;
    return true;
}

static void play(world *w, int at)
{
    worker *me = &w->workers[at];
    bool moved = me->joined;
    while (moved && !me->done) {
        if (me->phase < 0x10)
            moved = play_groups(w, at);
        else if (me->phase < 0x20)
            moved = play_plan(w, at);
        else if (me->phase < 0x30)
            moved = play_table(w, at);
        else
            moved = me->done = reply(me, PSD_MSG_BYE_ACK);
    }
}

/* -------------------------------------------------------------------------------------------------- a run */

static void begin(world *w)
{
    *w = (world){.now = PSD_NS_PER_S, .next_peer = 1, .where = "run"};
    cr_assert_eq(psd_core_new(NULL, &w->core), PSD_OK);
    for (int i = 0; i < WORKERS; i++) {
        worker *me = &w->workers[i];
        me->peer = w->next_peer++;
        me->hello = (psd_msg_hello){.rank = i, .world_min = WORKERS, .world_max = WORKERS};
        (void)snprintf(me->hello.role, sizeof(me->hello.role), i == 0 ? "server" : "worker");
        (void)snprintf(me->hello.host, sizeof(me->hello.host), "h");
        (void)snprintf(me->hello.backend, sizeof(me->hello.backend), "host");
        (void)snprintf(me->hello.address, sizeof(me->hello.address), "@w%d", i);
        say_hello(w, i);
    }
}

static void end(world *w)
{
    for (size_t i = 0; i < w->frame_count; i++)
        free(w->frames[i].data);
    for (size_t i = 0; i < w->row_count; i++)
        free(w->rows[i].data);
    free(w->rows);
    psd_wire_buffer_free(&w->buffer);
    psd_effects_free(&w->effects);
    psd_core_free(w->core);
}

/* A leave that waits for its answer is said again, without a HELLO. */
static void come_back(world *w, int at)
{
    worker *me = &w->workers[at];
    if (me->call.request != 0 && me->call.type == PSD_MSG_BYE) {
        psd_msg msg = me->call;
        send_frame(w, at, true, &msg);
    } else {
        say_hello(w, at);
    }
}

static void deliver_to_worker(world *w, const frame *f)
{
    psd_msg_box *box = NULL;
    char why[128];
    cr_assert_eq(psd_wire_decode(f->data, f->bytes, &box, why, sizeof(why)), PSD_OK, "%s", why);
    if (!w->workers[f->worker].done) {
        receive(w, f->worker, &box->msg);
        play(w, f->worker);
    }
    psd_msg_box_free(box);
}

/* Everything on the way is lost, or only what is on the way to psd; the workers find a new connection and say
 * who they are. */
static void restart(world *w)
{
    size_t sent = w->frame_count;
    for (size_t i = w->frame_first; i < sent && w->answers_arrive; i++) {
        frame f = w->frames[i];
        if (!f.to_psd)
            deliver_to_worker(w, &f);
    }
    w->frame_first = w->frame_count;
    w->compile_plan = 0;
    replay(w);
    psd_event event = {.type = PSD_EVENT_RESTART};
    step(w, &event, NULL);
    for (int i = 0; i < WORKERS; i++) {
        w->workers[i].peer = w->next_peer++;
        w->workers[i].synced = false;
        if (!w->workers[i].done)
            come_back(w, i);
    }
}

static bool deliver(world *w)
{
    if (w->frame_first == w->frame_count) {
        if (w->compile_plan != 0) {
            compile(w);
            return true;
        }
        return false;
    }
    frame f = w->frames[w->frame_first++];
    if (!f.to_psd) {
        deliver_to_worker(w, &f);
        return true;
    }
    psd_msg_box *box = NULL;
    char why[128];
    cr_assert_eq(psd_wire_decode(f.data, f.bytes, &box, why, sizeof(why)), PSD_OK, "%s", why);
    psd_event event = {.type = PSD_EVENT_MSG, .peer = w->workers[f.worker].peer, .msg = &box->msg};
    step(w, &event, &f);
    psd_msg_box_free(box);
    return true;
}

/* Returns the number of steps; restarts after the first and the second of `at`, if they are not negative. */
static int run(int first, int second, bool answers_arrive)
{
    static world w;
    int steps = 0;
    begin(&w);
    w.restart_at[0] = first;
    w.restart_at[1] = second;
    w.answers_arrive = answers_arrive;
    do {
        steps++;
        if (steps == first || steps == second)
            restart(&w);
    } while (deliver(&w) && steps < STEPS_MOST);
    for (int i = 0; i < WORKERS; i++)
        cr_assert(w.workers[i].done, "restarts after %d and %d: worker %d hangs in phase 0x%x", first, second,
                  i, w.workers[i].phase);
    cr_assert(psd_core_idle(w.core));
    end(&w);
    return steps;
}

PSD_TEST(core_restart, a_job_without_restarts_ends_well)
{
    cr_assert_gt(run(-1, -1, false), 50);
}

PSD_TEST(core_restart, a_restart_after_any_step_is_not_noticed)
{
    int steps = run(-1, -1, false);
    for (int at = 1; at <= steps; at++)
        for (int arrive = 0; arrive < 2; arrive++)
            (void)run(at, -1, arrive == 1);
}

PSD_TEST(core_restart, two_restarts_are_not_noticed)
{
    int steps = run(-1, -1, false);
    for (int at = 1; at <= steps; at += 3)
        for (int after = 1; after < 40; after += 4)
            (void)run(at, at + after, after % 8 == 1);
}
