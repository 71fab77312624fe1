/* psrun: what ranks are started with, how they end, and that nothing is left of them. Ranks are small shell
 * scripts. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

#define SH "/bin/sh"

/* Runs psrun with these arguments; gives its exit code and output (malloc'ed). */
static int psrun(const char *const *options, char **output)
{
    const char *argv[32] = {test_path("bin/psrun")};
    for (int i = 1; i < 31 && *options != NULL; i++, options++)
        argv[i] = *options;
    int code = test_run(argv, NULL, 30000, output);
    cr_assert_neq(code, -1, "psrun hangs: %s", *output);
    return code;
}

static void says(const char *output, const char *text)
{
    cr_assert(strstr(output, text) != NULL, "no \"%s\" in:\n%s", text, output);
}

/* psrun must end with `code` and say `text`. */
static void ends(const char *const *options, int code, const char *text)
{
    char *output = NULL;
    int got = psrun(options, &output);
    cr_assert_eq(got, code, "exit code %d: %s", got, output);
    says(output, text);
    free(output);
}

PSD_TEST(psrun, environment)
{
    const char *script =
        "echo $PSD_COORDINATOR,$PSD_JOB,$PSD_ROLE,$PSD_RANK,$PSD_WORLD_SIZE,$PSD_LOCAL_RANK,$RANK,"
        "$LOCAL_RANK,$WORLD_SIZE,$LOCAL_WORLD_SIZE,$MASTER_ADDR,$MASTER_PORT";
    char *output = NULL;
    cr_assert_eq(psrun((const char *[]){"-n", "2", "--coordinator", "tcp://127.0.0.1:7001", "--job", "j",
                                        "--role", "infer", "--", SH, "-c", script, NULL},
                       &output),
                 0);
    says(output, "[0] tcp://127.0.0.1:7001,j,infer,0,2,0,0,0,2,2,127.0.0.1,7001\n");
    says(output, "[1] tcp://127.0.0.1:7001,j,infer,1,2,1,1,1,2,2,127.0.0.1,7001\n");
    free(output);
}

PSD_TEST(psrun, binding)
{
    char *output = NULL;
    const char *list = "grep Cpus_allowed_list /proc/self/status";
    cpu_set_t mine;
    char too_many[16];
    cr_assert_eq(sched_getaffinity(0, sizeof(mine), &mine), 0);
    snprintf(too_many, sizeof(too_many), "%d", CPU_COUNT(&mine) + 1);
    ends((const char *[]){"--bind", "none", "--", SH, "-c", list, NULL}, 0, "Cpus_allowed_list");
    ends((const char *[]){"--bind", "core", "--", SH, "-c", list, NULL}, 0,
         "psrun: ranks bound to cores: 0 on ");
    ends((const char *[]){"-n", too_many, "--bind", "core", "--", "true", NULL}, 0, "none is bound");
    ends((const char *[]){"--bind", "socket", "--", "true", NULL}, 2, "must be core or none");
    ends((const char *[]){"--bind", "core", "--hosts", "a", "--", "true", NULL}, 2, "leave out --hosts");
    if (CPU_COUNT(&mine) != 2 || !CPU_ISSET(0, &mine) || !CPU_ISSET(1, &mine))
        return;
    cr_assert_eq(psrun((const char *[]){"-n", "2", "--bind", "core", "--", SH, "-c", list, NULL}, &output),
                 0);
    says(output, "0 on 0, 1 on 1");
    says(output, "[0] Cpus_allowed_list:\t0\n");
    says(output, "[1] Cpus_allowed_list:\t1\n");
    free(output);
}

PSD_TEST(psrun, several_programs)
{
    char *output = NULL;
    cr_assert_eq(
        psrun((const char *[]){"-n", "2", "--role", "server", "--", SH, "-c",
                               "echo $PSD_ROLE $RANK $WORLD_SIZE", ":", "-n", "1", "--role", "trainer", "--",
                               SH, "-c", "echo $PSD_ROLE $RANK $WORLD_SIZE $0", "arg", NULL},
              &output),
        0, "%s", output);
    says(output, "[0] server 0 3\n");
    says(output, "[1] server 1 3\n");
    says(output, "[2] trainer 2 3 arg\n");
    free(output);
}

