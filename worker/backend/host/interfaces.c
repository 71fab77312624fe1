/* What this host's network interfaces are called and which addresses they have. */
#include "worker/backend/host/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"

static bool of_interface(const struct ifaddrs *interface, endpoint *out)
{
    struct sockaddr_storage storage;
    if (!interface->ifa_addr || !(interface->ifa_flags & IFF_UP))
        return false;
    sa_family_t family = interface->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6)
        return false;
    memset(&storage, 0, sizeof storage);
    memcpy(&storage, interface->ifa_addr,
           family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    if (!endpoint_from_sockaddr(&storage, out))
        return false;
    out->port = 0;
    bool link_local = out->family == AF_INET6 ? out->ip[0] == 0xfe && (out->ip[1] & 0xc0) == 0x80
                                              : out->ip[0] == 169 && out->ip[1] == 254;
    return !link_local;
}

/* " (eth0)" at the end of the text, if some interface has this address. */
static void append_interface(const endpoint *e, char *out, size_t bytes)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        endpoint found;
        if (of_interface(one, &found) && endpoint_same_ip(&found, e)) {
            psd_append(out, bytes, " (%s)", one->ifa_name);
            break;
        }
    }
    freeifaddrs(all);
}

static char *format_end(int fd, bool local, char *out, size_t bytes)
{
    struct sockaddr_storage storage;
    socklen_t length = sizeof storage;
    endpoint e;
    int rc = local ? getsockname(fd, (struct sockaddr *)&storage, &length)
                   : getpeername(fd, (struct sockaddr *)&storage, &length);
    if (rc != 0 || !endpoint_from_sockaddr(&storage, &e)) {
        snprintf(out, bytes, "an unknown address");
        return out;
    }
    endpoint_format(&e, out, bytes);
    if (local)
        append_interface(&e, out, bytes);
    return out;
}

char *endpoint_format_local(int fd, char *out, size_t bytes)
{
    return format_end(fd, true, out, bytes);
}

char *endpoint_format_peer(int fd, char *out, size_t bytes)
{
    return format_end(fd, false, out, bytes);
}

static void add(endpoint *out, uint32_t *count, const endpoint *e)
{
    for (uint32_t i = 0; i < *count; i++)
        if (endpoint_same_ip(&out[i], e))
            return;
    if (*count < ADDRESS_MAX_TCP)
        out[(*count)++] = *e;
}

/* One pass over the interfaces: those of a name, or all; those of a family; loopback or not. */
static void add_interfaces(const struct ifaddrs *all, const char *name, sa_family_t family, bool loopback,
                           endpoint *out, uint32_t *count)
{
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        endpoint e;
        if ((name && strcmp(name, one->ifa_name) != 0) || !of_interface(one, &e))
            continue;
        if (e.family == family && ((one->ifa_flags & IFF_LOOPBACK) != 0) == loopback)
            add(out, count, &e);
    }
}

static psd_status list_interfaces(const char *name, endpoint *out, uint32_t *count, char *why,
                                  size_t why_bytes)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0) {
        snprintf(why, why_bytes, "cannot list this host's network interfaces: %s", strerror(errno));
        return PSD_ERR_IO;
    }
    add_interfaces(all, name, AF_INET, false, out, count);
    add_interfaces(all, name, AF_INET6, false, out, count);
    add_interfaces(all, name, AF_INET, true, out, count);
    add_interfaces(all, name, AF_INET6, true, out, count);
    freeifaddrs(all);
    return PSD_OK;
}

static bool can_bind(const endpoint *e)
{
    struct sockaddr_storage storage;
    socklen_t length = endpoint_to_sockaddr(e, &storage);
    int fd = socket(e->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool bound = bind(fd, (struct sockaddr *)&storage, length) == 0;
    close(fd);
    return bound;
}

static bool literal(const char *text, endpoint *out)
{
    memset(out, 0, sizeof *out);
    out->family = AF_INET;
    if (inet_pton(AF_INET, text, out->ip) == 1)
        return true;
    char inner[INET6_ADDRSTRLEN];
    size_t length = strlen(text);
    bool bracketed = length > 2 && text[0] == '[' && text[length - 1] == ']';
    size_t from = bracketed ? 1 : 0;
    length -= bracketed ? 2 : 0;
    if (length >= sizeof inner)
        return false;
    memcpy(inner, text + from, length);
    inner[length] = '\0';
    out->family = AF_INET6;
    return inet_pton(AF_INET6, inner, out->ip) == 1;
}

static psd_status resolve(const char *name, endpoint *out, uint32_t *count, char *why, size_t why_bytes)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *all;
    int rc = getaddrinfo(name, NULL, &hints, &all);
    if (rc != 0) {
        snprintf(why, why_bytes, "\"%s\" is no address, no interface with an address, and no name: %s", name,
                 gai_strerror(rc));
        return PSD_ERR_NOT_FOUND;
    }
    for (const struct addrinfo *one = all; one; one = one->ai_next) {
        struct sockaddr_storage storage;
        endpoint e;
        if (one->ai_addrlen > sizeof storage)
            continue;
        memset(&storage, 0, sizeof storage);
        memcpy(&storage, one->ai_addr, one->ai_addrlen);
        if (endpoint_from_sockaddr(&storage, &e))
            add(out, count, &e);
    }
    freeaddrinfo(all);
    return PSD_OK;
}

static void keep_bindable(endpoint *list, uint32_t *count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++)
        if (can_bind(&list[i]))
            list[kept++] = list[i];
    *count = kept;
}

psd_status endpoint_list_local(const char *bind_host, endpoint *out, uint32_t *count, char *why,
                               size_t why_bytes)
{
    psd_status status = PSD_OK;
    endpoint one;
    uint32_t found = 0;
    if (bind_host && literal(bind_host, &one))
        add(out, &found, &one);
    else
        status = list_interfaces(bind_host, out, &found, why, why_bytes);
    if (status == PSD_OK && bind_host && found == 0)
        status = resolve(bind_host, out, &found, why, why_bytes);
    if (status != PSD_OK)
        return status;
    keep_bindable(out, &found);
    if (found == 0) {
        snprintf(why, why_bytes, "%s%s is not an address of this host: see `ip address` for those it has",
                 bind_host ? "" : "no interface is up, and ", bind_host ? bind_host : "127.0.0.1");
        return PSD_ERR_NOT_FOUND;
    }
    *count = found;
    return PSD_OK;
}
