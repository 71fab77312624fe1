/* Small random models and layouts, the same for the same seed. */
#ifndef PSD_TEST_RANDOM_LAYOUT_H
#define PSD_TEST_RANDOM_LAYOUT_H

#include "common/layout.h"

typedef struct random_state {
    uint64_t x;
} random_state;

uint64_t random_next(random_state *s);
int64_t random_below(random_state *s, int64_t n);

/* Up to 6 tensors of up to 3 dimensions of up to 9 elements: all element sizes, scalars and empty ones among them. */
void random_model(random_state *s, psd_model *out);
/* A mesh of up to 3 axes and at most 12 ranks; each tensor has a rule of its own. */
void random_layout(random_state *s, const psd_model *model, const char *group, int32_t first_rank,
                   psd_layout *out);

#endif
