/* Cells of the collectives: operations x dtypes x reductions x sizes x blocking or not x in place or not x
 * groups, and every root. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/suite.h"

typedef struct cell {
    psd_op_kind kind;
    psd_dtype dtype;
    psd_redop redop; /* 0: only moved */
    int32_t root;
    int64_t count; /* the c of psd.h's table */
    bool is_async;
    bool in_place;
    const suite_group *group;
    uint64_t seed;
} cell;

typedef struct cell_memory {
    guarded in;
    guarded out; /* not made when in place: the tensors lie in one of the two */
    unsigned char *in_at;
    unsigned char *out_at;
    psd_tensor in_tensor;
    psd_tensor out_tensor;
    bool has_in;
    bool has_out;
    int64_t *in_splits;
    int64_t *out_splits;
} cell_memory;

static const char *const names[] = {
#define PSD_X(name, value, text) [value] = text,
    PSD_OP_MAP(PSD_X)
#undef PSD_X
};

/* ---- shape of an operation */

static bool kind_reduces(psd_op_kind kind)
{
    return kind == PSD_OP_ALL_REDUCE || kind == PSD_OP_REDUCE || kind == PSD_OP_REDUCE_SCATTER;
}

static bool kind_has_root(psd_op_kind kind)
{
    return kind == PSD_OP_BROADCAST || kind == PSD_OP_REDUCE || kind == PSD_OP_SCATTER ||
           kind == PSD_OP_GATHER;
}

/* What psd.h says may share memory; broadcast has one tensor. */
static bool kind_in_place(psd_op_kind kind)
{
    return kind_reduces(kind) || kind == PSD_OP_ALL_GATHER;
}

/* all_to_all_v: what `from` sends to `to`; a third of the pairs nothing. */
static int64_t split(const cell *c, int32_t from, int32_t to)
{
    return c->count * ((from + 2 * to) % 3) / 2;
}

static int64_t split_total(const cell *c, int32_t rank, bool sent)
{
    int64_t total = 0;
    for (int32_t i = 0; i < c->group->size; i++)
        total += sent ? split(c, rank, i) : split(c, i, rank);
    return total;
}

static int64_t in_count(const cell *c)
{
    if (c->kind == PSD_OP_ALL_TO_ALL_V)
        return split_total(c, c->group->rank, true);
    bool many = c->kind == PSD_OP_SCATTER || c->kind == PSD_OP_REDUCE_SCATTER || c->kind == PSD_OP_ALL_TO_ALL;
    return many ? c->count * c->group->size : c->count;
}

static int64_t out_count(const cell *c)
{
    if (c->kind == PSD_OP_ALL_TO_ALL_V)
        return split_total(c, c->group->rank, false);
    bool many = c->kind == PSD_OP_GATHER || c->kind == PSD_OP_ALL_GATHER || c->kind == PSD_OP_ALL_TO_ALL;
    return many ? c->count * c->group->size : c->count;
}

static bool has_in(const cell *c)
{
    return c->kind != PSD_OP_BROADCAST && (c->kind != PSD_OP_SCATTER || c->group->rank == c->root);
}

static bool has_out(const cell *c)
{
    return (c->kind != PSD_OP_GATHER && c->kind != PSD_OP_REDUCE) || c->group->rank == c->root;
}

/* ---- calls */

static psd_status call_blocking(suite *s, const cell *c, cell_memory *m)
{
    psd_group group = c->group->handle;
    const psd_tensor *in = m->has_in ? &m->in_tensor : NULL;
    psd_tensor *out = m->has_out ? &m->out_tensor : NULL;
    switch (c->kind) {
    case PSD_OP_BROADCAST:
        return psd_broadcast(s->ctx, group, out, c->root, NULL);
    case PSD_OP_ALL_REDUCE:
        return psd_all_reduce(s->ctx, group, in, out, c->redop, NULL);
    case PSD_OP_REDUCE:
        return psd_reduce(s->ctx, group, in, out, c->redop, c->root, NULL);
    case PSD_OP_SCATTER:
        return psd_scatter(s->ctx, group, in, out, c->root, NULL);
    case PSD_OP_GATHER:
        return psd_gather(s->ctx, group, in, out, c->root, NULL);
    case PSD_OP_ALL_GATHER:
        return psd_all_gather(s->ctx, group, in, out, NULL);
    case PSD_OP_REDUCE_SCATTER:
        return psd_reduce_scatter(s->ctx, group, in, out, c->redop, NULL);
    case PSD_OP_ALL_TO_ALL:
        return psd_all_to_all(s->ctx, group, in, out, NULL);
    case PSD_OP_ALL_TO_ALL_V:
        return psd_all_to_all_v(s->ctx, group, in, m->in_splits, out, m->out_splits, NULL);
    default:
        return psd_barrier(s->ctx, group, NULL);
    }
}

