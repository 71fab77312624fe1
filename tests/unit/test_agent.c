/* The agent against a coordinator that misbehaves on demand: lost, restarted, slow, refusing, talking
 * nonsense. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/fake_psd.h"
#include "tests/lib/psd_test.h"
#include "worker/agent.h"

typedef struct seen {
    _Atomic int aborts;
    _Atomic int stops;
    _Atomic int losses;
    psd_status token_status;
} seen;

static void fill_heartbeat(void *owner, psd_msg_heartbeat *out)
{
    (void)owner;
    out->ops = 17;
}

static psd_status make_token(void *owner, uint8_t *token, size_t capacity, uint32_t *bytes)
{
    seen *s = owner;
    if (s->token_status != PSD_OK)
        return s->token_status;
    cr_assert_geq(capacity, 3);
    memcpy(token, "abc", 3);
    *bytes = 3;
    return PSD_OK;
}

static void on_abort(void *owner, const psd_msg_abort *abort)
{
    (void)abort;
    atomic_fetch_add(&((seen *)owner)->aborts, 1);
}

static void on_stop(void *owner, const char *text)
{
    (void)text;
    atomic_fetch_add(&((seen *)owner)->stops, 1);
}

static void on_lost(void *owner, psd_status status, const char *text)
{
    (void)status;
    (void)text;
    atomic_fetch_add(&((seen *)owner)->losses, 1);
}

static psd_agent *start(const char *address, seen *s)
{
    psd_agent_config config = {
        .coordinator = address,
        .ident = {.job = "default", .name = "w", .incarnation = 77},
        .hello = {.role = "worker",
                  .host = "h",
                  .backend = "host",
                  .address = "a",
                  .world_min = 1,
                  .world_max = 1},
        .hooks = {s, fill_heartbeat, make_token, NULL, NULL, on_abort, on_stop, on_lost},
    };
    char why[512];
    psd_agent *agent = NULL;
    cr_assert_eq(psd_agent_start(&config, &agent, why, sizeof why), PSD_OK, "%s", why);
    return agent;
}

static psd_time_ns in_ms(int64_t ms)
{
    return psd_deadline_ns(psd_now_ns(), ms);
}

static psd_agent *join(fake_psd *psd, seen *s)
{
    char why[2048] = "";
    psd_msg_welcome welcome;
    psd_agent *agent = start(fake_psd_address(psd), s);
    cr_assert_eq(psd_agent_join(agent, in_ms(10000), &welcome, why, sizeof why), PSD_OK, "%s", why);
    cr_assert_eq(welcome.rank, 0);
    return agent;
}

static psd_status close_group(psd_agent *agent, uint32_t group)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_CLOSE};
    msg.u.group.group = group;
    return psd_agent_tell(agent, &msg);
}

/* ------------------------------------------------------------------------------------------------ joining */

PSD_TEST(agent, joins_and_beats)
{
    seen s = {0};
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    cr_assert(fake_psd_wait(psd, PSD_MSG_HEARTBEAT, 2));
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

PSD_TEST(agent, names_the_address_that_nobody_answers)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_welcome welcome;
    psd_agent *agent = start("tcp://127.0.0.1:1", &s);
    cr_assert_eq(psd_agent_join(agent, in_ms(50), &welcome, why, sizeof why), PSD_ERR_NO_COORDINATOR);
    cr_assert(strstr(why, "tcp://127.0.0.1:1") != NULL, "%s", why);
    psd_agent_stop(agent);
}

/* Its lines on stderr while it tries for 3 seconds. */
static void read_warnings(char *out, size_t out_bytes)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_welcome welcome;
    int ends[2], saved = dup(STDERR_FILENO);
    cr_assert_eq(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    psd_agent *agent = start("tcp://127.0.0.1:1", &s);
    (void)psd_agent_join(agent, in_ms(3000), &welcome, why, sizeof why);
    psd_agent_stop(agent);
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t got = read(ends[0], out, out_bytes - 1);
    out[got > 0 ? got : 0] = '\0';
    close(ends[0]);
}

