/* compare's command line. */
#include <getopt.h>
#include <string.h>

#include "common/conf.h"
#include "tests/bench/compare.h"

static const char help[] =
    "usage: compare [options]        (make bench calls it, by tests/bench/run.sh)\n"
    "\n"
    "  -n, --ranks N          ranks of each system (2)\n"
    "      --systems LIST     psd, psd-record-off, openmpi, openmpi-tuned, openmpi-ring, gloo\n"
    "                         (psd,openmpi,openmpi-tuned,openmpi-ring,gloo)\n"
    "      --ops LIST         operations (all)\n"
    "      --sizes LIST       bytes (4,4K,64K,256K,4M,64M)\n"
    "      --rounds N         that count, for each case; at least 7 for a table that is shown (7)\n"
    "      --turn MS          how long each system runs in a round, about (5)\n"
    "      --own-only         only psd's own memory, and in place where that is possible\n"
    "      --summary          only the table of sizes by operations\n"
    "      --difference       what the second system takes off the first\n"
    "      --limits           one line with what the machine allows now, and nothing else\n";

static const char *const kinds[BENCH_KINDS] = {"all_reduce", "broadcast",  "reduce", "reduce_scatter",
                                               "all_gather", "all_to_all", "gather", "scatter",
                                               "ping_pong",  "barrier"};

const char *compare_kind_name(bench_kind kind)
{
    return kinds[kind];
}

static bool parse_kinds(const char *text, uint32_t *out)
{
    uint32_t found = 0;
    while (*text != '\0') {
        size_t length = strcspn(text, ",");
        int kind = 0;
        while (kind < BENCH_KINDS &&
               (strlen(kinds[kind]) != length || strncmp(kinds[kind], text, length) != 0))
            kind++;
        if (kind == BENCH_KINDS)
            return false;
        found |= UINT32_C(1) << kind;
        text += length;
        text += *text == ',';
    }
    *out = found;
    return found != 0;
}

static bool parse_one(int option, const char *value, compare_args *args)
{
    int64_t number = 0;
    switch (option) {
    case 'n':
        if (!psd_parse_i64(value, 1, COMPARE_MAX_RANKS, &number))
            return false;
        args->ranks = (int)number;
        return true;
    case 's':
        snprintf(args->systems, sizeof args->systems, "%s", value);
        return strlen(value) < sizeof args->systems;
    case 'o':
        return parse_kinds(value, &args->kinds);
    case 'z':
        args->size_count = bench_parse_sizes(value, args->sizes, COMPARE_MAX_SIZES);
        return args->size_count > 0;
    case 'r':
        if (!psd_parse_i64(value, 1, COMPARE_MAX_ROUNDS, &number))
            return false;
        args->rounds = (int)number;
        return true;
    case 't':
        if (!psd_parse_i64(value, 1, 10000, &number))
            return false;
        args->turn_ns = (double)number * 1e6;
        return true;
    case 'O':
        args->only_own = true;
        return true;
    case 'L':
        args->only_limits = true;
        return true;
    case 'S':
        args->summary = true;
        return true;
    default:
        args->difference = true;
        return true;
    }
}

int compare_args_parse(int argc, char **argv, compare_args *out)
{
    static const struct option options[] = {
        {"ranks", required_argument, NULL, 'n'},  {"systems", required_argument, NULL, 's'},
        {"ops", required_argument, NULL, 'o'},    {"sizes", required_argument, NULL, 'z'},
        {"rounds", required_argument, NULL, 'r'}, {"turn", required_argument, NULL, 't'},
        {"own-only", no_argument, NULL, 'O'},     {"summary", no_argument, NULL, 'S'},
        {"difference", no_argument, NULL, 'D'},   {"limits", no_argument, NULL, 'L'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    compare_args args = {.ranks = 2,
                         .systems = "psd,openmpi,openmpi-tuned,openmpi-ring,gloo",
                         .kinds = (UINT32_C(1) << BENCH_KINDS) - 1,
                         .sizes = {4, 4 << 10, 64 << 10, 256 << 10, 4 << 20, 64 << 20},
                         .size_count = 6,
                         .rounds = 7,
                         .turn_ns = 5e6};
    int option;
    while ((option = getopt_long(argc, argv, "n:h", options, NULL)) != -1) {
        if (option == 'h')
            return fputs(help, stdout), 1;
        if (option == '?' || !parse_one(option, optarg, &args)) {
            fprintf(stderr, "compare: wrong option or value: '%s' (compare --help)\n", argv[optind - 1]);
            return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "compare: '%s': no arguments are expected\n", argv[optind]);
        return 2;
    }
    *out = args;
    return 0;
}
