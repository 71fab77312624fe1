/* The contract of a data backend: what moves tensors between the ranks of a context.
 *
 * A backend instance belongs to one context. Above it, ops.c has validated every argument, so a backend sees
 * only legal operations; what it must find out itself is whether the *ranks* agree (PSD_ERR_MISMATCH).
 * Out-parameters are written only on PSD_OK. Functions marked [any] may be called by any thread at any time
 * between open and close; the others are called by one thread at a time per instance. Nothing but wait(),
 * stream_wait(), stream_sync(), mem_copy() and chan_recv() blocks.
 *
 * host is part of the library. Every other backend is a shared object, psd_backend_<name>.so, that exports
 * psd_backend_entry and opens what it needs (libnccl, libmpi) at run time, so that one build runs on any node.
 * It is looked for in PSD_BACKEND_DIR, else in psd/ beside libpsd.so, or in ../lib/psd from a program that has
 * the library inside; see plugins.h. */
#ifndef PSD_BACKEND_H
#define PSD_BACKEND_H

#include "common/clock.h"
#include "common/msg.h"

typedef struct psd_backend psd_backend;             /* one context's instance */
typedef struct psd_backend_group psd_backend_group; /* a group on it */
typedef struct psd_request psd_request;             /* an operation in flight */

typedef enum psd_backend_caps {
    PSD_CAP_HOST_MEMORY = 1u << 0,
    PSD_CAP_DEVICE_MEMORY = 1u << 1,
    PSD_CAP_TAGS = 1u << 2,       /* tags other than 0 */
    PSD_CAP_ANY_SOURCE = 1u << 3, /* PSD_ANY_SOURCE, PSD_ANY_TAG */
    PSD_CAP_BIT_OPS = 1u << 4,    /* band, bor, bxor */
    PSD_CAP_ABORT = 1u << 5,      /* group_abort works; otherwise the process exits on failure */
    PSD_CAP_CHANNEL = 1u << 6,    /* the small-message channel */
} psd_backend_caps;

typedef struct psd_backend_ops psd_backend_ops;
typedef struct psd_kernels psd_kernels; /* worker/backend/kernels.h */
typedef struct psd_op_result psd_op_result;

/* What psd_backend_config.ring_bytes may be, if not 0: a power of two. */
#define PSD_RING_BYTES_MIN ((int64_t)4 << 10)
#define PSD_RING_BYTES_MAX ((int64_t)1 << 30)

typedef struct psd_backend_config {
    const char *job;
    uint64_t incarnation;
    int64_t eager_limit;   /* bytes; a send of more completes only once its receive is posted */
    const char *bind_host; /* PSD_DATA_HOST: address or interface for data links; NULL: the backend chooses */
    const char *transport; /* PSD_HOST_TRANSPORT: auto, shm or tcp */
    size_t ring_bytes;     /* PSD_HOST_RING: of a shared-memory link, each way; 0: the backend chooses */
    const char *run_dir;   /* PSD_RUN_DIR: where its socket is a file; NULL or "": the backend chooses */
    /* Called on a mismatch, a broken link or a passed deadline, so that psd can tell the other members; from
     * any thread, under backend locks: it must only queue. `culprit` is a world rank or -1. */
    void (*on_group_broken)(void *owner, uint32_t group, psd_status status, int32_t culprit,
                            const char *text);
    /* Called instead of it, if it is not NULL, where the backend can tell what the ranks concerned called: of a
     * mismatch, one or two of them; of an operation that nobody comes to, that one. */
    void (*on_disagreement)(void *owner, uint32_t group, psd_status status, int32_t culprit, const char *text,
                            const psd_op_side *sides, uint32_t side_count);
    /* A request that was released before it was complete (see release) is complete; from any thread, under
     * backend locks. Only with PSD_CAP_DEVICE_MEMORY. */
    void (*on_detached_done)(void *owner, uint64_t cookie, const psd_op_result *result);
    /* Without PSD_CAP_ABORT: operations of a broken group cannot be ended, so the process must be. Called once, by
     * a thread of the backend, without locks; does not return. */
    void (*on_stuck)(void *owner, psd_status status, const char *text);
    void *owner;
    /* For log lines of a backend in a shared object, which has a logger of its own without the rank and is given a
     * psd_log_level and the text; NULL: it uses that. From any thread, under backend locks. */
    void (*log)(int level, const char *text);
    /* What a backend other than host may open an instance of for itself: its small-message channel. */
    const psd_backend_ops *host;
    int32_t local_rank;   /* on this host, as the launcher counts; -1: unknown */
    const char *device;   /* PSD_DEVICE: a device index; NULL: local_rank modulo the devices */
    const char *log_file; /* where the backend's library writes its log (NCCL_DEBUG_FILE); NULL: nowhere */
} psd_backend_config;

