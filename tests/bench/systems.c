/* Starting the systems and giving them orders. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/bench/compare.h"

#define START_MS  30000
#define ANSWER_MS 60000
#define STOP_MS   10000
#define WORDS     40

typedef enum launcher {
    BY_PSRUN,
    BY_MPIRUN,
    BY_ITSELF, /* this program starts the ranks; they meet in a directory */
} launcher;

typedef struct recipe {
    const char *name;
    const char *shown;
    launcher launcher;
    const char *const *options; /* of mpirun */
    const char *variable;       /* NAME=value in the ranks' environment; NULL */
    const char *huge;           /* BENCH_ENV_HUGE */
    uint32_t kinds;             /* of operations that it is for; bits */
} recipe;

/* OpenMPI's large collectives take a temporary buffer each call: malloc is kept from mapping it anew, and huge pages
 * make its single copy (CMA) fast. The ring is its best all_reduce of large buffers here. */
#define TUNED                                                                                                \
    "-x", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1", "-x", "MALLOC_MMAP_MAX_=0", "-x",                         \
        "MALLOC_TRIM_THRESHOLD_=100000000000", "-x", "MALLOC_TOP_PAD_=300000000"

static const char *const plain[] = {NULL};
static const char *const tuned[] = {TUNED, NULL};
static const char *const ring[] = {TUNED, "--mca", "coll_tuned_use_dynamic_rules",
                                   "1",   "--mca", "coll_tuned_allreduce_algorithm",
                                   "5",   NULL};

#define ALL_KINDS UINT32_MAX
static const recipe recipes[] = {
    {"psd", "psd", BY_PSRUN, NULL, NULL, "0", ALL_KINDS},
    {"psd-record-off", "psd, PSD_RECORD=off", BY_PSRUN, NULL, "PSD_RECORD=off", "0", ALL_KINDS},
    {"openmpi", "OpenMPI", BY_MPIRUN, plain, NULL, "0", ALL_KINDS},
    {"openmpi-tuned", "OpenMPI tuned", BY_MPIRUN, tuned, NULL, "1", ALL_KINDS},
    {"openmpi-ring", "OpenMPI ring", BY_MPIRUN, ring, NULL, "1", UINT32_C(1) << BENCH_ALL_REDUCE},
    {"gloo", "Gloo", BY_ITSELF, NULL, NULL, "0", ALL_KINDS},
};
#define RECIPES (sizeof recipes / sizeof *recipes)

static const char *program(launcher by)
{
    return by == BY_PSRUN ? "rank_psd" : by == BY_MPIRUN ? "rank_mpi" : "rank_gloo";
}

static bool find_programs(char *directory, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", directory, bytes - 1);
    if (length <= 0)
        return false;
    directory[length] = '\0';
    *strrchr(directory, '/') = '\0';
    return true;
}

/* ------------------------------------------------------------------------------------------------- start */

static void set_number(const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 1);
}

static int64_t buffer_bytes(const compare_args *args)
{
    int64_t most = 4096;
    for (int i = 0; i < args->size_count; i++)
        most = args->sizes[i] > most ? args->sizes[i] : most;
    return most;
}

/* In the child: what the ranks read. mpirun hands its own environment to ranks of this host. */
static void set_environment(const compare_args *args, const compare_systems *systems,
                            const compare_system *system, const recipe *r)
{
    setenv(BENCH_ENV_SOCKET, systems->socket, 1);
    setenv(BENCH_ENV_HUGE, r->huge, 1);
    setenv(BENCH_ENV_STORE, system->store, 1);
    set_number(BENCH_ENV_SYSTEM, system->serial);
    set_number(BENCH_ENV_BYTES, buffer_bytes(args));
    set_number(BENCH_ENV_RANKS, args->ranks);
    /* Gloo's threads sleep, and wake one another wherever there is a core. */
    set_number(BENCH_ENV_PIN, r->launcher != BY_ITSELF && args->ranks <= sysconf(_SC_NPROCESSORS_ONLN));
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_oob_tcp_if_include", "lo", 1);
    setenv("GLOO_SOCKET_IFNAME", "lo", 1);
    if (r->variable != NULL) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(r->variable, "="), r->variable);
        setenv(name, strchr(r->variable, '=') + 1, 1);
    }
}

