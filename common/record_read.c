#include "common/record_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/conf.h"

#define WORDS (sizeof(psd_record) / sizeof(uint64_t))

_Static_assert(sizeof(psd_record) % sizeof(uint64_t) == 0, "records are copied in words");
_Static_assert(offsetof(psd_record, seq) == 0, "the seq is read apart from the other words");

bool psd_record_copy(const psd_record_file *file, uint64_t seq, psd_record *out)
{
    const psd_record *slot = &file->records[seq % PSD_RECORD_RING];
    const uint64_t *from = (const uint64_t *)(const void *)slot;
    uint64_t *to = (uint64_t *)(void *)out;
    if (seq == 0 || atomic_load_explicit(&slot->seq, memory_order_acquire) != seq)
        return false;
    to[0] = seq;
    for (size_t i = 1; i < WORDS; i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
    return atomic_load_explicit(&slot->seq, memory_order_relaxed) == seq;
}

/* ------------------------------------------------------------------------------------------------ check */

static psd_status refuse(char *why, size_t why_bytes, const char *text)
{
    snprintf(why, why_bytes, "%s", text);
    return PSD_ERR_FORMAT;
}

static bool is_text(const char *text, size_t bytes)
{
    size_t length = strnlen(text, bytes);
    return length < bytes && psd_utf8_valid(text, length);
}

psd_status psd_record_check(const psd_record_file *file, uint64_t bytes, char *why, size_t why_bytes)
{
    if (bytes < offsetof(psd_record_file, ident) || file->magic != PSD_RECORD_MAGIC)
        return refuse(why, why_bytes, "it is not a recorder's file, or its process died before it began");
    if (file->version != PSD_RECORD_VERSION) {
        snprintf(why, why_bytes, "it has format version %u, this program reads version %d", file->version,
                 PSD_RECORD_VERSION);
        return PSD_ERR_FORMAT;
    }
    if (file->record_bytes != sizeof(psd_record) || file->ring != PSD_RECORD_RING ||
        file->waiters != PSD_RECORD_WAITERS || bytes != sizeof *file)
        return refuse(why, why_bytes, "it is cut off, or was written by another build of psd");
    if (!is_text(file->ident.job, sizeof file->ident.job) ||
        !is_text(file->ident.name, sizeof file->ident.name) || file->rank < -1 ||
        file->rank >= PSD_MAX_WORLD || file->world < 0 || file->world > PSD_MAX_WORLD)
        return refuse(why, why_bytes, "what it says of its owner cannot be");
    return PSD_OK;
}

/* ------------------------------------------------------------------------------------------------- load */

/* Reads what is there, up to `bytes`; false and errno. */
static bool read_all(int fd, void *out, size_t bytes, size_t *got)
{
    ssize_t last = 1;
    *got = 0;
    while (*got < bytes && last > 0) {
        last = pread(fd, (char *)out + *got, bytes - *got, (off_t)*got);
        if (last < 0 && errno == EINTR)
            last = 1;
        else if (last > 0)
            *got += (size_t)last;
    }
    return last >= 0;
}

/* What was being written while it was read is dropped: its seq is another one, or none, afterwards. */
static void drop_torn(psd_record_file *file, const psd_record_file *again)
{
    for (size_t i = 0; i < PSD_RECORD_RING; i++) {
        uint64_t seq = atomic_load_explicit(&file->records[i].seq, memory_order_relaxed);
        if (atomic_load_explicit(&again->records[i].seq, memory_order_relaxed) != seq)
            atomic_store_explicit(&file->records[i].seq, 0, memory_order_relaxed);
    }
}

static psd_status load_open(int fd, psd_record_file *file, psd_record_file *again, char *why,
                            size_t why_bytes)
{
    struct stat st;
    size_t got = 0, got_again = 0;
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
        return refuse(why, why_bytes, "it is not a plain file");
    if (fstat(fd, &st) != 0 || !read_all(fd, file, sizeof *file, &got) ||
        !read_all(fd, again, sizeof *again, &got_again)) {
        snprintf(why, why_bytes, "cannot read it: %s", strerror(errno));
        return PSD_ERR_IO;
    }
    psd_status status =
        psd_record_check(file, got == sizeof *file ? (uint64_t)st.st_size : got, why, why_bytes);
    if (status == PSD_OK && got_again != sizeof *again)
        status = refuse(why, why_bytes, "it was cut off while it was read");
    if (status == PSD_OK)
        drop_torn(file, again);
    return status;
}

psd_status psd_record_load(const char *path, psd_record_file **out, char *why, size_t why_bytes)
{
    psd_status status = PSD_ERR_NOMEM;
    psd_record_file *file = calloc(1, sizeof *file), *again = calloc(1, sizeof *again);
    int fd = -1;
    snprintf(why, why_bytes, "out of memory");
    if (file == NULL || again == NULL)
        goto done;
    fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, why_bytes, "cannot open it: %s", strerror(errno));
        status = PSD_ERR_IO;
        goto done;
    }
    status = load_open(fd, file, again, why, why_bytes);
    close(fd);
    if (status == PSD_OK) {
        *out = file;
        file = NULL;
    }
done:
    free(again);
    free(file);
    return status;
}