typedef struct psd_group_desc {
    uint32_t id; /* psd's, unique in a job over all time */
    uint64_t epoch;
    int32_t rank; /* mine */
    int32_t size;
    const uint32_t *members;      /* world ranks; copied */
    const char *const *addresses; /* of the members, as address() made them; copied as needed */
    const uint8_t *token;
    uint32_t token_bytes;
} psd_group_desc;

/* One send or receive of a batch. */
typedef struct psd_op_p2p {
    bool is_send;
    psd_dtype dtype;
    void *data; /* read only when sending */
    int64_t count;
    int32_t peer; /* group rank, or PSD_ANY_SOURCE */
    int32_t tag;  /* or PSD_ANY_TAG */
} psd_op_p2p;

/* In place of a root: a hash (its low 30 bits) of the parts that a bucket's tensors cut the operation into. */
#define PSD_ROOT_PARTS(hash) (-2 - (int32_t)((hash)&0x3fffffff))

/* A validated operation. The struct, its splits and its batch are copied or used up by start(); the tensor
 * memory is borrowed until the request completes. `count` is the c of psd.h's table (elements per rank where
 * in or out is n*c). PSD_OP_SEND and PSD_OP_RECV come as a batch of one; sendrecv as a batch of two. */
typedef struct psd_op {
    psd_op_kind kind;
    psd_dtype dtype; /* 0 for barrier and batch */
    psd_redop redop; /* 0 where nothing is reduced */
    int32_t root; /* -1 where there is none; PSD_ROOT_PARTS: what else the ranks of an all_reduce agree on */
    int64_t count;
    const void *in;
    void *out;
    const int64_t *in_splits; /* all_to_all_v: group size of each */
    const int64_t *out_splits;
    const psd_op_p2p *p2p; /* batch */
    int32_t p2p_count;
    psd_time_ns deadline; /* the op's own; passing it breaks the group with PSD_ERR_DEADLINE */
    const char *label;    /* `all_reduce "grad" at train.c:12`: for error texts; copied if kept */
    /* With PSD_CAP_DEVICE_MEMORY: a stream of the context's device; the operation begins after what was queued
     * on it before start(). NULL: the default stream. */
    void *stream;
    uint64_t cookie; /* for on_detached_done */
    uint64_t record; /* seq of its record; for inspect() */
} psd_op;

/* What a completed request tells. For batches, source and tag are those of the last receive. */
struct psd_op_result {
    psd_status status;
    int32_t source;
    int32_t tag;
    uint64_t ordinal; /* collective: in its group; send, receive: in its pair */
};

/* What the groups of a backend take of the device. */
typedef struct psd_backend_usage {
    int32_t communicators;
    int32_t most_communicators;  /* the budget: a group that would pass it is refused */
    uint64_t communicator_bytes; /* about */
} psd_backend_usage;

#define PSD_CHAN_MAX 1024 /* bytes of a small message */

typedef struct psd_chan_msg {
    uint32_t source; /* world rank */
    uint32_t bytes;
    uint8_t data[PSD_CHAN_MAX];
} psd_chan_msg;

