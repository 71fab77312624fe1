/* psworker: joins a job and serves tables. See psworker(1). */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"
#include "worker/psd.h"
#include "worker/serve.h"

enum {
    EXIT_FINE = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_NO_COORDINATOR = 3,
    EXIT_NO_BACKEND = 4,
    EXIT_SIGNALLED = 128, /* plus the signal's number: told to end before it had joined */
};

static volatile sig_atomic_t stop;
static volatile sig_atomic_t is_serving;

/* Before it has joined there is nothing to leave: psd sees the connection end. An own handler also because
 * the kernel ignores a signal's default action in process 1 of a container. */
static void on_signal(int number)
{
    static const char text[] = "psworker: told to end before it had joined\n";
    if (!is_serving) {
        ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
        (void)written;
        _exit(EXIT_SIGNALLED + number);
    }
    stop = 1;
}

static int catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask);
    sigemptyset(&ignore.sa_mask);
    if (sigaction(SIGTERM, &action, NULL) != 0 || sigaction(SIGINT, &action, NULL) != 0 ||
        sigaction(SIGPIPE, &ignore, NULL) != 0) {
        perror("psworker: sigaction");
        return -1;
    }
    return 0;
}

static void print_help(void)
{
    puts("psworker: joins a job and holds shards of its tables until the job ends.\n"
         "\n"
         "usage: psworker --role server [options]\n"
         "\n"
         "  --role ROLE          what this worker does: server (holds tables)\n"
         "  --coordinator ADDR   where psd is; default PSD_COORDINATOR, else tcp://MASTER_ADDR:MASTER_PORT,\n"
         "                       else tcp://127.0.0.1:5577\n"
         "  --job NAME           the job to join; default PSD_JOB, else default\n"
         "  --name NAME          this worker's name; one that comes back gets its rank back\n"
         "  --rank N             the rank to claim; default PSD_RANK or RANK, else psd chooses\n"
         "  --world-size N       ranks of the job; default PSD_WORLD_SIZE or WORLD_SIZE, else 1\n"
         "  --backend NAME       auto, host, nccl or mpi; default PSD_BACKEND, else auto\n"
         "  --join-timeout TIME  how long to wait for the whole world: 60s, 2m, 500ms\n"
         "  --timeout TIME       an operation's own deadline\n"
         "  --pool-limit SIZE    most memory for shards: 512M, 4G; default half of the machine's\n"
         "  --help, --version\n"
         "\n"
         "exit status: 0 the job ended or SIGTERM came, 1 failed, 2 usage, 3 psd cannot be reached,\n"
         "4 the backend is not installed or cannot run here");
}

typedef enum option_id {
    OPT_ROLE = 1,
    OPT_COORDINATOR,
    OPT_JOB,
    OPT_NAME,
    OPT_RANK,
    OPT_WORLD_SIZE,
    OPT_BACKEND,
    OPT_JOIN_TIMEOUT,
    OPT_TIMEOUT,
    OPT_POOL_LIMIT,
    OPT_HELP,
    OPT_VERSION,
} option_id;

static const struct option options[] = {
    {"role", required_argument, NULL, OPT_ROLE},
    {"coordinator", required_argument, NULL, OPT_COORDINATOR},
    {"job", required_argument, NULL, OPT_JOB},
    {"name", required_argument, NULL, OPT_NAME},
    {"rank", required_argument, NULL, OPT_RANK},
    {"world-size", required_argument, NULL, OPT_WORLD_SIZE},
    {"backend", required_argument, NULL, OPT_BACKEND},
    {"join-timeout", required_argument, NULL, OPT_JOIN_TIMEOUT},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"pool-limit", required_argument, NULL, OPT_POOL_LIMIT},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static bool parse_i32(const char *text, int64_t min, int32_t *out)
{
    int64_t value = 0;
    if (!psd_parse_i64(text, min, INT32_MAX, &value))
        return false;
    *out = (int32_t)value;
    return true;
}

