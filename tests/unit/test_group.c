/* Groups of one rank: handles, their ends, and what psd may answer. What needs peers is in the conformance
 * suite. */
#include <pthread.h>
#include <stdatomic.h>
#include <sched.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "tests/lib/solo.h"
#include "worker/context.h"

PSD_TEST(group, answers_questions)
{
    solo s = solo_open(NULL, NULL);
    int32_t rank = -1, size = -1, world = -1, zero = 0;
    psd_group g, d;
    cr_assert_eq(psd_group_new(s.ctx, &zero, 1, &g), PSD_OK, "%s", psd_last_error());
    cr_assert_eq(psd_group_rank(s.ctx, g, &rank), PSD_OK);
    cr_assert_eq(psd_group_size(s.ctx, g, &size), PSD_OK);
    cr_assert_eq(psd_group_world_rank(s.ctx, g, 0, &world), PSD_OK);
    cr_assert(rank == 0 && size == 1 && world == 0);
    cr_assert_eq(psd_group_world_rank(s.ctx, g, 1, &world), PSD_ERR_INVAL);
    cr_assert_eq(psd_group_dup(s.ctx, g, &d), PSD_OK);
    cr_assert_eq(psd_barrier(s.ctx, d, NULL), PSD_OK);
    cr_assert_eq(psd_group_destroy(s.ctx, g), PSD_OK);
    cr_assert_eq(psd_barrier(s.ctx, d, NULL), PSD_OK, "a dup outlives its parent");
    solo_close(&s, PSD_OK);
}

PSD_TEST(group, handles_go_stale)
{
    solo s = solo_open(NULL, NULL);
    int32_t zero = 0, size;
    psd_group g, again, made_up = {77, 0};
    cr_assert_eq(psd_group_new(s.ctx, &zero, 1, &g), PSD_OK);
    cr_assert_eq(psd_group_destroy(s.ctx, g), PSD_OK);
    cr_assert_eq(psd_group_destroy(s.ctx, g), PSD_ERR_STALE);
    cr_assert_eq(psd_group_size(s.ctx, g, &size), PSD_ERR_STALE);
    cr_assert_eq(psd_group_new(s.ctx, &zero, 1, &again), PSD_OK);
    cr_assert(again.index == g.index && again.generation != g.generation, "the slot is used again");
    cr_assert_eq(psd_barrier(s.ctx, g, NULL), PSD_ERR_STALE);
    expect_error_text("was destroyed");
    cr_assert_eq(psd_barrier(s.ctx, made_up, NULL), PSD_ERR_STALE);
    cr_assert_eq(psd_group_destroy(s.ctx, PSD_WORLD), PSD_ERR_INVAL);
    expect_error_text("the world cannot be destroyed");
    solo_close(&s, PSD_OK);
}

PSD_TEST(group, is_not_destroyed_under_its_works)
{
    solo s = solo_open(NULL, NULL);
    int32_t zero = 0;
    float x[1] = {3}, y[1];
    psd_tensor in = psd_tensor_1d(x, 1, PSD_F32, "x"), out = psd_tensor_1d(y, 1, PSD_F32, "y");
    psd_group g;
    psd_work receive, send;
    cr_assert_eq(psd_group_new(s.ctx, &zero, 1, &g), PSD_OK);
    cr_assert_eq(psd_irecv(s.ctx, g, &out, 0, NULL, &receive), PSD_OK);
    cr_assert_eq(psd_group_destroy(s.ctx, g), PSD_ERR_INVAL);
    expect_error_text("wait for its works first");
    cr_assert_eq(psd_isend(s.ctx, g, &in, 0, NULL, &send), PSD_OK);
    cr_assert_eq(psd_wait(s.ctx, send, 0), PSD_OK);
    cr_assert_eq(psd_wait(s.ctx, receive, 0), PSD_OK);
    cr_assert_eq(y[0], 3);
    cr_assert_eq(psd_group_destroy(s.ctx, g), PSD_OK);
    solo_close(&s, PSD_OK);
}

