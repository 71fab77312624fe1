/* Links of the host backend: a reliable, ordered byte stream between two contexts, over shared memory when
 * the two prove to be on one host, over TCP otherwise. Above it (engine.h) are frames, matching and
 * operations.
 *
 * A host_net is one context's listeners, its links and its bell. All functions but host_net_wake() are called
 * under the engine's lock; none blocks but host_net_sleep(), which is called without it.
 *
 * How a link comes up. Every address names the context's incarnation, its TCP addresses and the name of a
 * unix socket (random), which is there twice: abstract, and as a file in the directory of unix_path.h. For each
 * pair the context with the lower incarnation connects: to the unix socket first, as abstract, then as file, and
 * if its peer answers with the right incarnation the two are on one host: the connector makes a memfd, sized
 * with posix_fallocate, with one ring each way, and passes it and its bell by
 * SCM_RIGHTS. Otherwise TCP. Host names are never compared. The unix socket stays open: its end tells that
 * the peer's process is gone.
 *
 * The bell. A context that is about to sleep sets a flag in its bell (a page it shares with its peers) and
 * sleeps in epoll on an eventfd; a peer that has written to, or made room in, a ring and sees the flag writes
 * to the eventfd. */
#ifndef PSD_HOST_LINK_H
#define PSD_HOST_LINK_H

#include <sys/uio.h>

#include "common/clock.h"
#include "common/msg.h"
#include "worker/backend/backend.h"
#include "worker/backend/host/arena.h"
#include "worker/backend/host/lane.h"

typedef struct host_net host_net;
typedef struct host_link host_link;

typedef struct host_net_config {
    const char *job;
    uint64_t incarnation;
    const char *bind_host; /* address or interface name; NULL: every address that is up, loopback last */
    const char *transport; /* "auto", "shm" (fail rather than use TCP) or "tcp" */
    const char *run_dir;   /* for the unix socket that is a file; NULL or "": see unix_path.h */
    /* Of each direction of a shared-memory link, a power of two; 0: HOST_RING_DEFAULT, less with many peers
     * (mesh.h). */
    size_t ring_bytes;
    bool no_single_copy; /* neither read peers' memory nor let them read ours */
} host_net_config;

#define HOST_RING_DEFAULT ((size_t)256 << 10)
#define HOST_RING_MIN     ((size_t)PSD_RING_BYTES_MIN)
#define HOST_RING_MAX     ((size_t)PSD_RING_BYTES_MAX)

typedef enum host_link_state {
    HOST_LINK_CONNECTING = 0,
    HOST_LINK_READY = 1,
    HOST_LINK_BROKEN = 2, /* host_link_text() says why; stays so */
} host_link_state;

psd_status host_net_open(const host_net_config *config, host_net **out, char *why, size_t why_bytes);
void host_net_close(host_net *net); /* accepts NULL; breaks all links */

/* "1;<incarnation hex>;<unix name>;<tcp address>[,<tcp address>...]" */
psd_status host_net_address(const host_net *net, char *out, size_t bytes);

/* Links to all these contexts will be asked for (`addresses` may have our own among them): makes places for
 * their handshakes, chooses the rings' size, and says what they need and this process or host does not have. What
 * only shared memory lacks is logged, and TCP used, if the transport allows it. */
psd_status host_net_expect(host_net *net, const char *const *addresses, uint32_t count, char *why,
                           size_t why_bytes);

/* The link to the context at this address, begun if there is none; referenced until host_link_put(). One link
 * per pair of contexts, however many groups share it; a link to oneself is refused. */
psd_status host_link_get(host_net *net, const char *address, host_link **out, char *why, size_t why_bytes);
/* A link without references stays open: the peer may still use it. */
void host_link_put(host_net *net, host_link **link);

host_link_state host_link_get_state(const host_link *link);
const char *host_link_text(
    const host_link *link); /* both addresses, interface, errno text: why broken, or which way it goes */
/* Why it broke: PSD_ERR_PEER_FAILED when the peer's process is gone (its sockets ended), PSD_ERR_UNREACHABLE
 * when it never came up, else PSD_ERR_LINK.
 * What the peer wrote before it went is still read: a link breaks only once its ring or socket is empty. */
