/* What the ranks of a collective must agree on, and how their disagreement is told: the same for all backends. */
#ifndef PSD_FINGERPRINT_H
#define PSD_FINGERPRINT_H

#include "worker/backend/backend.h"

/* The counts of all_to_all_v are compared message by message: 0 here. */
typedef struct fingerprint {
    uint8_t kind;
    uint8_t dtype;
    uint8_t redop;
    int32_t root;
    int64_t count;
} fingerprint;

/* What one rank called; the label may be NULL. */
typedef struct fingerprint_call {
    int32_t rank;
    const fingerprint *what;
    const char *label;
} fingerprint_call;

fingerprint fingerprint_of(const psd_op *op);
bool fingerprint_equal(const fingerprint *a, const fingerprint *b);
/* "all_reduce f32 count 100 sum", with the label in brackets if there is one. */
void fingerprint_format(const fingerprint *fp, const char *label, char *out, size_t bytes);
/* "group 1 collective 3: rank 0 called ..., rank 1 called ...": the lower rank first, so that both sides write the same
 * text. */
void fingerprint_format_mismatch(uint32_t group, uint64_t ordinal, fingerprint_call a, fingerprint_call b,
                                 char *out, size_t bytes);
/* They called one whose memory here is gone; `next` is the ordinal that this rank comes to. */
void fingerprint_format_long_ago(uint32_t group, uint64_t ordinal, fingerprint_call theirs, int32_t rank,
                                 uint64_t next, char *out, size_t bytes);

#endif
