#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "plans", "no plans", argc, argv);
}

const psctl_command psctl_plans = {
    .name = "plans",
    .arguments = "[options]",
    .summary = "compiled transfers: state, runs, bytes",
    .details = "One row per plan: what it moves, rounds, the hash its ranks agreed on, runs and bytes.\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
