#include "worker/serve_watch.h"

#include <stdlib.h>

#include "worker/table_wire.h"

#define LOOK_NS       (200 * PSD_NS_PER_MS)
#define SILENT_LEASES 2

psd_status serve_watch_init(serve_watch *watch, psd_ctx *ctx)
{
    *watch = (serve_watch){.ctx = ctx};
    watch->ranks = calloc((size_t)ctx->world, sizeof(*watch->ranks));
    return watch->ranks != NULL ? PSD_OK : PSD_ERR_NOMEM;
}

void serve_watch_free(serve_watch *watch)
{
    free(watch->ranks);
}

void serve_watch_server(serve_watch *watch, uint32_t world_rank)
{
    if (world_rank < (uint32_t)watch->ctx->world)
        watch->ranks[world_rank].is_server = true;
}

/* A member of any of the groups, as it now is. */
static void note_member(void *arg, uint32_t world_rank, psd_status state)
{
    serve_watch *watch = arg;
    if (state == PSD_INPROGRESS)
        watch->ranks[world_rank].is_here = true;
    else if (state != PSD_OK)
        watch->is_clean = false;
}

/* Roles are known to psd only, so servers tell each other: once, and only when psd is gone. */
static void tell(serve_watch *watch, uint32_t world_rank)
{
    uint8_t data[PSD_TABLE_MSG_BYTES];
    const table_msg msg = {.kind = TABLE_SERVER};
    const psd_ctx *ctx = watch->ctx;
    psd_status status = ctx->ops->chan_send(ctx->backend, world_rank, data, table_msg_encode(&msg, data));
    watch->ranks[world_rank].is_told = status == PSD_OK;
}

bool serve_watch_is_over(serve_watch *watch, psd_time_ns now)
{
    bool is_over = true;
    if (now - watch->looked < LOOK_NS)
        return false;
    watch->looked = now;
    if (psd_agent_cut_ns(watch->ctx->agent) < SILENT_LEASES * psd_agent_lease_ns(watch->ctx->agent))
        return false;
    watch->is_clean = true;
    for (int32_t r = 0; r < watch->ctx->world; r++)
        watch->ranks[r].is_here = false;
    psd_groups_visit(watch->ctx, note_member, watch);
    for (int32_t r = 0; r < watch->ctx->world; r++) {
        const serve_rank *rank = &watch->ranks[r];
        if (rank->is_here && !rank->is_told)
            tell(watch, (uint32_t)r);
        is_over = is_over && (!rank->is_here || rank->is_server);
    }
    return is_over;
}
