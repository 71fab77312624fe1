/* The reshard planner: plans of random small layouts are proved, within their bounds, and right when run on real bytes;
 * the bounds are those of a search over all sets of ranks; the checker refuses whatever is changed. */
#include "server/core/reshard.h"

#include <stdlib.h>
#include <string.h>

#include "common/map.h"
#include "common/tensor.h"
#include "tests/lib/psd_test.h"
#include "tests/lib/random_layout.h"

enum { MOST_RANKS = 24 };

typedef struct problem {
    psd_model model;
    psd_layout src;
    psd_layout dst;
    reshard_input input;
    int32_t ranks;
} problem;

static void make_problem(random_state *s, problem *p)
{
    random_model(s, &p->model);
    random_layout(s, &p->model, "a", (int32_t)random_below(s, 4), &p->src);
    random_layout(s, &p->model, "b", (int32_t)random_below(s, 13), &p->dst);
    int32_t src_end = p->src.first_rank + p->src.ranks, dst_end = p->dst.first_rank + p->dst.ranks;
    p->ranks = src_end > dst_end ? src_end : dst_end;
    p->input = (reshard_input){&p->model, &p->src, &p->dst};
}

static void free_problem(problem *p)
{
    psd_model_free(&p->model);
    psd_layout_free(&p->src);
    psd_layout_free(&p->dst);
}

/* ------------------------------------------------------------------------------------------- running a plan */

/* A rank's shard of one tensor, or of none. */
typedef struct shard {
    psd_box box;
    uint8_t *data; /* NULL: none */
} shard;

static int64_t volume(const psd_box *box, int32_t ndim)
{
    int64_t n = 1;
    for (int32_t d = 0; d < ndim; d++)
        n *= box->hi[d] - box->lo[d];
    return n;
}

/* Element `i` of a box, in row-major order. */
static void element(const psd_box *box, int32_t ndim, int64_t i, int64_t *point)
{
    for (int32_t d = ndim - 1; d >= 0; d--) {
        point[d] = box->lo[d] + i % (box->hi[d] - box->lo[d]);
        i /= box->hi[d] - box->lo[d];
    }
}

/* Where a point is in a shard, in elements; -1: it is not there. */
static int64_t place_in(const shard *s, int32_t ndim, const int64_t *point)
{
    int64_t at = 0;
    for (int32_t d = 0; d < ndim; d++) {
        if (point[d] < s->box.lo[d] || point[d] >= s->box.hi[d])
            return -1;
        at = at * (s->box.hi[d] - s->box.lo[d]) + point[d] - s->box.lo[d];
    }
    return s->data == NULL ? -1 : at;
}

/* What byte `b` of a point of tensor t is. */
static uint8_t truth(uint32_t t, const int64_t *point, int32_t ndim, int64_t b)
{
    uint64_t x = t + 1;
    for (int32_t d = 0; d < ndim; d++)
        x = psd_hash_u64(x * 31 + (uint64_t)point[d]);
    return (uint8_t)(psd_hash_u64(x + (uint64_t)b) | 1); /* never 0, which stands for "not there yet" */
}

static shard make_shard(const psd_layout *layout, const psd_model_tensor *tensor, uint32_t t, int32_t rank,
                        bool fill)
{
    shard s = {0};
    psd_place place[PSD_LAYOUT_AXES];
    char why[512];
    cr_assert(psd_layout_place(layout, tensor, place, why, sizeof why), "%s", why);
    if (!psd_layout_box(layout, place, tensor, rank, &s.box))
        return s;
    int64_t count = volume(&s.box, tensor->ndim), item = (int64_t)psd_dtype_bytes(tensor->dtype);
    s.data = calloc((size_t)(count * item), 1);
    for (int64_t i = 0; i < count && fill; i++) {
        int64_t point[PSD_MAX_DIMS];
        element(&s.box, tensor->ndim, i, point);
        for (int64_t b = 0; b < item; b++)
            s.data[i * item + b] = truth(t, point, tensor->ndim, b);
    }
    return s;
}

