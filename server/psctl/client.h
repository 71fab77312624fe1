/* psctl's side of the control protocol: ask psd, get tables of rows. */
#ifndef PSD_PSCTL_CLIENT_H
#define PSD_PSCTL_CLIENT_H

#include "proto/wire.h"
#include "server/psctl/psctl.h"

typedef struct psctl_client psctl_client;

/* All pages of one answer; every page has the columns of the first. */
typedef struct psctl_answer {
    psd_msg_box **pages; /* owned; each a REPLY */
    size_t count;
} psctl_answer;

/* Failures are told in `why`, a sentence with the address, what happened and what to do; the return value is
 * the exit code. Nothing is sent yet. */
psctl_exit psctl_client_open(const psctl_options *options, psctl_client **out, char *why, size_t why_bytes);
void psctl_client_close(psctl_client *client); /* accepts NULL; does not linger */

/* Asks for a view and follows its pages until the last one or options.limit rows. Blocks at most the timeout
 * for each page. A reply with an error status becomes PSCTL_FAILED and its text. */
psctl_exit psctl_client_ask(psctl_client *client, const char *view, const char *job, psctl_answer *out,
                            char *why, size_t why_bytes);
void psctl_answer_free(psctl_answer *answer);
/* Drops all rows but the last `rows`. */
void psctl_answer_keep_last(psctl_answer *answer, uint32_t rows);

/* open, ask, close. */
psctl_exit psctl_client_ask_once(const psctl_options *options, const char *view, const char *job,
                                 psctl_answer *out, char *why, size_t why_bytes);

#endif
