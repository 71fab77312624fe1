#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "server/psctl/options.h"
#include "server/psctl/psctl.h"
#include "server/psctl/text.h"

void psctl_error(const char *format, ...)
{
    char text[2048];
    char clean[sizeof text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    psctl_text_clean(text, clean, sizeof clean);
    fprintf(stderr, "psctl: %s\n", clean);
}

static const psctl_command *find_command(const char *name)
{
    const psctl_command *command = psctl_command_find(name);
    if (command != NULL)
        return command;
    const char *near = psctl_command_suggest(name);
    char echo[PSD_ECHO_BYTES];
    psctl_error("there is no command %s%s%s%s (see: psctl help)", psd_echo(name, echo, sizeof echo),
                near != NULL ? ", did you mean " : "", near != NULL ? near : "", near != NULL ? "?" : "");
    return NULL;
}

/* --job before a command that has no use for it is told, not ignored. */
static bool check_early_options(const psctl_options *options, const psctl_command *command)
{
    const char *given = NULL;
    if (options->json && (command->options & PSCTL_OPT_JSON) == 0)
        given = "--json";
    else if (options->job != NULL && (command->options & PSCTL_OPT_JOB) == 0)
        given = "--job";
    else if (options->watch_ms != 0 && (command->options & PSCTL_OPT_WATCH) == 0)
        given = "--watch";
    else if (options->limit != 0 && (command->options & PSCTL_OPT_LIMIT) == 0)
        given = "--limit";
    else if (options->rank >= 0 && (command->options & PSCTL_OPT_RANK) == 0)
        given = "--rank";
    else if (options->dump != NULL && (command->options & PSCTL_OPT_DUMP) == 0)
        given = "--dump";
    if (given != NULL)
        psctl_error("%s has no option %s (see: psctl help %s)", command->name, given, command->name);
    return given == NULL;
}

static psctl_exit run_command(psctl_options *options, const psctl_command *command, int argc, char **argv)
{
    if (!check_early_options(options, command))
        return PSCTL_USAGE;
    if (command->raw)
        return command->run(options, argc, argv);
    int index = 0;
    int positional = 0;
    switch (psctl_options_parse(options, command, true, argc, argv, &index, &positional)) {
    case PSCTL_PARSED_HELP:
        psctl_help_command(command);
        return PSCTL_FINE;
    case PSCTL_PARSED:
        return command->run(options, positional, argv);
    case PSCTL_PARSED_VERSION:
    case PSCTL_PARSED_BAD:
        break;
    }
    return PSCTL_USAGE;
}

static psctl_exit run(int argc, char **argv)
{
    psctl_options options;
    int index = 1;
    int positional;
    psctl_options_init(&options);
    switch (psctl_options_parse(&options, NULL, false, argc, argv, &index, &positional)) {
    case PSCTL_PARSED_HELP:
        return psctl_help.run(&options, 0, NULL);
    case PSCTL_PARSED_VERSION:
        printf("psctl %s\n", PSD_VERSION);
        return PSCTL_FINE;
    case PSCTL_PARSED_BAD:
        return PSCTL_USAGE;
    case PSCTL_PARSED:
        break;
    }
    if (index == argc) {
        psctl_error("which command? (see: psctl help)");
        return PSCTL_USAGE;
    }
    const psctl_command *command = find_command(argv[index]);
    if (command == NULL)
        return PSCTL_USAGE;
    return run_command(&options, command, argc - index - 1, argv + index + 1);
}

int main(int argc, char **argv)
{
    psctl_exit code = run(argc, argv);
    if (fflush(stdout) != 0 && code == PSCTL_FINE) {
        perror("psctl: cannot write the output");
        code = PSCTL_FAILED;
    }
    return (int)code;
}
