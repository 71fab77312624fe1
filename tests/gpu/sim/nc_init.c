/* Making communicators: from a unique id, and by splitting. */
#include "nc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CONFIG_MAGIC 0xcafebeef

GPUSIM_EXPORT ncclResult_t ncclGetVersion(int *version)
{
    if (version == NULL)
        return ncclInvalidArgument;
    *version = settings_get()->nccl_version;
    return ncclSuccess;
}

GPUSIM_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (id == NULL)
        return ncclInvalidArgument;
    memset(id, 0, sizeof *id);
    return getrandom(id->internal, SEG_ID_BYTES, 0) == SEG_ID_BYTES ? ncclSuccess : ncclSystemError;
}

/* NCCL, src/init.cc, parseCommConfig. */
static ncclResult_t blocking_of(const ncclConfig_t *config, bool fallback, bool *out)
{
    *out = fallback;
    if (config == NULL)
        return ncclSuccess;
    if (config->magic != CONFIG_MAGIC) {
        nc_warn("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
        return ncclInvalidArgument;
    }
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1) {
        nc_warn("Invalid config blocking attribute value %d", config->blocking);
        return ncclInvalidArgument;
    }
    if (config->blocking != NCCL_CONFIG_UNDEF_INT)
        *out = config->blocking == 1;
    return ncclSuccess;
}

/* ---- init */

typedef struct init_job {
    nc_job base;
    ncclComm_t *handle;
} init_job;

static ncclResult_t init_run(nc_job *job)
{
    return nc_comm_join(job->comm, NULL);
}

/* A failed blocking one leaves no communicator; a failed nonblocking one is there to be asked and aborted. */
static void init_end(nc_job *base, ncclResult_t result)
{
    init_job *job = (init_job *)base;
    ncclComm_t comm = base->comm;
    nc_info("comm %p rank %d nranks %d cudaDev %d - Init %s", (void *)comm, comm->rank, comm->ranks,
            comm->device, ncclGetErrorString(result));
    if (result == ncclSuccess || !comm->is_blocking) {
        nc_comm_settle(comm, result);
        nc_comm_put(comm);
    } else {
        ncclComm_t live = nc_comm_get(comm); /* unless it was aborted meanwhile */
        if (live != NULL) {
            *job->handle = NULL;
            nc_comm_put(live);
            nc_comm_retire(comm);
        } else {
            nc_comm_put(comm);
        }
    }
    free(job);
}

static ncclResult_t init(ncclComm_t *handle, int ranks, const ncclUniqueId *id, int rank, bool is_blocking)
{
    int device = 0;
    if (handle == NULL || ranks < 1 || rank < 0 || rank >= ranks) {
        nc_warn("Invalid rank requested : %d/%d", rank, ranks);
        return ncclInvalidArgument;
    }
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaSetDevice(device);
    if (error != cudaSuccess) {
        nc_warn("Cuda failure '%s'", cudaGetErrorString(error));
        return ncclUnhandledCudaError;
    }
    if (rank == 0)
        nc_log_version();
    init_job *job = calloc(1, sizeof *job);
    ncclComm_t comm =
        job != NULL ? nc_comm_new((const uint8_t *)id->internal, rank, ranks, device, is_blocking) : NULL;
    if (comm == NULL) {
        free(job);
        return ncclSystemError;
    }
    comm->state = is_blocking ? ncclSuccess : ncclInProgress;
    job->base = (nc_job){.comm = comm, .is_blocking = is_blocking, .run = init_run, .end = init_end};
    job->handle = handle;
    nc_comm_publish(comm);
    nc_comm_hold(comm);
    __atomic_store_n(handle, comm, __ATOMIC_RELEASE); /* another thread may abort it from now on */
    ncclResult_t result = nc_group_add_job(&job->base);
    if (result != ncclSuccess) {
        *handle = NULL;
        nc_comm_retire(comm);
        free(job);
    }
    return result;
}

GPUSIM_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *handle, int ranks, ncclUniqueId id, int rank,
                                                  ncclConfig_t *config)
{
    bool is_blocking;
    nc_group_enter();
    ncclResult_t result = blocking_of(config, true, &is_blocking);
    if (result == ncclSuccess)
        result = init(handle, ranks, &id, rank, is_blocking);
    return nc_group_leave(result);
}

GPUSIM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *handle, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(handle, ranks, id, rank, NULL);
}

GPUSIM_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *handles, int count, const int *devices)
{
    ncclUniqueId id;
    int before = 0;
    ncclResult_t result = handles == NULL || count < 1 ? ncclInvalidArgument : ncclGetUniqueId(&id);
    if (result != ncclSuccess || cudaGetDevice(&before) != cudaSuccess)
        return result != ncclSuccess ? result : ncclUnhandledCudaError;
    nc_group_enter();
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        if (cudaSetDevice(devices != NULL ? devices[i] : i) != cudaSuccess)
            result = ncclUnhandledCudaError;
        else
            result = ncclCommInitRank(&handles[i], count, id, i);
    }
    result = nc_group_leave(result);
    cudaSetDevice(before);
    return result;
}

