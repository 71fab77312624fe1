#include "worker/launch/args.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/psd_types.h"

static const char help[] =
    "usage: psrun [options] [-n N] [--role R] -- program [args] [: [-n N] [--role R] -- program [args]]...\n"
    "\n"
    "Starts the N ranks of a job and waits for them. Several programs of one job are joined by \":\",\n"
    "as with mpirun; their ranks follow one another.\n"
    "\n"
    "  -n N                      ranks of the program that follows (default 1, together at most 4096)\n"
    "  --role R                  PSD_ROLE of these ranks (default worker)\n"
    "  --standalone              start a psd of its own for this job, on a free port of this host, and\n"
    "                            end it after\n"
    "  --coordinator tcp://H:P   the psd to use (default: PSD_COORDINATOR, else tcp://127.0.0.1:5577)\n"
    "  --job NAME                (default: PSD_JOB, else default)\n"
    "  --timeout TIME            end the job, with exit code 124, if it runs longer (10s, 5m, 2h)\n"
    "  --hosts A,B,...           deal the ranks over these hosts in blocks and start them by --rsh\n"
    "  --rsh TEMPLATE            (default \"ssh {host} {command}\"; {command} is one argument, for a\n"
    "                            shell)\n"
    "  --bind core|none          core: each rank gets cores of its own, if there are as many as ranks, and\n"
    "                            psrun says which: lower latency, but two jobs then share cores\n"
    "                            (default none: the kernel chooses)\n"
    "  --tag-output              \"[rank] \" before each line of output (the default)\n"
    "  --no-prefix               the lines as they are\n"
    "  --version, --help\n"
    "\n"
    "Each rank gets PSD_COORDINATOR, PSD_JOB, PSD_ROLE, PSD_RANK, PSD_WORLD_SIZE, PSD_LOCAL_RANK, RANK,\n"
    "LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (psd's address), and\n"
    "/dev/null as input. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on. When a rank fails\n"
    "the others are ended: SIGTERM, and after 5 s SIGKILL. Exit code: that of the first rank that\n"
    "failed (128 + signal), 0 if none did, 2 usage, 124 timeout, 126 or 127 the program cannot be run\n"
    "or is not there.\n";

enum {
    OPT_ROLE = 1,
    OPT_STANDALONE,
    OPT_COORDINATOR,
    OPT_JOB,
    OPT_TIMEOUT,
    OPT_HOSTS,
    OPT_RSH,
    OPT_BIND,
    OPT_TAG,
    OPT_NO_PREFIX,
    OPT_VERSION,
    OPT_HELP,
};

static const struct option longopts[] = {
    {"np", required_argument, NULL, 'n'},
    {"role", required_argument, NULL, OPT_ROLE},
    {"standalone", no_argument, NULL, OPT_STANDALONE},
    {"coordinator", required_argument, NULL, OPT_COORDINATOR},
    {"job", required_argument, NULL, OPT_JOB},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"hosts", required_argument, NULL, OPT_HOSTS},
    {"rsh", required_argument, NULL, OPT_RSH},
    {"bind", required_argument, NULL, OPT_BIND},
    {"tag-output", no_argument, NULL, OPT_TAG},
    {"no-prefix", no_argument, NULL, OPT_NO_PREFIX},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static psd_launch_result wrong(const char *option, const char *value, const char *wanted)
{
    char echo[PSD_ECHO_BYTES];
    fprintf(stderr, "psrun: %s \"%s\": %s\n", option, psd_echo(value, echo, sizeof(echo)), wanted);
    return PSD_LAUNCH_USAGE;
}

static psd_launch_result parse_ranks(const char *value, int32_t *out)
{
    int64_t ranks = 0;
    if (!psd_parse_i64(value, 1, PSD_LAUNCH_MAX_RANKS, &ranks))
        return wrong("-n", value, "must be a number of ranks from 1 to 4096");
    *out = (int32_t)ranks;
    return PSD_LAUNCH_RUN;
}

