/* Communicators: which are live, what state they are in, and how a rank meets the others. */
#include "nc.h"

#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed =
    PTHREAD_COND_INITIALIZER; /* a reference was given up, a communicator aborted */
static ncclComm_t live;

/* ---- lifetime */

ncclComm_t nc_comm_new(const uint8_t id[SEG_ID_BYTES], int rank, int ranks, int device, bool is_blocking)
{
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return NULL;
    comm->refs = 1;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->device = device;
    comm->is_blocking = is_blocking;
    comm->seg.fd = -1;
    memcpy(comm->id, id, SEG_ID_BYTES);
    return comm;
}

void nc_comm_publish(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    comm->next = live;
    live = comm;
    pthread_mutex_unlock(&lock);
}

ncclComm_t nc_comm_get(ncclComm_t handle)
{
    pthread_mutex_lock(&lock);
    ncclComm_t comm = live;
    while (comm != NULL && comm != handle)
        comm = comm->next;
    if (comm != NULL)
        comm->refs++;
    pthread_mutex_unlock(&lock);
    return comm;
}

void nc_comm_hold(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    comm->refs++;
    pthread_mutex_unlock(&lock);
}

static void comm_free(ncclComm_t comm)
{
    if (comm->has_segment)
        seg_close(&comm->seg);
    psd_gpusim_mark_put(comm->last);
    nc_registrations_free(comm->registered);
    free(comm);
}

void nc_comm_put(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    bool is_last = --comm->refs == 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (is_last)
        comm_free(comm);
}

/* Takes the handle away; false: it had gone. */
static bool unpublish(ncclComm_t comm)
{
    ncclComm_t *at = &live;
    while (*at != NULL && *at != comm)
        at = &(*at)->next;
    bool found = *at != NULL;
    if (found)
        *at = comm->next;
    return found;
}

void nc_comm_retire(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    if (unpublish(comm)) {
        while (comm->refs > 2)
            pthread_cond_wait(&changed, &lock);
        comm->refs--;
    }
    pthread_mutex_unlock(&lock);
    nc_comm_put(comm);
}

/* Files of communicators that never formed go with a process that ends in order. */
__attribute__((destructor)) static void forget_names(void)
{
    pthread_mutex_lock(&lock);
    for (ncclComm_t comm = live; comm != NULL; comm = comm->next)
        if (comm->has_segment)
            seg_abandon(&comm->seg);
    pthread_mutex_unlock(&lock);
}

/* ---- state */

void nc_comm_start(ncclComm_t comm)
{
    int success = ncclSuccess;
    atomic_compare_exchange_strong(&comm->state, &success, ncclInProgress);
}

void nc_comm_settle(ncclComm_t comm, ncclResult_t result)
{
    int in_progress = ncclInProgress;
    atomic_compare_exchange_strong(&comm->state, &in_progress, (int)result);
}

void nc_comm_fail(ncclComm_t comm, ncclResult_t error)
{
    int success = ncclSuccess;
    if (!atomic_compare_exchange_strong(&comm->state, &success, (int)error))
        nc_comm_settle(comm, error);
}

