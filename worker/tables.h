/* The trainer's side of tables: what psd_table_open, push, pull and close keep. */
#ifndef PSD_TABLES_H
#define PSD_TABLES_H

#include "worker/context.h"
#include "worker/handles.h"
#include "worker/table_channel.h"
#include "worker/table_layout.h"
#include "worker/table_transfer.h"

struct psd_tables {
    psd_handles handles;
    table_channel channel;
    pthread_mutex_t opening; /* tables of one context are opened one after the other */
};

/* What a gradient or parameter of the caller must look like. */
typedef struct table_param {
    char name[PSD_MAX_NAME];
    int32_t ndim;
    int64_t shape[PSD_MAX_DIMS];
} table_param;

typedef struct table {
    char name[PSD_MAX_NAME];
    uint32_t id; /* psd's */
    psd_group handle;
    psd_group_slot *group; /* acquired while the table is open: servers, then trainers */
    uint32_t param_count;
    table_param *params;
    const float **from; /* [param_count] of the call in progress */
    float **to;
    table_layout layout;
    psd_tensor packed; /* all shards, one behind the other: what is sent and received */
    uint32_t *servers; /* world ranks */
    bool is_lowest;    /* this rank gives the initial values */
    table_inbox inbox;
    table_transfer *transfers; /* [servers] */
    pthread_mutex_t lock;      /* one call at a time */
    uint64_t sequence;         /* of the last request */
    uint64_t clock;            /* applied, as far as this rank knows */
    bool push_sent;            /* the gradients of clock + 1 are sent, their ACKs not all here */
    psd_status failed;         /* sticky: the servers may not agree any more */
} table;

/* Checks against what the table was opened with; `what` is "gradient" or "parameter". Sets the error's
 * sentence. */
psd_status table_check_tensors(PSD_AT, const char *verb, const psd_ctx *ctx, const table *t, const char *what,
                               const psd_tensor *tensors, int32_t count);

/* Makes the trainer's part of a table that psd has opened: joins its group and has it initialised. */
psd_status table_attach(PSD_AT, psd_ctx *ctx, psd_tables *tables, const psd_msg_table_open *opened,
                        const psd_tensor *params, table **out);
/* Accepts NULL. */
void table_detach(PSD_AT, psd_ctx *ctx, table *t);

/* A request to all servers, with data to send behind it or none, and the wait for all answers. */
psd_status table_request(PSD_AT, const char *verb, psd_ctx *ctx, table *t, table_kind kind, bool with_data);
/* Copies the tensors of `from` into `packed`, or `packed` into those of `to`. In device memory: queues it on the
 * default stream, on which data is also sent and received. */
psd_status table_pack(PSD_AT, const char *verb, psd_ctx *ctx, table *t);
psd_status table_unpack(PSD_AT, const char *verb, psd_ctx *ctx, table *t);
/* Receives all shards into `packed`. */
psd_status table_receive(PSD_AT, const char *verb, psd_ctx *ctx, table *t);

#endif