PSD_TEST(agent, says_once_that_nobody_answers_yet)
{
    char text[4096];
    read_warnings(text, sizeof text);
    const char *line =
        strstr(text, "no answer from psd at tcp://127.0.0.1:1 yet; trying for 1 s more (is psd running?");
    cr_assert(line != NULL, "%s", text);
    cr_assert(strstr(line + 1, "no answer") == NULL, "%s", text);
}

PSD_TEST(agent, names_a_host_that_cannot_be_resolved)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_welcome welcome;
    psd_agent *agent = start("tcp://nowhere.invalid:5577", &s);
    cr_assert_eq(psd_agent_join(agent, in_ms(50), &welcome, why, sizeof why), PSD_ERR_NO_COORDINATOR);
    cr_assert(strstr(why, "nowhere.invalid cannot be resolved") != NULL, "%s", why);
    psd_agent_stop(agent);
}

static bool keep_waiting(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)arg;
    if (msg->type != PSD_MSG_HELLO)
        return false;
    psd_msg waiting = {.type = PSD_MSG_WAITING};
    strcpy(waiting.u.waiting.text, "have 3 of 4, missing rank 2 (never arrived)");
    fake_psd_send(psd, &waiting);
    return true;
}

PSD_TEST(agent, tells_whom_psd_waits_for)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_welcome welcome;
    fake_psd *psd = fake_psd_start(keep_waiting, NULL);
    psd_agent *agent = start(fake_psd_address(psd), &s);
    cr_assert(fake_psd_wait(psd, PSD_MSG_HELLO, 1));
    cr_assert_eq(psd_agent_join(agent, in_ms(300), &welcome, why, sizeof why), PSD_ERR_TIMEOUT);
    cr_assert(strstr(why, "missing rank 2 (never arrived)") != NULL, "%s", why);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

static bool refuse_hello(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)arg;
    if (msg->type != PSD_MSG_HELLO)
        return false;
    psd_msg refuse = {.type = PSD_MSG_REFUSE};
    refuse.u.refuse.status = PSD_ERR_EXISTS;
    strcpy(refuse.u.refuse.text, "rank 0 is taken by worker b");
    fake_psd_send(psd, &refuse);
    return true;
}

PSD_TEST(agent, passes_a_refusal_on)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_welcome welcome;
    fake_psd *psd = fake_psd_start(refuse_hello, NULL);
    psd_agent *agent = start(fake_psd_address(psd), &s);
    cr_assert_eq(psd_agent_join(agent, in_ms(10000), &welcome, why, sizeof why), PSD_ERR_EXISTS);
    cr_assert(strstr(why, "rank 0 is taken by worker b") != NULL, "%s", why);
    cr_assert_eq(atomic_load(&s.losses), 0);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

static bool deaf_to_the_first(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)psd;
    return msg->type == PSD_MSG_HELLO && (*(int *)arg)++ == 0;
}

