/* What a worker that cannot join is told: which value, which rank, which address, and within its deadline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

static void expect_refusal(const char *const env[], const char *must_say)
{
    char *text = NULL;
    const char *argv[] = {test_path("tests/programs/loop"), "--iters", "1", NULL};
    int code = test_run(argv, env, 20000, &text);
    cr_assert_eq(code, 4, "exit %d: %s", code, text);
    cr_assert(strstr(text, must_say), "no \"%s\" in: %s", must_say, text);
    cr_assert(strstr(text, "loop.c:"), "no source line in: %s", text);
    free(text);
}

PSD_TEST(join, no_coordinator)
{
    const char *env[] = {"PSD_COORDINATOR=tcp://127.0.0.1:9", "PSD_JOIN_TIMEOUT_MS=800", NULL};
    expect_refusal(env, "127.0.0.1:9");
}

PSD_TEST(join, bad_values)
{
    const char *values[] = {"PSD_WORLD_SIZE=0x", "PSD_WORLD_SIZE=-1",        "PSD_WORLD_SIZE=1000000000",
                            "PSD_RANK=one",      "PSD_JOIN_TIMEOUT_MS=soon", "PSD_COORDINATOR=udp://x",
                            "PSD_JOB=a b",       "PSD_BACKEND=fast",         "PSD_DEVICE=gpu0"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const char *env[] = {values[i], "PSD_LOG=1", NULL};
        expect_refusal(env, strchr(values[i], '=') + 1);
    }
}

PSD_TEST(join, a_backend_that_is_not_installed_is_told)
{
    const char *env[] = {"PSD_BACKEND_DIR=/nonexistent", "PSD_BACKEND=nccl", NULL};
    const char *missing = "backend nccl is not installed: there is no /nonexistent/psd_backend_nccl.so";
    char *text = NULL;
    const char *alone[] = {test_path("bin/psworker"), "--role", "server", NULL};
    int code = test_run(alone, env, 20000, &text);
    cr_assert_eq(code, 4, "exit %d: %s", code, text);
    cr_assert(strstr(text, missing), "%s", text);
    free(text);
    const char *launched[] = {
        test_path("bin/psrun"), "--standalone", "-n", "2", "--", alone[0], "--role", "server", NULL};
    code = test_run(launched, env, 20000, &text);
    cr_assert_eq(code, 4, "exit %d: %s", code, text);
    cr_assert(strstr(text, missing), "%s", text);
    free(text);
}

static void join_with_psrun(const char *n, const char *env0, const char *env1, int code, const char *must_say)
{
    char *text = NULL;
    const char *argv[] = {
        test_path("bin/psrun"),           "--standalone", "-n", n,   "--", "/usr/bin/env", env0, env1,
        test_path("tests/programs/loop"), "--iters",      "1",  NULL};
    int got = test_run(argv, NULL, 30000, &text);
    cr_assert_eq(got, code, "exit %d: %s", got, text);
    cr_assert(strstr(text, must_say), "no \"%s\" in: %s", must_say, text);
    free(text);
}

PSD_TEST(join, missing_rank_is_named)
{
    join_with_psrun("2", "PSD_WORLD_SIZE=3", "PSD_JOIN_TIMEOUT_MS=2000", 4, "have 2 of 3, missing rank 2");
}

PSD_TEST(join, zero_is_the_default_timeout)
{
    join_with_psrun("2", "PSD_JOIN_TIMEOUT_MS=0", "PSD_TIMEOUT_MS=0", 0, "");
}

PSD_TEST(join, few_open_files_are_told)
{
    static const int limits[] = {15, 20, 32};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        char command[512], said[64];
        char *text = NULL;
        snprintf(command, sizeof command, "ulimit -n %d && exec %s", limits[i],
                 test_path("tests/programs/loop"));
        snprintf(said, sizeof said, "may open only %d files", limits[i]);
        int code = test_run((const char *[]){"/bin/bash", "-c", command, NULL}, NULL, 30000, &text);
        cr_assert_eq(code, 4, "exit %d: %s", code, text);
        cr_assert(strstr(text, said), "%s", text);
        free(text);
    }
}

PSD_TEST(join, a_huge_timeout_is_named)
{
    const char *env[] = {"PSD_JOIN_TIMEOUT_MS=9223372036854775807", NULL};
    expect_refusal(env, "it is too large");
    const char *bytes[] = {"PSD_COORDINATOR=\xff\x61", NULL};
    expect_refusal(bytes, "\"\\xffa\"");
}

PSD_TEST(join, two_claims_to_one_rank)
{
    join_with_psrun("2", "PSD_RANK=0", "PSD_JOIN_TIMEOUT_MS=3000", 4, "rank 0");
}

PSD_TEST(join, group_names_who_has_not_asked)
{
    char *text = NULL;
    const char *argv[] = {test_path("bin/psrun"),
                          "--standalone",
                          "-n",
                          "3",
                          "--",
                          test_path("tests/programs/missing_member"),
                          NULL};
    /* Or psd would end the wait sooner: rank 2 waits in a barrier for those that wait for it. */
    const char *env[] = {"PSD_TIMEOUT_MS=1500", "PSD_ON_HANG=report", NULL};
    int code = test_run(argv, env, 30000, &text);
    cr_assert_eq(code, 0, "exit %d: %s", code, text);
    cr_assert(strstr(text, "rank 2 has not asked"), "%s", text);
    cr_assert(strstr(text, "missing_member.c:"), "%s", text);
    free(text);
}

/* Ranks that finalize and join again at once wait for their last world to end, and make the next one. */
PSD_TEST_WITH(join, worlds_follow_each_other, .timeout = 120)
{
    char *text = NULL;
    const char *argv[] = {test_path("bin/psrun"),
                          "--standalone",
                          "-n",
                          "3",
                          "--",
                          test_path("tests/programs/again"),
                          "40",
                          NULL};
    int code = test_run(argv, NULL, 60000, &text);
    cr_assert_eq(code, 0, "exit %d: %s", code, text);
    cr_assert(strstr(text, "ended 40 rounds"), "%s", text);
    free(text);
}
