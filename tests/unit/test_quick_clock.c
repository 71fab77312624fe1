/* The quick clock beside the real one: never ahead of it, never back, hardly behind. */
#include "tests/lib/psd_test.h"

#include <pthread.h>

#include "worker/quick_clock.h"

static void watch(psd_time_ns *behind)
{
    psd_time_ns end = psd_now_ns() + 100 * PSD_NS_PER_MS;
    psd_time_ns before = 0, real = 0;
    while (real < end) {
        psd_time_ns early = psd_now_ns();
        psd_time_ns quick = psd_quick_now_ns();
        real = psd_now_ns();
        cr_assert_leq(quick, real);
        cr_assert_geq(quick, before);
        *behind = early - quick > *behind ? early - quick : *behind;
        before = quick;
    }
}

static void *in_thread(void *arg)
{
    watch(arg);
    return NULL;
}

PSD_TEST(quick_clock, keeps_with_the_real_one)
{
    pthread_t other;
    psd_time_ns behind = 0, behind_there = 0;
    cr_assert_eq(pthread_create(&other, NULL, in_thread, &behind_there), 0);
    watch(&behind);
    pthread_join(other, NULL);
    cr_assert_leq(behind, 2000, "%lld ns", (long long)behind);
    cr_assert_leq(behind_there, 2000, "%lld ns", (long long)behind_there);
}
