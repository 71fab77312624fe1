#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "status", "no jobs", argc, argv);
}

const psctl_command psctl_status = {
    .name = "status",
    .arguments = "[options]",
    .summary = "jobs, how many of their ranks are there, and what is missing",
    .details = "One row per job: its state, ranks that are there and wanted, epoch. While a job waits for\n"
               "ranks, says which never arrived. Jobs that run come first, then those that have ended.\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
