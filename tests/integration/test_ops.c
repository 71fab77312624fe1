/* What ranks have done: psctl ops of a live rank and of a dead one; and that operations cost psd no message. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "common/clock.h"
#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"
#include "worker/psd.h"

enum { OPERATIONS = 100000, RANKS = 2 };

static char endpoint[128], coordinator[160], dir[64], run_dir[96], run_env[128];
static test_proc psd;

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/psd-test-XXXXXX");
    cr_assert(mkdtemp(dir));
    snprintf(run_dir, sizeof run_dir, "%s/run", dir);
    snprintf(run_env, sizeof run_env, "PSD_RUN_DIR=%s", run_dir);
    const char *argv[] = {test_path("bin/psd"), "--listen", "tcp://127.0.0.1:0", "--state", dir, NULL};
    const char *env[] = {"PSD_DEBUG=info", NULL};
    cr_assert(test_proc_start(&psd, argv, env));
    cr_assert(test_proc_expect(&psd, "listening on ", 10000), "psd: %s", psd.text ? psd.text : "");
    cr_assert_eq(sscanf(strstr(psd.text, "listening on "), "listening on %127[^ ,;\n]", endpoint), 1);
    snprintf(coordinator, sizeof coordinator, "PSD_COORDINATOR=%s", endpoint);
}

static void teardown(void)
{
    char command[128];
    test_proc_end(&psd);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

static void start_rank(test_proc *proc, int rank)
{
    char rank_env[32];
    snprintf(rank_env, sizeof rank_env, "PSD_RANK=%d", rank);
    const char *argv[] = {test_path("tests/programs/loop"), "--iters", "100000000", NULL};
    const char *env[] = {coordinator, rank_env, "PSD_WORLD_SIZE=2", run_env, NULL};
    cr_assert(test_proc_start(proc, argv, env));
}

/* ------------------------------------------------------------------------------------------- a dead rank */

/* The record file of a process, which is dead. */
static bool find_file(pid_t pid, char *out, size_t bytes)
{
    char mark[32];
    DIR *listing = opendir(run_dir);
    bool found = false;
    snprintf(mark, sizeof mark, ".%d.", (int)pid);
    for (struct dirent *entry; listing != NULL && !found && (entry = readdir(listing)) != NULL;) {
        found = strstr(entry->d_name, mark) != NULL && strstr(entry->d_name, ".psdrec") != NULL;
        if (found)
            snprintf(out, bytes, "%s/%.128s", run_dir, entry->d_name);
    }
    if (listing != NULL)
        closedir(listing);
    return found;
}

/* Asked of the rank itself, through psd. */
static void expect_live_ops(void)
{
    char *text = NULL;
    const char *argv[] = {test_path("bin/psctl"), "ops", "--rank", "1", "--limit", "3", "--json", NULL};
    const char *env[] = {coordinator, NULL};
    cr_assert_eq(test_run(argv, env, 10000, &text), 0, "%s", text);
    json_t *rows = json_loads(text, 0, NULL);
    cr_assert(json_is_array(rows) && json_array_size(rows) >= 1 && json_array_size(rows) <= 3, "%s", text);
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(rows, 0), "tensor")), "loop");
    json_decref(rows);
    free(text);
    const char *none[] = {test_path("bin/psctl"), "ops", "--rank", "7", NULL};
    cr_assert_eq(test_run(none, env, 10000, &text), 1, "%s", text);
    cr_assert_not_null(strstr(text, "has no rank 7"), "%s", text);
    free(text);
}

PSD_TEST_WITH(ops, of_a_rank_that_was_killed, .timeout = 120)
{
    test_proc ranks[RANKS] = {0};
    char path[256] = "", *text = NULL;
    setup();
    for (int r = 0; r < RANKS; r++)
        start_rank(&ranks[r], r);
    for (int r = 0; r < RANKS; r++)
        cr_assert(test_proc_expect(&ranks[r], "ready", 20000), "rank %d: %s", r, ranks[r].text);
    expect_live_ops();
    kill(ranks[1].pid, SIGKILL);
    cr_assert(test_proc_wait(&ranks[1], 10000) && test_proc_wait(&ranks[0], 20000));
    cr_assert(find_file(ranks[1].pid, path, sizeof path));
    const char *argv[] = {test_path("bin/psctl"), "ops", "--dump", path, "--json", "--limit", "4", NULL};
    cr_assert_eq(test_run(argv, NULL, 10000, &text), 0, "%s", text);
    json_t *rows = json_loads(text, 0, NULL);
    cr_assert(json_is_array(rows) && json_array_size(rows) >= 1 && json_array_size(rows) <= 4, "%s", text);
    json_t *last = json_array_get(rows, json_array_size(rows) - 1);
    cr_assert_str_eq(json_string_value(json_object_get(last, "op")), "all_reduce");
    cr_assert_str_eq(json_string_value(json_object_get(last, "tensor")), "loop");
    cr_assert_not_null(strstr(json_string_value(json_object_get(last, "site")), "loop.c:"));
    json_decref(rows);
    free(text);
    const char *plain[] = {test_path("bin/psctl"), "ops", "--dump", path, NULL};
    cr_assert_eq(test_run(plain, NULL, 10000, &text), 0, "%s", text);
    cr_assert_not_null(strstr(text, "rank 1 of 2"), "%s", text);
    free(text);
    for (int r = 0; r < RANKS; r++)
        test_proc_end(&ranks[r]);
    teardown();
}

