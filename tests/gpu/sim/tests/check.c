#include "check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PENDING_MS 120

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Between two looks of a wait with a deadline. */
static void pause_shortly(void)
{
    const struct timespec t = {.tv_nsec = 500 * 1000};
    nanosleep(&t, NULL);
}

void check_failed(const char *file, int line, const char *text, long got, long wanted)
{
    fprintf(stderr, "%s:%d: %s (got %ld, wanted %ld); %s\n", file, line, text, got, wanted,
            ncclGetLastError(NULL));
    _exit(1);
}

void say_step(shared *s, int rank, int step)
{
    atomic_store(&s->step[rank], step);
}

void wait_step(shared *s, int rank, int step)
{
    while (atomic_load(&s->step[rank]) < step)
        pause_shortly();
}

bool stays_pending(cudaStream_t stream)
{
    double end = seconds() + PENDING_MS / 1e3;
    while (seconds() < end) {
        if (cudaStreamQuery(stream) != cudaErrorNotReady)
            return false;
        pause_shortly();
    }
    return true;
}

cudaError_t finish(cudaStream_t stream)
{
    cudaError_t status;
    while ((status = cudaStreamQuery(stream)) == cudaErrorNotReady)
        pause_shortly();
    return status;
}

ncclResult_t settle(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        OK(ncclCommGetAsyncError(comm, &state));
        if (state == ncclInProgress)
            pause_shortly();
    }
    return state;
}

bool stays_in_progress(ncclComm_t comm)
{
    double end = seconds() + PENDING_MS / 1e3;
    ncclResult_t state = ncclInProgress;
    while (seconds() < end && state == ncclInProgress) {
        OK(ncclCommGetAsyncError(comm, &state));
        pause_shortly();
    }
    return state == ncclInProgress;
}

void share_id(int rank, shared *s)
{
    if (rank == 0) {
        OK(ncclGetUniqueId(&s->id));
        OK(ncclGetUniqueId(&s->other_id));
        atomic_store(&s->ready, 1);
    }
    while (atomic_load(&s->ready) == 0)
        pause_shortly();
}

ncclComm_t make_comm(int rank, int ranks, shared *s, bool is_blocking)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    share_id(rank, s);
    OK(cudaSetDevice(rank));
    config.blocking = is_blocking;
    ncclResult_t result = ncclCommInitRankConfig(&comm, ranks, s->id, rank, &config);
    CHECK(result == ncclSuccess || (!is_blocking && result == ncclInProgress));
    OK(settle(comm));
    return comm;
}

cudaStream_t make_stream(void)
{
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

void *device_bytes(size_t bytes, int value)
{
    void *out = NULL;
    OK(cudaMalloc(&out, bytes));
    OK(cudaMemset(out, value, bytes));
    OK(cudaDeviceSynchronize());
    return out;
}

void *device_copy(const void *host, size_t bytes)
{
    void *out = NULL;
    OK(cudaMalloc(&out, bytes));
    OK(cudaMemcpy(out, host, bytes, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    return out;
}

void read_back(void *host, const void *device, size_t bytes)
{
    OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

bool all_bytes(const void *device, size_t bytes, int value)
{
    unsigned char *host = malloc(bytes);
    CHECK(host != NULL);
    read_back(host, device, bytes);
    size_t same = 0;
    while (same < bytes && host[same] == (unsigned char)value)
        same++;
    free(host);
    return same == bytes;
}

/* ---- running */

static void child(const check_case *c, int rank, shared *s)
{
    char name[64];
    for (size_t i = 0; i < sizeof c->env / sizeof c->env[0] && c->env[i] != NULL; i++) {
        const char *equals = strchr(c->env[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - c->env[i]), c->env[i]);
        setenv(name, equals + 1, 1);
    }
    const char *seconds_text = getenv("CASE_SECONDS");
    alarm(seconds_text != NULL ? (unsigned)atoi(seconds_text) : CHECK_SECONDS);
    c->run(rank, s);
    exit(0);
}

static bool ended_well(const check_case *c, int rank, int status)
{
    if (c->is_killed[rank])
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (WIFSIGNALED(status))
        fprintf(stderr, "rank %d: signal %d%s\n", rank, WTERMSIG(status),
                WTERMSIG(status) == SIGALRM ? ": it hangs" : "");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A rank that failed takes the others with it: they may wait for it. */
static bool run_case(const check_case *c)
{
    pid_t pids[CHECK_RANKS] = {0};
    int status, left = c->ranks;
    bool ok = true;
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return false;
    fflush(NULL);
    for (int r = 0; r < c->ranks; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            child(c, r, s);
    }
    while (left > 0) {
        pid_t pid = wait(&status);
        for (int r = 0; r < c->ranks; r++) {
            if (pids[r] != pid)
                continue;
            pids[r] = 0;
            left--;
            if (ok && !ended_well(c, r, status)) {
                ok = false;
                for (int other = 0; other < c->ranks; other++)
                    if (pids[other] > 0)
                        kill(pids[other], SIGKILL);
            }
        }
    }
    munmap(s, sizeof *s);
    return ok;
}

int check_main(const char *program, const check_case *cases, size_t count)
{
    int passed = 0, failed = 0;
    const char *only = getenv("ONLY");
    for (size_t i = 0; i < count; i++) {
        if (only != NULL && strstr(cases[i].name, only) == NULL)
            continue;
        double start = seconds();
        bool ok = run_case(&cases[i]);
        printf("%s %s: %s (%.1f s)\n", ok ? "ok  " : "FAIL", program, cases[i].name, seconds() - start);
        fflush(stdout);
        passed += ok;
        failed += !ok;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
