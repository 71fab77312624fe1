/* What a newcomer does after `make install`: the program and the compiler lines of the READMEs, taken out of
 * them, against an installation in a directory of its own. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

#define LIMIT_MS 100000

/* A sanitizer's library needs a program that is built alike, by the same compiler. */
#ifdef __clang__
#define COMPILER "clang"
#else
#define COMPILER "gcc"
#endif
#ifdef PSD_TEST_ASAN
#define SANITIZE " -fsanitize=address,undefined"
#else
#define SANITIZE ""
#endif

static char root[] = "/tmp/psd-install-test-XXXXXX";
static char tree[512]; /* the sources */

/* Runs a line of shell in `directory`, where cc, pkg-config, psrun and the library are those of the
 * installation; its output, to be freed. */
static char *shell(const char *directory, const char *format, const char *line)
{
    char script[4096];
    char *text = NULL;
    int used =
        snprintf(script, sizeof script,
                 "set -e; cd '%s'; D='%s'; cc() { command " COMPILER SANITIZE " \"$@\"; }\n"
                 "export PATH=\"$D/usr/local/bin:$PATH\" LD_LIBRARY_PATH=\"$D/usr/local/lib\"\n"
                 "export PKG_CONFIG_PATH=\"$D/usr/local/lib/pkgconfig\" PKG_CONFIG_SYSROOT_DIR=\"$D\"\n",
                 directory, root);
    snprintf(script + used, sizeof script - (size_t)used, format, line);
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    int code = test_run(argv, NULL, LIMIT_MS, &text);
    cr_assert_eq(code, 0, "exit %d: %s\n%s", code, script, text);
    return text;
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file, "%s", path);
    char *text = calloc(1, 65536);
    cr_assert_gt(fread(text, 1, 65535, file), 0);
    fclose(file);
    return text;
}

/* What lies between `begin` and `end` in a file of the tree; to be freed. */
static char *cut(const char *path, const char *begin, const char *end)
{
    char *text = read_file(path);
    const char *from = strstr(text, begin);
    cr_assert_not_null(from, "%s has no \"%s\"", path, begin);
    from += strlen(begin);
    const char *to = strstr(from, end);
    cr_assert_not_null(to, "%s: no end", path);
    char *part = strndup(from, (size_t)(to - from));
    free(text);
    return part;
}

static void install(void)
{
    cr_assert_not_null(mkdtemp(root));
    cr_assert_not_null(getcwd(tree, sizeof tree));
    /* What is built, as it is: `all` is taken for done. */
    const char *build = test_path("");
    char line[1024];
    snprintf(line, sizeof line, "make -s -o all BUILD='%.*s' DESTDIR=\"$D\" PREFIX=/usr/local install",
             (int)strlen(build) - 1, build);
    free(shell(tree, "%s", line));
}

static void uninstall(void)
{
    char line[128];
    snprintf(line, sizeof line, "rm -r '%s'", root);
    cr_assert_eq(system(line), 0);
}

#define INSTALL_TEST(name) PSD_TEST_WITH(install, name, .init = install, .fini = uninstall, .timeout = 200)

INSTALL_TEST(the_readmes_program)
{
    char *program = cut("README.md", "```c\n", "```");
    char *compile = cut("README.md", "    cc first.c $(", "\n");
    char path[600];
    snprintf(path, sizeof path, "%s/first.c", root);
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file);
    fputs(program, file);
    fclose(file);
    free(shell(root, "cc -Wall -Werror first.c $(%s", compile));
    char *text = shell(root, "%s", "psrun --standalone -n 2 -- ./first");
    cr_assert_not_null(strstr(text, "rank 0 of 2: 2 4 6 8"), "%s", text);
    cr_assert_not_null(strstr(text, "rank 1 of 2: 2 4 6 8"), "%s", text);
    free(text);
    free(compile);
    free(program);
}

INSTALL_TEST(what_is_there)
{
    static const char *const files[] = {"bin/psd",
                                        "bin/psrun",
                                        "bin/psctl",
                                        "bin/psworker",
                                        "bin/psd-bench",
                                        "include/psd.h",
                                        "lib/libpsd.so",
                                        "lib/libpsd.so.0",
                                        "share/man/man1/psd.1",
                                        "include/psd_types.h",
                                        "lib/pkgconfig/psd.pc",
                                        "share/man/man7/psd-environment.7"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/usr/local/%s", root, files[i]);
        cr_assert_eq(access(path, R_OK), 0, "%s", path);
    }
    char *version = shell(root, "%s", "pkg-config --modversion psd");
    cr_assert_eq(strncmp(version, PSD_VERSION "\n", strlen(PSD_VERSION) + 1), 0, "%s", version);
    free(version);
}

/* Each with the line that worker/examples/README.md gives. */
INSTALL_TEST(the_examples_compile)
{
    glob_t found;
    char *compile = cut("worker/examples/README.md", "    cc -std=c11 train.c $(", " -o train\n");
    cr_assert_eq(glob("worker/examples/*.c", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char line[1024];
        snprintf(line, sizeof line, "cc -std=c11 -Wall -Werror '%s/%s' $(%s -o train", tree,
                 found.gl_pathv[i], compile);
        free(shell(root, "%s", line));
    }
    globfree(&found);
    free(compile);
}
