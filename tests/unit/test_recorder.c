/* The recorder's file, its records and wait records, and what it does where it cannot write. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/psd_test.h"
#include "worker/recorder.h"

static char dir[] = "/tmp/psd-recorder-XXXXXX";

static void make_dir(void)
{
    cr_assert_not_null(mkdtemp(dir));
}

static void remove_dir(void)
{
    DIR *listing = opendir(dir);
    char path[512];
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        unlink(path);
    }
    if (listing != NULL)
        closedir(listing);
    rmdir(dir);
}

static int count_files(const char *job)
{
    int count = 0;
    DIR *listing = opendir(dir);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        count += strncmp(entry->d_name, job, strlen(job)) == 0;
    closedir(listing);
    return count;
}

static psd_recorder_config config_of(uint64_t incarnation)
{
    psd_recorder_config config = {.run_dir = dir,
                                  .ident = {.job = "j", .name = "w", .incarnation = incarnation}};
    return config;
}

static psd_record_start start_of(psd_op_kind kind, const psd_tensor *tensor)
{
    psd_record_start start = {.now = 1000,
                              .kind = kind,
                              .tensor = tensor,
                              .count = 6,
                              .peer = 1,
                              .group = 3,
                              .epoch = 2,
                              .file = "/home/me/src/train.c",
                              .line = 12};
    return start;
}

#define FILE_TEST(name) PSD_TEST_WITH(recorder, name, .init = make_dir, .fini = remove_dir, .timeout = 30)

FILE_TEST(keeps_records_that_another_process_can_read)
{
    psd_recorder recorder;
    psd_recorder_config config = config_of(1);
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    psd_recorder_joined(&recorder, 2, 4);
    float data[6];
    int64_t shape[2] = {2, 3};
    psd_tensor tensor = psd_tensor_nd(data, shape, 2, PSD_F32, "grad");
    psd_record_start start = start_of(PSD_OP_ALL_REDUCE, &tensor);
    uint64_t seq = psd_record_begin(&recorder, &start);
    cr_assert_eq(seq, 1);
    psd_record_end(&recorder, seq, PSD_OK, -1, 41);

    int fd = open(recorder.path, O_RDONLY);
    cr_assert_geq(fd, 0);
    struct stat st;
    cr_assert_eq(fstat(fd, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
    cr_assert_eq((size_t)st.st_size, sizeof(psd_record_file));
    psd_record_file *copy = malloc(sizeof *copy);
    cr_assert_eq(read(fd, copy, sizeof *copy), (ssize_t)sizeof *copy);
    close(fd);
    const psd_record *record = &copy->records[1];
    cr_assert_eq(copy->magic, PSD_RECORD_MAGIC);
    cr_assert_eq(copy->rank, 2);
    cr_assert_eq(atomic_load(&copy->done), 1);
    cr_assert_eq(record->state, PSD_STATE_DONE);
    cr_assert_eq(record->ordinal, 41);
    cr_assert_eq(record->shape[1], 3);
    cr_assert_str_eq(record->name, "grad");
    cr_assert_str_eq(record->file, "/home/me/src/train.c");
    free(copy);

    char path[512];
    strcpy(path, recorder.path);
    psd_recorder_close(&recorder);
    cr_assert_neq(access(path, F_OK), 0, "a clean exit leaves nothing behind");
}

FILE_TEST(tells_the_oldest_operation_in_flight)
{
    psd_recorder recorder;
    psd_recorder_config config = config_of(1);
    psd_current_op current;
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    psd_record_current(&recorder, 0, &current);
    cr_assert_eq(current.kind, 0);
    psd_tensor tensor = psd_tensor_1d(NULL, 6, PSD_F32, "caf\xc3\xa9");
    psd_record_start first = start_of(PSD_OP_SEND, &tensor), second = start_of(PSD_OP_RECV, &tensor);
    uint64_t a = psd_record_begin(&recorder, &first);
    uint64_t b = psd_record_begin(&recorder, &second);
    psd_record_current(&recorder, 3000, &current);
    cr_assert_eq(current.kind, PSD_OP_SEND);
    cr_assert_eq(current.age_ns, 2000);
    cr_assert_str_eq(current.site, "train.c:12");
    cr_assert_str_eq(current.name, "caf\xc3\xa9");
    psd_record_end(&recorder, a, PSD_ERR_LINK, 1, 0);
    psd_record_current(&recorder, 3000, &current);
    cr_assert_eq(current.kind, PSD_OP_RECV);
    psd_record_end(&recorder, b, PSD_OK, 1, 0);
    psd_record_current(&recorder, 3000, &current);
    cr_assert_eq(current.kind, 0);
    psd_recorder_close(&recorder);
}

FILE_TEST(survives_the_ring_wrapping)
{
    psd_recorder recorder;
    psd_recorder_config config = config_of(1);
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    psd_record_start start = start_of(PSD_OP_BARRIER, NULL);
    uint64_t old = psd_record_begin(&recorder, &start);
    for (int i = 0; i < 2 * PSD_RECORD_RING; i++)
        psd_record_end(&recorder, psd_record_begin(&recorder, &start), PSD_OK, -1, 0);
    psd_record_end(&recorder, old, PSD_ERR_ABORTED, -1, 0);
    const psd_record *slot = &recorder.file->records[old % PSD_RECORD_RING];
    cr_assert_eq(slot->state, PSD_STATE_DONE, "a newer record was not touched");
    cr_assert_eq(psd_record_done(&recorder), 2 * PSD_RECORD_RING + 1);
    psd_recorder_close(&recorder);
}

FILE_TEST(publishes_waits)
{
    psd_recorder recorder;
    psd_recorder_config config = config_of(1);
    int slots[PSD_RECORD_WAITERS];
    uint64_t seqs[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    for (int i = 0; i < PSD_RECORD_WAITERS; i++) {
        slots[i] = psd_record_wait_begin(&recorder, seqs, 12, PSD_WAIT_ANY | PSD_WAIT_TIMED);
        cr_assert_eq(slots[i], i);
    }
    cr_assert_eq(psd_record_wait_begin(&recorder, seqs, 1, PSD_WAIT_ALL), -1,
                 "more waiters than places are not seen");
    psd_record_wait_end(&recorder, -1);
    const psd_wait_record *wait = &recorder.file->waits[5];
    cr_assert_eq(atomic_load(&wait->seq) % 2, 1);
    cr_assert_eq(wait->count, 12);
    cr_assert_eq(wait->any, 1);
    cr_assert_eq(wait->timed, 1);
    cr_assert_eq(wait->works[7], 8);
    psd_record_wait_end(&recorder, slots[5]);
    cr_assert_eq(atomic_load(&wait->seq) % 2, 0);
    cr_assert_eq(psd_record_wait_begin(&recorder, seqs, 1, PSD_WAIT_ALL), 5);
    cr_assert_eq(wait->any, 0);
    cr_assert_eq(wait->timed, 0);
    psd_recorder_close(&recorder);
}

PSD_TEST(recorder, falls_back_to_private_memory)
{
    psd_recorder recorder;
    psd_recorder_config config = {.run_dir = "/proc/nowhere",
                                  .ident = {.job = "j", .name = "w", .incarnation = 1}};
    psd_record_start start = start_of(PSD_OP_BARRIER, NULL);
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    cr_assert_str_eq(recorder.path, "");
    cr_assert_eq(psd_record_begin(&recorder, &start), 1);
    psd_recorder_close(&recorder);
}

PSD_TEST(recorder, can_be_off)
{
    psd_recorder recorder;
    psd_recorder_config config = {.off = true};
    psd_current_op current;
    psd_record_start start = start_of(PSD_OP_BARRIER, NULL);
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    cr_assert_eq(psd_record_begin(&recorder, &start), 0);
    psd_record_end(&recorder, 0, PSD_OK, -1, 0);
    cr_assert_eq(psd_record_wait_begin(&recorder, NULL, 0, PSD_WAIT_ALL), -1);
    psd_record_current(&recorder, 0, &current);
    cr_assert_eq(psd_record_done(&recorder), 0);
    psd_recorder_close(&recorder);
}

/* Files whose lock nobody holds are of dead processes: the newest are kept, and those of other jobs. */
FILE_TEST(reclaims_what_dead_processes_left)
{
    char path[512];
    psd_recorder recorder;
    psd_recorder_config config = config_of(1);
    for (int i = 0; i < PSD_RECORD_DEAD_KEPT + 6; i++) {
        snprintf(path, sizeof path, "%s/%s.%d.%016x.psdrec", dir, i < 3 ? "j.other" : "j", 1000 + i, i);
        int fd = open(path, O_CREAT | O_WRONLY, 0600);
        struct timespec times[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        cr_assert_eq(futimens(fd, times), 0);
        close(fd);
    }
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    cr_assert_eq(count_files("j.other."), 3);
    cr_assert_eq(count_files("j.") - 3, PSD_RECORD_DEAD_KEPT + 1);
    snprintf(path, sizeof path, "%s/j.1003.%016x.psdrec", dir, 3);
    cr_assert_neq(access(path, F_OK), 0, "the oldest went");
    psd_recorder second;
    psd_recorder_config other = config_of(2);
    cr_assert_eq(psd_recorder_open(&second, &other), PSD_OK);
    cr_assert_eq(access(recorder.path, F_OK), 0, "a living one stays");
    psd_recorder_close(&second);
    psd_recorder_close(&recorder);
}

/* Processes that come and go at the same time: each finds or makes the default directory, none is left. */
FILE_TEST(the_default_directory_goes_with_its_last_file)
{
    char path[512];
    pid_t children[4];
    cr_assert_eq(setenv("XDG_RUNTIME_DIR", dir, 1), 0);
    for (int c = 0; c < 4; c++) {
        children[c] = fork();
        for (int i = 0; children[c] == 0 && i < 200; i++) {
            psd_recorder recorder;
            psd_recorder_config config = config_of((uint64_t)(i + 1));
            config.run_dir = NULL;
            if (psd_recorder_open(&recorder, &config) != PSD_OK || recorder.path[0] == '\0')
                _exit(1);
            psd_recorder_close(&recorder);
        }
        if (children[c] == 0)
            _exit(0);
    }
    for (int c = 0; c < 4; c++) {
        int status = 1;
        cr_assert_eq(waitpid(children[c], &status, 0), children[c]);
        cr_assert_eq(status, 0);
    }
    snprintf(path, sizeof path, "%s/psd", dir);
    cr_assert_neq(access(path, F_OK), 0, "%s is left", path);
    psd_recorder recorder;
    psd_recorder_config config = config_of(1);
    cr_assert_eq(psd_recorder_open(&recorder, &config), PSD_OK);
    psd_recorder_close(&recorder);
    cr_assert_eq(access(dir, F_OK), 0, "one that was named stays");
}
