/* Details of the core that no golden trace shows: deadlines, what is journalled, entropy, hostile messages.
 */
#include <stdio.h>
#include <string.h>

#include "server/core/core.h"
#include "tests/lib/psd_test.h"

typedef struct bench {
    psd_core *core;
    psd_effects effects;
    psd_time_ns now;
} bench;

static bench begin(int32_t lease_ms)
{
    bench b = {.now = PSD_NS_PER_S};
    psd_core_config config = {.lease_ms = lease_ms};
    cr_assert_eq(psd_core_new(&config, &b.core), PSD_OK);
    return b;
}

static void end(bench *b)
{
    psd_effects_free(&b->effects);
    psd_core_free(b->core);
}

static void step(bench *b, psd_event event)
{
    psd_effects_clear(&b->effects);
    event.now = b->now;
    cr_assert_eq(psd_core_step(b->core, &event, &b->effects), PSD_OK);
}

static void say(bench *b, psd_peer peer, psd_msg msg)
{
    (void)snprintf(msg.ident.job, sizeof(msg.ident.job), "default");
    (void)snprintf(msg.ident.name, sizeof(msg.ident.name), "w%d", (int)peer);
    msg.ident.incarnation = peer;
    step(b, (psd_event){.type = PSD_EVENT_MSG, .peer = peer, .msg = &msg, .entropy = 1000 + peer});
}

static void hello(bench *b, psd_peer peer, int32_t world)
{
    psd_msg msg = {
        .type = PSD_MSG_HELLO,
        .u.hello = {.rank = -1, .world_min = world, .world_max = world, .role = "worker", .host = "h"}};
    say(b, peer, msg);
}

/* The first SEND of this type, with its first addressee filled in. */
static const psd_msg *sent(bench *b, psd_msg_type type)
{
    for (size_t i = 0; i < b->effects.count; i++) {
        psd_effect *effect = b->effects.items[i];
        uint64_t cursor = 0;
        psd_peer peer;
        if (effect->type == PSD_EFFECT_SEND && effect->msg->type == type &&
            psd_core_next_addressee(b->core, effect, &cursor, &peer))
            return effect->msg;
    }
    return NULL;
}

PSD_TEST(core_step, nothing_waits_in_an_empty_core)
{
    bench b = begin(5000);
    cr_assert_eq(psd_core_deadline(b.core), PSD_NEVER);
    step(&b, (psd_event){.type = PSD_EVENT_TIMER});
    step(&b, (psd_event){.type = PSD_EVENT_GONE, .peer = 7});
    cr_assert_not(b.effects.journal);
    step(&b, (psd_event){.type = PSD_EVENT_STOP});
    step(&b, (psd_event){.type = PSD_EVENT_COMPILED, .plan = 3});
    cr_assert_eq(b.effects.count, 0);
    end(&b);
}

PSD_TEST(core_step, a_heartbeat_moves_the_deadline_and_is_not_journalled)
{
    bench b = begin(1000);
    hello(&b, 1, 1);
    cr_assert(b.effects.journal);
    cr_assert_eq(psd_core_deadline(b.core), b.now + PSD_NS_PER_S);
    b.now += PSD_NS_PER_S / 2;
    say(&b, 1, (psd_msg){.type = PSD_MSG_HEARTBEAT});
    cr_assert_not(b.effects.journal);
    cr_assert_eq(b.effects.count, 0);
    cr_assert_eq(psd_core_deadline(b.core), b.now + PSD_NS_PER_S);
    end(&b);
}

