/* A server's shard against requests of every kind, in every order, with a backend that the test completes by
 * hand: right ones are applied once, wrong and hostile ones are refused and change nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "worker/table_shard.h"

/* ---- the backend: transfers in flight, and the messages that were sent */

enum { SERVER = 0, FIRST = 1, SECOND = 2, WORLD = 4, ELEMENTS = 3, MOST = 32 };

struct psd_request {
    psd_op_p2p p2p;
    bool is_used;
    bool is_done;
};

static struct psd_request requests[MOST];
static struct sent {
    uint32_t to;
    table_msg msg;
} sent[MOST];
static int sent_count;

static psd_status fake_start(psd_backend_group *group, const psd_op *op, psd_request **out)
{
    (void)group;
    for (int r = 0; r < MOST; r++) {
        if (requests[r].is_used)
            continue;
        requests[r] = (struct psd_request){.p2p = op->p2p[0], .is_used = true};
        *out = &requests[r];
        return PSD_OK;
    }
    return PSD_ERR_NOMEM;
}

static psd_status fake_test(psd_request *request, psd_op_result *result)
{
    *result = (psd_op_result){.status = PSD_OK};
    return request->is_done ? PSD_OK : PSD_INPROGRESS;
}

static psd_status fake_wait(psd_backend *backend, psd_request *const *list, int32_t count, bool any,
                            psd_time_ns deadline)
{
    (void)backend, (void)any, (void)deadline;
    for (int32_t i = 0; i < count; i++)
        list[i]->is_done = true;
    return PSD_OK;
}

static void fake_release(psd_request *request)
{
    request->is_used = false;
}

static const char *fake_text(const psd_request *request)
{
    (void)request;
    return "";
}

static psd_status fake_error(psd_backend_group *group, char *text, size_t bytes)
{
    (void)group;
    snprintf(text, bytes, "%s", "");
    return PSD_OK;
}

static psd_status fake_chan_send(psd_backend *backend, uint32_t world_rank, const void *data, uint32_t bytes)
{
    (void)backend;
    cr_assert_lt(sent_count, MOST);
    sent[sent_count].to = world_rank;
    cr_assert(table_msg_decode(data, bytes, &sent[sent_count++].msg));
    return PSD_OK;
}

static const psd_backend_ops fake_ops = {
    .name = "fake",
    .start = fake_start,
    .test = fake_test,
    .wait = fake_wait,
    .release = fake_release,
    .request_text = fake_text,
    .group_error = fake_error,
    .chan_send = fake_chan_send,
};

/* ---- a shard of a table with one server and two trainers */

static psd_ctx ctx;
static psd_group_slot slot;
static table_shard *shard;

static void setup(int optimizer)
{
    static const uint32_t servers[] = {SERVER}, trainers[] = {FIRST, SECOND};
    const psd_param param = {.name = "w", .dtype = PSD_F32, .count = ELEMENTS};
    char why[256] = "";
    memset(&ctx, 0, sizeof(ctx));
    memset(&slot, 0, sizeof(slot));
    memset(requests, 0, sizeof(requests));
    sent_count = 0;
    ctx.ops = &fake_ops;
    ctx.world = WORLD;
    ctx.settings.timeout_ms = 1000;
    cr_assert_eq(psd_pool_init(&ctx.pool, &fake_ops, NULL, 1 << 20), PSD_OK);
    psd_msg_table_open assign = {
        .table = 7,
        .spec = {.name = "t",
                 .optimizer = (uint8_t)optimizer,
                 .average = true,
                 .lr = 1,
                 .momentum = 0.5,
                 .param_count = 1,
                 .params = &param},
        .server_count = 1,
        .servers = servers,
        .trainer_count = 2,
        .trainers = trainers,
    };
    cr_assert_eq(table_shard_make("test.c", 1, &ctx, &assign, &shard, why, sizeof(why)), PSD_OK, "%s", why);
}

static void join(void)
{
    atomic_store(&slot.tag, 1);
    shard->group = &slot;
    atomic_store(&shard->phase, SHARD_JOINED);
}

