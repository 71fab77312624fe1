#include "worker/backend/nccl/identity.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"

#define ADDRESS_TAG "nccl1;"
#define TOKEN_MAGIC "NCCL"
#define TOKEN_HEAD  (sizeof TOKEN_MAGIC - 1 + NCCL_UNIQUE_ID_BYTES)

/* FNV-1a, 64 bits. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    while (*text != '\0')
        hash = (hash ^ (unsigned char)*text++) * UINT64_C(0x100000001b3);
    return hash;
}

/* What NCCL itself takes for a host: two ranks on one device are refused only if these are equal. */
static uint64_t host_identity(void)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    const char *given = getenv("NCCL_HOSTID");
    if (given != NULL && given[0] != '\0')
        return hash_text(hash, given);
    char name[256] = "", boot[64] = "";
    if (gethostname(name, sizeof name - 1) == 0)
        hash = hash_text(hash, name);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        if (fgets(boot, sizeof boot, file) != NULL)
            hash = hash_text(hash, boot);
        fclose(file);
    }
    return hash;
}

void identity_make(const device *d, int nccl_version, identity *out)
{
    memset(out, 0, sizeof *out);
    out->version = nccl_version;
    out->host = host_identity();
    for (size_t i = 0; i < sizeof out->bus_id - 1 && d->bus_id[i] != '\0'; i++)
        out->bus_id[i] = (char)tolower((unsigned char)d->bus_id[i]);
}

psd_status identity_format(const identity *id, const char *host_address, char *out, size_t bytes)
{
    char text[PSD_MAX_ADDR + IDENTITY_ADDRESS];
    int used = snprintf(text, sizeof text, ADDRESS_TAG "%d;%016" PRIx64 ";%s;%s", id->version, id->host,
                        id->bus_id, host_address);
    if (used < 0 || (size_t)used >= sizeof text || (size_t)used >= bytes)
        return PSD_ERR_LIMIT;
    memcpy(out, text, (size_t)used + 1);
    return PSD_OK;
}

/* The field up to the next ';', copied. */
static bool take_field(const char **text, char *out, size_t bytes)
{
    size_t length = strcspn(*text, ";");
    if ((*text)[length] != ';' || length == 0 || length >= bytes)
        return false;
    memcpy(out, *text, length);
    out[length] = '\0';
    *text += length + 1;
    return true;
}

static bool is_made_of(const char *text, const char *letters)
{
    return text[strspn(text, letters)] == '\0';
}

bool identity_parse(const char *text, identity *out, const char **host_address)
{
    static const char hex[] = "0123456789abcdef";
    char version[12], host[17];
    identity id;
    int64_t number = 0;
    memset(&id, 0, sizeof id);
    if (text == NULL || strncmp(text, ADDRESS_TAG, sizeof ADDRESS_TAG - 1) != 0)
        return false;
    text += sizeof ADDRESS_TAG - 1;
    if (!take_field(&text, version, sizeof version) || !psd_parse_i64(version, 1, 999999, &number) ||
        !take_field(&text, host, sizeof host) || strlen(host) != 16 || !is_made_of(host, hex) ||
        !take_field(&text, id.bus_id, sizeof id.bus_id) || !is_made_of(id.bus_id, "0123456789abcdef:."))
        return false;
    id.version = (int)number;
    id.host = strtoull(host, NULL, 16);
    *out = id;
    *host_address = text;
    return true;
}

static psd_status check_pair(const psd_group_desc *desc, const identity *mine, int32_t i, char *why,
                             size_t why_bytes)
{
    identity other;
    const char *rest = NULL;
    uint32_t me = desc->members[desc->rank], it = desc->members[i];
    if (!identity_parse(desc->addresses[i], &other, &rest)) {
        char echo[PSD_ECHO_BYTES];
        snprintf(why, why_bytes, "rank %u does not use backend nccl: its address is \"%s\"", it,
                 psd_echo(desc->addresses[i] != NULL ? desc->addresses[i] : "", echo, sizeof echo));
        return PSD_ERR_MISMATCH;
    }
    if (other.version != mine->version) {
        char a[32], b[32];
        snprintf(why, why_bytes,
                 "rank %u has NCCL %s and rank %u has NCCL %s; NCCL works only between equal versions: "
                 "install the same libnccl.so.2 for both, or name it in PSD_NCCL_LIBRARY",
                 me, libs_nccl_version_text(mine->version, a, sizeof a), it,
                 libs_nccl_version_text(other.version, b, sizeof b));
        return PSD_ERR_MISMATCH;
    }
    if (other.host == mine->host && strcmp(other.bus_id, mine->bus_id) == 0) {
        snprintf(why, why_bytes,
                 "ranks %u and %u of one host are both on the GPU %s; NCCL wants one rank for each GPU: "
                 "start fewer ranks on this host, or give each its own by PSD_DEVICE",
                 me < it ? me : it, me < it ? it : me, mine->bus_id);
        return PSD_ERR_MISMATCH;
    }
    return PSD_OK;
}

psd_status identity_check(const psd_group_desc *desc, char *why, size_t why_bytes)
{
    identity mine;
    const char *rest = NULL;
    psd_status status = PSD_OK;
    if (desc->size == 1)
        return PSD_OK;
    if (!identity_parse(desc->addresses[desc->rank], &mine, &rest)) {
        snprintf(why, why_bytes, "this rank's own address came back changed");
        return PSD_ERR_PROTOCOL;
    }
    for (int32_t i = 0; i < desc->size && status == PSD_OK; i++) {
        if (i != desc->rank)
            status = check_pair(desc, &mine, i, why, why_bytes);
    }
    return status;
}

psd_status token_format(const ncclUniqueId *id, const uint8_t *host, uint32_t host_bytes, uint8_t *out,
                        size_t capacity, uint32_t *bytes)
{
    if (capacity < TOKEN_HEAD || host_bytes > capacity - TOKEN_HEAD)
        return PSD_ERR_LIMIT;
    memcpy(out, TOKEN_MAGIC, sizeof TOKEN_MAGIC - 1);
    memcpy(out + sizeof TOKEN_MAGIC - 1, id->internal, NCCL_UNIQUE_ID_BYTES);
    memcpy(out + TOKEN_HEAD, host, host_bytes);
    *bytes = (uint32_t)TOKEN_HEAD + host_bytes;
    return PSD_OK;
}

bool token_parse(const uint8_t *token, uint32_t bytes, group_token *out)
{
    memset(out, 0, sizeof *out);
    if (bytes == 0)
        return true; /* a group of one, which psd did not open */
    if (token == NULL || bytes < TOKEN_HEAD || memcmp(token, TOKEN_MAGIC, sizeof TOKEN_MAGIC - 1) != 0)
        return false;
    out->has_id = true;
    memcpy(out->id.internal, token + sizeof TOKEN_MAGIC - 1, NCCL_UNIQUE_ID_BYTES);
    out->host = token + TOKEN_HEAD;
    out->host_bytes = bytes - (uint32_t)TOKEN_HEAD;
    return true;
}
