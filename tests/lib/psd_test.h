/* PSD_TEST: Criterion's Test, with a leak check at the end of the body. Under AddressSanitizer a leak alone
 * does not fail a Criterion test (measured on 2.4.1), so the body is a function of its own and the check
 * follows it. */
#ifndef PSD_TEST_H
#define PSD_TEST_H

#include <criterion/criterion.h>

#if defined(__SANITIZE_ADDRESS__)
#define PSD_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PSD_TEST_ASAN 1
#endif
#endif

#ifdef PSD_TEST_ASAN
#include <sanitizer/lsan_interface.h>
#define PSD_TEST_NO_LEAKS() cr_assert_eq(__lsan_do_recoverable_leak_check(), 0, "memory leaked")

/* No second check when the test program ends, as Criterion's own runner leaks 48 bytes now and then. Not done
 * by a suppression: Criterion calls the bodies, so it is in the stack of every leak of theirs. */
const char *__lsan_default_options(void);
__attribute__((weak, visibility("default"))) const char *__lsan_default_options(void)
{
    return "leak_check_at_exit=0";
}
#else
#define PSD_TEST_NO_LEAKS() ((void)0)
#endif

/* PSD_TEST(suite, name) { body }; PSD_TEST_WITH takes one or more of Criterion's options, such as .exit_code
 * = 1. */
#define PSD_TEST(suite, name) PSD_TEST_WITH(suite, name, .timeout = 60)
#define PSD_TEST_WITH(suite, name, ...)                                                                      \
    static void suite##_##name##_body(void);                                                                 \
    Test(suite, name, __VA_ARGS__)                                                                           \
    {                                                                                                        \
        suite##_##name##_body();                                                                             \
        PSD_TEST_NO_LEAKS();                                                                                 \
    }                                                                                                        \
    static void suite##_##name##_body(void)

#endif