PSD_TEST(agent, says_hello_until_answered)
{
    seen s = {0};
    int hellos = 0;
    fake_psd *psd = fake_psd_start(deaf_to_the_first, &hellos);
    psd_agent *agent = join(psd, &s);
    cr_assert_geq(fake_psd_count(psd, PSD_MSG_HELLO), 2);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

/* ----------------------------------------------------------------------------------------------- requests */

static psd_status open_alone(psd_agent *agent, int64_t ms, uint32_t *group, char *why, size_t why_bytes)
{
    uint32_t members[1] = {0};
    psd_msg_box *box = NULL;
    psd_msg msg = {.type = PSD_MSG_GROUP_OPEN};
    msg.u.group_open.how = PSD_GROUP_NEW;
    msg.u.group_open.count = 1;
    msg.u.group_open.members = members;
    psd_status status = psd_agent_call(agent, &msg, in_ms(ms), &box, why, why_bytes);
    if (status == PSD_OK)
        *group = box->msg.u.group_opened.group;
    psd_msg_box_free(box);
    return status;
}

PSD_TEST(agent, gets_answers)
{
    seen s = {0};
    char why[2048] = "";
    uint32_t group = 0;
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    cr_assert_eq(open_alone(agent, 10000, &group, why, sizeof why), PSD_OK, "%s", why);
    cr_assert_eq(group, FAKE_PSD_WORLD + 1);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

static bool refuse_groups(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)arg;
    if (msg->type != PSD_MSG_GROUP_OPEN)
        return false;
    psd_msg refuse = {.type = PSD_MSG_REFUSE, .request = msg->request};
    refuse.u.refuse.status = PSD_ERR_LIMIT;
    strcpy(refuse.u.refuse.text, "too many groups");
    fake_psd_send(psd, &refuse);
    return true;
}

PSD_TEST(agent, passes_a_refused_request_on)
{
    seen s = {0};
    char why[2048] = "";
    uint32_t group = 0;
    fake_psd *psd = fake_psd_start(refuse_groups, NULL);
    psd_agent *agent = join(psd, &s);
    cr_assert_eq(open_alone(agent, 10000, &group, why, sizeof why), PSD_ERR_LIMIT);
    cr_assert_str_eq(why, "too many groups");
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

/* Answers the first two requests when both are there, the second first. */
typedef struct reorder {
    uint64_t first;
} reorder;

static void send_opened(fake_psd *psd, uint64_t request, uint32_t group)
{
    const char *addresses[1] = {"a"};
    psd_msg opened = {.type = PSD_MSG_GROUP_OPENED, .request = request};
    opened.u.group_opened.group = group;
    opened.u.group_opened.epoch = 1;
    opened.u.group_opened.count = 1;
    opened.u.group_opened.addresses = addresses;
    fake_psd_send(psd, &opened);
}

static bool answer_in_reverse(fake_psd *psd, const psd_msg *msg, void *arg)
{
    reorder *r = arg;
    if (msg->type != PSD_MSG_GROUP_OPEN)
        return false;
    if (r->first == 0) {
        r->first = msg->request;
    } else {
        send_opened(psd, msg->request, (uint32_t)(100 + msg->request));
        send_opened(psd, r->first, (uint32_t)(100 + r->first));
    }
    return true;
}

typedef struct caller {
    psd_agent *agent;
    uint32_t group;
    psd_status status;
} caller;

static void *call_in_thread(void *arg)
{
    caller *c = arg;
    char why[2048];
    c->status = open_alone(c->agent, 10000, &c->group, why, sizeof why);
    return NULL;
}

PSD_TEST(agent, keeps_reordered_answers_apart)
{
    seen s = {0};
    reorder r = {0};
    pthread_t threads[2];
    fake_psd *psd = fake_psd_start(answer_in_reverse, &r);
    psd_agent *agent = join(psd, &s);
    caller callers[2] = {{.agent = agent}, {.agent = agent}};
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, call_in_thread, &callers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(callers[0].status, PSD_OK);
    cr_assert_eq(callers[1].status, PSD_OK);
    cr_assert_neq(callers[0].group, callers[1].group);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

static bool swallow_groups(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)psd;
    (void)arg;
    return msg->type == PSD_MSG_GROUP_OPEN;
}

PSD_TEST(agent, ends_a_request_by_its_deadline)
{
    seen s = {0};
    char why[2048] = "";
    uint32_t group = 0;
    fake_psd *psd = fake_psd_start(swallow_groups, NULL);
    psd_agent *agent = join(psd, &s);
    cr_assert_eq(open_alone(agent, 100, &group, why, sizeof why), PSD_ERR_TIMEOUT);
    cr_assert(strstr(why, "did not answer") != NULL, "%s", why);
    /* psd's answer comes too late: the other members must hear that this rank will not take part. */
    send_opened(psd, fake_psd_last(psd).request, 55);
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_FAIL, 1));
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_CLOSE, 1));
    cr_assert_eq(fake_psd_last(psd).u.group.group, 55);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

/* After a resync an answer can come twice. Its caller had it: the group is healthy. */
PSD_TEST(agent, an_answer_that_comes_twice_declines_nothing)
{
    seen s = {0};
    char why[2048] = "";
    uint32_t group = 0;
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    cr_assert_eq(open_alone(agent, 10000, &group, why, sizeof why), PSD_OK);
    send_opened(psd, fake_psd_last(psd).request, group);
    cr_assert_eq(open_alone(agent, 10000, &group, why, sizeof why), PSD_OK); /* what came before was read */
    cr_assert_eq(close_group(agent, group), PSD_OK);
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_CLOSE, 1));
    cr_assert_eq(fake_psd_count(psd, PSD_MSG_GROUP_FAIL), 0);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

