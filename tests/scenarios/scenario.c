/* Small programs that hang or disagree, and their legal twins, as ranks of one job.
 *     scenario NAME wrong|twin|slow|stopped [KEY=VALUE...]
 * KEY: what a scenario asks for, and of all: after=N, so many good operations come first; sub=1, in a group of the
 * ranks but the first, in reverse order.
 * slow: the twin, with a rank that computes for two seconds first. stopped: with one that SIGSTOP holds for so long.
 * Comments of the form @NAME mark the lines that a report must name. Exit: 0 every call succeeded, 7 a call failed, with
 * its text on stdout. */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/scenarios/scenario.h"

psd_ctx *ctx;
psd_group group;
int32_t rank, size, world_rank;
bool wrong;
float memory[4][MANY];

static char **parameters;

double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

long parameter(const char *name, long otherwise)
{
    const char *text = parameter_text(name, NULL);
    return text == NULL ? otherwise : strtol(text, NULL, 10);
}

const char *parameter_text(const char *name, const char *otherwise)
{
    size_t length = strlen(name);
    for (char **at = parameters; *at != NULL; at++)
        if (strncmp(*at, name, length) == 0 && (*at)[length] == '=')
            return *at + length + 1;
    return otherwise;
}

psd_tensor tensor(int which, int64_t count, const char *name)
{
    return psd_tensor_1d(memory[which], count, PSD_F32, name);
}

/* 1: both send first. */
static void head_to_head(void)
{
    psd_tensor x = tensor(0, MANY, "x"), y = tensor(1, MANY, "y");
    if (!wrong && rank == 1) {
        TRY(psd_recv(ctx, PSD_WORLD, &y, 0, NULL, NULL));
        TRY(psd_send(ctx, PSD_WORLD, &x, 0, NULL));
    } else if (rank < 2) {
        TRY(psd_send(ctx, PSD_WORLD, &x, 1 - rank, NULL)); /* @head_to_head */
        TRY(psd_recv(ctx, PSD_WORLD, &y, 1 - rank, NULL, NULL));
    }
}

/* Both receive first. */
static void both_receive(void)
{
    psd_tensor x = tensor(0, 4, "x"), y = tensor(1, 4, "y");
    if (!wrong && rank == 1)
        TRY(psd_send(ctx, PSD_WORLD, &x, 0, NULL));
    if (rank < 2)
        TRY(psd_recv(ctx, PSD_WORLD, &y, 1 - rank, NULL, NULL)); /* @both_receive */
    if (rank == 0 || (wrong && rank == 1))
        TRY(psd_send(ctx, PSD_WORLD, &x, 1 - rank, NULL));
}

/* 6: a batch of which the receive has no sender. */
static void lonely_batch(void)
{
    psd_tensor x = tensor(0, 4, "x"), y = tensor(1, 4, "y");
    if (rank == 0) {
        psd_p2p ops[] = {{PSD_OP_SEND, x, 1, 0}, {PSD_OP_RECV, y, 1, 0}};
        TRY(psd_batch(ctx, PSD_WORLD, ops, 2, NULL)); /* @lonely_batch */
    } else if (rank == 1) {
        psd_p2p ops[] = {{PSD_OP_RECV, y, 0, 0}, {PSD_OP_SEND, x, 0, 0}};
        TRY(psd_batch(ctx, PSD_WORLD, ops, wrong ? 1 : 2, NULL));
    }
}

/* 7: one send and one receive too many, and rank 1 finishes. */
static void two_orphans(void)
{
    psd_tensor x = tensor(0, MANY, "x"), y = tensor(1, MANY, "y");
    int times = wrong ? 2 : 1;
    if (rank == 2)
        for (int i = 0; i < times; i++)
            TRY(psd_send(ctx, PSD_WORLD, &x, 1,
                         NULL)); /* or @two_orphans_too: the first to be seen breaks the group */
    if (rank == 0)
        for (int i = 0; i < times; i++)
            TRY(psd_recv(ctx, PSD_WORLD, &y, 1, NULL, NULL));
    if (rank == 1) {
        TRY(psd_recv(ctx, PSD_WORLD, &y, 2, NULL, NULL));
        TRY(psd_send(ctx, PSD_WORLD, &x, 0, NULL));
    }
}

/* 11: a reduce and a transfer in opposite order. */
static void reduce_and_send(void)
{
    psd_tensor x = tensor(0, MANY, "x"), y = tensor(1, MANY, "y"), z = tensor(2, MANY, "z");
    bool last = rank == size - 1;
    if (last && wrong)
        TRY(psd_recv(ctx, PSD_WORLD, &y, 0, NULL, NULL));       /* @reduce_and_send */
    TRY(psd_all_reduce(ctx, PSD_WORLD, &x, &z, PSD_SUM, NULL)); /* @reduce_and_send */
    if (rank == 0)
        TRY(psd_send(ctx, PSD_WORLD, &x, size - 1, NULL));
    if (last && !wrong)
        TRY(psd_recv(ctx, PSD_WORLD, &y, 0, NULL, NULL));
}

