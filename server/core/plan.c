/* The plan compiler: pure, for a helper thread, needs no core. */
#include <stdlib.h>

#include "common/tensor.h"
#include "server/core/core.h"

#include <stdio.h>

#define LARGEST_STEP (UINT64_C(8) << 20) /* bytes; larger transfers are cut, so that progress is seen */
#define MOST_ROUNDS  UINT64_C(1024)
#define MOST_STEPS   (UINT64_C(1) << 20)

/* The largest piece of a tensor that one step moves: whole elements, and few enough pieces. */
static uint64_t piece_bytes(uint64_t tensor_bytes, uint64_t element, uint64_t ranks)
{
    uint64_t rounds = MOST_STEPS / ranks;
    if (rounds > MOST_ROUNDS)
        rounds = MOST_ROUNDS;
    if (rounds == 0)
        rounds = 1;
    uint64_t piece = LARGEST_STEP;
    if (tensor_bytes / piece >= rounds)
        piece = tensor_bytes / rounds + 1;
    return (piece + element - 1) / element * element;
}

static psd_status inputs_valid(const psd_plan_inputs *in, char *text, size_t text_bytes)
{
    if (in->kind != PSD_PLAN_RING_SHIFT) {
        (void)snprintf(text, text_bytes, "there is no plan of kind %d", (int)in->kind);
        return PSD_ERR_UNSUPPORTED;
    }
    if (in->ranks == 0 || in->ranks > PSD_MAX_WORLD || !psd_dtype_valid((int)in->dtype)) {
        (void)snprintf(text, text_bytes, "a plan needs 1 to %d ranks and a known dtype", PSD_MAX_WORLD);
        return PSD_ERR_INVAL;
    }
    if (in->count < 0 || in->count > INT64_MAX / (int64_t)psd_dtype_bytes(in->dtype)) {
        (void)snprintf(text, text_bytes, "a tensor of %lld elements of %s is not possible",
                       (long long)in->count, psd_dtype_name(in->dtype));
        return PSD_ERR_INVAL;
    }
    return PSD_OK;
}

/* Rank r's whole tensor goes to rank (r + shift) mod n. Every piece is a round of its own, in which each rank
 * sends one message and receives one: no cut of the ring can be faster, as every rank must send and receive
 * its bytes. */
psd_status psd_plan_compile(const psd_plan_inputs *in, psd_plan_steps *out, char *text, size_t text_bytes)
{
    psd_status status = inputs_valid(in, text, text_bytes);
    if (status != PSD_OK)
        return status;
    uint64_t ranks = in->ranks;
    uint64_t bytes = (uint64_t)in->count * psd_dtype_bytes(in->dtype);
    uint64_t piece = piece_bytes(bytes, psd_dtype_bytes(in->dtype), ranks);
    uint64_t rounds = bytes / piece + (bytes % piece != 0);
    int64_t shift = in->shift % (int64_t)ranks;
    if (shift < 0)
        shift += (int64_t)ranks;
    psd_step *steps = malloc((rounds * ranks + 1) * sizeof(*steps));
    if (steps == NULL) {
        (void)snprintf(text, text_bytes, "no memory for a plan of %llu steps",
                       (unsigned long long)rounds * ranks);
        return PSD_ERR_NOMEM;
    }
    uint64_t count = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t offset = round * piece;
        uint64_t length = bytes - offset < piece ? bytes - offset : piece;
        for (uint64_t src = 0; src < ranks; src++)
            steps[count++] = (psd_step){.round = (uint32_t)round,
                                        .src = (uint32_t)src,
                                        .dst = (uint32_t)((src + (uint64_t)shift) % ranks),
                                        .src_offset = offset,
                                        .dst_offset = offset,
                                        .bytes = length};
    }
    *out = (psd_plan_steps){.inputs = *in, .rounds = (uint32_t)rounds, .count = count, .steps = steps};
    return PSD_OK;
}
