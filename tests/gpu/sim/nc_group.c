/* Groups: everything between ncclGroupStart and ncclGroupEnd is started together or not at all, and every
 * single call is a group of its own. */
#include "nc.h"

#include <stdlib.h>
#include <string.h>

typedef struct group {
    int depth;
    ncclResult_t error;
    int blocking; /* -1: no communicator yet */
    nc_job *jobs, **jobs_tail;
    nc_op *ops;
    size_t count, capacity;
} group;

static _Thread_local group current;

/* A closed group, on its way. */
typedef struct launch {
    nc_job *jobs;
    nc_op *ops;
    size_t count;
    nc_kernel **kernels;
    size_t kernel_count;
    bool is_blocking;
} launch;

void nc_group_enter(void)
{
    if (current.depth++ == 0) {
        current.error = ncclSuccess;
        current.blocking = -1;
        current.jobs_tail = &current.jobs;
    }
}

static void drop(nc_job *jobs, nc_op *ops, size_t count, ncclResult_t result)
{
    while (jobs != NULL) {
        nc_job *next = jobs->next;
        jobs->end(jobs, result);
        jobs = next;
    }
    for (size_t i = 0; i < count; i++)
        nc_comm_put(ops[i].comm);
    free(ops);
}

/* NCCL, src/group.cc: "Blocking and nonblocking communicators are not allowed in the same group". */
static ncclResult_t join(bool is_blocking)
{
    if (current.blocking == -1)
        current.blocking = is_blocking;
    if (current.blocking == is_blocking)
        return ncclSuccess;
    nc_warn("Blocking and nonblocking communicators are not allowed in the same group.");
    return ncclInvalidArgument;
}

ncclResult_t nc_group_add_op(const nc_op *op)
{
    ncclResult_t result = join(op->comm->is_blocking);
    if (result != ncclSuccess)
        return result;
    if (current.count == current.capacity) {
        size_t capacity = current.capacity ? 2 * current.capacity : 8;
        nc_op *grown = realloc(current.ops, capacity * sizeof *grown);
        if (grown == NULL)
            return ncclSystemError;
        current.ops = grown;
        current.capacity = capacity;
    }
    nc_comm_hold(op->comm);
    current.ops[current.count++] = *op;
    return ncclSuccess;
}

ncclResult_t nc_group_add_job(nc_job *job)
{
    ncclResult_t result = join(job->is_blocking);
    if (result != ncclSuccess)
        return result;
    job->next = NULL;
    *current.jobs_tail = job;
    current.jobs_tail = &job->next;
    return ncclSuccess;
}

/* ---- launching */

static ncclResult_t make_kernels(launch *l)
{
    nc_op *mine = calloc(l->count, sizeof *mine);
    bool *used = calloc(l->count, sizeof *used);
    ncclResult_t result = mine == NULL || used == NULL ? ncclSystemError : ncclSuccess;
    for (size_t i = 0; i < l->count && result == ncclSuccess; i++) {
        size_t count = 0;
        for (size_t j = i; j < l->count; j++)
            if (!used[j] && l->ops[j].comm == l->ops[i].comm) {
                mine[count++] = l->ops[j];
                used[j] = true;
            }
        if (count == 0)
            continue;
        result = nc_kernel_new(l->ops[i].comm, mine, count, &l->kernels[l->kernel_count]);
        if (result == ncclSuccess)
            l->kernel_count++;
    }
    free(mine);
    free(used);
    return result;
}

/* Nothing is queued before every communicator of the group is connected. */
static ncclResult_t start_ops(launch *l)
{
    ncclResult_t result = ncclSuccess;
    size_t launched = 0;
    for (size_t i = 0; i < l->kernel_count; i++)
        nc_kernel_announce(l->kernels[i]);
    for (size_t i = 0; i < l->kernel_count && result == ncclSuccess; i++)
        result = nc_kernel_connect(l->kernels[i]);
    for (; launched < l->kernel_count && result == ncclSuccess; launched++)
        result = nc_kernel_launch(l->kernels[launched]);
    for (; launched < l->kernel_count; launched++)
        nc_kernel_free(l->kernels[launched]);
    return result;
}

typedef struct job_thread {
    pthread_t thread;
    nc_job *job;
    ncclResult_t result;
    bool has_thread;
} job_thread;

static void *job_main(void *arg)
{
    job_thread *t = arg;
    t->result = t->job->run(t->job);
    return NULL;
}

