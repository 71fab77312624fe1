/* The planner on pairs of layouts, beside what others do: send from the first holder, let the holders take turns, or
 * broadcast everything to everyone. Loads are ratios to the bound T*.
 *   bench_reshard MODEL PAIR [MODEL PAIR...] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/clock.h"
#include "server/core/reshard_parts.h"
#include "server/model/model.h"

static char text[2048];

typedef struct policies {
    int64_t first;
    int64_t turns;
    int64_t broadcast;
} policies;

static int64_t largest(const int64_t *loads, int32_t ranks, int64_t least)
{
    for (int32_t r = 0; r < ranks; r++)
        least = loads[r] > least ? loads[r] : least;
    return least;
}

/* Each atom of each tensor goes whole to each receiver. */
static psd_status other_policies(const reshard_input *input, int64_t t_in, policies *out)
{
    const reshard_why why = {text, sizeof text};
    reshard_atoms a;
    psd_status status = reshard_atoms_make(input, &a, &why);
    if (status != PSD_OK)
        return status;
    int64_t *first = calloc((size_t)a.ranks, sizeof *first), *turns = calloc((size_t)a.ranks, sizeof *turns);
    uint64_t turn = 0;
    for (uint64_t i = 0; first != NULL && turns != NULL && i < a.cell_count; i++) {
        const bundle *b = &a.bundles[a.cells[i].bundle];
        const rank_set *from = &a.sets[b->holders], *to = &a.sets[b->receivers];
        uint64_t deliveries = (uint64_t)a.classes[a.cells[i].class_index].member_count * to->count;
        first[a.set_ranks[from->first]] += (int64_t)deliveries * a.cells[i].bytes;
        for (uint64_t k = 0; k < deliveries; k++)
            turns[a.set_ranks[from->first + turn++ % from->count]] += a.cells[i].bytes;
    }
    if (first == NULL || turns == NULL)
        status = reshard_no_memory(&why);
    else
        *out = (policies){largest(first, a.ranks, t_in), largest(turns, a.ranks, t_in), input->model->bytes};
    free(first);
    free(turns);
    reshard_atoms_free(&a);
    return status;
}

static double ratio(int64_t load, int64_t bound)
{
    return bound == 0 ? 1 : (double)load / (double)bound;
}

static void print_row(const char *name, const reshard_input *input, const reshard_plan *plan,
                      const reshard_bounds *bounds, const policies *others, double seconds)
{
    int64_t t_star = reshard_t_star(bounds, plan->forwards);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("| %s | %d-%d | %.3g | %.4f | %.4f | %u | %.3f | %ld | %s | %.2f | %.2f | %.2f |\n", name,
           input->src->ranks, input->dst->ranks, (double)t_star / 1e9, ratio(plan->load, t_star),
           ratio(plan->round_time, t_star), plan->rounds, seconds, usage.ru_maxrss / 1024,
           plan->forwards ? "yes" : "no", ratio(others->first, t_star), ratio(others->turns, t_star),
           ratio(others->broadcast, t_star));
}

static psd_status measure(const reshard_input *input, const char *name)
{
    reshard_plan plan = {0};
    reshard_bounds bounds = {0};
    policies others = {0};
    psd_time_ns begun = psd_now_ns();
    psd_status status = reshard_compile(input, RESHARD_AUTO, &plan, text, sizeof text);
    double seconds = (double)(psd_now_ns() - begun) / 1e9;
    if (status == PSD_OK)
        status = reshard_check(input, &plan, text, sizeof text);
    if (status == PSD_OK)
        status = reshard_bound(input, &bounds, text, sizeof text);
    if (status == PSD_OK)
        status = other_policies(input, bounds.in, &others);
    if (status == PSD_OK)
        print_row(name, input, &plan, &bounds, &others, seconds);
    reshard_plan_free(&plan);
    reshard_bounds_free(&bounds);
    return status;
}

int main(int argc, char **argv)
{
    const model_why why = {text, sizeof text};
    bool fine = argc > 2;
    puts("| pair | ranks | T* GB | load/T* | rounds/T* | rounds | compiled s | peak MB | forwards | first "
         "holder | turns | "
         "broadcast |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (int i = 1; i + 1 < argc; i += 2) {
        psd_model model = {0};
        model_pair pair = {0};
        psd_status status = model_read(argv[i], &model, &why);
        if (status == PSD_OK)
            status = model_read_pair(argv[i + 1], &pair, &why);
        const reshard_input input = {&model, &pair.src, &pair.dst};
        if (status == PSD_OK)
            status = measure(&input, pair.name);
        if (status != PSD_OK)
            fprintf(stderr, "bench_reshard: %s\n", text);
        fine = fine && status == PSD_OK;
        model_pair_free(&pair);
        psd_model_free(&model);
    }
    return fine ? 0 : 1;
}
