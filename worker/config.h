/* Settings of a context: what psd_config says, else the environment, else the default; all checked. */
#ifndef PSD_CONFIG_H
#define PSD_CONFIG_H

#include "common/msg.h"
#include "worker/psd.h"

typedef struct psd_settings {
    char coordinator[256]; /* tcp://host:port */
    char job[PSD_MAX_NAME];
    char name[PSD_MAX_NAME];
    char role[PSD_MAX_NAME];
    char backend[16];
    char host[PSD_MAX_NAME];      /* this host's name: for people and rank order */
    char data_host[PSD_MAX_ADDR]; /* PSD_DATA_HOST; "": the backend chooses */
    char transport[16];           /* PSD_HOST_TRANSPORT: auto, shm or tcp */
    int64_t ring_bytes;           /* PSD_HOST_RING; 0: the backend chooses */
    char run_dir[256];            /* PSD_RUN_DIR; "": the recorder chooses */
    bool record_off;              /* PSD_RECORD=off */
    int32_t rank;                 /* -1: psd chooses */
    int32_t world_size;
    int32_t local_rank;
    bool local_rank_is_known; /* else it is 0 */
    char device[16];          /* PSD_DEVICE, a number; "": the backend chooses */
    int64_t join_timeout_ms;
    int64_t timeout_ms;
    int64_t pool_limit;
    bool pool_limit_is_default; /* nobody gave one: half of the memory, which is not for a device */
    int64_t eager_limit;        /* PSD_EAGER_LIMIT */
    int64_t report_after_ms;    /* PSD_REPORT_AFTER_MS: a wait that psd is told of */
    bool hang_report_only;      /* PSD_ON_HANG=report */
} psd_settings;

/* `config` may be NULL. On an error `why` names the field or variable, its value and what it may be. */
psd_status psd_settings_read(const psd_config *config, psd_settings *out, char *why, size_t why_bytes);

#endif
