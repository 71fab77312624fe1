/* Tables end to end: psworkers as servers, trainers that check every value; refusals that leave the servers
 * up; killed servers and trainers. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

static void check_within(const char *timeout, const char *kind, const char *servers, const char *trainers,
                         const char *server_limit, const char *must_say)
{
    char *text = NULL;
    const char *env[] = {timeout, NULL};
    const char *argv[] = {test_path("bin/psrun"),
                          "--standalone",
                          "-n",
                          servers,
                          "--role",
                          "server",
                          "--",
                          test_path("bin/psworker"),
                          "--role",
                          "server",
                          "--pool-limit",
                          server_limit,
                          ":",
                          "-n",
                          trainers,
                          "--role",
                          "trainer",
                          "--",
                          test_path("tests/programs/table"),
                          kind,
                          servers,
                          NULL};
    int code = test_run(argv, env, 60000, &text);
    cr_assert_eq(code, 0, "%s with %s servers, %s trainers: exit %d: %s", kind, servers, trainers, code,
                 text);
    cr_assert(strstr(text, must_say), "%s: no \"%s\" in: %s", kind, must_say, text);
    free(text);
}

static void check(const char *kind, const char *servers, const char *trainers, const char *server_limit,
                  const char *must_say)
{
    check_within("PSD_TIMEOUT_MS=20000", kind, servers, trainers, server_limit, must_say);
}

PSD_TEST_WITH(tables, values_bit_by_bit, .timeout = 300)
{
    check("values", "1", "1", "64M", "momentum: 0 wrong");
    check("values", "2", "4", "64M", "momentum: 0 wrong");
    check("values", "3", "2", "64M", "momentum: 0 wrong");
}

PSD_TEST_WITH(tables, wrong_tensors_are_errors_here, .timeout = 120)
{
    check("errors", "2", "2", "64M", "errors: 0 wrong");
}

PSD_TEST_WITH(tables, two_at_once_and_again, .timeout = 120)
{
    check("reopen", "2", "2", "64M", "reopen: 0 wrong");
}

PSD_TEST_WITH(tables, ranks_that_disagree, .timeout = 120)
{
    check("disagree", "2", "3", "64M", "disagree: 0 wrong");
}

PSD_TEST_WITH(tables, no_room_on_the_servers, .timeout = 120)
{
    check("room", "2", "2", "1M", "room: 0 wrong");
}

/* The job's end comes while servers have yet to notice that their last sends are through. */
PSD_TEST_WITH(tables, a_clean_end_is_quiet, .timeout = 120)
{
    for (int i = 0; i < 5; i++) {
        char *text = NULL;
        const char *argv[] = {test_path("bin/psrun"),
                              "--standalone",
                              "-n",
                              "1",
                              "--role",
                              "server",
                              "--",
                              test_path("bin/psworker"),
                              "--role",
                              "server",
                              ":",
                              "-n",
                              "3",
                              "--role",
                              "trainer",
                              "--",
                              test_path("tests/programs/table"),
                              "last",
                              "1",
                              NULL};
        int code = test_run(argv, NULL, 60000, &text);
        cr_assert_eq(code, 0, "exit %d: %s", code, text);
        cr_assert_not(strstr(text, "warn"), "%s", text);
        cr_assert(strstr(text, "last: done"), "%s", text);
        free(text);
    }
}

PSD_TEST_WITH(tables, left_without_closing, .timeout = 120)
{
    check("unclosed", "1", "2", "64M", "never closed");
}

PSD_TEST_WITH(tables, push_again_after_a_timeout, .timeout = 120)
{
    check_within("PSD_TIMEOUT_MS=1000", "late", "2", "3", "64M", "late: 0 wrong");
}

PSD_TEST_WITH(tables, no_servers, .timeout = 120)
{
    char *text = NULL;
    const char *argv[] = {test_path("bin/psrun"),
                          "--standalone",
                          "-n",
                          "2",
                          "--",
                          test_path("tests/programs/table"),
                          "values",
                          "0",
                          NULL};
    int code = test_run(argv, NULL, 60000, &text);
    cr_assert_eq(code, 3, "exit %d: %s", code, text);
    cr_assert(strstr(text, "psworker --role server"), "%s", text);
    free(text);
}

/* ---- kills: every process started by the test, so that it sees how each one ends */

enum { RANKS = 4, SERVERS = 2 };

