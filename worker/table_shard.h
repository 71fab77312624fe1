/* A server's part of one table: its shard of the parameters, a slot for each trainer's gradients, and the
 * clock. The serve loop owns shards and is the only thread that uses them, but for the thread that joins the
 * group.
 *
 *     ASSIGNED --all trainers said JOIN--> JOINING --group open--> JOINED --initial values came--> ready
 *
 * A request that comes before the state allows it is kept, one for each trainer. */
#ifndef PSD_TABLE_SHARD_H
#define PSD_TABLE_SHARD_H

#include "worker/backend/kernels.h"
#include "worker/context.h"
#include "worker/optim.h"
#include "worker/table_layout.h"
#include "worker/table_transfer.h"
#include "worker/table_wire.h"

typedef enum shard_phase {
    SHARD_ASSIGNED = 0,
    SHARD_JOINING = 1,
    SHARD_JOINED = 2,
    SHARD_FAILED = 3, /* `why` says how; only waits to be freed */
} shard_phase;

typedef enum push_phase {
    PUSH_NONE = 0,
    PUSH_RECEIVING = 1,
    PUSH_RECEIVED = 2, /* waits for the others' gradients of this clock */
} push_phase;

/* One trainer, as this shard knows it. */
typedef struct shard_trainer {
    uint32_t world_rank;
    bool has_joined;
    bool has_kept;
    table_msg kept;       /* came before the group was open */
    uint64_t incarnation; /* of its first push; 0: none yet */
    uint64_t sequence;    /* of its last push that was taken */
    push_phase push;
    table_msg refused;       /* kind 0, or the refusal to send once the data of a wrong push is drained */
    float *grads;            /* [elements] */
    table_transfer incoming; /* into grads */
    table_transfer outgoing; /* a pull */
} shard_trainer;

typedef struct table_shard {
    struct table_shard *next; /* the serve loop's list */
    psd_ctx *ctx;
    const char *file; /* the place of psd_serve */
    int line;
    uint32_t id;
    char name[PSD_MAX_NAME];
    optim opt;
    uint32_t server; /* index among the servers */
    size_t elements;
    psd_tensor memory; /* values, velocity and gradients, one behind the other */
    float *values;
    float *velocity; /* NULL: the optimizer needs none */
    size_t
        stride; /* elements from one of these arrays to the next: `elements`, or a little more on a device */
    const psd_kernels *kernels; /* NULL: in host memory */
    uint32_t trainer_count;
    shard_trainer *trainers;
    const float **grads; /* [trainer_count], for the optimizer */
    uint32_t member_count;
    uint32_t *members; /* servers, then trainers */
    _Atomic int phase; /* shard_phase; written by the joining thread when it ends */
    bool has_thread;
    pthread_t thread;
    psd_status status;      /* of FAILED */
    char why[PSD_MAX_TEXT]; /* of FAILED; written before `phase` */
    psd_group handle;
    psd_group_slot *group; /* acquired */
    table_transfer init;
    bool is_initialised;
    uint64_t clock;
    uint64_t pushes;
    uint64_t pulls;
    bool changed; /* since progress was told last */
} table_shard;

static inline shard_phase table_shard_phase(const table_shard *shard)
{
    return (shard_phase)atomic_load(&shard->phase);
}

/* Makes room for a table that psd assigns to this server. On failure nothing is left, and `why` says what was
 * needed. */
psd_status table_shard_make(PSD_AT, psd_ctx *ctx, const psd_msg_table_open *assign, table_shard **out,
                            char *why, size_t why_bytes);
/* May wait for the joining thread to end. Accepts NULL. */
void table_shard_free(table_shard *shard);
/* Begins to join the group, once every trainer is about to. */
void table_shard_join(table_shard *shard);
/* From here on the shard only waits to be freed; the other members learn it from the group. */
void table_shard_fail(table_shard *shard, psd_status status, const char *why);
/* This server leaves: breaks the table for all its members. */
void table_shard_abandon(table_shard *shard);
bool table_shard_may_free(const table_shard *shard); /* would table_shard_free not wait? */

/* A request from a rank of the world; every one is answered, now or later. */
void table_shard_request(table_shard *shard, uint32_t world_rank, const table_msg *msg);
/* Takes up what has completed. */
void table_shard_progress(table_shard *shard);
/* Appends the transfers in flight to `list`; returns the new count, at most `capacity`. */
int32_t table_shard_in_flight(const table_shard *shard, psd_request **list, int32_t count, int32_t capacity);

#endif
