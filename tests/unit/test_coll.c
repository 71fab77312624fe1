/* Collectives of the host backend, run for all ranks of a group in memory: messages are delivered in random
 * legal order, either when both ends are posted or, as an eager transport does, as soon as they are sent. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "common/tensor.h"
#include "tests/unit/half_reference.h"
#include "worker/backend/host/coll.h"
#include "worker/backend/host/reduce.h"

#define MAX_RANKS 9

static uint64_t seed = 88172645463325252u;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* ---- the interpreter */

typedef struct mail {
    void *data; /* a buffered copy if eager, else the sender's memory */
    size_t bytes;
    bool buffered;
    bool *done; /* of the message at its poster; NULL once told */
} mail;

typedef struct queue {
    mail *items;
    size_t count, head, capacity;
} queue;

typedef struct lab_rank {
    coll c;
    coll_messages messages;
    bool *done; /* by message of the round */
    uint32_t round;
    bool finished;
    void *scratch;
} lab_rank;

typedef struct lab {
    int32_t size;
    lab_rank ranks[MAX_RANKS];
    queue sends[MAX_RANKS][MAX_RANKS]; /* from, to */
    queue recvs[MAX_RANKS][MAX_RANKS];
    size_t moved[MAX_RANKS]; /* bytes sent by each */
} lab;

/* Sends complete at once instead of by chance: nobody is held up by a receiver. */
static bool always_eager;

static void queue_push(queue *q, mail item)
{
    if (q->count == q->capacity) {
        q->capacity = q->capacity ? 2 * q->capacity : 16;
        q->items = realloc(q->items, q->capacity * sizeof *q->items);
        cr_assert_not_null(q->items);
    }
    q->items[q->count++] = item;
}

static void post_one(lab *l, int32_t rank, int32_t index)
{
    lab_rank *r = &l->ranks[rank];
    coll_message *m = &r->messages.items[index];
    mail item = {m->data, m->bytes, false, &r->done[index]};
    cr_assert(m->peer >= 0 && m->peer < l->size && m->peer != rank, "peer %d", m->peer);
    r->done[index] = false;
    if (!m->is_send) {
        if (m->bytes > 0)
            memset(m->data, 0xa5,
                   m->bytes); /* a receive buffer holds anything until its message is complete */
        queue_push(&l->recvs[m->peer][rank], item);
        return;
    }
    l->moved[rank] += m->bytes;
    if (always_eager || next_random() % 2) {
        item.buffered = true;
        item.done = NULL;
        item.data = malloc(m->bytes + 1);
        if (m->bytes > 0)
            memcpy(item.data, m->data, m->bytes);
        r->done[index] = true;
    }
    queue_push(&l->sends[rank][m->peer], item);
}

static void post_round(lab *l, int32_t rank)
{
    lab_rank *r = &l->ranks[rank];
    for (int32_t i = 0; i < r->messages.count; i++)
        post_one(l, rank, i);
    coll_meanwhile(&r->c, r->round);
}

static bool advance(lab *l, int32_t rank)
{
    lab_rank *r = &l->ranks[rank];
    if (r->finished)
        return false;
    for (int32_t i = 0; i < r->messages.count; i++) {
        if (!r->done[i])
            return false;
    }
    coll_finish(&r->c, r->round++);
    r->finished = !coll_round(&r->c, r->round, &r->messages);
    if (r->finished)
        return true;
    cr_assert_leq(r->messages.count, r->messages.capacity);
    post_round(l, rank);
    return true;
}

static bool deliver(lab *l, int32_t from, int32_t to)
{
    queue *sends = &l->sends[from][to], *recvs = &l->recvs[from][to];
    if (sends->head == sends->count || recvs->head == recvs->count)
        return false;
    mail *sent = &sends->items[sends->head++], *wanted = &recvs->items[recvs->head++];
    cr_assert_eq(sent->bytes, wanted->bytes, "rank %d sends %zu bytes, rank %d expects %zu", from,
                 sent->bytes, to, wanted->bytes);
    if (sent->bytes > 0)
        memcpy(wanted->data, sent->data, sent->bytes);
    if (sent->buffered)
        free(sent->data);
    else
        *sent->done = true;
    *wanted->done = true;
    return true;
}

