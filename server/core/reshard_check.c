/* Proves a plan from the layouts and its messages alone. For each tensor and destination: the boxes that arrive do not
 * overlap, nor what is there already, and together they are what is wanted. A sender holds what it sends: in its source
 * box, or, where it forwards, in boxes of earlier rounds. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "server/core/reshard.h"

/* A piece, where it arrives. */
typedef struct arrival {
    uint64_t piece;
    uint32_t message;
    int32_t dst;
} arrival;

/* One box of an arrival. */
typedef struct part {
    psd_box box;
    uint32_t round;
    int32_t dst;
    int32_t src;
    bool forwards;
} part;

typedef struct checker {
    const reshard_input *input;
    const reshard_plan *plan;
    char *why;
    size_t why_bytes;
    arrival *arrivals; /* tensor by tensor */
    uint64_t *first;   /* of each tensor; count + 1 entries */
    part *parts;       /* of one tensor, in order of (dst, box) */
    uint64_t part_count;
    uint64_t part_capacity;
    const psd_model_tensor *tensor;
    psd_place src[PSD_LAYOUT_AXES]; /* of that tensor */
    psd_place dst[PSD_LAYOUT_AXES];
} checker;

static psd_status wrong(const checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static psd_status wrong(const checker *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(c->why, c->why_bytes, format, args);
    va_end(args);
    return PSD_ERR_INTERNAL;
}

static psd_status no_memory(const checker *c)
{
    (void)snprintf(c->why, c->why_bytes, "no memory to check the plan");
    return PSD_ERR_NOMEM;
}

static int64_t volume(const psd_box *box, int32_t ndim)
{
    int64_t n = 1;
    for (int32_t d = 0; d < ndim; d++)
        n *= box->hi[d] - box->lo[d];
    return n;
}

/* False: they have nothing in common. */
static bool intersect(const psd_box *a, const psd_box *b, int32_t ndim, psd_box *out)
{
    for (int32_t d = 0; d < ndim; d++) {
        out->lo[d] = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
        out->hi[d] = a->hi[d] < b->hi[d] ? a->hi[d] : b->hi[d];
        if (out->lo[d] >= out->hi[d])
            return false;
    }
    return true;
}

static bool inside(const psd_box *box, const psd_box *outer, int32_t ndim)
{
    for (int32_t d = 0; d < ndim; d++) {
        if (box->lo[d] < outer->lo[d] || box->hi[d] > outer->hi[d])
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------- messages and rounds */

static psd_status check_pieces(const checker *c, uint64_t index, const reshard_message *m)
{
    int64_t bytes = 0;
    for (uint64_t i = m->first_piece; i < m->first_piece + m->piece_count; i++) {
        const reshard_piece *p = &c->plan->pieces[i];
        if (p->tensor >= c->input->model->count || p->atom >= c->plan->atom_count)
            return wrong(c, "message %llu: piece %llu is of no tensor", (unsigned long long)index,
                         (unsigned long long)i);
        const psd_model_tensor *tensor = &c->input->model->tensors[p->tensor];
        const psd_box *box = &c->plan->atoms[p->atom].box;
        for (int32_t d = 0; d < tensor->ndim; d++) {
            if (box->lo[d] < 0 || box->lo[d] >= box->hi[d] || box->hi[d] > tensor->shape[d])
                return wrong(c, "message %llu: piece %llu is outside of tensor %s", (unsigned long long)index,
                             (unsigned long long)i, tensor->name);
        }
        if (p->lo < 0 || p->lo >= p->hi || p->hi > volume(box, tensor->ndim))
            return wrong(c, "message %llu: piece %llu of tensor %s is outside of its atom",
                         (unsigned long long)index, (unsigned long long)i, tensor->name);
        bytes += (p->hi - p->lo) * (int64_t)psd_dtype_bytes(tensor->dtype);
    }
    if (bytes != m->bytes)
        return wrong(c, "message %llu says %lld bytes, and its pieces have %lld", (unsigned long long)index,
                     (long long)m->bytes, (long long)bytes);
    return PSD_OK;
}

/* What messages say about themselves and their order. */
static psd_status check_messages(const checker *c, int32_t ranks)
{
    uint64_t next_piece = 0;
    for (uint64_t i = 0; i < c->plan->message_count; i++) {
        const reshard_message *m = &c->plan->messages[i], *before = m - 1;
        if (m->src < 0 || m->src >= ranks || m->dst < 0 || m->dst >= ranks || m->src == m->dst ||
            m->round >= c->plan->rounds)
            return wrong(c, "message %llu goes from rank %d to rank %d in round %u", (unsigned long long)i,
                         m->src, m->dst, m->round);
        if (m->first_piece != next_piece || m->piece_count == 0 ||
            m->piece_count > c->plan->piece_count - next_piece)
            return wrong(c, "message %llu does not follow the one before", (unsigned long long)i);
        next_piece += m->piece_count;
        if (i > 0 && (before->round > m->round || (before->round == m->round && before->src > m->src)))
            return wrong(c, "message %llu is out of order", (unsigned long long)i);
        if (i > 0 && before->round == m->round && before->src == m->src && before->dst != m->dst)
            return wrong(c, "rank %d sends twice in round %u", m->src, m->round);
        psd_status status = check_pieces(c, i, m);
        if (status != PSD_OK)
            return status;
    }
    return next_piece == c->plan->piece_count ? PSD_OK : wrong(c, "some pieces are in no message");
}

typedef struct totals {
    int64_t *sent; /* by rank */
    int64_t *received;
    int64_t *source; /* by rank: whom it receives from in this round, + 1; and the round above that */
    int64_t pair;    /* bytes of this pair in this round */
    int64_t longest;
    int64_t round_time;
} totals;

/* At most one receive in a round, and the sums that the plan claims. */
static psd_status check_rounds(const checker *c, totals *t, int32_t ranks)
{
    int64_t load = 0;
    for (uint64_t i = 0; i < c->plan->message_count; i++) {
        const reshard_message *m = &c->plan->messages[i], *before = m - 1;
        bool same_round = i > 0 && before->round == m->round;
        bool same_pair = same_round && before->src == m->src;
        int64_t source = (int64_t)m->round << 32 | (m->src + 1);
        if (t->source[m->dst] >> 32 == m->round && t->source[m->dst] != 0 && t->source[m->dst] != source)
            return wrong(c, "rank %d receives twice in round %u", m->dst, m->round);
        t->source[m->dst] = source;
        if (!same_round) {
            t->round_time += t->longest;
            t->longest = 0;
        }
        t->pair = same_pair ? t->pair + m->bytes : m->bytes;
        t->longest = t->pair > t->longest ? t->pair : t->longest;
        t->sent[m->src] += m->bytes;
        t->received[m->dst] += m->bytes;
    }
    t->round_time += t->longest;
    for (int32_t r = 0; r < ranks; r++) {
        load = t->sent[r] > load ? t->sent[r] : load;
        load = t->received[r] > load ? t->received[r] : load;
    }
    if (load != c->plan->load || t->round_time != c->plan->round_time)
        return wrong(c, "the plan claims a load of %lld bytes and a time of %lld; they are %lld and %lld",
                     (long long)c->plan->load, (long long)c->plan->round_time, (long long)load,
                     (long long)t->round_time);
    return PSD_OK;
}

static psd_status check_order(const checker *c, int32_t ranks)
{
    totals t = {0};
    size_t n = (size_t)ranks + 1;
    t.sent = calloc(n, sizeof *t.sent);
    t.received = calloc(n, sizeof *t.received);
    t.source = calloc(n, sizeof *t.source);
    psd_status status = PSD_OK;
    if (t.sent == NULL || t.received == NULL || t.source == NULL)
        status = no_memory(c);
    if (status == PSD_OK)
        status = check_messages(c, ranks);
    if (status == PSD_OK)
        status = check_rounds(c, &t, ranks);
    free(t.sent);
    free(t.received);
    free(t.source);
    return status;
}

/* -------------------------------------------------------------------------------------------- what arrives */

/* Brings the arrivals of each tensor together: counting, then filling. */
static psd_status sort_arrivals(checker *c)
{
    uint32_t tensors = c->input->model->count;
    c->first = calloc((size_t)tensors + 2, sizeof *c->first);
    c->arrivals = malloc((c->plan->piece_count + 1) * sizeof *c->arrivals);
    if (c->first == NULL || c->arrivals == NULL)
        return no_memory(c);
    uint64_t *next = c->first + 1; /* shifted by one, so that filling leaves the starts */
    for (uint64_t i = 0; i < c->plan->piece_count; i++)
        next[c->plan->pieces[i].tensor + 1]++;
    for (uint32_t t = 0; t < tensors; t++)
        next[t + 1] += next[t];
    for (uint32_t i = 0; i < c->plan->message_count; i++) {
        const reshard_message *m = &c->plan->messages[i];
        for (uint64_t p = m->first_piece; p < m->first_piece + m->piece_count; p++)
            c->arrivals[next[c->plan->pieces[p].tensor]++] = (arrival){p, i, m->dst};
    }
    return PSD_OK;
}

static int by_destination_box(const void *a, const void *b)
{
    const part *x = a, *y = b;
    if (x->dst != y->dst)
        return x->dst < y->dst ? -1 : 1;
    return (x->box.lo[0] > y->box.lo[0]) - (x->box.lo[0] < y->box.lo[0]);
}

static psd_status list_parts(checker *c, uint32_t tensor)
{
    c->part_count = 0;
    for (uint64_t i = c->first[tensor]; i < c->first[tensor + 1]; i++) {
        const reshard_piece *p = &c->plan->pieces[c->arrivals[i].piece];
        const reshard_message *m = &c->plan->messages[c->arrivals[i].message];
        psd_box boxes[RESHARD_MOST_BOXES];
        int count = reshard_piece_boxes(&c->plan->atoms[p->atom].box, c->tensor->ndim, p->lo, p->hi, boxes);
        if (c->part_count + RESHARD_MOST_BOXES > c->part_capacity) {
            uint64_t wanted = 2 * c->part_capacity + 4 * RESHARD_MOST_BOXES;
            part *grown = realloc(c->parts, wanted * sizeof *grown);
            if (grown == NULL)
                return no_memory(c);
            c->parts = grown;
            c->part_capacity = wanted;
        }
        for (int b = 0; b < count; b++)
            c->parts[c->part_count++] = (part){boxes[b], m->round, m->dst, m->src, m->forwards};
    }
    if (c->part_count > 1)
        qsort(c->parts, c->part_count, sizeof *c->parts, by_destination_box);
    return PSD_OK;
}

/* The parts of a destination: [*from, *to). */
static void find_parts(const checker *c, int32_t dst, uint64_t *from, uint64_t *to)
{
    uint64_t lo = 0, hi = c->part_count;
    while (lo < hi) {
        uint64_t middle = lo + (hi - lo) / 2;
        if (c->parts[middle].dst < dst)
            lo = middle + 1;
        else
            hi = middle;
    }
    *from = lo;
    while (lo < c->part_count && c->parts[lo].dst == dst)
        lo++;
    *to = lo;
}

/* What a rank wants of the tensor, and what of that it holds from the start. False: it wants nothing. */
static bool wanted_box(const checker *c, int32_t rank, psd_box *wanted, psd_box *held, bool *holds)
{
    psd_box source;
    if (!psd_layout_box(c->input->dst, c->dst, c->tensor, rank, wanted))
        return false;
    *holds = psd_layout_box(c->input->src, c->src, c->tensor, rank, &source) &&
             intersect(&source, wanted, c->tensor->ndim, held);
    return true;
}

static psd_status check_destination(const checker *c, int32_t rank)
{
    psd_box wanted, held, common;
    bool holds = false;
    uint64_t from = 0, to = 0;
    int32_t ndim = c->tensor->ndim;
    find_parts(c, rank, &from, &to);
    if (!wanted_box(c, rank, &wanted, &held, &holds))
        return from == to ? PSD_OK
                          : wrong(c, "tensor %s: rank %d gets some and wants none", c->tensor->name, rank);
    int64_t missing = volume(&wanted, ndim) - (holds ? volume(&held, ndim) : 0);
    for (uint64_t i = from; i < to; i++) {
        const psd_box *box = &c->parts[i].box;
        if (!inside(box, &wanted, ndim))
            return wrong(c, "tensor %s: rank %d gets elements that it does not want", c->tensor->name, rank);
        if (holds && intersect(box, &held, ndim, &common))
            return wrong(c, "tensor %s: rank %d gets elements that it holds", c->tensor->name, rank);
        for (uint64_t k = i + 1; k < to && (ndim == 0 || c->parts[k].box.lo[0] < box->hi[0]); k++) {
            if (intersect(box, &c->parts[k].box, ndim, &common))
                return wrong(c, "tensor %s: rank %d gets elements twice", c->tensor->name, rank);
        }
        missing -= volume(box, ndim);
    }
    if (missing != 0)
        return wrong(c, "tensor %s: rank %d never gets %lld elements", c->tensor->name, rank,
                     (long long)missing);
    return PSD_OK;
}

/* Since no two boxes of a rank overlap, what they cover of another box is the sum of the common parts. */
static bool has_received(const checker *c, const part *p)
{
    psd_box wanted, held, common;
    bool holds = false;
    uint64_t from = 0, to = 0;
    int64_t missing = volume(&p->box, c->tensor->ndim);
    if (!wanted_box(c, p->src, &wanted, &held, &holds))
        return false;
    if (holds && intersect(&p->box, &held, c->tensor->ndim, &common))
        missing -= volume(&common, c->tensor->ndim);
    find_parts(c, p->src, &from, &to);
    for (; from < to; from++) {
        if (c->parts[from].round < p->round &&
            intersect(&p->box, &c->parts[from].box, c->tensor->ndim, &common))
            missing -= volume(&common, c->tensor->ndim);
    }
    return missing == 0;
}

static psd_status check_sources(const checker *c)
{
    for (uint64_t i = 0; i < c->part_count; i++) {
        const part *p = &c->parts[i];
        psd_box source;
        bool fine = p->forwards ? has_received(c, p)
                                : psd_layout_box(c->input->src, c->src, c->tensor, p->src, &source) &&
                                      inside(&p->box, &source, c->tensor->ndim);
        if (!fine)
            return wrong(c, "tensor %s: rank %d sends elements in round %u that it does not %s",
                         c->tensor->name, p->src, p->round, p->forwards ? "have yet" : "hold");
    }
    return PSD_OK;
}

static psd_status check_tensor(checker *c, uint32_t index)
{
    c->tensor = &c->input->model->tensors[index];
    if (!psd_layout_place(c->input->src, c->tensor, c->src, c->why, c->why_bytes) ||
        !psd_layout_place(c->input->dst, c->tensor, c->dst, c->why, c->why_bytes))
        return PSD_ERR_INVAL;
    psd_status status = list_parts(c, index);
    const psd_layout *dst = c->input->dst;
    if (status == PSD_OK && c->part_count > 0 &&
        (c->parts[0].dst < dst->first_rank ||
         c->parts[c->part_count - 1].dst >= dst->first_rank + dst->ranks))
        status = wrong(c, "tensor %s: a rank outside of group %s gets some", c->tensor->name, dst->group);
    for (int32_t r = dst->first_rank; r < dst->first_rank + dst->ranks && status == PSD_OK; r++)
        status = check_destination(c, r);
    return status == PSD_OK ? check_sources(c) : status;
}

psd_status reshard_check(const reshard_input *input, const reshard_plan *plan, char *why, size_t why_bytes)
{
    checker c = {.input = input, .plan = plan, .why = why, .why_bytes = why_bytes};
    int32_t src_end = input->src->first_rank + input->src->ranks;
    int32_t dst_end = input->dst->first_rank + input->dst->ranks;
    psd_status status = PSD_OK;
    if (plan->message_count > UINT32_MAX)
        status = wrong(&c, "the plan has more than 2^32 messages");
    if (status == PSD_OK)
        status = check_order(&c, src_end > dst_end ? src_end : dst_end);
    if (status == PSD_OK)
        status = sort_arrivals(&c);
    for (uint32_t t = 0; t < input->model->count && status == PSD_OK; t++)
        status = check_tensor(&c, t);
    free(c.arrivals);
    free(c.first);
    free(c.parts);
    return status;
}
