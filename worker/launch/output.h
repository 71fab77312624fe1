/* Passing on what the ranks print: whole lines, each with the rank before it. */
#ifndef PSD_LAUNCH_OUTPUT_H
#define PSD_LAUNCH_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PSD_LAUNCH_LINE 8192 /* bytes; longer lines come in pieces of this size */

/* One stream of one rank: the reading end of a pipe, non-blocking. */
typedef struct psd_launch_stream {
    int fd; /* -1: at its end */
    int to; /* 1 or 2: psrun's own stdout or stderr */
    int32_t rank;
    bool prefix;
    bool cut;     /* the piece written last has not ended its line yet */
    size_t bytes; /* of an unfinished line */
    char line[PSD_LAUNCH_LINE];
} psd_launch_stream;

/* Reads what is there, at most some 64 KiB, and writes the complete lines. At the end of the stream writes
 * what is left and closes it. Returns false then. */
bool psd_launch_stream_read(psd_launch_stream *stream);
void psd_launch_stream_close(psd_launch_stream *stream); /* writes an unfinished line first */

#endif
