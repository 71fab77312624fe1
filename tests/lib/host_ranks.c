#include "tests/lib/host_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/status.h"

#define OP_TIMEOUT   (20 * PSD_NS_PER_S)
#define JOIN_TIMEOUT (20 * PSD_NS_PER_S)

static const psd_backend_ops *const host = &psd_backend_host;

void host_check_failed(host_rank *r, const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: rank %d: failed: %s\n", file, line, r->rank, condition);
    r->failures++;
}

static void on_broken(void *owner, uint32_t group, psd_status status, int32_t culprit, const char *text)
{
    host_rank *r = owner;
    (void)group;
    (void)status;
    (void)culprit;
    (void)text;
    atomic_fetch_add(&r->broken, 1);
}

psd_status host_rank_open(host_rank *r, const host_ranks *all, int32_t rank, char *address)
{
    char why[512] = "";
    memset(r, 0, sizeof(*r));
    r->all = all;
    r->rank = rank;
    r->size = all->size;
    psd_backend_config config = {
        .job = "test",
        .eager_limit = all->eager_limit,
        .transport = all->transport,
        .bind_host = "127.0.0.1",
        .on_group_broken = on_broken,
        .owner = r,
    };
    if (getrandom(&config.incarnation, sizeof(config.incarnation), 0) != (ssize_t)sizeof(config.incarnation))
        return PSD_ERR_IO;
    psd_status status = host->open(&config, &r->backend, why, sizeof(why));
    if (status == PSD_OK)
        status = host->address(r->backend, address, PSD_MAX_ADDR);
    if (status != PSD_OK)
        fprintf(stderr, "rank %d: open: %s: %s\n", rank, psd_status_name(status), why);
    return status;
}

psd_status host_rank_join(host_rank *r, uint32_t id, const char *const *addresses, const uint8_t *token)
{
    char why[PSD_MAX_TEXT] = "";
    uint32_t members[HOST_RANKS_MAX];
    for (uint32_t i = 0; i < HOST_RANKS_MAX; i++)
        members[i] = i;
    psd_group_desc desc = {
        .id = id,
        .epoch = 1,
        .rank = r->rank,
        .size = r->size,
        .members = members,
        .addresses = addresses,
        .token = token,
        .token_bytes = 16,
    };
    psd_status status = host->group_begin(r->backend, &desc, &r->group, why, sizeof(why));
    psd_time_ns deadline = psd_now_ns() + JOIN_TIMEOUT;
    while (status == PSD_OK) {
        status = host->group_poll(r->group, why, sizeof(why));
        if (status != PSD_INPROGRESS)
            break;
        status = psd_now_ns() < deadline ? PSD_OK : PSD_ERR_TIMEOUT;
    }
    if (status != PSD_OK)
        fprintf(stderr, "rank %d: group: %s: %s\n", r->rank, psd_status_name(status), why);
    return status;
}

void host_rank_close(host_rank *r)
{
    host->group_close(r->group);
    host->close(r->backend);
    r->group = NULL;
    r->backend = NULL;
}

/* ------------------------------------------------------------------------------------------------ threads */

typedef struct team {
    const host_ranks *all;
    host_rank ranks[HOST_RANKS_MAX];
    char address[HOST_RANKS_MAX][PSD_MAX_ADDR];
    const char *addresses[HOST_RANKS_MAX];
    uint8_t token[16];
    pthread_barrier_t barrier;
    atomic_int failures;
} team;

typedef struct seat {
    team *team;
    int32_t rank;
} seat;

static void *rank_main(void *arg)
{
    seat *s = arg;
    team *t = s->team;
    host_rank *r = &t->ranks[s->rank];
    bool is_up = host_rank_open(r, t->all, s->rank, t->address[s->rank]) == PSD_OK;
    pthread_barrier_wait(&t->barrier);
    is_up = is_up && host_rank_join(r, 3, t->addresses, t->token) == PSD_OK;
    pthread_barrier_wait(&t->barrier);
    if (is_up)
        t->all->body(r);
    atomic_fetch_add(&t->failures, r->failures + (is_up ? 0 : 1));
    pthread_barrier_wait(&t->barrier);
    host_rank_close(r);
    return NULL;
}