/* psd itself was late: so may be what a worker said in time. A closed connection has nothing to do with it. */
PSD_TEST(core_step, slack_prolongs_leases_and_not_graces)
{
    bench b = begin(5000);
    hello(&b, 1, 2);
    hello(&b, 2, 2);
    b.now += PSD_NS_PER_S;
    step(&b, (psd_event){.type = PSD_EVENT_TIMER}); /* the notice that one was missing */
    say(&b, 1, (psd_msg){.type = PSD_MSG_HEARTBEAT});
    say(&b, 2, (psd_msg){.type = PSD_MSG_HEARTBEAT});
    psd_core_set_slack(b.core, PSD_NS_PER_S);
    cr_assert_eq(psd_core_deadline(b.core), b.now + 6 * PSD_NS_PER_S);
    b.now += 5 * PSD_NS_PER_S;
    step(&b, (psd_event){.type = PSD_EVENT_TIMER});
    cr_assert_eq(b.effects.count, 0);
    psd_core_set_slack(b.core, 60 * PSD_NS_PER_S);
    step(&b, (psd_event){.type = PSD_EVENT_GONE, .peer = 2});
    cr_assert_leq(psd_core_deadline(b.core), b.now + 5 * PSD_NS_PER_S);
    psd_core_set_slack(b.core, 0);
    step(&b, (psd_event){.type = PSD_EVENT_TIMER});
    cr_assert_eq(b.effects.count, 1, "as soon as psd is in time again");
    cr_assert_eq(b.effects.items[0]->event->type, PSD_EVENT_LOST);
    cr_assert_eq(b.effects.items[0]->event->ident.incarnation, 1);
    end(&b);
}

PSD_TEST(core_step, the_timer_asks_for_the_loss_and_the_loss_is_journalled)
{
    bench b = begin(1000);
    hello(&b, 1, 1);
    b.now += PSD_NS_PER_S;
    step(&b, (psd_event){.type = PSD_EVENT_TIMER});
    cr_assert_not(b.effects.journal);
    cr_assert_eq(b.effects.count, 1);
    cr_assert_eq(b.effects.items[0]->type, PSD_EFFECT_EVENT);
    cr_assert_eq(b.effects.items[0]->event->type, PSD_EVENT_LOST);
    psd_event lost = *b.effects.items[0]->event;
    step(&b, lost);
    cr_assert(b.effects.journal);
    cr_assert_eq(psd_core_deadline(b.core), PSD_NEVER);
    step(&b, lost);
    cr_assert_not(b.effects.journal);
    end(&b);
}

PSD_TEST(core_step, many_losses_come_in_bounded_batches)
{
    bench b = begin(1000);
    for (psd_peer peer = 1; peer <= 200; peer++)
        hello(&b, peer, 200);
    b.now += 2 * PSD_NS_PER_S;
    size_t lost = 0;
    for (int i = 0; i < 20 && psd_core_deadline(b.core) <= b.now; i++) {
        step(&b, (psd_event){.type = PSD_EVENT_TIMER});
        cr_assert_leq(b.effects.count, 128);
        lost += b.effects.count;
    }
    cr_assert_eq(lost, 200);
    end(&b);
}

PSD_TEST(core_step, resume_tokens_differ_and_come_from_entropy)
{
    bench b = begin(5000);
    hello(&b, 1, 2);
    hello(&b, 2, 2);
    uint64_t tokens[2] = {0};
    size_t count = 0;
    psd_effect *effect = b.effects.items[0];
    uint64_t cursor = 0;
    psd_peer peer;
    cr_assert_eq(effect->msg->type, PSD_MSG_WELCOME);
    while (psd_core_next_addressee(b.core, effect, &cursor, &peer) && count < 2)
        tokens[count++] = effect->msg->u.welcome.resume_token;
    cr_assert_eq(count, 2);
    cr_assert(tokens[0] != 0 && tokens[1] != 0 && tokens[0] != tokens[1]);
    end(&b);
}