static bool host_valid(const char *host)
{
    /* No leading "-": a remote shell would take it for an option. */
    return host[0] != '\0' && host[0] != '-' &&
           strspn(host, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-@:[]%") ==
               strlen(host);
}

static psd_launch_result parse_hosts(const char *value, psd_launch_args *args)
{
    char *rest = NULL;
    free(args->host_text);
    args->host_count = 0;
    args->host_text = strdup(value);
    if (args->host_text == NULL)
        return wrong("--hosts", value, "out of memory");
    for (char *host = strtok_r(args->host_text, ",", &rest); host != NULL;
         host = strtok_r(NULL, ",", &rest)) {
        if (!host_valid(host))
            return wrong("--hosts", host, "is not a host name");
        if (args->host_count == PSD_LAUNCH_MAX_HOSTS)
            return wrong("--hosts", host, "is one host too many: at most 1024");
        args->hosts[args->host_count++] = host;
    }
    return args->host_count == 0 ? wrong("--hosts", value, "names no host") : PSD_LAUNCH_RUN;
}

static psd_launch_result parse_coordinator(const char *option, const char *value, psd_launch_args *args)
{
    char host[256];
    uint16_t port = 0;
    if (!psd_parse_endpoint(value, host, sizeof(host), &port) || port == 0 || strcmp(host, "*") == 0)
        return wrong(option, value, "must be an address such as tcp://127.0.0.1:5577");
    args->coordinator = value;
    return PSD_LAUNCH_RUN;
}

/* Without {host} every rank would run on one host; with {command} twice each would run twice. */
static psd_launch_result parse_rsh(const char *value, psd_launch_args *args)
{
    const char *command = strstr(value, "{command}");
    if (command == NULL || strstr(command + 1, "{command}") != NULL)
        return wrong("--rsh", value, "must contain {command} once, as in \"ssh {host} {command}\"");
    if (strstr(value, "{host}") == NULL)
        return wrong("--rsh", value, "must contain {host}, as in \"ssh {host} {command}\"");
    args->rsh = value;
    return PSD_LAUNCH_RUN;
}

static psd_launch_result parse_bind(const char *value, psd_launch_args *args)
{
    args->bind = strcmp(value, "core") == 0;
    return args->bind || strcmp(value, "none") == 0 ? PSD_LAUNCH_RUN
                                                    : wrong("--bind", value, "must be core or none");
}

/* Options that concern the whole job: only before the first program. */
static psd_launch_result parse_job_option(int option, const char *value, psd_launch_args *args)
{
    char text[PSD_ECHO_BYTES + 32];
    switch (option) {
    case OPT_STANDALONE:
        args->standalone = true;
        return PSD_LAUNCH_RUN;
    case OPT_COORDINATOR:
        return parse_coordinator("--coordinator", value, args);
    case OPT_JOB:
        args->job = value;
        return PSD_LAUNCH_RUN;
    case OPT_TIMEOUT:
        if (!psd_parse_ms(value, &args->timeout_ms) || args->timeout_ms < 1)
            return wrong("--timeout", value,
                         psd_number_is_huge(value) ? "is too large" : "must be a time such as 30s or 5m");
        return PSD_LAUNCH_RUN;
    case OPT_HOSTS:
        return parse_hosts(value, args);
    case OPT_RSH:
        return parse_rsh(value, args);
    case OPT_BIND:
        return parse_bind(value, args);
    case OPT_TAG:
        args->prefix = true;
        return PSD_LAUNCH_RUN;
    case OPT_NO_PREFIX:
        args->prefix = false;
        return PSD_LAUNCH_RUN;
    case OPT_VERSION:
        printf("psrun %s\n", PSD_VERSION);
        return PSD_LAUNCH_DONE;
    case OPT_HELP:
        fputs(help, stdout);
        return PSD_LAUNCH_DONE;
    default:
        fprintf(stderr, "psrun: %s; try psrun --help\n",
                psd_option_error(option, optopt, value, text, sizeof(text)));
        return PSD_LAUNCH_USAGE;
    }
}

static psd_launch_result parse_option(int option, const char *value, psd_launch_args *args,
                                      psd_launch_app *app)
{
    if (option == 'n')
        return parse_ranks(value, &app->ranks);
    if (option == OPT_ROLE) {
        app->role = value;
        return psd_name_valid(value) ? PSD_LAUNCH_RUN
                                     : wrong("--role", value, "must be 1 to 63 of A-Z a-z 0-9 . _ -");
    }
    if (args->app_count > 0 && option != '?' && option != ':') {
        fputs("psrun: after \":\" only -n and --role are allowed; all other options come before the first "
              "program\n",
              stderr);
        return PSD_LAUNCH_USAGE;
    }
    return parse_job_option(option, value, args);
}

/* One program's part of the command line: argv[0] is psrun or the ":" before it. Sets *used to its length. */
static psd_launch_result parse_app(int argc, char **argv, psd_launch_args *args, int *used)
{
    psd_launch_app app = {.ranks = 1};
    psd_launch_result result = PSD_LAUNCH_RUN;
    int option = 0;
    int end = 1;
    optind = 0; /* begins anew */
    opterr = 0;
    while (result == PSD_LAUNCH_RUN && (option = getopt_long(argc, argv, "+:n:", longopts, NULL)) != -1)
        result = parse_option(option, option == '?' || option == ':' ? argv[optind - 1] : optarg, args, &app);
    if (result != PSD_LAUNCH_RUN)
        return result;
    if (strcmp(argv[optind - 1], "--") != 0 || optind < 2) {
        char echo[PSD_ECHO_BYTES];
        if (optind < argc)
            fprintf(
                stderr,
                "psrun: \"%s\" is not an option: write -- before the program, as in psrun -n 4 -- ./train\n",
                psd_echo(argv[optind], echo, sizeof(echo)));
        else
            fputs("psrun: no program given, as in psrun -n 4 -- ./train; try psrun --help\n", stderr);
        return PSD_LAUNCH_USAGE;
    }
    for (end = optind; end < argc && strcmp(argv[end], ":") != 0; end++)
        continue;
    if (end == optind || argv[optind][0] == '\0') {
        fputs("psrun: no program given after --\n", stderr);
        return PSD_LAUNCH_USAGE;
    }
    app.argv = &argv[optind];
    args->apps[args->app_count++] = app;
    args->world += app.ranks;
    argv[0] = NULL; /* also the end of the program before */
    *used = end;
    return PSD_LAUNCH_RUN;
}

static psd_launch_result check(psd_launch_args *args, bool rsh_given)
{
    const char *job = getenv("PSD_JOB");
    const char *coordinator = getenv("PSD_COORDINATOR");
    if (args->world > PSD_LAUNCH_MAX_RANKS) {
        fprintf(stderr, "psrun: %d ranks in all: one psrun starts at most %d\n", args->world,
                PSD_LAUNCH_MAX_RANKS);
        return PSD_LAUNCH_USAGE;
    }
    if (args->standalone && args->coordinator != NULL) {
        fputs("psrun: --standalone starts a psd of its own: leave out --coordinator\n", stderr);
        return PSD_LAUNCH_USAGE;
    }
    if (rsh_given && args->host_count == 0) {
        fputs("psrun: --rsh is for --hosts, which is missing\n", stderr);
        return PSD_LAUNCH_USAGE;
    }
    if (args->bind && args->host_count > 0) {
        fputs("psrun: --bind is for ranks on this host: leave out --hosts\n", stderr);
        return PSD_LAUNCH_USAGE;
    }
    if (args->host_count > args->world) {
        fprintf(stderr, "psrun: %d hosts for %d ranks: name fewer hosts or ask for more ranks\n",
                args->host_count, args->world);
        return PSD_LAUNCH_USAGE;
    }
    if (args->job == NULL)
        args->job = job != NULL && job[0] != '\0' ? job : "default";
    if (!psd_name_valid(args->job))
        return wrong("--job", args->job, "must be 1 to 63 of A-Z a-z 0-9 . _ -");
    if (args->standalone || args->coordinator != NULL)
        return PSD_LAUNCH_RUN;
    if (coordinator != NULL && coordinator[0] != '\0')
        return parse_coordinator("PSD_COORDINATOR", coordinator, args);
    args->coordinator = "tcp://127.0.0.1:5577";
    return PSD_LAUNCH_RUN;
}

psd_launch_result psd_launch_parse(int argc, char **argv, psd_launch_args *out)
{
    psd_launch_args args = {.timeout_ms = -1, .prefix = true};
    psd_launch_result result = PSD_LAUNCH_RUN;
    int at = 0;
    do {
        int used = 0;
        if (args.app_count == PSD_LAUNCH_MAX_APPS) {
            fprintf(stderr, "psrun: at most %d programs\n", PSD_LAUNCH_MAX_APPS);
            result = PSD_LAUNCH_USAGE;
            break;
        }
        result = parse_app(argc - at, argv + at, &args, &used);
        at += used;
        if (result == PSD_LAUNCH_RUN && at < argc)
            argv[at] = NULL; /* was ":" */
        if (result == PSD_LAUNCH_RUN && at + 1 == argc) {
            fputs("psrun: no program given after \":\"\n", stderr);
            result = PSD_LAUNCH_USAGE;
        }
    } while (result == PSD_LAUNCH_RUN && at < argc);
    bool rsh_given = args.rsh != NULL;
    if (!rsh_given)
        args.rsh = "ssh {host} {command}";
    if (result == PSD_LAUNCH_RUN)
        result = check(&args, rsh_given);
    if (result == PSD_LAUNCH_RUN)
        *out = args;
    else
        psd_launch_args_free(&args);
    return result;
}

void psd_launch_args_free(psd_launch_args *args)
{
    free(args->host_text);
    args->host_text = NULL;
}
