/* Deadlines saturate instead of overflowing. */
#include "common/clock.h"
#include "tests/lib/psd_test.h"

PSD_TEST(clock, deadlines)
{
    cr_assert_eq(psd_deadline_ns(5, 2), 5 + 2 * PSD_NS_PER_MS);
    cr_assert_eq(psd_deadline_ns(5, 0), 5);
    cr_assert_eq(psd_deadline_ns(5, -1), PSD_NEVER);
    cr_assert_eq(psd_deadline_ns(5, INT64_MAX), PSD_NEVER);
}

PSD_TEST(clock, goes_forward)
{
    psd_time_ns a = psd_now_ns();
    cr_assert_leq(a, psd_now_ns());
}
