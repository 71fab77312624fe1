/* Child processes of integration tests: started with pipes, read and waited for with deadlines, ended for
 * certain. */
#ifndef PSD_TEST_PROC_H
#define PSD_TEST_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct test_proc {
    pid_t pid;
    int out;    /* stdout and stderr of the child, non-blocking */
    int status; /* waitpid's, once `ended` */
    bool ended;
    char *text; /* all output so far, NUL-terminated */
    size_t bytes;
    size_t capacity;
} test_proc;

/* The path of a built program: "bin/psd" below $PSD_BUILD (default build). Static memory of 8 slots. */
const char *test_path(const char *below_build);

/* Starts argv[0] (a path) with argv, NULL-terminated; env: "NAME=value" strings to add, NULL-terminated, or
 * NULL. The child dies with the test. */
bool test_proc_start(test_proc *proc, const char *const argv[], const char *const env[]);

/* Reads output until `needle` is in it; false when the deadline passes or the child ends without it. */
bool test_proc_expect(test_proc *proc, const char *needle, int timeout_ms);

/* Waits for the end, reading output; false when the deadline passes. */
bool test_proc_wait(test_proc *proc, int timeout_ms);

/* Exit code; 128 + signal when ended by one; -1 while running. */
int test_proc_code(const test_proc *proc);

/* SIGKILLs it if it runs, reaps it, frees the text. Accepts a zeroed struct. */
void test_proc_end(test_proc *proc);

/* Start, wait, and give the exit code (-1 on a passed deadline); *text is malloc'ed output if text is not
 * NULL. */
int test_run(const char *const argv[], const char *const env[], int timeout_ms, char **text);

/* Does a process with this id exist (zombies do not count)? Polls until it is gone or the deadline passes. */
bool test_pid_gone(pid_t pid, int timeout_ms);

/* Polls `condition(arg)` every few milliseconds until it holds or the deadline passes. */
bool test_until(bool (*condition)(void *arg), void *arg, int timeout_ms);

#endif
