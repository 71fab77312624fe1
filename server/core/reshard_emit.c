/* From rounds to messages and their pieces. */
#include "server/core/reshard_emit.h"

#include <stdlib.h>

#include "common/tensor.h"

/* How far a pair's bytes of the period have gone. */
typedef struct cursor {
    uint32_t hop;   /* next, from the pair's first */
    int64_t inside; /* bytes of that hop's slot that are sent */
    int64_t sent;   /* in all */
    int64_t due;    /* by the rounds so far */
} cursor;

typedef struct emitter {
    const reshard_input *input;
    const reshard_atoms *atoms;
    const reshard_lanes *lanes;
    const reshard_flows *flows;
    reshard_plan *plan;
    cursor *cursors; /* by pair */
    int64_t *sent;   /* by rank */
    int64_t *received;
    uint64_t message_capacity;
    uint64_t piece_capacity;
    uint32_t period;
    const traffic *pair; /* being sent */
    int64_t pair_bytes;  /* in this round */
    bool open;           /* the last message is of this pair and round */
} emitter;

static bool open_message(emitter *e, bool forwards)
{
    reshard_plan *p = e->plan;
    if (e->open && p->messages[p->message_count - 1].forwards == forwards)
        return true;
    void *grown = reshard_room(p->messages, p->message_count, &e->message_capacity, sizeof *p->messages);
    if (grown == NULL)
        return false;
    p->messages = grown;
    p->messages[p->message_count++] = (reshard_message){.round = p->rounds,
                                                        .src = e->pair->src,
                                                        .dst = e->pair->dst,
                                                        .forwards = forwards,
                                                        .first_piece = p->piece_count};
    p->forwards = p->forwards || forwards;
    e->open = true;
    return true;
}

static bool add_piece(emitter *e, const class_cell *cell, uint32_t tensor, int64_t lo, int64_t hi)
{
    reshard_plan *p = e->plan;
    int64_t item = (int64_t)psd_dtype_bytes(e->input->model->tensors[tensor].dtype);
    void *grown = reshard_room(p->pieces, p->piece_count, &e->piece_capacity, sizeof *p->pieces);
    if (grown == NULL)
        return false;
    p->pieces = grown;
    p->pieces[p->piece_count++] = (reshard_piece){tensor, cell->atom, lo / item, hi / item};
    reshard_message *m = &p->messages[p->message_count - 1];
    m->piece_count++;
    m->bytes += hi - lo;
    e->pair_bytes += hi - lo;
    return true;
}

/* The cell in which byte `at` of the bundle's stream lies. */
static uint32_t find_cell(const reshard_atoms *atoms, const bundle *b, int64_t at)
{
    uint32_t lo = b->first_cell, hi = b->first_cell + b->cell_count;
    while (hi - lo > 1) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (atoms->cells[middle].offset <= at)
            lo = middle;
        else
            hi = middle;
    }
    return lo;
}

/* Bytes [lo, hi) of a bundle's stream as pieces. */
static bool add_stream(emitter *e, const bundle *b, int64_t lo, int64_t hi, bool forwards)
{
    if (lo >= hi)
        return true;
    if (!open_message(e, forwards))
        return false;
    for (uint32_t c = find_cell(e->atoms, b, lo); lo < hi; c++) {
        const class_cell *cell = &e->atoms->cells[c];
        const tensor_class *class = &e->atoms->classes[cell->class_index];
        int64_t member = (lo - cell->offset) / cell->bytes;
        for (; member < class->member_count && lo < hi; member++) {
            int64_t start = cell->offset + member * cell->bytes;
            int64_t end = start + cell->bytes < hi ? start + cell->bytes : hi;
            if (!add_piece(e, cell, e->atoms->members[class->first_member + (uint32_t)member], lo - start,
                           end - start))
                return false;
            lo = end;
        }
    }
    return true;
}

/* Where a hop's slot of this period begins in its bundle's stream; false: nothing goes in this period. */
static bool slot_start(const emitter *e, const hop *h, int64_t *start)
{
    if (e->period < h->index || e->period - h->index >= e->flows->periods)
        return false;
    *start = e->lanes->lanes[h->lane].lo + (int64_t)(e->period - h->index) * h->slot;
    return *start < e->lanes->lanes[h->lane].hi;
}