psd_status host_link_status(const host_link *link);
/* Breaks the link with this text, so that the peer sees its end too: the peer sent garbage. */
void host_link_break(host_link *link, const char *text);
bool host_link_is_shm(const host_link *link);
uint64_t host_link_incarnation(const host_link *link);  /* the peer's */
void host_link_set_owner(host_link *link, void *owner); /* the engine's per-link state */
void *host_link_owner(const host_link *link);
/* All links that are referenced or that a peer has opened, in an order that stays the same; NULL ends. Links
 * are freed only by host_net_poll: a broken one without references in the second poll after it broke, so that
 * who looks after each poll sees it broken first, and its owner with it. */
host_link *host_net_first(host_net *net);
host_link *host_net_next(host_net *net, host_link *link);

/* Stream. write takes what fits (0: full); read gives what is there (0: empty). On a broken link both give 0.
 */
size_t host_link_write(host_link *link, const struct iovec *iov, int count);
size_t host_link_read(host_link *link, void *data, size_t bytes);
/* Instead of read() on shm: where what could be read next lies, and how much of it in one piece (0: nothing). The
 * peer may write to it meanwhile. take() goes past at most so much. */
const void *host_link_peek(host_link *link, size_t *bytes);
void host_link_take(host_link *link, size_t bytes);
/* Small messages beside the stream of a shared-memory link, each in one piece, in one order with it: what was written
 * to the stream before comes before, what was written after comes after. They may begin where a frame of the stream
 * ends. The reader asks first host_link_readable_stream(), then peek_small(), and reads the stream only if that had
 * nothing: so it sees both in order. */
size_t host_link_small_max(const host_link *link); /* bytes of payload; 0: there are none on this link */
/* False: it does not fit, goes through the stream instead. Fills in message->ring_at. */
bool host_link_write_small(host_link *link, lane_message *message, const void *payload);
/* The payload of the next one, if it is its turn: else NULL. The peer may write to it meanwhile. Stays until taken. */
const void *host_link_peek_small(host_link *link, lane_message *out);
void host_link_take_small(host_link *link);
bool host_link_readable_stream(const host_link *link);
/* Could read() or peek_small() give something now? For shm: two loads. For TCP: what the last host_net_poll saw. */
bool host_link_readable(const host_link *link);
/* Could write() take something now? To be asked, or write() tried again, between arm and sleep by who waits
 * for room. */
bool host_link_writable(const host_link *link);
/* Rings the peer's bell if it sleeps; after the last write or read of a batch on shm, no-op on TCP. */
void host_link_flush(host_link *link);

/* Single copy: reads the peer's memory (process_vm_readv). Allowed only if a probe by a real read of the real
 * peer succeeded while the link came up. */
bool host_link_single_copy(const host_link *link); /* else host_link_text() says why not */
psd_status host_link_read_remote(host_link *link, uint64_t remote_address, void *data, size_t bytes);

/* Memory that both map: ours, as tensors are taken from it, and the peer's. Direct: each side has mapped the other's. */
arena *host_net_arena(host_net *net);
bool host_link_is_direct(const host_link *link);
/* The bytes at a place of the peer's arena, to be read and written until the lock is given up or the link is used;
 * NULL: not there, or the link is not up or not direct. */
unsigned char *host_link_map(const host_link *link, uint64_t place, uint64_t bytes);
/* To be asked after such bytes were read: false if the peer has ended the link meanwhile (it waits only so long for
 * who is stopped), since when its program may have written anything there. One load. */
bool host_link_read_holds(const host_link *link);

/* Handles what the kernel has: connections, handshakes, socket readiness, deadlines of connects (5 s). Costs
 * system calls. Returns true if anything happened. */
bool host_net_poll(host_net *net);
/* When host_net_poll must be called even if nothing comes; PSD_NEVER if not. */
psd_time_ns host_net_deadline(const host_net *net);
/* True while some link is TCP or connecting, so that polling for data needs host_net_poll. */
bool host_net_needs_kernel(const host_net *net);

/* Sleeping: arm, look once more whether something came, then sleep (without the lock), then disarm. Several
 * threads may sleep at once; arm and disarm count. */
void host_net_arm(host_net *net);
void host_net_disarm(host_net *net);
void host_net_sleep(host_net *net, psd_time_ns deadline);
void host_net_wake(host_net *net); /* any thread: ends a sleep of this net */

/* Readable when host_net_poll() has something to do: for who wants to sleep for that and for something else,
 * without being woken by peers that write to rings (the bell not armed). Not to be read or closed. */
int host_net_fd(const host_net *net);

/* Strangers refused on the listeners, since open. */
uint64_t host_net_refused(const host_net *net);

#endif
