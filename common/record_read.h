/* Reading a recorder's file: from memory that its owner goes on writing, or from the file of a process that has died. All
 * that such a file says is hostile until checked. */
#ifndef PSD_COMMON_RECORD_READ_H
#define PSD_COMMON_RECORD_READ_H

#include "common/clock.h"
#include "common/record.h"

#define PSD_RECORD_COLUMNS 12

/* A whole copy of the record with this seq; false: its place was taken, or it changed meanwhile. */
bool psd_record_copy(const psd_record_file *file, uint64_t seq, psd_record *out);

/* Is it such a file, of a size and a version that this program knows? PSD_ERR_FORMAT, and `why` says what is wrong. */
psd_status psd_record_check(const psd_record_file *file, uint64_t bytes, char *why, size_t why_bytes);

/* Reads a file whole: `*out` is malloc'd, has been checked, and holds no record that was being written. PSD_ERR_IO,
 * PSD_ERR_FORMAT or PSD_ERR_NOMEM, and `why`. */
psd_status psd_record_load(const char *path, psd_record_file **out, char *why, size_t why_bytes);

/* The texts of a row. */
typedef struct psd_record_row {
    char name[PSD_MAX_NAME];
    char site[PSD_MAX_SITE + 16];
} psd_record_row;

/* Fills the reply with a row for each of the last operations, oldest first, at most `capacity`, and a line about whose they
 * are. Ages count back from `now`; 0: from the last thing that was recorded. The reply's cells are in `cells`, which has room
 * for capacity * PSD_RECORD_COLUMNS, its texts in `rows`. */
void psd_record_table(const psd_record_file *file, psd_time_ns now, uint32_t capacity, psd_record_row *rows,
                      psd_cell *cells, psd_msg_reply *out);

#endif
