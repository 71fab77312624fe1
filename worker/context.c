/* Making and ending a context. The parts are made in the order of their needs and undone in reverse. */
#include "worker/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/log.h"
#include "worker/resource_limits.h"
#include "worker/work_claim.h"

/* Within the grace that launchers give between SIGTERM and SIGKILL, with a stopped psd too. */
#define BYE_TIMEOUT_MS 2000
#define EXIT_STUCK     1

extern const psd_backend_ops psd_backend_host;

/* Counts forks of this process, seen from the child: how a context knows that it was inherited. */
static _Atomic unsigned forks;

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

static void watch_forks(void)
{
    /* Without memory for the handler a child is not told apart; nothing else depends on it. */
    pthread_atfork(NULL, NULL, count_fork);
}

const char *psd_version(void)
{
    return PSD_VERSION;
}

int32_t psd_rank(const psd_ctx *ctx)
{
    return ctx != NULL ? ctx->rank : -1;
}

int32_t psd_world_size(const psd_ctx *ctx)
{
    return ctx != NULL ? ctx->world : -1;
}

int32_t psd_local_rank(const psd_ctx *ctx)
{
    return ctx != NULL ? ctx->settings.local_rank : -1;
}

const char *psd_backend_name(const psd_ctx *ctx)
{
    return ctx != NULL ? ctx->ops->name : "";
}

int32_t psd_device_index(const psd_ctx *ctx)
{
    return ctx != NULL ? ctx->device_index : -1;
}

/* ------------------------------------------------------------------------------------------------- checks */

psd_status psd_ctx_check(PSD_AT, const char *verb, const psd_ctx *ctx)
{
    if (ctx == NULL)
        return psd_error_set(file, line, PSD_ERR_INVAL, "%s: the context is NULL; psd_init makes one", verb);
    if (ctx->forks != atomic_load_explicit(&forks, memory_order_relaxed))
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "%s: this context belongs to the parent process; a child of fork() calls psd_init for its own",
            verb);
    return PSD_OK;
}

psd_status psd_ctx_live(PSD_AT, const char *verb, psd_ctx *ctx)
{
    psd_status status = psd_ctx_check(file, line, verb, ctx);
    if (status != PSD_OK)
        return status;
    status = (psd_status)atomic_load_explicit(&ctx->ended, memory_order_acquire);
    if (status != PSD_OK)
        psd_error_set(file, line, status, "%s: the context is over: %s", verb, ctx->ended_text);
    return status;
}

psd_time_ns psd_ctx_deadline(const psd_ctx *ctx, int64_t timeout_ms)
{
    return psd_deadline_ns(psd_now_ns(), timeout_ms != 0 ? timeout_ms : ctx->settings.timeout_ms);
}

void psd_ctx_end(psd_ctx *ctx, psd_status status, const char *text)
{
    pthread_mutex_lock(&ctx->parts_lock);
    bool first = atomic_load(&ctx->ended) == PSD_OK;
    if (first) {
        snprintf(ctx->ended_text, sizeof ctx->ended_text, "%s", text);
        atomic_store_explicit(&ctx->ended, (int)status, memory_order_release);
    }
    pthread_mutex_unlock(&ctx->parts_lock);
    if (first)
        psd_group_abort_all(ctx, status, text);
}

/* ------------------------------------------------------------------------------------ what the agent asks */

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "re");
    if (statm == NULL)
        return 0;
    if (fscanf(statm, "%*u %llu", &pages) != 1)
        pages = 0;
    fclose(statm);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void tell_usage(const psd_ctx *ctx, psd_msg_heartbeat *out)
{
    psd_backend_usage usage = {0};
    if (ctx->ops->usage == NULL)
        return;
    ctx->ops->usage(ctx->backend, &usage);
    out->communicators = (uint32_t)usage.communicators;
    out->communicator_budget = (uint32_t)usage.most_communicators;
    out->communicator_bytes = usage.communicator_bytes;
}

static void fill_heartbeat(void *owner, psd_msg_heartbeat *out)
{
    psd_ctx *ctx = owner;
    ctx->ops->counters(ctx->backend, &out->bytes_sent, &out->bytes_received);
    out->ops = psd_record_done(&ctx->recorder);
    out->pool_bytes = (uint64_t)psd_pool_held(&ctx->pool);
    out->resident_bytes = resident_bytes();
    tell_usage(ctx, out);
    psd_record_current(&ctx->recorder, psd_now_ns(), &out->current);
    psd_hang_doing(ctx, psd_now_ns(), out);
    psd_plans_tell(ctx);
}

static psd_status make_token(void *owner, uint8_t *token, size_t capacity, uint32_t *bytes)
{
    psd_ctx *ctx = owner;
    return ctx->ops->token(ctx->backend, token, capacity, bytes);
}

