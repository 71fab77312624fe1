/* What a rank accepts as its steps of a plan. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "worker/plan_steps.h"

/* Four ranks, 100 bytes: rank 1's part of a ring shift by one in two halves. */
#define STEPS 4
typedef struct columns {
    uint32_t round[STEPS];
    uint32_t peer[STEPS];
    uint8_t is_send[STEPS];
    uint64_t offset[STEPS];
    uint64_t bytes[STEPS];
} columns;

static columns ring(void)
{
    return (columns){
        .round = {0, 0, 1, 1},
        .peer = {0, 2, 2, 0},
        .is_send = {0, 1, 1, 0},
        .offset = {0, 0, 50, 50},
        .bytes = {50, 50, 50, 50},
    };
}

static psd_msg_plan_steps part(const columns *c, uint32_t begin, uint32_t count, uint32_t chunk,
                               uint32_t chunks)
{
    psd_msg_plan_steps all = {.count = STEPS,
                              .round = c->round,
                              .peer = c->peer,
                              .is_send = c->is_send,
                              .offset = c->offset,
                              .bytes = c->bytes};
    return (psd_msg_plan_steps){
        .plan = 9,
        .hash = psd_plan_rank_hash(&all, 0),
        .chunk = chunk,
        .chunks = chunks,
        .rounds = 2,
        .count = count,
        .round = c->round + begin,
        .peer = c->peer + begin,
        .is_send = c->is_send + begin,
        .offset = c->offset + begin,
        .bytes = c->bytes + begin,
    };
}

static psd_status whole(const columns *c)
{
    plan_list list;
    char why[256];
    psd_msg_plan_steps msg = part(c, 0, STEPS, 0, 1);
    plan_list_begin(&list, 4, 100);
    psd_status status = plan_list_add(&list, &msg, why, sizeof(why));
    if (status == PSD_OK)
        status = plan_list_finish(&list, why, sizeof(why));
    plan_list_free(&list);
    return status;
}

PSD_TEST(plan_steps, takes_a_plan_in_chunks)
{
    columns c = ring();
    for (uint32_t cut = 1; cut < STEPS; cut++) {
        plan_list list;
        char why[256];
        psd_msg_plan_steps first = part(&c, 0, cut, 0, 2), second = part(&c, cut, STEPS - cut, 1, 2);
        plan_list_begin(&list, 4, 100);
        cr_assert_eq(plan_list_add(&list, &first, why, sizeof(why)), PSD_OK, "%s", why);
        cr_assert_not(plan_list_complete(&list));
        cr_assert_eq(plan_list_add(&list, &second, why, sizeof(why)), PSD_OK, "%s", why);
        cr_assert(plan_list_complete(&list));
        cr_assert_eq(plan_list_finish(&list, why, sizeof(why)), PSD_OK, "%s", why);
        cr_assert_eq(list.count, (size_t)STEPS);
        plan_list_free(&list);
    }
}

PSD_TEST(plan_steps, takes_an_empty_plan)
{
    plan_list list;
    char why[256];
    psd_msg_plan_steps none = {.plan = 1, .chunks = 1};
    plan_list_begin(&list, 4, 0);
    cr_assert_eq(plan_list_add(&list, &none, why, sizeof(why)), PSD_OK, "%s", why);
    cr_assert_eq(plan_list_finish(&list, why, sizeof(why)), PSD_OK, "%s", why);
    plan_list_free(&list);
}

PSD_TEST(plan_steps, refuses_bad_steps)
{
    columns c = ring();
    cr_assert_eq(whole(&c), PSD_OK);
    c = ring(), c.round[2] = 2; /* no such round */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
    c = ring(), c.round[1] = 1, c.round[2] = 0; /* backwards */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
    c = ring(), c.round[2] = 0; /* three in a round */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
    c = ring(), c.is_send[1] = 0; /* two receives in a round */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
    c = ring(), c.peer[0] = 4; /* no such rank */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
    c = ring(), c.bytes[3] = 51; /* beyond the tensor */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
    c = ring(), c.offset[3] = UINT64_MAX - 10; /* overflow */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
    c = ring(), c.bytes[1] = 0; /* nothing */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
    c = ring(), c.offset[3] = 40; /* overlap, and the last ten bytes missing */
    cr_assert_eq(whole(&c), PSD_ERR_PROTOCOL);
}

PSD_TEST(plan_steps, refuses_chunks_that_do_not_belong)
{
    columns c = ring();
    psd_msg_plan_steps first = part(&c, 0, 2, 0, 2), again = first, other = part(&c, 2, 2, 1, 2);
    psd_msg_plan_steps empty = part(&c, 2, 0, 1, 2);
    plan_list list;
    char why[256];
    plan_list_begin(&list, 4, 100);
    cr_assert_eq(plan_list_add(&list, &other, why, sizeof(why)), PSD_ERR_PROTOCOL); /* not the first */
    plan_list_begin(&list, 4, 100);
    cr_assert_eq(plan_list_add(&list, &first, why, sizeof(why)), PSD_OK);
    cr_assert_eq(plan_list_add(&list, &again, why, sizeof(why)), PSD_ERR_PROTOCOL);
    cr_assert_eq(plan_list_add(&list, &empty, why, sizeof(why)), PSD_ERR_PROTOCOL);
    other.plan = 10;
    cr_assert_eq(plan_list_add(&list, &other, why, sizeof(why)), PSD_ERR_PROTOCOL);
    other.plan = 9;
    other.hash ^= 1;
    cr_assert_eq(plan_list_add(&list, &other, why, sizeof(why)), PSD_ERR_PROTOCOL);
    plan_list_free(&list);
}

PSD_TEST(plan_steps, refuses_a_wrong_hash)
{
    columns c = ring();
    plan_list list;
    char why[256];
    psd_msg_plan_steps msg = part(&c, 0, STEPS, 0, 1);
    msg.hash ^= 1;
    plan_list_begin(&list, 4, 100);
    cr_assert_eq(plan_list_add(&list, &msg, why, sizeof(why)), PSD_OK);
    cr_assert_eq(plan_list_finish(&list, why, sizeof(why)), PSD_ERR_PROTOCOL);
    cr_assert_not_null(strstr(why, "hash"));
    plan_list_free(&list);
}