static void teardown(void)
{
    table_shard_free(shard);
    psd_pool_destroy(&ctx.pool);
    for (int r = 0; r < MOST; r++)
        cr_assert_not(requests[r].is_used);
}

static table_msg make(table_kind kind, uint64_t sequence, uint64_t clock)
{
    bool has_data = kind == TABLE_PUSH || kind == TABLE_INIT;
    return (table_msg){.kind = kind,
                       .table = 7,
                       .incarnation = 99,
                       .sequence = sequence,
                       .clock = clock,
                       .bytes = has_data ? ELEMENTS * sizeof(float) : 0};
}

static void request(uint32_t rank, table_msg msg)
{
    table_shard_request(shard, rank, &msg);
    table_shard_progress(shard);
}

/* Completes every transfer in flight; receives get this value in every element. */
static void complete(float value)
{
    for (int r = 0; r < MOST; r++) {
        if (!requests[r].is_used)
            continue;
        requests[r].is_done = true;
        for (int64_t i = 0; i < requests[r].p2p.count && !requests[r].p2p.is_send; i++)
            ((float *)requests[r].p2p.data)[i] = value;
    }
    table_shard_progress(shard);
}

static int in_flight(void)
{
    int count = 0;
    for (int r = 0; r < MOST; r++)
        count += requests[r].is_used;
    return count;
}

/* The only messages since last asked are these, all of one kind, to these ranks (second may be 0: one
 * message). */
static void expect_sent(table_kind kind, table_kind answers, uint32_t first, uint32_t second,
                        const char *says)
{
    cr_assert_eq(sent_count, second != 0 ? 2 : 1, "%d messages", sent_count);
    for (int i = 0; i < sent_count; i++) {
        cr_assert_eq(sent[i].msg.kind, kind, "%s: %s", table_kind_name(sent[i].msg.kind), sent[i].msg.text);
        cr_assert_eq(sent[i].msg.answers, answers);
        cr_assert_eq(sent[i].to, i == 0 ? first : second);
        cr_assert(strstr(sent[i].msg.text, says), "no \"%s\" in \"%s\"", says, sent[i].msg.text);
    }
    sent_count = 0;
}

static void initialise(float value)
{
    join();
    request(FIRST, make(TABLE_INIT, 1, 0));
    cr_assert_eq(sent_count, 0);
    complete(value);
    expect_sent(TABLE_ACK, TABLE_INIT, FIRST, SECOND, "");
}

PSD_TEST(table_shard, initial_values)
{
    setup(PSD_OPT_SGD);
    join();
    request(SECOND, make(TABLE_PUSH, 2, 1));
    complete(0); /* what was announced is drained before it is refused */
    expect_sent(TABLE_NAK, TABLE_PUSH, SECOND, 0, "no initial values");
    request(SECOND, make(TABLE_PULL, 2, 0));
    expect_sent(TABLE_NAK, TABLE_PULL, SECOND, 0, "no initial values");
    request(SECOND, make(TABLE_INIT, 1, 0));
    expect_sent(TABLE_NAK, TABLE_INIT, SECOND, 0, "not the lowest trainer");
    request(WORLD - 1, make(TABLE_INIT, 1, 0));
    expect_sent(TABLE_NAK, TABLE_INIT, WORLD - 1, 0, "rank 3 is not a trainer");
    table_msg wrong = make(TABLE_INIT, 1, 0);
    wrong.bytes = 4;
    request(FIRST, wrong);
    expect_sent(TABLE_NAK, TABLE_INIT, FIRST, 0, "announces 4 bytes of initial values, expected 12");
    initialise(5);
    cr_assert_eq(shard->values[ELEMENTS - 1], 5.0f);
    request(FIRST, make(TABLE_INIT, 1, 0));
    expect_sent(TABLE_NAK, TABLE_INIT, FIRST, 0, "already");
    cr_assert_eq(in_flight(), 0);
    teardown();
}

