#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/conf.h"
#include "server/psctl/psctl.h"

enum { PATH_BYTES = 4096, MOST_RANKS = 4096 };

static const char details[] =
    "Starts a private psd and the ranks with psrun --bind core, and runs psd-bench on them; both programs "
    "are looked\n"
    "for beside psctl. Prints the columns of nccl-tests; every result is checked.\n"
    "\n"
    "OP: all_reduce, broadcast, reduce, scatter, gather, all_gather, reduce_scatter, all_to_all, "
    "all_to_all_v,\n"
    "all_reduce_coalesced, send, sendrecv, batch, barrier\n"
    "\n"
    "Options:\n"
    "  -n, --ranks RANKS          how many ranks (2)\n"
    "  -b SIZE  -e SIZE           smallest and largest size (8, 32M), as in 8, 64K, 256M\n"
    "  -f FACTOR                  from one size to the next (2)\n"
    "  -w COUNT  -i COUNT         operations to warm up with, and to measure\n"
    "  -d, --dtype TYPE           as in f32\n"
    "  -o, --redop OPERATION      as in sum\n"
    "      --buffer malloc|psd    where the tensors lie\n"
    "      --check 0|1            compare the results (1)\n"
    "      --json                 one object a line\n"
    "Options that are not listed here go to psd-bench as they are.\n";

/* The program `name` in psctl's own directory. */
static bool beside(const char *name, char *path, size_t path_bytes)
{
    ssize_t bytes = readlink("/proc/self/exe", path, path_bytes - 1);
    if (bytes < 0) {
        psctl_error("cannot tell where psctl itself is: /proc/self/exe: %s", strerror(errno));
        return false;
    }
    path[bytes] = '\0';
    char *slash = strrchr(path, '/');
    size_t directory = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    if (directory + strlen(name) >= path_bytes) {
        psctl_error("the path of psctl's directory is too long");
        return false;
    }
    memcpy(path + directory, name, strlen(name) + 1);
    if (access(path, X_OK) != 0) {
        psctl_error("%s: %s; it belongs beside psctl: build it with `make` or install psd again", path,
                    strerror(errno));
        return false;
    }
    return true;
}

/* Takes -n RANKS, -nRANKS or --ranks RANKS out of argv; false after telling why not. */
static bool take_ranks(int *argc, char **argv, char *ranks, size_t ranks_bytes)
{
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        const char *value = NULL;
        int64_t number;
        if (strcmp(argv[i], "-n") == 0 || strcmp(argv[i], "--ranks") == 0)
            value = i + 1 < *argc ? argv[++i] : "";
        else if (strncmp(argv[i], "--ranks=", 8) == 0)
            value = argv[i] + 8;
        else if (strncmp(argv[i], "-n", 2) == 0)
            value = argv[i] + 2;
        if (value == NULL) {
            argv[kept++] = argv[i];
            continue;
        }
        if (!psd_parse_i64(value, 1, MOST_RANKS, &number)) {
            char echo[PSD_ECHO_BYTES];
            psctl_error("-n needs a number of ranks from 1 to %d, not '%s'", MOST_RANKS,
                        psd_echo(value, echo, sizeof echo));
            return false;
        }
        snprintf(ranks, ranks_bytes, "%d", (int)number);
    }
    *argc = kept;
    return true;
}

/* Asks psd-bench before ranks are started, so that what is wrong is said, and once: psrun ends the ranks as soon as
 * one has found it. `line` has room for the arguments and two more. */
static bool check_options(char *bench, int argc, char **argv, char **line)
{
    static char check[] = "--check-options";
    int status = 0;
    line[0] = bench;
    line[1] = check;
    memcpy(line + 2, argv, (size_t)argc * sizeof *argv);
    line[argc + 2] = NULL;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("PSD_RANK"); /* other ranks than 0 do not speak */
        unsetenv("RANK");
        execv(bench, line);
        psctl_error("cannot start %s: %s", bench, strerror(errno));
        _exit(PSCTL_FAILED);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        psctl_error("cannot start %s: %s", bench, strerror(errno));
        return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    char psrun[PATH_BYTES];
    char bench[PATH_BYTES];
    char ranks[16] = "2";
    (void)options;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            psctl_help_command(&psctl_bench);
            return PSCTL_FINE;
        }
    }
    if (!take_ranks(&argc, argv, ranks, sizeof ranks))
        return PSCTL_USAGE;
    if (argc == 0 || argv[0][0] == '-') {
        psctl_error("which operation? as in: psctl bench all_reduce -n 2 (see: psctl help bench)");
        return PSCTL_USAGE;
    }
    if (!beside("psrun", psrun, sizeof psrun) || !beside("psd-bench", bench, sizeof bench))
        return PSCTL_FAILED;
    char **line = calloc((size_t)argc + 16, sizeof *line);
    if (line == NULL) {
        psctl_error("out of memory");
        return PSCTL_FAILED;
    }
    if (!check_options(bench, argc, argv, line)) {
        free(line);
        return PSCTL_USAGE;
    }
    char *head[] = {psrun,
                    (char[]){"--standalone"},
                    (char[]){"--no-prefix"},
                    (char[]){"--bind"},
                    (char[]){"core"},
                    (char[]){"-n"},
                    ranks,
                    (char[]){"--"},
                    bench};
    memcpy(line, head, sizeof head);
    memcpy(line + sizeof head / sizeof head[0], argv, (size_t)argc * sizeof *argv);
    line[sizeof head / sizeof head[0] + (size_t)argc] = NULL;
    fflush(stdout);
    execv(psrun, line);
    psctl_error("cannot start %s: %s", psrun, strerror(errno));
    free(line);
    return PSCTL_FAILED;
}

const psctl_command psctl_bench = {
    .name = "bench",
    .arguments = "OP [-n RANKS] [-b SIZE] [-e SIZE] [-f FACTOR] [options]",
    .summary = "measure an operation between ranks on this machine",
    .details = details,
    .raw = true,
    .run = run,
};
