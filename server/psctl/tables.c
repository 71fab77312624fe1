#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "tables", "no tables", argc, argv);
}

const psctl_command psctl_tables = {
    .name = "tables",
    .arguments = "[options]",
    .summary = "parameter tables: servers, trainers, clock",
    .details = "One row per table: parameters, servers, trainers, clock, pushes and pulls.\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
