#include "server/psctl/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/conf.h"
#include "server/psctl/client.h"
#include "server/psctl/print.h"

bool psctl_job_of_rank(const psctl_options *options, const char **job)
{
    const char *name = options->job != NULL ? options->job : getenv("PSD_JOB");
    name = name != NULL && name[0] != '\0' ? name : "default";
    if (!psd_name_valid(name)) {
        psctl_error("PSD_JOB=%s is not a job's name: write 1 to 63 of the characters A-Z a-z 0-9 . _ -",
                    name);
        return false;
    }
    *job = name;
    return true;
}

bool psctl_no_arguments(const char *command, int argc, char **argv)
{
    if (argc == 0)
        return true;
    psctl_error("%s takes no argument such as %s (see: psctl help %s)", command, argv[0], command);
    return false;
}

psctl_exit psctl_print(const psctl_options *options, const psctl_answer *answer, const char *none)
{
    if (!options->json)
        psctl_print_table(answer, options->limit, none);
    else if (!psctl_print_json(answer, options->limit)) {
        psctl_error("cannot print the answer as JSON: out of memory or the output is closed");
        return PSCTL_FAILED;
    }
    return fflush(stdout) == 0 ? PSCTL_FINE : PSCTL_FAILED;
}

/* On a terminal the table is drawn over the one before, elsewhere below it. */
static void between(const psctl_options *options, bool first)
{
    if (options->json || options->watch_ms == 0)
        return;
    if (isatty(STDOUT_FILENO))
        fputs("\x1b[H\x1b[2J", stdout);
    else if (!first)
        putchar('\n');
}

static void pause_ms(int64_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * PSD_NS_PER_MS};
    nanosleep(&time, NULL);
}

psctl_exit psctl_view(const psctl_options *options, const char *view, const char *none, int argc, char **argv)
{
    if (!psctl_no_arguments(view, argc, argv))
        return PSCTL_USAGE;
    psctl_client *client = NULL;
    char why[1536] = "";
    psctl_options all = *options;
    if (options->newest)
        all.limit = 0; /* which rows are the last is known at the end */
    psctl_exit code = psctl_client_open(&all, &client, why, sizeof why);
    for (bool first = true; code == PSCTL_FINE; first = false) {
        psctl_answer answer;
        code = psctl_client_ask(client, view, options->job, &answer, why, sizeof why);
        if (code != PSCTL_FINE)
            break;
        if (options->newest && options->limit != 0)
            psctl_answer_keep_last(&answer, options->limit);
        between(options, first);
        code = psctl_print(options, &answer, none);
        psctl_answer_free(&answer);
        if (options->watch_ms == 0 || code != PSCTL_FINE)
            break;
        pause_ms(options->watch_ms);
    }
    if (why[0] != '\0')
        psctl_error("%s", why);
    psctl_client_close(client);
    return code;
}
