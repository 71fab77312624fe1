#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "ranks", "no ranks", argc, argv);
}

const psctl_command psctl_ranks = {
    .name = "ranks",
    .arguments = "[options]",
    .summary = "every rank: worker, host, state, memory, bytes moved",
    .details =
        "One row per rank: job, rank, worker name, role, host, process id, state, age of its last\n"
        "heartbeat, the memory it holds (of the process, of the pool), and the bytes it sent and received.\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