/* Copies one piece; every byte of it must be there to be read, and missing where it is written. */
static void run_piece(const problem *p, const reshard_plan *plan, const reshard_message *m,
                      const reshard_piece *piece, shard *src, shard *dst)
{
    const psd_model_tensor *tensor = &p->model.tensors[piece->tensor];
    int64_t item = (int64_t)psd_dtype_bytes(tensor->dtype);
    const shard *from = m->forwards ? &dst[piece->tensor * MOST_RANKS + (uint32_t)m->src]
                                    : &src[piece->tensor * MOST_RANKS + (uint32_t)m->src];
    shard *to = &dst[piece->tensor * MOST_RANKS + (uint32_t)m->dst];
    psd_box boxes[RESHARD_MOST_BOXES];
    int count = reshard_piece_boxes(&plan->atoms[piece->atom].box, tensor->ndim, piece->lo, piece->hi, boxes);
    int64_t elements = 0;
    for (int b = 0; b < count; b++) {
        for (int64_t i = 0; i < volume(&boxes[b], tensor->ndim); i++, elements++) {
            int64_t point[PSD_MAX_DIMS];
            element(&boxes[b], tensor->ndim, i, point);
            int64_t x = place_in(from, tensor->ndim, point), y = place_in(to, tensor->ndim, point);
            cr_assert(x >= 0 && y >= 0, "both shards hold the element");
            for (int64_t k = 0; k < item; k++) {
                cr_assert_neq(from->data[x * item + k], 0, "it has arrived before it is sent on");
                cr_assert_eq(to->data[y * item + k], 0, "it arrives once");
                to->data[y * item + k] = from->data[x * item + k];
            }
        }
    }
    cr_assert_eq(elements, piece->hi - piece->lo);
}

/* Messages of one round are as if at once: what is sent on in a round came in an earlier one. */
static void run_plan(const problem *p, const reshard_plan *plan)
{
    shard *src = calloc((size_t)p->model.count * MOST_RANKS, sizeof *src);
    shard *dst = calloc((size_t)p->model.count * MOST_RANKS, sizeof *dst);
    for (uint32_t t = 0; t < p->model.count; t++) {
        for (int32_t r = 0; r < p->ranks; r++) {
            const psd_model_tensor *tensor = &p->model.tensors[t];
            size_t at = t * MOST_RANKS + (size_t)r;
            int64_t item = (int64_t)psd_dtype_bytes(tensor->dtype);
            src[at] = make_shard(&p->src, tensor, t, r, true);
            dst[at] = make_shard(&p->dst, tensor, t, r, false);
            for (int64_t i = 0; dst[at].data != NULL && i < volume(&dst[at].box, tensor->ndim); i++) {
                int64_t point[PSD_MAX_DIMS]; /* what the rank holds is copied at the start */
                element(&dst[at].box, tensor->ndim, i, point);
                int64_t x = place_in(&src[at], tensor->ndim, point);
                if (x >= 0)
                    memcpy(dst[at].data + i * item, src[at].data + x * item, (size_t)item);
            }
        }
    }
    /* Within a round in reverse, so that relying on an earlier message of the same round would be seen. */
    for (uint64_t i = 0; i < plan->message_count;) {
        uint64_t end = i;
        while (end < plan->message_count && plan->messages[end].round == plan->messages[i].round)
            end++;
        for (uint64_t k = end; k-- > i;) {
            const reshard_message *m = &plan->messages[k];
            for (uint64_t n = m->first_piece; n < m->first_piece + m->piece_count; n++)
                run_piece(p, plan, m, &plan->pieces[n], src, dst);
        }
        i = end;
    }
    for (size_t at = 0; at < (size_t)p->model.count * MOST_RANKS; at++) {
        uint32_t t = (uint32_t)(at / MOST_RANKS);
        const psd_model_tensor *tensor = &p->model.tensors[t];
        int64_t item = (int64_t)psd_dtype_bytes(tensor->dtype);
        for (int64_t i = 0; dst[at].data != NULL && i < volume(&dst[at].box, tensor->ndim); i++) {
            int64_t point[PSD_MAX_DIMS];
            element(&dst[at].box, tensor->ndim, i, point);
            for (int64_t b = 0; b < item; b++)
                cr_assert_eq(dst[at].data[i * item + b], truth(t, point, tensor->ndim, b));
        }
        free(src[at].data);
        free(dst[at].data);
    }
    free(src);
    free(dst);
}

