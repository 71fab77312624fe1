#include <stddef.h>
#include <string.h>

#include "server/psctl/psctl.h"
#include "server/psctl/text.h"

/* In the order of the help. */
const psctl_command *const psctl_commands[] = {
    &psctl_status,  &psctl_ranks, &psctl_groups, &psctl_plans,     &psctl_plan,   &psctl_ops,   &psctl_tables,
    &psctl_events,  &psctl_logs,  &psctl_why,    &psctl_incidents, &psctl_doctor, &psctl_bench, &psctl_stop,
    &psctl_version, &psctl_help,  NULL,
};

enum { COMMANDS = sizeof psctl_commands / sizeof psctl_commands[0] };

const psctl_command *psctl_command_find(const char *name)
{
    for (int i = 0; psctl_commands[i] != NULL; i++) {
        if (strcmp(psctl_commands[i]->name, name) == 0)
            return psctl_commands[i];
    }
    return NULL;
}

const char *psctl_command_suggest(const char *name)
{
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++)
        names[i] = psctl_commands[i] != NULL ? psctl_commands[i]->name : NULL;
    return psctl_text_nearest(name, names);
}