/* A part of an operation in flight: one send or receive of it, or all of a collective. */
typedef struct psd_transfer {
    uint64_t record; /* psd_op.record */
    uint32_t group;
    bool is_collective;
    bool is_send;
    bool is_moving; /* both ends are there: it goes on by itself */
    psd_dtype dtype;
    int32_t peer; /* group rank; PSD_ANY_SOURCE; collectives: -1 */
    int32_t tag;
    uint64_t
        ordinal; /* collectives: in the group. Sends, and receives that have their message: in the pair */
    int64_t count;
    uint32_t
        other_tag; /* a receive that waits: tag + 1 of a message of its peer's that it does not take; 0: none */
} psd_transfer;

/* Who is told what is in flight. Called under the backend's locks: they only copy. */
typedef struct psd_inspector {
    void *arg;
    void (*transfer)(void *arg, const psd_transfer *transfer);
    void (*group)(void *arg, uint32_t group, uint64_t started); /* collectives started on it */
    /* Messages of any kind on the link with a rank; what is counted as sent by one end will be received by the
     * other. */
    void (*pair)(void *arg, uint32_t world_rank, uint64_t sent, uint64_t received);
} psd_inspector;

struct psd_backend_ops {
    const char *name;
    uint32_t caps;

    /* [any] Can it run here? No side effects. Writes one clear sentence why, or why not. */
    psd_status (*probe)(char *why, size_t why_bytes);

    psd_status (*open)(const psd_backend_config *config, psd_backend **out, char *why, size_t why_bytes);
    /* All groups are closed and all requests released before. Accepts NULL. */
    void (*close)(psd_backend *backend);

    /* [any] Text that other ranks' group_begin understands; PSD_MAX_ADDR bytes at most. */
    psd_status (*address)(psd_backend *backend, char *out, size_t bytes);
    /* [any] The token of a new group, made by its rank 0. */
    psd_status (*token)(psd_backend *backend, uint8_t *out, size_t capacity, uint32_t *bytes);

    /* Starts connecting to the members; poll until it is no longer PSD_INPROGRESS. Ready means that every
     * link of the group has carried a message both ways. On an error `why` names the pair, both addresses,
     * and the cure. */
    psd_status (*group_begin)(psd_backend *backend, const psd_group_desc *desc, psd_backend_group **out,
                              char *why, size_t why_bytes);
    psd_status (*group_poll)(psd_backend_group *group, char *why, size_t why_bytes);
    /* No request of the group is left. Accepts NULL. */
    void (*group_close)(psd_backend_group *group);
    /* [any] All its requests, now and later, end with this status and text. Idempotent: the first reason
     * stays. */
    void (*group_abort)(psd_backend_group *group, psd_status status, const char *text);
    /* [any] PSD_OK, or the status the group is broken with, and its text. */
    psd_status (*group_error)(psd_backend_group *group, char *text, size_t text_bytes);
    /* [any] What has become of another member, by its group rank: PSD_INPROGRESS it takes part, PSD_OK it has
     * closed the group, PSD_ERR_PEER_FAILED its link broke before. With PSD_CAP_CHANNEL. */
    psd_status (*group_member)(psd_backend_group *group, int32_t rank);

    /* [any] Starts an operation. Collectives of one group are started in program order (the caller holds the
     * group's order lock). A broken group gives its status. */
    psd_status (*start)(psd_backend_group *group, const psd_op *op, psd_request **out);
    /* [any] Optional. As start(), for a caller that waits next: may block for some microseconds, and if the operation is
     * complete then there is no request: PSD_OK, and *result is written. PSD_INPROGRESS: started, *out is to be waited
     * for. */
    psd_status (*run)(psd_backend_group *group, const psd_op *op, psd_op_result *result, psd_request **out);
    /* [any] Makes progress once; PSD_INPROGRESS, or the result's status, and then *result is written. */
    psd_status (*test)(psd_request *request, psd_op_result *result);
    /* [any] Blocks until all (or, with any, one) of the requests are complete or the deadline has passed
     * (PSD_ERR_TIMEOUT). Spins briefly, then sleeps. Entries may be NULL and are skipped. Returns PSD_OK when
     * the condition holds, whatever the operations' own statuses: ask test(). */
    psd_status (*wait)(psd_backend *backend, psd_request *const *requests, int32_t count, bool any,
                       psd_time_ns deadline);
    /* [any] Gives a completed request back. Also one after a stream_wait that was PSD_OK: the backend keeps it
     * until it is complete and then calls on_detached_done; that it failed is then the group's error. */
    void (*release)(psd_request *request);
    /* [any] The error text of a completed, failed request; valid until release. */
    const char *(*request_text)(const psd_request *request);

