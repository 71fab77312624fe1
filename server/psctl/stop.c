#include <stdio.h>
#include <stdlib.h>

#include "common/conf.h"
#include "server/psctl/client.h"
#include "server/psctl/print.h"
#include "server/psctl/view.h"

/* Never all jobs by omission: without --job it is the one that a worker without a job's name joins. */
static const char *job_of(const psctl_options *options)
{
    const char *job = options->job != NULL ? options->job : getenv("PSD_JOB");
    return job != NULL && job[0] != '\0' ? job : "default";
}

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    char why[1536] = "";
    psctl_answer answer;
    const char *job = job_of(options);
    if (!psctl_no_arguments("stop", argc, argv))
        return PSCTL_USAGE;
    if (!psd_name_valid(job)) {
        psctl_error("PSD_JOB=%s is not a job's name: write 1 to 63 of the characters A-Z a-z 0-9 . _ -", job);
        return PSCTL_USAGE;
    }
    psctl_exit code = psctl_client_ask_once(options, "stop", job, &answer, why, sizeof why);
    if (code != PSCTL_FINE) {
        psctl_error("%s", why);
        return code;
    }
    if (options->json)
        code = psctl_print_json(&answer, 0) ? PSCTL_FINE : PSCTL_FAILED;
    else
        psctl_print_table(&answer, 0, NULL);
    psctl_answer_free(&answer);
    return code;
}

const psctl_command psctl_stop = {
    .name = "stop",
    .arguments = "[--job NAME] [options]",
    .summary = "ask the workers of a job to stop",
    .details =
        "Every rank of the job is told; its next call ends with PSD_ERR_STOPPED. Without --job the job is\n"
        "PSD_JOB, else `default`; one that does not run is an error. Prints how many ranks were told. "
        "Returns once psd has taken the order, not when the ranks have left: watch\n"
        "them with `psctl ranks --watch`.\n",
    .options = PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON | PSCTL_OPT_JOB,
    .run = run,
};
