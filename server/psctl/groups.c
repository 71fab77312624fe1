#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "groups", "no groups", argc, argv);
}

const psctl_command psctl_groups = {
    .name = "groups",
    .arguments = "[options]",
    .summary = "groups of ranks and their state",
    .details = "One row per group: its members, epoch, state and how long its links took to warm\n"
               "up (the slowest member's).\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