static void lab_begin(lab *l, const psd_op *ops, int32_t size)
{
    int32_t capacity = coll_max_messages(size);
    memset(l, 0, sizeof *l);
    l->size = size;
    for (int32_t i = 0; i < size; i++) {
        lab_rank *r = &l->ranks[i];
        size_t bytes = coll_scratch_bytes(&ops[i], size);
        r->scratch = malloc(bytes + 1);
        r->done = calloc((size_t)capacity, sizeof *r->done);
        r->messages.capacity = capacity;
        r->messages.items = calloc((size_t)capacity, sizeof *r->messages.items);
        cr_assert(r->scratch != NULL && r->done != NULL && r->messages.items != NULL);
        coll_begin(&r->c, &ops[i], i, size, bytes > 0 ? r->scratch : NULL);
        r->finished = !coll_round(&r->c, 0, &r->messages);
        if (!r->finished)
            post_round(l, i);
    }
}

static void lab_end(lab *l)
{
    for (int32_t i = 0; i < l->size; i++) {
        for (int32_t j = 0; j < l->size; j++) {
            cr_assert(l->sends[i][j].head == l->sends[i][j].count, "rank %d sent what %d never received", i,
                      j);
            cr_assert(l->recvs[i][j].head == l->recvs[i][j].count);
            free(l->sends[i][j].items);
            free(l->recvs[i][j].items);
        }
        free(l->ranks[i].scratch);
        free(l->ranks[i].done);
        free(l->ranks[i].messages.items);
    }
}

/* Random steps; when they bring nothing, every step is tried once, and if none is possible, ranks hang. */
static void lab_run(lab *l, const psd_op *ops, int32_t size)
{
    lab_begin(l, ops, size);
    for (;;) {
        bool moved = false, all = true;
        for (int32_t k = 0; k < size * size; k++) {
            int32_t a = (int32_t)(next_random() % (uint64_t)size),
                    b = (int32_t)(next_random() % (uint64_t)size);
            moved |= deliver(l, a, b);
            moved |= next_random() % 4 == 0 && advance(l, a);
        }
        for (int32_t i = 0; i < size; i++) {
            for (int32_t j = 0; j < size && !moved; j++)
                moved = deliver(l, i, j);
            moved = moved || advance(l, i);
            all = all && l->ranks[i].finished;
        }
        if (all)
            break;
        cr_assert(moved, "ranks wait for each other");
    }
    lab_end(l);
}

/* ---- elements as numbers */

static void put(psd_dtype dtype, void *base, size_t i, double value)
{
    unsigned char *at = (unsigned char *)base + i * psd_dtype_bytes(dtype);
    uint64_t bits = (uint64_t)(int64_t)value;
    float single = (float)value;
    uint16_t half = half_encode(dtype == PSD_F16 ? half_f16 : half_bf16, value);
    if (dtype == PSD_F32)
        memcpy(at, &single, sizeof single);
    else if (dtype == PSD_F64)
        memcpy(at, &value, sizeof value);
    else if (dtype == PSD_F16 || dtype == PSD_BF16)
        memcpy(at, &half, sizeof half);
    else
        memcpy(at, &bits, psd_dtype_bytes(dtype));
}

/* Small numbers whose sums and products are exact in every dtype, different by rank and place. */
static double input_value(psd_redop redop, int32_t rank, size_t i)
{
    if (redop == PSD_PROD)
        return (double)(1 + ((size_t)rank + i) % 3 / 2);
    return (double)(((size_t)rank * 7 + i * 5 + i / 61) % 13);
}

