/* psd's journal: restarts that remember, state directories that cannot be used, disks that are full. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"
#include "tests/lib/wire_client.h"

static char state[64];
static char endpoint[128];
static test_proc psd;
static test_client client;

static void make_state(void)
{
    snprintf(state, sizeof state, "/tmp/psd-test-XXXXXX");
    cr_assert(mkdtemp(state) != NULL);
}

static void remove_state(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", state);
    cr_assert_eq(system(command), 0);
}

static void learn_endpoint(void)
{
    cr_assert(test_proc_expect(&psd, "psd 0.1.0 listening on tcp://", 10000), "psd: %s",
              psd.text ? psd.text : "");
    cr_assert_eq(sscanf(strstr(psd.text, "listening on "), "listening on %127[^ ,\n]", endpoint), 1);
}

static void start_keeping(const char *listen, const char *events)
{
    const char *argv[] = {test_path("bin/psd"), "--listen", listen, "--state", state,
                          "--journal-events",   events,     NULL};
    const char *env[] = {"PSD_DEBUG=info", NULL};
    cr_assert(test_proc_start(&psd, argv, env));
    learn_endpoint();
}

static void start(const char *listen)
{
    start_keeping(listen, "100000");
}

/* psd under a shell that prepares its world first. */
static void start_in_shell(const char *prepare)
{
    char script[512];
    snprintf(script, sizeof script, "%s && exec %s --listen tcp://127.0.0.1:0 --state %s", prepare,
             test_path("bin/psd"), state);
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    const char *env[] = {"PSD_DEBUG=info", NULL};
    cr_assert(test_proc_start(&psd, argv, env));
}

static void end(int number)
{
    kill(psd.pid, number);
    cr_assert(test_proc_wait(&psd, 5000));
    cr_assert_eq(test_proc_code(&psd), number == SIGKILL ? 128 + SIGKILL : 0, "%s", psd.text);
}

static psd_msg_welcome join(const psd_msg *hello)
{
    cr_assert(test_client_send(&client, hello));
    psd_msg_box *box = test_client_receive(&client, PSD_MSG_WELCOME, 10000);
    cr_assert(box != NULL, "no WELCOME: %s", psd.text);
    psd_msg_welcome welcome = box->msg.u.welcome;
    psd_msg_box_free(box);
    return welcome;
}

static void leave(const psd_msg *hello)
{
    psd_msg bye = {.type = PSD_MSG_BYE, .ident = hello->ident, .request = 2};
    cr_assert(test_client_send(&client, &bye));
    psd_msg_box *ack = test_client_receive(&client, PSD_MSG_BYE_ACK, 10000);
    cr_assert(ack != NULL);
    psd_msg_box_free(ack);
}

/* A start that must fail with code 1 and say this. */
static void refused(const char *dir, const char *text)
{
    const char *argv[] = {test_path("bin/psd"), "--listen", "tcp://127.0.0.1:0", "--state", dir, NULL};
    char *output = NULL;
    cr_assert_eq(test_run(argv, NULL, 10000, &output), 1, "%s", output);
    cr_assert(strstr(output, text) != NULL, "no \"%s\" in: %s", text, output);
    free(output);
}

