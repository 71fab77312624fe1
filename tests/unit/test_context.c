/* psd_init and psd_finalize, and where settings come from. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/psd_test.h"
#include "tests/lib/solo.h"
#include "worker/backend/backend.h"
#include "worker/config.h"

/* ----------------------------------------------------------------------------------------------- settings */

static psd_settings read_ok(const psd_config *config)
{
    char why[512] = "";
    psd_settings settings;
    cr_assert_eq(psd_settings_read(config, &settings, why, sizeof why), PSD_OK, "%s", why);
    return settings;
}

static void read_fails(const psd_config *config, const char *text)
{
    char why[512] = "";
    psd_settings settings;
    cr_assert_eq(psd_settings_read(config, &settings, why, sizeof why), PSD_ERR_INVAL);
    cr_assert(strstr(why, text) != NULL, "\"%s\" is not in: %s", text, why);
}

static void clear_environment(void)
{
    static const char *const names[] = {"PSD_COORDINATOR",
                                        "PSD_JOB",
                                        "PSD_NAME",
                                        "PSD_ROLE",
                                        "PSD_BACKEND",
                                        "PSD_RANK",
                                        "RANK",
                                        "PSD_WORLD_SIZE",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "LOCAL_RANK",
                                        "PSD_LOCAL_RANK",
                                        "PSD_TIMEOUT_MS",
                                        "PSD_JOIN_TIMEOUT_MS",
                                        "PSD_POOL_LIMIT",
                                        "PSD_HOST_RING",
                                        "PSD_DEVICE",
                                        "PSD_BACKEND_DIR",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_LOCALID",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "JOB_COMPLETION_INDEX"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

#define CONTEXT_TEST(name) PSD_TEST_WITH(context, name, .init = clear_environment, .timeout = 60)

CONTEXT_TEST(has_defaults)
{
    psd_settings a = read_ok(NULL), b = read_ok(NULL);
    cr_assert_str_eq(a.coordinator, "tcp://127.0.0.1:5577");
    cr_assert_str_eq(a.job, "default");
    cr_assert_str_eq(a.role, "worker");
    cr_assert_str_eq(a.backend, "auto");
    cr_assert_eq(a.rank, -1);
    cr_assert_eq(a.world_size, 1);
    cr_assert_gt(a.pool_limit, 0);
    cr_assert_str_neq(a.name, b.name, "default names are unique");
}

CONTEXT_TEST(reads_what_launchers_set)
{
    setenv("MASTER_ADDR", "10.0.0.7", 1);
    setenv("MASTER_PORT", "2222", 1);
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_RANK", "1", 1);
    psd_settings s = read_ok(NULL);
    cr_assert_str_eq(s.coordinator, "tcp://10.0.0.7:2222");
    cr_assert_eq(s.rank, 3);
    cr_assert_eq(s.world_size, 4);
    cr_assert_eq(s.local_rank, 1);
    setenv("MASTER_ADDR", "fd00::1", 1);
    cr_assert_str_eq(read_ok(NULL).coordinator, "tcp://[fd00::1]:2222");
    setenv("PSD_COORDINATOR", "tcp://head:1", 1);
    psd_config empty;
    psd_config_init(&empty);
    empty.coordinator = "";
    cr_assert_str_eq(read_ok(&empty).coordinator, "tcp://head:1", "an empty text is unset");
    setenv("PSD_RANK", "2", 1);
    cr_assert_str_eq(read_ok(NULL).coordinator, "tcp://head:1");
    cr_assert_eq(read_ok(NULL).rank, 2);
}

CONTEXT_TEST(reads_slurm_mpi_and_kubernetes)
{
    setenv("SLURM_PROCID", "5", 1);
    setenv("SLURM_NTASKS", "8", 1);
    setenv("SLURM_LOCALID", "2", 1);
    psd_settings s = read_ok(NULL);
    cr_assert_eq(s.rank, 5);
    cr_assert_eq(s.world_size, 8);
    cr_assert_eq(s.local_rank, 2);
    clear_environment();
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    cr_assert_eq(read_ok(NULL).rank, 1);
    setenv("SLURM_PROCID", "0", 1); /* mpirun in an allocation: Slurm's are not the rank's */
    setenv("SLURM_NTASKS", "1", 1);
    cr_assert_eq(read_ok(NULL).rank, 1);
    cr_assert_eq(read_ok(NULL).world_size, 2);
    clear_environment();
    setenv("JOB_COMPLETION_INDEX", "6", 1);
    setenv("WORLD_SIZE", "7", 1);
    cr_assert_eq(read_ok(NULL).rank, 6);
}

CONTEXT_TEST(the_config_goes_before_the_environment)
{
    psd_config config;
    psd_config_init(&config);
    setenv("PSD_JOB", "theirs", 1);
    setenv("PSD_TIMEOUT_MS", "5s", 1);
    cr_assert_str_eq(read_ok(&config).job, "theirs");
    cr_assert_eq(read_ok(&config).timeout_ms, 5000);
    config.job = "mine";
    config.timeout_ms = 7;
    cr_assert_str_eq(read_ok(&config).job, "mine");
    cr_assert_eq(read_ok(&config).timeout_ms, 7);
}

CONTEXT_TEST(names_the_variable_that_is_wrong)
{
    static const char *const wrong[][2] = {
        {"PSD_RANK", "abc"},
        {"PSD_RANK", "1x"},
        {"WORLD_SIZE", "0"},
        {"WORLD_SIZE", "1000000000"},
        {"PSD_JOB", "a b"},
        {"PSD_COORDINATOR", "head"},
        {"PSD_COORDINATOR", "tcp://head:0"},
        {"PSD_TIMEOUT_MS", "soon"},
        {"PSD_POOL_LIMIT", "much"},
        {"PSD_HOST_TRANSPORT", "pigeon"},
        {"PSD_HOST_RING", "large"},
        {"PSD_HOST_RING", "3K"},
        {"PSD_HOST_RING", "2K"},
        {"PSD_HOST_RING", "2G"},
        {"PSD_RECORD", "maybe"},
        {"LOCAL_RANK", "-3"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv(wrong[i][0], wrong[i][1], 1);
        read_fails(NULL, wrong[i][0]);
        read_fails(NULL, wrong[i][1]);
        unsetenv(wrong[i][0]);
    }
    setenv("RANK", "4", 1);
    read_fails(NULL, "RANK is \"4\"; WORLD_SIZE is not set");
    setenv("WORLD_SIZE", "4", 1);
    read_fails(NULL, "RANK is \"4\"; with a world of 4 it is 0 to 3");
}

/* Half of an address is told, not ignored; unless it is not needed. */
CONTEXT_TEST(needs_both_halves_of_the_masters_address)
{
    setenv("MASTER_PORT", "2222", 1);
    read_fails(NULL, "MASTER_PORT is \"2222\"; MASTER_ADDR is not set");
    unsetenv("MASTER_PORT");
    setenv("MASTER_ADDR", "10.0.0.7", 1);
    read_fails(NULL, "MASTER_ADDR is \"10.0.0.7\"; MASTER_PORT is not set");
    setenv("PSD_COORDINATOR", "tcp://head:1", 1);
    cr_assert_str_eq(read_ok(NULL).coordinator, "tcp://head:1");
}

CONTEXT_TEST(refuses_a_config_of_another_size)
{
    psd_config config;
    psd_config_init(&config);
    config.size = 0;
    read_fails(&config, "psd_config_init");
    config.size = sizeof config + 8;
    read_fails(&config, "psd_config_init");
}

/* ----------------------------------------------------------------------------------------- init, finalize */

CONTEXT_TEST(opens_and_closes)
{
    solo s = solo_open(NULL, NULL);
    cr_assert_eq(psd_rank(s.ctx), 0);
    cr_assert_eq(psd_world_size(s.ctx), 1);
    cr_assert_str_eq(psd_backend_name(s.ctx), "host");
    cr_assert(fake_psd_wait(s.psd, PSD_MSG_HEARTBEAT, 2));
    fake_psd *psd = s.psd;
    cr_assert_eq(psd_finalize(&s.ctx), PSD_OK);
    cr_assert_eq(fake_psd_count(psd, PSD_MSG_BYE), 1);
    cr_assert_eq(fake_psd_count(psd, PSD_MSG_GROUP_CLOSE), 1);
    fake_psd_stop(psd);
    cr_assert_eq(psd_finalize(&s.ctx), PSD_OK, "a NULL context is fine");
    cr_assert_eq(psd_finalize(NULL), PSD_OK);
    cr_assert_eq(psd_rank(NULL), -1);
}

CONTEXT_TEST(holds_several_in_one_process)
{
    solo a = solo_open(NULL, NULL), b = solo_open(NULL, NULL);
    cr_assert_eq(psd_barrier(a.ctx, PSD_WORLD, NULL), PSD_OK);
    solo_close(&a, PSD_OK);
    cr_assert_eq(psd_barrier(b.ctx, PSD_WORLD, NULL), PSD_OK);
    solo_close(&b, PSD_OK);
}

CONTEXT_TEST(explains_why_it_could_not_start)
{
    psd_ctx *ctx = NULL;
    psd_config config;
    psd_config_init(&config);
    cr_assert_eq(psd_init(&config, NULL), PSD_ERR_INVAL);
    config.coordinator = "tcp://127.0.0.1:1";
    config.join_timeout_ms = 50;
    cr_assert_eq(psd_init(&config, &ctx), PSD_ERR_NO_COORDINATOR);
    expect_error_text("test_context.c:");
    expect_error_text("no coordinator answered at tcp://127.0.0.1:1");
    config.backend = "carrier";
    cr_assert_eq(psd_init(&config, &ctx), PSD_ERR_BACKEND);
    expect_error_text("there is no backend \"carrier\"");
    cr_assert_null(ctx);
}

static bool abort_world(fake_psd *psd, const psd_msg *msg, void *arg)
{
    (void)arg;
    if (msg->type != PSD_MSG_GROUP_READY)
        return false;
    psd_msg abort = {.type = PSD_MSG_ABORT};
    abort.u.abort.group = FAKE_PSD_WORLD;
    abort.u.abort.epoch = 1;
    abort.u.abort.status = PSD_ERR_PEER_FAILED;
    abort.u.abort.culprit = -1;
    strcpy(abort.u.abort.text, "rank 1 died while the world was opened");
    fake_psd_send(psd, &abort);
    return true;
}

CONTEXT_TEST(leaves_when_the_world_does_not_open)
{
    psd_ctx *ctx = NULL;
    psd_config config;
    psd_config_init(&config);
    fake_psd *psd = fake_psd_start(abort_world, NULL);
    config.coordinator = fake_psd_address(psd);
    cr_assert_eq(psd_init(&config, &ctx), PSD_ERR_PEER_FAILED);
    expect_error_text("rank 1 died while the world was opened");
    cr_assert_eq(fake_psd_count(psd, PSD_MSG_BYE), 1);
    fake_psd_stop(psd);
}

CONTEXT_TEST(a_stop_ends_operations_but_is_no_failure)
{
    solo s = solo_open(NULL, NULL);
    float x[2];
    psd_tensor t = psd_tensor_1d(x, 2, PSD_F32, "x");
    psd_work work;
    cr_assert_eq(psd_irecv(s.ctx, PSD_WORLD, &t, 0, NULL, &work), PSD_OK);
    psd_msg stop = {.type = PSD_MSG_STOP};
    strcpy(stop.u.stop.text, "stopped by psctl");
    fake_psd_send(s.psd, &stop);
    cr_assert_eq(psd_wait(s.ctx, work, 0), PSD_ERR_STOPPED);
    expect_error_text("stopped by psctl");
    cr_assert_eq(psd_barrier(s.ctx, PSD_WORLD, NULL), PSD_ERR_STOPPED);
    solo_close(&s, PSD_OK);
}

CONTEXT_TEST(leaves_soon_when_psd_is_gone)
{
    solo s = solo_open(NULL, NULL);
    fake_psd_vanish(s.psd);
    psd_time_ns begun = psd_now_ns();
    cr_assert_eq(psd_finalize(&s.ctx), PSD_OK, "%s", psd_last_error());
    cr_assert(psd_now_ns() - begun < 4 * PSD_NS_PER_S, "about 2 s, not the 6 s of a psd that is slow");
    fake_psd_stop(s.psd);
}

/* The child must not touch its parent's sockets, threads or memory. */
CONTEXT_TEST(does_not_survive_fork)
{
    solo s = solo_open(NULL, NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(psd_barrier(s.ctx, PSD_WORLD, NULL) == PSD_ERR_INVAL && psd_finalize(&s.ctx) == PSD_ERR_INVAL &&
                      strstr(psd_last_error(), "parent process") != NULL
                  ? 0
                  : 1);
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert_eq(psd_barrier(s.ctx, PSD_WORLD, NULL), PSD_OK);
    solo_close(&s, PSD_OK);
}

/* ----------------------------------------------------------------------------------------------- registry */

CONTEXT_TEST(backends_are_verified)
{
    char why[256] = "";
    const psd_backend_ops *host = NULL;
    cr_assert_eq(psd_backend_choose("host", &host, why, sizeof why), PSD_OK, "%s", why);
    cr_assert_eq(psd_backend_verify(host, why, sizeof why), PSD_OK, "%s", why);
    psd_backend_ops broken = *host;
    broken.wait = NULL;
    cr_assert_eq(psd_backend_verify(&broken, why, sizeof why), PSD_ERR_INVAL);
    cr_assert(strstr(why, "slot wait") != NULL, "%s", why);
    broken = *host;
    broken.caps &= ~(uint32_t)PSD_CAP_CHANNEL;
    cr_assert_eq(psd_backend_verify(&broken, why, sizeof why), PSD_ERR_INVAL);
    broken = *host;
    broken.caps &= ~(uint32_t)(PSD_CAP_HOST_MEMORY | PSD_CAP_DEVICE_MEMORY);
    cr_assert_eq(psd_backend_verify(&broken, why, sizeof why), PSD_ERR_INVAL);
    broken = *host;
    broken.caps |= PSD_CAP_DEVICE_MEMORY;
    cr_assert_eq(psd_backend_verify(&broken, why, sizeof why), PSD_ERR_INVAL);
    cr_assert(strstr(why, "stream_wait") != NULL, "%s", why);
}
