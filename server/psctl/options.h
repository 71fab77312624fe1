/* Options of the command line: --flag value, --flag=value, -x value, in any place. */
#ifndef PSD_PSCTL_OPTIONS_H
#define PSD_PSCTL_OPTIONS_H

#include "server/psctl/psctl.h"

/* Defaults and the environment (PSD_COORDINATOR). */
void psctl_options_init(psctl_options *options);

typedef enum psctl_parsed {
    PSCTL_PARSED = 1,
    PSCTL_PARSED_HELP = 2,    /* --help or -h was there */
    PSCTL_PARSED_VERSION = 3, /* --version */
    PSCTL_PARSED_BAD = 4,     /* told on stderr */
} psctl_parsed;

/* Parses argv[*index] and on, up to the first positional argument, or to the end if `all`; positional
 * arguments are then moved to the front of argv and *positional counts them. `command` is NULL before the
 * command is known. */
psctl_parsed psctl_options_parse(psctl_options *options, const psctl_command *command, bool all, int argc,
                                 char **argv, int *index, int *positional);

/* The options that a command takes, for its help. */
void psctl_options_print(unsigned mask);

#endif