static psd_status start_async(suite *s, const cell *c, cell_memory *m, psd_work *work)
{
    psd_group group = c->group->handle;
    const psd_tensor *in = m->has_in ? &m->in_tensor : NULL;
    psd_tensor *out = m->has_out ? &m->out_tensor : NULL;
    switch (c->kind) {
    case PSD_OP_BROADCAST:
        return psd_ibroadcast(s->ctx, group, out, c->root, NULL, work);
    case PSD_OP_ALL_REDUCE:
        return psd_iall_reduce(s->ctx, group, in, out, c->redop, NULL, work);
    case PSD_OP_REDUCE:
        return psd_ireduce(s->ctx, group, in, out, c->redop, c->root, NULL, work);
    case PSD_OP_SCATTER:
        return psd_iscatter(s->ctx, group, in, out, c->root, NULL, work);
    case PSD_OP_GATHER:
        return psd_igather(s->ctx, group, in, out, c->root, NULL, work);
    case PSD_OP_ALL_GATHER:
        return psd_iall_gather(s->ctx, group, in, out, NULL, work);
    case PSD_OP_REDUCE_SCATTER:
        return psd_ireduce_scatter(s->ctx, group, in, out, c->redop, NULL, work);
    case PSD_OP_ALL_TO_ALL:
        return psd_iall_to_all(s->ctx, group, in, out, NULL, work);
    case PSD_OP_ALL_TO_ALL_V:
        return psd_iall_to_all_v(s->ctx, group, in, m->in_splits, out, m->out_splits, NULL, work);
    default:
        return psd_ibarrier(s->ctx, group, NULL, work);
    }
}

static psd_status call(suite *s, const cell *c, cell_memory *m)
{
    psd_work work;
    if (!c->is_async)
        return call_blocking(s, c, m);
    psd_status status = start_async(s, c, m, &work);
    return status == PSD_OK ? psd_wait(s->ctx, work, 0) : status;
}

/* ---- memory */

static void free_memory(suite *s, cell_memory *m)
{
    guarded_free(s, &m->in);
    guarded_free(s, &m->out);
    free(m->in_splits);
    free(m->out_splits);
}

static bool make_splits(const cell *c, cell_memory *m)
{
    int32_t n = c->group->size, rank = c->group->rank;
    m->in_splits = calloc((size_t)n, sizeof *m->in_splits);
    m->out_splits = calloc((size_t)n, sizeof *m->out_splits);
    for (int32_t i = 0; m->in_splits != NULL && m->out_splits != NULL && i < n; i++) {
        m->in_splits[i] = split(c, rank, i);
        m->out_splits[i] = split(c, i, rank);
    }
    return m->in_splits != NULL && m->out_splits != NULL;
}

/* In place: out is the memory, and in a part of it, or the other way about, whichever is longer. */
static bool make_memory(suite *s, const cell *c, cell_memory *m)
{
    size_t element = c->kind == PSD_OP_BARRIER ? 1 : ref_bytes(c->dtype), offset;
    bool in_longer = c->kind == PSD_OP_REDUCE_SCATTER, shared = c->in_place && has_in(c) && has_out(c);
    cell_memory made = {.has_in = has_in(c), .has_out = has_out(c)};
    offset = (size_t)c->count * (size_t)c->group->rank * element;
    bool fine = make_splits(c, &made);
    if (made.has_in && (!shared || in_longer))
        made.in = guarded_new(s, (size_t)in_count(c) * element);
    if (made.has_out && (!shared || !in_longer))
        made.out = guarded_new(s, (size_t)out_count(c) * element);
    unsigned char *in = made.in.data, *out = made.out.data;
    if (shared && in_longer)
        out = in == NULL ? NULL : in + offset;
    else if (shared)
        in = out == NULL ? NULL : out + (c->kind == PSD_OP_ALL_GATHER ? offset : 0);
    made.in_at = in;
    made.out_at = out;
    made.in_tensor =
        guarded_tensor(shared && !in_longer ? &made.out : &made.in, in, in_count(c), c->dtype, "in");
    made.out_tensor =
        guarded_tensor(shared && in_longer ? &made.in : &made.out, out, out_count(c), c->dtype, "out");
    *m = made;
    return fine && (!made.has_in || in != NULL) && (!made.has_out || out != NULL);
}

