#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    psctl_options newest = *options;
    newest.newest = true;
    return psctl_view(&newest, "events", "no events", argc, argv);
}

const psctl_command psctl_events = {
    .name = "events",
    .arguments = "[options]",
    .summary = "what happened, newest last",
    .details =
        "One row per event: worlds that became complete, ranks that left early or were lost, workers and\n"
        "groups refused, groups that broke, stops; the newest last, at most 512. With --limit N the newest\n"
        "N. The journal of psd (--state) keeps more of them, in its table `notes`.\n",
    .options = PSCTL_VIEW_OPTIONS,
    .run = run,
};
