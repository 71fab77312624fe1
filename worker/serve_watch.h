/* Whether a rank that serves tables is still needed once psd is gone: psd alone tells of the end of the job, so
 * that without it a server must see by itself that nobody is left to serve. Used by the serve loop's thread. */
#ifndef PSD_SERVE_WATCH_H
#define PSD_SERVE_WATCH_H

#include "worker/context.h"

/* What this rank knows of another one. */
typedef struct serve_rank {
    bool is_server; /* it has said so */
    bool is_told;   /* that this rank is one */
    bool is_here;   /* it takes part in a group of this rank */
} serve_rank;

typedef struct serve_watch {
    psd_ctx *ctx;
    psd_time_ns looked;
    serve_rank *ranks; /* [world] */
    bool is_clean;     /* no group is broken: whoever left has closed them */
} serve_watch;

psd_status serve_watch_init(serve_watch *watch, psd_ctx *ctx);
void serve_watch_free(serve_watch *watch);

/* A rank has said that it is a server. */
void serve_watch_server(serve_watch *watch, uint32_t world_rank);

/* True once psd has not been connected for two leases and every rank that is not a server has left this rank's
 * groups. Looks a few times a second, and is free of cost while psd is connected. */
bool serve_watch_is_over(serve_watch *watch, psd_time_ns now);

#endif
