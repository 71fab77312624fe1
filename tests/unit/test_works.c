/* Handles of operations in flight, and all ways to wait for them. A receive from oneself is in flight until
 * the send is started. */
#include <pthread.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "tests/lib/solo.h"

static psd_work receive(psd_ctx *ctx, int32_t *to, int32_t tag)
{
    psd_tensor t = psd_tensor_1d(to, 1, PSD_I32, "to");
    psd_opts opts;
    psd_work work;
    psd_opts_init(&opts);
    opts.tag = tag;
    cr_assert_eq(psd_irecv(ctx, PSD_WORLD, &t, 0, &opts, &work), PSD_OK, "%s", psd_last_error());
    return work;
}

static void send(psd_ctx *ctx, int32_t value, int32_t tag)
{
    psd_tensor t = psd_tensor_1d(&value, 1, PSD_I32, "from");
    psd_opts opts;
    psd_work work;
    psd_opts_init(&opts);
    opts.tag = tag;
    cr_assert_eq(psd_isend(ctx, PSD_WORLD, &t, 0, &opts, &work), PSD_OK, "%s", psd_last_error());
    cr_assert_eq(psd_wait(ctx, work, 0), PSD_OK, "%s", psd_last_error());
}

PSD_TEST(works, wait_ends_a_work_once)
{
    solo s = solo_open(NULL, NULL);
    int32_t x = 0;
    psd_work work = receive(s.ctx, &x, 0);
    cr_assert_eq(psd_wait(s.ctx, work, 20), PSD_ERR_TIMEOUT);
    expect_error_text("recv from test_works.c:");
    expect_error_text("the work stays valid");
    send(s.ctx, 5, 0);
    cr_assert_eq(psd_synchronize(s.ctx, work, 0), PSD_OK);
    cr_assert_eq(x, 5);
    cr_assert_eq(psd_wait(s.ctx, work, 0), PSD_ERR_STALE);
    psd_work made_up = {12345678, 3};
    cr_assert_eq(psd_wait(s.ctx, made_up, 0), PSD_ERR_STALE);
    psd_work again = receive(s.ctx, &x, 0);
    cr_assert(again.index != work.index || again.generation != work.generation);
    cr_assert_eq(psd_wait(s.ctx, work, 0), PSD_ERR_STALE, "an old handle does not mean the new work");
    send(s.ctx, 6, 0);
    cr_assert_eq(psd_wait(s.ctx, again, 0), PSD_OK);
    cr_assert_eq(psd_wait(NULL, work, 0), PSD_ERR_INVAL);
    solo_close(&s, PSD_OK);
}

PSD_TEST(works, test_polls)
{
    solo s = solo_open(NULL, NULL);
    int32_t x = 0;
    bool done = true;
    psd_work work = receive(s.ctx, &x, 0);
    cr_assert_eq(psd_test(s.ctx, work, &done), PSD_OK);
    cr_assert(!done);
    cr_assert_eq(psd_test(s.ctx, work, NULL), PSD_ERR_INVAL);
    send(s.ctx, 5, 0);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 10000);
    while (!done && psd_now_ns() < deadline)
        cr_assert_eq(psd_test(s.ctx, work, &done), PSD_OK);
    cr_assert(done && x == 5);
    cr_assert_eq(psd_test(s.ctx, work, &done), PSD_ERR_STALE);
    solo_close(&s, PSD_OK);
}

PSD_TEST(works, wait_recv_tells_who_sent)
{
    solo s = solo_open(NULL, NULL);
    int32_t x = 0;
    psd_tensor t = psd_tensor_1d(&x, 1, PSD_I32, "to");
    psd_opts opts;
    psd_work work;
    psd_recv_info info = {0};
    psd_opts_init(&opts);
    opts.tag = PSD_ANY_TAG;
    cr_assert_eq(psd_irecv(s.ctx, PSD_WORLD, &t, PSD_ANY_SOURCE, &opts, &work), PSD_OK, "%s",
                 psd_last_error());
    send(s.ctx, 5, 9);
    cr_assert_eq(psd_wait_recv(s.ctx, work, 0, &info), PSD_ERR_INVAL);
    info.size = sizeof info;
    cr_assert_eq(psd_wait_recv(s.ctx, work, 0, &info), PSD_OK);
    cr_assert(info.source == 0 && info.tag == 9 && x == 5);
    solo_close(&s, PSD_OK);
}

PSD_TEST(works, waitall_keeps_what_is_not_complete)
{
    solo s = solo_open(NULL, NULL);
    int32_t x[3] = {0};
    psd_work works[3];
    for (int i = 0; i < 3; i++)
        works[i] = receive(s.ctx, &x[i], i);
    send(s.ctx, 10, 0);
    send(s.ctx, 12, 2);
    cr_assert_eq(psd_waitall(s.ctx, works, 3, 50), PSD_ERR_TIMEOUT);
    cr_assert(x[0] == 10 && x[2] == 12);
    cr_assert_eq(psd_wait(s.ctx, works[0], 0), PSD_ERR_STALE);
    send(s.ctx, 11, 1);
    cr_assert_eq(psd_wait(s.ctx, works[1], 0), PSD_OK);
    cr_assert_eq(psd_waitall(s.ctx, works, 3, 0), PSD_ERR_STALE);
    expect_error_text("works[0]");
    cr_assert_eq(psd_waitall(s.ctx, NULL, 0, 0), PSD_OK);
    cr_assert_eq(psd_waitall(s.ctx, NULL, 2, 0), PSD_ERR_INVAL);
    cr_assert_eq(psd_waitall(s.ctx, works, -1, 0), PSD_ERR_INVAL);
    solo_close(&s, PSD_OK);
}