PSD_TEST(psrun, output)
{
    char *output = NULL;
    cr_assert_eq(
        psrun((const char *[]){"-n", "2", "--", SH, "-c", "echo one; echo two >&2; printf three", NULL},
              &output),
        0);
    says(output, "[0] one\n");
    says(output, "[1] two\n");
    says(output, "[1] three\n");
    free(output);
    cr_assert_eq(
        psrun((const char *[]){"--no-prefix", "--", SH, "-c", "printf a; sleep 0.1; echo b", NULL}, &output),
        0);
    cr_assert_str_eq(output, "ab\n");
    free(output);
    /* A line of 20000 bytes comes in pieces of 8192. */
    cr_assert_eq(
        psrun((const char *[]){"--", SH, "-c", "head -c 20000 /dev/zero | tr '\\0' x; echo; echo end", NULL},
              &output),
        0);
    size_t lines = 0;
    for (const char *at = output; *at != '\0'; at++)
        lines += *at == '\n';
    cr_assert_eq(lines, 4, "%zu lines", lines);
    cr_assert_eq(strlen(output), 20000 + 3 * strlen("[0] \n") + strlen("[0] end\n"));
    free(output);
}

PSD_TEST(psrun, input_is_empty)
{
    ends((const char *[]){"--", SH, "-c", "cat; echo done", NULL}, 0, "[0] done");
}

PSD_TEST(psrun, bad_command_lines)
{
    ends((const char *[]){"-n", "0", "--", "true", NULL}, 2, "from 1 to 4096");
    ends((const char *[]){"-n", "1000000000", "--", "true", NULL}, 2, "from 1 to 4096");
    ends((const char *[]){"-n", "four", "--", "true", NULL}, 2, "from 1 to 4096");
    ends((const char *[]){"-n", "4000", "--", "true", ":", "-n", "4000", "--", "true", NULL}, 2,
         "8000 ranks in all");
    ends((const char *[]){"-n", "2", "true", NULL}, 2, "write -- before the program");
    ends((const char *[]){"-n", "2", NULL}, 2, "no program");
    ends((const char *[]){"-n", "2", "--", NULL}, 2, "no program");
    ends((const char *[]){"--", "true", ":", NULL}, 2, "no program");
    ends((const char *[]){"--", "true", ":", "--job", "x", "--", "true", NULL}, 2,
         "before the first program");
    ends((const char *[]){"--frobnicate", "--", "true", NULL}, 2, "--help");
    ends((const char *[]){"--coordinator", "here", "--", "true", NULL}, 2, "must be an address");
    ends((const char *[]){"--standalone", "--coordinator", "tcp://127.0.0.1:1", "--", "true", NULL}, 2,
         "leave out");
    ends((const char *[]){"--job", "a b", "--", "true", NULL}, 2, "--job");
    ends((const char *[]){"--role", "", "--", "true", NULL}, 2, "--role");
    ends((const char *[]){"--timeout", "soon", "--", "true", NULL}, 2, "--timeout");
    ends((const char *[]){"--timeout", "9223372036854775807", "--", "true", NULL}, 2, "is too large");
    ends((const char *[]){"--job", "a\xff\x62", "--", "true", NULL}, 2, "--job \"a\\xffb\"");
    ends((const char *[]){"--b\xffg", "--", "true", NULL}, 2, "\"--b\\xffg\" is not an option");
    ends((const char *[]){"-n", NULL}, 2, "\"-n\" needs a value");
    ends((const char *[]){"--standalone=1", NULL}, 2, "takes no value");
    ends((const char *[]){"-x", "--", "true", NULL}, 2, "\"-x\" is not an option");
    ends((const char *[]){"--rsh", "x {host} {command}", "--", "true", NULL}, 2, "--hosts");
    ends((const char *[]){"--hosts", "a", "--rsh", "x {command}", "--", "true", NULL}, 2,
         "must contain {host}");
    ends((const char *[]){"--hosts", "a", "--rsh", "x {host}", "--", "true", NULL}, 2,
         "must contain {command} once");
    ends((const char *[]){"--hosts", "a", "--rsh", "x {host} {command} {command}", "--", "true", NULL}, 2,
         "must contain {command} once");
    ends((const char *[]){"--hosts", "a,b", "--", "true", NULL}, 2, "2 hosts for 1 ranks");
    ends((const char *[]){"--hosts", "-oProxyCommand=x", "--", "true", NULL}, 2, "not a host name");
    ends((const char *[]){"--help", NULL}, 0, "--standalone");
    ends((const char *[]){"--version", NULL}, 0, "psrun ");
}

