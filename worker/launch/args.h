/* What psrun was asked for on its command line. */
#ifndef PSD_LAUNCH_ARGS_H
#define PSD_LAUNCH_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#define PSD_LAUNCH_MAX_RANKS 4096
#define PSD_LAUNCH_MAX_APPS  64
#define PSD_LAUNCH_MAX_HOSTS 1024

/* One program and how many ranks run it. */
typedef struct psd_launch_app {
    int32_t ranks;
    const char *role; /* NULL: "worker" */
    char **argv;      /* borrowed from main's, NULL-terminated */
} psd_launch_app;

typedef struct psd_launch_args {
    psd_launch_app apps[PSD_LAUNCH_MAX_APPS];
    int app_count;
    int32_t world;                     /* ranks of all apps */
    char *hosts[PSD_LAUNCH_MAX_HOSTS]; /* point into host_text */
    int host_count;                    /* 0: this host, without a remote shell */
    char *host_text;
    const char *rsh; /* template with {command} and mostly {host} */
    const char *job;
    const char *coordinator;
    int64_t timeout_ms; /* -1: none */
    bool standalone;
    bool prefix;
    bool bind; /* each rank of this host to cores of its own */
} psd_launch_args;

typedef enum psd_launch_result {
    PSD_LAUNCH_RUN = 0,
    PSD_LAUNCH_DONE = 1,  /* --help or --version was printed */
    PSD_LAUNCH_USAGE = 2, /* an error was printed */
} psd_launch_result;

/* Overwrites each ":" of argv with NULL, to end the program before it. */
psd_launch_result psd_launch_parse(int argc, char **argv, psd_launch_args *out);
void psd_launch_args_free(psd_launch_args *args);

#endif