/* 12: two groups over the same ranks in opposite order; asynchronous calls are legal on host. */
static void two_groups(void)
{
    psd_group one = PSD_WORLD, two;
    psd_tensor x = tensor(0, MANY, "x"), y = tensor(1, MANY, "y");
    TRY(psd_group_dup(ctx, PSD_WORLD, &two));
    if (rank == 1) {
        psd_group swap = one;
        one = two;
        two = swap;
    }
    if (wrong) {
        TRY(psd_all_reduce(ctx, one, &x, &x, PSD_SUM, NULL)); /* @two_groups */
        TRY(psd_all_reduce(ctx, two, &y, &y, PSD_SUM, NULL));
    } else {
        psd_work works[2];
        TRY(psd_iall_reduce(ctx, one, &x, &x, PSD_SUM, NULL, &works[0]));
        TRY(psd_iall_reduce(ctx, two, &y, &y, PSD_SUM, NULL, &works[1]));
        TRY(psd_waitall(ctx, works, 2, 0));
    }
}

/* Rank 0 disagrees last: all others have begun theirs, so that each has a side to tell. */
static void hear_from_others(void)
{
    psd_tensor token = tensor(3, 1, "token");
    for (int32_t other = 1; other < size; other++)
        TRY(psd_recv(ctx, PSD_WORLD, &token, other, NULL, NULL));
}

static void tell_and_wait(psd_work work)
{
    psd_tensor token = tensor(3, 1, "token");
    TRY(psd_send(ctx, PSD_WORLD, &token, 0, NULL));
    TRY(psd_wait(ctx, work, 0));
}

static void all_reduce_first(psd_tensor *x)
{
    psd_work work;
    TRY(psd_iall_reduce(ctx, PSD_WORLD, x, x, PSD_SUM, NULL, &work)); /* @counts @dtypes @kinds */
    tell_and_wait(work);
}

/* 14, 15, 16, 20: ranks that disagree about one collective. */
static void counts(void)
{
    psd_tensor x = tensor(0, wrong && rank == 0 ? 99 : 100, "grad");
    if (wrong && rank != 0) {
        all_reduce_first(&x);
        return;
    }
    if (wrong)
        hear_from_others();
    TRY(psd_all_reduce(ctx, PSD_WORLD, &x, &x, PSD_SUM, NULL)); /* @counts */
}

static void dtypes(void)
{
    psd_tensor x = psd_tensor_1d(memory[0], 100, wrong && rank == 0 ? PSD_BF16 : PSD_F32, "grad");
    if (wrong && rank != 0) {
        all_reduce_first(&x);
        return;
    }
    if (wrong)
        hear_from_others();
    TRY(psd_all_reduce(ctx, PSD_WORLD, &x, &x, PSD_SUM, NULL)); /* @dtypes */
}

static void broadcasts(void)
{
    psd_tensor x =
        psd_tensor_1d(memory[0], wrong && rank == 0 ? 6 : 14, wrong && rank == 0 ? PSD_F32 : PSD_I64, "w");
    TRY(psd_broadcast(ctx, PSD_WORLD, &x, 0, NULL)); /* @broadcasts */
    TRY(psd_barrier(ctx, PSD_WORLD, NULL));
}

static void kinds(void)
{
    psd_tensor x = tensor(0, 100, "grad");
    if (wrong && rank != 0) {
        all_reduce_first(&x);
        return;
    }
    if (wrong) {
        hear_from_others();
        TRY(psd_barrier(ctx, PSD_WORLD, NULL)); /* @kinds */
    }
    TRY(psd_all_reduce(ctx, PSD_WORLD, &x, &x, PSD_SUM, NULL));
}

/* 22: one collective more on one rank. */
static void one_more(void)
{
    psd_tensor x = tensor(0, 100, "grad");
    TRY(psd_all_reduce(ctx, PSD_WORLD, &x, &x, PSD_SUM, NULL));
    if (wrong && rank == 0)
        TRY(psd_barrier(ctx, PSD_WORLD, NULL)); /* @one_more */
}

/* Tags that never meet; with few elements the send is complete all the same. */
static void tags(void)
{
    psd_tensor x = tensor(0, parameter("count", MANY), "x");
    psd_opts opts;
    psd_opts_init(&opts);
    opts.tag = rank == 1 && wrong ? 2 : 1;
    if (rank == 0)
        TRY(psd_send(ctx, PSD_WORLD, &x, 1, &opts)); /* @tags_send */
    else if (rank == 1)
        TRY(psd_recv(ctx, PSD_WORLD, &x, 0, &opts, NULL)); /* @tags */
    if (parameter("count", MANY) < MANY)
        TRY(psd_barrier(ctx, PSD_WORLD, NULL)); /* @tags_barrier */
}

/* A cycle of all ranks, after much that was right. */
static void ring(void)
{
    psd_tensor x = tensor(0, MANY, "x"), y = tensor(1, MANY, "y");
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int i = 0; i < 300; i++)
        TRY(psd_all_reduce(ctx, PSD_WORLD, &y, &y, PSD_MAX, NULL));
    if (wrong) {
        TRY(psd_send(ctx, PSD_WORLD, &x, next, NULL)); /* @ring */
        TRY(psd_recv(ctx, PSD_WORLD, &y, before, NULL, NULL));
    } else {
        TRY(psd_sendrecv(ctx, PSD_WORLD, &x, next, &y, before, NULL));
    }
}

