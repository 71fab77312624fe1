/* A context of a world of one rank, on the host backend, with a fake coordinator: for tests of what needs no
 * peer. */
#ifndef PSD_TEST_SOLO_H
#define PSD_TEST_SOLO_H

#include "tests/lib/fake_psd.h"
#include "worker/psd.h"

typedef struct solo {
    fake_psd *psd;
    psd_ctx *ctx;
} solo;

/* Fails the test if it cannot. */
solo solo_open(fake_psd_hook hook, void *arg);
void solo_close(solo *s, psd_status expected); /* what psd_finalize must return */

/* Fails the test unless psd_last_error() contains the text. */
void expect_error_text(const char *text);

#endif
