/* What a group does on one communicator: a kernel on the streams' threads, whose lanes progress together.
 * User guide, "Point-to-point communication": calls within a group progress independently and never block
 * each other, except those with the same peer, which run in order: one lane per peer and direction.
 * Collectives run in the order they were issued (user guide, "Group Operation Ordering Semantics"): one lane,
 * and it comes first, as NCCL's src/enqueue.cc drains point-to-point tasks only once collectives are
 * depleted. */
#include "nc.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct lane {
    const nc_op **ops; /* into the kernel's, in order */
    size_t count;
    size_t at;        /* the current one */
    uint64_t step;    /* of the current one */
    nc_reduction how; /* of the current one, from step 0 on */
    seg_channel *from, *to;
    int from_rank, to_rank; /* to be woken */
} lane;

struct nc_kernel {
    ncclComm_t comm; /* a reference */
    nc_op *ops;
    size_t count;
    const nc_op **order; /* what the lanes point into */
    lane collectives;
    lane *pairs;
    size_t pair_count;
    bool fails; /* injected: an asynchronous error instead of running */
};

/* ---- building */

static bool is_pair(const nc_op *op)
{
    return op->kind == NC_SEND || op->kind == NC_RECV;
}

static lane *lane_for(nc_kernel *k, const nc_op *op)
{
    segment *seg = &k->comm->seg;
    int me = k->comm->rank;
    bool sends = op->kind == NC_SEND;
    for (size_t i = 0; i < k->pair_count; i++) {
        lane *l = &k->pairs[i];
        if (sends ? l->to != NULL && l->to_rank == op->root : l->from != NULL && l->from_rank == op->root)
            return l;
    }
    lane *l = &k->pairs[k->pair_count++];
    l->from_rank = l->to_rank = op->root;
    if (sends)
        l->to = seg_pair_channel(seg, me, op->root);
    else
        l->from = seg_pair_channel(seg, op->root, me);
    return l;
}

static void fill_lanes(nc_kernel *k)
{
    int n = k->comm->ranks, me = k->comm->rank;
    size_t at = 0;
    k->collectives = (lane){.ops = k->order, .from_rank = (me + n - 1) % n, .to_rank = (me + 1) % n};
    k->collectives.from = seg_ring_channel(&k->comm->seg, (me + n - 1) % n);
    k->collectives.to = seg_ring_channel(&k->comm->seg, me);
    for (size_t i = 0; i < k->count; i++) {
        if (is_pair(&k->ops[i]))
            lane_for(k, &k->ops[i])->count++;
        else
            k->order[at++] = &k->ops[i];
    }
    k->collectives.count = at;
    for (size_t i = 0; i < k->pair_count; i++) {
        k->pairs[i].ops = k->order + at;
        at += k->pairs[i].count;
        k->pairs[i].count = 0;
    }
    for (size_t i = 0; i < k->count; i++)
        if (is_pair(&k->ops[i])) {
            lane *l = lane_for(k, &k->ops[i]);
            l->ops[l->count++] = &k->ops[i];
        }
}

/* NCCL, src/enqueue.cc: "Trying to send to self without a matching recv" is ncclInvalidUsage. */
static bool self_matches(const nc_kernel *k)
{
    size_t sends = 0, receives = 0;
    for (size_t i = 0; i < k->count; i++)
        if (is_pair(&k->ops[i]) && k->ops[i].root == k->comm->rank)
            *(k->ops[i].kind == NC_SEND ? &sends : &receives) += 1;
    return sends == receives;
}

/* PSD_GPUSIM_ASYNC_ERROR counts the operations of the process on communicators where it has that rank. */
static bool injected(const nc_kernel *k)
{
    static _Atomic uint64_t done;
    const settings *set = settings_get();
    if (!settings_hit(set->async_error_rank, k->comm->rank))
        return false;
    uint64_t before = atomic_fetch_add(&done, k->count);
    return set->async_error_op > before && set->async_error_op <= before + k->count;
}

ncclResult_t nc_kernel_new(ncclComm_t comm, const nc_op *ops, size_t count, nc_kernel **out)
{
    nc_kernel *k = calloc(1, sizeof *k);
    if (k == NULL)
        return ncclSystemError;
    nc_comm_hold(comm);
    k->comm = comm;
    k->ops = calloc(count, sizeof *k->ops);
    k->order = calloc(count, sizeof *k->order);
    k->pairs = calloc(count, sizeof *k->pairs);
    if (k->ops == NULL || k->order == NULL || k->pairs == NULL) {
        nc_kernel_free(k);
        return ncclSystemError;
    }
    memcpy(k->ops, ops, count * sizeof *ops);
    k->count = count;
    if (!self_matches(k)) {
        nc_warn("Trying to send to self without a matching recv");
        nc_kernel_free(k);
        return ncclInvalidUsage;
    }
    fill_lanes(k);
    k->fails = injected(k);
    *out = k;
    return ncclSuccess;
}

