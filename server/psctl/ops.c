#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "ops", "no ranks", argc, argv);
}

const psctl_command psctl_ops = {
    .name = "ops",
    .arguments = "[options]",
    .summary = "what each rank is doing now, and for how long",
    .details = "One row per rank: operations completed, bytes moved, the oldest operation in flight (kind,\n"
               "peer or root as a rank of its group, elements, dtype, age, tensor, call site).\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
