/* Ranks that disagree: an error on every rank that names both sides' calls, never wrong data and never a
 * hang. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

static void check(const char *kind, const char *ranks, const char *transport, const char *must_say)
{
    char *text = NULL;
    char *env[] = {strdup(transport), "PSD_TIMEOUT_MS=20000", NULL};
    const char *argv[] = {test_path("bin/psrun"),
                          "--standalone",
                          "-n",
                          ranks,
                          "--",
                          test_path("tests/programs/mismatch"),
                          kind,
                          NULL};
    int code = test_run(argv, (const char *const *)env, 40000, &text);
    free(env[0]);
    cr_assert_eq(code, 0, "%s with %s ranks: exit %d: %s", kind, ranks, code, text);
    for (int r = 0; r < atoi(ranks); r++) {
        char want[64];
        snprintf(want, sizeof want, "rank %d PSD_ERR_MISMATCH", r);
        cr_assert(strstr(text, want), "%s: no \"%s\" in: %s", kind, want, text);
    }
    cr_assert(strstr(text, must_say), "%s: no \"%s\" in: %s", kind, must_say, text);
    cr_assert(strstr(text, "mismatch.c:"), "%s: no source line in: %s", kind, text);
    free(text);
}

static void check_all(const char *ranks, const char *transport)
{
    check("count", ranks, transport, "101");
    check("dtype", ranks, transport, "i32");
    check("redop", ranks, transport, "max");
    check("root", ranks, transport, "root");
    check("kind", ranks, transport, "barrier");
    check("splits", ranks, transport, "5");
    check("gather", ranks, transport, "7");
    check("bucket", ranks, transport, "several tensors");
    check("p2p-count", ranks, transport, "5");
    check("p2p-dtype", ranks, transport, "i32");
}

PSD_TEST_WITH(mismatch, two_ranks, .timeout = 300)
{
    check_all("2", "PSD_HOST_TRANSPORT=auto");
}

PSD_TEST_WITH(mismatch, three_ranks, .timeout = 300)
{
    check_all("3", "PSD_HOST_TRANSPORT=auto");
}

PSD_TEST_WITH(mismatch, over_tcp, .timeout = 300)
{
    check_all("2", "PSD_HOST_TRANSPORT=tcp");
}

PSD_TEST(mismatch, against_a_rank_that_has_left)
{
    for (int i = 0; i < 5; i++) {
        char *text = NULL;
        const char *argv[] = {test_path("bin/psrun"),
                              "--standalone",
                              "-n",
                              "2",
                              "--",
                              test_path("tests/programs/mismatch"),
                              "leave",
                              NULL};
        int code = test_run(argv, NULL, 40000, &text);
        cr_assert_eq(code, 0, "exit %d: %s", code, text);
        cr_assert(strstr(text, "rank 1 PSD_ERR_MISMATCH"), "%s", text);
        free(text);
    }
}
