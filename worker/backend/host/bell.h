/* How a context sleeps and how its peers wake it.
 *
 * A bell is a page that its owner writes and its peers only read, and an eventfd that they write. While the
 * owner is armed the page holds a number other than 0, a new one each time. A peer that has published
 * something does a sequentially consistent fence, looks at the page, and rings once per number. The owner
 * arms (store, the same fence) and looks for something published once more before it sleeps: so one of the
 * two sees the other.
 *
 * A fence after each message costs more than a small message. So where the kernel can (membarrier), who arms makes all
 * running threads of all processes that take part do a fence instead: sleeping is what costs. A process says in its
 * page that it arms so; a peer that takes part itself then needs no fence of its own. */
#ifndef PSD_HOST_BELL_H
#define PSD_HOST_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/psd_types.h"

#define BELL_PAGE_BYTES 4096

typedef struct bell_page {
    _Atomic uint32_t armed;
    _Atomic uint32_t fences; /* 1: who arms it makes others do a fence */
} bell_page;

/* Mine. */
typedef struct bell {
    int page_fd; /* -1: not shared */
    int event_fd;
    bell_page *page;
    uint32_t sleepers; /* arms without a disarm */
    uint32_t number;
    bool fences; /* this process takes part in membarrier */
} bell;

/* A peer's. */
typedef struct peer_bell {
    const bell_page *page;
    int event_fd;
    uint32_t rung; /* the number rung last */
    bool fences;   /* its owner makes us do a fence when it arms: there is no need to do one before ringing */
} peer_bell;

/* Not shared: only bell_wake() rings it, no peer can. */
psd_status bell_open(bell *b, bool shared, char *why, size_t why_bytes);
void bell_close(bell *b);
void bell_arm(bell *b);
/* The last sleeper empties the eventfd: until then it wakes every other one. */
void bell_disarm(bell *b);
/* Empties the eventfd if nobody sleeps: a peer may have rung just too late. */
void bell_silence(bell *b);
/* Any thread. */
void bell_wake(bell *b);

/* `mine`: of this process. Takes both fds over if they are what a bell is made of; else leaves them to the caller. */
psd_status peer_bell_open(peer_bell *b, const bell *mine, int page_fd, int event_fd, char *why,
                          size_t why_bytes);
void peer_bell_close(peer_bell *b);
/* After what the peer may wait for was published: the fence, if one is needed; then look whether it waits, and ring. */
void peer_bell_fence(const peer_bell *b);
void peer_bell_ring(peer_bell *b);

#endif
