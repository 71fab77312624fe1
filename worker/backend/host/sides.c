/* What the ranks concerned called, for psd: of a mismatch both sides, of an operation that nobody comes to that one. */
#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <string.h>

#include "common/tensor.h"

/* `all_reduce "grad" at train.c:12`, as the library makes labels; whatever is not of this form stays unknown. */
static void split_label(const char *label, psd_op_side *out)
{
    const char *site = NULL, *first = strchr(label, '"');
    for (const char *at = strstr(label, " at "); at != NULL; at = strstr(at + 1, " at "))
        site = at;
    if (site != NULL && strchr(site, ':') != NULL)
        snprintf(out->site, sizeof(out->site), "%s", site + 4);
    else
        site = label + strlen(label);
    const char *last = site;
    while (first != NULL && last > first && *last != '"')
        last--;
    if (first != NULL && last > first)
        snprintf(out->name, sizeof(out->name), "%.*s", (int)(last - first - 1), first + 1);
    text_clean(out->site);
    text_clean(out->name);
}

static psd_op_side *add(const hgroup *g, op_sides *out, int32_t rank, const char *label)
{
    psd_op_side *side = &out->at[out->count++];
    *side = (psd_op_side){.rank = (int32_t)g->members[rank], .peer = -1, .root = -1};
    split_label(label, side);
    return side;
}

void sides_add_collective(const hgroup *g, op_sides *out, int32_t rank, uint64_t ordinal,
                          const fingerprint *what, const char *label)
{
    psd_op_side *side = add(g, out, rank, label);
    side->kind = what->kind;
    side->dtype = what->dtype;
    side->redop = what->redop;
    side->root = what->root;
    side->count = what->count;
    side->ordinal = ordinal;
}

void sides_add_message(const hgroup *g, op_sides *out, bool is_send, int32_t rank, int32_t other,
                       uint64_t ordinal, uint8_t dtype, int64_t count, const char *label)
{
    psd_op_side *side = add(g, out, rank, label);
    side->kind = is_send ? PSD_OP_SEND : PSD_OP_RECV;
    side->dtype = dtype;
    side->count = count;
    side->peer = other >= 0 ? (int32_t)g->members[other] : -1;
    side->ordinal = ordinal;
}

void sides_add_transfer(const hgroup *g, op_sides *out, const xfer *x)
{
    const psd_request *r = x->request;
    if (x->channel == FRAME_COLL)
        sides_add_collective(g, out, g->rank, r->ordinal, &r->what, r->label);
    else
        sides_add_message(g, out, x->is_send, g->rank, x->rank, x->is_send ? x->ordinal : UINT64_MAX,
                          x->dtype, x->count, r->label);
}
