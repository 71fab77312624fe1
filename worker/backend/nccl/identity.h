/* What the ranks tell each other before they touch NCCL, so that it is never asked for what it would hang on: each rank's
 * address carries its NCCL version, host and device in front of the address of its host links; a group's token carries the
 * ncclUniqueId in front of the host links' token. */
#ifndef PSD_NCCL_IDENTITY_H
#define PSD_NCCL_IDENTITY_H

#include "worker/backend/nccl/device.h"

typedef struct identity {
    int version;   /* NCCL's */
    uint64_t host; /* as NCCL tells hosts apart: NCCL_HOSTID, else the host's name and boot id */
    char bus_id[DEVICE_BUS_ID];
} identity;

#define IDENTITY_ADDRESS 64 /* bytes, at most, that it adds to an address */

void identity_make(const device *d, int nccl_version, identity *out);

/* "nccl1;22809;00c0ffee00c0ffee;0000:65:00.0;" and the address of the host links. */
psd_status identity_format(const identity *id, const char *host_address, char *out, size_t bytes);
/* *host_address points into `text`. */
bool identity_parse(const char *text, identity *out, const char **host_address);

/* Can this rank be in a communicator with these? Every pair is seen by both of its ranks. */
psd_status identity_check(const psd_group_desc *desc, char *why, size_t why_bytes);

typedef struct group_token {
    bool has_id;
    ncclUniqueId id;
    const uint8_t *host; /* into the text */
    uint32_t host_bytes;
} group_token;

/* `host` is the token of the host links. */
psd_status token_format(const ncclUniqueId *id, const uint8_t *host, uint32_t host_bytes, uint8_t *out,
                        size_t capacity, uint32_t *bytes);
bool token_parse(const uint8_t *token, uint32_t bytes, group_token *out);

#endif
