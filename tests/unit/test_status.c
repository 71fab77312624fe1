#include <string.h>

#include "common/clock.h"
#include "common/msg.h"
#include "common/plan.h"
#include "common/status.h"
#include "tests/lib/psd_test.h"

PSD_TEST(status, every_status_has_a_name_and_a_sentence)
{
#define PSD_X(name, value, text)                                                                             \
    cr_assert_str_eq(psd_status_name(name), #name);                                                          \
    cr_assert_str_eq(psd_status_sentence(name), text);
    PSD_STATUS_MAP(PSD_X)
#undef PSD_X
    cr_assert_str_eq(psd_status_name((psd_status)99), "unknown status");
    cr_assert_str_eq(psd_status_sentence((psd_status)-1000), "unknown status");
}

PSD_TEST(status, errors_lie_in_their_ranges)
{
    cr_assert(PSD_ERR_FORMAT > -20 && PSD_ERR_INVAL < 0);
    cr_assert(PSD_ERR_UNREACHABLE > -40 && PSD_ERR_PEER_FAILED <= -20);
    cr_assert(PSD_ERR_DEADLINE > -60 && PSD_ERR_MISMATCH <= -40);
    cr_assert(PSD_ERR_INTERNAL > -80 && PSD_ERR_REFUSED <= -60);
}

PSD_TEST(status, deadlines_saturate)
{
    cr_assert_eq(psd_deadline_ns(5, 1), 5 + PSD_NS_PER_MS);
    cr_assert_eq(psd_deadline_ns(5, 0), 5);
    cr_assert_eq(psd_deadline_ns(5, -1), PSD_NEVER);
    cr_assert_eq(psd_deadline_ns(5, INT64_MAX), PSD_NEVER);
    psd_time_ns before = psd_now_ns();
    cr_assert_geq(psd_now_ns(), before);
}

PSD_TEST(status, every_message_type_has_its_own_name)
{
    for (int a = 0; a < PSD_MSG_TYPES; a++) {
        for (int b = 0; b < a; b++)
            cr_assert_str_neq(psd_msg_name((psd_msg_type)a), psd_msg_name((psd_msg_type)b));
    }
    cr_assert_str_eq(psd_msg_name(PSD_MSG_TYPES), "?");
    cr_assert_str_eq(psd_msg_name((psd_msg_type)-1), "?");
}

static const uint32_t rounds[3] = {0, 0, 1};
static const uint32_t peers[3] = {1, 2, 3};
static const uint8_t sends[3] = {1, 0, 1};
static const uint64_t offsets[3] = {0, 64, 128};
static const uint64_t sizes[3] = {64, 64, 1};

static psd_msg_plan_steps columns(uint32_t first, uint32_t count)
{
    return (psd_msg_plan_steps){.count = count,
                                .round = rounds + first,
                                .peer = peers + first,
                                .is_send = sends + first,
                                .offset = offsets + first,
                                .bytes = sizes + first};
}

PSD_TEST(status, a_plan_hash_does_not_depend_on_the_chunks)
{
    psd_msg_plan_steps all = columns(0, 3);
    psd_msg_plan_steps head = columns(0, 1);
    psd_msg_plan_steps tail = columns(1, 2);
    uint64_t hash = psd_plan_rank_hash(&all, 0);
    cr_assert_eq(psd_plan_rank_hash(&tail, psd_plan_rank_hash(&head, 0)), hash);
    cr_assert_neq(psd_plan_rank_hash(&all, 1), hash);
    cr_assert_neq(psd_plan_rank_hash(&head, psd_plan_rank_hash(&tail, 0)), hash);
    /* Part of the protocol: the same on every machine. */
    cr_assert_eq(hash, UINT64_C(0x51a7ab7be6f7e5cb), "%llx", (unsigned long long)hash);
}

PSD_TEST(status, a_plan_hash_sees_every_column)
{
    uint64_t hash = psd_plan_rank_hash(
        &(psd_msg_plan_steps){
            .count = 3, .round = rounds, .peer = peers, .is_send = sends, .offset = offsets, .bytes = sizes},
        0);
    static const uint32_t other32[3] = {0, 7, 1};
    static const uint8_t other8[3] = {1, 1, 1};
    static const uint64_t other64[3] = {0, 64, 129};
    for (int column = 0; column < 5; column++) {
        psd_msg_plan_steps changed = columns(0, 3);
        if (column == 0)
            changed.round = other32;
        else if (column == 1)
            changed.peer = other32;
        else if (column == 2)
            changed.is_send = other8;
        else if (column == 3)
            changed.offset = other64;
        else
            changed.bytes = other64;
        cr_assert_neq(psd_plan_rank_hash(&changed, 0), hash, "column %d", column);
    }
}