PSD_TEST(psrun, program_that_cannot_run)
{
    ends((const char *[]){"-n", "2", "--", "no-such-program", NULL}, 127,
         "\"no-such-program\" cannot be run: No such file");
    ends((const char *[]){"-n", "2", "--", "/etc/passwd", NULL}, 126, "Permission denied");
    /* The ranks that had started are ended. */
    ends((const char *[]){"--", SH, "-c", "sleep 600", ":", "--", "no-such-program", NULL}, 127, "rank 1");
}

PSD_TEST(psrun, one_failure_ends_the_rest)
{
    const char *script = "if [ $RANK = 2 ]; then exit 7; fi; sleep 600";
    ends((const char *[]){"-n", "4", "--", SH, "-c", script, NULL}, 7,
         "psrun: rank 2 (/bin/sh) exited with status 7; the other ranks were ended\n");
    script = "if [ $RANK = 1 ]; then kill -SEGV $$; fi; sleep 600";
    ends((const char *[]){"-n", "3", "--", SH, "-c", script, NULL}, 128 + SIGSEGV,
         "psrun: rank 1 (/bin/sh) was killed by signal 11 (SIGSEGV)");
}

/* Rank 3 is killed, and the others fail of it: whoever psrun sees first, rank 3 is the cause. */
PSD_TEST_WITH(psrun, the_killed_rank_is_blamed, .timeout = 60)
{
    char dir[] = "/tmp/psd-test-XXXXXX";
    char script[512];
    cr_assert(mkdtemp(dir) != NULL);
    /* The last one waits for the first to be dying, as a process with much to give back does. */
    snprintf(
        script, sizeof script,
        "if [ $RANK = 3 ]; then until [ -e %s/failed ]; do :; done; kill -9 $$; fi; : >%s/failed; exit 1",
        dir, dir);
    for (int i = 0; i < 25; i++)
        ends((const char *[]){"-n", "4", "--", SH, "-c", script, NULL}, 137,
             "psrun: rank 3 (/bin/sh) was killed by signal 9 (SIGKILL)\n");
    snprintf(script, sizeof script, "rm -r %s", dir);
    cr_assert_eq(system(script), 0);
}

PSD_TEST(psrun, who_ignores_sigterm_is_killed)
{
    char dir[] = "/tmp/psd-test-XXXXXX";
    char script[512];
    cr_assert(mkdtemp(dir) != NULL);
    /* Rank 0 fails once rank 1 ignores SIGTERM, which its file shows. */
    snprintf(script, sizeof script,
             "if [ $RANK = 0 ]; then until [ -e %s/deaf ]; do sleep 0.01; done; exit 3; fi; "
             "trap '' TERM; : >%s/deaf; while :; do sleep 0.1; done",
             dir, dir);
    ends((const char *[]){"-n", "2", "--", SH, "-c", script, NULL}, 3, "rank 0");
    snprintf(script, sizeof script, "rm -r %s", dir);
    cr_assert_eq(system(script), 0);
}

PSD_TEST(psrun, timeout)
{
    ends((const char *[]){"--timeout", "200ms", "-n", "2", "--", SH, "-c", "sleep 600", NULL}, 124,
         "--timeout");
}