/* ----------------------------------------------------------------------------------- bounds by trying everything */

/* For each element, who holds it and who wants it; summed by the set of holders. */
typedef struct brute {
    int64_t in[MOST_RANKS];
    struct {
        uint32_t holders;
        int64_t direct, forward;
    } sets[4096];
    int count;
    int64_t moved, local;
} brute;

static void brute_element(const problem *p, brute *b, const psd_model_tensor *tensor, const int64_t *point)
{
    uint32_t held = 0, wanted = 0;
    int64_t item = (int64_t)psd_dtype_bytes(tensor->dtype);
    psd_place place[PSD_LAYOUT_AXES];
    char why[256];
    const psd_layout *layouts[2] = {&p->src, &p->dst};
    for (int g = 0; g < 2; g++) {
        cr_assert(psd_layout_place(layouts[g], tensor, place, why, sizeof why));
        for (int32_t r = 0; r < p->ranks; r++) {
            shard s = {.data = (uint8_t *)&s};
            if (psd_layout_box(layouts[g], place, tensor, r, &s.box) &&
                place_in(&s, tensor->ndim, point) >= 0)
                *(g == 0 ? &held : &wanted) |= 1u << r;
        }
    }
    uint32_t missing = wanted & ~held;
    if (held == 0)
        return;
    b->local += item * __builtin_popcount(wanted & held);
    b->moved += item * __builtin_popcount(missing);
    for (int32_t r = 0; r < p->ranks; r++)
        b->in[r] += (missing >> r & 1) != 0 ? item : 0;
    int i = 0;
    while (i < b->count && b->sets[i].holders != held)
        i++;
    if (i == b->count)
        b->sets[b->count++].holders = held;
    b->sets[i].direct += item * __builtin_popcount(missing);
    b->sets[i].forward += missing != 0 ? item : 0;
}

static int64_t brute_hall(const problem *p, const brute *b, bool forward)
{
    int64_t most = 0;
    for (uint32_t q = 1; q < 1u << p->ranks; q++) {
        int64_t sum = 0, size = __builtin_popcount(q);
        for (int i = 0; i < b->count; i++) {
            if ((b->sets[i].holders & ~q) == 0)
                sum += forward ? b->sets[i].forward : b->sets[i].direct;
        }
        int64_t ratio = (sum + size - 1) / size;
        most = ratio > most ? ratio : most;
    }
    return most;
}

static void check_bounds(const problem *p, const reshard_bounds *bounds)
{
    brute *b = calloc(1, sizeof *b);
    int64_t in = 0;
    for (uint32_t t = 0; t < p->model.count; t++) {
        const psd_model_tensor *tensor = &p->model.tensors[t];
        psd_box whole = {0};
        memcpy(whole.hi, tensor->shape, sizeof whole.hi);
        for (int64_t i = 0; i < volume(&whole, tensor->ndim); i++) {
            int64_t point[PSD_MAX_DIMS] = {0};
            element(&whole, tensor->ndim, i, point);
            brute_element(p, b, tensor, point);
        }
    }
    for (int32_t r = 0; r < p->ranks; r++)
        in = b->in[r] > in ? b->in[r] : in;
    cr_assert_eq(bounds->in, in);
    cr_assert_eq(bounds->moved, b->moved);
    cr_assert_eq(bounds->local, b->local);
    if (p->ranks <= 14) {
        cr_assert_eq(bounds->out, brute_hall(p, b, false));
        cr_assert_eq(bounds->out_forward, brute_hall(p, b, true));
    }
    free(b);
}

