/* The coordinator under heartbeats: what of the processor psd itself needs for 100,000 of them, from 1,000 workers with a
 * connection each, and how soon it answers psctl meanwhile.
 *
 * Each heartbeat is a message of its own on its worker's connection, in the form that the agent sends, with the
 * operation that the worker is in. They come in rounds, all workers one after the other: spread over 1 s, as 100,000 workers
 * send them by themselves; over 5 s, as 20,000 do, when psd's threads have more often gone to sleep before the next; and as
 * fast as they can be sent. psd's processor time is that of all its threads, from /proc; that all heartbeats were stepped is
 * told by psd's own counts, and by what it then shows of the workers.
 *
 *     bench_heartbeats [PSD [short]]    the program; default: bin/psd below $PSD_BUILD or build */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

#include "common/clock.h"
#include "tests/bench/stats.h"
#include "tests/lib/proc.h"
#include "tests/lib/wire_client.h"

#define WORKERS     1000
#define ROUNDS      100
#define RUNS        7
#define FAST_MS     1000
#define SLOW_MS     5000
#define QUERY_MS    10 /* between two questions */
#define MAX_QUERIES 20000
#define JOIN_MS     30000
#define COUNT_MS    20000

typedef struct workers {
    void *context;
    void *sockets[WORKERS];
    psd_msg beats[WORKERS];
    psd_wire_buffer buffer;
    uint64_t rounds; /* sent so far, in all runs */
} workers;

typedef struct answers {
    size_t count;
    double ms[MAX_QUERIES];
} answers;

typedef struct asker {
    const char *endpoint;
    pthread_t thread;
    atomic_bool stop;
    uint64_t failed;
    answers kept;  /* on one connection */
    answers fresh; /* each on a new one, as psctl asks; to connect is part of the time */
} asker;

static void fail(const char *what)
{
    fprintf(stderr, "bench_heartbeats: %s\n", what);
    exit(1); /* psd ends with this program */
}