static void fill(const cell *c, cell_memory *m)
{
    unsigned char period[REF_PERIOD * 8];
    bool is_broadcast_root = c->kind == PSD_OP_BROADCAST && c->group->rank == c->root;
    if (!m->has_in && !is_broadcast_root)
        return;
    ref_input(c->dtype, c->redop, c->seed, c->group->rank, period);
    if (m->has_in)
        ref_fill(c->dtype, period, 0, in_count(c), m->in_at);
    else
        ref_fill(c->dtype, period, 0, out_count(c), m->out_at);
}

/* ---- checks */

/* Where block b of the result comes from: a rank's input (-1: everybody's, reduced), from its element `start`
 * on. */
typedef struct expected {
    int32_t source;
    int64_t start;
    int64_t count;
} expected;

static expected expect_block(const cell *c, int32_t block)
{
    int64_t mine = (int64_t)c->group->rank * c->count;
    expected e = {.source = kind_reduces(c->kind) ? -1 : block, .count = c->count};
    if (kind_has_root(c->kind) && c->kind != PSD_OP_REDUCE && c->kind != PSD_OP_GATHER)
        e.source = c->root;
    if (c->kind == PSD_OP_SCATTER || c->kind == PSD_OP_REDUCE_SCATTER || c->kind == PSD_OP_ALL_TO_ALL)
        e.start = mine;
    if (c->kind == PSD_OP_ALL_TO_ALL_V) {
        e.count = split(c, block, c->group->rank);
        for (int32_t before = 0; before < c->group->rank; before++)
            e.start += split(c, block, before);
    }
    return e;
}

static bool output_right(const cell *c, const cell_memory *m)
{
    unsigned char period[REF_PERIOD * 8];
    const unsigned char *at = m->out_at;
    bool many = c->kind == PSD_OP_GATHER || c->kind == PSD_OP_ALL_GATHER || c->kind == PSD_OP_ALL_TO_ALL ||
                c->kind == PSD_OP_ALL_TO_ALL_V;
    for (int32_t block = 0; block < (many ? c->group->size : 1); block++) {
        expected e = expect_block(c, block);
        if (e.source < 0)
            ref_reduced(c->dtype, c->redop, c->seed, c->group->size, period);
        else
            ref_input(c->dtype, c->redop, c->seed, e.source, period);
        if (ref_differs(c->dtype, c->redop, period, e.start, e.count, at) >= 0)
            return false;
        at += (size_t)e.count * ref_bytes(c->dtype);
    }
    return true;
}

static bool input_kept(const cell *c, const cell_memory *m)
{
    unsigned char period[REF_PERIOD * 8];
    if (!m->has_in || (c->in_place && m->has_out))
        return true;
    ref_input(c->dtype, c->redop, c->seed, c->group->rank, period);
    return ref_differs(c->dtype, (psd_redop)0, period, 0, in_count(c), m->in_at) < 0;
}

/* The call, with what it reads brought to where it is read, and back what it wrote. */
static outcome run_filled(suite *s, const cell *c, cell_memory *m)
{
    bool is_bit_op = c->redop == PSD_BAND || c->redop == PSD_BOR || c->redop == PSD_BXOR;
    outcome result = suite_judge(s, guarded_give(s, &m->in));
    if (result == OUTCOME_PASSED)
        result = suite_judge(s, guarded_give(s, &m->out));
    if (result == OUTCOME_PASSED)
        result = suite_judge_refusal(s, call(s, c, m), is_bit_op && !s->has_bit_ops);
    if (result == OUTCOME_PASSED)
        result = suite_judge(s, guarded_take(s, &m->in));
    return result == OUTCOME_PASSED ? suite_judge(s, guarded_take(s, &m->out)) : result;
}

