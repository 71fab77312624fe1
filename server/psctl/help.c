#include <stdio.h>

#include "server/psctl/options.h"
#include "server/psctl/psctl.h"

void psctl_help_command(const psctl_command *command)
{
    printf("usage: psctl %s %s\n\n%s.\n\n%s", command->name, command->arguments, command->summary,
           command->details);
    if (command->options != 0) {
        puts("\nOptions:");
        psctl_options_print(command->options);
    }
}

static void help_all(void)
{
    puts("usage: psctl COMMAND [options]\n\nShows and steers what the coordinator psd knows: jobs, ranks, "
         "groups, plans, operations, tables.\n\nCommands:");
    for (int i = 0; psctl_commands[i] != NULL; i++)
        printf("  %-10s %s\n", psctl_commands[i]->name, psctl_commands[i]->summary);
    puts("\nOptions that most commands take:");
    psctl_options_print(PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON | PSCTL_OPT_JOB | PSCTL_OPT_WATCH |
                        PSCTL_OPT_LIMIT);
    puts("\nExit codes: 0 fine, 1 failed, 2 usage, 3 psd not reachable, 4 an incident is open.\n"
         "`psctl help COMMAND` says more about one.");
}

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    (void)options;
    if (argc == 0) {
        help_all();
        return PSCTL_FINE;
    }
    const psctl_command *command = psctl_command_find(argv[0]);
    if (command == NULL) {
        const char *near = psctl_command_suggest(argv[0]);
        psctl_error("there is no command %s%s%s%s", argv[0], near != NULL ? ", did you mean " : "",
                    near != NULL ? near : "", near != NULL ? "?" : "");
        return PSCTL_USAGE;
    }
    psctl_help_command(command);
    return PSCTL_FINE;
}

const psctl_command psctl_help = {
    .name = "help",
    .arguments = "[COMMAND]",
    .summary = "list the commands, or explain one",
    .details = "",
    .run = run,
};