int host_ranks_run(const host_ranks *all)
{
    team *t = calloc(1, sizeof(*t));
    pthread_t threads[HOST_RANKS_MAX];
    seat seats[HOST_RANKS_MAX];
    if (t == NULL)
        return 1;
    t->all = all;
    for (int32_t i = 0; i < HOST_RANKS_MAX; i++)
        t->addresses[i] = t->address[i];
    pthread_barrier_init(&t->barrier, NULL, (unsigned)all->size);
    for (int32_t i = 0; i < all->size; i++) {
        seats[i] = (seat){t, i};
        if (pthread_create(&threads[i], NULL, rank_main, &seats[i]) != 0)
            abort();
    }
    for (int32_t i = 0; i < all->size; i++)
        pthread_join(threads[i], NULL);
    int failures = atomic_load(&t->failures);
    pthread_barrier_destroy(&t->barrier);
    free(t);
    return failures;
}

/* --------------------------------------------------------------------------------------------- operations */

psd_op host_op(psd_op_kind kind, psd_dtype dtype, int64_t count, const void *in, void *out)
{
    psd_op op = {
        .kind = kind,
        .dtype = dtype,
        .root = -1,
        .count = count,
        .in = in,
        .out = out,
        .deadline = psd_now_ns() + OP_TIMEOUT,
    };
    return op;
}

psd_request *host_start(host_rank *r, const psd_op *op)
{
    psd_request *request = NULL;
    psd_status status = host->start(r->group, op, &request);
    if (status != PSD_OK)
        fprintf(stderr, "rank %d: start: %s\n", r->rank, psd_status_name(status));
    HOST_CHECK(r, status == PSD_OK);
    return request;
}

psd_status host_finish(host_rank *r, psd_request **request, psd_op_result *result)
{
    psd_op_result mine;
    if (*request == NULL)
        return PSD_ERR_STALE;
    HOST_CHECK(r, host->wait(r->backend, request, 1, false, PSD_NEVER) == PSD_OK);
    psd_status status = host->test(*request, result != NULL ? result : &mine);
    host->release(*request);
    *request = NULL;
    return status;
}

psd_status host_run(host_rank *r, const psd_op *op, char *text)
{
    psd_request *request = NULL;
    psd_op_result result;
    bool is_quick = (uint32_t)(r->rank + r->runs++) % 3 != 0;
    psd_status status =
        is_quick ? host->run(r->group, op, &result, &request) : host->start(r->group, op, &request);
    if (is_quick && status == PSD_OK)
        return result.status;
    if (status < 0) {
        if (text != NULL)
            (void)host->group_error(r->group, text, PSD_MAX_TEXT);
        return status;
    }
    HOST_CHECK(r, host->wait(r->backend, &request, 1, false, PSD_NEVER) == PSD_OK);
    status = host->test(request, &result);
    if (text != NULL)
        snprintf(text, PSD_MAX_TEXT, "%s", host->request_text(request));
    host->release(request);
    return status;
}

static psd_request *start_p2p(host_rank *r, bool is_send, psd_dtype dtype, void *data, int64_t count,
                              int32_t peer, int32_t tag)
{
    psd_op_p2p p2p = {is_send, dtype, data, count, peer, tag};
    psd_op op = host_op(is_send ? PSD_OP_SEND : PSD_OP_RECV, dtype, count, NULL, NULL);
    op.p2p = &p2p;
    op.p2p_count = 1;
    op.label = is_send ? "send \"x\" at test.c:1" : "recv \"x\" at test.c:2";
    return host_start(r, &op);
}

psd_request *host_isend(host_rank *r, psd_dtype dtype, const void *data, int64_t count, int32_t dst,
                        int32_t tag)
{
    return start_p2p(r, true, dtype, (void *)(uintptr_t)data, count, dst, tag);
}

psd_request *host_irecv(host_rank *r, psd_dtype dtype, void *data, int64_t count, int32_t src, int32_t tag)
{
    return start_p2p(r, false, dtype, data, count, src, tag);
}