/* A cut into a slot at `at`, moved back to where an element begins. */
static int64_t cut_between_elements(const emitter *e, const hop *h, int64_t at)
{
    int64_t start = 0;
    const lane *l = &e->lanes->lanes[h->lane];
    if (!slot_start(e, h, &start) || start + at >= l->hi)
        return at;
    const class_cell *cell = &e->atoms->cells[find_cell(e->atoms, &e->atoms->bundles[l->bundle], start + at)];
    const tensor_class *class = &e->atoms->classes[cell->class_index];
    int64_t item = (int64_t)psd_dtype_bytes(e->input->model->tensors[class->tensor].dtype);
    return at - (start + at - cell->offset) % item;
}

/* Bytes [from, to) of a hop's slot. */
static bool add_slot(emitter *e, const hop *h, int64_t from, int64_t to)
{
    int64_t start = 0;
    const lane *l = &e->lanes->lanes[h->lane];
    if (!slot_start(e, h, &start))
        return true;
    int64_t end = start + to < l->hi ? start + to : l->hi;
    return add_stream(e, &e->atoms->bundles[l->bundle], start + from, end, h->index > 0);
}

static bool send_share(emitter *e, const share_of_round *share)
{
    const pair_traffic *pair = &e->flows->pairs[share->traffic];
    cursor *at = &e->cursors[share->traffic];
    e->pair = &e->flows->matrix[share->traffic];
    e->open = false;
    e->pair_bytes = 0;
    at->due += share->units * e->flows->quantum;
    while (at->hop < pair->hop_count) {
        const hop *h = &e->flows->hops[pair->first_hop + at->hop];
        int64_t to = at->inside + at->due - at->sent;
        to = to < h->slot ? cut_between_elements(e, h, to) : h->slot;
        if (to <= at->inside)
            break;
        if (!add_slot(e, h, at->inside, to))
            return false;
        at->sent += to - at->inside;
        at->inside = to;
        if (at->inside < h->slot)
            break;
        at->hop++;
        at->inside = 0;
    }
    e->sent[e->pair->src] += e->pair_bytes;
    e->received[e->pair->dst] += e->pair_bytes;
    return true;
}

/* Rounds in which nothing was left to send are not counted. */
static bool send_period(emitter *e, const reshard_rounds *rounds)
{
    for (uint32_t i = 0; i < e->flows->pair_count; i++)
        e->cursors[i] = (cursor){0};
    for (uint64_t i = 0; i < rounds->count;) {
        uint32_t round = rounds->shares[i].round;
        int64_t longest = 0;
        for (; i < rounds->count && rounds->shares[i].round == round; i++) {
            if (!send_share(e, &rounds->shares[i]))
                return false;
            longest = e->pair_bytes > longest ? e->pair_bytes : longest;
        }
        e->plan->round_time += longest;
        e->plan->rounds += longest > 0;
    }
    return true;
}

static void find_busiest(const emitter *e)
{
    reshard_plan *p = e->plan;
    p->busiest = -1;
    for (int32_t r = 0; r < e->atoms->ranks; r++) {
        p->bytes += e->sent[r];
        for (int sends = 1; sends >= 0; sends--) {
            int64_t load = sends ? e->sent[r] : e->received[r];
            if (load > p->load) {
                p->load = load;
                p->busiest = r;
                p->busiest_sends = sends != 0;
            }
        }
    }
}

psd_status reshard_emit(const reshard_input *input, const reshard_atoms *atoms, const reshard_lanes *lanes,
                        const reshard_flows *flows, const reshard_rounds *rounds, reshard_plan *out,
                        const reshard_why *why)
{
    emitter e = {.input = input, .atoms = atoms, .lanes = lanes, .flows = flows, .plan = out};
    e.cursors = calloc((size_t)flows->pair_count + 1, sizeof *e.cursors);
    e.sent = calloc((size_t)atoms->ranks + 1, sizeof *e.sent);
    e.received = calloc((size_t)atoms->ranks + 1, sizeof *e.received);
    bool fine = e.cursors != NULL && e.sent != NULL && e.received != NULL;
    for (e.period = 0; fine && e.period < flows->periods + flows->tail; e.period++)
        fine = send_period(&e, rounds);
    if (fine)
        find_busiest(&e);
    free(e.cursors);
    free(e.sent);
    free(e.received);
    return fine ? PSD_OK : reshard_no_memory(why);
}
