#include "server/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 64
#define MAX_FD        (1 << 22)

static const psd_time_ns probe_after_ns[PSD_PROBES] = {0, 2 * PSD_NS_PER_MS, 10 * PSD_NS_PER_MS,
                                                       50 * PSD_NS_PER_MS, 250 * PSD_NS_PER_MS};

static size_t bucket_of(const psd_peers *peers, psd_peer peer)
{
    /* Fibonacci hashing: routing ids count upwards. */
    return (size_t)((peer * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (peers->bucket_count - 1);
}

psd_status psd_peers_init(psd_peers *peers)
{
    *peers = (psd_peers){0};
    peers->buckets = calloc(FIRST_BUCKETS, sizeof(psd_peer_entry *));
    if (peers->buckets == NULL)
        return PSD_ERR_NOMEM;
    peers->bucket_count = FIRST_BUCKETS;
    for (int i = 0; i < PSD_PROBES; i++)
        TAILQ_INIT(&peers->suspects[i]);
    return PSD_OK;
}

void psd_peers_clear(psd_peers *peers)
{
    for (size_t i = 0; i < peers->bucket_count; i++) {
        while (peers->buckets[i] != NULL) {
            psd_peer_entry *entry = peers->buckets[i];
            peers->buckets[i] = entry->next;
            free(entry);
        }
    }
    peers->count = 0;
    peers->deaf_count = 0;
    for (int i = 0; i < PSD_PROBES; i++)
        TAILQ_INIT(&peers->suspects[i]);
    if (peers->by_fd != NULL)
        memset(peers->by_fd, 0, peers->by_fd_count * sizeof(psd_peer));
}

void psd_peers_free(psd_peers *peers)
{
    psd_peers_clear(peers);
    free(peers->buckets);
    free(peers->by_fd);
    *peers = (psd_peers){0};
}

psd_peer_entry *psd_peers_find(const psd_peers *peers, psd_peer peer)
{
    psd_peer_entry *entry = peers->buckets[bucket_of(peers, peer)];
    while (entry != NULL && entry->peer != peer)
        entry = entry->next;
    return entry;
}

/* Doubles the table. Without memory for it the chains only grow longer. */
static void grow(psd_peers *peers)
{
    size_t old_count = peers->bucket_count;
    psd_peer_entry **old = peers->buckets;
    psd_peer_entry **buckets = calloc(old_count * 2, sizeof(psd_peer_entry *));
    if (buckets == NULL)
        return;
    peers->buckets = buckets;
    peers->bucket_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++) {
        while (old[i] != NULL) {
            psd_peer_entry *entry = old[i];
            old[i] = entry->next;
            size_t to = bucket_of(peers, entry->peer);
            entry->next = buckets[to];
            buckets[to] = entry;
        }
    }
    free(old);
}

/* Puts a suspect into the list of those probed `probes` times. */
static void enlist(psd_peers *peers, psd_peer_entry *entry, int probes, psd_time_ns now)
{
    entry->suspected = true;
    entry->probes = probes;
    entry->due = now + probe_after_ns[probes];
    TAILQ_INSERT_TAIL(&peers->suspects[probes], entry, suspicion);
}

static void unlist(psd_peers *peers, psd_peer_entry *entry)
{
    if (entry->suspected)
        TAILQ_REMOVE(&peers->suspects[entry->probes], entry, suspicion);
    entry->suspected = false;
}

static void suspect(psd_peers *peers, psd_peer peer, psd_time_ns now)
{
    psd_peer_entry *entry = psd_peers_find(peers, peer);
    if (entry == NULL)
        return;
    unlist(peers, entry);
    enlist(peers, entry, 0, now);
}

/* Makes peer the owner of fd; the previous owner's connection must have ended, since its descriptor was
 * reused. */
static void own_fd(psd_peers *peers, psd_peer peer, int fd, psd_time_ns now)
{
    if (fd < 0 || fd >= MAX_FD)
        return;
    size_t index = (size_t)fd;
    if (index >= peers->by_fd_count) {
        size_t count = peers->by_fd_count == 0 ? 64 : peers->by_fd_count;
        while (count <= index)
            count *= 2;
        psd_peer *grown = realloc(peers->by_fd, count * sizeof(psd_peer));
        if (grown == NULL)
            return;
        memset(grown + peers->by_fd_count, 0, (count - peers->by_fd_count) * sizeof(psd_peer));
        peers->by_fd = grown;
        peers->by_fd_count = count;
    }
    if (peers->by_fd[index] != 0 && peers->by_fd[index] != peer)
        suspect(peers, peers->by_fd[index], now);
    peers->by_fd[index] = peer;
}

psd_status psd_peers_add(psd_peers *peers, psd_peer peer, int fd, const char *address, psd_time_ns now)
{
    psd_peer_entry *entry = calloc(1, sizeof(*entry));
    if (entry == NULL)
        return PSD_ERR_NOMEM;
    if (peers->count >= peers->bucket_count)
        grow(peers);
    entry->peer = peer;
    entry->fd = fd;
    snprintf(entry->address, sizeof(entry->address), "%s", address);
    size_t bucket = bucket_of(peers, peer);
    entry->next = peers->buckets[bucket];
    peers->buckets[bucket] = entry;
    peers->count++;
    own_fd(peers, peer, fd, now);
    return PSD_OK;
}

void psd_peers_remove(psd_peers *peers, psd_peer peer)
{
    psd_peer_entry **link = &peers->buckets[bucket_of(peers, peer)];
    while (*link != NULL && (*link)->peer != peer)
        link = &(*link)->next;
    psd_peer_entry *entry = *link;
    if (entry == NULL)
        return;
    if (entry->fd >= 0 && (size_t)entry->fd < peers->by_fd_count && peers->by_fd[entry->fd] == peer)
        peers->by_fd[entry->fd] = 0;
    unlist(peers, entry);
    peers->deaf_count -= entry->deaf;
    *link = entry->next;
    free(entry);
    peers->count--;
}

bool psd_peers_set_deaf(psd_peers *peers, psd_peer_entry *entry)
{
    bool is_new = !entry->deaf;
    entry->deaf = true;
    peers->deaf_count += is_new;
    return is_new;
}

void psd_peers_heard(psd_peers *peers, psd_peer peer)
{
    if (peers->deaf_count == 0)
        return;
    psd_peer_entry *entry = psd_peers_find(peers, peer);
    if (entry == NULL)
        return;
    peers->deaf_count -= entry->deaf;
    entry->deaf = false;
}

void psd_peers_disconnected(psd_peers *peers, int fd, psd_time_ns now)
{
    if (fd >= 0 && (size_t)fd < peers->by_fd_count && peers->by_fd[fd] != 0)
        suspect(peers, peers->by_fd[fd], now);
}

bool psd_peers_next_suspect(psd_peers *peers, psd_time_ns now, psd_peer *out)
{
    for (int i = 0; i < PSD_PROBES; i++) {
        psd_peer_entry *entry = TAILQ_FIRST(&peers->suspects[i]);
        if (entry == NULL || entry->due > now)
            continue;
        unlist(peers, entry);
        if (i + 1 < PSD_PROBES)
            enlist(peers, entry, i + 1, now);
        *out = entry->peer;
        return true;
    }
    return false;
}

psd_time_ns psd_peers_deadline(const psd_peers *peers)
{
    psd_time_ns due = PSD_NEVER;
    for (int i = 0; i < PSD_PROBES; i++) {
        const psd_peer_entry *entry = TAILQ_FIRST(&peers->suspects[i]);
        if (entry != NULL && entry->due < due)
            due = entry->due;
    }
    return due;
}
