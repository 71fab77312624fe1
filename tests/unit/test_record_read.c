/* Record files of dead processes: what they say, and files that lie. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/record_read.h"
#include "tests/lib/psd_test.h"
#include "worker/recorder.h"

enum { ROWS = 8 };

static char dir[] = "/tmp/psd-record-XXXXXX";
static char path[64];

static void make_dir(void)
{
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
}

static void remove_dir(void)
{
    unlink(path);
    rmdir(dir);
}

#define FILE_TEST(name) PSD_TEST_WITH(record_read, name, .init = make_dir, .fini = remove_dir, .timeout = 60)

static void write_file(const void *data, size_t bytes)
{
    FILE *out = fopen(path, "w");
    cr_assert_not_null(out);
    cr_assert_eq(fwrite(data, 1, bytes, out), bytes);
    fclose(out);
}

/* A file as a rank that was killed leaves it: `count` operations, of which the last is in flight. */
static psd_record_file *left_behind(int count)
{
    psd_recorder recorder;
    psd_recorder_config config = {.run_dir = dir, .ident = {.job = "train", .name = "w3", .incarnation = 7}};
    psd_tensor tensor = psd_tensor_1d(NULL, 6, PSD_F32, "grad");
    psd_record_file *copy = malloc(sizeof *copy);
    cr_assert_not_null(copy);
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    psd_recorder_joined(&recorder, 3, 4);
    for (int i = 0; i < count; i++) {
        psd_record_start start = {.now = psd_now_ns(),
                                  .kind = i % 2 == 0 ? PSD_OP_ALL_REDUCE : PSD_OP_SEND,
                                  .tensor = &tensor,
                                  .count = 6,
                                  .peer = i % 2 == 0 ? -1 : 1,
                                  .group = 5,
                                  .file = "/src/train.c",
                                  .line = 100 + i};
        uint64_t seq = psd_record_begin(&recorder, &start);
        if (i + 1 < count)
            psd_record_end(&recorder, seq, i == 1 ? PSD_ERR_LINK : PSD_OK, start.peer, (uint64_t)i);
    }
    memcpy(copy, recorder.file, sizeof *copy);
    psd_recorder_close(&recorder);
    return copy;
}

static const psd_cell *cell_of(const psd_msg_reply *reply, uint32_t row, const char *column)
{
    for (uint32_t c = 0; c < reply->column_count; c++)
        if (strcmp(reply->columns[c].name, column) == 0)
            return &reply->cells[row * reply->column_count + c];
    cr_assert_fail("no column %s", column);
    return NULL;
}

FILE_TEST(a_dead_process_tells_its_last_operations)
{
    char why[256];
    psd_record_row rows[ROWS];
    psd_cell cells[ROWS * PSD_RECORD_COLUMNS];
    psd_msg_reply reply;
    psd_record_file *left = left_behind(3), *file = NULL;
    write_file(left, sizeof *left);
    cr_assert_eq(psd_record_load(path, &file, why, sizeof why), PSD_OK, "%s", why);
    psd_record_table(file, 0, ROWS, rows, cells, &reply);
    cr_assert_eq(reply.row_count, 3);
    cr_assert_not_null(strstr(reply.text, "w3 of job train, rank 3 of 4"), "%s", reply.text);
    cr_assert_not_null(strstr(reply.text, "3 operations begun, 2 ended"), "%s", reply.text);
    cr_assert_str_eq(cell_of(&reply, 0, "op")->text, "all_reduce");
    cr_assert_str_eq(cell_of(&reply, 0, "state")->text, "done");
    cr_assert_str_eq(cell_of(&reply, 1, "state")->text, "PSD_ERR_LINK");
    cr_assert_eq(cell_of(&reply, 1, "peer")->integer, 1);
    cr_assert_eq(cell_of(&reply, 1, "ordinal")->integer, 1);
    cr_assert_str_eq(cell_of(&reply, 2, "state")->text, "in flight");
    cr_assert_str_eq(cell_of(&reply, 2, "site")->text, "train.c:102");
    cr_assert_str_eq(cell_of(&reply, 2, "tensor")->text, "grad");
    cr_assert_str_eq(cell_of(&reply, 2, "dtype")->text, "f32");
    cr_assert_eq(cell_of(&reply, 2, "took")->integer, -1);
    cr_assert_geq(cell_of(&reply, 0, "age")->integer, cell_of(&reply, 2, "age")->integer);
    free(file);
    free(left);
}

