#include "server/psctl/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/msg.h"
#include "server/psctl/text.h"

#define DEFAULT_COORDINATOR "tcp://127.0.0.1:5577"
enum { DEFAULT_TIMEOUT_MS = 5000, DEFAULT_WATCH_MS = 2000, SHORTEST_WATCH_MS = 100 };

typedef enum arity {
    NO_VALUE,
    VALUE,
    MAY_HAVE_VALUE, /* taken if it looks like a number */
} arity;

typedef struct option_row {
    const char *name;   /* "--json" */
    const char *letter; /* "-j"; NULL: none */
    const char *value;  /* its name in the help */
    arity arity;
    unsigned mask; /* the PSCTL_OPT_ bit that it belongs to */
    const char *help;
    /* false: the value is bad; `want` is then printed. */
    bool (*set)(psctl_options *options, const char *value);
    const char *want;
} option_row;

static bool set_coordinator(psctl_options *options, const char *value)
{
    char host[256];
    uint16_t port;
    if (!psd_parse_endpoint(value, host, sizeof host, &port) || port == 0 || strcmp(host, "*") == 0)
        return false;
    options->coordinator = value;
    options->coordinator_given = true;
    return true;
}

/* A bare number is seconds here, unlike in psd_parse_ms: people say --watch 5. */
static bool parse_seconds(const char *value, int64_t *ms)
{
    char text[64];
    size_t bytes = strlen(value);
    bool bare = bytes > 0 && value[bytes - 1] >= '0' && value[bytes - 1] <= '9';
    if (bytes + 2 > sizeof text)
        return false;
    snprintf(text, sizeof text, "%s%s", value, bare ? "s" : "");
    return psd_parse_ms(text, ms);
}

static bool set_timeout(psctl_options *options, const char *value)
{
    int64_t ms;
    if (!parse_seconds(value, &ms) || ms < 1 || ms > 3600000)
        return false;
    options->timeout_ms = ms;
    return true;
}

static bool set_json(psctl_options *options, const char *value)
{
    (void)value;
    options->json = true;
    return true;
}

static bool set_job(psctl_options *options, const char *value)
{
    if (!psd_name_valid(value))
        return false;
    options->job = value;
    return true;
}

static bool set_watch(psctl_options *options, const char *value)
{
    int64_t ms = DEFAULT_WATCH_MS;
    if (value != NULL && (!parse_seconds(value, &ms) || ms < SHORTEST_WATCH_MS || ms > 86400000))
        return false;
    options->watch_ms = ms;
    return true;
}

static bool set_limit(psctl_options *options, const char *value)
{
    int64_t limit;
    if (!psd_parse_i64(value, 1, UINT32_MAX, &limit))
        return false;
    options->limit = (uint32_t)limit;
    return true;
}

static bool set_rank(psctl_options *options, const char *value)
{
    int64_t rank;
    if (!psd_parse_i64(value, 0, PSD_MAX_WORLD - 1, &rank))
        return false;
    options->rank = (int32_t)rank;
    return true;
}

static bool set_dump(psctl_options *options, const char *value)
{
    options->dump = value;
    return value[0] != '\0';
}