static outcome run(suite *s, const cell *c, const char **why)
{
    cell_memory m;
    outcome result = OUTCOME_FAILED;
    *why = "out of memory";
    if (make_memory(s, c, &m)) {
        fill(c, &m);
        result = run_filled(s, c, &m);
        *why = "error";
        bool has_data = c->kind != PSD_OP_BARRIER;
        if (result == OUTCOME_PASSED && has_data && m.has_out && !output_right(c, &m)) {
            result = OUTCOME_FAILED;
            *why = "wrong data";
        }
        if (result == OUTCOME_PASSED && has_data && !input_kept(c, &m)) {
            result = OUTCOME_FAILED;
            *why = "the input was changed";
        }
        if (result == OUTCOME_PASSED && (!guarded_intact(&m.in) || !guarded_intact(&m.out))) {
            result = OUTCOME_FAILED;
            *why = "memory beside the tensors was changed";
        }
    }
    free_memory(s, &m);
    return result;
}

static void try_cell(suite *s, cell c)
{
    const char *why = NULL;
    if (s->is_broken)
        return;
    c.seed = (uint64_t)s->cell_count;
    c.root = kind_has_root(c.kind) && c.root < 0 ? (int32_t)(s->cell_count % c.group->size) : c.root;
    outcome result = run(s, &c, &why);
    suite_record(s, names[c.kind], c.kind == PSD_OP_BARRIER ? (psd_dtype)0 : c.dtype, result,
                 "redop %d count %" PRId64 " root %d %s%s on %s of %d: %s", (int)c.redop, c.count, c.root,
                 c.is_async ? "async" : "blocking", c.in_place ? " in place" : "", c.group->name,
                 c.group->size, why);
}

/* ---- enumeration */

#define SIZES 5

/* None, one, odd, some, and more than a sender can get rid of before there is a receive. */
static int64_t size_of(int index, psd_dtype dtype)
{
    const int64_t sizes[SIZES] = {0, 1, 17, 1009, 100003 / (int64_t)ref_bytes(dtype) + 1};
    return sizes[index];
}

static void try_places(suite *s, cell c)
{
    try_cell(s, c);
    if (kind_in_place(c.kind)) {
        c.in_place = true;
        try_cell(s, c);
    }
}

static void try_sizes(suite *s, cell c, int group)
{
    c.group = &s->groups[group];
    for (int size = 0; size < SIZES; size++) {
        if (s->extent == SUITE_REDUCED && (size == 1 || size == 3))
            continue;
        c.count = size_of(size, c.dtype);
        c.is_async = false;
        try_places(s, c);
        c.is_async = true;
        if (s->extent != SUITE_REDUCED || size == 2)
            try_places(s, c);
    }
}

/* One of each kind of type: bytes that are moved, an integer, the halves and the float. */
static bool in_extent(const suite *s, psd_dtype dtype, int group)
{
    bool is_typical = dtype == PSD_U8 || dtype == PSD_I32 || dtype == PSD_F16 || dtype == PSD_BF16 ||
                      dtype == PSD_F32 || dtype == PSD_I16;
    return s->extent != SUITE_REDUCED || group == 0 || (group == 1 && is_typical);
}

static void try_redops(suite *s, psd_op_kind kind, psd_dtype dtype, int group)
{
    cell c = {.kind = kind, .dtype = dtype, .root = -1};
    if (!kind_reduces(kind)) {
        try_sizes(s, c, group);
        return;
    }
    for (c.redop = PSD_SUM; c.redop <= PSD_BXOR; c.redop++) {
        if (ref_reduces(dtype, c.redop))
            try_sizes(s, c, group);
    }
}

static void try_roots(suite *s, psd_op_kind kind)
{
    for (int32_t root = 0; kind_has_root(kind) && root < s->ranks && s->extent != SUITE_REDUCED; root++) {
        cell c = {.kind = kind, .dtype = PSD_F32, .root = root, .group = &s->groups[0]};
        c.redop = kind_reduces(kind) ? PSD_SUM : (psd_redop)0;
        for (int size = 0; size < SIZES; size++) {
            c.count = size_of(size, c.dtype);
            try_cell(s, c);
        }
    }
}

/* 64 MiB and a little. When quick only the two that everybody uses, where it does not take a minute. */
static void try_huge(suite *s, psd_op_kind kind)
{
    bool popular = kind == PSD_OP_ALL_REDUCE || kind == PSD_OP_BROADCAST;
    int64_t floats = (INT64_C(64) << 18) + 3;
    cell c = {.kind = kind, .dtype = PSD_F32, .root = -1, .group = &s->groups[0], .count = floats};
    if (s->extent != SUITE_FULL && (!popular || s->ranks > 4))
        return;
    if (s->extent == SUITE_REDUCED)
        c.count = floats / 16;
    c.redop = kind_reduces(kind) ? PSD_SUM : (psd_redop)0;
    if (!popular && kind != PSD_OP_REDUCE)
        c.count = floats / s->ranks + 1;
    try_places(s, c);
}