/* ------------------------------------------------------------------------------- messages per operation */

typedef struct worker {
    int rank;
    pthread_barrier_t
        *gate; /* passed by both ranks and by who counts: before the operations and after them */
    psd_status status;
} worker;

/* Blocking and not, collective and not. */
static psd_status one(psd_ctx *ctx, int rank, int i)
{
    float x[4] = {1, 2, 3, 4}, y[4];
    psd_tensor in = psd_tensor_1d(x, 4, PSD_F32, "x"), out = psd_tensor_1d(y, 4, PSD_F32, "y");
    psd_work work;
    switch (i % 4) {
    case 0:
        return psd_all_reduce(ctx, PSD_WORLD, &in, &out, PSD_SUM, NULL);
    case 1:
        return rank == 0 ? psd_send(ctx, PSD_WORLD, &in, 1, NULL)
                         : psd_recv(ctx, PSD_WORLD, &out, 0, NULL, NULL);
    case 2:
        return psd_barrier(ctx, PSD_WORLD, NULL);
    default: {
        psd_status status = psd_iall_reduce(ctx, PSD_WORLD, &in, &out, PSD_SUM, NULL, &work);
        return status == PSD_OK ? psd_wait(ctx, work, 0) : status;
    }
    }
}

static void *run_worker(void *arg)
{
    worker *w = arg;
    psd_ctx *ctx = NULL;
    psd_config config;
    psd_config_init(&config);
    config.coordinator = endpoint;
    config.job = "counted";
    config.name = w->rank == 0 ? "a" : "b";
    config.rank = w->rank;
    config.world_size = RANKS;
    config.backend = "host";
    w->status = psd_init(&config, &ctx);
    pthread_barrier_wait(w->gate);
    pthread_barrier_wait(w->gate);
    for (int i = 0; i < OPERATIONS && w->status == PSD_OK; i++)
        w->status = one(ctx, w->rank, i);
    pthread_barrier_wait(w->gate);
    pthread_barrier_wait(w->gate);
    psd_status left = psd_finalize(&ctx);
    w->status = w->status == PSD_OK ? left : w->status;
    return NULL;
}

/* A number of `psctl version`; the question is one message itself. */
static int64_t version_of_psd(const char *column)
{
    char *text = NULL;
    const char *argv[] = {test_path("bin/psctl"), "--coordinator", endpoint, "version", "--json", NULL};
    cr_assert_eq(test_run(argv, NULL, 10000, &text), 0, "%s", text);
    const char *at = strstr(text, column);
    long long value = -1;
    cr_assert(at != NULL && sscanf(at + strlen(column), "\":%lld", &value) == 1, "%s", text);
    free(text);
    return value;
}

PSD_TEST_WITH(ops, cost_psd_no_message, .timeout = 200)
{
    pthread_t threads[RANKS];
    pthread_barrier_t gate;
    worker workers[RANKS] = {{0}};
    setup();
    cr_assert_eq(setenv("PSD_RUN_DIR", run_dir, 1), 0);
    cr_assert_eq(setenv("PSD_REPORT_AFTER_MS", "60000", 1), 0); /* a slow machine is no hang */
    cr_assert_eq(pthread_barrier_init(&gate, NULL, RANKS + 1), 0);
    for (int r = 0; r < RANKS; r++) {
        workers[r] = (worker){.rank = r, .gate = &gate};
        cr_assert_eq(pthread_create(&threads[r], NULL, run_worker, &workers[r]), 0);
    }
    int64_t heartbeat = version_of_psd("heartbeat");
    pthread_barrier_wait(&gate);
    int64_t begun = psd_now_ns(), before = version_of_psd("messages");
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    int64_t after = version_of_psd("messages"), passed = psd_now_ns() - begun;
    pthread_barrier_wait(&gate);
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++)
        cr_assert_eq(workers[r].status, PSD_OK, "rank %d: %d", r, (int)workers[r].status);
    int64_t heartbeats = RANKS * (passed / heartbeat + 1);
    printf("%d operations on each of %d ranks in %.1f s: %lld messages to psd, of which at most %lld "
           "heartbeats\n",
           OPERATIONS, RANKS, (double)passed * 1e-9, (long long)(after - before - 1), (long long)heartbeats);
    cr_assert_leq(after - before - 1, heartbeats);
    pthread_barrier_destroy(&gate);
    teardown();
}