static const option_row rows[] = {
    {"--coordinator", "-c", "ADDRESS", VALUE, PSCTL_OPT_COORDINATOR,
     "where psd listens (PSD_COORDINATOR, else " DEFAULT_COORDINATOR ")", set_coordinator,
     "tcp://host:port with a port from 1 to 65535"},
    {"--timeout", NULL, "SECONDS", VALUE, PSCTL_OPT_COORDINATOR, "how long to wait for an answer (5)",
     set_timeout, "seconds, as in 5 or 0.5, or a duration such as 500ms or 2m, at most an hour"},
    {"--json", NULL, NULL, NO_VALUE, PSCTL_OPT_JSON, "print JSON", set_json, NULL},
    {"--job", "-j", "NAME", VALUE, PSCTL_OPT_JOB, "only this job", set_job,
     "a job's name: 1 to 63 of the characters A-Z a-z 0-9 . _ -"},
    {"--watch", "-w", "SECONDS", MAY_HAVE_VALUE, PSCTL_OPT_WATCH, "print again every so often (2)", set_watch,
     "seconds from 0.1, or a duration such as 500ms"},
    {"--limit", "-l", "ROWS", VALUE, PSCTL_OPT_LIMIT, "at most this many rows", set_limit,
     "a number of rows from 1"},
    {"--rank", "-r", "RANK", VALUE, PSCTL_OPT_RANK, "of this rank of the job", set_rank, "a rank from 0"},
    {"--dump", NULL, "FILE", VALUE, PSCTL_OPT_DUMP, "of the record file of a process, dead or alive",
     set_dump, "a file's name"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

void psctl_options_init(psctl_options *options)
{
    const char *coordinator = getenv("PSD_COORDINATOR");
    *options =
        (psctl_options){.coordinator = DEFAULT_COORDINATOR, .timeout_ms = DEFAULT_TIMEOUT_MS, .rank = -1};
    if (coordinator != NULL && coordinator[0] != '\0') {
        options->coordinator = coordinator; /* checked by whoever connects */
        options->coordinator_given = true;
    }
}

static const option_row *find(const char *name, size_t bytes)
{
    for (int i = 0; i < ROWS; i++) {
        if ((strlen(rows[i].name) == bytes && strncmp(rows[i].name, name, bytes) == 0) ||
            (rows[i].letter != NULL && bytes == 2 && strncmp(rows[i].letter, name, 2) == 0))
            return &rows[i];
    }
    return NULL;
}

static void complain_unknown(const char *argument, size_t bytes, const psctl_command *command)
{
    char name[64], echo[PSD_ECHO_BYTES];
    const char *names[ROWS + 2];
    int count = 0;
    snprintf(name, sizeof name, "%.*s", (int)(bytes < 63 ? bytes : 63), argument);
    for (int i = 0; i < ROWS; i++) {
        if (command == NULL || (command->options & rows[i].mask) != 0)
            names[count++] = rows[i].name;
    }
    names[count++] = "--help";
    names[count] = NULL;
    const char *near = psctl_text_nearest(name, names);
    char whose[64] = "psctl";
    char hint[64] = "";
    if (command != NULL)
        psd_append(whose, sizeof whose, " %s", command->name);
    if (near != NULL)
        snprintf(hint, sizeof hint, ", did you mean %s?", near);
    psctl_error("%s has no option %s%s (see: psctl help%s)", whose, psd_echo(name, echo, sizeof echo), hint,
                whose + strlen("psctl"));
}

/* The value of the option at argv[*index], which is left at the last argument used; false: it has none and
 * needs one. */
static bool take_value(const option_row *row, int argc, char **argv, int *index, const char *equals,
                       const char **value)
{
    *value = equals != NULL ? equals + 1 : NULL;
    if (row->arity == NO_VALUE)
        return equals == NULL;
    if (equals != NULL)
        return true;
    const char *following = *index + 1 < argc ? argv[*index + 1] : NULL;
    if (row->arity == MAY_HAVE_VALUE && (following == NULL || following[0] < '0' || following[0] > '9'))
        return true;
    if (following == NULL)
        return false;
    *value = following;
    (*index)++;
    return true;
}

static psctl_parsed parse_one(psctl_options *options, const psctl_command *command, int argc, char **argv,
                              int *index)
{
    const char *argument = argv[*index];
    const char *equals = strncmp(argument, "--", 2) == 0 ? strchr(argument, '=') : NULL;
    size_t bytes = equals != NULL ? (size_t)(equals - argument) : strlen(argument);
    const char *value;
    if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0)
        return PSCTL_PARSED_HELP;
    if (command == NULL && strcmp(argument, "--version") == 0)
        return PSCTL_PARSED_VERSION;
    const option_row *row = find(argument, bytes);
    if (row == NULL || (command != NULL && (command->options & row->mask) == 0)) {
        complain_unknown(argument, bytes, command);
        return PSCTL_PARSED_BAD;
    }
    if (!take_value(row, argc, argv, index, equals, &value)) {
        if (row->arity == NO_VALUE)
            psctl_error("%s takes no value", row->name);
        else
            psctl_error("%s needs a value: %s", row->name, row->want);
        return PSCTL_PARSED_BAD;
    }
    if (!row->set(options, value)) {
        char echo[PSD_ECHO_BYTES];
        psctl_error("%s is not a value for %s%s: give %s", psd_echo(value, echo, sizeof echo), row->name,
                    row->set == set_timeout && psd_number_is_huge(value) ? ", it is too large" : "",
                    row->want);
        return PSCTL_PARSED_BAD;
    }
    return PSCTL_PARSED;
}

psctl_parsed psctl_options_parse(psctl_options *options, const psctl_command *command, bool all, int argc,
                                 char **argv, int *index, int *positional)
{
    bool only_positional = false;
    int kept = 0;
    for (; *index < argc; (*index)++) {
        char *argument = argv[*index];
        if (!only_positional && strcmp(argument, "--") == 0) {
            only_positional = true;
        } else if (only_positional || argument[0] != '-' || argument[1] == '\0') {
            if (!all)
                break;
            argv[kept++] = argument;
        } else {
            psctl_parsed parsed = parse_one(options, command, argc, argv, index);
            if (parsed != PSCTL_PARSED)
                return parsed;
        }
    }
    *positional = kept;
    return PSCTL_PARSED;
}

void psctl_options_print(unsigned mask)
{
    for (int i = 0; i < ROWS; i++) {
        const option_row *row = &rows[i];
        char left[64] = "    ";
        if ((mask & row->mask) == 0)
            continue;
        if (row->letter != NULL)
            snprintf(left, sizeof left, "%s, ", row->letter);
        psd_append(left, sizeof left, "%s", row->name);
        if (row->arity == VALUE)
            psd_append(left, sizeof left, " %s", row->value);
        else if (row->arity == MAY_HAVE_VALUE)
            psd_append(left, sizeof left, " [%s]", row->value);
        printf("  %-28s %s\n", left, row->help);
    }
}
