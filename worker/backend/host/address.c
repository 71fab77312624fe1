#include "worker/backend/host/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "common/conf.h"

static bool parse_hex(const char *text, size_t length, uint64_t *out)
{
    uint64_t value = 0;
    if (length == 0 || length > 16)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!isxdigit((unsigned char)text[i]))
            return false;
        int digit =
            isdigit((unsigned char)text[i]) ? text[i] - '0' : tolower((unsigned char)text[i]) - 'a' + 10;
        value = value << 4 | (uint64_t)digit;
    }
    *out = value;
    return true;
}

static bool parse_unix_name(const char *text, size_t length, char *out)
{
    if (length == 1 && text[0] == '-') {
        out[0] = '\0';
        return true;
    }
    if (length == 0 || length >= ADDRESS_UNIX_NAME)
        return false;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '-')
            return false;
    memcpy(out, text, length);
    out[length] = '\0';
    return true;
}

/* Also accepts the empty list. */
static bool parse_tcp_list(const char *text, host_address *out)
{
    while (*text) {
        char one[ENDPOINT_TEXT];
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof one || out->tcp_count == ADDRESS_MAX_TCP)
            return false;
        memcpy(one, text, length);
        one[length] = '\0';
        if (!endpoint_parse(one, &out->tcp[out->tcp_count]) || out->tcp[out->tcp_count].port == 0)
            return false;
        out->tcp_count++;
        text += length;
        if (*text == ',' && *++text == '\0')
            return false;
    }
    return true;
}

bool host_address_parse(const char *text, host_address *out)
{
    host_address result;
    memset(&result, 0, sizeof result);
    if (!text || strnlen(text, PSD_MAX_ADDR) >= PSD_MAX_ADDR || strncmp(text, "1;", 2) != 0)
        return false;
    text += 2;
    size_t length = strcspn(text, ";");
    if (text[length] != ';' || !parse_hex(text, length, &result.incarnation) || result.incarnation == 0)
        return false;
    text += length + 1;
    length = strcspn(text, ";");
    if (text[length] != ';' || !parse_unix_name(text, length, result.unix_name))
        return false;
    if (!parse_tcp_list(text + length + 1, &result))
        return false;
    *out = result;
    return true;
}

bool host_address_format(const host_address *address, char *out, size_t bytes)
{
    int length = snprintf(out, bytes, "1;%" PRIx64 ";%s;", address->incarnation,
                          address->unix_name[0] ? address->unix_name : "-");
    if (length < 0 || (size_t)length >= bytes)
        return false;
    size_t used = (size_t)length;
    const char *comma = "";
    for (uint32_t i = 0; i < address->tcp_count; i++) {
        char one[ENDPOINT_TEXT];
        endpoint_format(&address->tcp[i], one, sizeof one);
        if (used + strlen(comma) + strlen(one) >= bytes)
            continue; /* a shorter one may fit still */
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", comma, one);
        comma = ",";
    }
    return true;
}

bool endpoint_parse(const char *text, endpoint *out)
{
    char ip[INET6_ADDRSTRLEN];
    int64_t port;
    endpoint result;
    bool v6 = text[0] == '[';
    const char *start = text + (v6 ? 1 : 0);
    const char *end = strchr(start, v6 ? ']' : ':');
    memset(&result, 0, sizeof result);
    if (!end || end == start || (size_t)(end - start) >= sizeof ip || (v6 && end[1] != ':'))
        return false;
    memcpy(ip, start, (size_t)(end - start));
    ip[end - start] = '\0';
    result.family = v6 ? AF_INET6 : AF_INET;
    if (!psd_parse_i64(end + (v6 ? 2 : 1), 0, UINT16_MAX, &port) ||
        inet_pton(result.family, ip, result.ip) != 1)
        return false;
    result.port = (uint16_t)port;
    *out = result;
    return true;
}

char *endpoint_format(const endpoint *e, char *out, size_t bytes)
{
    char ip[INET6_ADDRSTRLEN];
    if (!inet_ntop(e->family, e->ip, ip, sizeof ip))
        snprintf(ip, sizeof ip, "?");
    snprintf(out, bytes, e->family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip, e->port);
    return out;
}

bool endpoint_same_ip(const endpoint *a, const endpoint *b)
{
    return a->family == b->family && memcmp(a->ip, b->ip, sizeof a->ip) == 0;
}

socklen_t endpoint_to_sockaddr(const endpoint *e, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (e->family == AF_INET) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)out;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(e->port);
        memcpy(&v4->sin_addr, e->ip, sizeof v4->sin_addr);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(e->port);
    memcpy(&v6->sin6_addr, e->ip, sizeof v6->sin6_addr);
    return sizeof *v6;
}

bool endpoint_from_sockaddr(const struct sockaddr_storage *from, endpoint *out)
{
    endpoint result;
    memset(&result, 0, sizeof result);
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
        result.family = AF_INET;
        result.port = ntohs(v4->sin_port);
        memcpy(result.ip, &v4->sin_addr, sizeof v4->sin_addr);
    } else if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
        result.family = mapped ? AF_INET : AF_INET6;
        result.port = ntohs(v6->sin6_port);
        memcpy(result.ip, v6->sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    } else {
        return false;
    }
    *out = result;
    return true;
}
