#include <pthread.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "worker/error.h"

PSD_TEST(error, carries_place_and_sentence)
{
    cr_assert_eq(psd_error_set("train.c", 12, PSD_ERR_INVAL, "psd_send: dst is %d", 7), PSD_ERR_INVAL);
    cr_assert_str_eq(psd_last_error(), "train.c:12: psd_send: dst is 7");
    psd_error_set("/home/me/src/train.c", 3, PSD_ERR_INVAL, "x");
    cr_assert_str_eq(psd_last_error(), "train.c:3: x");
    psd_error_set(NULL, 0, PSD_ERR_INVAL, "no place");
    cr_assert_str_eq(psd_last_error(), "no place");
}

PSD_TEST(error, may_quote_the_error_before)
{
    psd_error_set(NULL, 0, PSD_ERR_INVAL, "inner");
    psd_error_set("a.c", 1, PSD_ERR_INVAL, "outer: %s", psd_last_error());
    cr_assert_str_eq(psd_last_error(), "a.c:1: outer: inner");
}

PSD_TEST(error, is_cut_when_too_long)
{
    char text[2 * PSD_ERROR_BYTES];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    psd_error_set("a.c", 1, PSD_ERR_INVAL, "%s", text);
    cr_assert_eq(strlen(psd_last_error()), PSD_ERROR_BYTES - 1);
}

static void *look(void *out)
{
    *(size_t *)out = strlen(psd_last_error());
    return NULL;
}

PSD_TEST(error, belongs_to_its_thread)
{
    pthread_t thread;
    size_t seen = 99;
    psd_error_set("a.c", 1, PSD_ERR_INVAL, "mine");
    cr_assert_eq(pthread_create(&thread, NULL, look, &seen), 0);
    pthread_join(thread, NULL);
    cr_assert_eq(seen, 0);
}

PSD_TEST(error, every_status_has_a_sentence)
{
    cr_assert_str_eq(psd_status_text(PSD_ERR_STALE), "handle was destroyed or never existed");
    cr_assert_not_null(psd_status_text((psd_status)-9999));
}
