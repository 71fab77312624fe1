/* Command line of psd-bench. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "worker/bench/bench.h"

static const char usage[] =
    "usage: psrun -n N [--standalone] -- psd-bench OPERATION [options]\n"
    "\n"
    "Times one operation of psd over a range of sizes, checks its results, and prints nccl-tests' columns.\n"
    "\n"
    "operations: ";

static const char options_help[] =
    "\n"
    "  -b, --min-bytes SIZE    smallest size (8); K, M and G are powers of 1024\n"
    "  -e, --max-bytes SIZE    largest size (32M)\n"
    "  -f, --factor N          from one size to the next (2)\n"
    "  -d, --dtype NAME        f32, f16, bf16, f64, i8, u8, i32, u32, i64, u64, ... (f32)\n"
    "  -o, --redop NAME        sum, prod, min, max, avg, band, bor, bxor (sum)\n"
    "  -r, --root RANK         (0)\n"
    "  -w, --warmup N          runs before the timed ones (5)\n"
    "  -i, --iterations N      timed repetitions; the median counts (as many as fit in about 0.2 s)\n"
    "      --buffer KIND       malloc, or psd: memory of psd_tensor_alloc (malloc)\n"
    "  -c, --check 0|1         compare the results (1)\n"
    "      --json              one object a line instead of the table\n"
    "      --check-options     only say what is wrong with the options, if anything\n"
    "      --help, --version\n"
    "\n"
    "exit: 0 fine, 1 wrong results or an error, 2 usage\n";

enum { OPT_BUFFER = 256, OPT_JSON, OPT_CHECK_OPTIONS, OPT_HELP, OPT_VERSION };

static const struct option long_options[] = {
    {"min-bytes", required_argument, NULL, 'b'},
    {"max-bytes", required_argument, NULL, 'e'},
    {"factor", required_argument, NULL, 'f'},
    {"dtype", required_argument, NULL, 'd'},
    {"redop", required_argument, NULL, 'o'},
    {"root", required_argument, NULL, 'r'},
    {"warmup", required_argument, NULL, 'w'},
    {"iterations", required_argument, NULL, 'i'},
    {"buffer", required_argument, NULL, OPT_BUFFER},
    {"check", required_argument, NULL, 'c'},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {"check-options", no_argument, NULL, OPT_CHECK_OPTIONS},
    {NULL, 0, NULL, 0},
};

/* Every rank has the same arguments; under a launcher one of them complains. */
static bool speaks(void)
{
    const char *rank = getenv("PSD_RANK") ? getenv("PSD_RANK") : getenv("RANK");
    return rank == NULL || strcmp(rank, "0") == 0;
}

static void print_help(void)
{
    fputs(usage, stdout);
    for (size_t i = 0; bench_op_at(i) != NULL; i++)
        printf("%s%s", i ? ", " : "", bench_op_at(i)->name);
    printf("\n%s", options_help);
}

static int usage_error(const char *what, const char *value, const char *expected)
{
    char echo[PSD_ECHO_BYTES];
    if (speaks())
        fprintf(stderr, "psd-bench: %s '%s': %s (psd-bench --help lists the options)\n", what,
                psd_echo(value, echo, sizeof echo), expected);
    return 2;
}

static bool parse_int32(const char *text, int64_t low, int32_t *out)
{
    int64_t value = 0;
    if (!psd_parse_i64(text, low, INT32_MAX, &value))
        return false;
    *out = (int32_t)value;
    return true;
}

/* 0 or 2, and the message is printed. */
static int parse_option(int option, const char *value, bench_args *args)
{
    switch (option) {
    case 'b':
        return psd_parse_bytes(value, &args->min_bytes)
                   ? 0
                   : usage_error("-b", value, "a size such as 8, 64K or 256M");
    case 'e':
        return psd_parse_bytes(value, &args->max_bytes)
                   ? 0
                   : usage_error("-e", value, "a size such as 8, 64K or 256M");
    case 'f':
        return psd_parse_i64(value, 2, INT32_MAX, &args->factor)
                   ? 0
                   : usage_error("-f", value, "a number from 2 up");
    case 'd':
        return psd_dtype_parse(value, &args->dtype) ? 0 : usage_error("-d", value, "not the name of a dtype");
    case 'o':
        return psd_redop_parse(value, &args->redop) ? 0
                                                    : usage_error("-o", value, "not the name of a reduction");
    case 'r':
        return parse_int32(value, 0, &args->root) ? 0 : usage_error("-r", value, "a rank, from 0 up");
    case 'w':
        return parse_int32(value, 0, &args->warmup) ? 0 : usage_error("-w", value, "a number from 0 up");
    case 'i':
        return parse_int32(value, 1, &args->repetitions) ? 0 : usage_error("-i", value, "a number from 1 up");
    case 'c':
        args->check = strcmp(value, "1") == 0;
        return args->check || strcmp(value, "0") == 0 ? 0 : usage_error("-c", value, "0 or 1");
    case OPT_BUFFER:
        args->use_pool = strcmp(value, "psd") == 0;
        return args->use_pool || strcmp(value, "malloc") == 0
                   ? 0
                   : usage_error("--buffer", value, "malloc or psd");
    default:
        args->json = true;
        return 0;
    }
}

static int check_together(const bench_args *args)
{
    if (args->op == NULL)
        return usage_error("operation", "", "missing: name one, such as all_reduce");
    if (args->min_bytes > args->max_bytes) {
        char least[32], most[32], expected[96];
        psd_format_bytes(args->min_bytes, least, sizeof least);
        psd_format_bytes(args->max_bytes, most, sizeof most);
        snprintf(expected, sizeof expected, "it is larger than -e, the largest size, which is %s", most);
        return usage_error("-b", least, expected);
    }
    if (args->op->reduces && !psd_redop_allowed(args->redop, args->dtype))
        return usage_error("-o", psd_redop_name(args->redop), "not defined for this dtype");
    return 0;
}

int bench_args_parse(int argc, char **argv, bench_args *out)
{
    bench_args args = {.min_bytes = 8,
                       .max_bytes = INT64_C(32) << 20,
                       .factor = 2,
                       .dtype = PSD_F32,
                       .redop = PSD_SUM,
                       .warmup = 5,
                       .check = true};
    bool only_check = false;
    int option, bad = 0;
    opterr = 0;
    while (bad == 0 && (option = getopt_long(argc, argv, ":b:e:f:d:o:r:w:i:c:h", long_options, NULL)) != -1) {
        if (option == OPT_HELP || option == 'h')
            return print_help(), 1;
        if (option == OPT_VERSION)
            return printf("psd-bench %s\n", psd_version()), 1;
        only_check = only_check || option == OPT_CHECK_OPTIONS;
        if (option == OPT_CHECK_OPTIONS)
            continue;
        if (option == '?')
            bad = usage_error("option", argv[optind - 1], "unknown");
        else if (option == ':')
            bad = usage_error("option", argv[optind - 1], "its value is missing");
        else
            bad = parse_option(option, optarg, &args);
    }
    for (; bad == 0 && optind < argc; optind++) {
        if (args.op != NULL)
            return usage_error("argument", argv[optind], "one operation at a time");
        args.op = bench_op_find(argv[optind]);
        if (args.op == NULL)
            return usage_error("operation", argv[optind], "not one of psd-bench's");
    }
    if (bad == 0)
        bad = check_together(&args);
    if (bad == 0)
        *out = args;
    return bad == 0 && only_check ? 1 : bad;
}