/* ------------------------------------------------------------------------------------------------------- tests */

static int64_t largest_item(const psd_model *model)
{
    int64_t most = 1;
    for (uint32_t t = 0; t < model->count; t++) {
        int64_t item = (int64_t)psd_dtype_bytes(model->tensors[t].dtype);
        most = item > most ? item : most;
    }
    return most;
}

static void check_problem(uint64_t seed)
{
    random_state s = {seed * 1000};
    problem p;
    reshard_bounds bounds;
    char why[1024] = "";
    make_problem(&s, &p);
    psd_status status = reshard_bound(&p.input, &bounds, why, sizeof why);
    cr_assert_eq(status, PSD_OK, "seed %d: %s", (int)seed, why);
    check_bounds(&p, &bounds);
    for (int f = RESHARD_DIRECT; f <= RESHARD_AUTO; f++) {
        reshard_plan plan;
        status = reshard_compile(&p.input, (reshard_forwarding)f, &plan, why, sizeof why);
        cr_assert_eq(status, PSD_OK, "seed %d: %s", (int)seed, why);
        status = reshard_check(&p.input, &plan, why, sizeof why);
        cr_assert_eq(status, PSD_OK, "seed %d: %s", (int)seed, why);
        run_plan(&p, &plan);
        cr_assert_eq(plan.bytes, bounds.moved, "seed %d", (int)seed);
        cr_assert(f == RESHARD_FORWARD || !plan.forwards, "small transfers do not forward by themselves");
        int64_t t_star = reshard_t_star(&bounds, plan.forwards);
        cr_assert_geq(plan.load, t_star, "seed %d: below the bound", (int)seed);
        if (f ==
            RESHARD_DIRECT) /* shares are cut between elements: off by less than one at each of two ends, per set */
            cr_assert_leq(plan.load, t_star + 2 * largest_item(&p.model) * (int64_t)p.model.count, "seed %d",
                          (int)seed);
        reshard_plan_free(&plan);
    }
    reshard_bounds_free(&bounds);
    free_problem(&p);
}

PSD_TEST_WITH(reshard, random_layouts_compile_to_right_plans, .timeout = 300)
{
    for (uint64_t seed = 0; seed < 5000; seed++)
        check_problem(seed);
}

/* ------------------------------------------------------------------------------------------- corrupted plans */

/* Each changes something; false: this plan has nothing of the kind. */
static bool drop_message(reshard_plan *p, random_state *s)
{
    if (p->message_count < 2)
        return false;
    uint64_t at = (uint64_t)random_below(s, (int64_t)p->message_count);
    memmove(p->messages + at, p->messages + at + 1, (p->message_count - at - 1) * sizeof *p->messages);
    p->message_count--;
    return true;
}

static bool change_source(reshard_plan *p, random_state *s)
{
    reshard_message *m = &p->messages[random_below(s, (int64_t)p->message_count)];
    m->src = m->src == 0 ? 1 : m->src - 1;
    return true;
}

static bool change_destination(reshard_plan *p, random_state *s)
{
    reshard_message *m = &p->messages[random_below(s, (int64_t)p->message_count)];
    m->dst = m->dst == 0 ? 1 : m->dst - 1;
    return true;
}

static bool shorten_piece(reshard_plan *p, random_state *s)
{
    reshard_piece *piece = &p->pieces[random_below(s, (int64_t)p->piece_count)];
    piece->hi--;
    return true;
}

static bool shift_piece(reshard_plan *p, random_state *s)
{
    reshard_piece *piece = &p->pieces[random_below(s, (int64_t)p->piece_count)];
    piece->hi++;
    piece->lo++;
    return true;
}

static bool other_tensor(reshard_plan *p, random_state *s)
{
    reshard_piece *piece = &p->pieces[random_below(s, (int64_t)p->piece_count)];
    piece->tensor++;
    return true;
}