/* ---- split */

typedef struct split_job {
    nc_job base;
    uint32_t number; /* of the parent's splits, from 1 */
    int color, key;
    ncclComm_t child; /* NULL: no color */
    ncclComm_t *handle;
} split_job;

static bool all_read(ncclComm_t comm, void *arg)
{
    const split_job *job = arg;
    for (int r = 0; r < comm->ranks; r++)
        if (atomic_load(&comm->seg.rank_at[r].split_done) + 1 < job->number)
            return false;
    return true;
}

static bool all_posted(ncclComm_t comm, void *arg)
{
    const split_job *job = arg;
    for (int r = 0; r < comm->ranks; r++)
        if (atomic_load(&comm->seg.rank_at[r].split_posted) < job->number)
            return false;
    return true;
}

/* The child's id: of the parent's, the split and the color. */
static void child_id(const split_job *job, uint8_t out[SEG_ID_BYTES])
{
    uint64_t hash[2] = {0xcbf29ce484222325u, 0x9ae16a3b2f90404fu};
    unsigned char text[SEG_ID_BYTES + 8];
    memcpy(text, job->base.comm->id, SEG_ID_BYTES);
    memcpy(text + SEG_ID_BYTES, &job->number, 4);
    memcpy(text + SEG_ID_BYTES + 4, &job->color, 4);
    for (size_t i = 0; i < sizeof text; i++)
        for (int h = 0; h < 2; h++)
            hash[h] = (hash[h] ^ text[i]) * (0x100000001b3u + 2u * (unsigned)h);
    memcpy(out, hash, SEG_ID_BYTES);
}

/* User guide, ncclCommSplit: same color, same communicator; ordered by key, then by the old rank. */
static void take_place(split_job *job)
{
    ncclComm_t parent = job->base.comm, child = job->child;
    child->rank = child->ranks = 0;
    for (int r = 0; r < parent->ranks; r++) {
        const seg_rank *peer = &parent->seg.rank_at[r];
        if (peer->split_color != job->color)
            continue;
        child->ranks++;
        if (peer->split_key < job->key || (peer->split_key == job->key && r < parent->rank))
            child->rank++;
    }
    child_id(job, child->id);
}

static ncclResult_t split_run(nc_job *base)
{
    split_job *job = (split_job *)base;
    ncclComm_t parent = base->comm;
    seg_rank *mine = &parent->seg.rank_at[parent->rank];
    if (!nc_comm_wait(parent, NULL, all_read, job))
        return ncclInternalError;
    mine->split_color = job->color;
    mine->split_key = job->key;
    atomic_store(&mine->split_posted, job->number);
    seg_ring_all(&parent->seg);
    if (!nc_comm_wait(parent, NULL, all_posted, job))
        return ncclInternalError;
    if (job->child != NULL)
        take_place(job);
    atomic_store(&mine->split_done, job->number);
    seg_ring_all(&parent->seg);
    return job->child != NULL ? nc_comm_join(job->child, parent) : ncclSuccess;
}

/* The new handle is there before the parent's state says so. */
static void split_end(nc_job *base, ncclResult_t result)
{
    split_job *job = (split_job *)base;
    if (job->child != NULL && result == ncclSuccess) {
        nc_comm_publish(job->child);
        __atomic_store_n(job->handle, job->child, __ATOMIC_RELEASE);
    } else if (job->child != NULL) {
        nc_comm_put(job->child);
    }
    nc_comm_settle(base->comm, result);
    nc_comm_put(base->comm);
    free(job);
}

static ncclResult_t split(ncclComm_t parent, int color, int key, ncclComm_t *handle,
                          const ncclConfig_t *config)
{
    bool is_blocking;
    ncclResult_t result = blocking_of(config, parent->is_blocking, &is_blocking);
    if (result != ncclSuccess)
        return result;
    if (handle == NULL || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
        nc_warn("CommSplit : color must be greater or equal to 0 or NCCL_SPLIT_NOCOLOR");
        return ncclInvalidArgument;
    }
    split_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return ncclSystemError;
    job->base =
        (nc_job){.comm = parent, .is_blocking = parent->is_blocking, .run = split_run, .end = split_end};
    job->number = parent->splits + 1;
    job->color = color;
    job->key = key;
    job->handle = handle;
    if (color != NCCL_SPLIT_NOCOLOR) {
        job->child = nc_comm_new(parent->id, 0, 1, parent->device, is_blocking);
        if (job->child == NULL) {
            free(job);
            return ncclSystemError;
        }
    }
    nc_comm_hold(parent);
    *handle = NULL;
    result = nc_group_add_job(&job->base);
    if (result == ncclSuccess)
        parent->splits++;
    else
        split_end(&job->base, result);
    return result;
}

GPUSIM_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *handle,
                                         ncclConfig_t *config)
{
    nc_group_enter();
    ncclResult_t result = nc_call_begin(comm, "CommSplit");
    if (result != ncclSuccess)
        return nc_group_leave(result);
    result = nc_group_leave(split(comm, color, key, handle, config));
    nc_call_end(comm);
    return result;
}
