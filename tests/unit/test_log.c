/* The logger writes to the process's stderr; Criterion runs each test in its own process, so each may
 * redirect it. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/log.h"
#include "tests/lib/psd_test.h"

static int pipe_ends[2];

static void capture(void)
{
    cr_assert_eq(pipe(pipe_ends), 0);
    cr_assert_geq(dup2(pipe_ends[1], STDERR_FILENO), 0);
    close(pipe_ends[1]);
}

/* What was logged; the pipe holds it all. */
static void captured(char *out, size_t out_bytes)
{
    close(STDERR_FILENO);
    size_t used = 0;
    for (;;) {
        ssize_t got = read(pipe_ends[0], out + used, out_bytes - 1 - used);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    out[used] = '\0';
    close(pipe_ends[0]);
}

PSD_TEST(log, warnings_are_shown_by_default)
{
    char out[1024];
    unsetenv("PSD_DEBUG");
    capture();
    psd_log("agent", PSD_LOG_WARN, "rank %d is late", 7);
    psd_log("agent", PSD_LOG_INFO, "not this");
    captured(out, sizeof out);
    cr_assert_str_eq(out, "warn agent: rank 7 is late\n");
}

PSD_TEST(log, one_line_each_without_control_characters)
{
    char out[1024];
    capture();
    psd_log("psd", PSD_LOG_ERROR, "a\nb\x1b[31m");
    captured(out, sizeof out);
    cr_assert_str_eq(out, "error psd: a b [31m\n");
}

PSD_TEST(log, a_long_line_is_cut)
{
    static char text[10000];
    char out[10000];
    memset(text, 'x', sizeof text - 1);
    capture();
    psd_log("psd", PSD_LOG_ERROR, "%s", text);
    captured(out, sizeof out);
    cr_assert_lt(strlen(out), 5000);
    cr_assert_eq(out[strlen(out) - 1], '\n');
}

PSD_TEST(log, prefix)
{
    char out[1024];
    psd_log_prefix("rank 3 ");
    capture();
    psd_log("host", PSD_LOG_WARN, "x");
    captured(out, sizeof out);
    cr_assert_str_eq(out, "rank 3 warn host: x\n");
}

PSD_TEST(log, environment_is_read_at_the_first_use)
{
    setenv("PSD_DEBUG", "trace", 1);
    cr_assert(psd_log_enabled("plan", PSD_LOG_TRACE));
    setenv("PSD_DEBUG", "error", 1);
    cr_assert(psd_log_enabled("plan", PSD_LOG_TRACE));
}

PSD_TEST(log, bad_environment_is_told_and_ignored)
{
    char out[1024];
    setenv("PSD_DEBUG", "loud", 1);
    capture();
    cr_assert(psd_log_enabled("plan", PSD_LOG_WARN));
    cr_assert_not(psd_log_enabled("plan", PSD_LOG_INFO));
    captured(out, sizeof out);
    cr_assert_not_null(strstr(out, "PSD_DEBUG=loud is not understood"));
}

PSD_TEST(log, levels_by_subsystem)
{
    setenv("PSD_DEBUG", "agent=trace,error,host=info", 1);
    cr_assert(psd_log_enabled("agent", PSD_LOG_TRACE));
    cr_assert(psd_log_enabled("host", PSD_LOG_INFO));
    cr_assert_not(psd_log_enabled("host", PSD_LOG_TRACE));
    cr_assert_not(psd_log_enabled("ops", PSD_LOG_WARN));
    cr_assert_not(psd_log_enabled("elsewhere", PSD_LOG_WARN));
    cr_assert(psd_log_enabled("elsewhere", PSD_LOG_ERROR));
}

/* The environment is read once in a process, so each of these has its own. */
PSD_TEST(log, a_bad_spec_changes_nothing)
{
    static const char *const bad[] = {"",      "loud",  "agent=",        "=warn",       "nosuch=warn",
                                      "warn,", ",warn", "agent=trace,x", "agent:trace", "WARN"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int status = 0;
        pid_t pid = fork();
        cr_assert_geq(pid, 0);
        if (pid == 0) {
            setenv("PSD_DEBUG", bad[i], 1);
            bool same = psd_log_enabled("agent", PSD_LOG_WARN) && !psd_log_enabled("agent", PSD_LOG_INFO);
            _exit(same ? 0 : 1);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_eq(status, 0, "%s", bad[i]);
    }
}
