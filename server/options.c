#include "server/options.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>

#include "common/conf.h"
#include "common/msg.h"

#define MIN_LEASE_MS 100
#define MAX_LEASE_MS INT64_C(86400000)

static const char help[] =
    "usage: psd [options]\n"
    "\n"
    "The psd coordinator: ranks, groups, plans and health of jobs. It never touches tensor bytes.\n"
    "\n"
    "  --listen tcp://HOST:PORT  where workers, psctl and psrun come (default tcp://127.0.0.1:5577;\n"
    "                            port 0: any free one, which is printed; HOST * is every interface)\n"
    "  --insecure                allow an address that other hosts can reach: anybody there can then\n"
    "                            join jobs\n"
    "  --state DIR               keep a journal there, so that jobs survive a restart of psd (default:\n"
    "                            none)\n"
    "  --lease TIME              silence after which a worker is lost (default 5s; also 250ms, 2m)\n"
    "  --heartbeat TIME          how often workers speak (default: a fifth of the lease)\n"
    "  --max-ranks N             ranks of all jobs together (default 1048576)\n"
    "  --max-jobs N              (default 1024)\n"
    "  --journal-events N        once no job is alive, a journal of more events is emptied, and ended jobs\n"
    "                            are forgotten (default 100000)\n"
    "  --memory-limit SIZE       of psd itself; over it, connections are closed and come back (default:\n"
    "                            half of the memory, at most 4G)\n"
    "  --ready-fd N              write the address in use, as a line, to descriptor N once psd can be\n"
    "                            reached\n"
    "  --version, --help\n"
    "\n"
    "PSD_DEBUG=info or trace says more. SIGTERM ends psd and tells every worker to stop; with --state\n"
    "the jobs go on until psd is back. A second signal ends it at once.\n"
    "Exit codes: 0 stopped, 1 failed, 2 usage.\n";

enum {
    OPT_LISTEN = 1,
    OPT_INSECURE,
    OPT_STATE,
    OPT_LEASE,
    OPT_HEARTBEAT,
    OPT_MAX_RANKS,
    OPT_MAX_JOBS,
    OPT_JOURNAL_EVENTS,
    OPT_MEMORY_LIMIT,
    OPT_READY_FD,
    OPT_VERSION,
    OPT_HELP,
};

static const struct option longopts[] = {
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"insecure", no_argument, NULL, OPT_INSECURE},
    {"state", required_argument, NULL, OPT_STATE},
    {"lease", required_argument, NULL, OPT_LEASE},
    {"heartbeat", required_argument, NULL, OPT_HEARTBEAT},
    {"max-ranks", required_argument, NULL, OPT_MAX_RANKS},
    {"max-jobs", required_argument, NULL, OPT_MAX_JOBS},
    {"journal-events", required_argument, NULL, OPT_JOURNAL_EVENTS},
    {"memory-limit", required_argument, NULL, OPT_MEMORY_LIMIT},
    {"ready-fd", required_argument, NULL, OPT_READY_FD},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static psd_options_result wrong(const char *option, const char *value, const char *wanted)
{
    char echo[PSD_ECHO_BYTES];
    fprintf(stderr, "psd: --%s \"%s\": %s\n", option, psd_echo(value, echo, sizeof(echo)), wanted);
    return PSD_OPTIONS_USAGE;
}

static psd_options_result parse_ready_fd(const char *value, psd_options *out)
{
    int64_t fd = 0;
    if (!psd_parse_i64(value, 0, INT32_MAX, &fd) || fcntl((int)fd, F_GETFD) < 0)
        return wrong("ready-fd", value, "must be an open file descriptor");
    out->ready_fd = (int)fd;
    return PSD_OPTIONS_RUN;
}

static psd_options_result parse_listen(const char *value, psd_options *out)
{
    char host[256];
    uint16_t port = 0;
    if (!psd_parse_endpoint(value, host, sizeof(host), &port))
        return wrong(
            "listen", value,
            "is not an address to listen on: write tcp://HOST:PORT, as in tcp://127.0.0.1:5577 (port 0: any "
            "free one)");
    out->listen = value;
    return PSD_OPTIONS_RUN;
}

