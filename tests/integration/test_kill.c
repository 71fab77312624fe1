/* Kills, stops and restarts around a running job: noticed, named, and what can go on does. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

static char endpoint[128], coordinator[160], state[64];
static test_proc psd;

/* Starts psd on `listen` with a state directory and learns its endpoint from its first line. */
static void start_psd(const char *listen)
{
    const char *argv[] = {test_path("bin/psd"), "--listen", listen, "--state", state, "--lease", "2s", NULL};
    const char *env[] = {"PSD_DEBUG=info", NULL};
    cr_assert(test_proc_start(&psd, argv, env));
    cr_assert(test_proc_expect(&psd, "listening on ", 10000), "psd: %s", psd.text ? psd.text : "");
    const char *at = strstr(psd.text, "listening on ");
    cr_assert_eq(sscanf(at, "listening on %127[^ ,;\n]", endpoint), 1);
    snprintf(coordinator, sizeof coordinator, "PSD_COORDINATOR=%s", endpoint);
}

static void setup(void)
{
    snprintf(state, sizeof state, "/tmp/psd-test-XXXXXX");
    cr_assert(mkdtemp(state));
    start_psd("tcp://127.0.0.1:0");
}

static void teardown(void)
{
    char command[128];
    test_proc_end(&psd);
    snprintf(command, sizeof command, "rm -rf %s", state);
    cr_assert_eq(system(command), 0);
}

static void start_program(test_proc *proc, int rank, int world, const char *program, const char *arg0,
                          const char *arg1)
{
    char rank_env[32], world_env[32], name_env[32];
    snprintf(rank_env, sizeof rank_env, "PSD_RANK=%d", rank);
    snprintf(world_env, sizeof world_env, "PSD_WORLD_SIZE=%d", world);
    snprintf(name_env, sizeof name_env, "PSD_NAME=w%d", rank);
    const char *argv[] = {test_path(program), arg0, arg1, NULL};
    const char *env[] = {coordinator, rank_env, world_env, name_env, "PSD_DEBUG=warn", NULL};
    cr_assert(test_proc_start(proc, argv, env));
}

static void start_rank(test_proc *proc, int rank, int world, const char *iters)
{
    start_program(proc, rank, world, "tests/programs/loop", "--iters", iters);
}

/* Does `psctl VIEW` print this text before the deadline? */
struct psctl_wants {
    const char *view;
    const char *text;
};

static bool psctl_says(void *arg)
{
    const struct psctl_wants *wants = arg;
    char *text = NULL;
    const char *argv[] = {test_path("bin/psctl"), "--coordinator", endpoint, wants->view, NULL};
    int code = test_run(argv, NULL, 10000, &text);
    bool found = code == 0 && strstr(text, wants->text);
    free(text);
    return found;
}

PSD_TEST_WITH(kill, rank_in_mid_loop, .timeout = 120)
{
    test_proc ranks[3];
    setup();
    for (int r = 0; r < 3; r++)
        start_rank(&ranks[r], r, 3, "100000000");
    for (int r = 0; r < 3; r++)
        cr_assert(test_proc_expect(&ranks[r], "ready", 20000), "rank %d: %s", r, ranks[r].text);
    kill(ranks[1].pid, SIGKILL);
    for (int r = 0; r < 3; r += 2) {
        cr_assert(test_proc_wait(&ranks[r], 20000), "rank %d hangs: %s", r, ranks[r].text);
        cr_assert_eq(test_proc_code(&ranks[r]), 3, "rank %d: %s", r, ranks[r].text);
        cr_assert(strstr(ranks[r].text, "rank 1"), "does not name rank 1: %s", ranks[r].text);
    }
    struct psctl_wants lost = {"events", "rank 1"};
    cr_assert(test_until(psctl_says, &lost, 10000));
    for (int r = 0; r < 3; r++)
        test_proc_end(&ranks[r]);
    teardown();
}

PSD_TEST_WITH(kill, stopped_rank_is_not_failed, .timeout = 120)
{
    test_proc ranks[2];
    setup();
    for (int r = 0; r < 2; r++)
        start_rank(&ranks[r], r, 2, "20000");
    cr_assert(test_proc_expect(&ranks[1], "ready", 20000));
    kill(ranks[1].pid, SIGSTOP);
    cr_assert_not(test_proc_wait(&ranks[0], 700));
    kill(ranks[1].pid, SIGCONT);
    for (int r = 0; r < 2; r++) {
        cr_assert(test_proc_wait(&ranks[r], 60000), "rank %d hangs: %s", r, ranks[r].text);
        cr_assert_eq(test_proc_code(&ranks[r]), 0, "rank %d: %s", r, ranks[r].text);
        test_proc_end(&ranks[r]);
    }
    teardown();
}