PSD_TEST(core_step, a_wrong_resume_token_is_refused)
{
    bench b = begin(5000);
    hello(&b, 1, 1);
    psd_msg msg = {
        .type = PSD_MSG_HELLO,
        .ident = {.job = "default", .name = "w1", .incarnation = 1},
        .u.hello = {.rank = -1, .world_min = 1, .world_max = 1, .role = "worker", .resume_token = 12345}};
    step(&b, (psd_event){.type = PSD_EVENT_MSG, .peer = 9, .msg = &msg});
    const psd_msg *refuse = sent(&b, PSD_MSG_REFUSE);
    cr_assert_not_null(refuse);
    cr_assert_eq(refuse->u.refuse.status, PSD_ERR_REFUSED);
    cr_assert_not(b.effects.journal);
    end(&b);
}

PSD_TEST(core_step, messages_of_psd_and_unknown_ones_are_refused)
{
    bench b = begin(5000);
    hello(&b, 1, 1);
    static const int types[] = {PSD_MSG_NONE, PSD_MSG_WELCOME, PSD_MSG_REPLY, PSD_MSG_TYPES, 1000, -5};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        say(&b, 1, (psd_msg){.type = (psd_msg_type)types[i], .request = 4});
        cr_assert_not_null(sent(&b, PSD_MSG_REFUSE), "type %d", types[i]);
        cr_assert_not(b.effects.journal);
    }
    end(&b);
}

PSD_TEST(core_step, worlds_over_the_limit_are_refused_and_ended_ones_give_back)
{
    bench b = begin(5000);
    psd_core_free(b.core);
    psd_core_config config = {.max_ranks = 10, .max_jobs = 1};
    cr_assert_eq(psd_core_new(&config, &b.core), PSD_OK);
    hello(&b, 1, 11);
    cr_assert_eq(sent(&b, PSD_MSG_REFUSE)->u.refuse.status, PSD_ERR_LIMIT);
    hello(&b, 1, 10);
    cr_assert_not_null(sent(&b, PSD_MSG_WAITING));
    psd_msg other = {.type = PSD_MSG_HELLO,
                     .ident = {.job = "other", .name = "x", .incarnation = 5},
                     .u.hello = {.rank = -1, .world_min = 1, .world_max = 1, .role = "worker"}};
    step(&b, (psd_event){.type = PSD_EVENT_MSG, .peer = 9, .msg = &other});
    cr_assert_eq(sent(&b, PSD_MSG_REFUSE)->u.refuse.status, PSD_ERR_LIMIT);
    say(&b, 1, (psd_msg){.type = PSD_MSG_BYE, .request = 1});
    cr_assert_not_null(sent(&b, PSD_MSG_BYE_ACK));
    step(&b, (psd_event){.type = PSD_EVENT_MSG, .peer = 9, .msg = &other});
    cr_assert_not_null(sent(&b, PSD_MSG_WELCOME)); /* in the ended job's place */
    end(&b);
}

/* A group whose GROUP_OPENED could not be sent would leave its members waiting. */
PSD_TEST(core_step, a_world_whose_addresses_fill_no_message_is_told)
{
    enum { RANKS = 6000 };
    bench b = begin(5000);
    psd_msg msg = {.type = PSD_MSG_HELLO,
                   .u.hello = {.rank = -1, .world_min = RANKS, .world_max = RANKS, .role = "worker"}};
    memset(msg.u.hello.address, 'a', sizeof(msg.u.hello.address) - 1);
    for (psd_peer peer = 1; peer <= RANKS; peer++)
        say(&b, peer, msg);
    cr_assert_not_null(sent(&b, PSD_MSG_WELCOME));
    cr_assert_null(sent(&b, PSD_MSG_GROUP_ASK_TOKEN));
    const psd_msg *abort = sent(&b, PSD_MSG_ABORT);
    cr_assert_not_null(abort);
    cr_assert_eq(abort->u.abort.status, PSD_ERR_LIMIT);
    cr_assert_not_null(strstr(abort->u.abort.text, "6000 ranks"));
    /* A group of fewer can be. */
    uint32_t members[] = {0, 1};
    psd_msg open = {.type = PSD_MSG_GROUP_OPEN,
                    .request = 7,
                    .u.group_open = {.how = PSD_GROUP_NEW, .count = 2, .members = members}};
    say(&b, 1, open);
    say(&b, 2, open);
    cr_assert_not_null(sent(&b, PSD_MSG_GROUP_ASK_TOKEN));
    end(&b);
}

