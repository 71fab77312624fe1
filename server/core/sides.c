#include "server/core/sides.h"

#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "common/tensor.h"
#include "server/core/waits_graph.h"

#define CURE_BYTES 320 /* kept for it in an incident's text */
#define NAMED      4   /* suspects named in the cure */

/* --------------------------------------------------------------------------------------------------- rows */

/* A field must not break the row. */
static void append_field(char *out, size_t bytes, const char *text)
{
    char clean[PSD_MAX_NAME];
    (void)snprintf(clean, sizeof clean, "%s", text);
    for (char *at = clean; *at != 0; at++)
        if ((unsigned char)*at < ' ')
            *at = '?';
    psd_append(out, bytes, "\t%s", clean);
}

static bool is_p2p(const psd_op_side *side)
{
    return waits_is_p2p(side->kind);
}

void rows_add(psd_msg_incident *out, const incident_row *row)
{
    char line[512] = "";
    const psd_op_side *s = row->side;
    psd_append(line, sizeof line, "%d\t%s\t%s\t%u\t%lld", s->rank, row->role,
               s->kind != 0 ? psd_op_name((psd_op_kind)s->kind) : "", row->group,
               s->ordinal == UINT64_MAX ? -1LL : (long long)s->ordinal);
    append_field(line, sizeof line, s->name);
    psd_append(line, sizeof line, "\t%d", is_p2p(s) ? s->peer : -1);
    append_field(line, sizeof line, s->site);
    psd_append(line, sizeof line, "\t%lld\t%lld", (long long)row->waiting_ns, (long long)row->waits_for);
    psd_append(line, sizeof line, "\t%s\t%lld\t%d\t%s\n",
               s->dtype != 0 ? psd_dtype_name((psd_dtype)s->dtype) : "",
               s->dtype != 0 ? (long long)s->count : -1LL, is_p2p(s) || s->root < 0 ? -1 : s->root,
               s->redop != 0 ? psd_redop_name((psd_redop)s->redop) : "");
    size_t have = strlen(out->rows);
    if (have + strlen(line) < sizeof out->rows)
        memcpy(out->rows + have, line, strlen(line) + 1);
    else
        out->more++;
}

/* ----------------------------------------------------------------------------------------------- suspects */

static waits_op op_of(const psd_op_side *s)
{
    waits_op o = {.kind = s->kind, .dtype = s->dtype, .redop = s->redop, .root = s->root, .count = s->count};
    if (s->kind == PSD_OP_ALL_TO_ALL_V)
        o.splits = (uint64_t)s->count + 1;
    return o;
}

const char *sides_disagreement(const psd_op_side *a, const psd_op_side *b)
{
    waits_op one = op_of(a), other = op_of(b);
    const char *field = waits_disagreement(&one, &other);
    bool has_parts = a->root < -1 || b->root < -1;
    return field != NULL && strcmp(field, "root") == 0 && has_parts ? "shape" : field;
}

const char *sides_missing(uint8_t kind)
{
    if (waits_is_p2p(kind))
        return kind == PSD_OP_SEND ? "receive" : "send";
    return psd_op_name((psd_op_kind)kind);
}

/* Marks the suspects; their number. */
static uint32_t find_suspects(const psd_op_side *sides, uint32_t count, bool suspect[PSD_INCIDENT_SIDES])
{
    uint32_t votes[PSD_INCIDENT_SIDES] = {0}, most = 0, of_most = 0, found = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < count; k++)
            votes[i] += sides_disagreement(&sides[i], &sides[k]) == NULL;
        most = votes[i] > most ? votes[i] : most;
    }
    for (uint32_t i = 0; i < count; i++)
        of_most += votes[i] == most;
    bool has_majority = count > 2 && of_most == most && most > 1;
    for (uint32_t i = 0; i < count; i++) {
        suspect[i] = !has_majority || votes[i] < most;
        found += suspect[i];
    }
    return found;
}

/* --------------------------------------------------------------------------------------------------- cure */

static void append_value(const psd_op_side *s, const char *field, char *out, size_t bytes)
{
    if (strcmp(field, "kind") == 0)
        psd_append(out, bytes, "%s", psd_op_name((psd_op_kind)s->kind));
    else if (strcmp(field, "dtype") == 0)
        psd_append(out, bytes, "%s", psd_dtype_name((psd_dtype)s->dtype));
    else if (strcmp(field, "redop") == 0)
        psd_append(out, bytes, "%s", psd_redop_name((psd_redop)s->redop));
    else if (strcmp(field, "root") == 0)
        psd_append(out, bytes, "%d", s->root);
    else
        psd_append(out, bytes, "%lld", (long long)s->count);
}

static const char *noun_of(const char *field)
{
    if (strcmp(field, "redop") == 0)
        return "reduction";
    return strcmp(field, "shape") == 0 ? "tensors in the same order" : field;
}

