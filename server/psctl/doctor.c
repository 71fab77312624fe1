#include "server/psctl/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "common/conf.h"
#include "server/psctl/text.h"
#include "server/psctl/view.h"

static const char *const level_names[] = {NULL, "ok", "warn", "fail"};

void psctl_report_add(psctl_report *report, const char *check, psctl_finding_level level, const char *format,
                      ...)
{
    if (report->count == PSCTL_MOST_FINDINGS)
        return;
    psctl_finding *finding = &report->findings[report->count++];
    va_list args;
    finding->check = check;
    finding->level = level;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
}

bool psctl_read_line(const char *path, char *out, size_t out_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, out, out_bytes - 1);
    close(fd);
    if (got < 0)
        return false;
    out[got] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return true;
}

int psctl_try_file(const char *directory)
{
    char path[512];
    snprintf(path, sizeof path, "%.400s/psctl-doctor-XXXXXX", directory);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = posix_fallocate(fd, 0, 65536);
    unlink(path);
    close(fd);
    return error;
}

static void print_people(const psctl_report *report)
{
    static const char *const colours[] = {NULL, "\x1b[32m", "\x1b[33m", "\x1b[31m"};
    bool coloured = psctl_text_colours();
    int count[4] = {0};
    for (int i = 0; i < report->count; i++) {
        const psctl_finding *finding = &report->findings[i];
        char text[sizeof finding->text];
        psctl_text_clean(finding->text, text, sizeof text);
        printf("%s%-4s%s  %-12s  %s\n", coloured ? colours[finding->level] : "", level_names[finding->level],
               coloured ? "\x1b[0m" : "", finding->check, text);
        count[finding->level]++;
    }
    printf("%d ok, %d warn, %d fail\n", count[PSCTL_OK], count[PSCTL_WARN], count[PSCTL_FAIL]);
}

static bool print_json(const psctl_report *report)
{
    json_t *array = json_array();
    bool fine = array != NULL;
    for (int i = 0; i < report->count && fine; i++) {
        const psctl_finding *finding = &report->findings[i];
        char text[sizeof finding->text];
        psctl_text_clean(finding->text, text, sizeof text);
        json_t *item = json_pack("{s:s, s:s, s:s}", "check", finding->check, "result",
                                 level_names[finding->level], "text", text);
        fine = item != NULL && json_array_append_new(array, item) == 0;
    }
    if (fine)
        fine = json_dumpf(array, stdout, JSON_COMPACT) == 0;
    json_decref(array);
    putchar('\n');
    return fine;
}

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    static psctl_report report;
    bool fine = true;
    if (!psctl_no_arguments("doctor", argc, argv))
        return PSCTL_USAGE;
    psctl_check_coordinator(&report, options);
    psctl_check_loopback(&report);
    psctl_check_shm(&report);
    psctl_check_memfd(&report);
    psctl_check_memory(&report);
    psctl_check_huge_pages(&report);
    psctl_check_single_copy(&report);
    psctl_check_files(&report);
    psctl_check_cores(&report);
    psctl_check_run_dir(&report);
    psctl_check_installed(&report);
    psctl_check_cuda(&report);
    psctl_check_nccl(&report);
    psctl_check_mpi(&report);
    if (options->json)
        fine = print_json(&report);
    else
        print_people(&report);
    for (int i = 0; i < report.count; i++)
        fine = fine && report.findings[i].level != PSCTL_FAIL;
    return fine ? PSCTL_FINE : PSCTL_FAILED;
}

const psctl_command psctl_doctor = {
    .name = "doctor",
    .arguments = "[options]",
    .summary = "check what psd needs on this machine",
    .details = "A sentence for each check, with ok, warn (it works, with less) or fail (it does not). Exit "
               "code 1 if\n"
               "one failed. That psd is not running is a failure only if its address was given.\n",
    .options = PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON,
    .run = run,
};