PSD_TEST(group, lists_are_checked)
{
    solo s = solo_open(NULL, NULL);
    psd_group g = {5, 5};
    int32_t outside = 1, negative = -1, zero = 0;
    cr_assert_eq(psd_group_new(s.ctx, &outside, 1, &g), PSD_ERR_INVAL);
    expect_error_text("ranks[0] is 1; world ranks are 0 to 0");
    cr_assert_eq(psd_group_new(s.ctx, &negative, 1, &g), PSD_ERR_INVAL);
    cr_assert_eq(psd_group_new(s.ctx, NULL, 1, &g), PSD_ERR_INVAL);
    cr_assert_eq(psd_group_new(s.ctx, &zero, 0, &g), PSD_ERR_INVAL);
    cr_assert_eq(psd_group_new(s.ctx, &zero, 2, &g), PSD_ERR_INVAL);
    cr_assert_eq(psd_group_new(s.ctx, &zero, 1, NULL), PSD_ERR_INVAL);
    cr_assert_eq(psd_group_new(NULL, &zero, 1, &g), PSD_ERR_INVAL);
    cr_assert_eq(psd_group_split(s.ctx, PSD_WORLD, -2, 0, &g), PSD_ERR_INVAL);
    expect_error_text("color is -2");
    cr_assert(g.index == 5 && g.generation == 5);
    solo_close(&s, PSD_OK);
}

static bool no_group(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)arg;
    if (msg->type != PSD_MSG_GROUP_OPEN)
        return false;
    psd_msg opened = {.type = PSD_MSG_GROUP_OPENED, .request = msg->request};
    opened.u.group_opened.epoch = 1;
    fake_psd_send(psd, &opened);
    return true;
}

PSD_TEST(group, split_without_color_gives_the_null_group)
{
    solo s = solo_open(no_group, NULL);
    psd_group g = {5, 5};
    cr_assert_eq(psd_group_split(s.ctx, PSD_WORLD, -1, 0, &g), PSD_OK, "%s", psd_last_error());
    cr_assert(g.index == UINT32_MAX && g.generation == 0);
    cr_assert_eq(psd_barrier(s.ctx, g, NULL), PSD_ERR_STALE);
    expect_error_text("null group");
    cr_assert_eq(psd_group_destroy(s.ctx, g), PSD_ERR_STALE);
    solo_close(&s, PSD_OK);
}

static bool never_go(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)psd;
    (void)arg;
    return msg->type == PSD_MSG_GROUP_READY && msg->u.group.group != FAKE_PSD_WORLD;
}

PSD_TEST(group, gives_up_when_others_never_come)
{
    psd_config config;
    psd_config_init(&config);
    fake_psd *psd = fake_psd_start(never_go, NULL);
    config.coordinator = fake_psd_address(psd);
    config.timeout_ms = 200;
    psd_ctx *ctx = NULL;
    psd_group g = {5, 5};
    int32_t zero = 0;
    cr_assert_eq(psd_init(&config, &ctx), PSD_OK, "%s", psd_last_error());
    cr_assert_eq(psd_group_new(ctx, &zero, 1, &g), PSD_ERR_TIMEOUT);
    expect_error_text("no group_go came from psd");
    cr_assert_eq(g.index, 5);
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_FAIL, 1));
    cr_assert(fake_psd_wait(psd, PSD_MSG_GROUP_CLOSE, 1));
    cr_assert_eq(psd_finalize(&ctx), PSD_OK);
    fake_psd_stop(psd);
}

PSD_TEST(group, abort_breaks_it_and_a_new_one_works)
{
    solo s = solo_open(NULL, NULL);
    int32_t zero = 0;
    psd_group g;
    cr_assert_eq(psd_group_abort(s.ctx, PSD_WORLD, "caf\xc3"), PSD_OK);
    cr_assert_eq(psd_barrier(s.ctx, PSD_WORLD, NULL), PSD_ERR_ABORTED);
    expect_error_text("rank 0 aborted group 1 at test_group.c:");
    cr_assert(fake_psd_wait(s.psd, PSD_MSG_GROUP_FAIL, 1));
    cr_assert_eq(psd_group_new(s.ctx, &zero, 1, &g), PSD_OK, "%s", psd_last_error());
    cr_assert_eq(psd_barrier(s.ctx, g, NULL), PSD_OK);
    solo_close(&s, PSD_OK); /* told already */
}

PSD_TEST(group, an_abort_from_psd_ends_waits)
{
    solo s = solo_open(NULL, NULL);
    float x[1];
    psd_tensor out = psd_tensor_1d(x, 1, PSD_F32, "x");
    psd_work work;
    psd_msg abort = {.type = PSD_MSG_ABORT};
    abort.u.abort.group = FAKE_PSD_WORLD;
    abort.u.abort.epoch = 1;
    abort.u.abort.status = PSD_ERR_PEER_FAILED;
    abort.u.abort.culprit = 1;
    strcpy(abort.u.abort.text, "rank 1 was lost");
    cr_assert_eq(psd_irecv(s.ctx, PSD_WORLD, &out, 0, NULL, &work), PSD_OK);
    fake_psd_send(s.psd, &abort);
    cr_assert_eq(psd_wait(s.ctx, work, 0), PSD_ERR_PEER_FAILED);
    expect_error_text("rank 1 was lost");
    solo_close(&s, PSD_OK); /* told already */
}