/* psd has the first core to itself, and the workers, who would be on other hosts, share the last. */
static void stay_on_core(long core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static void go_anywhere(void)
{
    cpu_set_t set;
    memset(&set, 0xff, sizeof set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

/* ----------------------------------------------------------------------------------------------- workers */

static psd_msg beat_of(int worker)
{
    psd_msg beat = test_hello("bench", "", worker, WORKERS);
    snprintf(beat.ident.name, sizeof beat.ident.name, "worker-%d", worker);
    beat.type = PSD_MSG_HEARTBEAT;
    beat.request = 0;
    memset(&beat.u, 0, sizeof beat.u);
    psd_msg_heartbeat *h = &beat.u.heartbeat;
    *h = (psd_msg_heartbeat){.epoch = 1,
                             .bytes_sent = UINT64_C(123456789012),
                             .bytes_received = UINT64_C(123456789012),
                             .pool_bytes = 256 << 20,
                             .resident_bytes = UINT64_C(900) << 20,
                             .current = {.kind = PSD_OP_ALL_REDUCE,
                                         .dtype = PSD_F32,
                                         .redop = PSD_SUM,
                                         .peer = -1,
                                         .group = 1,
                                         .count = 16 << 20,
                                         .age_ns = 1500000}};
    snprintf(h->current.name, sizeof h->current.name, "layer1.weight.grad");
    snprintf(h->current.site, sizeof h->current.site, "train.c:120");
    return beat;
}

static void open_workers(workers *w, const char *endpoint)
{
    int zero = 0;
    stay_on_core(sysconf(_SC_NPROCESSORS_ONLN) - 1);
    w->context = zmq_ctx_new();
    if (w->context == NULL || zmq_ctx_set(w->context, ZMQ_MAX_SOCKETS, WORKERS + 16) != 0)
        fail("no ZeroMQ context");
    for (int i = 0; i < WORKERS; i++) {
        w->beats[i] = beat_of(i);
        w->sockets[i] = zmq_socket(w->context, ZMQ_DEALER);
        if (w->sockets[i] == NULL || zmq_setsockopt(w->sockets[i], ZMQ_LINGER, &zero, sizeof zero) != 0 ||
            zmq_connect(w->sockets[i], endpoint) != 0)
            fail("no socket for each worker: raise the limit of open files (ulimit -n)");
    }
}

static void send_msg(workers *w, int worker, const psd_msg *msg)
{
    if (psd_wire_encode(msg, &w->buffer) != PSD_OK ||
        zmq_send(w->sockets[worker], w->buffer.data, w->buffer.bytes, 0) < 0)
        fail("a worker cannot send");
}

static void wait_for_welcome(workers *w, int worker)
{
    test_client client = {.context = w->context, .socket = w->sockets[worker]};
    psd_msg_box *welcome = test_client_receive(&client, PSD_MSG_WELCOME, JOIN_MS);
    if (welcome == NULL)
        fail("a worker was not welcomed");
    psd_msg_box_free(welcome);
}

static void join(workers *w)
{
    for (int i = 0; i < WORKERS; i++) {
        psd_msg hello = test_hello("bench", w->beats[i].ident.name, i, WORKERS);
        send_msg(w, i, &hello);
    }
    for (int i = 0; i < WORKERS; i++)
        wait_for_welcome(w, i);
}

static void close_workers(workers *w)
{
    for (int i = 0; i < WORKERS; i++)
        zmq_close(w->sockets[i]);
    zmq_ctx_term(w->context);
    psd_wire_buffer_free(&w->buffer);
}

/* ROUNDS heartbeats of each worker, over `ms`; 0: as fast as they can be sent. */
static void beat(workers *w, int64_t ms)
{
    psd_time_ns begun = psd_now_ns();
    for (int round = 0; round < ROUNDS; round++) {
        w->rounds++;
        for (int i = 0; i < WORKERS; i++) {
            psd_time_ns due = begun + ms * PSD_NS_PER_MS * (round * WORKERS + i) / (ROUNDS * WORKERS);
            if (due > psd_now_ns() + PSD_NS_PER_MS)
                (void)poll(NULL, 0, 1); /* the pace that is measured */
            w->beats[i].u.heartbeat.ops = w->rounds;
            w->beats[i].u.heartbeat.current.ordinal = w->rounds;
            send_msg(w, i, &w->beats[i]);
        }
    }
}

/* --------------------------------------------------------------------------------------------------- psd */

static void start_psd(test_proc *psd, const char *program, char *endpoint, size_t bytes)
{
    const char *argv[] = {program, "--listen", "tcp://127.0.0.1:0", NULL};
    char at[128];
    stay_on_core(0); /* psd inherits it */
    if (!test_proc_start(psd, argv, NULL) || !test_proc_expect(psd, "listening on tcp://", 10000) ||
        sscanf(strstr(psd->text, "listening on "), "listening on %127[^ ,\n]", at) != 1)
        fail("psd does not start");
    snprintf(endpoint, bytes, "%s", at);
}

/* Seconds of processor time of all threads. */
static double cpu_of(pid_t pid)
{
    char path[64], text[1024] = "";
    unsigned long long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(text, sizeof text, file) == NULL)
        fail("psd has ended");
    fclose(file);
    const char *rest = strrchr(text, ')'); /* the name before may hold anything */
    if (rest == NULL ||
        sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        fail("/proc/PID/stat is not as expected");
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* The least number in this column of a view's rows, of 100 at most; -1 if there is none. */
static int64_t ask_number(test_client *client, const char *view, const char *column)
{
    int64_t least = INT64_MAX;
    psd_msg_box *box = test_client_query(client, view, "", COUNT_MS);
    if (box == NULL)
        return -1;
    const psd_msg_reply *reply = &box->msg.u.reply;
    for (uint32_t i = 0; i < reply->column_count * reply->row_count; i++)
        if (strcmp(reply->columns[i % reply->column_count].name, column) == 0 &&
            reply->cells[i].integer < least)
            least = reply->cells[i].integer;
    psd_msg_box_free(box);
    return least == INT64_MAX ? -1 : least;
}

static void ask(asker *a, test_client *client, psd_time_ns begun, answers *to)
{
    psd_msg_box *reply = test_client_query(client, "status", "", 5000);
    if (reply != NULL && to->count < MAX_QUERIES)
        to->ms[to->count++] = (double)(psd_now_ns() - begun) / 1e6;
    else
        a->failed++;
    psd_msg_box_free(reply);
    (void)poll(NULL, 0, QUERY_MS);
}

static void *keep_asking(void *argument)
{
    asker *a = argument;
    test_client kept, fresh;
    /* This thread, and its ZeroMQ's: that they wait for a core behind those that send is not psd's slowness. */
    (void)setpriority(PRIO_PROCESS, 0, -20);
    go_anywhere();
    a->failed += !test_client_open(&kept, a->endpoint);
    while (!atomic_load(&a->stop) && a->failed == 0) {
        psd_time_ns begun = psd_now_ns();
        a->failed += !test_client_open(&fresh, a->endpoint);
        ask(a, &fresh, begun, &a->fresh);
        test_client_close(&fresh);
        for (int i = 0; i < 3 && a->failed == 0; i++)
            ask(a, &kept, psd_now_ns(), &a->kept);
    }
    test_client_close(&kept);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- a run */

typedef struct outcome {
    double cpu;
    double seconds;
    answers kept;
    answers fresh;
} outcome;

/* Until psd has counted `wanted` messages: this asker's own count, too. */
static void wait_until_counted(test_client *client, int64_t wanted, int64_t *asked)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), COUNT_MS);
    int64_t have;
    do {
        have = ask_number(client, "version", "messages");
        ++*asked;
        if (psd_now_ns() > deadline)
            fail("psd has not counted all heartbeats");
    } while (have < wanted + *asked);
}

static void add(answers *to, const answers *from)
{
    for (size_t i = 0; i < from->count && to->count < MAX_QUERIES; i++)
        to->ms[to->count++] = from->ms[i];
}

static void measure(workers *w, test_client *client, const char *endpoint, pid_t psd, int64_t ms,
                    outcome *out)
{
    asker *a = calloc(1, sizeof *a);
    if (a == NULL)
        fail("out of memory");
    a->endpoint = endpoint;
    int64_t before = ask_number(client, "version", "messages"), asked = 0;
    double cpu = cpu_of(psd);
    psd_time_ns begun = psd_now_ns();
    if (pthread_create(&a->thread, NULL, keep_asking, a) != 0)
        fail("no thread");
    beat(w, ms);
    atomic_store(&a->stop, true);
    pthread_join(a->thread, NULL);
    wait_until_counted(client, before + ROUNDS * WORKERS + (int64_t)(a->kept.count + a->fresh.count), &asked);
    out->seconds = (double)(psd_now_ns() - begun) / 1e9;
    out->cpu = cpu_of(psd) - cpu;
    if (a->failed > 0)
        fail("a question of status was not answered");
    if (ask_number(client, "version", "dropped") != 0)
        fail("psd has dropped messages");
    if (ask_number(client, "ops", "ops") != (int64_t)w->rounds)
        fail("psd does not show the last heartbeat");
    add(&out->kept, &a->kept);
    add(&out->fresh, &a->fresh);
    free(a);
}

static void print_answers(answers *of)
{
    bench_stats q = bench_stats_of(of->ms, of->count);
    printf(" %.2f, %.2f, %.2f (%zu) |", q.median, q.count > 0 ? of->ms[(q.count - 1) * 99 / 100] : 0,
           q.greatest, q.count);
}

static void report(const char *how, double *cpu, double *seconds, outcome *all)
{
    char text[64];
    bench_stats c = bench_stats_of(cpu, RUNS), s = bench_stats_of(seconds, RUNS);
    printf("| %s | %s | %.0f |", how, bench_text_stats(&c, text, sizeof text),
           (double)(ROUNDS * WORKERS) / s.median);
    print_answers(&all->kept);
    print_answers(&all->fresh);
    printf("\n");
    fflush(stdout);
}

static void run_all(workers *w, test_client *client, const char *endpoint, pid_t psd, const char *how,
                    int64_t ms)
{
    double cpu[RUNS], seconds[RUNS];
    outcome *all = calloc(1, sizeof *all);
    if (all == NULL)
        fail("out of memory");
    for (int run = 0; run < RUNS; run++) {
        measure(w, client, endpoint, psd, ms, all);
        cpu[run] = all->cpu;
        seconds[run] = all->seconds;
    }
    report(how, cpu, seconds, all);
    free(all);
}

int main(int argc, char **argv)
{
    static workers w;
    test_proc psd = {0};
    test_client client;
    char endpoint[128];
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max; /* psd inherits it */
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    start_psd(&psd, argc > 1 ? argv[1] : test_path("bin/psd"), endpoint, sizeof endpoint);
    if (!test_client_open(&client, endpoint))
        fail("no client");
    open_workers(&w, endpoint);
    join(&w);
    printf("%d heartbeats of %d workers, %d runs each; goal: 1.0 s of psd's processor time, status in under "
           "10 ms.\n\n",
           ROUNDS * WORKERS, WORKERS, RUNS);
    printf("| heartbeats come | psd's processor time, s | heartbeats a second | status, ms: median, 99%%, "
           "worst (asked) "
           "| the same, each with a connection of its own |\n|---|---|---|---|---|\n");
    run_all(&w, &client, endpoint, psd.pid, "spread over 1 s", FAST_MS);
    if (argc < 3)
        run_all(&w, &client, endpoint, psd.pid, "spread over 5 s", SLOW_MS);
    run_all(&w, &client, endpoint, psd.pid, "as fast as they can", 0);
    close_workers(&w);
    test_client_close(&client);
    test_proc_end(&psd);
    return 0;
}