static const char *log_file_of(void *owner, char *out, size_t out_bytes)
{
    const psd_ctx *ctx = owner;
    return ctx->has_streams ? psd_recorder_log_file(&ctx->recorder, out, out_bytes) : NULL;
}

static psd_status last_ops(void *owner, psd_time_ns now, uint32_t limit, psd_msg_reply *out, void **memory)
{
    const psd_ctx *ctx = owner;
    return psd_recorder_last(&ctx->recorder, now, limit, out, memory);
}

static void on_abort(void *owner, const psd_msg_abort *abort)
{
    psd_status status = abort->status < PSD_OK ? abort->status : PSD_ERR_ABORTED;
    psd_group_abort_id(owner, abort->group, status, abort->text);
}

static void on_stop(void *owner, const char *text)
{
    psd_ctx_end(owner, PSD_ERR_STOPPED, text);
}

static void on_lost(void *owner, psd_status status, const char *text)
{
    psd_log("agent", PSD_LOG_ERROR, "psd no longer admits this worker: %s", text);
    psd_ctx_end(owner, status, text);
}

static bool is_stuck(void *owner, psd_time_ns now)
{
    return psd_hang_is_stuck(owner, now);
}

static psd_status take_snapshot(void *owner, psd_time_ns now, psd_msg_snapshot *out, void **memory)
{
    return psd_hang_snapshot(owner, now, out, memory);
}

/* From the backend, under its locks: only queues. */
static void on_disagreement(void *owner, uint32_t group, psd_status status, int32_t culprit, const char *text,
                            const psd_op_side *sides, uint32_t side_count)
{
    psd_ctx *ctx = owner;
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    msg.u.abort.group = group;
    msg.u.abort.status = status;
    msg.u.abort.culprit = culprit;
    snprintf(msg.u.abort.text, sizeof msg.u.abort.text, "%s", text);
    for (uint32_t i = 0; i < side_count && i < PSD_ABORT_SIDES; i++)
        msg.u.abort.sides[msg.u.abort.side_count++] = sides[i];
    psd_agent_tell(ctx->agent, &msg);
}

static void on_group_broken(void *owner, uint32_t group, psd_status status, int32_t culprit, const char *text)
{
    on_disagreement(owner, group, status, culprit, text, NULL, 0);
}

/* --------------------------------------------------------------------------------------------------- init */

static psd_status make_ident(psd_ctx *ctx)
{
    snprintf(ctx->ident.job, sizeof ctx->ident.job, "%s", ctx->settings.job);
    snprintf(ctx->ident.name, sizeof ctx->ident.name, "%s", ctx->settings.name);
    while (ctx->ident.incarnation == 0)
        if (getrandom(&ctx->ident.incarnation, sizeof ctx->ident.incarnation, 0) !=
            (ssize_t)sizeof ctx->ident.incarnation)
            return PSD_ERR_IO;
    return PSD_OK;
}

static void on_detached_done(void *owner, uint64_t cookie, const psd_op_result *result)
{
    work_detached_done(owner, cookie, result);
}

/* Takes back the HELLO of a worker that could not join, or says why one leaves. The agent waits a shorter
 * time when psd is not connected. */
static void say_bye(psd_ctx *ctx, psd_status reason, const char *text, psd_time_ns deadline)
{
    char why[PSD_MAX_TEXT];
    psd_msg_box *box = NULL;
    psd_msg msg = {.type = PSD_MSG_BYE};
    msg.u.bye.status = reason;
    snprintf(msg.u.bye.text, sizeof msg.u.bye.text, "%s", text);
    psd_status status = psd_agent_call(ctx->agent, &msg, deadline, &box, why, sizeof why);
    if (status == PSD_OK)
        psd_msg_box_free(box);
    else if (reason == PSD_OK)
        psd_log("agent", PSD_LOG_WARN, "left without psd's acknowledgement: %s", why);
}

/* From a backend that cannot take back what it has begun. No call of this process would end any more, and its memory
 * stays borrowed: it is the process that ends. Its record stays, for a post-mortem. */
static void on_stuck(void *owner, psd_status status, const char *text)
{
    psd_ctx *ctx = owner;
    psd_log("psd", PSD_LOG_ERROR,
            "this process exits, since backend %s cannot end operations of a broken group: %s",
            ctx->ops->name, text);
    say_bye(ctx, status, text, psd_deadline_ns(psd_now_ns(), 1000));
    _exit(EXIT_STUCK);
}

/* Of a backend in a shared object, which has a log of its own otherwise: without this rank's prefix. */
static void on_log(int level, const char *text)
{
    psd_log("backend", (psd_log_level)level, "%s", text);
}