PSD_TEST(group, finalize_says_what_no_call_has_said)
{
    solo s = solo_open(NULL, NULL);
    char text[PSD_MAX_TEXT];
    psd_msg abort = {.type = PSD_MSG_ABORT};
    abort.u.abort.group = FAKE_PSD_WORLD;
    abort.u.abort.epoch = 1;
    abort.u.abort.status = PSD_ERR_PEER_FAILED;
    strcpy(abort.u.abort.text, "rank 1 was lost");
    fake_psd_send(s.psd, &abort);
    psd_group_slot *world = NULL;
    cr_assert_eq(psd_group_acquire(PSD_HERE, "test", s.ctx, PSD_WORLD, &world), PSD_OK);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 10000);
    while (psd_group_broken(world, text, sizeof text) == PSD_OK && psd_now_ns() < deadline)
        sched_yield();
    psd_group_release(world);
    solo_close(&s, PSD_ERR_PEER_FAILED);
}

/* The other members never ask, and then the job is told to stop. */
static bool stop_instead(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)arg;
    if (msg->type != PSD_MSG_GROUP_OPEN)
        return false;
    psd_msg stop = {.type = PSD_MSG_STOP};
    strcpy(stop.u.stop.text, "stopped by psctl stop");
    fake_psd_send(psd, &stop);
    return true;
}

PSD_TEST(group, a_stop_ends_the_wait_for_the_others)
{
    solo s = solo_open(stop_instead, NULL);
    psd_group g;
    psd_time_ns begun = psd_now_ns();
    cr_assert_eq(psd_group_dup(s.ctx, PSD_WORLD, &g), PSD_ERR_STOPPED);
    expect_error_text("stopped by psctl stop");
    cr_assert(psd_now_ns() - begun < 5 * PSD_NS_PER_S, "at once, not by the deadline of 10 s");
    solo_close(&s, PSD_OK);
}

PSD_TEST(group, many_may_be_open)
{
    solo s = solo_open(NULL, NULL);
    psd_group groups[20];
    for (int i = 0; i < 20; i++)
        cr_assert_eq(psd_group_dup(s.ctx, PSD_WORLD, &groups[i]), PSD_OK, "%s", psd_last_error());
    for (int i = 0; i < 20; i++)
        cr_assert_eq(psd_barrier(s.ctx, groups[i], NULL), PSD_OK);
    for (int i = 0; i < 20; i += 2)
        cr_assert_eq(psd_group_destroy(s.ctx, groups[i]), PSD_OK);
    solo_close(&s, PSD_OK); /* closes the others */
}

/* Two threads that destroy the same groups, in step. */
typedef struct destroyers {
    psd_ctx *ctx;
    const psd_group *groups;
    int count;
    _Atomic int arrived;
    _Atomic int destroyed;
    _Atomic int wrong;
} destroyers;

static void *destroy_all(void *arg)
{
    destroyers *d = arg;
    for (int i = 0; i < d->count; i++) {
        atomic_fetch_add(&d->arrived, 1);
        while (atomic_load(&d->arrived) < 2 * (i + 1))
            continue;
        psd_status status = psd_group_destroy(d->ctx, d->groups[i]);
        atomic_fetch_add(&d->destroyed, status == PSD_OK);
        atomic_fetch_add(&d->wrong, status != PSD_OK && status != PSD_ERR_STALE && status != PSD_ERR_INVAL);
    }
    return NULL;
}

PSD_TEST(group, two_threads_cannot_both_destroy_it)
{
    enum { GROUPS = 400 };
    solo s = solo_open(NULL, NULL);
    psd_group groups[GROUPS];
    destroyers d = {.ctx = s.ctx, .groups = groups, .count = GROUPS};
    pthread_t other;
    for (int i = 0; i < GROUPS; i++)
        cr_assert_eq(psd_group_dup(s.ctx, PSD_WORLD, &groups[i]), PSD_OK, "%s", psd_last_error());
    cr_assert_eq(pthread_create(&other, NULL, destroy_all, &d), 0);
    destroy_all(&d);
    cr_assert_eq(pthread_join(other, NULL), 0);
    cr_assert_eq(atomic_load(&d.wrong), 0);
    cr_assert_eq(atomic_load(&d.destroyed), GROUPS, "each is destroyed once");
    cr_assert_eq(fake_psd_wait(s.psd, PSD_MSG_GROUP_CLOSE, GROUPS), true);
    solo_close(&s, PSD_OK);
}