void nc_kernel_free(nc_kernel *k)
{
    if (k == NULL)
        return;
    nc_comm_put(k->comm);
    free(k->ops);
    free(k->order);
    free(k->pairs);
    free(k);
}

/* ---- connecting: NCCL connects a pair, or the ring of a kind of collective, when it is first used; both
 * (all) sides take part (user guide, env. variable NCCL_RUNTIME_CONNECT; src/transport.cc,
 * ncclTransportP2pSetup). */

static _Atomic uint32_t *pair_word(ncclComm_t comm, int from, int to)
{
    return &comm->seg.pair[(size_t)from * (size_t)comm->ranks + (size_t)to];
}

static uint32_t ring_bits(const nc_kernel *k)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < k->collectives.count; i++)
        bits |= 1u << k->collectives.ops[i]->kind;
    return bits;
}

void nc_kernel_announce(nc_kernel *k)
{
    ncclComm_t comm = k->comm;
    seg_rank *mine = &comm->seg.rank_at[comm->rank];
    for (size_t i = 0; i < k->pair_count; i++) {
        const lane *l = &k->pairs[i];
        if (l->to != NULL)
            atomic_fetch_or(pair_word(comm, comm->rank, l->to_rank), SEG_SENDER);
        else
            atomic_fetch_or(pair_word(comm, l->from_rank, comm->rank), SEG_RECEIVER);
        seg_ring(&comm->seg, l->to_rank);
    }
    uint32_t bits = ring_bits(k);
    if ((atomic_load(&mine->ring_ready) & bits) != bits) {
        atomic_fetch_or(&mine->ring_ready, bits);
        seg_ring_all(&comm->seg);
    }
}

static bool connected(ncclComm_t comm, void *arg)
{
    const nc_kernel *k = arg;
    uint32_t bits = ring_bits(k);
    for (size_t i = 0; i < k->pair_count; i++) {
        const lane *l = &k->pairs[i];
        uint32_t have = l->to != NULL ? atomic_load(pair_word(comm, comm->rank, l->to_rank))
                                      : atomic_load(pair_word(comm, l->from_rank, comm->rank));
        if (have != (SEG_SENDER | SEG_RECEIVER))
            return false;
    }
    for (int r = 0; r < comm->ranks; r++)
        if ((atomic_load(&comm->seg.rank_at[r].ring_ready) & bits) != bits)
            return false;
    return true;
}

bool nc_kernel_is_connected(nc_kernel *k)
{
    return connected(k->comm, k);
}

ncclResult_t nc_kernel_connect(nc_kernel *k)
{
    return nc_comm_wait(k->comm, NULL, connected, k) ? ncclSuccess : ncclInternalError;
}

/* ---- running */

static bool may_write(const lane *l, const segment *seg)
{
    return atomic_load(&l->to->head) - atomic_load(&l->to->tail) < seg->slots;
}

static bool may_read(const lane *l)
{
    return atomic_load(&l->from->head) > atomic_load(&l->from->tail);
}

static void advance(lane *l)
{
    l->at++;
    l->step = 0;
}

/* Has everything sent been taken? NCCL's ncclSend is "blocking for the GPU" until its ncclRecv takes the
 * data; what fits its buffers may complete before, which PSD_GPUSIM_BUFFER allows. */
static bool taken(const lane *l, size_t bytes)
{
    size_t buffered = settings_get()->buffer_bytes;
    if (buffered > 0 && bytes <= buffered)
        return true;
    return atomic_load(&l->to->tail) == atomic_load(&l->to->head);
}

static size_t step_bytes(size_t bytes, uint64_t step)
{
    size_t at = (size_t)step * SEG_STEP;
    return bytes - at < SEG_STEP ? bytes - at : SEG_STEP;
}

/* Each side cuts its own count into steps: with different counts the sides take different numbers of steps,
 * and the one with more hangs; with as many steps, the receiver gets its own count of bytes, whatever was
 * sent. A count of 0 is a step too. */
