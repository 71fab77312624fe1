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
