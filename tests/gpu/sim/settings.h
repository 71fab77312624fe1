/* The simulator's switches: environment variables PSD_GPUSIM_*, read once per process. Compiled into both
 * libraries. README.md has the table. */
#ifndef PSD_GPUSIM_SETTINGS_H
#define PSD_GPUSIM_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SETTING_ALL  (-1) /* every rank */
#define SETTING_NONE (-2) /* no rank */

typedef struct settings {
    int devices;
    bool has_driver;
    int driver_version;   /* as cudaDriverGetVersion: 1000 * major + 10 * minor */
    size_t device_memory; /* bytes per device */
    const char *dir;      /* where segments lie */

    int nccl_version;        /* as ncclGetVersion */
    size_t buffer_bytes;     /* sends up to this many bytes complete before their receive */
    bool checks_pointers;    /* NCCL_CHECK_POINTERS */
    bool is_serial;          /* kernels of all communicators of a device run one after the other */
    bool inline_launch;      /* a group that needs no connection is launched by ncclGroupEnd itself */
    int init_hang_rank;      /* rank whose ncclCommInitRank never finishes; SETTING_* */
    int abort_hang_rank;     /* rank whose ncclCommAbort never returns; SETTING_* */
    int async_error_rank;    /* rank that gets an asynchronous error... */
    uint64_t async_error_op; /* ...at this operation, counted from 1 over the process */
    int async_error_code;    /* ncclResult_t */
    int slow_rank;           /* rank whose kernels start late; SETTING_* */
    int slow_ms;
} settings;

const settings *settings_get(void);

/* Does a setting for `which` concern this rank? */
bool settings_hit(int which, int rank);

#endif
