/* Every example runs, with the numbers of ranks that it may be run with, and finds its own result right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

static void run_example(const char *name, const char *ranks)
{
    char path[128], want[64];
    char *text = NULL;
    snprintf(path, sizeof(path), "examples/%s", name);
    snprintf(want, sizeof(want), "%s: ", name);
    const char *argv[] = {test_path("bin/psrun"), "--standalone", "-n", ranks, "--", test_path(path), NULL};
    int code = test_run(argv, NULL, 60000, &text);
    cr_assert_eq(code, 0, "%s with %s ranks: exit %d: %s", name, ranks, code, text);
    if (strcmp(name, "hello_all_reduce") != 0)
        cr_assert(strstr(text, want), "%s: no closing line in: %s", name, text);
    free(text);
}

PSD_TEST_WITH(examples, each_with_some_ranks, .timeout = 300)
{
    static const char *const names[] = {
        "hello_all_reduce", "send_recv", "isend_irecv",           "batch_p2p", "ring", "broadcast_all_reduce",
        "barrier_timeout",  "ring_plan", "reduce_scatter_gather", "overlap"};
    static const char *const ranks[] = {"1", "2", "3", "4"};
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++)
            run_example(names[n], ranks[r]);
    }
}

PSD_TEST_WITH(examples, ddp_linear_table, .timeout = 120)
{
    char *text = NULL;
    const char *build = test_path("");
    const char *argv[] = {"worker/examples/ddp_linear.sh", build, NULL};
    int code = test_run(argv, NULL, 60000, &text);
    cr_assert_eq(code, 0, "exit %d: %s", code, text);
    cr_assert(strstr(text, "efficiency"), "%s", text);
    free(text);
}

/* Its own checks: the same parameters on all workers, the losses of one process. */
PSD_TEST_WITH(examples, ddp_mlp_is_one_process_s_training, .timeout = 120)
{
    static const char *const layers[] = {"784,512,512,10", "10,10", "33,7,5,3,2"};
    static const char *const ranks[] = {"1", "2", "3"};
    for (int i = 0; i < 3; i++) {
        char *text = NULL;
        const char *argv[] = {test_path("bin/psrun"),
                              "--standalone",
                              "-n",
                              ranks[i],
                              "--",
                              test_path("examples/ddp_mlp"),
                              "--layers",
                              layers[i],
                              "--runs",
                              "0",
                              NULL};
        int code = test_run(argv, (const char *[]){"OPENBLAS_NUM_THREADS=1", NULL}, 60000, &text);
        cr_assert_eq(code, 0, "%s, %s ranks: exit %d: %s", layers[i], ranks[i], code, text);
        bool skipped = strstr(text, "skip: ") != NULL;
        cr_assert(skipped || strstr(text, "after: workers="), "%s", text);
        free(text);
        if (skipped)
            cr_skip_test("ddp_mlp needs libopenblas-dev");
    }
}

/* Fewer ranks than the batch can be shared by, and a file that is not there. */
PSD_TEST_WITH(examples, digits_without_servers, .timeout = 120)
{
    char *text = NULL;
    const char *train = test_path("examples/digits_train");
    const char *argv[] = {
        test_path("bin/psrun"), "--standalone", "-n", "2", "--", train, "--mode", "allreduce", NULL};
    int code = test_run(argv, NULL, 100000, &text);
    cr_assert_eq(code, 0, "exit %d: %s", code, text);
    cr_assert(strstr(text, "digits_train: accuracy=0.9"), "%s", text);
    free(text);
    const char *three[] = {
        test_path("bin/psrun"), "--standalone", "-n", "3", "--", train, "--mode", "allreduce", NULL};
    code = test_run(three, NULL, 60000, &text);
    cr_assert_eq(code, 1, "exit %d: %s", code, text);
    cr_assert(strstr(text, "cannot be shared by 3 trainers"), "%s", text);
    free(text);
    const char *missing[] = {train, "--data", "no/such/file", NULL};
    code = test_run(missing, NULL, 10000, &text);
    cr_assert_eq(code, 1, "exit %d: %s", code, text);
    cr_assert(strstr(text, "no/such/file"), "%s", text);
    free(text);
}

/* The demo: its bounds hold, the real psctl is shown, and nothing is left behind. */
PSD_TEST_WITH(examples, demo, .timeout = 200)
{
    char directory[] = "/tmp/psd-demo-test-XXXXXX";
    char tmp[64], command[96];
    char *text = NULL;
    cr_assert(mkdtemp(directory));
    snprintf(tmp, sizeof(tmp), "TMPDIR=%s", directory);
    const char *env[] = {tmp, NULL};
    const char *argv[] = {"deploy/demo.sh", test_path(""), NULL};
    int code = test_run(argv, env, 100000, &text);
    cr_assert_eq(code, 0, "exit %d: %s", code, text);
    const char *last = strstr(text, "\ndemo: accuracy=");
    double accuracy = 0, difference = 1;
    int seconds = 0;
    cr_assert(last != NULL, "%s", text);
    cr_assert_eq(
        sscanf(last, "\ndemo: accuracy=%lf loss_diff=%lf seconds=%d", &accuracy, &difference, &seconds), 3);
    cr_assert(accuracy >= 0.96 && difference <= 1e-5);
    cr_assert(strstr(text, "psctl status    (while it trains)") && strstr(text, "psctl tables"), "%s", text);
    cr_assert(strstr(text, "running"), "psctl did not see the job run: %s", text);
    snprintf(command, sizeof(command), "rmdir %s", directory); /* fails if anything is left in it */
    cr_assert_eq(system(command), 0);
    free(text);
}
