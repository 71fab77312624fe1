#include "tests/gpu/nccl_ranks.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CASE_MS  60000
#define TEXT_MAX 8192

extern const psd_backend_ops psd_backend_host;

static char directory[PATH_MAX]; /* of this program */

void ranks_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    _exit(2);
}

static void nap(void)
{
    struct timespec ts = {0, 200000};
    nanosleep(&ts, NULL);
}

void ranks_await(_Atomic int *flag, int value)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), RANKS_WAIT_MS);
    while (atomic_load(flag) < value) {
        CHECK(psd_now_ns() < deadline);
        nap();
    }
}

void ranks_meet(rank_run *r)
{
    r->met++;
    atomic_fetch_add(&r->shared->arrived, 1);
    ranks_await(&r->shared->arrived, r->met * r->size);
}

/* ------------------------------------------------------------------------------------------------- a rank */

static void on_group_broken(void *owner, uint32_t group, psd_status status, int32_t culprit, const char *text)
{
    rank_run *r = owner;
    (void)group;
    (void)culprit;
    (void)text;
    atomic_store(&r->broken_status, (int)status);
    atomic_fetch_add(&r->broken, 1);
}

static void on_detached_done(void *owner, uint64_t cookie, const psd_op_result *result)
{
    rank_run *r = owner;
    atomic_store(&r->detached_status, (int)result->status);
    atomic_store(&r->detached_cookie, cookie);
    atomic_fetch_add(&r->detached, 1);
}

static void find_cuda(rank_run *r)
{
    void *cudart = dlopen(getenv("PSD_CUDART_LIBRARY"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (cudart == NULL)
        return; /* the backend says so */
#define PSD_X(result, name, params) *(void **)(void *)&r->name = dlsym(cudart, #name);
    RANKS_CUDA(PSD_X)
#undef PSD_X
}

psd_status ranks_open_alone(rank_run *r, char *why, size_t why_bytes)
{
    char file[PATH_MAX + 64];
    const char *device = getenv("PSD_DEVICE");
    psd_backend_config config = {
        .job = "nccl-test",
        .incarnation = (uint64_t)getpid(),
        .eager_limit = 65536,
        .transport = "auto",
        .on_group_broken = on_group_broken,
        .on_detached_done = on_detached_done,
        .owner = r,
        .host = &psd_backend_host,
        .local_rank = r->rank,
        .device = device,
        .log_file = getenv("PSD_TEST_LOG"),
    };
    snprintf(file, sizeof file, "%s/../../lib/psd/psd_backend_nccl.so", directory);
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    CHECK_SAYS(object != NULL, "%s", dlerror());
    const psd_backend_plugin *plugin = dlsym(object, "psd_backend_entry");
    CHECK(plugin != NULL && plugin->abi == PSD_BACKEND_ABI);
    r->ops = plugin->ops;
    psd_status status = r->ops->probe(why, why_bytes);
    if (status == PSD_OK)
        status = r->ops->open(&config, &r->backend, why, why_bytes);
    return status;
}

void ranks_open(rank_run *r)
{
    char why[PSD_MAX_TEXT] = "";
    find_cuda(r);
    psd_status status = ranks_open_alone(r, why, sizeof why);
    CHECK_SAYS(status == PSD_OK, "%s", why);
    CHECK(r->cudaSetDevice(r->ops->device(r->backend)) == cudaSuccess);
    status = r->ops->address(r->backend, r->shared->addresses[r->rank], PSD_MAX_ADDR);
    CHECK_SAYS(status == PSD_OK, "status %d", (int)status);
    ranks_meet(r);
}

void ranks_close(rank_run *r)
{
    r->ops->close(r->backend);
    r->backend = NULL;
}

psd_status ranks_group(rank_run *r, uint32_t id, const uint32_t *members, int32_t count, int64_t ms,
                       psd_backend_group **out, char *why, size_t why_bytes)
{
    ranks_shared *s = r->shared;
    const char *addresses[RANKS_MOST];
    psd_group_desc desc = {.id = id, .epoch = 1, .size = count, .members = members, .addresses = addresses};
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), ms);
    psd_backend_group *g = NULL;
    uint32_t slot = id - 1;
    for (int32_t i = 0; i < count; i++) {
        addresses[i] = s->addresses[members[i]];
        if (members[i] == (uint32_t)r->rank)
            desc.rank = i;
    }
    if (desc.rank == 0) {
        CHECK(r->ops->token(r->backend, s->tokens[slot], PSD_MAX_TOKEN, &s->token_bytes[slot]) == PSD_OK);
        atomic_store(&s->has_token[slot], 1);
    }
    ranks_await(&s->has_token[slot], 1);
    desc.token = s->tokens[slot];
    desc.token_bytes = s->token_bytes[slot];
    psd_status status = r->ops->group_begin(r->backend, &desc, &g, why, why_bytes);
    if (status != PSD_OK && status != PSD_INPROGRESS)
        return status;
    status = PSD_INPROGRESS;
    while (status == PSD_INPROGRESS && psd_now_ns() < deadline) {
        status = r->ops->group_poll(g, why, why_bytes);
        if (status == PSD_INPROGRESS)
            nap();
    }
    if (status == PSD_OK)
        *out = g;
    else
        r->ops->group_close(g);
    return status == PSD_INPROGRESS ? PSD_ERR_TIMEOUT : status;
}