/* False when the option's value is not valid. */
static bool take_option(int option, const char *value, psd_config *config)
{
    switch (option) {
    case OPT_ROLE:
        config->role = value;
        return true;
    case OPT_COORDINATOR:
        config->coordinator = value;
        return true;
    case OPT_JOB:
        config->job = value;
        return true;
    case OPT_NAME:
        config->name = value;
        return true;
    case OPT_BACKEND:
        config->backend = value;
        return true;
    case OPT_RANK:
        return parse_i32(value, 0, &config->rank);
    case OPT_WORLD_SIZE:
        return parse_i32(value, 1, &config->world_size);
    case OPT_JOIN_TIMEOUT:
        return psd_parse_ms(value, &config->join_timeout_ms);
    case OPT_TIMEOUT:
        return psd_parse_ms(value, &config->timeout_ms);
    default:
        return psd_parse_bytes(value, &config->pool_limit);
    }
}

/* An exit status, or -1 to go on. */
static int parse_arguments(int argc, char **argv, psd_config *config)
{
    char echo[PSD_ECHO_BYTES];
    int option;
    int index = 0;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":", options, &index)) != -1) {
        if (option == OPT_HELP) {
            print_help();
            return EXIT_FINE;
        }
        if (option == OPT_VERSION) {
            printf("psworker %s\n", psd_version());
            return EXIT_FINE;
        }
        if (option == '?' || option == ':') {
            char text[PSD_ECHO_BYTES + 32];
            fprintf(stderr, "psworker: %s; psworker --help lists the options\n",
                    psd_option_error(option, optopt, argv[optind - 1], text, sizeof text));
            return EXIT_USAGE;
        }
        if (!take_option(option, optarg, config)) {
            fprintf(stderr, "psworker: --%s %s is %s; psworker --help shows what is valid\n",
                    options[index].name, psd_echo(optarg, echo, sizeof echo),
                    psd_number_is_huge(optarg) ? "too large" : "not valid");
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "psworker: unexpected argument %s; psworker --help lists the options\n",
                psd_echo(argv[optind], echo, sizeof echo));
        return EXIT_USAGE;
    }
    const char *role = config->role != NULL ? config->role : getenv("PSD_ROLE");
    if (role == NULL || strcmp(role, "server") != 0) {
        fprintf(stderr, "psworker: role is %s; say --role server, the role that holds tables\n",
                role != NULL ? psd_echo(role, echo, sizeof echo) : "not given");
        return EXIT_USAGE;
    }
    return -1;
}

static int exit_status(psd_status status)
{
    switch (status) {
    case PSD_ERR_NO_COORDINATOR:
        return EXIT_NO_COORDINATOR;
    case PSD_ERR_BACKEND:
        return EXIT_NO_BACKEND;
    default:
        return EXIT_FAILED;
    }
}

int main(int argc, char **argv)
{
    psd_config config;
    psd_ctx *ctx = NULL;
    psd_config_init(&config);
    int code = parse_arguments(argc, argv, &config);
    if (code >= 0)
        return code;
    if (catch_signals() != 0)
        return EXIT_FAILED;
    psd_status status = psd_init(&config, &ctx);
    if (status != PSD_OK) {
        fprintf(stderr, "psworker: %s\n", psd_last_error());
        return exit_status(status);
    }
    is_serving = 1;
    status = psd_serve_until(PSD_HERE, ctx, &stop);
    if (status != PSD_OK)
        fprintf(stderr, "psworker: rank %d: %s\n", psd_rank(ctx), psd_last_error());
    /* A group that broke because others failed is theirs: this rank served to the end. */
    if (psd_finalize(&ctx) != PSD_OK && status == PSD_OK && !stop)
        fprintf(stderr, "psworker: %s\n", psd_last_error());
    return status == PSD_OK ? EXIT_FINE : EXIT_FAILED;
}