static pid_t number_after(const char *text, const char *mark)
{
    const char *at = strstr(text, mark);
    return at == NULL ? 0 : (pid_t)strtol(at + strlen(mark), NULL, 10);
}

/* Starts ranks that print their ids and sleep; gives psrun's process and the ids of the ranks. */
static void start_sleepers(test_proc *proc, const char *script, pid_t *pids, int count)
{
    char ranks[8];
    snprintf(ranks, sizeof ranks, "%d", count);
    const char *argv[] = {test_path("bin/psrun"), "-n", ranks, "--", SH, "-c", script, NULL};
    cr_assert(test_proc_start(proc, argv, NULL));
    for (int i = 0; i < count; i++) {
        char mark[32];
        snprintf(mark, sizeof mark, "[%d] pid ", i);
        cr_assert(test_proc_expect(proc, mark, 10000), "%s", proc->text); /* lines come whole */
        pids[i] = number_after(proc->text, mark);
        cr_assert_gt(pids[i], 1);
    }
}

PSD_TEST(psrun, signals_are_passed_on)
{
    static const struct {
        int number;
        const char *name;
        int code; /* what each rank exits with; after USR1 and USR2 a failure would end the other rank first
                   */
    } signals[] = {{SIGINT, "INT", 9},
                   {SIGTERM, "TERM", 9},
                   {SIGHUP, "HUP", 9},
                   {SIGUSR1, "USR1", 0},
                   {SIGUSR2, "USR2", 0}};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        test_proc proc;
        pid_t pids[2];
        char script[256];
        snprintf(script, sizeof script,
                 "trap 'echo got it; exit %d' %s; echo pid $$ ready; while :; do sleep 0.05; done",
                 signals[i].code, signals[i].name);
        start_sleepers(&proc, script, pids, 2);
        kill(proc.pid, signals[i].number);
        cr_assert(test_proc_wait(&proc, 10000), "SIG%s", signals[i].name);
        cr_assert_eq(test_proc_code(&proc), signals[i].code, "SIG%s: %s", signals[i].name, proc.text);
        says(proc.text, "[0] got it");
        says(proc.text, "[1] got it");
        test_proc_end(&proc);
    }
}