static double reduced_value(psd_redop redop, int32_t size, size_t i)
{
    double a = input_value(redop, 0, i);
    for (int32_t r = 1; r < size; r++) {
        double b = input_value(redop, r, i);
        int64_t x = (int64_t)a, y = (int64_t)b;
        double results[] = {
            [PSD_SUM] = a + b,           [PSD_PROD] = a * b,          [PSD_AVG] = a + b,
            [PSD_MIN] = fmin(a, b),      [PSD_MAX] = fmax(a, b),      [PSD_BAND] = (double)(x & y),
            [PSD_BOR] = (double)(x | y), [PSD_BXOR] = (double)(x ^ y)};
        a = results[redop];
    }
    return a;
}

/* What every rank's `out` must be after the operation; the average as reduce.h says. */
static void put_reduced(psd_dtype dtype, psd_redop redop, int32_t size, void *base, size_t at, size_t i)
{
    double value = reduced_value(redop, size, i);
    if (redop == PSD_AVG)
        value = psd_dtype_is_integer(dtype) ? trunc(value / size)
                : dtype == PSD_F64          ? value / size
                                            : (double)(float)(value / size);
    put(dtype, base, at, value);
}

/* ---- one operation on all ranks */

typedef struct job {
    psd_op_kind kind;
    psd_dtype dtype;
    psd_redop redop;
    int32_t root;
    int32_t size;
    size_t count;
    bool in_place;
} job;

static size_t in_blocks(const job *j)
{
    bool many = j->kind == PSD_OP_SCATTER || j->kind == PSD_OP_REDUCE_SCATTER || j->kind == PSD_OP_ALL_TO_ALL;
    return many ? (size_t)j->size : 1;
}

static size_t out_blocks(const job *j)
{
    bool many = j->kind == PSD_OP_GATHER || j->kind == PSD_OP_ALL_GATHER || j->kind == PSD_OP_ALL_TO_ALL;
    return many ? (size_t)j->size : 1;
}

static bool reduces(psd_op_kind kind)
{
    return kind == PSD_OP_ALL_REDUCE || kind == PSD_OP_REDUCE || kind == PSD_OP_REDUCE_SCATTER;
}

static bool has_in(const job *j, int32_t rank)
{
    return j->kind != PSD_OP_BROADCAST && (j->kind != PSD_OP_SCATTER || rank == j->root);
}

static bool has_out(const job *j, int32_t rank)
{
    return (j->kind != PSD_OP_GATHER && j->kind != PSD_OP_REDUCE) || rank == j->root;
}

static void fill_expected(const job *j, int32_t rank, void *want)
{
    size_t c = j->count;
    for (size_t i = 0; i < c * out_blocks(j); i++) {
        int32_t block = (int32_t)(c ? i / c : 0);
        size_t place = c ? i % c : 0;
        if (j->kind == PSD_OP_BROADCAST)
            put(j->dtype, want, i, input_value(j->redop, j->root, i));
        else if (j->kind == PSD_OP_SCATTER)
            put(j->dtype, want, i, input_value(j->redop, j->root, (size_t)rank * c + i));
        else if (j->kind == PSD_OP_REDUCE_SCATTER)
            put_reduced(j->dtype, j->redop, j->size, want, i, (size_t)rank * c + i);
        else if (reduces(j->kind))
            put_reduced(j->dtype, j->redop, j->size, want, i, i);
        else if (j->kind == PSD_OP_ALL_TO_ALL)
            put(j->dtype, want, i, input_value(j->redop, block, (size_t)rank * c + place));
        else
            put(j->dtype, want, i, input_value(j->redop, block, place));
    }
}