FILE_TEST(only_the_newest_are_shown_and_the_ring_may_have_gone_round)
{
    psd_record_row rows[ROWS];
    psd_cell cells[ROWS * PSD_RECORD_COLUMNS];
    psd_msg_reply reply;
    psd_record_file *left = left_behind(PSD_RECORD_RING + 50);
    psd_record_table(left, 0, ROWS, rows, cells, &reply);
    cr_assert_eq(reply.row_count, ROWS);
    cr_assert_eq(cell_of(&reply, ROWS - 1, "seq")->integer, PSD_RECORD_RING + 50);
    cr_assert_eq(cell_of(&reply, 0, "seq")->integer, PSD_RECORD_RING + 50 - ROWS + 1);
    free(left);
}

static void expect_refused(const void *data, size_t bytes, const char *text)
{
    char why[256] = "";
    psd_record_file *file = NULL;
    write_file(data, bytes);
    cr_assert_eq(psd_record_load(path, &file, why, sizeof why), PSD_ERR_FORMAT, "%s", text);
    cr_assert_null(file);
    cr_assert_not_null(strstr(why, text), "%s", why);
}

FILE_TEST(files_that_cannot_be_are_refused)
{
    char why[256];
    psd_record_file *left = left_behind(3), *file = NULL;
    cr_assert_eq(psd_record_load(path, &file, why, sizeof why), PSD_ERR_IO);
    cr_assert_eq(psd_record_load(dir, &file, why, sizeof why), PSD_ERR_FORMAT);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(psd_record_load(path, &file, why, sizeof why), PSD_ERR_FORMAT);
    unlink(path);
    expect_refused("", 0, "not a recorder's file");
    expect_refused(left, 4, "not a recorder's file");
    expect_refused(left, 100, "cut off");
    expect_refused(left, sizeof *left - 1, "cut off");
    left->version = 9;
    expect_refused(left, sizeof *left, "version 9");
    left->version = PSD_RECORD_VERSION;
    left->ring = 1 << 30;
    expect_refused(left, sizeof *left, "another build");
    left->ring = PSD_RECORD_RING;
    left->record_bytes = 0;
    expect_refused(left, sizeof *left, "another build");
    left->record_bytes = sizeof(psd_record);
    memset(left->ident.job, 'j', sizeof left->ident.job); /* no end */
    expect_refused(left, sizeof *left, "its owner");
    left->magic++;
    expect_refused(left, sizeof *left, "not a recorder's file");
    free(left);
}

/* Whatever the bytes are, the answer is one that can be sent and printed. */
static void expect_sound(const psd_msg_reply *reply)
{
    cr_assert_leq(reply->row_count, (uint32_t)ROWS);
    for (uint32_t i = 0; i < reply->row_count * reply->column_count; i++) {
        if (reply->columns[i % reply->column_count].type != PSD_CELL_TEXT)
            continue;
        const char *text = reply->cells[i].text;
        cr_assert(strlen(text) < 128);
        for (; *text != '\0'; text++)
            cr_assert((unsigned char)*text >= ' ');
    }
}

FILE_TEST(random_damage_is_survived)
{
    char why[256];
    psd_record_row rows[ROWS];
    psd_cell cells[ROWS * PSD_RECORD_COLUMNS];
    psd_msg_reply reply;
    psd_record_file *left = left_behind(20), *file = malloc(sizeof *file);
    uint64_t seed = 88172645463325252u;
    int sound = 0;
    for (int round = 0; round < 3000; round++) {
        memcpy(file, left, sizeof *file);
        for (int k = 0; k < 64; k++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            size_t header = offsetof(psd_record_file, waits), at = seed >> 8;
            size_t from = offsetof(psd_record_file, records), span = 21 * sizeof(psd_record);
            bool in_header = k == 0 && round % 2 == 0;
            ((uint8_t *)file)[in_header ? at % header : from + at % span] = (uint8_t)seed;
        }
        if (psd_record_check(file, sizeof *file, why, sizeof why) != PSD_OK)
            continue;
        sound++;
        psd_record_table(file, round % 3 == 0 ? INT64_MAX : 0, ROWS, rows, cells, &reply);
        expect_sound(&reply);
    }
    cr_assert_geq(sound, 1000);
    free(file);
    free(left);
}