    /* [any] The small-message channel to a world rank with which some open group shares a link. Reliable,
     * ordered, never blocks: PSD_AGAIN when the link is full, PSD_ERR_UNREACHABLE without a link. */
    psd_status (*chan_send)(psd_backend *backend, uint32_t world_rank, const void *data, uint32_t bytes);
    /* [any, one thread at a time] PSD_ERR_TIMEOUT when nothing came by the deadline (also at once if it has
     * passed). */
    psd_status (*chan_recv)(psd_backend *backend, psd_time_ns deadline, psd_chan_msg *out);

    /* [any] Bytes over links since open. */
    void (*counters)(psd_backend *backend, uint64_t *bytes_sent, uint64_t *bytes_received);

    /* Memory that this backend moves fastest; optional (NULL: psd takes aligned heap memory). With
     * PSD_CAP_DEVICE_MEMORY it is the device's, and zeroed; and freeing it waits until the device is through with all that
     * may use it. */
    psd_status (*mem_alloc)(psd_backend *backend, size_t bytes, void **out);
    void (*mem_free)(psd_backend *backend, void *data, size_t bytes);

    /* ---- with PSD_CAP_DEVICE_MEMORY, all of them; else none. Streams are those of the device's runtime. */

    /* [any] The index of the context's device. */
    int32_t (*device)(psd_backend *backend);
    /* [any] Is this memory of that device? Otherwise `why` says what it is (host memory, another device's). */
    psd_status (*mem_check)(psd_backend *backend, const void *data, size_t bytes, char *why,
                            size_t why_bytes);
    /* [any] Copies between host and device or on the device, ordered on the stream. Blocks until done if one
     * side is host memory. */
    psd_status (*mem_copy)(psd_backend *backend, void *dst, const void *src, size_t bytes, void *stream,
                           psd_time_ns deadline, char *why, size_t why_bytes);
    /* [any] Blocks until the operation is queued on the device (PSD_ERR_TIMEOUT: not by the deadline), then
     * makes the stream wait for it. A request that has failed gives its status. */
    psd_status (*stream_wait)(psd_request *request, void *stream, psd_time_ns deadline);
    /* [any] Blocks until all that is queued on the stream is done; PSD_ERR_TIMEOUT; or the error of a group
     * that broke meanwhile, told in `why`. */
    psd_status (*stream_sync)(psd_backend *backend, void *stream, psd_time_ns deadline, char *why,
                              size_t why_bytes);
    /* [any] Kernels of the device; NULL: this build has none, and `why` says so. */
    const psd_kernels *(*kernels)(psd_backend *backend, char *why, size_t why_bytes);
    /* [any] Optional, also without PSD_CAP_DEVICE_MEMORY. */
    void (*usage)(psd_backend *backend, psd_backend_usage *out);
    /* [any] Optional: without it psd does not explain hangs of this backend's operations. */
    void (*inspect)(psd_backend *backend, const psd_inspector *to);
};

/* What the shared object of a backend exports under the name psd_backend_entry. The loader refuses another
 * abi. */
#define PSD_BACKEND_ABI 2
typedef struct psd_backend_plugin {
    uint32_t abi; /* PSD_BACKEND_ABI */
    const psd_backend_ops *ops;
} psd_backend_plugin;

/* Chooses by name, or by probing for "auto" (nccl, else mpi under mpirun, else host). PSD_ERR_BACKEND: it is
 * not installed, not fit, or cannot run here. `why` gets the name and the reason for the choice, or for the
 * refusal. */
psd_status psd_backend_choose(const char *name, const psd_backend_ops **out, char *why, size_t why_bytes);

/* Mandatory slots present, optional ones in agreement with caps? */
psd_status psd_backend_verify(const psd_backend_ops *ops, char *why, size_t why_bytes);

#endif
