/* The operation recorder's file: one per context, in PSD_RUN_DIR, mapped by its owner and readable by others
 * while it lives and after it died. A header page, the wait records of the context's threads, then a ring of
 * op records. Fixed little-endian layout; a reader checks magic, version and sizes before it believes
 * anything. */
#ifndef PSD_COMMON_RECORD_H
#define PSD_COMMON_RECORD_H

#include <stdatomic.h>

#include "common/msg.h"

#define PSD_RECORD_MAGIC   UINT64_C(0x31434552445350) /* "PSDREC1" */
#define PSD_RECORD_VERSION 1
#define PSD_RECORD_RING    4096 /* records; a power of two */
#define PSD_RECORD_WAITERS 64   /* threads of a context that may wait at the same time and be seen */
#define PSD_RECORD_WORKS   8    /* works named in a wait record */

typedef enum psd_op_state {
    PSD_STATE_FREE = 0,
    PSD_STATE_POSTED = 1, /* started, not complete */
    PSD_STATE_DONE = 2,
    PSD_STATE_FAILED = 3,
} psd_op_state;

/* Written by the thread that starts the op; `seq` is stored last (release), so a reader that finds the same
 * seq before and after has a whole record. Times are psd_now_ns. */
typedef struct psd_record {
    _Atomic uint64_t seq; /* 1, 2, ... per context; slot = seq % PSD_RECORD_RING */
    int64_t posted_ns;
    int64_t done_ns; /* 0 while in flight */
    uint64_t
        ordinal; /* collectives: per group. sends: per (group, dst). receives: taken at the match; 0 before */
    uint64_t epoch;
    uint32_t group;
    int32_t peer; /* group rank of the peer or root; -1: none or any */
    int32_t tag;
    int32_t status; /* psd_status once done */
    int64_t count;  /* elements */
    int64_t shape[4];
    uint32_t thread; /* kernel thread id */
    uint32_t line;
    uint8_t kind;  /* psd_op_kind */
    uint8_t state; /* psd_op_state */
    uint8_t dtype;
    uint8_t redop;
    uint8_t ndim; /* dimensions of the tensor; only the first 4 are kept */
    uint8_t reserved[3];
    char name[PSD_MAX_NAME - 16]; /* tensor, cut */
    char file[PSD_MAX_SITE];      /* tail of the path */
} psd_record;

/* What a thread is blocked on inside psd. `seq` is odd while the record is valid, even when the thread is
 * running. */
typedef struct psd_wait_record {
    _Atomic uint64_t seq;
    uint32_t thread;
    uint32_t any; /* 1: waits for any of the works, 0: for all */
    int64_t since_ns;
    uint32_t count; /* works waited for; only the first PSD_RECORD_WORKS are named */
    uint32_t timed; /* 1: the caller set a timeout, so that the thread comes back whatever the works do */
    uint64_t works[PSD_RECORD_WORKS]; /* record seqs */
} psd_wait_record;

typedef struct psd_record_file {
    uint64_t magic;
    uint32_t version;
    uint32_t record_bytes; /* sizeof(psd_record) */
    uint32_t ring;
    uint32_t waiters;
    psd_ident ident;
    int32_t rank;
    int32_t world;
    uint32_t pid;
    uint32_t reserved;
    _Atomic uint64_t next; /* seq of the next record to be written */
    _Atomic uint64_t done; /* operations completed */
    psd_wait_record waits[PSD_RECORD_WAITERS];
    psd_record records[PSD_RECORD_RING];
} psd_record_file;

#endif