static psd_status open_backend(PSD_AT, psd_ctx *ctx)
{
    char why[PSD_MAX_TEXT] = "", log_file[512];
    const psd_settings *s = &ctx->settings;
    psd_backend_config config = {
        .job = s->job,
        .incarnation = ctx->ident.incarnation,
        .eager_limit = s->eager_limit,
        .bind_host = s->data_host[0] != '\0' ? s->data_host : NULL,
        .transport = s->transport,
        .ring_bytes = (size_t)s->ring_bytes,
        .run_dir = s->run_dir,
        .on_group_broken = on_group_broken,
        .on_disagreement = on_disagreement,
        .on_detached_done = on_detached_done,
        .on_stuck = on_stuck,
        .owner = ctx,
        .host = &psd_backend_host,
        .local_rank = s->local_rank_is_known ? s->local_rank : -1,
        .device = s->device[0] != '\0' ? s->device : NULL,
        .log = on_log,
        .log_file = psd_recorder_log_file(&ctx->recorder, log_file, sizeof log_file),
    };
    psd_status status = psd_backend_choose(s->backend, &ctx->ops, why, sizeof why);
    if (status == PSD_OK) {
        psd_log("psd", PSD_LOG_INFO, "backend %s", why);
        status = psd_backend_verify(ctx->ops, why, sizeof why);
    }
    if (status == PSD_OK)
        status = ctx->ops->open(&config, &ctx->backend, why, sizeof why);
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "psd_init: %s", why);
    ctx->has_streams = (ctx->ops->caps & PSD_CAP_DEVICE_MEMORY) != 0;
    if (ctx->has_streams)
        ctx->device_index = ctx->ops->device(ctx->backend);
    /* Half of the host's memory says nothing about a device, whose own allocator knows its end. */
    if (ctx->has_streams && s->pool_limit_is_default)
        ctx->settings.pool_limit = INT64_MAX;
    return PSD_OK;
}

static psd_status start_agent(PSD_AT, psd_ctx *ctx)
{
    char why[PSD_MAX_TEXT] = "";
    const psd_settings *s = &ctx->settings;
    psd_agent_config config = {
        .coordinator = s->coordinator,
        .ident = ctx->ident,
        .hooks = {ctx, fill_heartbeat, make_token, log_file_of, last_ops, on_abort, on_stop, on_lost,
                  is_stuck, take_snapshot},
        .look_every = s->report_after_ms * PSD_NS_PER_MS / 2,
    };
    psd_msg_hello *hello = &config.hello;
    memcpy(hello->role, s->role, sizeof hello->role);
    memcpy(hello->host, s->host, sizeof hello->host);
    snprintf(hello->backend, sizeof hello->backend, "%s", ctx->ops->name);
    hello->pid = (uint32_t)getpid();
    hello->rank = s->rank;
    hello->world_min = s->world_size;
    hello->world_max = s->world_size;
    psd_status status = ctx->ops->address(ctx->backend, hello->address, sizeof hello->address);
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "psd_init: backend %s has no address: %s", ctx->ops->name,
                             psd_status_text(status));
    psd_log("psd", PSD_LOG_INFO, "data links listen at %s", hello->address);
    status = psd_agent_start(&config, &ctx->agent, why, sizeof why);
    if (status != PSD_OK)
        psd_error_set(file, line, status, "psd_init: %s", why);
    return status;
}

static psd_status join(PSD_AT, psd_ctx *ctx)
{
    char why[PSD_MAX_TEXT + 256] = "";
    char prefix[32];
    psd_msg_welcome welcome;
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), ctx->settings.join_timeout_ms);
    psd_status status = psd_agent_join(ctx->agent, deadline, &welcome, why, sizeof why);
    if (status != PSD_OK) {
        psd_error_set(file, line, status, "psd_init: worker %s of job %s: %s", ctx->ident.name,
                      ctx->ident.job, why);
        goto done;
    }
    if (welcome.world < 1 || welcome.rank < 0 || welcome.rank >= welcome.world) {
        status = psd_error_set(file, line, PSD_ERR_PROTOCOL, "psd_init: psd gave rank %d of %d", welcome.rank,
                               welcome.world);
        goto done;
    }
    ctx->rank = welcome.rank;
    ctx->world = welcome.world;
    psd_recorder_joined(&ctx->recorder, ctx->rank, ctx->world);
    snprintf(prefix, sizeof prefix, "rank %d ", ctx->rank);
    if (ctx->world > 1)
        psd_log_prefix(prefix);
    status = psd_group_open_world(file, line, ctx, welcome.world_group, deadline);
done:
    /* When psd was never heard there is nobody to tell; the call then ends by its deadline, soon. */
    if (status != PSD_OK && status != PSD_ERR_NO_COORDINATOR && status != PSD_ERR_REFUSED)
        say_bye(ctx, status, psd_last_error(), psd_deadline_ns(psd_now_ns(), 1000));
    return status;
}