static uint64_t steps_of(size_t bytes)
{
    return bytes == 0 ? 1 : (bytes + SEG_STEP - 1) / SEG_STEP;
}

static bool send_progress(nc_kernel *k, lane *l)
{
    segment *seg = &k->comm->seg;
    const nc_op *op = l->ops[l->at];
    size_t bytes = op->count * nc_type_size(op->dtype);
    bool moved = false;
    while (l->step < steps_of(bytes) && may_write(l, seg)) {
        uint64_t head = atomic_load(&l->to->head);
        size_t part = step_bytes(bytes, l->step);
        if (part > 0)
            memcpy(seg_slot(seg, l->to, head), (const char *)op->in + l->step * SEG_STEP, part);
        atomic_store(&l->to->head, head + 1);
        seg_ring(seg, l->to_rank);
        l->step++;
        moved = true;
    }
    if (l->step == steps_of(bytes) && taken(l, bytes)) {
        advance(l);
        moved = true;
    }
    return moved;
}

static bool receive_progress(nc_kernel *k, lane *l)
{
    segment *seg = &k->comm->seg;
    const nc_op *op = l->ops[l->at];
    size_t bytes = op->count * nc_type_size(op->dtype);
    bool moved = false;
    while (l->step < steps_of(bytes) && may_read(l)) {
        uint64_t tail = atomic_load(&l->from->tail);
        size_t part = step_bytes(bytes, l->step);
        if (part > 0)
            memcpy((char *)op->out + l->step * SEG_STEP, seg_slot(seg, l->from, tail), part);
        atomic_store(&l->from->tail, tail + 1);
        seg_ring(seg, l->from_rank);
        l->step++;
        moved = true;
    }
    if (l->step == steps_of(bytes))
        advance(l);
    return moved;
}

/* One step of a collective, whose slots are there. */
static void ring_run(nc_kernel *k, lane *l, const nc_op *op, const ring_step *s)
{
    segment *seg = &k->comm->seg;
    size_t size = nc_type_size(op->dtype), bytes = s->count * size;
    const char *in = (const char *)op->in + s->in * size;
    char *out = s->copies ? (char *)op->out + s->out * size : NULL;
    uint64_t head = atomic_load(&l->to->head), tail = atomic_load(&l->from->tail);
    void *send = s->sends ? seg_slot(seg, l->to, head) : NULL;
    const void *got = s->receives ? seg_slot(seg, l->from, tail) : NULL;
    void *target = out != NULL ? (void *)out : send;
    bool reduces = op->kind == NC_ALL_REDUCE || op->kind == NC_REDUCE || op->kind == NC_REDUCE_SCATTER;
    if (s->reduces)
        nc_reduce_combine(&l->how, op->dtype, target, got, in, s->count);
    else if (s->receives)
        memcpy(target, got, bytes);
    else if (reduces)
        nc_reduce_load(&l->how, op->dtype, target, in, s->count);
    else if (target != in && bytes > 0)
        memmove(target, in, bytes);
    if (s->is_result && reduces)
        nc_reduce_finish(&l->how, op->dtype, target, s->count);
    if (send != NULL && send != target && bytes > 0)
        memcpy(send, target, bytes);
    if (s->receives) {
        atomic_store(&l->from->tail, tail + 1);
        seg_ring(seg, l->from_rank);
    }
    if (s->sends) {
        atomic_store(&l->to->head, head + 1);
        seg_ring(seg, l->to_rank);
    }
}

static bool collective_progress(nc_kernel *k, lane *l)
{
    const nc_op *op = l->ops[l->at];
    ring_step s;
    bool moved = false;
    if (l->step == 0)
        l->how = nc_reduction_of(op, k->comm);
    while (nc_ring_step(op, k->comm->rank, k->comm->ranks, l->step, &s)) {
        if ((s.receives && !may_read(l)) || (s.sends && !may_write(l, &k->comm->seg)))
            return moved;
        ring_run(k, l, op, &s);
        l->step++;
        moved = true;
    }
    if (!taken(l, op->count * nc_type_size(op->dtype)))
        return moved;
    advance(l);
    return true;
}