/* All at once: each may wait for the others. */
static ncclResult_t run_jobs(nc_job *jobs)
{
    size_t count = 0;
    ncclResult_t result = ncclSuccess;
    for (const nc_job *j = jobs; j != NULL; j = j->next)
        count++;
    job_thread *threads = calloc(count + 1, sizeof *threads);
    if (threads == NULL) {
        drop(jobs, NULL, 0, ncclSystemError);
        return ncclSystemError;
    }
    size_t i = 0;
    for (nc_job *j = jobs; j != NULL; j = j->next, i++) {
        threads[i].job = j;
        threads[i].has_thread =
            count > 1 && pthread_create(&threads[i].thread, NULL, job_main, &threads[i]) == 0;
    }
    for (i = 0; i < count; i++) {
        if (threads[i].has_thread)
            pthread_join(threads[i].thread, NULL);
        else
            job_main(&threads[i]);
    }
    for (i = 0; i < count; i++) {
        if (threads[i].result != ncclSuccess)
            result = threads[i].result;
        threads[i].job->end(threads[i].job, threads[i].result);
    }
    free(threads);
    return result;
}

static ncclResult_t run_launch(launch *l)
{
    ncclResult_t result = l->jobs != NULL ? run_jobs(l->jobs) : ncclSuccess;
    if (l->kernel_count > 0) {
        ncclResult_t started = start_ops(l);
        if (started != ncclSuccess)
            result = started;
    }
    for (size_t i = 0; i < l->count; i++) {
        if (!l->is_blocking)
            nc_comm_settle(l->ops[i].comm, result);
        nc_comm_put(l->ops[i].comm);
    }
    free(l->ops);
    free(l->kernels);
    free(l);
    return result;
}

static void *launch_main(void *arg)
{
    run_launch(arg);
    return NULL;
}

/* User guide, "Nonblocking Group Operation": ncclGroupEnd returns ncclInProgress while kernels are being
 * issued in the background. */
static ncclResult_t run_in_background(launch *l)
{
    pthread_t thread;
    for (nc_job *j = l->jobs; j != NULL; j = j->next)
        nc_comm_start(j->comm);
    for (size_t i = 0; i < l->count; i++)
        nc_comm_start(l->ops[i].comm);
    if (pthread_create(&thread, NULL, launch_main, l) != 0)
        return run_launch(l);
    pthread_detach(thread);
    return ncclInProgress;
}

static bool is_connected(const launch *l)
{
    for (size_t i = 0; i < l->kernel_count; i++)
        if (!nc_kernel_is_connected(l->kernels[i]))
            return false;
    return true;
}

static ncclResult_t close_group(void)
{
    launch *l = calloc(1, sizeof *l);
    nc_kernel **kernels = calloc(current.count + 1, sizeof *kernels);
    ncclResult_t result = l == NULL || kernels == NULL ? ncclSystemError : current.error;
    /* User guide, "Group Calls": ncclCommInitRank cannot be merged with others. */
    if (result == ncclSuccess && current.jobs != NULL && current.count > 0) {
        nc_warn("communicator and communication functions in one group");
        result = ncclInvalidUsage;
    }
    if (result == ncclSuccess) {
        *l = (launch){.ops = current.ops,
                      .count = current.count,
                      .kernels = kernels,
                      .is_blocking = current.blocking != 0};
        result = make_kernels(l);
    }
    if (result != ncclSuccess) {
        for (size_t i = 0; l != NULL && i < l->kernel_count; i++)
            nc_kernel_free(l->kernels[i]);
        drop(current.jobs, current.ops, current.count, result);
        free(kernels);
        free(l);
    } else {
        l->jobs = current.jobs;
    }
    current = (group){0};
    if (result != ncclSuccess)
        return result;
    bool inline_ok =
        l->jobs == NULL && (l->kernel_count == 0 || (settings_get()->inline_launch && is_connected(l)));
    return l->is_blocking || inline_ok ? run_launch(l) : run_in_background(l);
}

/* NCCL, src/include/group.h, ncclGroupErrCheck: any failed call fails the group it is in. (The user guide
 * says that ncclInvalidArgument is not returned by ncclGroupEnd; the library's code has no such
 * exception.) */
ncclResult_t nc_group_leave(ncclResult_t result)
{
    if (result != ncclSuccess && result != ncclInProgress)
        current.error = result;
    if (--current.depth > 0)
        return result;
    return close_group();
}

GPUSIM_EXPORT ncclResult_t ncclGroupStart(void)
{
    nc_group_enter();
    return ncclSuccess;
}

GPUSIM_EXPORT ncclResult_t ncclGroupEnd(void)
{
    if (current.depth == 0) {
        nc_warn("ncclGroupEnd: not in a group call.");
        return ncclInvalidUsage;
    }
    return nc_group_leave(ncclSuccess);
}
