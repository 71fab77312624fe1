/* Threads that share a context, under ThreadSanitizer: each with its own group, all with the same works,
 * pool, recorder and agent, while psd asks, aborts and restarts. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/fake_psd.h"
#include "worker/psd.h"

#define THREADS 4
#define ROUNDS  200

/* libzmq is not built with the sanitizer, which therefore cannot see how it orders its threads, nor how a
 * frame's bytes came from the fake coordinator's thread to the agent's. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libzmq.so\ncalled_from_lib:libzmq.so\nrace:psd_wire_decode\n";
}

typedef struct user {
    psd_ctx *ctx;
    psd_group group;
    int failures;
} user;

#define MUST(call)                                                                                           \
    do {                                                                                                     \
        if ((call) != PSD_OK) {                                                                              \
            fprintf(stderr, "%s: %s\n", #call, psd_last_error());                                            \
            u->failures++;                                                                                   \
        }                                                                                                    \
    } while (0)

static void one_round(user *u, int32_t value)
{
    int64_t count = 64;
    int32_t got = -1;
    psd_work works[2];
    psd_tensor pooled = {0};
    psd_tensor in = psd_tensor_1d(&value, 1, PSD_I32, "in"), out = psd_tensor_1d(&got, 1, PSD_I32, "out");
    MUST(psd_tensor_alloc(u->ctx, &count, 1, PSD_F32, "pooled", &pooled));
    MUST(psd_irecv(u->ctx, u->group, &out, 0, NULL, &works[0]));
    MUST(psd_isend(u->ctx, u->group, &in, 0, NULL, &works[1]));
    MUST(psd_waitall(u->ctx, works, 2, 0));
    MUST(psd_all_reduce(u->ctx, u->group, &pooled, &pooled, PSD_SUM, NULL));
    MUST(psd_tensor_free(u->ctx, &pooled));
    u->failures += got != value;
}

static void *use(void *arg)
{
    user *u = arg;
    MUST(psd_group_dup(u->ctx, PSD_WORLD, &u->group));
    for (int32_t i = 0; i < ROUNDS && u->failures == 0; i++)
        one_round(u, i);
    MUST(psd_group_destroy(u->ctx, u->group));
    return NULL;
}

static void disturb(fake_psd *psd)
{
    psd_msg abort = {.type = PSD_MSG_ABORT};
    abort.u.abort.group = 1000000; /* not one of theirs */
    abort.u.abort.epoch = 1;
    abort.u.abort.status = PSD_ERR_ABORTED;
    abort.u.abort.culprit = -1;
    psd_msg ask = {.type = PSD_MSG_GROUP_ASK_TOKEN};
    ask.u.group_token.group = 1000000;
    for (int i = 0; i < 5; i++) {
        fake_psd_send(psd, &abort);
        fake_psd_send(psd, &ask);
        fake_psd_wait(psd, PSD_MSG_HEARTBEAT, fake_psd_count(psd, PSD_MSG_HEARTBEAT) + 1);
    }
    fake_psd_restart(psd);
}

int main(void)
{
    pthread_t threads[THREADS];
    user users[THREADS];
    psd_config config;
    psd_ctx *ctx = NULL;
    int failures = 0;
    fake_psd *psd = fake_psd_start(NULL, NULL);
    psd_config_init(&config);
    config.coordinator = fake_psd_address(psd);
    config.rank = 0;
    config.world_size = 1;
    config.timeout_ms = 30000;
    if (psd_init(&config, &ctx) != PSD_OK) {
        fprintf(stderr, "%s\n", psd_last_error());
        return 1;
    }
    for (int i = 0; i < THREADS; i++) {
        users[i] = (user){.ctx = ctx};
        if (pthread_create(&threads[i], NULL, use, &users[i]) != 0)
            return 1;
    }
    disturb(psd);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        failures += users[i].failures;
    }
    if (psd_finalize(&ctx) != PSD_OK) {
        fprintf(stderr, "%s\n", psd_last_error());
        failures++;
    }
    fake_psd_stop(psd);
    printf("%d passed, %d failed\n", failures == 0, failures != 0);
    return failures != 0;
}
