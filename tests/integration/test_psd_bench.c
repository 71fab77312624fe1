/* psd-bench: every operation measures and finds its results right; bad arguments are usage errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

#define LIMIT_MS 60000

static int bench(char **text, const char *ranks, const char *const *arguments)
{
    const char *argv[24] = {test_path("bin/psrun"),    "--standalone", "--no-prefix", "-n", ranks, "--",
                            test_path("bin/psd-bench")};
    int count = 7;
    while (*arguments != NULL && count < 23)
        argv[count++] = *arguments++;
    return test_run(argv, NULL, LIMIT_MS, text);
}

static int lines_with(const char *text, const char *needle)
{
    int lines = 0;
    for (const char *at = strstr(text, needle); at != NULL; at = strstr(at + 1, needle))
        lines++;
    return lines;
}

PSD_TEST(psd_bench, every_operation_is_right)
{
    static const char *const operations[] = {
        "all_reduce",     "broadcast",           "reduce", "scatter",  "gather",  "all_gather",
        "reduce_scatter", "all_to_all",          "send",   "sendrecv", "barrier", "all_to_all_v",
        "batch",          "all_reduce_coalesced"};
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const char *arguments[] = {operations[i], "-b", "0", "-e",     "64K", "-f",
                                   "128",         "-i", "2", "--json", NULL};
        char *text = NULL;
        int code = bench(&text, "3", arguments);
        cr_assert_eq(code, 0, "%s: exit %d: %s", operations[i], code, text);
        int results = lines_with(text, "{\"op\":\"");
        cr_assert_geq(results, 1, "%s: %s", operations[i], text);
        cr_assert_eq(lines_with(text, "\"wrong\":0}"), results, "%s: %s", operations[i], text);
        free(text);
    }
}

PSD_TEST(psd_bench, table_has_both_forms)
{
    const char *arguments[] = {"all_reduce", "-b",  "1K", "-e",  "1M",       "-f",  "32",
                               "-d",         "f16", "-o", "avg", "--buffer", "psd", NULL};
    char *text = NULL;
    cr_assert_eq(bench(&text, "2", arguments), 0, "%s", text);
    cr_assert_not_null(strstr(text, "backend host, 2 ranks, psd memory"), "%s", text);
    cr_assert_not_null(strstr(text, "# Out of bounds values : 0 OK"), "%s", text);
    const char *average = strstr(text, "# Avg bus bandwidth    : ");
    int decimals = 0;
    cr_assert_not_null(average, "%s", text);
    cr_assert_eq(sscanf(average, "# Avg bus bandwidth    : %*d.%*4[0-9]%n", &decimals), 0);
    cr_assert(decimals > 0 && average[decimals] == '\n', "%s", text);
    cr_assert_eq(lines_with(text, " f16 "), 3, "%s", text);
    free(text);
}

PSD_TEST(psd_bench, bad_arguments_are_usage_errors)
{
    static const char *const bad[][3] = {{"all_reduc", NULL},
                                         {"all_reduce", "--bogus", NULL},
                                         {"all_reduce", "-b9", "-e1"},
                                         {"all_reduce", "-dbool", NULL},
                                         {"all_reduce", "-f1", NULL},
                                         {"all_reduce", "-e99999999T", NULL},
                                         {"broadcast", "--buffer", "gpu"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *argv[] = {test_path("bin/psd-bench"), bad[i][0], bad[i][1], bad[i][1] ? bad[i][2] : NULL,
                              NULL};
        char *text = NULL;
        cr_assert_eq(test_run(argv, NULL, LIMIT_MS, &text), 2, "%s %s: %s", bad[i][0], bad[i][1], text);
        cr_assert_not_null(strstr(text, "psd-bench: "), "%s", text);
        free(text);
    }
}

/* Under psrun too, and once, whichever rank ends first. */
PSD_TEST(psd_bench, the_reason_is_told_once)
{
    for (int i = 0; i < 10; i++) {
        const char *argv[] = {test_path("bin/psctl"), "bench", "all_reduce", "-n", "3", "-f", "0", NULL};
        const char *env[] = {"PSD_RANK=2", "RANK=2", NULL}; /* of somebody else */
        char *text = NULL;
        cr_assert_eq(test_run(argv, env, LIMIT_MS, &text), 2, "%s", text);
        cr_assert_str_eq(text,
                         "psd-bench: -f '0': a number from 2 up (psd-bench --help lists the options)\n");
        free(text);
    }
}

PSD_TEST(psd_bench, sizes_the_wrong_way_round_are_named)
{
    const char *argv[] = {test_path("bin/psd-bench"), "all_reduce", "-b", "1M", "-e", "4K", NULL};
    char *text = NULL;
    cr_assert_eq(test_run(argv, NULL, LIMIT_MS, &text), 2, "%s", text);
    cr_assert_not_null(strstr(text, "-b '1 MiB': it is larger than -e, the largest size, which is 4 KiB"),
                       "%s", text);
    free(text);
}