PSD_TEST(works, waitall_sees_a_work_listed_twice)
{
    solo s = solo_open(NULL, NULL);
    int32_t x = 0;
    psd_work work = receive(s.ctx, &x, 0), twice[2] = {work, work};
    send(s.ctx, 5, 0);
    cr_assert_eq(psd_waitall(s.ctx, twice, 2, 0), PSD_ERR_INVAL);
    expect_error_text("works[1]");
    expect_error_text("twice");
    cr_assert_eq(x, 5);
    solo_close(&s, PSD_OK);
}

PSD_TEST(works, waitany_gives_the_first)
{
    solo s = solo_open(NULL, NULL);
    int32_t x[3] = {0}, index = -1;
    psd_work works[3];
    for (int i = 0; i < 3; i++)
        works[i] = receive(s.ctx, &x[i], i);
    cr_assert_eq(psd_waitany(s.ctx, works, 3, 20, &index), PSD_ERR_TIMEOUT);
    cr_assert_eq(index, -1);
    for (int i = 2; i >= 0; i--) {
        send(s.ctx, i, i);
        cr_assert_eq(psd_waitany(s.ctx, works, 3, 0, &index), PSD_OK, "%s", psd_last_error());
        cr_assert_eq(index, i);
    }
    cr_assert_eq(psd_waitany(s.ctx, works, 3, 0, &index), PSD_ERR_STALE);
    cr_assert_eq(psd_waitany(s.ctx, works, 3, 0, NULL), PSD_ERR_INVAL);
    solo_close(&s, PSD_OK);
}

PSD_TEST(works, very_many_are_in_flight)
{
    enum { COUNT = 1000 };
    static int32_t x[COUNT];
    static psd_work works[COUNT];
    solo s = solo_open(NULL, NULL);
    for (int i = 0; i < COUNT; i++)
        works[i] = receive(s.ctx, &x[i], i);
    for (int i = COUNT - 1; i >= 0; i--)
        send(s.ctx, i, i);
    cr_assert_eq(psd_waitall(s.ctx, works, COUNT, 0), PSD_OK, "%s", psd_last_error());
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(x[i], i);
    solo_close(&s, PSD_OK);
}

typedef struct waiter {
    psd_ctx *ctx;
    psd_work work;
    psd_status status;
} waiter;

static void *wait_in_thread(void *arg)
{
    waiter *w = arg;
    do /* until it comes between two polls of the other thread */
        w->status = psd_wait(w->ctx, w->work, 0);
    while (w->status == PSD_ERR_INVAL);
    return NULL;
}

PSD_TEST(works, one_thread_waits_for_a_work)
{
    solo s = solo_open(NULL, NULL);
    int32_t x = 0;
    bool done;
    pthread_t thread;
    waiter w = {.ctx = s.ctx, .work = receive(s.ctx, &x, 0)};
    cr_assert_eq(pthread_create(&thread, NULL, wait_in_thread, &w), 0);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 10000);
    psd_status status = PSD_OK;
    while (status == PSD_OK && psd_now_ns() < deadline)
        status = psd_test(s.ctx, w.work, &done);
    cr_assert_eq(status, PSD_ERR_INVAL, "the other thread has it");
    expect_error_text("is being waited for already");
    send(s.ctx, 5, 0);
    pthread_join(thread, NULL);
    cr_assert_eq(w.status, PSD_OK);
    solo_close(&s, PSD_OK);
}

/* What psd is told; read once the fake has stopped. */
typedef struct told {
    psd_msg_lost_work lost;
    int count;
    char abort[PSD_MAX_TEXT];
} told;

static bool note_lost(fake_psd *psd, const psd_msg *msg, void *arg)
{
    told *t = arg;
    (void)psd;
    if (msg->type == PSD_MSG_LOST_WORK) {
        t->lost = msg->u.lost_work;
        t->count++;
    }
    if (msg->type == PSD_MSG_GROUP_FAIL)
        memcpy(t->abort, msg->u.abort.text, sizeof t->abort);
    return msg->type == PSD_MSG_LOST_WORK;
}

PSD_TEST(works, finalize_settles_what_was_never_waited_for)
{
    told t = {.count = 0};
    solo s = solo_open(note_lost, &t);
    int32_t x = 0;
    psd_work done = receive(s.ctx, &x, 0);
    send(s.ctx, 5, 0);
    (void)done;
    solo_close(&s, PSD_OK);
    cr_assert_eq(t.count, 1);
    cr_assert(t.lost.is_done && t.lost.total == 1 && t.lost.seq == 1);
    cr_assert_eq(t.lost.op.kind, PSD_OP_RECV);
    cr_assert_str_eq(t.lost.op.name, "to");
    cr_assert_not_null(strstr(t.lost.op.site, "test_works.c:"));

    t = (told){.count = 0};
    s = solo_open(note_lost, &t);
    (void)receive(s.ctx, &x, 0);
    solo_close(&s, PSD_ERR_ABORTED);
    cr_assert(t.count == 1 && !t.lost.is_done);
    cr_assert_not_null(
        strstr(t.abort, "rank 0 left with an operation unfinished: recv of to from test_works.c:"), "%s",
        t.abort);
}

PSD_TEST(works, finalize_names_some_of_many_lost_works)
{
    told t = {.count = 0};
    solo s = solo_open(note_lost, &t);
    int32_t x[8] = {0};
    for (int i = 0; i < 8; i++) {
        (void)receive(s.ctx, &x[i], i);
        send(s.ctx, i, i);
    }
    solo_close(&s, PSD_OK);
    cr_assert_eq(t.count, 5);
    cr_assert_eq(t.lost.total, 8);
}
