#include "proto/wire_field.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/conf.h"

bool psd_read_fail(psd_reader *reader, psd_status status, const char *field, const char *what)
{
    reader->status = status;
    snprintf(reader->why, reader->why_bytes, "%s %s", field, what);
    return false;
}

bool psd_read_range(psd_reader *reader, const char *field, int64_t value, int64_t min, int64_t max)
{
    if (value >= min && value <= max)
        return true;
    reader->status = PSD_ERR_FORMAT;
    snprintf(reader->why, reader->why_bytes, "%s is %" PRId64 ", allowed are %" PRId64 " to %" PRId64, field,
             value, min, max);
    return false;
}

bool psd_read_unsigned(psd_reader *reader, const char *field, uint64_t value, uint64_t max)
{
    if (value <= max)
        return true;
    reader->status = PSD_ERR_FORMAT;
    snprintf(reader->why, reader->why_bytes, "%s is %" PRIu64 ", allowed are 0 to %" PRIu64, field, value,
             max);
    return false;
}

bool psd_read_status(psd_reader *reader, const char *field, int32_t value, psd_status *out)
{
    switch (value) {
#define PSD_X(name, number, text) case number:
        PSD_STATUS_MAP(PSD_X)
#undef PSD_X
        *out = (psd_status)value;
        return true;
    default:
        return psd_read_fail(reader, PSD_ERR_FORMAT, field, "is not a known status");
    }
}

bool psd_read_finite(psd_reader *reader, const char *field, double value, double *out)
{
    if (!isfinite(value))
        return psd_read_fail(reader, PSD_ERR_FORMAT, field, "is not a finite number");
    *out = value;
    return true;
}

bool psd_read_same(psd_reader *reader, const char *field, size_t count, size_t expected)
{
    if (count == expected)
        return true;
    reader->status = PSD_ERR_FORMAT;
    snprintf(reader->why, reader->why_bytes, "%s has %zu entries, expected %zu", field, count, expected);
    return false;
}

bool psd_read_below(psd_reader *reader, const char *field, const uint32_t *values, size_t count,
                    uint32_t limit)
{
    for (size_t i = 0; i < count; i++) {
        if (values[i] >= limit)
            return psd_read_unsigned(reader, field, values[i], limit - 1);
    }
    return true;
}

static bool check_text(psd_reader *reader, const char *field, const uint8_t *data, size_t bytes, size_t limit)
{
    if (bytes >= limit)
        return psd_read_fail(reader, PSD_ERR_FORMAT, field, "is too long");
    if (bytes == 0)
        return true;
    if (memchr(data, 0, bytes) != NULL)
        return psd_read_fail(reader, PSD_ERR_FORMAT, field, "contains a NUL");
    if (!psd_utf8_valid((const char *)data, bytes))
        return psd_read_fail(reader, PSD_ERR_FORMAT, field, "is not UTF-8");
    return true;
}

bool psd_read_text(psd_reader *reader, const char *field, ProtobufCBinaryData in, char *out, size_t out_bytes)
{
    if (!check_text(reader, field, in.data, in.len, out_bytes))
        return false;
    if (in.len > 0)
        memcpy(out, in.data, in.len);
    out[in.len] = '\0';
    return true;
}

bool psd_read_texts(psd_reader *reader, const char *field, ProtobufCBinaryData in, const uint32_t *lengths,
                    size_t count, size_t max_bytes, const char *const **out)
{
    const char **texts = psd_read_array(reader, field, count, sizeof *texts);
    if (texts == NULL)
        return false;
    char *copy = psd_read_array(reader, field, in.len + count, 1);
    if (copy == NULL)
        return false;
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (lengths[i] > in.len - used)
            return psd_read_fail(reader, PSD_ERR_FORMAT, field, "is shorter than its lengths say");
        const uint8_t *text = lengths[i] > 0 ? in.data + used : NULL;
        if (!check_text(reader, field, text, lengths[i], max_bytes))
            return false;
        if (lengths[i] > 0)
            memcpy(copy, text, lengths[i]);
        copy[lengths[i]] = '\0';
        texts[i] = copy;
        copy += (size_t)lengths[i] + 1;
        used += lengths[i];
    }
    if (used != in.len)
        return psd_read_fail(reader, PSD_ERR_FORMAT, field, "is longer than its lengths say");
    *out = texts;
    return true;
}

void *psd_read_array(psd_reader *reader, const char *field, size_t count, size_t bytes)
{
    void *array = psd_arena_array(reader->arena, count, bytes);
    if (array == NULL && reader->arena->over_budget)
        psd_read_fail(reader, PSD_ERR_LIMIT, field, "needs too much memory");
    else if (array == NULL)
        psd_read_fail(reader, PSD_ERR_NOMEM, field, "found no memory");
    return array;
}
