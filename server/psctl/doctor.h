/* The checks of `psctl doctor`: each adds what it found to a report. They leave nothing behind and change
 * nothing. */
#ifndef PSD_PSCTL_DOCTOR_H
#define PSD_PSCTL_DOCTOR_H

#include "server/psctl/psctl.h"

typedef enum psctl_finding_level {
    PSCTL_OK = 1,
    PSCTL_WARN = 2, /* psd works, slower or with less */
    PSCTL_FAIL = 3, /* psd does not work here */
} psctl_finding_level;

typedef struct psctl_finding {
    const char *check; /* a static name */
    psctl_finding_level level;
    char text[400]; /* a sentence */
} psctl_finding;

enum { PSCTL_MOST_FINDINGS = 32 };

typedef struct psctl_report {
    psctl_finding findings[PSCTL_MOST_FINDINGS];
    int count;
} psctl_report;

void psctl_report_add(psctl_report *report, const char *check, psctl_finding_level level, const char *format,
                      ...) __attribute__((format(printf, 4, 5)));

void psctl_check_coordinator(psctl_report *report, const psctl_options *options); /* doctor_network.c */
void psctl_check_loopback(psctl_report *report);
void psctl_check_shm(psctl_report *report); /* doctor_memory.c */
void psctl_check_memfd(psctl_report *report);
void psctl_check_memory(psctl_report *report);
void psctl_check_huge_pages(psctl_report *report);
void psctl_check_single_copy(psctl_report *report); /* doctor_process.c */
void psctl_check_files(psctl_report *report);
void psctl_check_cores(psctl_report *report);
void psctl_check_run_dir(psctl_report *report);
void psctl_check_installed(psctl_report *report); /* doctor_backends.c */
void psctl_check_nccl(psctl_report *report);
void psctl_check_cuda(psctl_report *report);
void psctl_check_mpi(psctl_report *report);

/* The first line of a small file such as those in /proc and /sys, without its newline; false if it cannot be
 * read. */
bool psctl_read_line(const char *path, char *out, size_t out_bytes);
/* Makes, fills and removes a file in this directory; 0, or the errno. */
int psctl_try_file(const char *directory);

#endif
