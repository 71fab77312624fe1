#include <string.h>

#include "tests/bench/stats.h"
#include "tests/lib/psd_test.h"

PSD_TEST(bench_stats, odd_and_even_counts)
{
    double odd[] = {9, 1, 5}, even[] = {4, 1, 3, 2}, one[] = {7};
    bench_stats s = bench_stats_of(odd, 3);
    cr_assert(s.count == 3 && s.least == 1 && s.median == 5 && s.greatest == 9);
    s = bench_stats_of(even, 4);
    cr_assert(s.count == 4 && s.least == 1 && s.median == 2.5 && s.greatest == 4);
    s = bench_stats_of(one, 1);
    cr_assert(s.count == 1 && s.least == 7 && s.median == 7 && s.greatest == 7);
    s = bench_stats_of(one, 0);
    cr_assert(s.count == 0 && s.median == 0);
}

PSD_TEST(bench_stats, a_round_has_a_state_only_if_it_kept_it)
{
    cr_assert_eq(bench_state_of(46, 55), BENCH_NEAR);
    cr_assert_eq(bench_state_of(240, 239), BENCH_FAR);
    cr_assert_eq(bench_state_of(25, 24), BENCH_TWIN);
    cr_assert_eq(bench_state_of(46, 240), BENCH_MIXED);
    cr_assert_eq(bench_state_of(240, 46), BENCH_MIXED);
    cr_assert_eq(bench_state_of(25, 46), BENCH_MIXED);
    cr_assert_eq(bench_state_of(BENCH_NEAR_NS, BENCH_NEAR_NS), BENCH_FAR);
    cr_assert_eq(bench_state_of(BENCH_TWIN_NS, BENCH_TWIN_NS), BENCH_NEAR);
    cr_assert_str_eq(bench_state_name(BENCH_NEAR), "near");
    cr_assert_str_eq(bench_state_name(BENCH_FAR), "far");
    cr_assert_str_eq(bench_state_name(BENCH_TWIN), "twin");
    cr_assert_str_eq(bench_state_name(BENCH_MIXED), "mixed");
}

PSD_TEST(bench_stats, the_state_of_most_rounds)
{
    const size_t far[BENCH_STATES] = {[BENCH_MIXED] = 9, [BENCH_NEAR] = 2, [BENCH_FAR] = 3};
    const size_t even[BENCH_STATES] = {[BENCH_NEAR] = 2, [BENCH_FAR] = 2};
    const size_t twin[BENCH_STATES] = {[BENCH_TWIN] = 1};
    const size_t none[BENCH_STATES] = {[BENCH_MIXED] = 9};
    cr_assert_eq(bench_state_most(far), BENCH_FAR);
    cr_assert_eq(bench_state_most(even), BENCH_NEAR);
    cr_assert_eq(bench_state_most(twin), BENCH_TWIN);
    cr_assert_eq(bench_state_most(none), BENCH_MIXED);
}

PSD_TEST(bench_stats, texts)
{
    char text[64];
    const bench_stats some = {.count = 7, .least = 0.444, .median = 0.511, .greatest = 12.34}, none = {0};
    cr_assert_str_eq(bench_text_bytes(4, text, sizeof text), "4 B");
    cr_assert_str_eq(bench_text_bytes(4096, text, sizeof text), "4 KiB");
    cr_assert_str_eq(bench_text_bytes(64 << 20, text, sizeof text), "64 MiB");
    cr_assert_str_eq(bench_text_bytes(1025, text, sizeof text), "1025 B");
    cr_assert_str_eq(bench_text_bytes(0, text, sizeof text), "0 B");
    cr_assert_str_eq(bench_text_number(0.5, text, sizeof text), "0.50");
    cr_assert_str_eq(bench_text_number(9.99, text, sizeof text), "9.99");
    cr_assert_str_eq(bench_text_number(9.996, text, sizeof text), "10.0");
    cr_assert_str_eq(bench_text_number(999.6, text, sizeof text), "1000");
    cr_assert_str_eq(bench_text_stats(&some, text, sizeof text), "0.51 [0.44-12.3]");
    cr_assert_str_eq(bench_text_stats(&none, text, sizeof text), "-");
    cr_assert_str_eq(bench_text_ratio(1, 4, text, sizeof text), "0.25");
    cr_assert_str_eq(bench_text_ratio(1, 0, text, sizeof text), "-");
    cr_assert_str_eq(bench_text_ratio(0, 4, text, sizeof text), "-");
}

PSD_TEST(bench_stats, sizes_are_parsed_or_refused)
{
    int64_t sizes[3] = {0};
    cr_assert_eq(bench_parse_sizes("4,64K,4M", sizes, 3), 3);
    cr_assert(sizes[0] == 4 && sizes[1] == 64 << 10 && sizes[2] == 4 << 20);
    cr_assert_eq(bench_parse_sizes("4", sizes, 3), 1);
    static const char *const bad[] = {"",  ",",   "4,", ",4",      "4,,4",
                                      "x", "4,x", "-4", "4,4,4,4", "44444444444444444444444444444444444"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(bench_parse_sizes(bad[i], sizes, 3), -1, "'%s'", bad[i]);
}
