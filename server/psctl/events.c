#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    return psctl_view(options, "events", "no events", argc, argv);
}

const psctl_command psctl_events = {
    .name = "events",
    .arguments = "[options]",
    .summary = "what happened, newest last",
    .details =
        "One row per event: joins, losses, groups, plans, stops; the last 512. The journal of psd (--state)\n"
        "keeps more of them, in its table `notes`.\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
