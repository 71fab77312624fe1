/* One message of f32 between a trainer and a server on a table's group, straight through the backend, with
 * its record. Not for users: tables.c and table_shard.c post these and wait for them in their own ways. */
#ifndef PSD_TABLE_TRANSFER_H
#define PSD_TABLE_TRANSFER_H

#include "worker/context.h"

/* Zeroed: none. */
typedef struct table_transfer {
    psd_request *request;
    uint64_t record;
} table_transfer;

typedef struct table_post {
    bool is_send;
    int32_t peer; /* group rank */
    float *data;  /* borrowed until the transfer has ended; only read when sending */
    size_t count;
    const char *table; /* its name */
    const char *verb;  /* "push", "pull", "init" */
    const char *file;
    int line;
} table_post;

psd_status table_transfer_start(psd_ctx *ctx, psd_group_slot *group, const table_post *post,
                                table_transfer *out);
/* PSD_INPROGRESS, or the status the transfer ended with, and then it is none again and `why` has the text of
 * an error. Of none: PSD_OK. */
psd_status table_transfer_test(psd_ctx *ctx, table_transfer *transfer, char *why, size_t why_bytes);
/* Blocks until all have ended; each does by its own deadline. The first error in the order of the list. */
psd_status table_transfers_wait(psd_ctx *ctx, table_transfer *list, uint32_t count, char *why,
                                size_t why_bytes);

#endif
