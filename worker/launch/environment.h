/* What a rank is started with: its environment, or the command that a remote shell runs. */
#ifndef PSD_LAUNCH_ENVIRONMENT_H
#define PSD_LAUNCH_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/launch/args.h"

typedef struct psd_launch_rank {
    const psd_launch_app *app;
    const char *host; /* NULL: here */
    int32_t rank;
    int32_t local_rank;
    int32_t local_world;
} psd_launch_rank;

/* A list of malloc'ed strings, NULL-terminated. */
typedef struct psd_strings {
    char **items;
    size_t count;
    size_t capacity;
} psd_strings;

void psd_strings_free(psd_strings *strings);

/* The rank's place: which program, which host. */
void psd_launch_place(const psd_launch_args *args, int32_t rank, psd_launch_rank *out);

/* This process's environment with the rank's variables in it. False: out of memory. */
bool psd_launch_environment(const psd_launch_args *args, const psd_launch_rank *rank, psd_strings *out);

/* The words of the remote shell's template, {host} and {command} filled in; the command is one word, quoted
 * for a shell, with the rank's variables and those of this process that begin with PSD_. */
bool psd_launch_remote(const psd_launch_args *args, const psd_launch_rank *rank, psd_strings *out);

#endif