psd_backend_group *ranks_world(rank_run *r, uint32_t id)
{
    char why[PSD_MAX_TEXT] = "";
    uint32_t members[RANKS_MOST];
    psd_backend_group *g = NULL;
    for (int i = 0; i < r->size; i++)
        members[i] = (uint32_t)i;
    psd_status status = ranks_group(r, id, members, r->size, RANKS_WAIT_MS, &g, why, sizeof why);
    CHECK_SAYS(status == PSD_OK, "status %d: %s", (int)status, why);
    return g;
}

/* -------------------------------------------------------------------------------------- memory, operations */

void *ranks_alloc(rank_run *r, size_t bytes)
{
    void *data = NULL;
    CHECK(r->ops->mem_alloc(r->backend, bytes, &data) == PSD_OK);
    return data;
}

static void copy(rank_run *r, void *to, const void *from, size_t bytes)
{
    char why[PSD_MAX_TEXT] = "";
    psd_status status = r->ops->mem_copy(r->backend, to, from, bytes, NULL,
                                         psd_deadline_ns(psd_now_ns(), RANKS_WAIT_MS), why, sizeof why);
    CHECK_SAYS(status == PSD_OK, "%s", why);
}

void ranks_put(rank_run *r, void *device, const void *host, size_t bytes)
{
    copy(r, device, host, bytes);
}

void ranks_get(rank_run *r, void *host, const void *device, size_t bytes)
{
    copy(r, host, device, bytes);
}

psd_op ranks_op(psd_op_kind kind, psd_dtype dtype, int64_t count, const void *in, void *out)
{
    psd_op op = {
        .kind = kind,
        .dtype = dtype,
        .root = -1,
        .count = count,
        .in = in,
        .out = out,
        .deadline = psd_deadline_ns(psd_now_ns(), RANKS_WAIT_MS),
        .label = "an operation of the test",
    };
    return op;
}

psd_status ranks_do(rank_run *r, psd_backend_group *g, const psd_op *op)
{
    psd_request *request = NULL;
    psd_op_result result = {.status = PSD_INPROGRESS};
    psd_status status = r->ops->start(g, op, &request);
    if (status != PSD_OK)
        return status;
    status = r->ops->stream_wait(request, op->stream, psd_deadline_ns(psd_now_ns(), RANKS_WAIT_MS));
    if (status == PSD_ERR_TIMEOUT)
        ranks_fail(__FILE__, __LINE__, "%s was not queued", op->label);
    if (status != PSD_OK)
        CHECK(r->ops->test(request, &result) != PSD_INPROGRESS);
    r->ops->release(request);
    return status;
}

psd_status ranks_end(rank_run *r, psd_request *request)
{
    psd_op_result result = {.status = PSD_INPROGRESS};
    CHECK(r->ops->wait(r->backend, &request, 1, false, psd_deadline_ns(psd_now_ns(), RANKS_WAIT_MS)) ==
          PSD_OK);
    psd_status status = r->ops->test(request, &result);
    CHECK(status != PSD_INPROGRESS && status == result.status);
    r->ops->release(request);
    return status;
}

