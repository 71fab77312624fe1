/* What a group's links will need, looked at before the first is begun: a refusal in one sentence is better than
 * a hundred half-made links. */
#include "worker/backend/host/net.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>

#include "common/log.h"
#include "worker/backend/host/memory_limit.h"

typedef struct needs {
    uint32_t peers;
    uint32_t new_links;
    uint32_t ranks_here; /* as far as addresses tell; the handshakes find out */
} needs;

/* An estimate, for the room that shared memory needs: the same interface address, or none. */
static bool seems_here(const host_net *net, const host_address *peer)
{
    if (peer->unix_name[0] == '\0')
        return false;
    return net->address.tcp_count == 0 || peer->tcp_count == 0 ||
           endpoint_same_ip(&net->address.tcp[0], &peer->tcp[0]);
}

static void count_needs(host_net *net, const char *const *addresses, uint32_t count, needs *out)
{
    host_address peer;
    out->ranks_here = 1;
    for (uint32_t i = 0; i < count; i++) {
        /* Who asks for a link to an address that cannot be read is told so then. */
        if (!host_address_parse(addresses[i], &peer) || peer.incarnation == net->address.incarnation)
            continue;
        out->peers++;
        out->ranks_here += seems_here(net, &peer);
        out->new_links += link_find(net, peer.incarnation) == NULL;
    }
}

static uint32_t open_files(void)
{
    uint32_t count = 0;
    DIR *listing = opendir("/proc/self/fd");
    if (!listing)
        return 0;
    while (readdir(listing))
        count++;
    closedir(listing);
    return count; /* with ".", ".." and the listing's own: near enough */
}

static psd_status check_files(const needs *n, char *why, size_t why_bytes)
{
    struct rlimit files;
    if (n->new_links == 0 || getrlimit(RLIMIT_NOFILE, &files) != 0)
        return PSD_OK;
    return mesh_check_descriptors(n->new_links, files.rlim_cur, open_files(), why, why_bytes);
}

/* For few links each asks by itself when it is made. */
static psd_status check_memory(host_net *net, const needs *n, char *why, size_t why_bytes)
{
    uint64_t ring_bytes = net->ring_bytes ? net->ring_bytes : mesh_ring_bytes(net->peers);
    net->no_room[0] = '\0';
    if (!net->want_shm || n->new_links == 0 || n->ranks_here <= MESH_SMALL_PEERS)
        return PSD_OK;
    psd_status status = mesh_check_memory(n->ranks_here, ring_bytes, memory_available(), why, why_bytes);
    if (status == PSD_OK || !net->want_tcp)
        return status;
    snprintf(net->no_room, sizeof net->no_room, "%s", why);
    psd_log("host", PSD_LOG_WARN, "links use TCP on the same host: %s", why);
    return PSD_OK;
}

psd_status host_net_expect(host_net *net, const char *const *addresses, uint32_t count, char *why,
                           size_t why_bytes)
{
    needs n = {0};
    count_needs(net, addresses, count, &n);
    if (n.peers > net->peers)
        net->peers = n.peers;
    psd_status status = check_files(&n, why, why_bytes);
    if (status == PSD_OK)
        status = check_memory(net, &n, why, why_bytes);
    return status;
}
