/* How a context sleeps and how its peers wake it.
 *
 * A bell is a page that its owner writes and its peers only read, and an eventfd that they write. While the
 * owner is armed the page holds a number other than 0, a new one each time. A peer that has published
 * something does a sequentially consistent fence, looks at the page, and rings once per number. The owner
 * arms (store, the same fence) and looks for something published once more before it sleeps: so one of the
 * two sees the other. */
#ifndef PSD_HOST_BELL_H
#define PSD_HOST_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/psd_types.h"

#define BELL_PAGE_BYTES 4096

typedef struct bell_page {
    _Atomic uint32_t armed;
} bell_page;

/* Mine. */
typedef struct bell {
    int page_fd; /* -1: not shared */
    int event_fd;
    bell_page *page;
    uint32_t sleepers; /* arms without a disarm */
    uint32_t number;
} bell;

/* A peer's. */
typedef struct peer_bell {
    const bell_page *page;
    int event_fd;
    uint32_t rung; /* the number rung last */
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

/* Takes both fds over if they are what a bell is made of; else leaves them to the caller. */
psd_status peer_bell_open(peer_bell *b, int page_fd, int event_fd, char *why, size_t why_bytes);
void peer_bell_close(peer_bell *b);
/* To be called after what the peer may wait for was published, and after a sequentially consistent fence. */
void peer_bell_ring(peer_bell *b);

#endif