/* Memory of one rank: `in` and `out` apart, or overlaid as psd.h says. NULL where there is none. */
static void *make_buffers(const job *j, int32_t rank, psd_op *op)
{
    size_t block = j->count * psd_dtype_bytes(j->dtype), bytes = block * (in_blocks(j) + out_blocks(j));
    unsigned char *memory = calloc(bytes + 1, 1), *in = memory, *out = memory + block * in_blocks(j);
    cr_assert_not_null(memory);
    if (j->in_place) {
        out = memory;
        if (j->kind == PSD_OP_ALL_GATHER || j->kind == PSD_OP_GATHER)
            in = out + block * (size_t)rank;
        else if (j->kind == PSD_OP_REDUCE_SCATTER || j->kind == PSD_OP_SCATTER)
            out = in + block * (size_t)rank;
    }
    psd_op made = {.kind = j->kind,
                   .dtype = j->dtype,
                   .redop = reduces(j->kind) ? j->redop : (psd_redop)0,
                   .root = j->root,
                   .count = (int64_t)j->count,
                   .in = has_in(j, rank) ? in : NULL,
                   .out = has_out(j, rank) ? out : NULL};
    for (size_t i = 0; has_in(j, rank) && i < j->count * in_blocks(j); i++)
        put(j->dtype, in, i, input_value(j->redop, rank, i));
    for (size_t i = 0; j->kind == PSD_OP_BROADCAST && rank == j->root && i < j->count; i++)
        put(j->dtype, out, i, input_value(j->redop, rank, i));
    *op = made;
    return memory;
}

static void run_job(const job *j)
{
    static lab l;
    psd_op ops[MAX_RANKS];
    void *memory[MAX_RANKS];
    size_t out_bytes = j->count * psd_dtype_bytes(j->dtype) * out_blocks(j);
    for (int32_t r = 0; r < j->size; r++)
        memory[r] = make_buffers(j, r, &ops[r]);
    lab_run(&l, ops, j->size);
    unsigned char *want = malloc(out_bytes + 1);
    for (int32_t r = 0; r < j->size; r++) {
        fill_expected(j, r, want);
        cr_assert(!has_out(j, r) || out_bytes == 0 || memcmp(ops[r].out, want, out_bytes) == 0,
                  "%s %s %s rank %d of %d root %d count %zu%s", psd_op_name(j->kind),
                  psd_dtype_name(j->dtype), psd_redop_name(ops[r].redop), r, j->size, j->root, j->count,
                  j->in_place ? " in place" : "");
        free(memory[r]);
    }
    free(want);
}

static size_t pick_count(void)
{
    static const size_t counts[] = {0, 1, 2, 7, 33, 1000, 1023, 4097, 20011};
    return counts[next_random() % 9];
}

static void run_kind(psd_op_kind kind, psd_dtype dtype, psd_redop redop)
{
    for (int32_t size = 1; size <= MAX_RANKS; size++) {
        job j = {kind, dtype, redop, (int32_t)(next_random() % (uint64_t)size), size, pick_count(), false};
        bool may_be_in_place = kind != PSD_OP_ALL_TO_ALL;
        run_job(&j);
        j.count = pick_count();
        j.in_place = may_be_in_place && kind != PSD_OP_BROADCAST;
        run_job(&j);
    }
}

PSD_TEST(coll, movement_of_every_dtype)
{
    static const psd_op_kind kinds[] = {PSD_OP_BROADCAST, PSD_OP_SCATTER, PSD_OP_GATHER, PSD_OP_ALL_GATHER,
                                        PSD_OP_ALL_TO_ALL};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int dtype = PSD_I8; psd_dtype_valid(dtype); dtype++)
            run_kind(kinds[k], (psd_dtype)dtype, PSD_SUM);
    }
}

PSD_TEST(coll, reductions_of_every_dtype_and_redop)
{
    static const psd_op_kind kinds[] = {PSD_OP_ALL_REDUCE, PSD_OP_REDUCE, PSD_OP_REDUCE_SCATTER};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int dtype = PSD_I8; psd_dtype_valid(dtype); dtype++) {
            for (int redop = PSD_SUM; psd_redop_valid(redop); redop++) {
                if (psd_redop_allowed((psd_redop)redop, (psd_dtype)dtype))
                    run_kind(kinds[k], (psd_dtype)dtype, (psd_redop)redop);
            }
        }
    }
}