PSD_TEST(core_step, a_table_that_fills_no_message_is_refused)
{
    static psd_param params[20000];
    bench b = begin(5000);
    psd_msg hi = {.type = PSD_MSG_HELLO,
                  .u.hello = {.rank = -1, .world_min = 2, .world_max = 2, .role = "server"}};
    say(&b, 1, hi);
    (void)snprintf(hi.u.hello.role, sizeof(hi.u.hello.role), "trainer");
    say(&b, 2, hi);
    for (size_t i = 0; i < 20000; i++) {
        params[i] = (psd_param){.dtype = PSD_F32, .count = 1};
        memset(params[i].name, 'p', sizeof(params[i].name) - 1);
    }
    psd_msg open = {
        .type = PSD_MSG_TABLE_OPEN,
        .request = 7,
        .u.table_open.spec = {.name = "t", .optimizer = 1, .param_count = 20000, .params = params}};
    say(&b, 2, open);
    const psd_msg *refuse = sent(&b, PSD_MSG_REFUSE);
    cr_assert_not_null(refuse);
    cr_assert_eq(refuse->u.refuse.status, PSD_ERR_LIMIT);
    cr_assert_not(b.effects.journal);
    open.u.table_open.spec.param_count = 10000;
    say(&b, 2, open);
    cr_assert_not_null(sent(&b, PSD_MSG_TABLE_ASSIGN));
    end(&b);
}

/* The worker would take RESYNC for the answer to its request, and give up. */
PSD_TEST(core_step, resync_answers_no_request)
{
    bench b = begin(5000);
    hello(&b, 1, 1);
    step(&b, (psd_event){.type = PSD_EVENT_RESTART});
    say(&b, 1, (psd_msg){.type = PSD_MSG_BYE, .request = 8});
    const psd_msg *resync = sent(&b, PSD_MSG_RESYNC);
    cr_assert_not_null(resync);
    cr_assert_eq(resync->request, 0);
    end(&b);
}

PSD_TEST(core_step, a_bye_that_is_sent_again_is_acknowledged_again)
{
    bench b = begin(5000);
    hello(&b, 1, 2);
    hello(&b, 2, 2);
    say(&b, 1, (psd_msg){.type = PSD_MSG_BYE, .request = 8});
    say(&b, 1, (psd_msg){.type = PSD_MSG_BYE, .request = 8});
    const psd_msg *ack = sent(&b, PSD_MSG_BYE_ACK);
    cr_assert_not_null(ack);
    cr_assert_eq(ack->request, 8);
    cr_assert_not(b.effects.journal);
    end(&b);
}

PSD_TEST(core_step, compiled_steps_of_no_plan_are_freed)
{
    bench b = begin(5000);
    char text[128];
    psd_plan_steps steps;
    psd_plan_inputs in = {.kind = PSD_PLAN_RING_SHIFT, .ranks = 2, .dtype = PSD_F32, .count = 8, .shift = 1};
    cr_assert_eq(psd_plan_compile(&in, &steps, text, sizeof(text)), PSD_OK);
    step(&b, (psd_event){.type = PSD_EVENT_COMPILED, .plan = 1, .compiled = &steps});
    end(&b); /* the leak check at the end is the assertion */
}

PSD_TEST(core_step, freeing_nothing_is_fine)
{
    psd_effects effects = {0};
    psd_core_free(NULL);
    psd_effects_clear(&effects);
    psd_effects_free(&effects);
}

/* ---- psctl logs */

static void ask_log(bench *b, psd_peer psctl, const char *view, uint64_t request)
{
    psd_msg msg = {.type = PSD_MSG_QUERY, .request = request, .u.query = {.job = "default", .limit = 9}};
    (void)snprintf(msg.u.query.view, sizeof(msg.u.query.view), "%s", view);
    step(b, (psd_event){.type = PSD_EVENT_MSG, .peer = psctl, .msg = &msg});
}

