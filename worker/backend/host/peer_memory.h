/* Single copy: reading a peer process's memory (process_vm_readv).
 *
 * Where Yama restricts ptrace (kernel.yama.ptrace_scope 1), a process must say who may read it, and can name
 * only one process or all: with several peers that is all processes of the same user, as without Yama. It is
 * done only when a peer on this host links, and not at all with host_net_config.no_single_copy. */
#ifndef PSD_HOST_PEER_MEMORY_H
#define PSD_HOST_PEER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/psd_types.h"

#define PEER_MEMORY_REASON 128

typedef struct peer_memory {
    pid_t pid; /* 0: not known, or in a pid namespace that is not ours */
    bool allowed;
    char reason[PEER_MEMORY_REASON]; /* why not */
} peer_memory;

/* Lets peers read this process's memory, where that has to be asked for. */
void peer_memory_permit(void);
/* Tries by a real read whether the process at the other end of a unix socket can be read. */
void peer_memory_probe(peer_memory *m, int unix_fd, uint64_t address, uint64_t value);
/* All bytes, or PSD_ERR_LINK. `unix_fd` is the link's socket: what was read counts only if the peer still
 * lives. */
psd_status peer_memory_read(const peer_memory *m, int unix_fd, uint64_t address, void *to, size_t bytes);

#endif