PSD_TEST_WITH(kill, coordinator_restarts, .timeout = 120)
{
    test_proc ranks[2];
    char listen[128];
    setup();
    for (int r = 0; r < 2; r++)
        start_rank(&ranks[r], r, 2, "100000000");
    for (int r = 0; r < 2; r++)
        cr_assert(test_proc_expect(&ranks[r], "ready", 20000), "rank %d: %s", r, ranks[r].text);
    memcpy(listen, endpoint, sizeof listen);
    test_proc_end(&psd);
    start_psd(listen);
    struct psctl_wants both = {"status", "2"};
    cr_assert(test_until(psctl_says, &both, 10000), "psd forgot the job");
    struct psctl_wants group = {"groups", "live"};
    cr_assert(test_until(psctl_says, &group, 10000), "psd forgot the world's group");
    /* Still one job: killing a rank is noticed by the restarted psd and told to the other. */
    kill(ranks[0].pid, SIGKILL);
    cr_assert(test_proc_wait(&ranks[1], 20000), "rank 1 hangs: %s", ranks[1].text);
    cr_assert_eq(test_proc_code(&ranks[1]), 3, "rank 1: %s", ranks[1].text);
    for (int r = 0; r < 2; r++)
        test_proc_end(&ranks[r]);
    teardown();
}

static void restart_without_state(const char *listen)
{
    const char *argv[] = {test_path("bin/psd"), "--listen", listen, "--lease", "2s", NULL};
    cr_assert(test_proc_start(&psd, argv, NULL));
    cr_assert(test_proc_expect(&psd, "listening on ", 10000), "psd: %s", psd.text ? psd.text : "");
}

/* A psd that lost its journal does not take a job that runs for a new one, and says so to each rank. */
PSD_TEST_WITH(kill, coordinator_forgets, .timeout = 120)
{
    test_proc ranks[2];
    char listen[128];
    setup();
    for (int r = 0; r < 2; r++)
        start_rank(&ranks[r], r, 2, "100000000");
    for (int r = 0; r < 2; r++)
        cr_assert(test_proc_expect(&ranks[r], "ready", 20000), "rank %d: %s", r, ranks[r].text);
    memcpy(listen, endpoint, sizeof listen);
    kill(psd.pid, SIGKILL);
    test_proc_end(&psd);
    restart_without_state(listen);
    for (int r = 0; r < 2; r++) {
        cr_assert(test_proc_wait(&ranks[r], 20000), "rank %d hangs: %s", r, ranks[r].text);
        /* Which rank psd refused first is not known: it tells the other. */
        cr_assert(strstr(ranks[r].text, "psd was restarted and does not know this job (rank "), "rank %d: %s",
                  r, ranks[r].text);
        cr_assert(strstr(ranks[r].text, " of job default, epoch 1): start psd with --state"), "rank %d: %s",
                  r, ranks[r].text);
        test_proc_end(&ranks[r]);
    }
    struct psctl_wants none = {"status", "running"};
    cr_assert_not(psctl_says(&none), "the job was taken for a new one");
    teardown();
}

PSD_TEST_WITH(kill, rank_comes_back, .timeout = 120)
{
    test_proc stays, first, second;
    setup();
    start_program(&stays, 0, 2, "tests/programs/rejoin", NULL, NULL);
    start_program(&first, 1, 2, "tests/programs/rejoin", "first", NULL);
    cr_assert(test_proc_wait(&first, 20000), "%s", first.text);
    start_program(&second, 1, 2, "tests/programs/rejoin", NULL, NULL);
    cr_assert(test_proc_wait(&second, 30000), "second life hangs: %s", second.text);
    cr_assert_eq(test_proc_code(&second), 0, "second life: %s", second.text);
    cr_assert(strstr(second.text, "psd_group_new"), "%s", second.text);
    cr_assert(test_proc_wait(&stays, 20000), "rank 0 hangs: %s", stays.text);
    cr_assert_eq(test_proc_code(&stays), 0, "rank 0: %s", stays.text);
    test_proc_end(&stays);
    test_proc_end(&first);
    test_proc_end(&second);
    teardown();
}