/* --------------------------------------------------------------------------------------------------- cases */

static void use_library(const char *variable, const char *override, const char *name)
{
    char file[PATH_MAX + 64];
    const char *given = getenv(override);
    snprintf(file, sizeof file, "%s/sim/%s", directory, name);
    setenv(variable, given != NULL ? given : file, 1);
}

static void set_environment(const ranks_case *c, int rank)
{
    char soname[32];
    snprintf(soname, sizeof soname, "libcudart.so.%d", CUDART_VERSION / 1000);
    use_library("PSD_CUDART_LIBRARY", "PSD_TEST_CUDART", soname);
    use_library("PSD_NCCL_LIBRARY", "PSD_TEST_NCCL", "libnccl.so.2");
    setenv("PSD_NCCL_DEBUG", "NONE", 1);
    for (size_t i = 0; i < sizeof c->env / sizeof c->env[0] && c->env[i] != NULL; i++) {
        char text[256];
        const char *setting = c->env[i];
        bool alone = setting[0] >= '0' && setting[0] <= '9' && setting[1] == ':';
        if (alone && setting[0] - '0' != rank)
            continue;
        snprintf(text, sizeof text, "%s", alone ? setting + 2 : setting);
        char *value = strchr(text, '=');
        *value++ = '\0';
        setenv(text, value, 1);
    }
}

static pid_t start_rank(const ranks_case *c, int rank, ranks_shared *shared, int output)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(2);
    dup2(output, STDERR_FILENO);
    set_environment(c, rank);
    rank_run r = {.rank = rank, .size = c->ranks, .shared = shared};
    c->run(&r);
    exit(0);
}

/* How it ended: the exit status, 1000 + signal, or -1 if it had to be ended. */
static int reap(pid_t pid, psd_time_ns deadline)
{
    int status = 0;
    pid_t done;
    while ((done = waitpid(pid, &status, WNOHANG)) == 0 && psd_now_ns() < deadline)
        nap();
    if (done == 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void read_output(int fd, char *out)
{
    ssize_t bytes = pread(fd, out, TEXT_MAX - 1, 0);
    out[bytes > 0 ? bytes : 0] = '\0';
}

static bool run_case(const ranks_case *c)
{
    pid_t pids[RANKS_MOST];
    int outputs[RANKS_MOST];
    bool ok = true;
    ranks_shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), CASE_MS);
    if (shared == MAP_FAILED)
        return false;
    for (int i = 0; i < c->ranks; i++) {
        outputs[i] = memfd_create("rank", MFD_CLOEXEC);
        pids[i] = start_rank(c, i, shared, outputs[i]);
    }
    for (int i = 0; i < c->ranks; i++) {
        char text[TEXT_MAX];
        int ended = reap(pids[i], deadline);
        read_output(outputs[i], text);
        bool fits = c->may_end[i] || (ended == c->exits[i] &&
                                      (c->exits[i] == 0 || c->says == NULL || strstr(text, c->says) != NULL));
        if (!fits)
            printf("%s: rank %d ended with %d, expected %d%s%s:\n%s", c->name, i, ended, c->exits[i],
                   c->says != NULL ? ", saying " : "", c->says != NULL ? c->says : "", text);
        ok = ok && fits;
        close(outputs[i]);
    }
    munmap(shared, sizeof *shared);
    return ok;
}

static bool is_wanted(int argc, char **argv, const char *name)
{
    bool wanted = argc < 2;
    for (int i = 1; i < argc; i++)
        wanted = wanted || strcmp(argv[i], name) == 0;
    return wanted;
}

int ranks_main(int argc, char **argv, const ranks_case *cases, int count)
{
    int passed = 0, failed = 0;
    ssize_t bytes = readlink("/proc/self/exe", directory, sizeof directory - 1);
    directory[bytes > 0 ? bytes : 0] = '\0';
    dirname(directory);
    for (int i = 0; i < count; i++) {
        if (!is_wanted(argc, argv, cases[i].name))
            continue;
        bool ok = run_case(&cases[i]);
        passed += ok;
        failed += !ok;
        printf("[%s] %s\n", ok ? "PASS" : "FAIL", cases[i].name);
        fflush(stdout);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}