static char endpoint[128];
static char coordinator[160];
static test_proc psd, ranks[RANKS];

static void start_psd(const char *lease)
{
    const char *argv[] = {test_path("bin/psd"), "--listen", "tcp://127.0.0.1:0", "--lease", lease, NULL};
    const char *env[] = {"PSD_DEBUG=info", NULL};
    cr_assert(test_proc_start(&psd, argv, env));
    cr_assert(test_proc_expect(&psd, "listening on ", 10000), "psd: %s", psd.text ? psd.text : "");
    cr_assert_eq(sscanf(strstr(psd.text, "listening on "), "listening on %127[^ ,;\n]", endpoint), 1);
    snprintf(coordinator, sizeof(coordinator), "PSD_COORDINATOR=%s", endpoint);
}

static void start_all(const char *lease)
{
    start_psd(lease);
    for (int r = 0; r < RANKS; r++) {
        char rank[32];
        snprintf(rank, sizeof(rank), "PSD_RANK=%d", r);
        const char *server[] = {test_path("bin/psworker"), "--role", "server", "--world-size", "4", NULL};
        const char *trainer[] = {test_path("tests/programs/table"), "loop", "2", NULL};
        const char *rank_env[] = {coordinator, rank, "PSD_WORLD_SIZE=4",
                                  r < SERVERS ? "PSD_ROLE=server" : "PSD_ROLE=trainer", NULL};
        cr_assert(test_proc_start(&ranks[r], r < SERVERS ? server : trainer, rank_env));
    }
    for (int r = SERVERS; r < RANKS; r++)
        cr_assert(test_proc_expect(&ranks[r], "ready", 20000), "rank %d: %s", r, ranks[r].text);
}

static void end_all(void)
{
    for (int r = 0; r < RANKS; r++)
        test_proc_end(&ranks[r]);
    test_proc_end(&psd);
}

/* The trainers end with an error that names the rank that was killed. */
static void trainers_name(const char *culprit, int but)
{
    for (int r = SERVERS; r < RANKS; r++) {
        if (r == but)
            continue;
        cr_assert(test_proc_wait(&ranks[r], 20000), "rank %d hangs: %s", r, ranks[r].text);
        cr_assert_eq(test_proc_code(&ranks[r]), 3, "rank %d: %s", r, ranks[r].text);
        cr_assert(strstr(ranks[r].text, culprit), "rank %d does not name %s: %s", r, culprit, ranks[r].text);
    }
}

PSD_TEST_WITH(tables, killed_server_is_named, .timeout = 120)
{
    start_all("2s");
    kill(ranks[1].pid, SIGKILL);
    trainers_name("rank 1", -1);
    /* The other server has nothing left to serve, and ends well. */
    cr_assert(test_proc_wait(&ranks[0], 20000), "server hangs: %s", ranks[0].text);
    cr_assert_eq(test_proc_code(&ranks[0]), 0, "server: %s", ranks[0].text);
    end_all();
}

PSD_TEST_WITH(tables, killed_trainer_is_named, .timeout = 120)
{
    start_all("2s");
    kill(ranks[3].pid, SIGKILL);
    trainers_name("rank 3", 3);
    for (int r = 0; r < SERVERS; r++) {
        cr_assert(test_proc_wait(&ranks[r], 20000), "server %d hangs: %s", r, ranks[r].text);
        cr_assert_eq(test_proc_code(&ranks[r]), 0, "server %d: %s", r, ranks[r].text);
    }
    end_all();
}

PSD_TEST_WITH(tables, server_ends_on_sigterm, .timeout = 120)
{
    start_all("2s");
    kill(ranks[0].pid, SIGTERM);
    cr_assert(test_proc_wait(&ranks[0], 20000), "server hangs: %s", ranks[0].text);
    cr_assert_eq(test_proc_code(&ranks[0]), 0, "server: %s", ranks[0].text);
    trainers_name("rank 0", -1);
    end_all();
}

