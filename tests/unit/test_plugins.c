/* Backends in shared objects: where they are looked for, and what is refused. The objects are tests/plugins/. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"
#include "worker/backend/plugins.h"

static char objects[PATH_MAX];

static void use_test_plugins(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PSD_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    cr_assert_not_null(realpath(test_path("tests/plugins"), objects));
    setenv("PSD_BACKEND_DIR", objects, 1);
}

#define PLUGIN_TEST(name) PSD_TEST_WITH(plugins, name, .init = use_test_plugins, .timeout = 60)

static void expect_refused(const char *name, psd_status expected, const char *text)
{
    char why[1024] = "";
    const psd_backend_ops *ops = NULL;
    cr_assert_eq(psd_plugin_load(name, &ops, why, sizeof why), expected, "%s: %s", name, why);
    cr_assert(strstr(why, text) != NULL, "\"%s\" is not in: %s", text, why);
    cr_assert_null(ops);
}

/* A new directory, and in it a link to one of the test's objects. */
static void make_dir(char *dir, mode_t mode, const char *name)
{
    char object[PATH_MAX + 64], link_path[PATH_MAX];
    strcpy(dir, "/tmp/psd-plugins.XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(object, sizeof object, "%s/psd_backend_%s.so", objects, name);
    snprintf(link_path, sizeof link_path, "%s/psd_backend_%s.so", dir, name);
    cr_assert_eq(symlink(object, link_path), 0);
    cr_assert_eq(chmod(dir, mode), 0);
}

static void remove_dir(const char *dir, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/psd_backend_%s.so", dir, name);
    unlink(path);
    cr_assert_eq(rmdir(dir), 0);
}

PLUGIN_TEST(one_that_fits_is_opened_once)
{
    char why[1024] = "";
    const psd_backend_ops *first = NULL, *again = NULL;
    cr_assert_eq(psd_plugin_load("fits", &first, why, sizeof why), PSD_OK, "%s", why);
    cr_assert_str_eq(first->name, "fits");
    setenv("PSD_BACKEND_DIR", "/nonexistent", 1);
    cr_assert_eq(psd_plugin_load("fits", &again, why, sizeof why), PSD_OK, "%s", why);
    cr_assert_eq(first, again);
}

PLUGIN_TEST(each_fault_has_its_sentence)
{
    expect_refused("older", PSD_ERR_UNSUPPORTED, "this psd has 2; install both from one build");
    expect_refused("unfit", PSD_ERR_INVAL, "PSD_CAP_DEVICE_MEMORY does not agree");
    expect_refused("alias", PSD_ERR_UNSUPPORTED, "another name: original");
    expect_refused("stranger", PSD_ERR_UNSUPPORTED, "has no psd_backend_entry");
    expect_refused("carrier", PSD_ERR_NOT_FOUND,
                   "there is no backend \"carrier\"; PSD_BACKEND is one of: auto, host");
    expect_refused("carrier", PSD_ERR_NOT_FOUND, "fits");
    expect_refused("../fits", PSD_ERR_NOT_FOUND, "there is no backend \"../fits\"");
    expect_refused("nccl", PSD_ERR_NOT_FOUND, "backend nccl is not installed");
    expect_refused("mpi", PSD_ERR_NOT_FOUND, "libopenmpi-dev");
}

PLUGIN_TEST(a_file_that_is_no_object_is_told)
{
    char dir[64], path[128], why[1024] = "";
    const psd_backend_ops *ops = NULL;
    make_dir(dir, 0700, "fits");
    snprintf(path, sizeof path, "%s/psd_backend_fits.so", dir);
    unlink(path);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs("not an object\n", file);
    fclose(file);
    setenv("PSD_BACKEND_DIR", dir, 1);
    psd_status status = psd_plugin_load("fits", &ops, why, sizeof why);
    remove_dir(dir, "fits");
    cr_assert_eq(status, PSD_ERR_UNSUPPORTED);
    cr_assert(strstr(why, "backend fits cannot be loaded: ") != NULL, "%s", why);
}

PLUGIN_TEST(nothing_comes_from_where_everybody_writes)
{
    char dir[64], why[1024] = "";
    const psd_backend_ops *ops = NULL;
    make_dir(dir, 0777, "fits");
    setenv("PSD_BACKEND_DIR", dir, 1);
    psd_status open_dir = psd_plugin_load("fits", &ops, why, sizeof why);
    cr_expect(strstr(why, "can be written by everybody") != NULL, "%s", why);
    cr_assert_eq(chmod(dir, 01777), 0);
    psd_status sticky_dir = psd_plugin_load("fits", &ops, why, sizeof why);
    remove_dir(dir, "fits");
    cr_assert_eq(open_dir, PSD_ERR_REFUSED);
    cr_assert_eq(sticky_dir, PSD_ERR_REFUSED);
    setenv("PSD_BACKEND_DIR", "plugins", 1);
    expect_refused("fits", PSD_ERR_INVAL, "PSD_BACKEND_DIR is \"plugins\"; give an absolute path");
}

/* The library is in this program: ../lib/psd from it, whatever the current directory is. */
PLUGIN_TEST(the_default_is_below_the_installation)
{
    char expected[PATH_MAX + 64];
    unsetenv("PSD_BACKEND_DIR");
    cr_assert_eq(chdir(objects), 0);
    snprintf(expected, sizeof expected, "%.*s/unit/../lib/psd/psd_backend_mpi.so",
             (int)(strrchr(objects, '/') - objects), objects);
    expect_refused("mpi", PSD_ERR_NOT_FOUND, expected);
    expect_refused("fits", PSD_ERR_NOT_FOUND, "there is no backend \"fits\"");
}

PLUGIN_TEST(the_choice_says_why)
{
    char why[1024] = "";
    const psd_backend_ops *ops = NULL;
    cr_assert_eq(psd_backend_choose("fits", &ops, why, sizeof why), PSD_OK, "%s", why);
    cr_assert_str_eq(why, "fits, as asked for: a stub for tests");
    cr_assert_eq(psd_backend_choose("refuses", &ops, why, sizeof why), PSD_ERR_BACKEND);
    cr_assert_str_eq(why, "backend refuses cannot run here: there is no carrier");
    cr_assert_eq(psd_backend_choose("nccl", &ops, why, sizeof why), PSD_ERR_BACKEND);
    cr_assert_eq(psd_backend_choose("auto", &ops, why, sizeof why), PSD_OK);
    cr_assert_str_eq(ops->name, "host");
    cr_assert(strstr(why, "nccl: not installed; mpi: not started by MPI") != NULL, "%s", why);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    cr_assert_eq(psd_backend_choose("auto", &ops, why, sizeof why), PSD_OK);
    cr_assert(strstr(why, "mpi: not installed") != NULL, "%s", why);
    setenv("PSD_RANK", "3", 1); /* psrun's, below mpirun */
    cr_assert_eq(psd_backend_choose("auto", &ops, why, sizeof why), PSD_OK);
    cr_assert(strstr(why, "mpi: OMPI_COMM_WORLD_RANK is 0, but PSD_RANK is 3") != NULL, "%s", why);
}
