/* The last rank disagrees with the others on one thing: every member gets PSD_ERR_MISMATCH, at this call or,
 * where its own part was complete already, at a later one; no receiver gets wrong data; and a new group works
 * afterwards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/suite.h"

/* An undetected mismatch ends by this deadline, and fails the cell. */
#define OWN_DEADLINE_MS 20000
#define LATER_CALLS     1000

typedef struct dispute {
    psd_ctx *ctx;
    psd_group group;
    int32_t rank;
    int32_t ranks;
    bool differs; /* this rank */
    psd_opts opts;
    float *a; /* of ranks * 8 elements each */
    float *b;
} dispute;

typedef psd_status dispute_call(dispute *d);

static psd_status differ_in_kind(dispute *d)
{
    psd_tensor t = psd_tensor_1d(d->a, 8, PSD_F32, "t");
    if (d->differs)
        return psd_broadcast(d->ctx, d->group, &t, 0, &d->opts);
    return psd_all_reduce(d->ctx, d->group, &t, &t, PSD_SUM, &d->opts);
}

static psd_status differ_in_dtype(dispute *d)
{
    psd_tensor t = psd_tensor_1d(d->a, 8, d->differs ? PSD_I32 : PSD_F32, "t");
    return psd_all_reduce(d->ctx, d->group, &t, &t, PSD_SUM, &d->opts);
}

static psd_status differ_in_count(dispute *d)
{
    psd_tensor t = psd_tensor_1d(d->a, d->differs ? 7 : 8, PSD_F32, "t");
    return psd_all_reduce(d->ctx, d->group, &t, &t, PSD_SUM, &d->opts);
}

static psd_status differ_in_redop(dispute *d)
{
    psd_tensor t = psd_tensor_1d(d->a, 8, PSD_F32, "t");
    return psd_all_reduce(d->ctx, d->group, &t, &t, d->differs ? PSD_MAX : PSD_SUM, &d->opts);
}

static psd_status differ_in_root(dispute *d)
{
    psd_tensor t = psd_tensor_1d(d->a, 8, PSD_F32, "t");
    return psd_broadcast(d->ctx, d->group, &t, d->differs ? d->rank : 0, &d->opts);
}

static psd_status differ_in_gathered_count(dispute *d)
{
    int64_t count = d->differs ? 3 : 4;
    psd_tensor in = psd_tensor_1d(d->a, count, PSD_F32, "in");
    psd_tensor out = psd_tensor_1d(d->b, count * d->ranks, PSD_F32, "out");
    return psd_all_gather(d->ctx, d->group, &in, &out, &d->opts);
}

static psd_status differ_in_splits(dispute *d)
{
    int64_t *splits = calloc(2 * (size_t)d->ranks, sizeof *splits), *in_splits = splits;
    if (splits == NULL)
        return PSD_ERR_NOMEM;
    int64_t *out_splits = splits + d->ranks, sent = 0;
    for (int32_t i = 0; i < d->ranks; i++) {
        in_splits[i] = d->differs && i == 0 ? 3 : 2; /* one too many for rank 0 */
        out_splits[i] = 2;
        sent += in_splits[i];
    }
    psd_tensor in = psd_tensor_1d(d->a, sent, PSD_F32, "in");
    psd_tensor out = psd_tensor_1d(d->b, 2 * (int64_t)d->ranks, PSD_F32, "out");
    psd_status status = psd_all_to_all_v(d->ctx, d->group, &in, in_splits, &out, out_splits, &d->opts);
    free(splits);
    return status;
}

/* The last rank sends to rank 0, who expects something else. */
static psd_status send_and_receive(dispute *d, psd_dtype sent, int64_t sent_count)
{
    psd_tensor in = psd_tensor_1d(d->a, sent_count, sent, "sent"),
               out = psd_tensor_1d(d->b, 8, PSD_F32, "received");
    if (d->differs)
        return psd_send(d->ctx, d->group, &in, 0, &d->opts);
    if (d->rank == 0)
        return psd_recv(d->ctx, d->group, &out, d->ranks - 1, &d->opts, NULL);
    return PSD_OK;
}

static psd_status differ_in_sent_count(dispute *d)
{
    return send_and_receive(d, PSD_F32, 7);
}

static psd_status differ_in_sent_dtype(dispute *d)
{
    return send_and_receive(d, PSD_I32, 8);
}

/* Calls of a broken group only answer its error; some ranks learn it late. */
static psd_status later_error(dispute *d)
{
    psd_status status = PSD_OK;
    for (int i = 0; status == PSD_OK && i < LATER_CALLS; i++)
        status = psd_barrier(d->ctx, d->group, &d->opts);
    return status;
}

static bool make_dispute(suite *s, dispute *d)
{
    int32_t *all = calloc((size_t)s->ranks, sizeof *all);
    dispute made = {.ctx = s->ctx, .rank = s->rank, .ranks = s->ranks, .differs = s->rank == s->ranks - 1};
    psd_opts_init(&made.opts);
    made.opts.timeout_ms = OWN_DEADLINE_MS;
    made.a = calloc((size_t)s->ranks * 8, sizeof *made.a);
    made.b = calloc((size_t)s->ranks * 8, sizeof *made.b);
    bool fine = all != NULL && made.a != NULL && made.b != NULL;
    for (int32_t i = 0; fine && i < s->ranks; i++)
        all[i] = i;
    fine = fine && suite_judge(s, psd_group_new(s->ctx, all, s->ranks, &made.group)) == OUTCOME_PASSED;
    free(all);
    *d = made;
    return fine;
}

static void try_dispute(suite *s, const char *what, dispute_call *call)
{
    dispute d;
    if (s->is_broken)
        return;
    bool fine = make_dispute(s, &d);
    psd_status status = PSD_OK;
    if (fine) {
        status = call(&d);
        if (status == PSD_OK)
            status = later_error(&d);
        fine = status == PSD_ERR_MISMATCH;
    }
    suite_record(s, "mismatch", (psd_dtype)0, fine ? OUTCOME_PASSED : OUTCOME_FAILED,
                 "%s: status %d, text: %s", what, (int)status, psd_last_error());
    if (fine)
        fine = psd_group_destroy(s->ctx, d.group) == PSD_OK;
    suite_record(s, "mismatch", (psd_dtype)0, fine ? OUTCOME_PASSED : OUTCOME_FAILED,
                 "%s: group destroyed: %s", what, psd_last_error());
    free(d.a);
    free(d.b);
}

void suite_mismatches(suite *s)
{
    if (s->ranks < 2 || !s->finds_mismatches)
        return;
    try_dispute(s, "kind", differ_in_kind);
    try_dispute(s, "dtype", differ_in_dtype);
    try_dispute(s, "count", differ_in_count);
    try_dispute(s, "redop", differ_in_redop);
    try_dispute(s, "root", differ_in_root);
    try_dispute(s, "gathered count", differ_in_gathered_count);
    try_dispute(s, "splits", differ_in_splits);
    try_dispute(s, "sent count", differ_in_sent_count);
    try_dispute(s, "sent dtype", differ_in_sent_dtype);
    if (!s->is_broken)
        suite_record(s, "mismatch", (psd_dtype)0, suite_judge(s, psd_barrier(s->ctx, PSD_WORLD, NULL)),
                     "the world works afterwards");
}
