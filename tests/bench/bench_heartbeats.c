/* The coordinator under heartbeats: what of the processor psd itself needs for 100,000 of them, from 1,000 workers with a
 * connection each, and how soon it answers psctl meanwhile.
 *
 * Each heartbeat is a message of its own on its worker's connection, in the form that the agent sends, with the
 * operation that the worker is in. They come in rounds, all workers one after the other: spread over PACED_MS (20,000 a
 * second, what as many workers send by themselves), then as fast as they can be sent. psd's processor time is that of all its
 * threads, from /proc; that all heartbeats were stepped is told by psd's own counts, and by what it then shows of a worker.
 *
 *     bench_heartbeats [PSD]        the program; default: bin/psd below $PSD_BUILD or build */
#include <poll.h>
#include <pthread.h>
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
#define PACED_MS    5000
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

typedef struct asker {
    const char *endpoint;
    pthread_t thread;
    atomic_bool stop;
    uint64_t failed;
    size_t count;
    double ms[MAX_QUERIES];
} asker;

static void fail(const char *what)
{
    fprintf(stderr, "bench_heartbeats: %s\n", what);
    exit(1); /* psd ends with this program */
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

static void *keep_asking(void *argument)
{
    asker *a = argument;
    test_client client;
    if (!test_client_open(&client, a->endpoint)) {
        a->failed++;
        return NULL;
    }
    while (!atomic_load(&a->stop) && a->count < MAX_QUERIES) {
        psd_time_ns begun = psd_now_ns();
        psd_msg_box *reply = test_client_query(&client, "status", "", 5000);
        if (reply != NULL)
            a->ms[a->count++] = (double)(psd_now_ns() - begun) / 1e6;
        else
            a->failed++;
        psd_msg_box_free(reply);
        (void)poll(NULL, 0, QUERY_MS);
    }
    test_client_close(&client);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- a run */

typedef struct outcome {
    double cpu;
    double seconds;
    double status_ms[MAX_QUERIES];
    size_t status_count;
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
    wait_until_counted(client, before + ROUNDS * WORKERS + (int64_t)a->count, &asked);
    out->seconds = (double)(psd_now_ns() - begun) / 1e9;
    out->cpu = cpu_of(psd) - cpu;
    if (a->failed > 0)
        fail("a question of status was not answered");
    if (ask_number(client, "version", "dropped") != 0)
        fail("psd has dropped messages");
    if (ask_number(client, "ops", "ops") != (int64_t)w->rounds)
        fail("psd does not show the last heartbeat");
    for (size_t i = 0; i < a->count && out->status_count < MAX_QUERIES; i++)
        out->status_ms[out->status_count++] = a->ms[i];
    free(a);
}

static void report(const char *how, double *cpu, double *seconds, outcome *all)
{
    char text[64];
    bench_stats c = bench_stats_of(cpu, RUNS), s = bench_stats_of(seconds, RUNS),
                q = bench_stats_of(all->status_ms, all->status_count);
    printf("| %s | %s |", how, bench_text_stats(&c, text, sizeof text));
    printf(" %.0f |", (double)(ROUNDS * WORKERS) / s.median);
    printf(" %.2f | %.2f | %.2f | %zu |\n", q.median, all->status_ms[(q.count - 1) * 99 / 100], q.greatest,
           q.count);
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
    printf("| heartbeats come | psd's processor time, s | heartbeats a second | status, ms: median | 99%% | "
           "worst | "
           "questions |\n|---|---|---|---|---|---|---|\n");
    run_all(&w, &client, endpoint, psd.pid, "spread over 5 s", PACED_MS);
    run_all(&w, &client, endpoint, psd.pid, "as fast as they can", 0);
    close_workers(&w);
    test_client_close(&client);
    test_proc_end(&psd);
    return 0;
}