/* A worker of a killed psd finds itself again: RESYNC, HELLO with its token, the same rank and epoch. */
static void restart_after(int number)
{
    char listen[128];
    psd_msg hello = test_hello("j", "w0", 0, 1);
    psd_msg heartbeat = {.type = PSD_MSG_HEARTBEAT, .ident = hello.ident};
    make_state();
    start("tcp://127.0.0.1:0");
    cr_assert(test_client_open(&client, endpoint));
    psd_msg_welcome before = join(&hello);
    snprintf(listen, sizeof listen, "%s", endpoint);
    kill(psd.pid, number);
    cr_assert(test_proc_wait(&psd, 5000));
    cr_assert_eq(test_proc_code(&psd), number == SIGKILL ? 128 + SIGKILL : 0);
    cr_assert(number == SIGKILL || strstr(psd.text, "jobs go on without psd") != NULL, "%s", psd.text);
    test_proc_end(&psd);
    start(listen);
    cr_assert(test_proc_expect(&psd, "recovered from", 5000));
    cr_assert(test_client_send(&client, &heartbeat));
    psd_msg_box *resync = test_client_receive(&client, PSD_MSG_RESYNC, 10000);
    cr_assert(resync != NULL);
    psd_msg_box_free(resync);
    hello.u.hello.resume_token = before.resume_token;
    hello.u.hello.epoch = before.epoch;
    psd_msg_welcome after = join(&hello);
    cr_assert_eq(after.rank, before.rank);
    cr_assert_eq(after.epoch, before.epoch);
    cr_assert_eq(after.resume_token, before.resume_token);
    cr_assert_eq(after.world_group, before.world_group);
    leave(&hello);
    end(SIGTERM);
    test_proc_end(&psd);
    test_client_close(&client);
    remove_state();
}

/* What numbers groups, and which rank a name had, comes from before the job's present life. */
PSD_TEST(journal, a_jobs_second_life_is_the_same_after_a_restart)
{
    char listen[128];
    psd_msg first = test_hello("j", "w0", 0, 1);
    psd_msg second = test_hello("j", "w0", 0, 1);
    second.ident.incarnation = first.ident.incarnation + 1;
    make_state();
    start("tcp://127.0.0.1:0");
    snprintf(listen, sizeof listen, "%s", endpoint);
    cr_assert(test_client_open(&client, endpoint));
    join(&first);
    leave(&first);
    psd_msg_welcome before = join(&second);
    end(SIGKILL);
    test_proc_end(&psd);
    start(listen);
    second.u.hello.resume_token = before.resume_token;
    second.u.hello.epoch = before.epoch;
    psd_msg_welcome after = join(&second);
    cr_assert_eq(after.world_group, before.world_group);
    cr_assert_eq(after.epoch, before.epoch);
    end(SIGTERM);
    test_proc_end(&psd);
    test_client_close(&client);
    remove_state();
}

PSD_TEST(journal, a_long_journal_without_jobs_is_emptied)
{
    psd_msg hello = test_hello("j", "w0", 0, 1);
    make_state();
    start_keeping("tcp://127.0.0.1:0", "1");
    cr_assert(test_client_open(&client, endpoint));
    join(&hello);
    leave(&hello);
    cr_assert(test_proc_expect(&psd, "the journal was emptied", 5000), "%s", psd.text);
    end(SIGTERM);
    test_proc_end(&psd);
    start("tcp://127.0.0.1:0");
    end(SIGTERM);
    cr_assert(strstr(psd.text, "recovered from") == NULL, "%s", psd.text);
    test_proc_end(&psd);
    test_client_close(&client);
    remove_state();
}

PSD_TEST(journal, a_killed_psd_remembers)
{
    restart_after(SIGKILL);
}

PSD_TEST(journal, a_stopped_psd_remembers)
{
    restart_after(SIGTERM);
}

PSD_TEST(journal, one_psd_for_a_directory)
{
    make_state();
    start("tcp://127.0.0.1:0");
    refused(state, "in use by another psd");
    end(SIGTERM);
    test_proc_end(&psd);
    remove_state();
}

PSD_TEST(journal, directory_that_cannot_be_made)
{
    refused("/dev/null/state", "Not a directory");
    refused("/no/such/parent/state", "cannot be made");
    if (geteuid() == 0)
        return; /* nothing is unwritable for root */
    make_state();
    cr_assert_eq(chmod(state, 0500), 0);
    refused(state, "cannot be written: Permission denied");
    remove_state();
}

