#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "ranks", "no ranks", argc, argv);
}

const psctl_command psctl_ranks = {
    .name = "ranks",
    .arguments = "[options]",
    .summary = "every rank: worker, host, state, progress",
    .details =
        "One row per rank: job, rank, worker name, role, host, process id, state, and the bytes it has\n"
        "moved and holds.\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
