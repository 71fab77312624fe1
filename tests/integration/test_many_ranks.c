/* Many more ranks than cores on one host: they start, compute and end, and nobody is taken for lost. What a limit
 * forbids is refused in one sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"
#include "worker/backend/host/memory_limit.h"

#define GIB ((int64_t)1 << 30)

static int count(const char *text, const char *needle)
{
    int found = 0;
    for (const char *at = text; (at = strstr(at, needle)) != NULL; at += strlen(needle))
        found++;
    return found;
}

static void run_many(int ranks, const char *program, const char *line, int lines)
{
    char n[16];
    char *text = NULL;
    snprintf(n, sizeof(n), "%d", ranks);
    const char *argv[] = {test_path("bin/psrun"), "--standalone", "-n", n, "--", test_path(program), NULL};
    int code = test_run(argv, NULL, 120000, &text);
    cr_assert_eq(code, 0, "%d ranks: exit %d: %.2000s", ranks, code, text);
    cr_assert_eq(count(text, line), lines, "%.2000s", text);
    cr_assert_null(strstr(text, "was lost"), "%.2000s", text);
    cr_assert_null(strstr(text, "dropped"), "%.2000s", text);
    free(text);
}

PSD_TEST_WITH(many_ranks, sixty_four_sum_their_ranks, .timeout = 150)
{
    run_many(64, "examples/hello_all_reduce", "the sum of the ranks is 2016, expected 2016", 64);
}

PSD_TEST_WITH(many_ranks, sixty_four_go_through_rounds, .timeout = 150)
{
    run_many(64, "tests/programs/rounds", "rounds: all as expected", 1);
}

/* More than the 128 places that an acceptor has for those whom nobody announced. */
PSD_TEST_WITH(many_ranks, more_than_there_are_places_for_strangers, .timeout = 150)
{
    int ranks = memory_available() > 8 * GIB ? 140 : 0;
    if (ranks == 0)
        cr_skip_test("140 processes want 8 GiB of memory free");
    char line[80];
    snprintf(line, sizeof(line), "expected %d", ranks * (ranks - 1) / 2);
    run_many(ranks, "examples/hello_all_reduce", line, ranks);
}

PSD_TEST_WITH(many_ranks, too_few_descriptors_are_named, .timeout = 100)
{
    char *text = NULL;
    char command[512];
    snprintf(command, sizeof(command), "ulimit -n 120; exec %s --standalone -n 24 -- %s",
             test_path("bin/psrun"), test_path("examples/hello_all_reduce"));
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    int code = test_run(argv, NULL, 60000, &text);
    cr_assert_eq(code, 1, "exit %d: %.2000s", code, text);
    cr_assert(strstr(text, "not enough file descriptors: 23 links need"), "%.2000s", text);
    cr_assert(strstr(text, "the limit is 120; raise it to at least"), "%.2000s", text);
    free(text);
}
