/* What psd was asked for on its command line. */
#ifndef PSD_SERVER_OPTIONS_H
#define PSD_SERVER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/core.h"

typedef struct psd_options {
    const char *listen; /* tcp://host:port; default tcp://127.0.0.1:5577 */
    const char *state;  /* directory of the journal; NULL: none */
    int64_t lease_ms;
    int64_t heartbeat_ms; /* 0: a fifth of the lease */
    int64_t memory_limit; /* bytes of psd itself; 0: half of the memory, at most 4 GiB */
    int64_t max_ranks;
    int64_t max_jobs;
    int64_t journal_events; /* a longer journal is emptied once no job is alive */
    int ready_fd;           /* -1: none */
    bool insecure;
} psd_options;

typedef enum psd_options_result {
    PSD_OPTIONS_RUN = 0,
    PSD_OPTIONS_DONE = 1,  /* --help or --version was printed */
    PSD_OPTIONS_USAGE = 2, /* an error was printed */
} psd_options_result;

psd_options_result psd_options_parse(int argc, char **argv, psd_options *out);

/* What of them the core is made with. */
psd_core_config psd_options_core(const psd_options *options);

#endif
