/* Addresses of contexts and of sockets: text, parsing, and which ones this host has.
 *
 * A context's address: "1;<incarnation hex>;<unix name or ->;<tcp address>[,<tcp address>...]", the list may
 * be empty. */
#ifndef PSD_HOST_ADDRESS_H
#define PSD_HOST_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

#include "common/msg.h"

#define ADDRESS_MAX_TCP   16
#define ADDRESS_UNIX_NAME 40 /* with the NUL */
#define ENDPOINT_TEXT     96 /* "[v6]:port (interface)" */

typedef struct endpoint {
    sa_family_t family; /* AF_INET or AF_INET6; never a v4-mapped v6 */
    uint8_t ip[16];
    uint16_t port;
} endpoint;

typedef struct host_address {
    uint64_t incarnation;
    char unix_name[ADDRESS_UNIX_NAME]; /* "": none */
    uint32_t tcp_count;
    endpoint tcp[ADDRESS_MAX_TCP];
} host_address;

/* The text is hostile. Writes *out only on success. */
bool host_address_parse(const char *text, host_address *out);
/* Takes as many TCP addresses as fit into `bytes`; false if not even what is before them fits. */
bool host_address_format(const host_address *address, char *out, size_t bytes);

/* Numbers only, no names. */
bool endpoint_parse(const char *text, endpoint *out);
char *endpoint_format(const endpoint *e, char *out, size_t bytes);
bool endpoint_same_ip(const endpoint *a, const endpoint *b);
socklen_t endpoint_to_sockaddr(const endpoint *e, struct sockaddr_storage *out);
bool endpoint_from_sockaddr(const struct sockaddr_storage *from, endpoint *out);
/* Of a socket's own end: "10.0.0.1:4000 (eth0)"; "an unknown address" if it has none. Returns out. */
char *endpoint_format_local(int fd, char *out, size_t bytes);
char *endpoint_format_peer(int fd, char *out, size_t bytes);

/* This host's addresses, ports 0: of all interfaces that are up, no link-local ones, IPv4 first, loopback
 * last. With `bind_host` only those that it names: an address, an interface, or a host name. */
psd_status endpoint_list_local(const char *bind_host, endpoint *out, uint32_t *count, char *why,
                               size_t why_bytes);

#endif