bool nc_comm_wait(ncclComm_t comm, ncclComm_t also, nc_condition done, void *arg)
{
    for (;;) {
        bool open = comm->has_segment;
        uint32_t seen = open ? seg_bell(&comm->seg) : 0;
        if (comm->aborted || (also != NULL && also->aborted))
            return false;
        if (done(comm, arg))
            return true;
        if (open) {
            seg_sleep(&comm->seg, seen);
            continue;
        }
        pthread_mutex_lock(&lock);
        if (!comm->aborted && (also == NULL || !also->aborted))
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
}

static void stop(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    comm->aborted = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (comm->has_segment)
        seg_ring(&comm->seg, comm->rank);
}

/* User guide, "Thread Safety": one thread at a time operates a communicator. User guide,
 * ncclCommGetAsyncError: while it is ncclInProgress no other NCCL function may be called; NCCL, src/init.cc,
 * ncclCommEnsureReady, answers ncclInvalidArgument then, and the communicator's own error once it has one. */
ncclResult_t nc_call_begin(ncclComm_t handle, const char *call)
{
    ncclComm_t comm = handle != NULL ? nc_comm_get(handle) : NULL;
    if (comm == NULL) {
        nc_warn("%s : %s", call, handle == NULL ? "comm argument is NULL" : "corrupted comm object detected");
        return ncclInvalidArgument;
    }
    ncclResult_t result = (ncclResult_t)atomic_load(&comm->state);
    if (psd_gpusim_in_host_func()) {
        nc_warn("%s : called by a host function on a stream", call);
        result = ncclUnhandledCudaError;
    } else if (result == ncclInProgress) {
        nc_warn("%s : Attempt to use communicator before the previous operation returned ncclSuccess", call);
        result = ncclInvalidArgument;
    } else if (result == ncclSuccess && atomic_exchange(&comm->in_call, true)) {
        nc_warn("%s : two threads use one communicator at once", call);
        result = ncclInvalidUsage;
    }
    if (result != ncclSuccess)
        nc_comm_put(comm);
    return result;
}

void nc_call_end(ncclComm_t comm)
{
    atomic_store(&comm->in_call, false);
    nc_comm_put(comm);
}

/* ---- meeting */

/* NCCL, src/misc/utils.cc, getHostHash: NCCL_HOSTID if set, else the host's name and boot id. */
static uint64_t host_hash(void)
{
    char text[512] = "";
    const char *id = getenv("NCCL_HOSTID");
    uint64_t hash = 5381;
    if (id != NULL && *id != '\0') {
        snprintf(text, sizeof text, "%s", id);
    } else {
        gethostname(text, 255);
        FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");
        if (boot != NULL) {
            size_t at = strlen(text);
            size_t got = fread(text + at, 1, 64, boot);
            text[at + got] = '\0';
            fclose(boot);
        }
    }
    for (const char *c = text; *c != '\0'; c++)
        hash = hash * 33 ^ (unsigned char)*c;
    return hash;
}

static bool never(ncclComm_t comm, void *arg)
{
    (void)comm;
    (void)arg;
    return false;
}

static bool all_arrived(ncclComm_t comm, void *arg)
{
    (void)arg;
    return atomic_load(&comm->seg.header->arrived) == (uint32_t)comm->ranks;
}

static void arrive(ncclComm_t comm)
{
    seg_rank *mine = &comm->seg.rank_at[comm->rank];
    if (cudaDeviceGetPCIBusId(mine->bus, sizeof mine->bus, comm->device) != cudaSuccess)
        mine->bus[0] = '\0';
    mine->version = settings_get()->nccl_version;
    mine->host = host_hash();
    atomic_store(&mine->arrived, 1);
    atomic_fetch_add(&comm->seg.header->arrived, 1);
    seg_ring_all(&comm->seg);
}

/* NCCL, src/init.cc, initTransportsRank: "Mismatched NCCL version detected" and "Duplicate GPU detected" are
 * ncclInvalidUsage; GPUs are the same with equal host hash and bus id. */
static ncclResult_t check_peers(ncclComm_t comm)
{
    const seg_rank *mine = &comm->seg.rank_at[comm->rank];
    for (int r = 0; r < comm->ranks; r++) {
        const seg_rank *peer = &comm->seg.rank_at[r];
        if (peer->version != mine->version) {
            nc_warn("Mismatched NCCL version detected : rank %d version %d rank %d version %d", r,
                    peer->version, comm->rank, mine->version);
            return ncclInvalidUsage;
        }
        if (r != comm->rank && peer->host == mine->host && strcmp(peer->bus, mine->bus) == 0) {
            nc_warn("Duplicate GPU detected : rank %d and rank %d both on CUDA device %s", comm->rank, r,
                    mine->bus);
            return ncclInvalidUsage;
        }
    }
    return ncclSuccess;
}

/* NCCL, src/bootstrap.cc, bootstrapRoot: on a rank that has "already checked in" or a "mismatch in rank
 * count" the root gives up and nobody gets an answer: they wait until they are aborted. */
ncclResult_t nc_comm_join(ncclComm_t comm, ncclComm_t also)
{
    uint32_t unclaimed = 0;
    if (settings_hit(settings_get()->init_hang_rank, comm->rank)) {
        nc_info("injected: init of rank %d never finishes", comm->rank);
        nc_comm_wait(comm, also, never, NULL);
        return ncclInternalError;
    }
    const char *wrong = seg_open(&comm->seg, comm->id, comm->rank, comm->ranks);
    if (wrong == NULL)
        comm->has_segment = true;
    if (wrong == NULL &&
        !atomic_compare_exchange_strong(&comm->seg.rank_at[comm->rank].claimed, &unclaimed, 1))
        wrong = "rank has already checked in";
    if (wrong != NULL) {
        nc_warn("Bootstrap Root : %s (rank %d of %d)", wrong, comm->rank, comm->ranks);
        if (strncmp(wrong, "cannot", 6) == 0)
            return ncclSystemError;
        nc_comm_wait(comm, also, never, NULL);
        return ncclInternalError;
    }
    arrive(comm);
    if (!nc_comm_wait(comm, also, all_arrived, NULL))
        return ncclInternalError;
    seg_unlink(&comm->seg);
    return check_peers(comm);
}

/* ---- ending */

static bool host_finalized(ncclComm_t comm, void *arg)
{
    (void)arg;
    const seg_rank *mine = &comm->seg.rank_at[comm->rank];
    for (int r = 0; r < comm->ranks; r++)
        if (comm->seg.rank_at[r].host == mine->host && atomic_load(&comm->seg.rank_at[r].finalized) == 0)
            return false;
    return true;
}

/* User guide, ncclCommFinalize: completes what was issued; "an intra-node collective call". */
static ncclResult_t finalize(ncclComm_t comm)
{
    if (comm->last != NULL)
        psd_gpusim_mark_wait(comm->last);
    if (comm->aborted)
        return ncclInternalError;
    atomic_store(&comm->seg.rank_at[comm->rank].finalized, 1);
    seg_ring_all(&comm->seg);
    return nc_comm_wait(comm, NULL, host_finalized, NULL) ? ncclSuccess : ncclInternalError;
}

static ncclResult_t finalize_run(nc_job *job)
{
    return finalize(job->comm);
}

static void finalize_end(nc_job *job, ncclResult_t result)
{
    nc_comm_settle(job->comm, result);
    nc_comm_put(job->comm);
    free(job);
}

static ncclResult_t destroy_run(nc_job *job)
{
    return job->comm->finalized ? ncclSuccess : finalize(job->comm);
}

static void destroy_end(nc_job *job, ncclResult_t result)
{
    (void)result;
    nc_comm_retire(job->comm);
    free(job);
}

/* Adds a job on the communicator, which keeps a reference of its own. */
static ncclResult_t add_job(ncclComm_t comm, bool is_blocking, ncclResult_t (*run)(nc_job *),
                            void (*end)(nc_job *, ncclResult_t))
{
    nc_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return ncclSystemError;
    *job = (nc_job){.comm = comm, .is_blocking = is_blocking, .run = run, .end = end};
    nc_comm_hold(comm);
    ncclResult_t result = nc_group_add_job(job);
    if (result != ncclSuccess) {
        nc_comm_put(comm);
        free(job);
    }
    return result;
}

GPUSIM_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    nc_group_enter();
    ncclResult_t result = nc_call_begin(comm, "CommFinalize");
    if (result != ncclSuccess)
        return nc_group_leave(result);
    if (comm->finalized)
        result = ncclInvalidUsage;
    else
        result = add_job(comm, comm->is_blocking, finalize_run, finalize_end);
    if (result == ncclSuccess)
        comm->finalized = true;
    result = nc_group_leave(result);
    nc_call_end(comm);
    return result;
}