static void spoil(const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/journal.db", state);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

PSD_TEST(journal, damaged)
{
    make_state();
    spoil("this is not a database, and long enough for nobody to think that it might be one");
    refused(state, "is damaged");
    remove_state();
    make_state();
    start("tcp://127.0.0.1:0");
    end(SIGTERM);
    test_proc_end(&psd);
    spoil("this was one");
    refused(state, "is damaged");
    remove_state();
}

/* Is this text in a row of the events view? */
static bool events_say(const char *text)
{
    psd_msg_box *box = test_client_query(&client, "events", "", 5000);
    bool said = false;
    cr_assert(box != NULL);
    const psd_msg_reply *reply = &box->msg.u.reply;
    for (uint32_t i = 0; i < reply->row_count * reply->column_count; i++)
        if (reply->columns[i % reply->column_count].type == PSD_CELL_TEXT)
            said = said || strstr(reply->cells[i].text, text) != NULL;
    psd_msg_box_free(box);
    return said;
}

/* Jobs come and go until the journal does not fit; psd then goes on without it. */
static void fill_journal(void)
{
    for (int i = 0; i < 2000 && strstr(psd.text, "goes on without it") == NULL; i++) {
        char job[32];
        snprintf(job, sizeof job, "job%d", i);
        psd_msg hello = test_hello(job, "w0", 0, 1);
        cr_assert(test_client_open(&client, endpoint));
        join(&hello);
        if (i % 2 == 0)
            leave(&hello);
        test_client_close(&client);
        test_proc_expect(&psd, "goes on without it", 1); /* reads what is there */
    }
    cr_assert(strstr(psd.text, "goes on without it") != NULL, "the journal was never full: %s", psd.text);
    psd_msg hello = test_hello("after", "w0", 0, 1);
    cr_assert(test_client_open(&client, endpoint));
    join(&hello);
    test_client_close(&client);
    cr_assert(test_client_open(&client, endpoint));
    cr_assert(events_say("cannot be written"));
    test_client_close(&client);
    end(SIGTERM);
    const char *first = strstr(psd.text, "goes on without it");
    cr_assert(strstr(first + 1, "goes on without it") == NULL, "said more than once: %s", psd.text);
    test_proc_end(&psd);
}

PSD_TEST(journal, file_size_limit)
{
    make_state();
    start_in_shell("ulimit -f 200");
    learn_endpoint();
    fill_journal();
    /* What was written is not taken for the truth by the next psd. */
    start("tcp://127.0.0.1:0");
    end(SIGTERM);
    cr_assert(strstr(psd.text, "recovered from") == NULL, "%s", psd.text);
    test_proc_end(&psd);
    remove_state();
}

static bool may_mount(void)
{
    const char *argv[] = {"/usr/bin/unshare", "-rm", "/bin/mount", "-t", "tmpfs", "none", "/mnt", NULL};
    char *text = NULL;
    bool may = test_run(argv, NULL, 10000, &text) == 0;
    free(text);
    return may;
}

static void start_on_small_disk(const char *size)
{
    char script[512];
    snprintf(script, sizeof script,
             "mount -t tmpfs -o size=%s none %s && exec %s --listen tcp://127.0.0.1:0 --state %s", size,
             state, test_path("bin/psd"), state);
    const char *argv[] = {"/usr/bin/unshare", "-rm", "/bin/sh", "-c", script, NULL};
    const char *env[] = {"PSD_DEBUG=info", NULL};
    cr_assert(test_proc_start(&psd, argv, env));
}

PSD_TEST(journal, full_disk)
{
    if (!may_mount())
        cr_skip_test("skip: no right to mount a small disk here");
    make_state();
    start_on_small_disk("400k");
    learn_endpoint();
    fill_journal();
    start_on_small_disk("16k");
    cr_assert(test_proc_wait(&psd, 10000));
    cr_assert_eq(test_proc_code(&psd), 1, "%s", psd.text);
    cr_assert(strstr(psd.text, "full") != NULL || strstr(psd.text, "No space left") != NULL, "%s", psd.text);
    test_proc_end(&psd);
    remove_state();
}