PSD_TEST(coll, every_root_in_every_size)
{
    static const psd_op_kind kinds[] = {PSD_OP_BROADCAST, PSD_OP_REDUCE, PSD_OP_SCATTER, PSD_OP_GATHER};
    static const size_t counts[] = {0, 5, 3001};
    for (int32_t size = 1; size <= MAX_RANKS; size++) {
        for (int32_t root = 0; root < size; root++) {
            for (size_t k = 0; k < 12; k++) {
                job j = {kinds[k % 4], PSD_F32, PSD_SUM, root, size, counts[k / 4], false};
                run_job(&j);
            }
        }
    }
}

PSD_TEST(coll, many_chunks_in_place_and_out)
{
    static const psd_op_kind kinds[] = {PSD_OP_ALL_REDUCE, PSD_OP_REDUCE, PSD_OP_REDUCE_SCATTER,
                                        PSD_OP_BROADCAST};
    static const int32_t sizes[] = {2, 3, 8};
    for (size_t k = 0; k < 24; k++) {
        size_t count = kinds[k % 4] == PSD_OP_REDUCE_SCATTER ? 150001 : 700001;
        job j = {kinds[k % 4], PSD_F32, PSD_SUM, 1, sizes[k / 4 % 3], count, k >= 12 && k % 4 != 3};
        run_job(&j);
    }
}

/* Splits of an all_to_all_v: what rank i sends to rank j, some nothing. */
static int64_t split(int32_t from, int32_t to)
{
    return (from * 5 + to * 3) % 4 == 0 ? 0 : from * 100 + to * 31 + 1;
}

static int64_t fill_splits(int32_t rank, int32_t size, int64_t *in_splits, int64_t *out_splits)
{
    int64_t sent = 0, received = 0;
    for (int32_t i = 0; i < size; i++) {
        sent += in_splits[i] = split(rank, i);
        received += out_splits[i] = split(i, rank);
    }
    return sent > received ? sent : received;
}

PSD_TEST(coll, all_to_all_v)
{
    static lab l;
    for (int32_t size = 1; size <= MAX_RANKS; size++) {
        psd_op ops[MAX_RANKS];
        int64_t in_splits[MAX_RANKS][MAX_RANKS], out_splits[MAX_RANKS][MAX_RANKS];
        int32_t *in[MAX_RANKS], *out[MAX_RANKS];
        for (int32_t r = 0; r < size; r++) {
            size_t most = (size_t)fill_splits(r, size, in_splits[r], out_splits[r]), at = 0;
            in[r] = calloc(most + 1, sizeof(int32_t));
            out[r] = calloc(most + 1, sizeof(int32_t));
            for (int32_t to = 0; to < size; to++) {
                for (int64_t i = 0; i < in_splits[r][to]; i++)
                    in[r][at++] = r * 1000000 + to * 10000 + (int32_t)i;
            }
            psd_op op = {.kind = PSD_OP_ALL_TO_ALL_V,
                         .dtype = PSD_I32,
                         .root = -1,
                         .in = in[r],
                         .out = out[r],
                         .in_splits = in_splits[r],
                         .out_splits = out_splits[r]};
            ops[r] = op;
        }
        lab_run(&l, ops, size);
        for (int32_t r = 0; r < size; r++) {
            size_t at = 0;
            for (int32_t from = 0; from < size; from++) {
                for (int64_t i = 0; i < out_splits[r][from]; i++)
                    cr_assert_eq(out[r][at++], from * 1000000 + r * 10000 + (int32_t)i);
            }
            free(in[r]);
            free(out[r]);
        }
    }
}