static bool claim_less(reshard_plan *p, random_state *s)
{
    (void)s;
    p->load--;
    return true;
}

static bool claim_faster(reshard_plan *p, random_state *s)
{
    (void)s;
    p->round_time--;
    return true;
}

static bool join_rounds(reshard_plan *p, random_state *s)
{
    uint32_t at = 1 + (uint32_t)random_below(s, p->rounds > 1 ? p->rounds - 1 : 1);
    if (p->rounds < 2)
        return false;
    for (uint64_t i = 0; i < p->message_count; i++)
        p->messages[i].round -= p->messages[i].round >= at;
    p->rounds--;
    return true;
}

static bool read_unreceived(reshard_plan *p, random_state *s)
{
    (void)s;
    p->messages[0].forwards = !p->messages[0].forwards; /* in the first round nothing has been received */
    return true;
}

/* Not every change makes every plan wrong: joining two rounds of other ranks, or sending from another holder, may be a
 * plan as good. Such a plan must then also run right. */
PSD_TEST_WITH(reshard, corrupted_plans_are_refused, .timeout = 300)
{
    bool (*const changes[])(reshard_plan *, random_state *) = {
        drop_message, change_source, change_destination, shorten_piece, shift_piece,
        other_tensor, claim_less,    claim_faster,       join_rounds,   read_unreceived,
    };
    enum { CHANGES = sizeof changes / sizeof changes[0] };
    int refused[CHANGES] = {0}, passed[CHANGES] = {0};
    for (uint64_t seed = 0; seed < 600; seed++) {
        random_state s = {seed * 1000 + 7};
        problem p;
        reshard_plan plan;
        char why[1024] = "";
        make_problem(&s, &p);
        psd_status status =
            reshard_compile(&p.input, seed % 2 ? RESHARD_FORWARD : RESHARD_DIRECT, &plan, why, sizeof why);
        cr_assert_eq(status, PSD_OK, "%s", why);
        int which = (int)(seed % CHANGES);
        if (plan.message_count > 0 && changes[which](&plan, &s)) {
            status = reshard_check(&p.input, &plan, why, sizeof why);
            if (status == PSD_OK) {
                run_plan(&p, &plan);
                passed[which]++;
            } else {
                cr_assert_eq(status, PSD_ERR_INTERNAL);
                cr_assert_neq(why[0], '\0');
                refused[which]++;
            }
        }
        reshard_plan_free(&plan);
        free_problem(&p);
    }
    for (int i = 0; i < CHANGES; i++) {
        cr_assert_gt(refused[i], 5, "change %d was refused %d times", i, refused[i]);
        if (changes[i] != change_source && changes[i] != join_rounds && changes[i] != read_unreceived)
            cr_assert_eq(passed[i], 0, "change %d passed %d times", i, passed[i]);
    }
}

PSD_TEST(reshard, pieces_are_cut_into_boxes_that_cover_them_once)
{
    const psd_box box = {{2, 1, 5}, {5, 5, 7}}; /* 3 x 4 x 2 */
    for (int64_t lo = 0; lo < 24; lo++) {
        for (int64_t hi = lo + 1; hi <= 24; hi++) {
            psd_box boxes[RESHARD_MOST_BOXES];
            int count = reshard_piece_boxes(&box, 3, lo, hi, boxes);
            int64_t next = lo;
            cr_assert(count >= 1 && count <= 5);
            for (int b = 0; b < count; b++) {
                for (int64_t i = 0; i < volume(&boxes[b], 3); i++, next++) {
                    int64_t have[3], want[3];
                    element(&boxes[b], 3, i, have);
                    element(&box, 3, next, want);
                    cr_assert_eq(memcmp(have, want, sizeof have), 0, "%d to %d", (int)lo, (int)hi);
                }
            }
            cr_assert_eq(next, hi);
        }
    }
}