static void run_command(const recipe *r, const char *directory, int ranks)
{
    char path[4200], psrun[4200], number[16];
    const char *words[WORDS] = {NULL};
    int at = 0;
    snprintf(path, sizeof path, "%s/%s", directory, program(r->launcher));
    snprintf(psrun, sizeof psrun, "%s/../../bin/psrun", directory);
    snprintf(number, sizeof number, "%d", ranks);
    if (r->launcher == BY_PSRUN) {
        const char *const head[] = {psrun, "--standalone", "--no-prefix", "-n", number, "--"};
        for (size_t i = 0; i < sizeof head / sizeof *head; i++)
            words[at++] = head[i];
    } else if (r->launcher == BY_MPIRUN) {
        const char *const head[] = {"mpirun", "-np",   number, "--oversubscribe", "--bind-to",
                                    "none",   "--mca", "btl",  "self,vader"};
        for (size_t i = 0; i < sizeof head / sizeof *head; i++)
            words[at++] = head[i];
        for (int i = 0; r->options[i] != NULL; i++)
            words[at++] = r->options[i];
    }
    words[at] = path;
    execvp(words[0], (char *const *)(uintptr_t)words);
    fprintf(stderr, "compare: cannot start %s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static bool start(const compare_args *args, const compare_systems *systems, compare_system *system,
                  const recipe *r, const char *directory)
{
    pid_t parent = getpid();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int ranks = r->launcher == BY_ITSELF ? args->ranks : 1;
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(1);
        close(STDIN_FILENO);
        set_environment(args, systems, system, r);
        for (int rank = 1; rank < ranks; rank++) {
            set_number(BENCH_ENV_RANK, rank);
            if (fork() == 0)
                run_command(r, directory, args->ranks);
        }
        set_number(BENCH_ENV_RANK, 0);
        run_command(r, directory, args->ranks);
    }
    system->pid = child > 0 ? child : 0;
    return child > 0;
}

/* Accepts the system's ranks, which say who they are. */
static bool wait_for_ranks(compare_systems *systems, compare_system *system)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), START_MS);
    for (int have = 0; have < systems->ranks;) {
        struct pollfd item = {.fd = systems->listener, .events = POLLIN};
        bench_hello hello;
        int status;
        if (psd_now_ns() > deadline || waitpid(system->pid, &status, WNOHANG) == system->pid) {
            fprintf(stderr, "skip: %s: %d of %d ranks have come; its own output says why\n", system->shown,
                    have, systems->ranks);
            return false;
        }
        if (poll(&item, 1, 100) <= 0)
            continue;
        int fd = accept4(systems->listener, NULL, NULL, SOCK_CLOEXEC);
        bool is_ours = fd >= 0 && recv(fd, &hello, sizeof hello, 0) == sizeof hello &&
                       hello.system == system->serial && hello.ranks == systems->ranks && hello.rank >= 0 &&
                       hello.rank < systems->ranks && system->channels[hello.rank] < 0;
        if (!is_ours) {
            if (fd >= 0)
                close(fd);
            continue;
        }
        system->channels[hello.rank] = fd;
        system->hello = hello;
        have++;
    }
    return true;
}

static bool make_listener(compare_systems *systems)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *directory = getenv("TMPDIR");
    snprintf(systems->socket, sizeof systems->socket, "%.60s/psd-compare.%ld", directory ? directory : "/tmp",
             (long)getpid());
    memcpy(address.sun_path, systems->socket, strlen(systems->socket) + 1);
    unlink(systems->socket);
    systems->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return systems->listener >= 0 &&
           bind(systems->listener, (const struct sockaddr *)(const void *)&address, sizeof address) == 0 &&
           listen(systems->listener, COMPARE_MAX_RANKS) == 0;
}

static const recipe *find_recipe(const char *name)
{
    for (size_t i = 0; i < RECIPES; i++)
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    fprintf(stderr, "skip: %s: not one of compare's systems\n", name);
    return NULL;
}

/* Is the rank's program built? Its name says what is missing. */
static bool can_run(const recipe *r, const char *directory)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", directory, program(r->launcher));
    if (access(path, X_OK) == 0)
        return true;
    fprintf(stderr, "skip: %s: %s was not built: %s is not installed\n", r->shown, program(r->launcher),
            r->launcher == BY_MPIRUN ? "mpicc (libopenmpi-dev)" : "libgloo-dev");
    return false;
}