static void try_barriers(suite *s)
{
    for (int group = 0; group < SUITE_GROUPS; group++) {
        for (int i = 0; i < 2; i++) {
            cell c = {
                .kind = PSD_OP_BARRIER, .dtype = PSD_U8, .group = &s->groups[group], .is_async = i == 1};
            try_cell(s, c);
        }
    }
}

/* Are the bits on all ranks the same? Then the greatest and the least of them, as integers, are. */
static outcome compare_bits(suite *s, guarded *data, int64_t count)
{
    guarded least = guarded_new(s, data->bytes), most = guarded_new(s, data->bytes);
    outcome result = OUTCOME_FAILED;
    if (least.data != NULL && most.data != NULL) {
        psd_tensor in = guarded_tensor(data, data->data, count, PSD_I32, "bits");
        psd_tensor low = guarded_tensor(&least, least.data, count, PSD_I32, "least");
        psd_tensor high = guarded_tensor(&most, most.data, count, PSD_I32, "most");
        result = suite_judge(s, psd_all_reduce(s->ctx, PSD_WORLD, &in, &low, PSD_MIN, NULL));
        if (result == OUTCOME_PASSED)
            result = suite_judge(s, psd_all_reduce(s->ctx, PSD_WORLD, &in, &high, PSD_MAX, NULL));
        if (result == OUTCOME_PASSED)
            result = suite_judge(s, guarded_take(s, &least));
        if (result == OUTCOME_PASSED)
            result = suite_judge(s, guarded_take(s, &most));
        if (result == OUTCOME_PASSED && memcmp(least.data, most.data, least.bytes) != 0)
            result = OUTCOME_FAILED;
    }
    guarded_free(s, &least);
    guarded_free(s, &most);
    return result;
}

/* Sums that round: every rank has the same bits, and where psd adds those of a loop in rank order. */
static void try_same_bits(suite *s, int64_t count)
{
    guarded data = guarded_new(s, (size_t)count * sizeof(float)),
            want = guarded_new(s, (size_t)count * sizeof(float));
    outcome result = OUTCOME_FAILED;
    if (data.data != NULL && want.data != NULL && !s->is_broken) {
        for (int64_t i = 0; i < count; i++) {
            float sum = ref_rough(7, 0, i), mine = ref_rough(7, s->rank, i);
            for (int32_t rank = 1; rank < s->ranks; rank++)
                sum += ref_rough(7, rank, i);
            memcpy(want.data + (size_t)i * sizeof sum, &sum, sizeof sum);
            memcpy(data.data + (size_t)i * sizeof mine, &mine, sizeof mine);
        }
        psd_tensor t = guarded_tensor(&data, data.data, count, PSD_F32, "rough");
        result = suite_judge(s, guarded_give(s, &data));
        if (result == OUTCOME_PASSED)
            result = suite_judge(s, psd_all_reduce(s->ctx, PSD_WORLD, &t, &t, PSD_SUM, NULL));
        if (result == OUTCOME_PASSED)
            result = suite_judge(s, guarded_take(s, &data));
        if (result == OUTCOME_PASSED)
            result = compare_bits(s, &data, count);
        if (result == OUTCOME_PASSED && s->sums_in_rank_order &&
            memcmp(data.data, want.data, data.bytes) != 0)
            result = OUTCOME_FAILED;
    }
    if (!s->is_broken)
        suite_record(s, "same_bits", PSD_F32, result, "count %" PRId64, count);
    guarded_free(s, &data);
    guarded_free(s, &want);
}

void suite_collectives(suite *s)
{
    for (psd_op_kind kind = PSD_OP_BROADCAST; kind <= PSD_OP_ALL_TO_ALL_V; kind++) {
        for (int group = 0; group < SUITE_GROUPS; group++) {
            for (int dtype = 1; dtype <= REF_DTYPES; dtype++) {
                if (in_extent(s, (psd_dtype)dtype, group))
                    try_redops(s, kind, (psd_dtype)dtype, group);
            }
        }
        try_roots(s, kind);
        try_huge(s, kind);
    }
    try_barriers(s);
    try_same_bits(s, 3);
    try_same_bits(s, 50021);
}
