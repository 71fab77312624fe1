/* See suite.h. */
#include "tests/conformance/suite.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES      ((size_t)64)
#define PSD_MEMORY_LEAST ((size_t)16 << 10) /* less moves as heap memory does */
#define GUARD_BYTE       0xe7
#define FRESH_BYTE       0x3c
#define COMPLAINTS       20
#define TABLE_COLUMNS    (REF_DTYPES + 1)

struct suite_cell {
    int row;
    psd_dtype dtype;
    outcome result;
};

/* ---- buffers */

static psd_tensor host_view(const guarded *buffer)
{
    return psd_tensor_1d(buffer->memory, (int64_t)(buffer->bytes + 2 * GUARD_BYTES), PSD_U8, "guarded");
}

/* Host backends may move memory of psd_tensor_alloc in another way than that of the heap: all combinations come up,
 * also those in which ranks differ. */
static bool takes_psd_memory(size_t bytes)
{
    static uint32_t asked;
    bool is_turn = (asked++ * 2654435761u >> 16) % 4 != 0;
    return bytes >= PSD_MEMORY_LEAST && is_turn;
}

guarded guarded_new(suite *s, size_t bytes)
{
    guarded buffer = {.memory = malloc(bytes + 2 * GUARD_BYTES), .bytes = bytes};
    if (buffer.memory == NULL)
        return buffer;
    memset(buffer.memory, GUARD_BYTE, GUARD_BYTES);
    memset(buffer.memory + GUARD_BYTES, FRESH_BYTE, bytes);
    memset(buffer.memory + GUARD_BYTES + bytes, GUARD_BYTE, GUARD_BYTES);
    psd_tensor view = host_view(&buffer);
    psd_status status = PSD_OK;
    if (s->on_device || takes_psd_memory(bytes))
        status = psd_tensor_alloc(s->ctx, view.shape, 1, PSD_U8, "guarded", &buffer.twin);
    if (status != PSD_OK)
        (void)suite_judge(s, status);
    else
        buffer.data = buffer.memory + GUARD_BYTES;
    return buffer;
}

psd_tensor guarded_tensor(const guarded *buffer, const void *at, int64_t count, psd_dtype dtype,
                          const char *name)
{
    psd_tensor tensor = psd_tensor_1d(NULL, count, dtype, name);
    if (at != NULL)
        tensor.data = buffer->memory + ((const unsigned char *)at - buffer->memory);
    if (buffer->twin.data == NULL)
        return tensor;
    if (at != NULL)
        tensor.data = (unsigned char *)buffer->twin.data + ((const unsigned char *)at - buffer->memory);
    tensor.device = buffer->twin.device;
    tensor.device_index = buffer->twin.device_index;
    return tensor;
}

psd_status guarded_give(suite *s, const guarded *buffer)
{
    psd_tensor view = host_view(buffer), twin = buffer->twin;
    return twin.data != NULL ? psd_tensor_copy(s->ctx, &twin, &view, NULL) : PSD_OK;
}

psd_status guarded_take(suite *s, guarded *buffer)
{
    psd_tensor view = host_view(buffer);
    return buffer->twin.data != NULL ? psd_tensor_copy(s->ctx, &view, &buffer->twin, NULL) : PSD_OK;
}

bool guarded_intact(const guarded *buffer)
{
    bool intact = true;
    for (size_t i = 0; buffer->data != NULL && i < GUARD_BYTES; i++)
        intact = intact && buffer->memory[i] == GUARD_BYTE && buffer->data[buffer->bytes + i] == GUARD_BYTE;
    return intact;
}

void guarded_free(suite *s, guarded *buffer)
{
    if (buffer->twin.data != NULL && psd_tensor_free(s->ctx, &buffer->twin) != PSD_OK)
        (void)suite_judge(s, PSD_ERR_INTERNAL);
    free(buffer->memory);
    buffer->memory = buffer->data = NULL;
}

/* ---- groups */

static psd_status describe_group(suite *s, int index, const char *name, psd_group handle)
{
    suite_group *group = &s->groups[index];
    group->name = name;
    group->handle = handle;
    psd_status status = psd_group_rank(s->ctx, handle, &group->rank);
    return status == PSD_OK ? psd_group_size(s->ctx, handle, &group->size) : status;
}

/* world; the halves of the ranks; all ranks from the last to the first; the world again. */
static psd_status make_groups(suite *s)
{
    psd_group half, reversed, dup;
    int32_t *ranks = calloc((size_t)s->ranks, sizeof *ranks);
    if (ranks == NULL)
        return PSD_ERR_NOMEM;
    for (int32_t i = 0; i < s->ranks; i++)
        ranks[i] = s->ranks - 1 - i;
    psd_status status = psd_group_split(s->ctx, PSD_WORLD, s->rank < (s->ranks + 1) / 2 ? 0 : 1, 0, &half);
    if (status == PSD_OK)
        status = psd_group_new(s->ctx, ranks, s->ranks, &reversed);
    if (status == PSD_OK)
        status = psd_group_dup(s->ctx, PSD_WORLD, &dup);
    if (status == PSD_OK)
        status = describe_group(s, 0, "world", PSD_WORLD);
    if (status == PSD_OK)
        status = describe_group(s, 1, "half", half);
    if (status == PSD_OK)
        status = describe_group(s, 2, "reversed", reversed);
    if (status == PSD_OK)
        status = describe_group(s, 3, "dup", dup);
    free(ranks);
    return status;
}

