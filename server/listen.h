/* The address to listen on: names resolved, loopback told from the rest, and who holds a port that is in use.
 */
#ifndef PSD_SERVER_LISTEN_H
#define PSD_SERVER_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/psd_types.h"

typedef struct psd_listen {
    char endpoint[128]; /* numeric, for ZeroMQ */
    char address[64];   /* numeric, without the port; "*" for all */
    uint16_t port;
    bool loopback; /* every address that the name stands for is of this host only */
} psd_listen;

/* Resolves "tcp://host:port". The first address is taken. On failure `why` is a sentence. */
psd_status psd_listen_resolve(const char *text, psd_listen *out, char *why, size_t why_bytes);

/* Names the process that listens on a local TCP port: "psd (pid 123)"; or what is known of it when it is
 * another user's; "" when nobody listens. Returns out. */
char *psd_port_holder(uint16_t port, char *out, size_t out_bytes);

#endif