static void answer_log(bench *b, psd_peer worker, uint64_t number)
{
    static const psd_column column = {"line", PSD_CELL_TEXT};
    const psd_cell lines[2] = {{.text = "first"}, {.text = "last"}};
    psd_msg msg = {
        .type = PSD_MSG_LOG,
        .u.reply = {.next = number, .column_count = 1, .columns = &column, .row_count = 2, .cells = lines}};
    say(b, worker, msg);
}

static const psd_msg *reply_with(bench *b, psd_status status)
{
    const psd_msg *reply = sent(b, PSD_MSG_REPLY);
    cr_assert_not_null(reply);
    cr_assert_eq(reply->u.reply.status, status, "%s", reply->u.reply.text);
    return reply;
}

PSD_TEST(core_step, a_rank_answers_for_its_log)
{
    bench b = begin(5000);
    hello(&b, 1, 1);
    ask_log(&b, 50, "log/0", 7);
    const psd_msg *ask = sent(&b, PSD_MSG_LOG_ASK);
    cr_assert_not_null(ask);
    cr_assert_eq(ask->u.query.limit, 9);
    uint64_t number = ask->u.query.after;
    answer_log(&b, 1, number + 1); /* to no question */
    cr_assert_null(sent(&b, PSD_MSG_REPLY));
    answer_log(&b, 1, number);
    const psd_msg *reply = reply_with(&b, PSD_OK);
    cr_assert(reply->request == 7 && reply->u.reply.next == 0 && reply->u.reply.row_count == 2);
    cr_assert_str_eq(reply->u.reply.cells[1].text, "last");
    answer_log(&b, 1, number); /* twice */
    cr_assert_null(sent(&b, PSD_MSG_REPLY));
    cr_assert_not(b.effects.journal);
    end(&b);
}

PSD_TEST(core_step, questions_for_logs_that_nobody_can_answer)
{
    static const char *const views[] = {"log/1", "log/-1", "log/", "log/x", "log/99999999999999"};
    bench b = begin(5000);
    hello(&b, 1, 1);
    for (size_t i = 0; i < sizeof(views) / sizeof(*views); i++) {
        ask_log(&b, 50, views[i], 7);
        cr_assert_null(sent(&b, PSD_MSG_LOG_ASK), "%s", views[i]);
        (void)reply_with(&b, PSD_ERR_NOT_FOUND);
    }
    for (uint64_t i = 0; i < 17; i++)
        ask_log(&b, 50 + i, i % 2 == 0 ? "log/0" : "ops/0", i);
    cr_assert_eq(reply_with(&b, PSD_ERR_LIMIT)->request, 0); /* the oldest makes room */
    cr_assert_not_null(sent(&b, PSD_MSG_LOG_ASK));
    cr_assert_leq(psd_core_deadline(b.core), b.now + 3 * PSD_NS_PER_S);
    b.now += 3 * PSD_NS_PER_S;
    step(&b, (psd_event){.type = PSD_EVENT_TIMER});
    cr_assert_not_null(strstr(reply_with(&b, PSD_ERR_TIMEOUT)->u.reply.text, "did not answer within 3 s"));
    ask_log(&b, 50, "ops/0", 9);
    cr_assert_not_null(sent(&b, PSD_MSG_OPS_ASK));
    step(&b, (psd_event){.type = PSD_EVENT_GONE, .peer = 1});
    ask_log(&b, 50, "log/0", 10);
    (void)reply_with(&b, PSD_ERR_NOT_FOUND);
    b.now += 60 * PSD_NS_PER_S; /* the question goes, whatever becomes of the rank */
    step(&b, (psd_event){.type = PSD_EVENT_TIMER});
    cr_assert_eq(reply_with(&b, PSD_ERR_TIMEOUT)->request, 9);
    end(&b);
}