psd_status suite_begin(suite *s, suite_extent extent)
{
    suite begun = {.extent = extent};
    psd_status status = psd_init(NULL, &begun.ctx);
    if (status != PSD_OK)
        return status;
    bool is_nccl = strcmp(psd_backend_name(begun.ctx), "nccl") == 0;
    begun.on_device = psd_device_index(begun.ctx) >= 0;
    begun.has_tags = !is_nccl;
    begun.has_bit_ops = !is_nccl;
    begun.finds_mismatches = !is_nccl;
    begun.sums_in_rank_order = !is_nccl;
    begun.rank = psd_rank(begun.ctx);
    begun.ranks = psd_world_size(begun.ctx);
    status = make_groups(&begun);
    *s = begun;
    return status;
}

/* ---- cells */

static int row_of(suite *s, const char *name)
{
    for (int i = 0; i < s->row_count; i++) {
        if (strcmp(s->rows[i], name) == 0)
            return i;
    }
    if (s->row_count == SUITE_ROWS)
        return SUITE_ROWS - 1;
    s->rows[s->row_count] = name;
    return s->row_count++;
}

static bool make_room(suite *s)
{
    if (s->cell_count < s->cell_capacity)
        return true;
    int64_t capacity = s->cell_capacity > 0 ? 2 * s->cell_capacity : 4096;
    struct suite_cell *cells = realloc(s->cells, (size_t)capacity * sizeof *cells);
    if (cells == NULL)
        return false;
    s->cells = cells;
    s->cell_capacity = capacity;
    return true;
}

void suite_record(suite *s, const char *row, psd_dtype dtype, outcome result, const char *format, ...)
{
    if (!make_room(s)) {
        fprintf(stderr, "conformance: out of memory\n");
        s->is_broken = true;
        return;
    }
    struct suite_cell cell = {row_of(s, row), dtype, result};
    s->cells[s->cell_count++] = cell;
    if (result == OUTCOME_FAILED && s->complaints++ < COMPLAINTS) {
        va_list args;
        va_start(args, format);
        fprintf(stderr, "conformance: rank %d: failed: %s %s ", s->rank, row, ref_name(dtype));
        vfprintf(stderr, format, args);
        fprintf(stderr, "\n");
        va_end(args);
    }
}

outcome suite_judge(suite *s, psd_status status)
{
    if (status == PSD_OK)
        return OUTCOME_PASSED;
    fprintf(stderr, "conformance: rank %d: %s\n", s->rank, psd_last_error());
    s->is_broken = s->is_broken || status <= PSD_ERR_PEER_FAILED;
    return OUTCOME_FAILED;
}

outcome suite_judge_refusal(suite *s, psd_status status, bool cannot)
{
    if (!cannot)
        return suite_judge(s, status);
    if (status == PSD_ERR_UNSUPPORTED && strstr(psd_last_error(), psd_backend_name(s->ctx)) != NULL)
        return OUTCOME_SKIPPED;
    fprintf(stderr, "conformance: rank %d: status %d where backend %s should have refused: %s\n", s->rank,
            (int)status, psd_backend_name(s->ctx), status == PSD_OK ? "" : psd_last_error());
    return OUTCOME_FAILED;
}

/* ---- the table */

static const char *const extent_names[] = {"full", "quick", "reduced"};

typedef struct table {
    int64_t passed[SUITE_ROWS][TABLE_COLUMNS];
    int64_t counts[3]; /* by outcome */
} table;

/* The least outcome of each cell over all ranks, on a group of its own so that a broken world does not
 * matter. */
static psd_status join_outcomes(suite *s)
{
    guarded joined = guarded_new(s, (size_t)s->cell_count);
    uint8_t *results = joined.data;
    int32_t *ranks = calloc((size_t)s->ranks, sizeof *ranks);
    psd_group all;
    psd_status status = results != NULL && ranks != NULL ? PSD_OK : PSD_ERR_NOMEM;
    if (status == PSD_OK) {
        for (int32_t i = 0; i < s->ranks; i++)
            ranks[i] = i;
        for (int64_t i = 0; i < s->cell_count; i++)
            results[i] = (uint8_t)s->cells[i].result;
        status = psd_group_new(s->ctx, ranks, s->ranks, &all);
    }
    if (status == PSD_OK) {
        psd_tensor t = guarded_tensor(&joined, results, s->cell_count, PSD_U8, "outcomes");
        status = guarded_give(s, &joined);
        if (status == PSD_OK)
            status = psd_all_reduce(s->ctx, all, &t, &t, PSD_MIN, NULL);
        if (status == PSD_OK)
            status = guarded_take(s, &joined);
    }
    for (int64_t i = 0; status == PSD_OK && i < s->cell_count; i++)
        s->cells[i].result = (outcome)results[i];
    if (status == PSD_OK)
        status = psd_group_destroy(s->ctx, all);
    guarded_free(s, &joined);
    free(ranks);
    return status;
}