/* Floats whose sums round: every rank has the bits of a plain loop in rank order, whole or in chunks. */
PSD_TEST(coll, all_ranks_have_the_bits_of_the_rank_order_sum)
{
    static const size_t counts[] = {3, 1777, 300007};
    static lab l;
    for (int32_t size = 2; size <= MAX_RANKS; size++) {
        size_t count = counts[size % 3];
        psd_op ops[MAX_RANKS];
        float *data[MAX_RANKS], *want = malloc(count * sizeof *want);
        for (int32_t r = 0; r < size; r++) {
            data[r] = malloc(count * sizeof **data);
            for (size_t i = 0; i < count; i++) {
                data[r][i] = (float)(int64_t)(next_random() % 2000001) / 3e5f - 3.0f;
                want[i] = r == 0 ? data[r][i] : want[i] + data[r][i];
            }
            psd_op op = {.kind = PSD_OP_ALL_REDUCE,
                         .dtype = PSD_F32,
                         .redop = PSD_SUM,
                         .root = -1,
                         .count = (int64_t)count,
                         .in = data[r],
                         .out = data[r]};
            ops[r] = op;
        }
        lab_run(&l, ops, size);
        for (int32_t r = 0; r < size; r++) {
            cr_assert_eq(memcmp(data[r], want, count * sizeof *want), 0, "rank %d of %d", r, size);
            free(data[r]);
        }
        free(want);
    }
}

/* A barrier: nobody leaves before everybody has entered. Ranks enter one after the other. */
PSD_TEST(coll, barrier_holds_until_the_last_enters)
{
    always_eager = true;
    for (int32_t size = 2; size <= MAX_RANKS; size++) {
        static lab l;
        psd_op ops[MAX_RANKS];
        for (int32_t r = 0; r < size; r++)
            ops[r] = (psd_op){.kind = PSD_OP_BARRIER, .root = -1};
        int32_t late = (int32_t)(next_random() % (uint64_t)size);
        lab_begin(&l, ops, size);
        for (int32_t round = 0; round < 4 * size; round++) {
            for (int32_t a = 0; a < size; a++) {
                for (int32_t b = 0; b < size; b++)
                    (void)(a != late && b != late && deliver(&l, a, b));
                (void)(a != late && advance(&l, a));
            }
        }
        for (int32_t r = 0; r < size; r++)
            cr_assert(!l.ranks[r].finished, "rank %d left without rank %d", r, late);
        for (int32_t round = 0; round < 8 * size; round++) {
            for (int32_t a = 0; a < size; a++) {
                for (int32_t b = 0; b < size; b++)
                    (void)deliver(&l, a, b);
                (void)advance(&l, a);
            }
        }
        for (int32_t r = 0; r < size; r++)
            cr_assert(l.ranks[r].finished);
        lab_end(&l);
    }
}

/* What makes the large schedules fast: nobody sends more than it must. */
PSD_TEST(coll, large_operations_move_little)
{
    static lab l;
    enum { SIZE = 4, COUNT = 400000 };
    static float data[SIZE][COUNT];
    psd_op ops[SIZE];
    for (int32_t r = 0; r < SIZE; r++)
        ops[r] =
            (psd_op){.kind = PSD_OP_BROADCAST, .dtype = PSD_F32, .root = 2, .count = COUNT, .out = data[r]};
    lab_run(&l, ops, SIZE);
    for (int32_t r = 0; r < SIZE; r++)
        cr_assert_leq(l.moved[r], sizeof data[r]);
    for (int32_t r = 0; r < SIZE; r++)
        ops[r] = (psd_op){.kind = PSD_OP_ALL_REDUCE,
                          .dtype = PSD_F32,
                          .redop = PSD_MAX,
                          .root = -1,
                          .count = COUNT,
                          .in = data[r],
                          .out = data[r]};
    lab_run(&l, ops, SIZE);
    for (int32_t r = 0; r < SIZE; r++)
        cr_assert_eq(l.moved[r], sizeof data[r] / SIZE * (SIZE - 1) * 2);
}

PSD_TEST(coll, scratch_is_bounded)
{
    psd_op op = {
        .kind = PSD_OP_ALL_REDUCE, .dtype = PSD_F64, .redop = PSD_SUM, .root = -1, .count = INT64_C(1) << 40};
    for (int32_t size = 2; size <= 1000; size += 37)
        cr_assert_leq(coll_scratch_bytes(&op, size), ((size_t)1 << 20) + (size_t)size * (20 << 10));
    op.kind = PSD_OP_ALL_GATHER;
    cr_assert_eq(coll_scratch_bytes(&op, 8), 0);
}
