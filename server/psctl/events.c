#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "events", "no events", argc, argv);
}

const psctl_command psctl_events = {
    .name = "events",
    .arguments = "[options]",
    .summary = "what happened, newest last",
    .details = "One row per event: joins, losses, groups, plans, stops. Kept in the journal of psd.\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