static void count_cells(const suite *s, table *t)
{
    for (int64_t i = 0; i < s->cell_count; i++) {
        const struct suite_cell *cell = &s->cells[i];
        t->counts[cell->result]++;
        t->passed[cell->row][cell->dtype] += cell->result == OUTCOME_PASSED;
    }
}

static void print_table(const suite *s, const table *t)
{
    printf("backend %s\ncells ranks=%d sizes=%s\n%-16s", psd_backend_name(s->ctx), s->ranks,
           extent_names[s->extent], "operation");
    for (int dtype = 0; dtype < TABLE_COLUMNS; dtype++)
        printf(" %6s", ref_name((psd_dtype)dtype));
    printf("\n");
    for (int row = 0; row < s->row_count; row++) {
        printf("%-16s", s->rows[row]);
        for (int dtype = 0; dtype < TABLE_COLUMNS; dtype++)
            printf(" %6" PRId64, t->passed[row][dtype]);
        printf("\n");
    }
}

/* One row of the file's table against what passed; the number of cells that are missing. */
static int64_t compare_row(const suite *s, const table *t, char *line)
{
    char *save = NULL, *name = strtok_r(line, " \n", &save);
    int row = 0;
    int64_t missing = 0;
    while (row < s->row_count && strcmp(s->rows[row], name) != 0)
        row++;
    for (int dtype = 0; dtype < TABLE_COLUMNS; dtype++) {
        char *field = strtok_r(NULL, " \n", &save);
        int64_t want = field != NULL ? strtoll(field, NULL, 10) : 0;
        int64_t have = row < s->row_count ? t->passed[row][dtype] : 0;
        if (have < want) {
            printf("missing: %s %s: %" PRId64 " cells passed, %" PRId64 " expected\n", name,
                   ref_name((psd_dtype)dtype), have, want);
            missing += want - have;
        }
    }
    return missing;
}

/* Cells that the file expects for this number of ranks and these sizes, and that did not pass; -1 without
 * such a table. Where a backend other than host lacks capabilities the cells it skipped may be missing. */
static int64_t compare_with_file(const suite *s, const table *t, const char *path)
{
    char line[512], heading[64];
    int64_t missing = -1;
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        printf("cannot open %s\n", path);
        return -1;
    }
    snprintf(heading, sizeof heading, "cells ranks=%d sizes=%s\n", s->ranks, extent_names[s->extent]);
    while (fgets(line, sizeof line, file) != NULL) {
        if (missing < 0)
            missing = strcmp(line, heading) == 0 ? 0 : -1;
        else if (line[0] == '\n')
            break;
        else if (strncmp(line, "operation", 9) != 0)
            missing += compare_row(s, t, line);
    }
    fclose(file);
    if (missing < 0)
        printf("%s has no table for this run\n", path);
    return missing;
}

static bool report(const suite *s, const char *cells_path)
{
    table t = {0};
    count_cells(s, &t);
    print_table(s, &t);
    printf("refused, as backend %s has them not: %" PRId64 "\n", psd_backend_name(s->ctx),
           t.counts[OUTCOME_SKIPPED]);
    int64_t missing = cells_path != NULL ? compare_with_file(s, &t, cells_path) : 0;
    int64_t excused = strcmp(psd_backend_name(s->ctx), "host") == 0 ? 0 : t.counts[OUTCOME_SKIPPED];
    int64_t failed = t.counts[OUTCOME_FAILED];
    if (failed == 0 && (missing < 0 || missing > excused))
        failed = missing < 0 ? 1 : missing;
    printf("%" PRId64 " passed, %" PRId64 " failed, %" PRId64 " skipped\n", t.counts[OUTCOME_PASSED], failed,
           t.counts[OUTCOME_SKIPPED]);
    fflush(stdout);
    return failed == 0;
}

bool suite_end(suite *s, const char *cells_path)
{
    bool fine = !s->is_broken;
    psd_status status = fine ? join_outcomes(s) : PSD_OK;
    if (status != PSD_OK) {
        fprintf(stderr, "conformance: rank %d: %s\n", s->rank, psd_last_error());
        fine = false;
    } else if (fine && s->rank == 0) {
        fine = report(s, cells_path);
    } else if (!fine) {
        fprintf(stderr, "conformance: rank %d: stopped after %" PRId64 " cells\n", s->rank, s->cell_count);
    }
    free(s->cells);
    s->cells = NULL;
    status = psd_finalize(&s->ctx);
    /* The mismatches broke groups, and were told by the calls. */
    if (status != PSD_OK && fine) {
        fprintf(stderr, "conformance: rank %d: finalize: %s\n", s->rank, psd_last_error());
        fine = false;
    }
    return fine;
}