/* ------------------------------------------------------------------------------------------------- resync */

/* No heartbeat would find out within a test's time that psd is another one. */
static bool welcome_with_rare_heartbeats(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)arg;
    psd_msg welcome = {.type = PSD_MSG_WELCOME};
    welcome.u.welcome = (psd_msg_welcome){.world = 1,
                                          .epoch = 1,
                                          .resume_token = FAKE_PSD_TOKEN,
                                          .world_group = FAKE_PSD_WORLD,
                                          .lease_ms = 600000,
                                          .heartbeat_ms = 600000};
    if (msg->type == PSD_MSG_HELLO)
        fake_psd_send(psd, &welcome);
    return msg->type == PSD_MSG_HELLO;
}

PSD_TEST(agent, says_hello_on_every_new_connection)
{
    seen s = {0};
    fake_psd *psd = fake_psd_start(welcome_with_rare_heartbeats, NULL);
    psd_agent *agent = join(psd, &s);
    for (int i = 0; i < 3; i++) {
        int hellos = fake_psd_count(psd, PSD_MSG_HELLO);
        fake_psd_restart(psd);
        cr_assert(fake_psd_wait(psd, PSD_MSG_HELLO, hellos + 1), "restart %d", i);
    }
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

/* Swallows the request until psd has been restarted. */
static bool answer_after_restart(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)psd;
    return msg->type == PSD_MSG_GROUP_OPEN && !atomic_load((_Atomic bool *)arg);
}

PSD_TEST(agent, resyncs_after_a_restart)
{
    seen s = {0};
    _Atomic bool restarted = false;
    pthread_t thread;
    fake_psd *psd = fake_psd_start(answer_after_restart, &restarted);
    psd_agent *agent = join(psd, &s);
    caller c = {.agent = agent};
    cr_assert_eq(close_group(agent, 9), PSD_OK);
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_CLOSE, 1));
    cr_assert_eq(pthread_create(&thread, NULL, call_in_thread, &c), 0);
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_OPEN, 1));
    int hellos = fake_psd_count(psd, PSD_MSG_HELLO);
    uint64_t request = fake_psd_last(psd).request;
    atomic_store(&restarted, true);
    fake_psd_restart(psd);
    pthread_join(thread, NULL);
    cr_assert_eq(c.status, PSD_OK);
    /* Known again by rank, epoch and token; the tell and the request came again, the request under its old
     * id. */
    cr_assert_gt(fake_psd_count(psd, PSD_MSG_HELLO), hellos);
    psd_msg hello = fake_psd_last_hello(psd);
    cr_assert_eq(hello.u.hello.rank, 0);
    cr_assert_eq(hello.u.hello.epoch, 1);
    cr_assert_eq(hello.u.hello.resume_token, FAKE_PSD_TOKEN);
    cr_assert_eq(fake_psd_count(psd, PSD_MSG_GROUP_CLOSE), 2);
    cr_assert_eq(fake_psd_count(psd, PSD_MSG_GROUP_OPEN), 2);
    cr_assert_eq(fake_psd_last(psd).request, request);
    cr_assert_eq(atomic_load(&s.losses), 0);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

static bool other_rank_after_restart(fake_psd *psd, const psd_msg *msg, void *arg)
{
    if (msg->type != PSD_MSG_HELLO || !atomic_load((_Atomic bool *)arg))
        return false;
    psd_msg welcome = {.type = PSD_MSG_WELCOME};
    welcome.u.welcome.rank = 1;
    welcome.u.welcome.world = 2;
    welcome.u.welcome.heartbeat_ms = 50;
    welcome.u.welcome.lease_ms = 500;
    welcome.u.welcome.world_group = 1;
    welcome.u.welcome.epoch = 1;
    welcome.u.welcome.resume_token = 1;
    fake_psd_send(psd, &welcome);
    return true;
}

