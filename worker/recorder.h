/* The operation recorder of a context: a ring of records in a file that others can map, see common/record.h.
 *
 * Threads: any thread may begin and end records and publish waits, without locks. open and close are
 * called by one thread. With PSD_RECORD=off `file` is NULL and every call is a no-op that gives 0. */
#ifndef PSD_RECORDER_H
#define PSD_RECORDER_H

#include "common/clock.h"
#include "common/record.h"
#include "worker/psd.h"

#define PSD_RECORD_THREADS   256 /* that have used a context, and are known */
#define PSD_RECORD_DEAD_KEPT 64  /* files of dead processes kept for each job */

typedef struct psd_recorder {
    psd_record_file *file;    /* mapped; NULL: recording is off */
    char path[512];           /* "": anonymous memory, seen by this process only */
    bool own_dir;             /* the file is in the default directory, which goes with its last file */
    int fd;                   /* locked (flock) while the process lives, so that others know; -1: none */
    _Atomic uint64_t waiters; /* bit i: file->waits[i] is in use */
    uint64_t id;              /* of this recorder in the process, never 0 when open */
    _Atomic uint32_t threads[PSD_RECORD_THREADS]; /* kernel thread ids; 0: free */
    _Atomic bool has_more_threads;                /* than that */
} psd_recorder;

typedef struct psd_recorder_config {
    bool off;
    const char *run_dir; /* NULL: $XDG_RUNTIME_DIR/psd, else /dev/shm/psd-<uid> */
    psd_ident ident;
} psd_recorder_config;

/* Never fails for want of space or of a directory: then it warns once and records into anonymous memory.
 * PSD_ERR_NOMEM only. */
psd_status psd_recorder_open(psd_recorder *recorder, const psd_recorder_config *config);
void psd_recorder_joined(psd_recorder *recorder, int32_t rank, int32_t world);
/* Unmaps, and removes the file, and the default directory if nothing else is in it: a clean exit leaves nothing
 * behind. A directory that PSD_RUN_DIR named stays. */
void psd_recorder_close(psd_recorder *recorder);

/* Beside the record file, where the backend's library may write its log: lives and goes with that file. Writes
 * the path into `out` and returns it; NULL without a file. */
const char *psd_recorder_log_file(const psd_recorder *recorder, char *out, size_t out_bytes);

/* What a record says of an operation when it starts. */
typedef struct psd_record_start {
    psd_time_ns now;
    psd_op_kind kind;
    psd_redop redop;
    const psd_tensor *tensor; /* NULL: none */
    int64_t count;
    int32_t peer; /* or root, or -1 */
    int32_t tag;
    uint32_t group;
    uint64_t epoch;
    const char *file;
    int line;
} psd_record_start;

/* The record's seq; 0 when off. */
uint64_t psd_record_begin(psd_recorder *recorder, const psd_record_start *start);
void psd_record_end(psd_recorder *recorder, uint64_t seq, psd_status status, int32_t peer, uint64_t ordinal);

/* How a thread waits; or-ed. */
#define PSD_WAIT_ALL 0u
#define PSD_WAIT_ANY 1u
#define PSD_WAIT_TIMED                                                                                       \
    2u /* with a timeout that the caller gave for this wait: it ends by itself, and is no hang */

/* Publishes that this thread is about to block on these records. A slot for psd_record_wait_end, or -1. */
int psd_record_wait_begin(psd_recorder *recorder, const uint64_t *seqs, int32_t count, uint32_t how);
void psd_record_wait_end(psd_recorder *recorder, int slot);

/* A whole copy of the record, if it is still there. */
bool psd_record_read(const psd_recorder *recorder, uint64_t seq, psd_record *out);
/* The threads that have begun records, also those that have ended. With more than fit, the last one is this process's
 * agent: a thread that never waits. */
uint32_t psd_recorder_threads(const psd_recorder *recorder, uint32_t out[PSD_RECORD_THREADS]);

/* What a record says, in the form of messages; false: it is not there any more. */
bool psd_record_describe(const psd_recorder *recorder, uint64_t seq, psd_time_ns now, psd_current_op *out);
/* The oldest operation still in flight; kind 0 if none. */
void psd_record_current(const psd_recorder *recorder, psd_time_ns now, psd_current_op *out);
/* The last operations as rows, as many as one message holds at most; free() *memory. PSD_ERR_UNSUPPORTED when off,
 * PSD_ERR_NOMEM. */
psd_status psd_recorder_last(const psd_recorder *recorder, psd_time_ns now, uint32_t limit,
                             psd_msg_reply *out, void **memory);
uint64_t psd_record_done(const psd_recorder *recorder); /* operations completed */

/* For psd_recorder_open (recorder_file.c): makes the file in PSD_RUN_DIR or its default, sees to ownership
 * and room, and reclaims what dead processes left. On failure `why` says what to do and nothing is left. */
psd_status psd_recorder_file_make(const psd_recorder_config *config, psd_recorder *recorder, char *why,
                                  size_t why_bytes);
void psd_recorder_file_remove(const char *path, bool with_dir); /* and its log; best effort */

#endif
