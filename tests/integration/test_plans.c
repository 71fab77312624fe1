/* Plans end to end: compiled by psd, agreed, run by the ranks, shown by psctl. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

static void check(const char *ranks, const char *transport)
{
    char *text = NULL;
    const char *env[] = {transport, "PSD_TIMEOUT_MS=30000", NULL};
    const char *argv[] = {
        test_path("bin/psrun"), "--standalone", "-n", ranks, "--", test_path("tests/programs/plan"), NULL};
    int code = test_run(argv, env, 60000, &text);
    cr_assert_eq(code, 0, "%s ranks: exit %d: %s", ranks, code, text);
    free(text);
}

PSD_TEST_WITH(plans, every_shift, .timeout = 200)
{
    check("1", "PSD_HOST_TRANSPORT=auto");
    check("2", "PSD_HOST_TRANSPORT=auto");
    check("3", "PSD_HOST_TRANSPORT=auto");
    check("5", "PSD_HOST_TRANSPORT=auto");
}

PSD_TEST_WITH(plans, over_tcp, .timeout = 100)
{
    check("3", "PSD_HOST_TRANSPORT=tcp");
}

static char endpoint[128];

static bool shows_three_runs(void *arg)
{
    char *text = NULL;
    const char *argv[] = {test_path("bin/psctl"), "--coordinator", endpoint, "plans", "--json", NULL};
    (void)arg;
    bool found = test_run(argv, NULL, 10000, &text) == 0 && strstr(text, "\"runs\":3") != NULL;
    free(text);
    return found;
}

/* Also the runs after which nothing more happens. */
PSD_TEST_WITH(plans, psctl_shows_the_last_runs, .timeout = 60)
{
    test_proc psd, job;
    const char *daemon[] = {test_path("bin/psd"), "--listen", "tcp://127.0.0.1:0", NULL};
    const char *debug[] = {"PSD_DEBUG=info", NULL};
    cr_assert(test_proc_start(&psd, daemon, debug));
    cr_assert(test_proc_expect(&psd, "listening on ", 10000));
    cr_assert_eq(sscanf(strstr(psd.text, "listening on "), "listening on %127[^ ,;\n]", endpoint), 1);
    const char *ranks[] = {test_path("bin/psrun"),           "--coordinator", endpoint, "-n", "2", "--",
                           test_path("tests/programs/plan"), "hold",          NULL};
    cr_assert(test_proc_start(&job, ranks, NULL));
    cr_assert(test_proc_expect(&job, "plan: ran", 20000), "%s", job.text);
    cr_assert(test_until(shows_three_runs, NULL, 10000));
    test_proc_end(&job);
    test_proc_end(&psd);
}