PSD_TEST(table_shard, a_clock_is_applied_once_all_have_pushed)
{
    setup(PSD_OPT_MOMENTUM);
    initialise(10);
    for (uint64_t clock = 1; clock <= 2; clock++) {
        request(SECOND, make(TABLE_PUSH, clock + 1, clock));
        complete(3);
        cr_assert_eq(sent_count, 0);
        cr_assert_eq(shard->clock, clock - 1);
        request(FIRST, make(TABLE_PUSH, clock + 1, clock));
        complete(1);
        expect_sent(TABLE_ACK, TABLE_PUSH, FIRST, SECOND, "");
        cr_assert_eq(shard->clock, clock);
    }
    /* Mean gradient 2: v = 2, then 3; 10 - 2 - 3. */
    cr_assert_eq(shard->values[0], 5.0f);
    cr_assert_eq(shard->pushes, (uint64_t)4);
    teardown();
}

PSD_TEST(table_shard, a_repeated_push_is_recognised)
{
    setup(PSD_OPT_SGD);
    initialise(0);
    table_msg repeat = make(TABLE_PUSH, 2, 1);
    repeat.bytes = 0;
    request(FIRST, make(TABLE_PUSH, 2, 1));
    request(FIRST, repeat); /* while the data is on its way */
    complete(2);
    request(FIRST, repeat); /* while the other trainer's is missing */
    cr_assert_eq(sent_count, 0);
    request(SECOND, make(TABLE_PUSH, 2, 1));
    complete(4);
    expect_sent(TABLE_ACK, TABLE_PUSH, FIRST, SECOND, "");
    request(FIRST, repeat); /* the answer was lost */
    expect_sent(TABLE_ACK, TABLE_PUSH, FIRST, 0, "");
    cr_assert_eq(shard->values[0], -3.0f);
    cr_assert_eq(shard->clock, (uint64_t)1);
    cr_assert_eq(shard->pushes, (uint64_t)2);
    teardown();
}

PSD_TEST(table_shard, wrong_pushes_are_refused_and_the_table_goes_on)
{
    setup(PSD_OPT_SGD);
    initialise(0);
    request(FIRST, make(TABLE_PUSH, 2, 5));
    cr_assert_eq(sent_count, 0); /* drained first, so that the trainer's send ends */
    complete(100);
    expect_sent(TABLE_NAK, TABLE_PUSH, FIRST, 0, "rank 1 pushes clock 5 of table \"t\", expected 1");
    table_msg wrong = make(TABLE_PUSH, 2, 1);
    wrong.bytes = UINT64_MAX;
    request(FIRST, wrong);
    expect_sent(TABLE_NAK, TABLE_PUSH, FIRST, 0, "expected 12");
    wrong.bytes = 0;
    request(FIRST, wrong);
    expect_sent(TABLE_NAK, TABLE_PUSH, FIRST, 0, "announces 0 bytes");
    cr_assert_eq(in_flight(), 0);

    request(FIRST, make(TABLE_PUSH, 3, 1));
    wrong = make(TABLE_PUSH, 4, 1);
    request(FIRST, wrong);
    expect_sent(TABLE_NAK, TABLE_PUSH, FIRST, 0, "already");
    wrong.incarnation = 98;
    request(FIRST, wrong);
    expect_sent(TABLE_NAK, TABLE_PUSH, FIRST, 0, "incarnation");
    request(FIRST, make(TABLE_PUSH, 2, 1));
    expect_sent(TABLE_NAK, TABLE_PUSH, FIRST, 0, "comes after");
    request(WORLD - 1, make(TABLE_PUSH, 2, 1));
    expect_sent(TABLE_NAK, TABLE_PUSH, WORLD - 1, 0, "not a trainer");
    complete(2);
    request(SECOND, make(TABLE_PUSH, 2, 1));
    complete(4);
    expect_sent(TABLE_ACK, TABLE_PUSH, FIRST, SECOND, "");
    cr_assert_eq(shard->values[0], -3.0f);
    teardown();
}

