/* Internal to proto/: checks of decoded fields. Each returns false after writing the reason into the reader.
 */
#ifndef PSD_PROTO_WIRE_FIELD_H
#define PSD_PROTO_WIRE_FIELD_H

#include "proto/wire_body.h"

typedef struct psd_reader {
    psd_arena *arena;
    psd_status status; /* of the first failure */
    char *why;
    size_t why_bytes;
} psd_reader;

/* Field names are written "hello.rank". */
bool psd_read_fail(psd_reader *reader, psd_status status, const char *field, const char *what);
bool psd_read_range(psd_reader *reader, const char *field, int64_t value, int64_t min, int64_t max);
bool psd_read_unsigned(psd_reader *reader, const char *field, uint64_t value, uint64_t max);
bool psd_read_status(psd_reader *reader, const char *field, int32_t value, psd_status *out);
bool psd_read_finite(psd_reader *reader, const char *field, double value, double *out);
/* Both counts must be equal. */
bool psd_read_same(psd_reader *reader, const char *field, size_t count, size_t expected);
/* Every value below `limit`. */
bool psd_read_below(psd_reader *reader, const char *field, const uint32_t *values, size_t count,
                    uint32_t limit);

/* Text that fits into out_bytes with its NUL. */
bool psd_read_text(psd_reader *reader, const char *field, ProtobufCBinaryData in, char *out,
                   size_t out_bytes);
/* A list of texts, each under max_bytes; the array and the texts lie in the arena. */
bool psd_read_texts(psd_reader *reader, const char *field, ProtobufCBinaryData in, const uint32_t *lengths,
                    size_t count, size_t max_bytes, const char *const **out);

/* From the arena; a failure becomes PSD_ERR_LIMIT or PSD_ERR_NOMEM. NULL on failure, never for count 0. */
void *psd_read_array(psd_reader *reader, const char *field, size_t count, size_t bytes);

#endif
