/* Opening groups and tables: scenarios 8, 19, 23 and 24. */
#include <string.h>
#include <unistd.h>

#include "tests/scenarios/scenario.h"

/* 8: the first exchange in a group that one of its members has not opened; it waits elsewhere, or leaves=1. */
static void missing_member(void)
{
    const int32_t all[] = {0, 1, 2};
    psd_tensor x = tensor(0, 4, "x"), y = tensor(1, 4, "y");
    psd_group three;
    bool is_missing = wrong && rank == 2;
    if (rank > 2 || (is_missing && parameter("leaves", 0) != 0))
        return;
    if (is_missing)
        TRY(psd_recv(ctx, group, &y, 0, NULL, NULL)); /* @missing_member_elsewhere */
    TRY(psd_group_new(ctx, all, 3, &three));          /* @missing_member */
    if (rank < 2) {
        psd_p2p ops[] = {{PSD_OP_SEND, x, 1 - rank, 0}, {PSD_OP_RECV, y, 1 - rank, 0}};
        TRY(psd_batch(ctx, three, ops, 2, NULL));
    }
    if (wrong && rank == 0)
        TRY(psd_send(ctx, group, &x, 2, NULL));
}

/* 19: other members in the lists of two ranks; order=1: the same in another order. */
static void member_lists(void)
{
    int32_t members[] = {0, 1, 2};
    psd_group some;
    bool other = wrong && rank == 1;
    if (rank > 2)
        return;
    if (other && parameter("order", 0) != 0) {
        members[0] = 1;
        members[1] = 0;
    }
    TRY(psd_group_new(ctx, members, other && parameter("order", 0) == 0 ? 2 : 3, &some)); /* @member_lists */
    TRY(psd_barrier(ctx, some, NULL));
}

/* 23: a pull of what nobody has opened. */
static void pull_first(void)
{
    psd_tensor w = tensor(0, 4, "weight");
    psd_table table = {0, 0};
    if (wrong)
        TRY(psd_table_pull(ctx, table, &w, 1)); /* @pull_first */
}

/* 24: a rank dies while the others open a group with it. */
static void death(void)
{
    psd_group two;
    if (wrong && rank == size - 1)
        _exit(0);
    if (strcmp(parameter_text("how", "dup"), "dup") == 0)
        TRY(psd_group_dup(ctx, group, &two)); /* @death_dup */
    else
        TRY(psd_group_split(ctx, group, 0, rank, &two)); /* @death_split */
    TRY(psd_barrier(ctx, two, NULL));
}

/* A neighbour of 8: one rank reduces in the parent before it splits, or copies, what the others do after. */
static void splitting(void)
{
    psd_tensor x = tensor(0, 10, "x");
    psd_group part = group;
    bool is_first = wrong && rank == size - 1, copies = strcmp(parameter_text("how", "split"), "dup") == 0;
    if (is_first)
        TRY(psd_all_reduce(ctx, group, &x, &x, PSD_SUM, NULL)); /* @splitting */
    if (copies)
        TRY(psd_group_dup(ctx, group, &part));
    else
        TRY(psd_group_split(ctx, group, rank % 2, rank, &part));
    TRY(psd_barrier(ctx, part, NULL));
    if (!is_first)
        TRY(psd_all_reduce(ctx, group, &x, &x, PSD_SUM, NULL));
}

/* After a hang one rank leaves, and the others go on as if nothing had been: what they miss then is no other incident. */
static void aftermath(void)
{
    psd_group one, two;
    psd_tensor x = tensor(0, 10, "x");
    TRY(psd_group_dup(ctx, PSD_WORLD, &one));
    TRY(psd_group_dup(ctx, PSD_WORLD, &two));
    bool swap = wrong && rank > 0;
    psd_status first = psd_all_reduce(ctx, swap ? two : one, &x, &x, PSD_SUM, NULL); /* @aftermath */
    psd_status last = first;
    if (rank > 0 || first == PSD_OK) {
        psd_all_reduce(ctx, swap ? one : two, &x, &x, PSD_SUM, NULL);
        last = psd_all_reduce(ctx, PSD_WORLD, &x, &x, PSD_SUM, NULL);
    }
    if (last == PSD_OK)
        return;
    printf("rank %d: %s\n", rank, psd_last_error());
    fflush(stdout);
    psd_finalize(&ctx);
    exit(7);
}

const scenario scenarios_groups[] = {
    {"aftermath", aftermath},
    {"missing_member", missing_member},
    {"member_lists", member_lists},
    {"pull_first", pull_first},
    {"death", death},
    {"splitting", splitting},
    {NULL, NULL},
};