/* psd alone tells servers that the job has ended: without it they see that all trainers have left. */
static void servers_end_without_psd(int number)
{
    start_psd("1s");
    test_proc job;
    const char *argv[] = {test_path("bin/psrun"),
                          "-n",
                          "2",
                          "--role",
                          "server",
                          "--",
                          test_path("bin/psworker"),
                          "--role",
                          "server",
                          ":",
                          "-n",
                          "2",
                          "--role",
                          "trainer",
                          "--",
                          test_path("examples/digits_train"),
                          "--mode",
                          "table",
                          "--servers",
                          "2",
                          NULL};
    const char *env[] = {coordinator, NULL};
    cr_assert(test_proc_start(&job, argv, env));
    cr_assert(test_proc_expect(&job, "epoch 2/", 20000), "%s", job.text);
    kill(psd.pid, number);
    cr_assert(test_proc_wait(&job, 40000), "psrun hangs: %s", job.text);
    cr_assert_eq(test_proc_code(&job), 0, "psrun: %s", job.text);
    cr_assert(strstr(job.text, "every rank that is not a server has left: this one ends"), "%s", job.text);
    test_proc_end(&job);
    test_proc_end(&psd);
}

PSD_TEST_WITH(tables, servers_end_when_psd_was_killed, .timeout = 120)
{
    servers_end_without_psd(SIGKILL);
}

PSD_TEST_WITH(tables, servers_end_when_psd_is_stopped, .timeout = 120)
{
    servers_end_without_psd(SIGSTOP);
}

/* A trainer that was killed has not left well. */
PSD_TEST_WITH(tables, servers_tell_failed_trainers_without_psd, .timeout = 120)
{
    start_all("1s");
    kill(psd.pid, SIGKILL);
    kill(ranks[2].pid, SIGKILL);
    kill(ranks[3].pid, SIGKILL);
    for (int r = 0; r < SERVERS; r++) {
        cr_assert(test_proc_wait(&ranks[r], 30000), "server %d hangs: %s", r, ranks[r].text);
        cr_assert_eq(test_proc_code(&ranks[r]), 1, "server %d: %s", r, ranks[r].text);
        cr_assert(strstr(ranks[r].text, "not all of them well"), "server %d: %s", r, ranks[r].text);
    }
    end_all();
}

/* Within the 5 s that psrun gives. */
PSD_TEST_WITH(tables, server_ends_on_sigterm_without_psd, .timeout = 120)
{
    static const int numbers[] = {SIGKILL, SIGSTOP};
    for (int i = 0; i < 2; i++) {
        start_all("2s");
        kill(psd.pid, numbers[i]);
        kill(ranks[0].pid, SIGTERM);
        cr_assert(test_proc_wait(&ranks[0], 4500), "server hangs: %s", ranks[0].text);
        cr_assert_eq(test_proc_code(&ranks[0]), 0, "server: %s", ranks[0].text);
        end_all();
    }
}

static bool ops_show_a_push(void *arg)
{
    char *text = NULL;
    const char *argv[] = {test_path("bin/psctl"), "--coordinator", endpoint, "ops", NULL};
    (void)arg;
    test_run(argv, NULL, 10000, &text);
    bool shown = text != NULL && strstr(text, "push of ") != NULL && strstr(text, "table.c:") != NULL;
    free(text);
    return shown;
}

/* Trainer 2 waits for the servers, and they for trainer 3. */
PSD_TEST_WITH(tables, a_push_that_waits_is_shown, .timeout = 120)
{
    start_all("10s");
    kill(ranks[3].pid, SIGSTOP);
    cr_assert(test_until(ops_show_a_push, NULL, 60000));
    kill(ranks[3].pid, SIGCONT);
    end_all();
}

PSD_TEST_WITH(tables, psworker_command_line, .timeout = 60)
{
    const char *env[] = {"PSD_JOIN_TIMEOUT_MS=500", NULL};
    const char *const lines[][6] = {{"--help", NULL},
                                    {"--version", NULL},
                                    {"--role", "trainer", NULL},
                                    {NULL},
                                    {"--no-such", NULL},
                                    {"--role", "server", "--rank", "-3", NULL},
                                    {"--role", "server", "spare", NULL},
                                    {"--role", "server", "--coordinator", "tcp://127.0.0.1:9", NULL}};
    const int codes[] = {0, 0, 2, 2, 2, 2, 2, 3};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        const char *argv[8] = {test_path("bin/psworker")};
        char *text = NULL;
        for (int a = 0; a < 6 && lines[i][a] != NULL; a++)
            argv[a + 1] = lines[i][a];
        int code = test_run(argv, env, 20000, &text);
        cr_assert_eq(code, codes[i], "command line %zu: exit %d: %s", i, code, text);
        cr_assert(strstr(text, "psworker"), "command line %zu: %s", i, text);
        free(text);
    }
}
