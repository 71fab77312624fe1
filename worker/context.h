/* The context, as the parts of the library see it. Users see only psd.h.
 *
 * Fields above the line do not change between psd_init and psd_finalize and may be read by any thread. Each
 * of the parts below it has its own locks. */
#ifndef PSD_CONTEXT_H
#define PSD_CONTEXT_H

#include <stdatomic.h>

#include "worker/agent.h"
#include "worker/backend/backend.h"
#include "worker/coalesced.h"
#include "worker/config.h"
#include "worker/error.h"
#include "worker/groups.h"
#include "worker/hang.h"
#include "worker/pool.h"
#include "worker/psd.h"
#include "worker/recorder.h"
#include "worker/works.h"

/* Owned by plans.c and tables.c: NULL until first used. */
typedef struct psd_plans psd_plans;
typedef struct psd_tables psd_tables;

struct psd_ctx {
    psd_settings settings;
    unsigned forks; /* of the process, at psd_init: a child of fork() cannot use its parent's context */
    psd_ident ident;
    int32_t rank;
    int32_t world;
    psd_agent *agent;
    const psd_backend_ops *ops;
    psd_backend *backend;
    bool has_streams;     /* PSD_CAP_DEVICE_MEMORY: operations are queued on streams of a device */
    int32_t device_index; /* that device; -1: none */
    /* ---- */
    psd_recorder recorder;
    psd_hang hang; /* the agent's thread's */
    psd_pool pool;
    psd_groups groups;
    psd_works works;
    psd_buckets buckets;
    _Atomic int ended; /* PSD_OK, or why the whole context is over (PSD_ERR_STOPPED, PSD_ERR_REFUSED, ...) */
    bool psd_is_gone;  /* and that has been told: psd_finalize takes no leave of it */
    char ended_text[PSD_MAX_TEXT]; /* written before `ended`, once */
    pthread_mutex_t parts_lock;    /* making plans and tables, and the end */
    _Atomic(psd_plans *) plans;
    _Atomic(psd_tables *) tables;
};

/* Is it a context of this process? `verb` is the public function's name, for the sentence. */
psd_status psd_ctx_check(PSD_AT, const char *verb, const psd_ctx *ctx);
/* As psd_ctx_check; also an error once the context is over (the job was stopped, psd refused this rank). */
psd_status psd_ctx_live(PSD_AT, const char *verb, psd_ctx *ctx);

/* The context is over for this reason, and all its groups are broken with it. Any thread; the first stays. */
void psd_ctx_end(psd_ctx *ctx, psd_status status, const char *text);

/* The deadline of a request or operation that starts now: timeout_ms 0 takes the context's default. */
psd_time_ns psd_ctx_deadline(const psd_ctx *ctx, int64_t timeout_ms);

/* Frees what plans.c and tables.c keep for the context; at finalize, before groups are closed. */
void psd_plans_release(psd_ctx *ctx);
void psd_plans_tell(psd_ctx *ctx); /* with a heartbeat: progress that is not told yet */
void psd_tables_release(psd_ctx *ctx);

#endif
