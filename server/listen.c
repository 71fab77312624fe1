#include "server/listen.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "common/conf.h"

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct in_addr in = ((const struct sockaddr_in *)(const void *)address)->sin_addr;
        return (ntohl(in.s_addr) >> 24) == 127;
    }
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
}

static void describe(const struct addrinfo *first, uint16_t port, psd_listen *out)
{
    *out = (psd_listen){.port = port, .loopback = true};
    if (getnameinfo(first->ai_addr, first->ai_addrlen, out->address, sizeof(out->address), NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(out->address, sizeof(out->address), "?");
    bool v6 = first->ai_family == AF_INET6;
    snprintf(out->endpoint, sizeof(out->endpoint), v6 ? "tcp://[%s]:%u" : "tcp://%s:%u", out->address,
             (unsigned)port);
    for (const struct addrinfo *info = first; info != NULL; info = info->ai_next)
        out->loopback = out->loopback && is_loopback(info->ai_addr);
}

psd_status psd_listen_resolve(const char *text, psd_listen *out, char *why, size_t why_bytes)
{
    char host[256];
    uint16_t port = 0;
    if (!psd_parse_endpoint(text, host, sizeof(host), &port)) {
        char echo[PSD_ECHO_BYTES];
        snprintf(why, why_bytes,
                 "\"%s\" is not an address to listen on: write tcp://HOST:PORT, as in "
                 "tcp://127.0.0.1:5577 (port 0: any free one)",
                 psd_echo(text, echo, sizeof(echo)));
        return PSD_ERR_INVAL;
    }
    if (strcmp(host, "*") == 0) {
        *out = (psd_listen){.port = port, .address = "*"};
        snprintf(out->endpoint, sizeof(out->endpoint), "tcp://*:%u", (unsigned)port);
        return PSD_OK;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(host, NULL, &hints, &found);
    if (error != 0) {
        snprintf(why, why_bytes, "the host name \"%s\" cannot be resolved: %s", host, gai_strerror(error));
        return PSD_ERR_NOT_FOUND;
    }
    describe(found, port, out);
    freeaddrinfo(found);
    return PSD_OK;
}
