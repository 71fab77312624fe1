#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/tensor.h"
#include "server/psctl/plan.h"

enum { MOST_TENSORS = 5, RANKS_BYTES = 256 };

/* "0-3,7": ranks in rising order. */
static void list_ranks(const int32_t *ranks, int32_t count, char *out, size_t out_bytes)
{
    out[0] = '\0';
    for (int32_t i = 0; i < count;) {
        int32_t last = i;
        while (last + 1 < count && ranks[last + 1] == ranks[last] + 1)
            last++;
        if (strlen(out) + 32 > out_bytes) {
            psd_append(out, out_bytes, ",...");
            return;
        }
        psd_append(out, out_bytes, "%s%" PRId32, i > 0 ? "," : "", ranks[i]);
        if (last > i)
            psd_append(out, out_bytes, "-%" PRId32, ranks[last]);
        i = last + 1;
    }
}

/* "rank 24 (infer: dp 0, tp 0)" */
static void name_rank(const psctl_plan_result *r, int32_t rank, char *out, size_t out_bytes)
{
    const psd_layout *groups[2] = {r->input.src, r->input.dst};
    snprintf(out, out_bytes, "rank %" PRId32 " (", rank);
    bool more = false;
    for (int g = 0; g < 2; g++) {
        int32_t at = rank - groups[g]->first_rank;
        if (at < 0 || at >= groups[g]->ranks)
            continue;
        psd_append(out, out_bytes, "%s%s:", more ? "; " : "", groups[g]->group);
        for (int32_t a = 0; a < groups[g]->axis_count; a++)
            psd_append(out, out_bytes, "%s %s %" PRId32, a > 0 ? "," : "", groups[g]->axes[a].name,
                       at / groups[g]->axes[a].stride % groups[g]->axes[a].size);
        more = true;
    }
    psd_append(out, out_bytes, ")");
}

static char *bytes_text(int64_t bytes, char out[32])
{
    return psd_format_bytes(bytes, out, 32);
}

/* What its bound is made of. */
static void explain_bound(const psctl_plan_result *r)
{
    char ranks[RANKS_BYTES], who[512], amount[32];
    const reshard_bounds *b = &r->bounds;
    name_rank(r, b->in_rank, who, sizeof who);
    list_ranks(b->out_ranks, b->out_rank_count, ranks, sizeof ranks);
    printf("\nreceiving  %s must receive %s; no plan can take less than that\n", who,
           bytes_text(b->in, amount));
    printf("sending    %" PRId32 " rank%s (%s) must send %s each on average, of what only they hold\n",
           b->out_rank_count, b->out_rank_count == 1 ? "" : "s", ranks, bytes_text(b->out, amount));
    printf("           (if receivers forward: %s)\n", bytes_text(b->out_forward, amount));
    int64_t out = r->plan.forwards ? b->out_forward : b->out;
    printf("so %s is the bottleneck%s\n", b->in >= out ? "receiving" : "sending",
           r->plan.forwards ? ", with receivers that forward what they got"
           : b->out > b->in ? "; --forward always would let receivers send on what they got"
                            : "");
}

typedef struct tensor_load {
    uint32_t tensor;
    int64_t bytes;
} tensor_load;

static int by_bytes(const void *a, const void *b)
{
    const tensor_load *x = a, *y = b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static void explain_busiest(const psctl_plan_result *r)
{
    const reshard_plan *p = &r->plan;
    char who[512], amount[32];
    int64_t peers = 0;
    int32_t last = -1;
    uint32_t count = r->input.model->count;
    tensor_load *loads = calloc((size_t)count + 1, sizeof *loads);
    bool *seen = calloc(PSD_LAYOUT_RANKS, sizeof *seen);
    if (loads == NULL || seen == NULL || p->busiest < 0)
        goto out;
    for (uint64_t i = 0; i < p->message_count; i++) {
        const reshard_message *m = &p->messages[i];
        if ((p->busiest_sends ? m->src : m->dst) != p->busiest)
            continue;
        last = p->busiest_sends ? m->dst : m->src;
        peers += !seen[last];
        seen[last] = true;
        for (uint64_t k = m->first_piece; k < m->first_piece + m->piece_count; k++) {
            uint32_t t = p->pieces[k].tensor;
            loads[t].tensor = t;
            loads[t].bytes += (p->pieces[k].hi - p->pieces[k].lo) *
                              (int64_t)psd_dtype_bytes(r->input.model->tensors[t].dtype);
        }
    }
    qsort(loads, count, sizeof *loads, by_bytes);
    name_rank(r, p->busiest, who, sizeof who);
    printf("\nbusiest    %s %s %s in %s %" PRId64 " rank%s; most of it:\n", who,
           p->busiest_sends ? "sends" : "receives", bytes_text(p->load, amount),
           p->busiest_sends ? "messages to" : "messages from", peers, peers == 1 ? "" : "s");
    for (uint32_t i = 0; i < MOST_TENSORS && i < count && loads[i].bytes > 0; i++)
        printf("  %12s  %s\n", bytes_text(loads[i].bytes, amount),
               r->input.model->tensors[loads[i].tensor].name);
out:
    free(loads);
    free(seen);
}

void psctl_plan_explain(const psctl_plan_result *r)
{
    if (r->bounds.in_rank < 0) {
        puts("\nevery rank holds already what it wants");
        return;
    }
    explain_bound(r);
    explain_busiest(r);
}
