/* Can a coordinator's address be connected to at all? Plain sockets; gives the reason that ZeroMQ keeps to
 * itself. */
#ifndef PSD_PSCTL_REACH_H
#define PSD_PSCTL_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Resolves host and tries its addresses in turn until one accepts a connection, which is closed at once.
 * True: that address as a ZeroMQ endpoint with a numeric host. False: `why` says which address and the errno
 * text, or why the name is not known. Blocks at most timeout_ms. */
bool psctl_reach(const char *host, uint16_t port, int64_t timeout_ms, char *endpoint, size_t endpoint_bytes,
                 char *why, size_t why_bytes);

/* Only resolves: the first address, an IPv4 one if there is one since that is where psd listens unless told
 * otherwise. No connection is made. False: `why` says that the name is not known. */
bool psctl_resolve(const char *host, uint16_t port, char *endpoint, size_t endpoint_bytes, char *why,
                   size_t why_bytes);

#endif
