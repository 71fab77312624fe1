/* The reshard compiler: puts its parts together, and chooses between sending directly and forwarding. */
#include "server/core/reshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/reshard_emit.h"

/* With forwarding, filling and draining the chains takes 1/PERIODS_PER_HOP of the time. */
#define PERIODS_PER_HOP 64
/* Forwarding waits for its slices: unless asked for, it must gain a tenth, and on a load that takes a while. */
#define LEAST_GAIN      10
#define LEAST_LOAD      (INT64_C(1) << 20)
#define LARGEST_MESSAGE (INT64_C(64) << 20) /* larger ones are cut, so that progress is seen */
#define SMALLEST_SLICE  (INT64_C(64) << 10) /* bytes of the busiest rank in one period */

void reshard_plan_free(reshard_plan *plan)
{
    free(plan->atoms);
    free(plan->messages);
    free(plan->pieces);
    memset(plan, 0, sizeof *plan);
}

/* ------------------------------------------------------------------------------------------------- forwarding */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static psd_status try_chains(const reshard_atoms *atoms, uint32_t longest, reshard_lanes *lanes,
                             int64_t *load, const reshard_why *why)
{
    int64_t sends = 0, receives = 0;
    psd_status status = reshard_lanes_make(atoms, longest, lanes, why);
    if (status != PSD_OK)
        return status;
    status = reshard_flows_load(atoms, lanes, &sends, &receives, why);
    *load = larger(sends, receives);
    if (status != PSD_OK)
        free(lanes->lanes);
    return status;
}

static uint32_t most_receivers(const reshard_atoms *atoms)
{
    uint32_t most = 1;
    for (uint64_t b = 0; b < atoms->bundle_count; b++) {
        uint32_t count = atoms->sets[atoms->bundles[b].receivers].count;
        most = count > most ? count : most;
    }
    return most;
}

/* The shortest chains whose load is within 1% of that of the longest. */
static psd_status choose_chains(const reshard_atoms *atoms, reshard_lanes *lanes, int64_t best, uint32_t most,
                                const reshard_why *why)
{
    for (uint32_t longest = 2; longest < most; longest++) {
        int64_t load = 0;
        psd_status status = try_chains(atoms, longest, lanes, &load, why);
        if (status != PSD_OK || load - best <= best / 100)
            return status;
        free(lanes->lanes);
        longest += longest / 4;
    }
    int64_t load = 0;
    return try_chains(atoms, most, lanes, &load, why);
}

/* Chooses the lanes, and in how many slices they go. */
static psd_status choose_lanes(const reshard_atoms *atoms, reshard_forwarding forwarding,
                               reshard_lanes *lanes, uint32_t *periods, const reshard_why *why)
{
    int64_t direct = 0, best = 0;
    uint32_t most = most_receivers(atoms);
    *periods = 1;
    psd_status status = try_chains(atoms, 1, lanes, &direct, why);
    if (status != PSD_OK || forwarding == RESHARD_DIRECT || most == 1)
        return status;
    reshard_lanes chained = {0};
    status = try_chains(atoms, most, &chained, &best, why);
    free(status == PSD_OK ? chained.lanes : NULL);
    if (status == PSD_OK && forwarding == RESHARD_AUTO &&
        (direct < LEAST_LOAD || direct - best < direct / LEAST_GAIN))
        return PSD_OK;
    if (status == PSD_OK)
        status = choose_chains(atoms, &chained, best, most, why);
    free(lanes->lanes);
    if (status != PSD_OK)
        return status;
    *lanes = chained;
    int64_t wanted = (int64_t)PERIODS_PER_HOP * (lanes->longest - 1);
    int64_t possible = best / SMALLEST_SLICE + 1;
    *periods = (uint32_t)(wanted < possible ? wanted : possible);
    return PSD_OK;
}

/* Rounds and messages for the flows' quantum. */
static psd_status schedule(const reshard_input *input, const reshard_atoms *atoms, const reshard_lanes *lanes,
                           const reshard_flows *flows, reshard_plan *out, const reshard_why *why)
{
    reshard_rounds rounds = {0};
    reshard_plan plan = {0};
    psd_status status = reshard_rounds_make(flows->matrix, flows->pair_count, atoms->ranks,
                                            larger(LARGEST_MESSAGE / flows->quantum, 1), &rounds, why);
    if (status != PSD_OK)
        return status;
    status = reshard_emit(input, atoms, lanes, flows, &rounds, &plan, why);
    free(rounds.shares);
    if (status == PSD_OK)
        *out = plan;
    else
        reshard_plan_free(&plan);
    return status;
}

/* Where a quantum is not small against an element, none is best for all: each element size is tried as well. */
static psd_status schedule_best(const reshard_input *input, const reshard_atoms *atoms,
                                const reshard_lanes *lanes, reshard_flows *flows, reshard_plan *out,
                                const reshard_why *why)
{
    reshard_plan best = {0};
    psd_status status = schedule(input, atoms, lanes, flows, &best, why);
    for (int64_t quantum = 2;
         status == PSD_OK && flows->quantum < 2 * atoms->align && quantum <= atoms->align; quantum *= 2) {
        reshard_plan plan = {0};
        reshard_flows_quantize(flows, quantum);
        status = schedule(input, atoms, lanes, flows, &plan, why);
        if (status == PSD_OK && plan.round_time < best.round_time) {
            reshard_plan_free(&best);
            best = plan;
        } else {
            reshard_plan_free(&plan);
        }
    }
    if (status == PSD_OK)
        *out = best;
    else
        reshard_plan_free(&best);
    return status;
}

psd_status reshard_compile(const reshard_input *input, reshard_forwarding forwarding, reshard_plan *out,
                           char *why, size_t why_bytes)
{
    const reshard_why reason = {why, why_bytes};
    reshard_atoms atoms = {0};
    reshard_lanes lanes = {0};
    reshard_flows flows = {0};
    reshard_plan plan = {0};
    uint32_t periods = 1;
    psd_status status = reshard_atoms_make(input, &atoms, &reason);
    if (status != PSD_OK)
        return status;
    status = choose_lanes(&atoms, forwarding, &lanes, &periods, &reason);
    if (status != PSD_OK)
        goto free_atoms;
    status = reshard_flows_make(&atoms, &lanes, periods, &flows, &reason);
    if (status != PSD_OK)
        goto free_lanes;
    status = schedule_best(input, &atoms, &lanes, &flows, &plan, &reason);
    if (status == PSD_OK) {
        plan.atoms = atoms.atoms;
        plan.atom_count = atoms.atom_count;
        atoms.atoms = NULL;
        *out = plan;
    }
    reshard_flows_free(&flows);
free_lanes:
    free(lanes.lanes);
free_atoms:
    reshard_atoms_free(&atoms);
    return status;
}
