/* psctl: the command line. A command is a name, its help and a function; commands.c has the table of them. */
#ifndef PSD_PSCTL_H
#define PSD_PSCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes, also in the manual page. */
typedef enum psctl_exit {
    PSCTL_FINE = 0,
    PSCTL_FAILED = 1,
    PSCTL_USAGE = 2,
    PSCTL_UNREACHABLE = 3,
    PSCTL_INCIDENT = 4, /* an incident is open */
} psctl_exit;

/* Which options a command takes; bits of psctl_command.options. */
enum {
    PSCTL_OPT_COORDINATOR = 1, /* --coordinator and --timeout */
    PSCTL_OPT_JSON = 2,
    PSCTL_OPT_JOB = 4,
    PSCTL_OPT_WATCH = 8,
    PSCTL_OPT_LIMIT = 16,
    PSCTL_OPT_RANK = 32,
    PSCTL_OPT_DUMP = 64,
};

typedef struct psctl_options {
    const char *coordinator;
    bool coordinator_given; /* by flag or environment, not the default */
    int64_t timeout_ms;
    bool json;
    const char *job;  /* NULL: none given */
    int64_t watch_ms; /* 0: print once */
    uint32_t limit;   /* rows; 0: all */
    int32_t rank;     /* -1: none given */
    const char *dump; /* file of a recorder; NULL: none given */
    bool newest;      /* the last `limit` rows, not the first */
} psctl_options;

typedef struct psctl_command {
    const char *name;
    const char *arguments; /* as shown behind the name in the usage line */
    const char *summary;   /* one line, lower case */
    const char *details;   /* lines for `psctl help NAME`, each ended by a newline */
    unsigned options;      /* PSCTL_OPT_ bits */
    bool raw;              /* takes its arguments as they are, options included */
    /* argv holds the positional arguments, or all of them if raw. */
    psctl_exit (*run)(const psctl_options *options, int argc, char **argv);
} psctl_command;

extern const psctl_command *const psctl_commands[]; /* ends with NULL */
const psctl_command *psctl_command_find(const char *name);
/* The nearest command's name, NULL if none is near. */
const char *psctl_command_suggest(const char *name);

/* Each in its own file. */
extern const psctl_command psctl_status;
extern const psctl_command psctl_ranks;
extern const psctl_command psctl_groups;
extern const psctl_command psctl_plans;
extern const psctl_command psctl_plan;
extern const psctl_command psctl_ops;
extern const psctl_command psctl_tables;
extern const psctl_command psctl_events;
extern const psctl_command psctl_logs;
extern const psctl_command psctl_why;
extern const psctl_command psctl_incidents;
extern const psctl_command psctl_doctor;
extern const psctl_command psctl_bench;
extern const psctl_command psctl_stop;
extern const psctl_command psctl_version;
extern const psctl_command psctl_help;

/* One command's help on stdout. */
void psctl_help_command(const psctl_command *command);
/* "psctl: sentence" on stderr. */
void psctl_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