/* Nobody can send to who receives from any. */
static void any_source(void)
{
    psd_tensor x = tensor(0, 4, "x");
    if (rank != 0 && !wrong)
        TRY(psd_send(ctx, PSD_WORLD, &x, 0, NULL));
    else if (rank != 0)
        TRY(psd_recv(ctx, PSD_WORLD, &x, 0, NULL, NULL)); /* @any_source */
    for (int32_t i = 1; i < size && rank == 0; i++)
        TRY(psd_recv(ctx, PSD_WORLD, &x, PSD_ANY_SOURCE, NULL, NULL)); /* @any_source */
}

/* A work that nobody waits for; it completes, and the program ends well. */
static void lost_work(void)
{
    psd_tensor x = tensor(0, 4, "lost"), y = tensor(1, 4, "y");
    psd_work work;
    if (rank == 0)
        TRY(psd_isend(ctx, PSD_WORLD, &x, 1, NULL, &work)); /* @lost_work */
    if (rank == 1)
        TRY(psd_recv(ctx, PSD_WORLD, &y, 0, NULL, NULL));
    TRY(psd_barrier(ctx, PSD_WORLD, NULL));
    if (rank == 0 && !wrong)
        TRY(psd_wait(ctx, work, 0));
}

/* One whose receive never comes: that its peer leaves is found first. */
static void lost_send(void)
{
    psd_tensor x = tensor(0, MANY, "lost"), y = tensor(1, MANY, "y");
    psd_work work;
    if (rank == 0) {
        TRY(psd_isend(ctx, PSD_WORLD, &x, 1, NULL, &work)); /* @lost_send */
        if (!wrong)
            TRY(psd_wait(ctx, work, 0));
    } else if (rank == 1 && !wrong) {
        TRY(psd_recv(ctx, PSD_WORLD, &y, 0, NULL, NULL));
    }
}

/* What a slow rank does is no test's waiting. */
static void compute(void)
{
    struct timespec left = {.tv_sec = 2};
    while (nanosleep(&left, &left) != 0)
        ;
}

/* A child wakes it again. */
static void stop(void)
{
    pid_t self = getpid();
    if (fork() == 0) {
        compute();
        kill(self, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
}

static const scenario first[] = {
    {"head_to_head", head_to_head},
    {"both_receive", both_receive},
    {"lonely_batch", lonely_batch},
    {"two_orphans", two_orphans},
    {"reduce_and_send", reduce_and_send},
    {"two_groups", two_groups},
    {"counts", counts},
    {"dtypes", dtypes},
    {"broadcasts", broadcasts},
    {"kinds", kinds},
    {"one_more", one_more},
    {"tags", tags},
    {"ring", ring},
    {"any_source", any_source},
    {"lost_work", lost_work},
    {"lost_send", lost_send},
    {NULL, NULL},
};

static const scenario *const tables[] = {first, scenarios_p2p, scenarios_collectives, scenarios_groups};

static void run(const char *name)
{
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (const scenario *s = tables[t]; s->name != NULL; s++)
            if (strcmp(s->name, name) == 0)
                s->run();
}

/* The ranks but the first, backwards. */
static void make_subgroup(void)
{
    int32_t members[64];
    if (world_rank == 0)
        return;
    for (int32_t i = 0; i < size - 1; i++)
        members[i] = size - 1 - i;
    TRY(psd_group_new(ctx, members, size - 1, &group));
    rank = size - 1 - world_rank;
    size--;
}

static void prefix(void)
{
    psd_tensor x = tensor(0, 100, "before"), y = tensor(1, 100, "before");
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (long i = parameter("after", 0); i > 0; i--) {
        TRY(psd_all_reduce(ctx, group, &x, &x, PSD_MAX, NULL));
        TRY(psd_sendrecv(ctx, group, &x, next, &y, before, NULL));
    }
}

int main(int argc, char **argv)
{
    if (argc < 3 || psd_init(NULL, &ctx) != PSD_OK) {
        printf("scenario: %s\n",
               argc < 3 ? "usage: scenario NAME wrong|twin|slow|stopped [KEY=VALUE...]" : psd_last_error());
        return 2;
    }
    parameters = &argv[3];
    rank = world_rank = psd_rank(ctx);
    size = psd_world_size(ctx);
    group = PSD_WORLD;
    wrong = strcmp(argv[2], "wrong") == 0;
    bool is_sub = parameter("sub", 0) != 0;
    if (is_sub)
        make_subgroup();
    if (!is_sub || world_rank != 0)
        prefix();
    if (strcmp(argv[2], "slow") == 0 && world_rank == 0)
        compute();
    if (strcmp(argv[2], "stopped") == 0 && world_rank == psd_world_size(ctx) - 1)
        stop();
    if (!is_sub || world_rank != 0)
        run(argv[1]);
    psd_finalize(&ctx);
    return 0;
}