static psd_options_result parse_time(const char *option, const char *value, int64_t min, int64_t *out)
{
    int64_t ms = 0;
    if (psd_number_is_huge(value))
        return wrong(option, value, "is too large: at most 24h");
    if (!psd_parse_ms(value, &ms) || ms < min || ms > MAX_LEASE_MS)
        return wrong(option, value,
                     "must be a time such as 5s or 250ms, not below 20ms (lease: 100ms), at most 24h");
    *out = ms;
    return PSD_OPTIONS_RUN;
}

static psd_options_result parse_count(const char *option, const char *value, int64_t max, int64_t *out)
{
    if (!psd_parse_i64(value, 1, max, out)) {
        char wanted[64];
        snprintf(wanted, sizeof(wanted), "must be a number from 1 to %lld", (long long)max);
        return wrong(option, value, wanted);
    }
    return PSD_OPTIONS_RUN;
}

static psd_options_result parse_one(int option, const char *value, psd_options *out)
{
    char text[PSD_ECHO_BYTES + 32];
    switch (option) {
    case OPT_LISTEN:
        return parse_listen(value, out);
    case OPT_INSECURE:
        out->insecure = true;
        return PSD_OPTIONS_RUN;
    case OPT_STATE:
        out->state = value;
        return value[0] == '\0' ? wrong("state", value, "must name a directory") : PSD_OPTIONS_RUN;
    case OPT_LEASE:
        return parse_time("lease", value, MIN_LEASE_MS, &out->lease_ms);
    case OPT_HEARTBEAT:
        return parse_time("heartbeat", value, 20, &out->heartbeat_ms);
    case OPT_MAX_RANKS:
        return parse_count("max-ranks", value, PSD_MAX_WORLD, &out->max_ranks);
    case OPT_MAX_JOBS:
        return parse_count("max-jobs", value, 1000000, &out->max_jobs);
    case OPT_JOURNAL_EVENTS:
        return parse_count("journal-events", value, INT32_MAX, &out->journal_events);
    case OPT_MEMORY_LIMIT:
        if (!psd_parse_bytes(value, &out->memory_limit) || out->memory_limit < (INT64_C(64) << 20))
            return wrong("memory-limit", value, "must be a size of at least 64M, such as 2G");
        return PSD_OPTIONS_RUN;
    case OPT_READY_FD:
        return parse_ready_fd(value, out);
    case OPT_VERSION:
        printf("psd %s (protocol %d)\n", PSD_VERSION, PSD_PROTOCOL_VERSION);
        return PSD_OPTIONS_DONE;
    case OPT_HELP:
        fputs(help, stdout);
        return PSD_OPTIONS_DONE;
    default:
        fprintf(stderr, "psd: %s; try psd --help\n",
                psd_option_error(option, optopt, value, text, sizeof(text)));
        return PSD_OPTIONS_USAGE;
    }
}

psd_options_result psd_options_parse(int argc, char **argv, psd_options *out)
{
    psd_options options = {.listen = "tcp://127.0.0.1:5577",
                           .lease_ms = 5000,
                           .max_ranks = PSD_MAX_WORLD,
                           .max_jobs = 1024,
                           .journal_events = 100000,
                           .ready_fd = -1};
    psd_options_result result = PSD_OPTIONS_RUN;
    int option = 0;
    opterr = 0;
    while (result == PSD_OPTIONS_RUN && (option = getopt_long(argc, argv, ":", longopts, NULL)) != -1)
        result = parse_one(option, option == '?' || option == ':' ? argv[optind - 1] : optarg, &options);
    if (result != PSD_OPTIONS_RUN)
        return result;
    if (optind < argc) {
        char echo[PSD_ECHO_BYTES];
        fprintf(stderr, "psd: \"%s\" is not an option; try psd --help\n",
                psd_echo(argv[optind], echo, sizeof(echo)));
        return PSD_OPTIONS_USAGE;
    }
    if (options.heartbeat_ms == 0)
        options.heartbeat_ms = options.lease_ms / 5;
    if (options.heartbeat_ms * 2 > options.lease_ms) {
        fprintf(stderr,
                "psd: --heartbeat must be at most half of --lease: one lost message must not end a worker\n");
        return PSD_OPTIONS_USAGE;
    }
    *out = options;
    return PSD_OPTIONS_RUN;
}

psd_core_config psd_options_core(const psd_options *options)
{
    return (psd_core_config){.lease_ms = (int32_t)options->lease_ms,
                             .heartbeat_ms = (int32_t)options->heartbeat_ms,
                             .max_ranks = (uint32_t)options->max_ranks,
                             .max_jobs = (uint32_t)options->max_jobs};
}