PSD_TEST(psrun, says_that_it_was_told_to_end)
{
    static const struct {
        const char *script;
        int code;
        const char *text;
    } cases[] = {
        {"echo pid $$ ready; exec sleep 600", 143, "psrun: psrun was told to end by signal 15 (SIGTERM)\n"},
        {"trap 'exit 9' TERM; echo pid $$ ready; while :; do sleep 0.05; done", 9,
         "psrun: psrun was told to end by signal 15 (SIGTERM); rank "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_proc proc;
        pid_t pids[2];
        start_sleepers(&proc, cases[i].script, pids, 2);
        kill(proc.pid, SIGTERM);
        cr_assert(test_proc_wait(&proc, 10000));
        cr_assert_eq(test_proc_code(&proc), cases[i].code, "%s", proc.text);
        says(proc.text, cases[i].text);
        test_proc_end(&proc);
    }
}

/* timeout(1) signals its child, and then its process group, in which that is again. */
PSD_TEST(psrun, two_signals_at_once_are_one)
{
    test_proc proc;
    pid_t pids[2];
    start_sleepers(
        &proc,
        "trap 'sleep 0.1; echo cleaned; exit 0' TERM INT; echo pid $$ ready; while :; do sleep 0.05; done",
        pids, 2);
    kill(proc.pid, SIGTERM);
    kill(proc.pid, SIGINT);
    cr_assert(test_proc_wait(&proc, 10000));
    says(proc.text, "[0] cleaned");
    says(proc.text, "[1] cleaned");
    test_proc_end(&proc);
}

PSD_TEST(psrun, no_orphans_after_sigkill)
{
    test_proc proc;
    pid_t pids[3];
    start_sleepers(&proc, "echo pid $$ ready; exec sleep 600", pids, 3);
    kill(proc.pid, SIGKILL);
    cr_assert(test_proc_wait(&proc, 10000));
    for (int i = 0; i < 3; i++)
        cr_assert(test_pid_gone(pids[i], 10000), "rank %d, pid %d, lives on", i, (int)pids[i]);
    test_proc_end(&proc);
}

/* A rank's children, in its process group or out of it, end with it. */
PSD_TEST(psrun, no_grandchildren_left)
{
    test_proc proc;
    pid_t pids[2];
    start_sleepers(&proc, "sleep 600 & echo pid $! ready; wait", pids, 2);
    kill(proc.pid, SIGTERM);
    cr_assert(test_proc_wait(&proc, 10000));
    for (int i = 0; i < 2; i++)
        cr_assert(test_pid_gone(pids[i], 5000), "pid %d lives on", (int)pids[i]);
    test_proc_end(&proc);
    start_sleepers(&proc, "setsid sh -c 'echo pid $$ ready; exec sleep 600' & sleep 600", pids, 2);
    kill(proc.pid, SIGTERM);
    cr_assert(test_proc_wait(&proc, 10000));
    for (int i = 0; i < 2; i++)
        cr_assert(test_pid_gone(pids[i], 5000), "pid %d, in a session of its own, lives on", (int)pids[i]);
    test_proc_end(&proc);
}

PSD_TEST(psrun, standalone)
{
    ends((const char *[]){"--standalone", "-n", "2", "--", SH, "-c", "echo at $PSD_COORDINATOR", NULL}, 0,
         "[1] at tcp://127.0.0.1:");
}

/* The private psd ends with psrun, however that ends. */
PSD_TEST(psrun, standalone_leaves_no_psd)
{
    static const int numbers[] = {SIGTERM, SIGKILL};
    for (int i = 0; i < 2; i++) {
        test_proc proc;
        /* A rank's brothers: the process whose parent is psrun and whose name is psd. */
        const char *script =
            "for p in /proc/[0-9]*; do read -r pid name state parent rest <$p/stat || continue; "
            "[ \"$name\" = '(psd)' ] && [ \"$parent\" = \"$PPID\" ] && echo psd $pid; "
            "done 2>/dev/null; echo ready; sleep 600";
        const char *argv[] = {test_path("bin/psrun"), "--standalone", "--", SH, "-c", script, NULL};
        cr_assert(test_proc_start(&proc, argv, NULL));
        cr_assert(test_proc_expect(&proc, "ready", 10000), "%s", proc.text);
        pid_t psd = number_after(proc.text, "[0] psd ");
        cr_assert_gt(psd, 1, "%s", proc.text);
        kill(proc.pid, numbers[i]);
        cr_assert(test_proc_wait(&proc, 10000));
        cr_assert(test_pid_gone(psd, 10000));
        test_proc_end(&proc);
    }
}

/* Two "hosts" that are shells here: blocks of ranks, quoting, the host in the closing line. */
PSD_TEST(psrun, hosts)
{
    char *output = NULL;
    const char *rsh = "env WHERE={host} sh -c {command}";
    cr_assert_eq(
        psrun((const char *[]){"-n", "3", "--hosts", "a,b", "--rsh", rsh, "--", SH, "-c",
                               "echo $WHERE $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE \"$0\"", "it's $HOME", NULL},
              &output),
        0, "%s", output);
    says(output, "[0] a 0 0 2 it's $HOME\n");
    says(output, "[1] a 1 1 2 it's $HOME\n");
    says(output, "[2] b 2 0 1 it's $HOME\n");
    says(output, "can be reached from this host only");
    free(output);
    ends((const char *[]){"-n", "2", "--hosts", "a,b", "--rsh", rsh, "--standalone", "--", SH, "-c",
                          "if [ $RANK = 1 ]; then exit 4; fi; sleep 600", NULL},
         4, "rank 1 (/bin/sh on b) exited with status 4");
}
