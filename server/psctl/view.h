/* The commands that show a table of psd's: ask, print, and again with --watch. */
#ifndef PSD_PSCTL_VIEW_H
#define PSD_PSCTL_VIEW_H

#include "server/psctl/client.h"

#define PSCTL_VIEW_OPTIONS                                                                                   \
    (PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON | PSCTL_OPT_JOB | PSCTL_OPT_WATCH | PSCTL_OPT_LIMIT)

/* `none` is what to print when there are no rows. Takes no positional arguments: `argc` of them are an error.
 */
psctl_exit psctl_view(const psctl_options *options, const char *view, const char *none, int argc,
                      char **argv);

/* Prints an answer once, as a table or as JSON; `none` as above. */
psctl_exit psctl_print(const psctl_options *options, const psctl_answer *answer, const char *none);

/* The job that --rank is of: --job, else PSD_JOB, else default. False: told on stderr. */
bool psctl_job_of_rank(const psctl_options *options, const char **job);

/* Tells that a command takes no arguments, if there are some; false then. */
bool psctl_no_arguments(const char *command, int argc, char **argv);

#endif