PSD_TEST(agent, does_not_become_another_rank)
{
    seen s = {0};
    char why[2048] = "";
    _Atomic bool restarted = false;
    psd_msg_box *box = NULL;
    fake_psd *psd = fake_psd_start(other_rank_after_restart, &restarted);
    psd_agent *agent = join(psd, &s);
    atomic_store(&restarted, true);
    fake_psd_restart(psd);
    cr_assert_eq(psd_agent_take(agent, PSD_MSG_PLAN_GO, 3, in_ms(10000), &box, why, sizeof why),
                 PSD_ERR_REFUSED);
    cr_assert(strstr(why, "gave this worker rank 1") != NULL, "%s", why);
    psd_agent_stop(agent);
    cr_assert_eq(atomic_load(&s.losses), 1);
    fake_psd_stop(psd);
}

/* --------------------------------------------------------------------------------------- unsolicited ones */

static void send_abort(fake_psd *psd, uint32_t group, const char *text)
{
    psd_msg msg = {.type = PSD_MSG_ABORT};
    msg.u.abort.group = group;
    msg.u.abort.epoch = 1;
    msg.u.abort.status = PSD_ERR_PEER_FAILED;
    msg.u.abort.culprit = 2;
    snprintf(msg.u.abort.text, sizeof msg.u.abort.text, "%s", text);
    fake_psd_send(psd, &msg);
}

PSD_TEST(agent, takes_by_type_and_key)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_box *box = NULL;
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    for (uint32_t group = 5; group <= 6; group++) {
        psd_msg go = {.type = PSD_MSG_GROUP_GO};
        go.u.group.group = group;
        fake_psd_send(psd, &go);
    }
    cr_assert_eq(psd_agent_take(agent, PSD_MSG_GROUP_GO, 6, in_ms(10000), &box, why, sizeof why), PSD_OK,
                 "%s", why);
    cr_assert_eq(box->msg.u.group.group, 6);
    psd_msg_box_free(box);
    cr_assert_eq(psd_agent_take(agent, PSD_MSG_GROUP_GO, 6, 0, &box, why, sizeof why), PSD_ERR_TIMEOUT);
    cr_assert_eq(psd_agent_take(agent, PSD_MSG_GROUP_GO, 0, in_ms(10000), &box, why, sizeof why), PSD_OK,
                 "%s", why);
    cr_assert_eq(box->msg.u.group.group, 5);
    psd_msg_box_free(box);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

PSD_TEST(agent, an_abort_ends_the_wait_for_its_group)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_box *box = NULL;
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    send_abort(psd, 5, "rank 2 died");
    cr_assert_eq(psd_agent_take(agent, PSD_MSG_GROUP_GO, 5, in_ms(10000), &box, why, sizeof why),
                 PSD_ERR_PEER_FAILED);
    cr_assert_str_eq(why, "rank 2 died");
    cr_assert_eq(atomic_load(&s.aborts), 1);
    psd_agent_forget_group(agent, 5);
    cr_assert_eq(psd_agent_take(agent, PSD_MSG_GROUP_GO, 5, 0, &box, why, sizeof why), PSD_ERR_TIMEOUT);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

PSD_TEST(agent, a_stop_ends_waits)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_box *box = NULL;
    psd_msg stop = {.type = PSD_MSG_STOP};
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    strcpy(stop.u.stop.text, "stopped by psctl");
    fake_psd_send(psd, &stop);
    fake_psd_send(psd, &stop);
    cr_assert_eq(psd_agent_take(agent, PSD_MSG_TABLE_ASSIGN, 0, in_ms(10000), &box, why, sizeof why),
                 PSD_ERR_STOPPED);
    cr_assert_str_eq(why, "stopped by psctl");
    psd_agent_stop(agent);
    cr_assert_eq(atomic_load(&s.stops), 1);
    fake_psd_stop(psd);
}

