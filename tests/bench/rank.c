#include "tests/bench/rank.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HUGE ((size_t)2 << 20)
#define MANY ((size_t)1 << 18) /* elements */

typedef struct rank_state {
    const bench_system *system;
    int channel;
    float *in[BENCH_MEMORIES]; /* NULL: not asked for yet */
    float *out[BENCH_MEMORIES];
    size_t bytes;
} rank_state;

static long number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? strtol(text, NULL, 10) : otherwise;
}

static double now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static double cpu_seconds(void)
{
    struct timespec ts;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts) != 0)
        return 0;
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------------------------------------- memory */

static void *plain_memory(size_t bytes)
{
    void *memory = NULL;
    int huge = number(BENCH_ENV_HUGE, 0) != 0;
    size_t rounded = huge ? (bytes + HUGE - 1) / HUGE * HUGE : bytes;
    if (posix_memalign(&memory, huge ? HUGE : 64, rounded) != 0)
        return NULL;
    if (huge)
        (void)madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
}

/* Written once, so that every page is there. */
static int have_memory(rank_state *state, bench_memory memory)
{
    float **buffers[] = {&state->in[memory], &state->out[memory]};
    const bench_system *system = state->system;
    for (int i = 0; i < 2; i++) {
        if (*buffers[i] != NULL)
            continue;
        *buffers[i] = memory == BENCH_MEMORY_OWN ? system->allocate(system->self, state->bytes)
                                                 : plain_memory(state->bytes);
        if (*buffers[i] == NULL)
            return -1;
        memset(*buffers[i], 0, state->bytes);
    }
    return 0;
}

static void free_memory(rank_state *state)
{
    const bench_system *system = state->system;
    for (int m = 0; m < BENCH_MEMORIES; m++)
        for (int i = 0; i < 2; i++) {
            float *memory = i == 0 ? state->in[m] : state->out[m];
            if (memory != NULL && m == BENCH_MEMORY_OWN)
                system->release(system->self, memory);
            else
                free(memory);
        }
}

/* ------------------------------------------------------------------------------------------- calls, checks */

static bool deals_in_parts(bench_kind kind)
{
    return kind == BENCH_REDUCE_SCATTER || kind == BENCH_ALL_GATHER || kind == BENCH_ALL_TO_ALL ||
           kind == BENCH_GATHER || kind == BENCH_SCATTER;
}

static bool out_is_whole(bench_kind kind)
{
    return kind == BENCH_ALL_GATHER || kind == BENCH_ALL_TO_ALL || kind == BENCH_GATHER;
}

static bench_call make_call(const rank_state *state, const bench_order *order)
{
    const bench_system *system = state->system;
    size_t parts = deals_in_parts((bench_kind)order->kind) ? (size_t)system->ranks : 1;
    size_t count = (size_t)order->bytes / sizeof(float) / parts;
    bench_call call = {.kind = (bench_kind)order->kind,
                       .in_place = order->in_place != 0,
                       .peer = system->rank ^ 1,
                       .count = count > 0 ? count : 1,
                       .in = state->in[order->memory],
                       .out = state->out[order->memory]};
    size_t mine = call.count * (size_t)system->rank;
    if (call.in_place && call.kind == BENCH_REDUCE_SCATTER)
        call.out = system->scatters_to_front ? call.in : call.in + mine;
    else if (call.in_place)
        call.in = call.kind == BENCH_ALL_GATHER ? call.out + mine : call.out;
    return call;
}

static float pattern(size_t i, int32_t rank)
{
    return (float)(i % 13) + (float)rank;
}

static float sum_of_patterns(size_t i, int32_t ranks)
{
    return (float)(i % 13) * (float)ranks + (float)(ranks * (ranks - 1) / 2);
}

static void fill(const rank_state *state, const bench_call *call)
{
    int32_t rank = state->system->rank;
    bool in_whole =
        call->kind == BENCH_REDUCE_SCATTER || call->kind == BENCH_ALL_TO_ALL || call->kind == BENCH_SCATTER;
    size_t parts = (size_t)state->system->ranks;
    size_t in_count = call->count * (in_whole ? parts : 1);
    size_t out_count = call->count * (out_is_whole(call->kind) ? parts : 1);
    float *in = call->kind == BENCH_BROADCAST ? call->out : call->in;
    for (size_t i = 0; i < out_count && !(call->in_place && call->kind == BENCH_REDUCE_SCATTER); i++)
        call->out[i] = -1;
    for (size_t i = 0; i < in_count; i++)
        in[i] = pattern(i, rank);
}

/* What element i of part p of this rank's result must be. */
static float expected(const rank_state *state, const bench_call *call, size_t part, size_t i)
{
    int32_t rank = state->system->rank, ranks = state->system->ranks;
    size_t mine = call->count * (size_t)rank;
    switch (call->kind) {
    case BENCH_ALL_REDUCE:
    case BENCH_REDUCE:
        return sum_of_patterns(i, ranks);
    case BENCH_BROADCAST:
        return pattern(i, call->root);
    case BENCH_REDUCE_SCATTER:
        return sum_of_patterns(mine + i, ranks);
    case BENCH_ALL_GATHER:
    case BENCH_GATHER:
        return pattern(i, (int32_t)part);
    case BENCH_ALL_TO_ALL:
        return pattern(mine + i, (int32_t)part);
    case BENCH_SCATTER:
        return pattern(mine + i, call->root);
    default:
        return pattern(i, call->peer);
    }
}