/* "rank 0", "ranks 0, 3 and 2 more" */
static void append_suspects(const psd_op_side *sides, uint32_t count, const bool *suspect, uint32_t found,
                            char *out, size_t bytes)
{
    uint32_t named = 0;
    psd_append(out, bytes, "%s", found == 1 ? "rank" : "ranks");
    for (uint32_t i = 0; i < count && named < NAMED; i++)
        if (suspect[i])
            psd_append(out, bytes, "%s %d", named++ == 0 ? "" : ",", sides[i].rank);
    if (found > named)
        psd_append(out, bytes, " and %u more", found - named);
}

/* " (99 on rank 0, 100 on rank 1)" */
static void append_values(const psd_op_side *a, const psd_op_side *b, const char *field, char *out,
                          size_t bytes)
{
    if (strcmp(field, "shape") == 0)
        return;
    psd_append(out, bytes, " (");
    append_value(a, field, out, bytes);
    psd_append(out, bytes, " on rank %d, ", a->rank);
    append_value(b, field, out, bytes);
    psd_append(out, bytes, " on rank %d)", b->rank);
}

static void append_splits_cure(const psd_op_side *a, const psd_op_side *b, char *out, size_t bytes)
{
    psd_append(out, bytes,
               "make the split that rank %d sends to rank %d equal to the one that rank %d expects of it "
               "(%lld and %lld "
               "now)",
               a->rank, b->rank, b->rank, (long long)a->count, (long long)b->count);
}

/* --------------------------------------------------------------------------------------------------- text */

void sides_append_reason(const char *text, char *out, size_t out_bytes)
{
    size_t have = strlen(out), length = strlen(text);
    size_t room = out_bytes > have + CURE_BYTES ? out_bytes - have - CURE_BYTES : 0;
    if (length > room) {
        length = room;
        while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80)
            length--;
    }
    psd_append(out, out_bytes, "%.*s", (int)length, text);
}

/* Two that disagree, the suspect first: in `a` and `b`; `b` is none where some are not. False: none disagree. */
static bool find_pair(const psd_op_side *sides, uint32_t count, const bool *suspect, uint32_t found,
                      const psd_op_side **a, const psd_op_side **b)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < count; k++)
            if (suspect[i] && (found == count || !suspect[k]) &&
                sides_disagreement(&sides[i], &sides[k]) != NULL) {
                *a = &sides[i];
                *b = &sides[k];
                return true;
            }
    return false;
}

static void write_text(const psd_op_side *sides, uint32_t count, const bool *suspect, uint32_t found,
                       const char *reason, psd_msg_incident *out)
{
    const psd_op_side *a = NULL, *b = NULL;
    size_t bytes = sizeof out->text;
    const char *field = find_pair(sides, count, suspect, found, &a, &b) ? sides_disagreement(a, b) : "order";
    (void)snprintf(out->detail, sizeof out->detail, "%s", field);
    (void)snprintf(out->text, bytes, "mismatch.%s: ", field);
    sides_append_reason(reason, out->text, bytes);
    psd_append(out->text, bytes, "; cure: ");
    if (a == NULL) {
        psd_append(out->text, bytes, "call the same collectives in the same order on all ranks");
        return;
    }
    if (strcmp(field, "splits") == 0) {
        append_splits_cure(a, b, out->text, bytes);
        return;
    }
    bool is_kind = strcmp(field, "kind") == 0;
    if (found == count) {
        const char *who = count > 2 ? "all ranks" : "both ranks";
        if (is_kind)
            psd_append(out->text, bytes, "call the same operation on %s, in the same order", who);
        else
            psd_append(out->text, bytes, "give %s the same %s", who, noun_of(field));
    } else {
        psd_append(out->text, bytes, is_kind ? "call on " : "give ");
        append_suspects(sides, count, suspect, found, out->text, bytes);
        if (is_kind)
            psd_append(out->text, bytes, " what the others call there, or add the missing call before it");
        else
            psd_append(out->text, bytes, " the %s of the others", noun_of(field));
    }
    append_values(a, b, field, out->text, bytes);
}

void sides_write(const psd_op_side *sides, uint32_t count, uint32_t group, const char *reason,
                 psd_msg_incident *out)
{
    bool suspect[PSD_INCIDENT_SIDES] = {false};
    out->rows[0] = '\0';
    if (count > PSD_INCIDENT_SIDES) {
        out->more += count - PSD_INCIDENT_SIDES;
        count = PSD_INCIDENT_SIDES;
    }
    uint32_t found = find_suspects(sides, count, suspect);
    write_text(sides, count, suspect, found, reason, out);
    for (int pass = 0; pass < 2; pass++) /* suspects first: they are not to be left out */
        for (uint32_t i = 0; i < count; i++)
            if (suspect[i] == (pass == 0)) {
                incident_row row = {&sides[i], suspect[i] ? "suspect" : "other", group, -1, -1};
                rows_add(out, &row);
            }
}