static psd_status open_recorder(psd_ctx *ctx)
{
    psd_recorder_config config = {
        .off = ctx->settings.record_off,
        .run_dir = ctx->settings.run_dir,
        .ident = ctx->ident,
    };
    return psd_recorder_open(&ctx->recorder, &config);
}

/* Tables, locks and the recorder: what needs no other part. */
static psd_status make_parts(psd_ctx *ctx)
{
    psd_status status = make_ident(ctx);
    if (status != PSD_OK)
        goto fail;
    status = PSD_ERR_NOMEM;
    if (pthread_mutex_init(&ctx->parts_lock, NULL) != 0)
        goto fail;
    if (psd_buckets_init(&ctx->buckets) != PSD_OK)
        goto fail_parts;
    if (psd_works_init(&ctx->works) != PSD_OK)
        goto fail_buckets;
    if (psd_groups_init(&ctx->groups) != PSD_OK)
        goto fail_works;
    if (open_recorder(ctx) != PSD_OK)
        goto fail_groups;
    return PSD_OK;

fail_groups:
    psd_groups_destroy(&ctx->groups);
fail_works:
    psd_works_destroy(&ctx->works);
fail_buckets:
    pthread_mutex_destroy(&ctx->buckets.lock);
fail_parts:
    pthread_mutex_destroy(&ctx->parts_lock);
fail:
    return status;
}

static void unmake_parts(psd_ctx *ctx)
{
    psd_recorder_close(&ctx->recorder);
    psd_groups_destroy(&ctx->groups);
    psd_works_destroy(&ctx->works);
    pthread_mutex_destroy(&ctx->buckets.lock);
    pthread_mutex_destroy(&ctx->parts_lock);
}

psd_status psd_init_at(PSD_AT, const psd_config *config, psd_ctx **ctx_out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char why[512] = "";
    pthread_once(&once, watch_forks);
    if (ctx_out == NULL)
        return psd_error_set(file, line, PSD_ERR_INVAL, "psd_init: the place for the context is NULL");
    psd_ctx *ctx = calloc(1, sizeof *ctx);
    psd_status status = PSD_ERR_NOMEM;
    if (ctx == NULL) {
        psd_error_set(file, line, status, "psd_init: out of memory");
        goto fail;
    }
    ctx->forks = atomic_load(&forks);
    ctx->rank = -1;
    ctx->device_index = -1;
    status = psd_settings_read(config, &ctx->settings, why, sizeof why);
    if (status == PSD_OK)
        status = psd_limits_prepare_rank(ctx->settings.world_size, why, sizeof why);
    if (status == PSD_OK)
        status = make_parts(ctx);
    if (status != PSD_OK) {
        psd_error_set(file, line, status, "psd_init: %s", why[0] != '\0' ? why : psd_status_text(status));
        goto fail_ctx;
    }
    status = open_backend(file, line, ctx);
    if (status != PSD_OK)
        goto fail_parts;
    status = psd_pool_init(&ctx->pool, ctx->ops, ctx->backend, ctx->settings.pool_limit);
    if (status != PSD_OK)
        goto fail_backend;
    status = start_agent(file, line, ctx);
    if (status != PSD_OK)
        goto fail_pool;
    status = join(file, line, ctx);
    if (status != PSD_OK)
        goto fail_agent;
    *ctx_out = ctx;
    return PSD_OK;

fail_agent:
    psd_agent_stop(ctx->agent);
fail_pool:
    psd_pool_destroy(&ctx->pool);
fail_backend:
    ctx->ops->close(ctx->backend);
fail_parts:
    unmake_parts(ctx);
fail_ctx:
    free(ctx);
fail:
    return status;
}

psd_status psd_finalize_at(PSD_AT, psd_ctx **ctx_in)
{
    if (ctx_in == NULL || *ctx_in == NULL)
        return PSD_OK;
    psd_ctx *ctx = *ctx_in;
    psd_status status = psd_ctx_check(file, line, "psd_finalize", ctx);
    if (status != PSD_OK)
        return status;
    psd_tables_release(ctx);
    psd_plans_release(ctx);
    psd_works_settle(ctx);
    psd_buckets_release(ctx);
    status = psd_group_close_all(ctx);
    if (!ctx->psd_is_gone)
        say_bye(ctx, status, status == PSD_OK ? "" : psd_status_text(status),
                psd_deadline_ns(psd_now_ns(), BYE_TIMEOUT_MS));
    if (status != PSD_OK)
        psd_error_set(file, line, status,
                      "psd_finalize: rank %d left; one of its groups was broken, and no call has said so: %s",
                      ctx->rank, psd_status_text(status));
    psd_agent_stop(ctx->agent);
    psd_pool_destroy(&ctx->pool);
    ctx->ops->close(ctx->backend);
    unmake_parts(ctx);
    free(ctx);
    *ctx_in = NULL;
    return status;
}