static void start_one(const compare_args *args, compare_systems *systems, const recipe *r,
                      const char *directory)
{
    compare_system *system = &systems->list[systems->count];
    *system = (compare_system){.name = r->name,
                               .shown = r->shown,
                               .serial = systems->started++,
                               .is_psd = r->launcher == BY_PSRUN,
                               .is_peer_mpi = r->launcher == BY_MPIRUN};
    for (int i = 0; i < COMPARE_MAX_RANKS; i++)
        system->channels[i] = -1;
    if (r->launcher == BY_ITSELF) {
        snprintf(system->store, sizeof system->store, "/tmp/psd-compare.XXXXXX");
        if (mkdtemp(system->store) == NULL)
            system->store[0] = '\0';
    }
    systems->count++;
    bool is_up = start(args, systems, system, r, directory) && wait_for_ranks(systems, system);
    system->hello.in_place &= r->kinds;
    system->hello.out_of_place &= r->kinds;
    if (!is_up) {
        for (int i = 0; i < COMPARE_MAX_RANKS; i++)
            if (system->channels[i] >= 0)
                close(system->channels[i]);
        if (system->pid > 0)
            kill(system->pid, SIGTERM);
        systems->count--;
    }
}

bool compare_systems_start(const compare_args *args, compare_systems *out)
{
    char names[sizeof args->systems], directory[4096], *rest = names;
    bool has_psd = false;
    *out = (compare_systems){.ranks = args->ranks, .listener = -1};
    if (!find_programs(directory, sizeof directory) || !make_listener(out)) {
        fprintf(stderr, "compare: cannot listen at %s: %s\n", out->socket, strerror(errno));
        return false;
    }
    memcpy(names, args->systems, sizeof names);
    for (char *name = strtok_r(rest, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        const recipe *r = find_recipe(name);
        if (r != NULL && out->count < COMPARE_MAX_SYSTEMS && can_run(r, directory))
            start_one(args, out, r, directory);
    }
    for (int i = 0; i < out->count; i++)
        has_psd = has_psd || out->list[i].is_psd;
    return has_psd;
}

/* --------------------------------------------------------------------------------------------------- end */

static void end_process(pid_t pid)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), STOP_MS);
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (psd_now_ns() > deadline) {
            kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            return;
        }
        (void)poll(NULL, 0, 10);
    }
}

static void remove_store(const char *path)
{
    pid_t child = path[0] != '\0' ? fork() : -1;
    if (child == 0) {
        execlp("rm", "rm", "-rf", "--", path, (char *)NULL);
        _exit(127);
    }
    if (child > 0)
        (void)waitpid(child, NULL, 0);
}

void compare_systems_stop(compare_systems *systems)
{
    const bench_order quit = {.verb = BENCH_QUIT};
    for (int i = 0; i < systems->count; i++)
        for (int r = 0; r < systems->ranks; r++)
            if (systems->list[i].channels[r] >= 0) {
                (void)send(systems->list[i].channels[r], &quit, sizeof quit, MSG_NOSIGNAL);
                close(systems->list[i].channels[r]);
            }
    for (int i = 0; i < systems->count; i++) {
        end_process(systems->list[i].pid);
        remove_store(systems->list[i].store);
    }
    close(systems->listener);
    unlink(systems->socket);
}

/* ------------------------------------------------------------------------------------------------ orders */

static bool receive_answer(int channel, bench_answer *answer)
{
    struct pollfd item = {.fd = channel, .events = POLLIN};
    return poll(&item, 1, ANSWER_MS) == 1 && recv(channel, answer, sizeof *answer, 0) == sizeof *answer;
}

static bool fail(compare_system *system, const bench_order *order, const char *why)
{
    char size[32];
    fprintf(stderr, "compare: %s is left out from here: %s of %s: %s\n", system->shown,
            compare_kind_name((bench_kind)order->kind), bench_text_bytes(order->bytes, size, sizeof size),
            why);
    for (int i = 0; i < COMPARE_MAX_RANKS; i++)
        if (system->channels[i] >= 0) {
            close(system->channels[i]);
            system->channels[i] = -1;
        }
    kill(system->pid, SIGTERM);
    system->is_wrong = true;
    return false;
}

bool compare_system_do(compare_system *system, const bench_order *order, bench_answer *out)
{
    bench_answer all = {.ns = 0};
    int ranks = system->hello.ranks;
    for (int r = 0; r < ranks; r++)
        if (system->channels[r] < 0 ||
            send(system->channels[r], order, sizeof *order, MSG_NOSIGNAL) != (ssize_t)sizeof *order)
            return system->channels[0] < 0 ? false : fail(system, order, "a rank has gone");
    for (int r = 0; r < ranks; r++) {
        bench_answer one;
        if (!receive_answer(system->channels[r], &one))
            return fail(system, order, "a rank does not answer");
        one.text[sizeof one.text - 1] = '\0';
        if (one.wrong < 0)
            return fail(system, order, one.text);
        all.wrong += one.wrong;
        system->cpu[r] = one.cpu;
        all.ns = one.ns > all.ns ? one.ns : all.ns;
    }
    *out = all;
    return true;
}