PSD_TEST(table_shard, values_do_not_change_under_a_pull)
{
    setup(PSD_OPT_SGD);
    initialise(0);
    request(FIRST, make(TABLE_PULL, 2, 1));
    expect_sent(TABLE_NAK, TABLE_PULL, FIRST, 0, "which is at 0");
    request(FIRST, make(TABLE_PULL, 2, 0));
    expect_sent(TABLE_ACK, TABLE_PULL, FIRST, 0, "");
    cr_assert_eq(in_flight(), 1);
    cr_assert(requests[0].p2p.is_send && requests[0].p2p.data == (void *)shard->values &&
              requests[0].p2p.peer == 1);
    request(FIRST, make(TABLE_PULL, 3, 0));
    expect_sent(TABLE_NAK, TABLE_PULL, FIRST, 0, "in flight");

    struct psd_request *pull = &requests[0];
    request(FIRST, make(TABLE_PUSH, 3, 1));
    request(SECOND, make(TABLE_PUSH, 2, 1));
    for (int r = 1; r < MOST; r++)
        requests[r].is_done = true; /* both pushes, not the pull */
    table_shard_progress(shard);
    cr_assert_eq(shard->clock, (uint64_t)0);
    pull->is_done = true;
    table_shard_progress(shard);
    cr_assert_eq(shard->clock, (uint64_t)1);
    expect_sent(TABLE_ACK, TABLE_PUSH, FIRST, SECOND, "");
    teardown();
}

PSD_TEST(table_shard, requests_before_the_group_is_open)
{
    setup(PSD_OPT_SGD);
    request(FIRST, make(TABLE_INIT, 1, 0));
    cr_assert_eq(sent_count, 0);
    request(FIRST, make(TABLE_PUSH, 2, 1));
    expect_sent(TABLE_NAK, TABLE_PUSH, FIRST, 0, "not open yet");
    join();
    table_shard_progress(shard);
    complete(1);
    expect_sent(TABLE_ACK, TABLE_INIT, FIRST, SECOND, "");
    teardown();
}

PSD_TEST(table_shard, freed_with_transfers_in_flight)
{
    setup(PSD_OPT_SGD);
    initialise(0);
    request(FIRST, make(TABLE_PUSH, 2, 1));
    request(SECOND, make(TABLE_PULL, 2, 0));
    cr_assert_eq(in_flight(), 2);
    teardown();
}

PSD_TEST(table_shard, no_room)
{
    static const uint32_t servers[] = {SERVER}, trainers[] = {FIRST, SECOND};
    psd_param param = {.name = "w", .dtype = PSD_F32, .count = 1 << 20};
    psd_msg_table_open assign = {
        .table = 8,
        .spec = {.name = "large", .optimizer = PSD_OPT_SGD, .lr = 1, .param_count = 1, .params = &param},
        .server_count = 1,
        .servers = servers,
        .trainer_count = 2,
        .trainers = trainers,
    };
    table_shard *none = NULL;
    char why[512] = "";
    setup(PSD_OPT_SGD);
    cr_assert_eq(table_shard_make("test.c", 1, &ctx, &assign, &none, why, sizeof(why)), PSD_ERR_LIMIT);
    cr_assert_neq(why[0], '\0');
    param.dtype = PSD_F16;
    cr_assert_eq(table_shard_make("test.c", 1, &ctx, &assign, &none, why, sizeof(why)), PSD_ERR_UNSUPPORTED);
    param.dtype = PSD_F32;
    param.count = INT64_MAX / 8;
    cr_assert_neq(table_shard_make("test.c", 1, &ctx, &assign, &none, why, sizeof(why)), PSD_OK);
    param.count = 1;
    ctx.rank = 3;
    cr_assert_eq(table_shard_make("test.c", 1, &ctx, &assign, &none, why, sizeof(why)), PSD_ERR_PROTOCOL);
    ctx.rank = SERVER;
    cr_assert_null(none);
    teardown();
}
