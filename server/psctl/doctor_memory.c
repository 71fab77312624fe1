/* Doctor: memory that ranks share, and how much there is. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/conf.h"
#include "server/psctl/doctor.h"

#define SHM_ENOUGH    (INT64_C(256) << 20)
#define MEMORY_ENOUGH (INT64_C(1) << 30)

void psctl_check_shm(psctl_report *report)
{
    struct statvfs fs;
    char free_text[32];
    char all_text[32];
    if (statvfs("/dev/shm", &fs) != 0) {
        psctl_report_add(report, "shm", PSCTL_WARN,
                         "/dev/shm: %s; psd uses memfds instead, other programs may need it",
                         strerror(errno));
        return;
    }
    int64_t bytes_free = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    psd_format_bytes(bytes_free, free_text, sizeof free_text);
    psd_format_bytes((int64_t)fs.f_blocks * (int64_t)fs.f_frsize, all_text, sizeof all_text);
    int error = psctl_try_file("/dev/shm");
    if (error != 0)
        psctl_report_add(report, "shm", PSCTL_WARN,
                         "/dev/shm cannot be written: %s (%s free of %s); check its mode, 1777",
                         strerror(error), free_text, all_text);
    else if (bytes_free < SHM_ENOUGH)
        psctl_report_add(report, "shm", PSCTL_WARN,
                         "/dev/shm has only %s free of %s; give a container more with --shm-size=1g",
                         free_text, all_text);
    else
        psctl_report_add(report, "shm", PSCTL_OK, "/dev/shm is writable and has %s free of %s", free_text,
                         all_text);
}

void psctl_check_memfd(psctl_report *report)
{
    const off_t bytes = 1 << 20;
    int fd = memfd_create("psctl-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        psctl_report_add(report, "memfd", PSCTL_FAIL,
                         "memfd_create: %s; the host backend shares memory this way: allow the call in the "
                         "container's seccomp profile",
                         strerror(errno));
        return;
    }
    int error = posix_fallocate(fd, 0, bytes);
    if (error != 0)
        psctl_report_add(report, "memfd", PSCTL_FAIL,
                         "posix_fallocate of 1 MiB in a memfd: %s; raise the memory limit", strerror(error));
    else
        psctl_report_add(report, "memfd", PSCTL_OK,
                         "shared segments can be made and reserved (memfd_create, posix_fallocate)");
    close(fd);
}

/* "MemAvailable:  123 kB" of /proc/meminfo, in bytes; -1 if it is not there. */
static int64_t meminfo(const char *name)
{
    char line[256];
    int64_t bytes = -1;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return -1;
    while (bytes < 0 && fgets(line, sizeof line, file) != NULL) {
        size_t length = strlen(name);
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            bytes = strtoll(line + length + 1, NULL, 10) * 1024;
    }
    fclose(file);
    return bytes;
}

void psctl_check_memory(psctl_report *report)
{
    char limit_line[64];
    char available_text[32];
    char limit_text[32] = "none";
    int64_t limit = -1;
    int64_t available = meminfo("MemAvailable");
    if (available < 0) {
        psctl_report_add(report, "memory", PSCTL_WARN,
                         "/proc/meminfo cannot be read: the available memory is not known");
        return;
    }
    if (psctl_read_line("/sys/fs/cgroup/memory.max", limit_line, sizeof limit_line) &&
        psd_parse_i64(limit_line, 0, INT64_MAX, &limit))
        psd_format_bytes(limit, limit_text, sizeof limit_text);
    psd_format_bytes(available, available_text, sizeof available_text);
    bool little = available < MEMORY_ENOUGH || (limit >= 0 && limit < MEMORY_ENOUGH);
    psctl_report_add(report, "memory", little ? PSCTL_WARN : PSCTL_OK,
                     "%s available, limit of this container: %s%s", available_text, limit_text,
                     little ? "; psd_tensor_alloc may run out: set PSD_POOL_LIMIT" : "");
}

void psctl_check_huge_pages(psctl_report *report)
{
    char policy[128];
    int64_t reserved = meminfo("HugePages_Total");
    if (!psctl_read_line("/sys/kernel/mm/transparent_hugepage/enabled", policy, sizeof policy)) {
        psctl_report_add(report, "huge-pages", PSCTL_OK,
                         "this kernel has no transparent huge pages; psd works without");
        return;
    }
    /* The file reads "always [madvise] never". */
    char *chosen = strchr(policy, '[');
    char *end = chosen != NULL ? strchr(chosen, ']') : NULL;
    if (end != NULL)
        *end = '\0';
    const char *word = end != NULL ? chosen + 1 : policy;
    bool never = strcmp(word, "never") == 0;
    /* HugePages_Total counts pages, meminfo() takes it for kB. */
    psctl_report_add(
        report, "huge-pages", PSCTL_OK, "transparent huge pages: %s%s; reserved huge pages: %" PRId64, word,
        never ? " (large tensors take more page faults)" : "", reserved > 0 ? reserved / 1024 : 0);
}