static bool progress(nc_kernel *k, bool *finished)
{
    bool moved = false;
    lane *c = &k->collectives;
    while (c->at < c->count && collective_progress(k, c))
        moved = true;
    *finished = c->at == c->count;
    if (!*finished)
        return moved;
    for (size_t i = 0; i < k->pair_count; i++) {
        lane *l = &k->pairs[i];
        while (l->at < l->count && (l->to != NULL ? send_progress(k, l) : receive_progress(k, l)))
            moved = true;
        *finished = *finished && l->at == l->count;
    }
    return moved;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static bool is_past(ncclComm_t comm, void *arg)
{
    (void)comm;
    return now_ms() >= *(int64_t *)arg;
}

static bool never(ncclComm_t comm, void *arg)
{
    (void)comm;
    (void)arg;
    return false;
}

static void run(nc_kernel *k)
{
    ncclComm_t comm = k->comm;
    const settings *set = settings_get();
    bool finished = false;
    if (settings_hit(set->slow_rank, comm->rank)) {
        int64_t start = now_ms() + set->slow_ms;
        nc_comm_wait(comm, NULL, is_past, &start);
    }
    if (k->fails) { /* user guide, "Asynchronous errors and error handling": it never completes */
        nc_warn("injected asynchronous error at rank %d", comm->rank);
        nc_comm_fail(comm, (ncclResult_t)set->async_error_code);
        nc_comm_wait(comm, NULL, never, NULL);
        return;
    }
    while (!finished && !atomic_load(&comm->aborted)) {
        uint32_t seen = seg_bell(&comm->seg);
        if (!progress(k, &finished) && !finished && !atomic_load(&comm->aborted))
            seg_sleep(&comm->seg, seen);
    }
}

static void kernel_main(void *arg, bool device_ok)
{
    nc_kernel *k = arg;
    if (device_ok)
        run(k);
    nc_kernel_free(k);
}

/* Is an operand no device can read? With NCCL_CHECK_POINTERS=0 the kernel runs into it. */
static bool has_illegal_address(const nc_kernel *k)
{
    for (size_t i = 0; i < k->count; i++) {
        const nc_op *op = &k->ops[i];
        const void *in =
            op->kind == NC_RECV || (op->kind == NC_BROADCAST && op->root != k->comm->rank) ? NULL : op->in;
        const void *out =
            op->kind == NC_SEND || (op->kind == NC_REDUCE && op->root != k->comm->rank) ? NULL : op->out;
        if ((in != NULL && psd_gpusim_pointer(in).type == cudaMemoryTypeUnregistered) ||
            (out != NULL && psd_gpusim_pointer(out).type == cudaMemoryTypeUnregistered))
            return true;
    }
    return false;
}

static void fault_main(void *arg, bool device_ok)
{
    nc_kernel *k = arg;
    if (device_ok)
        psd_gpusim_device_fail(k->comm->device, cudaErrorIllegalAddress);
    nc_kernel_free(k);
}

/* The newest kernel of a communicator and, where kernels are serial, of its device. User guide, "Using
 * multiple NCCL communicators concurrently": kernels of several communicators may wait for each other on a
 * device, so that every rank has to issue them in one order; PSD_GPUSIM_SERIAL makes them. */
static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;
static mark *device_last[64];

static void remember(ncclComm_t comm, mark *done)
{
    psd_gpusim_mark_put(comm->last);
    comm->last = done;
    if (settings_get()->is_serial) {
        psd_gpusim_mark_put(device_last[comm->device]);
        device_last[comm->device] = psd_gpusim_mark_get(done);
    }
}

/* User guide, "Mixing Multiple Streams within the same ncclGroupStart/End() group": all streams wait for each
 * other. */
ncclResult_t nc_kernel_launch(nc_kernel *k)
{
    ncclComm_t comm = k->comm;
    mark *done = NULL;
    int count = 0;
    cudaStream_t *streams = calloc(k->count, sizeof *streams);
    if (streams == NULL) {
        nc_kernel_free(k);
        return ncclSystemError;
    }
    for (size_t i = 0; i < k->count; i++) {
        int at = 0;
        while (at < count && streams[at] != k->ops[i].stream)
            at++;
        if (at == count)
            streams[count++] = k->ops[i].stream;
    }
    pthread_mutex_lock(&launching);
    mark **last = settings_get()->is_serial ? &device_last[comm->device] : &comm->last;
    cudaError_t error = psd_gpusim_launch(comm->device, streams, count, *last,
                                          has_illegal_address(k) ? fault_main : kernel_main, k, &done);
    if (error == cudaSuccess)
        remember(comm, done);
    pthread_mutex_unlock(&launching);
    free(streams);
    if (error != cudaSuccess) {
        nc_warn("Cuda failure '%s'", cudaGetErrorString(error));
        nc_kernel_free(k);
        return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}