/* User guide, ncclCommDestroy: finalizes unless that was done; "an intra-node collective call". */
GPUSIM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm == NULL)
        return ncclSuccess;
    nc_group_enter();
    ncclResult_t result = nc_call_begin(comm, "CommDestroy");
    if (result == ncclSuccess) {
        result = add_job(comm, true, destroy_run, destroy_end);
        nc_call_end(comm);
    }
    return nc_group_leave(result);
}

/* User guide, ncclCommAbort: "aborts any uncompleted operations before destroying the communicator". Local:
 * other ranks go on waiting until they abort too. */
GPUSIM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t handle)
{
    if (handle == NULL)
        return ncclSuccess;
    ncclComm_t comm = nc_comm_get(handle);
    if (comm == NULL) {
        nc_warn("CommAbort : corrupted comm object detected");
        return ncclInvalidArgument;
    }
    while (settings_hit(settings_get()->abort_hang_rank, comm->rank))
        pause();
    nc_info("comm %p rank %d nranks %d - Abort", (void *)comm, comm->rank, comm->ranks);
    stop(comm);
    nc_comm_retire(comm);
    return ncclSuccess;
}

/* ---- questions */

GPUSIM_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *error)
{
    ncclComm_t comm = handle != NULL && error != NULL ? nc_comm_get(handle) : NULL;
    if (comm == NULL)
        return ncclInvalidArgument;
    *error = (ncclResult_t)atomic_load(&comm->state);
    nc_comm_put(comm);
    return ncclSuccess;
}

static ncclResult_t answer(ncclComm_t comm, int *out, size_t field, const char *call)
{
    ncclResult_t result = out == NULL ? ncclInvalidArgument : nc_call_begin(comm, call);
    if (result != ncclSuccess)
        return result;
    memcpy(out, (const char *)comm + field, sizeof *out);
    nc_call_end(comm);
    return ncclSuccess;
}

GPUSIM_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    return answer(comm, count, offsetof(struct ncclComm, ranks), "CommCount");
}

GPUSIM_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    return answer(comm, rank, offsetof(struct ncclComm, rank), "CommUserRank");
}

GPUSIM_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    return answer(comm, device, offsetof(struct ncclComm, device), "CommCuDevice");
}