/* A link may break, and so a group, after psd has acknowledged the leave. */
PSD_TEST(agent, says_nothing_once_it_has_left)
{
    seen s = {0};
    char why[2048] = "";
    psd_msg_box *box = NULL;
    psd_msg bye = {.type = PSD_MSG_BYE};
    psd_msg resync = {.type = PSD_MSG_RESYNC};
    psd_msg stop = {.type = PSD_MSG_STOP};
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    cr_assert_eq(psd_agent_call(agent, &bye, in_ms(10000), &box, why, sizeof why), PSD_OK, "%s", why);
    psd_msg_box_free(box);
    cr_assert_eq(close_group(agent, 9), PSD_OK);
    fake_psd_send(psd, &resync);
    fake_psd_send(psd, &stop); /* once it has been read, so has the RESYNC */
    box = NULL;
    cr_assert_eq(psd_agent_take(agent, PSD_MSG_TABLE_ASSIGN, 0, in_ms(10000), &box, why, sizeof why),
                 PSD_ERR_STOPPED);
    psd_agent_stop(agent);
    cr_assert_eq(fake_psd_count(psd, PSD_MSG_GROUP_CLOSE), 0);
    cr_assert_eq(fake_psd_count(psd, PSD_MSG_HELLO), 1);
    fake_psd_stop(psd);
}

PSD_TEST(agent, makes_a_token_when_asked)
{
    seen s = {0};
    psd_msg ask = {.type = PSD_MSG_GROUP_ASK_TOKEN};
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    ask.u.group_token.group = 8;
    fake_psd_send(psd, &ask);
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_TOKEN, 1));
    psd_msg token = fake_psd_last(psd);
    cr_assert_eq(token.u.group_token.group, 8);
    cr_assert_eq(token.u.group_token.bytes, 3);
    cr_assert_eq(memcmp(token.u.group_token.token, "abc", 3), 0);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

PSD_TEST(agent, says_when_it_cannot_make_a_token)
{
    seen s = {.token_status = PSD_ERR_IO};
    psd_msg ask = {.type = PSD_MSG_GROUP_ASK_TOKEN};
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    ask.u.group_token.group = 8;
    fake_psd_send(psd, &ask);
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_FAIL, 1));
    cr_assert_eq(fake_psd_last(psd).u.abort.status, PSD_ERR_IO);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

/* ----------------------------------------------------------------------------------------------- nonsense */

PSD_TEST(agent, ignores_and_counts_what_it_does_not_understand)
{
    seen s = {0};
    char why[2048] = "";
    uint32_t group = 0;
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    fake_psd_send_bytes(psd, "", 0); /* a probe: not even counted */
    fake_psd_send_bytes(psd, "\xff\xff\xff\xff", 4);
    psd_msg stale = {.type = PSD_MSG_STOP, .ident = {.job = "default", .name = "w", .incarnation = 5}};
    fake_psd_send(psd, &stale);
    psd_msg hello = {.type = PSD_MSG_BYE_ACK, .request = 12345};
    fake_psd_send(psd, &hello);
    psd_msg refuse = {.type = PSD_MSG_REFUSE};
    refuse.u.refuse.status = PSD_ERR_REFUSED;
    fake_psd_send(psd, &refuse);
    /* A request and its answer behind them show that all were looked at, and that the agent lives. */
    cr_assert_eq(open_alone(agent, 10000, &group, why, sizeof why), PSD_OK, "%s", why);
    cr_assert_eq(psd_agent_ignored(agent), 4);
    cr_assert_eq(atomic_load(&s.stops), 0);
    cr_assert_eq(atomic_load(&s.losses), 0);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

PSD_TEST(agent, stops_when_psd_has_vanished)
{
    seen s = {0};
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    fake_psd_vanish(psd);
    cr_assert_eq(close_group(agent, 9), PSD_OK);
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}

PSD_TEST(agent, sends_text_that_is_not_utf8)
{
    seen s = {0};
    psd_msg fail = {.type = PSD_MSG_GROUP_FAIL};
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_agent *agent = join(psd, &s);
    fail.u.abort.group = 4;
    fail.u.abort.status = PSD_ERR_ABORTED;
    fail.u.abort.culprit = -1;
    strcpy(fail.u.abort.text, "caf\xc3");
    cr_assert_eq(psd_agent_tell(agent, &fail), PSD_OK);
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_FAIL, 1));
    cr_assert_str_eq(fake_psd_last(psd).u.abort.text, "caf?");
    psd_agent_stop(agent);
    fake_psd_stop(psd);
}