static int64_t count_wrong(const rank_state *state, const bench_call *call)
{
    int64_t wrong = 0;
    bool is_root = state->system->rank == call->root;
    if (call->kind == BENCH_BARRIER ||
        ((call->kind == BENCH_REDUCE || call->kind == BENCH_GATHER) && !is_root))
        return 0;
    size_t parts = out_is_whole(call->kind) ? (size_t)state->system->ranks : 1;
    for (size_t part = 0; part < parts; part++)
        for (size_t i = 0; i < call->count; i++)
            wrong += call->out[part * call->count + i] != expected(state, call, part, i);
    return wrong;
}

/* ------------------------------------------------------------------------------------------------- orders */

static int meet(const rank_state *state)
{
    bench_call barrier = {.kind = BENCH_BARRIER};
    return state->system->run(state->system->self, &barrier);
}

/* Every root in turn; of large operations only the last, since to fill and to compare take longer than to measure. */
static int check(const rank_state *state, bench_call *call, bench_answer *answer)
{
    int failed = 0;
    int32_t first = call->count > MANY ? state->system->ranks - 1 : 0;
    for (int32_t root = first; failed == 0 && root < state->system->ranks; root++) {
        call->root = root;
        fill(state, call);
        failed = state->system->run(state->system->self, call);
        if (failed == 0)
            answer->wrong += count_wrong(state, call);
        if (failed == 0)
            failed = meet(state); /* nobody fills while another still reads, as a system with one copy may */
    }
    return failed;
}

static int run_many(const rank_state *state, bench_call *call, int64_t count)
{
    const bench_system *system = state->system;
    int failed = 0;
    for (int64_t i = 0; failed == 0 && i < count; i++) {
        call->root = (int32_t)(i % system->ranks);
        failed = system->run(system->self, call);
    }
    return failed;
}

static int time_it(const rank_state *state, bench_call *call, int64_t inner, bench_answer *answer)
{
    int failed = run_many(state, call, state->system->ranks); /* warm: caches, every root */
    if (failed == 0)
        failed = meet(state);
    double begun = now_ns();
    if (failed == 0)
        failed = run_many(state, call, inner);
    answer->ns = (now_ns() - begun) / (double)inner;
    return failed;
}

static void clear(const rank_state *state, const bench_order *order)
{
    size_t least = (size_t)state->system->ranks * sizeof(float);
    size_t bytes = (size_t)order->bytes < least ? least : (size_t)order->bytes;
    memset(state->in[order->memory], 0, bytes);
    memset(state->out[order->memory], 0, bytes);
}

static void obey(rank_state *state, const bench_order *order, bench_answer *answer)
{
    bench_memory memory = (bench_memory)order->memory;
    int failed = have_memory(state, memory);
    if (failed != 0) {
        answer->wrong = -1;
        snprintf(answer->text, sizeof answer->text, "no memory for two buffers of %zu bytes", state->bytes);
        return;
    }
    bench_call call = make_call(state, order);
    if (order->verb == BENCH_CHECK) {
        failed = check(state, &call, answer);
        clear(state, order); /* sums of sums of what is left would soon be infinite */
    } else {
        failed = time_it(state, &call, order->inner, answer);
    }
    if (failed != 0) {
        answer->wrong = -1;
        snprintf(answer->text, sizeof answer->text, "%s", state->system->error(state->system->self));
    }
}

static int connect_to_driver(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv(BENCH_ENV_SOCKET);
    if (path == NULL || strlen(path) >= sizeof address.sun_path) {
        fprintf(stderr, "bench: this program is started by tests/bench/run.sh\n");
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)(const void *)&address, sizeof address) != 0) {
        fprintf(stderr, "bench: cannot connect to %s: %s\n", path, strerror(errno));
        close(fd);
        fd = -1;
    }
    return fd;
}

/* The calling thread only: what the system has started before goes where it likes. */
static void pin(int32_t rank)
{
    cpu_set_t set;
    if (number(BENCH_ENV_PIN, 0) == 0)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)rank, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

int bench_rank_main(const bench_system *system)
{
    rank_state state = {.system = system, .bytes = (size_t)number(BENCH_ENV_BYTES, 1 << 20)};
    bench_hello hello = {.system = (int32_t)number(BENCH_ENV_SYSTEM, 0),
                         .rank = system->rank,
                         .ranks = system->ranks,
                         .own_memory = system->allocate != NULL,
                         .out_of_place = system->out_of_place,
                         .in_place = system->in_place};
    bench_order order;
    state.channel = connect_to_driver();
    if (state.channel < 0)
        return 1;
    pin(system->rank);
    int code = send(state.channel, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello ? 0 : 1;
    while (code == 0 && recv(state.channel, &order, sizeof order, 0) == sizeof order &&
           order.verb != BENCH_QUIT) {
        bench_answer answer = {.ns = 0};
        obey(&state, &order, &answer);
        answer.cpu = cpu_seconds();
        code = send(state.channel, &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer ? 0 : 1;
    }
    close(state.channel);
    free_memory(&state);
    return code;
}
