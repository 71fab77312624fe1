/* What goes wrong on the host backend: ranks that disagree, never come or die. No case may
 * hang, every rank gets the error, and no case gives wrong data. */
#include "tests/lib/psd_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/host_ranks.h"

static const psd_backend_ops *const host = &psd_backend_host;

static int run_on(int32_t size, const char *transport, int64_t eager_limit, host_rank_body body, void *arg)
{
    host_ranks all = {
        .size = size, .transport = transport, .eager_limit = eager_limit, .body = body, .arg = arg};
    return host_ranks_run(&all);
}

/* -------------------------------------------------------------------------------- collectives that differ */

typedef struct disagreement {
    psd_op all;           /* what all ranks call */
    psd_op other;         /* what rank 1 calls */
    const char *texts[6]; /* all must be in the error of every rank */
} disagreement;

/* The group breaks for a rank that has completed its part, too: seen at a later call. */
static psd_status until_broken(host_rank *r, char *text)
{
    psd_status status = PSD_OK;
    psd_time_ns deadline = psd_now_ns() + 10 * PSD_NS_PER_S;
    while (status == PSD_OK && psd_now_ns() < deadline) {
        int32_t x = 0;
        psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_I32, 1, &x, &x);
        op.redop = PSD_SUM;
        op.label = "all_reduce \"later\" at test.c:99";
        status = host_run(r, &op, text);
    }
    return status;
}

static void disagree(host_rank *r)
{
    const disagreement *d = r->all->arg;
    enum { BYTES = 4 << 20 };
    char *in = calloc(1, BYTES);
    char *out = calloc(1, BYTES);
    char text[PSD_MAX_TEXT] = "";
    int64_t splits[3] = {4, 4, 4};
    int64_t other_splits[3] = {5, 4, 4};
    psd_op op = r->rank == 1 ? d->other : d->all;
    op.in = op.kind == PSD_OP_BROADCAST ? NULL : in;
    op.out = out;
    op.deadline = psd_now_ns() + 10 * PSD_NS_PER_S;
    op.label = r->rank == 1 ? "\"other\" at other.c:7" : "\"grad\" at a.c:3";
    if (op.kind == PSD_OP_ALL_TO_ALL_V) {
        op.in_splits = r->rank == 1 ? other_splits : splits;
        op.out_splits = splits;
    }
    psd_status status = host_run(r, &op, text);
    if (status == PSD_OK)
        status = until_broken(r, text);
    HOST_CHECK(r, status == PSD_ERR_MISMATCH);
    for (int i = 0; i < 6 && d->texts[i] != NULL; i++) {
        bool has_text = strstr(text, d->texts[i]) != NULL;
        HOST_CHECK(r, has_text);
        if (!has_text)
            fprintf(stderr, "'%s' is not in '%s'\n", d->texts[i], text);
    }
    psd_request *none = NULL;
    HOST_CHECK(r,
               host->start(r->group, &op, &none) == PSD_ERR_MISMATCH && none == NULL); /* it stays broken */
    free(in);
    free(out);
}

static void check_disagreement(int32_t size, const disagreement *d)
{
    disagreement copy = *d;
    cr_assert_eq(run_on(size, "shm", 65536, disagree, &copy), 0);
}

#define REDUCE_OF(dtype_, count_, redop_)                                                                    \
    {                                                                                                        \
        .kind = PSD_OP_ALL_REDUCE, .dtype = dtype_, .count = count_, .redop = redop_, .root = -1             \
    }
#define ROOTED(kind_, dtype_, count_, root_)                                                                 \
    {                                                                                                        \
        .kind = kind_, .dtype = dtype_, .count = count_, .root = root_                                       \
    }

PSD_TEST(host_fail, all_reduce_of_another_count)
{
    disagreement d = {REDUCE_OF(PSD_F32, 100, PSD_SUM),
                      REDUCE_OF(PSD_F32, 200, PSD_SUM),
                      {"group 3 collective 0: rank 0 called all_reduce f32 count 100 sum (\"grad\" at a.c:3)",
                       "rank 1 called all_reduce f32 count 200 sum (\"other\" at other.c:7)"}};
    check_disagreement(2, &d);
    disagreement of_three = {
        d.all, d.other, {"rank 1 called all_reduce f32 count 200 sum (\"other\" at other.c:7)"}};
    check_disagreement(3, &of_three);
}

PSD_TEST(host_fail, all_reduce_of_another_dtype_or_reduction_or_size)
{
    disagreement dtype = {REDUCE_OF(PSD_F32, 10, PSD_SUM), REDUCE_OF(PSD_I32, 10, PSD_SUM), {"f32", "i32"}};
    check_disagreement(3, &dtype);
    disagreement redop = {
        REDUCE_OF(PSD_F32, 10, PSD_SUM), REDUCE_OF(PSD_F32, 10, PSD_MAX), {" sum ", " max "}};
    check_disagreement(3, &redop);
    disagreement big = {
        REDUCE_OF(PSD_F32, 1000000, PSD_SUM), REDUCE_OF(PSD_F32, 1, PSD_SUM), {"1000000", "count 1 "}};
    check_disagreement(3, &big);
    disagreement empty = {
        REDUCE_OF(PSD_F32, 1000000, PSD_SUM), REDUCE_OF(PSD_F32, 0, PSD_SUM), {"1000000", "count 0 "}};
    check_disagreement(3, &empty);
}

PSD_TEST(host_fail, another_collective)
{
    disagreement kind = {REDUCE_OF(PSD_I32, 10, PSD_SUM),
                         ROOTED(PSD_OP_BROADCAST, PSD_I32, 10, 0),
                         {"called all_reduce", "called broadcast", "a.c:3", "other.c:7"}};
    check_disagreement(2, &kind);
    disagreement barrier = {{.kind = PSD_OP_BARRIER, .root = -1},
                            ROOTED(PSD_OP_ALL_GATHER, PSD_U8, 9, -1),
                            {"barrier", "all_gather u8 count 9"}};
    check_disagreement(3, &barrier);
    disagreement gather = {
        ROOTED(PSD_OP_GATHER, PSD_U8, 9, 0), ROOTED(PSD_OP_SCATTER, PSD_U8, 9, 0), {"gather", "scatter"}};
    check_disagreement(3, &gather);
}

PSD_TEST(host_fail, another_root)
{
    /* Two who both send, and two who both wait. */
    disagreement both_send = {ROOTED(PSD_OP_BROADCAST, PSD_I32, 10, 0),
                              ROOTED(PSD_OP_BROADCAST, PSD_I32, 10, 1),
                              {"root 0", "root 1"}};
    check_disagreement(2, &both_send);
    disagreement both_wait = {ROOTED(PSD_OP_BROADCAST, PSD_I32, 10, 1),
                              ROOTED(PSD_OP_BROADCAST, PSD_I32, 10, 0),
                              {"root 0", "root 1"}};
    check_disagreement(2, &both_wait);
    disagreement big = {ROOTED(PSD_OP_BROADCAST, PSD_I32, 500000, 0),
                        ROOTED(PSD_OP_BROADCAST, PSD_I32, 500000, 1),
                        {"root 0", "root 1"}};
    check_disagreement(3, &big);
    disagreement scatter = {
        ROOTED(PSD_OP_SCATTER, PSD_I32, 10, 2), ROOTED(PSD_OP_SCATTER, PSD_I32, 10, 0), {"root 0", "root 2"}};
    check_disagreement(3, &scatter);
    disagreement gather = {
        ROOTED(PSD_OP_GATHER, PSD_I32, 10, 2), ROOTED(PSD_OP_GATHER, PSD_I32, 10, 0), {"root 0", "root 2"}};
    check_disagreement(3, &gather);
}

PSD_TEST(host_fail, another_count_in_every_rooted_or_gathering_collective)
{
    static const psd_op_kind kinds[] = {PSD_OP_BROADCAST,  PSD_OP_SCATTER,        PSD_OP_GATHER,
                                        PSD_OP_ALL_GATHER, PSD_OP_REDUCE_SCATTER, PSD_OP_ALL_TO_ALL};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        int32_t root = i < 3 ? 0 : -1;
        disagreement d = {ROOTED(kinds[i], PSD_I32, 10, root),
                          ROOTED(kinds[i], PSD_I32, 11, root),
                          {"count 10", "count 11"}};
        if (kinds[i] == PSD_OP_REDUCE_SCATTER)
            d.all.redop = d.other.redop = PSD_SUM;
        check_disagreement(3, &d);
    }
}

PSD_TEST(host_fail, splits_that_do_not_fit_name_the_cell)
{
    psd_op op = {.kind = PSD_OP_ALL_TO_ALL_V, .dtype = PSD_I32, .root = -1};
    disagreement d = {op,
                      op,
                      {"cell 1 to 0", "rank 1 sends 5 elements (\"other\" at other.c:7)",
                       "rank 0 expects 4 (\"grad\" at a.c:3)"}};
    check_disagreement(3, &d);
}

/* ----------------------------------------------------------------------------------- messages that differ */

typedef struct p2p_case {
    psd_dtype dtype;
    int64_t count;
    bool posted_late;
} p2p_case;

static void p2p_disagree(host_rank *r)
{
    const p2p_case *c = r->all->arg;
    enum { BYTES = 1 << 20 };
    char *data = calloc(1, BYTES);
    char text[PSD_MAX_TEXT] = "";
    psd_request *request = NULL;
    psd_op barrier = host_op(PSD_OP_BARRIER, (psd_dtype)0, 0, NULL, NULL);
    if (r->rank == 0)
        request = host_isend(r, PSD_F32, data, 100000, 1, 4);
    if (c->posted_late) {
        psd_status status =
            host_run(r, &barrier, NULL); /* rank 1 may be out of it, and break the group, first */
        HOST_CHECK(r, status == PSD_OK || (r->rank == 0 && status == PSD_ERR_MISMATCH));
    }
    if (r->rank == 1)
        request = host_irecv(r, c->dtype, data, c->count, PSD_ANY_SOURCE, 4);
    psd_status status = host_finish(r, &request, NULL);
    HOST_CHECK(r, r->rank == 0 || status == PSD_ERR_MISMATCH);
    status = until_broken(r, text);
    HOST_CHECK(r, status == PSD_ERR_MISMATCH);
    bool has_both = strstr(text, "rank 0 called send f32 count 100000 (send \"x\" at test.c:1)") != NULL &&
                    strstr(text, "(recv \"x\" at test.c:2)") != NULL;
    HOST_CHECK(r, has_both);
    if (!has_both)
        fprintf(stderr, "%s\n", text);
    free(data);
}

PSD_TEST(host_fail, a_receive_of_another_count_or_dtype)
{
    static const int64_t eager_limits[] = {0, 1 << 20};
    for (int i = 0; i < 2; i++) {
        for (int late = 0; late < 2; late++) {
            p2p_case count = {PSD_F32, 1000, late == 1};
            cr_assert_eq(run_on(2, "shm", eager_limits[i], p2p_disagree, &count), 0);
            p2p_case dtype = {PSD_I32, 100000, late == 1};
            cr_assert_eq(run_on(2, "tcp", eager_limits[i], p2p_disagree, &dtype), 0);
        }
    }
}

static void self_disagree(host_rank *r)
{
    char data[64] = {0};
    psd_request *send = host_isend(r, PSD_U8, data, 8, r->rank, 0);
    psd_request *receive = host_irecv(r, PSD_U8, data + 32, 9, r->rank, 0);
    HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_ERR_MISMATCH);
    HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_ERR_MISMATCH);
    HOST_CHECK(r, atomic_load(&r->broken) == 1);
}

PSD_TEST(host_fail, a_receive_from_oneself_of_another_count)
{
    cr_assert_eq(run_on(1, "shm", 65536, self_disagree, NULL), 0);
}

/* -------------------------------------------------------------------------------------- deadlines, aborts */

static void deadline(host_rank *r)
{
    int32_t x = 0;
    char text[PSD_MAX_TEXT] = "";
    psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_I32, 1, &x, &x);
    op.redop = PSD_SUM;
    op.label = "all_reduce at d.c:1";
    if (r->rank == 2) {
        /* Never calls it, but hears of it. */
        while (host->group_error(r->group, text, sizeof(text)) == PSD_OK) {
            psd_request *receive = host_irecv(r, PSD_I32, &x, 1, 0, 0);
            (void)host_finish(r, &receive, NULL);
        }
    } else {
        if (r->rank == 0)
            op.deadline = psd_now_ns() + 50 * PSD_NS_PER_MS;
        HOST_CHECK(r, host_run(r, &op, text) == PSD_ERR_DEADLINE);
    }
    HOST_CHECK(r, host->group_error(r->group, text, sizeof(text)) == PSD_ERR_DEADLINE);
    HOST_CHECK(r,
               strstr(text, "group 3 collective 0: rank 0's deadline passed in all_reduce at d.c:1") != NULL);
    HOST_CHECK(r, strstr(text, "rank 2") != NULL);
}

PSD_TEST(host_fail, a_passed_deadline_breaks_the_group_and_names_who_did_not_come)
{
    cr_assert_eq(run_on(3, "shm", 65536, deadline, NULL), 0);
}

static void *abort_group(void *arg)
{
    host_rank *r = arg;
    host->group_abort(r->group, PSD_ERR_ABORTED, "the test wants it");
    return NULL;
}

/* Rank 0 waits for a message that never comes, rank 1 offers one that is never received; another thread
 * aborts. */
static void aborted(host_rank *r)
{
    enum { BYTES = 1 << 20 };
    char *data = calloc(1, BYTES);
    char text[PSD_MAX_TEXT] = "";
    pthread_t thread;
    psd_request *request =
        r->rank == 0 ? host_irecv(r, PSD_U8, data, BYTES, 1, 1) : host_isend(r, PSD_U8, data, BYTES, 0, 2);
    psd_op barrier = host_op(PSD_OP_BARRIER, (psd_dtype)0, 0, NULL, NULL);
    psd_status met = host_run(r, &barrier, NULL);
    HOST_CHECK(r, met == PSD_OK || (r->rank == 1 && met == PSD_ERR_ABORTED));
    if (r->rank == 0)
        HOST_CHECK(r, pthread_create(&thread, NULL, abort_group, r) == 0);
    HOST_CHECK(r, host_finish(r, &request, NULL) == PSD_ERR_ABORTED);
    HOST_CHECK(r, host->group_error(r->group, text, sizeof(text)) == PSD_ERR_ABORTED);
    HOST_CHECK(r, strcmp(text, "the test wants it") == 0);
    if (r->rank == 0)
        pthread_join(thread, NULL);
    free(data);
}

PSD_TEST(host_fail, an_abort_by_another_thread_ends_all_members_operations)
{
    cr_assert_eq(run_on(2, "shm", 65536, aborted, NULL), 0);
    cr_assert_eq(run_on(2, "tcp", 0, aborted, NULL), 0);
}

/* Aborted in the middle of large transfers: the memory is free again when the operation has ended. */
static void aborted_in_flight(host_rank *r)
{
    enum { N = 4, BYTES = 16 << 20 };
    char *data[2 * N];
    psd_request *requests[2 * N];
    for (int i = 0; i < N; i++) {
        void *memory = NULL;
        HOST_CHECK(r, host->mem_alloc(r->backend, BYTES, &memory) == PSD_OK);
        data[i] = calloc(1, BYTES);
        data[N + i] = memory;
        requests[i] = host_irecv(r, PSD_U8, data[i], BYTES, 1 - r->rank, i);
        requests[N + i] = host_isend(r, PSD_U8, data[N + i], BYTES, 1 - r->rank, i);
    }
    psd_op barrier = host_op(PSD_OP_BARRIER, (psd_dtype)0, 0, NULL, NULL);
    psd_status met = host_run(r, &barrier, NULL); /* the transfers go on meanwhile */
    HOST_CHECK(r, met == PSD_OK || (r->rank == 1 && met == PSD_ERR_ABORTED));
    if (r->rank == 0)
        host->group_abort(r->group, PSD_ERR_ABORTED, "enough");
    for (int i = 0; i < 2 * N; i++) {
        psd_status status = host_finish(r, &requests[i], NULL);
        HOST_CHECK(r, status == PSD_OK || status == PSD_ERR_ABORTED);
        if (i < N)
            free(data[i]);
        else
            host->mem_free(r->backend, data[i], BYTES);
    }
}

PSD_TEST(host_fail, an_abort_in_the_middle_of_transfers)
{
    cr_assert_eq(run_on(2, "shm", 65536, aborted_in_flight, NULL), 0);
    cr_assert_eq(run_on(2, "tcp", 65536, aborted_in_flight, NULL), 0);
}

static void closed(host_rank *r)
{
    int32_t x = 7;
    if (r->rank == 0) {
        psd_request *send = host_isend(r, PSD_I32, &x, 1, 1, 0);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
        host->group_close(r->group);
        r->group = NULL;
        return;
    }
    int32_t got = 0;
    psd_request *receive = host_irecv(r, PSD_I32, &got, 1, 0, 0);
    HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_OK && got == 7);
    receive = host_irecv(r, PSD_I32, &got, 1, 0, 0);
    HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_ERR_PEER_FAILED);
}

PSD_TEST(host_fail, what_was_sent_before_a_close_arrives_and_nothing_after)
{
    cr_assert_eq(run_on(2, "shm", 65536, closed, NULL), 0);
    cr_assert_eq(run_on(2, "tcp", 65536, closed, NULL), 0);
}

/* A receive from any source ends when the last of the others has left, whether it was posted before or after;
 * not one whose own batch sends to this rank. */
static void any_source_closed(host_rank *r)
{
    if (r->rank != 1) {
        host->group_close(r->group);
        r->group = NULL;
        return;
    }
    int32_t x = 7;
    int32_t got = 0;
    char text[PSD_MAX_TEXT] = "";
    psd_op_p2p both[2] = {{false, PSD_I32, &got, 1, PSD_ANY_SOURCE, 0}, {true, PSD_I32, &x, 1, 1, 0}};
    psd_op batch = host_op(PSD_OP_BATCH, (psd_dtype)0, 0, NULL, NULL);
    batch.p2p = both;
    batch.p2p_count = 2;
    HOST_CHECK(r, host_run(r, &batch, NULL) == PSD_OK && got == 7);
    psd_op receive = batch;
    receive.kind = PSD_OP_RECV;
    receive.p2p_count = 1;
    HOST_CHECK(r, host_run(r, &receive, text) == PSD_ERR_PEER_FAILED);
    HOST_CHECK(r, strstr(text, "every other rank has closed it") != NULL);
}

PSD_TEST(host_fail, a_receive_from_any_source_ends_when_all_others_have_left)
{
    cr_assert_eq(run_on(3, "shm", 65536, any_source_closed, NULL), 0);
    cr_assert_eq(run_on(2, "tcp", 65536, any_source_closed, NULL), 0);
}

/* Rank 0 leaves at once, its context and all; rank 1 finds out by sending. */
static void send_to_closed(host_rank *r)
{
    if (r->rank == 0) {
        host_rank_close(r);
        return;
    }
    int32_t x = 7;
    char text[PSD_MAX_TEXT] = "";
    psd_status status = PSD_OK;
    psd_time_ns deadline = psd_now_ns() + 10 * PSD_NS_PER_S;
    psd_op_p2p p2p = {true, PSD_I32, &x, 1, 0, 0};
    while (status == PSD_OK && psd_now_ns() < deadline) {
        psd_op op = host_op(PSD_OP_SEND, PSD_I32, 1, NULL, NULL);
        op.p2p = &p2p;
        op.p2p_count = 1;
        status = host_run(r, &op, text);
    }
    HOST_CHECK(r, status == PSD_ERR_PEER_FAILED);
    HOST_CHECK(r, strstr(text, "rank 0 has closed it") != NULL);
}

PSD_TEST(host_fail, a_send_to_who_has_closed_the_group_ends)
{
    cr_assert_eq(run_on(2, "shm", 65536, send_to_closed, NULL), 0);
    cr_assert_eq(run_on(2, "tcp", 65536, send_to_closed, NULL), 0);
}

/* Nobody misses a rank that has closed the group and gone, as long as nothing is wanted from it. */
static void leave_in_turn(host_rank *r)
{
    psd_op barrier = host_op(PSD_OP_BARRIER, (psd_dtype)0, 0, NULL, NULL);
    HOST_CHECK(r, host_run(r, &barrier, NULL) == PSD_OK);
    if (r->rank == 0) {
        host_rank_close(r);
        return;
    }
    int32_t x = r->rank;
    for (int i = 0; i < 200; i++) {
        psd_request *send = host_isend(r, PSD_I32, &x, 1, 3 - r->rank, 0);
        int32_t got = 0;
        psd_request *receive = host_irecv(r, PSD_I32, &got, 1, 3 - r->rank, 0);
        HOST_CHECK(r, host_finish(r, &receive, NULL) == PSD_OK && got == 3 - r->rank);
        HOST_CHECK(r, host_finish(r, &send, NULL) == PSD_OK);
    }
    HOST_CHECK(r, atomic_load(&r->broken) == 0);
}

PSD_TEST(host_fail, a_rank_that_leaves_in_order_breaks_nothing)
{
    cr_assert_eq(run_on(3, "shm", 65536, leave_in_turn, NULL), 0);
    cr_assert_eq(run_on(3, "tcp", 65536, leave_in_turn, NULL), 0);
}

/* ------------------------------------------------------------------------------------- processes that die */

typedef struct shared_page {
    char address[2][PSD_MAX_ADDR];
    atomic_int ready[2];
} shared_page;

/* Both processes have come to this stage. */
static void meet(shared_page *page, int rank, int stage)
{
    atomic_store(&page->ready[rank], stage);
    while (atomic_load(&page->ready[1 - rank]) < stage)
        usleep(1000);
}

static bool bring_up(host_rank *r, const host_ranks *all, shared_page *page, int rank)
{
    static const uint8_t token[16] = {1, 2, 3};
    const char *addresses[2] = {page->address[0], page->address[1]};
    bool is_open = host_rank_open(r, all, rank, page->address[rank]) == PSD_OK;
    meet(page, rank, 1);
    bool is_up = is_open && host_rank_join(r, 9, addresses, token) == PSD_OK;
    meet(page, rank, 2);
    return is_up;
}

static void killed_peer(const char *transport)
{
    host_ranks all = {.size = 2, .transport = transport, .eager_limit = 65536};
    shared_page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(page, MAP_FAILED);
    memset(page, 0, sizeof(*page));
    pid_t child = fork();
    cr_assert_geq(child, 0);
    host_rank r;
    if (child == 0) {
        if (bring_up(&r, &all, page, 1))
            raise(SIGKILL);
        _exit(1);
    }
    cr_assert(bring_up(&r, &all, page, 0));
    int32_t x = 0;
    char text[PSD_MAX_TEXT] = "";
    psd_op op = host_op(PSD_OP_ALL_REDUCE, PSD_I32, 1, &x, &x);
    op.redop = PSD_SUM;
    psd_time_ns before = psd_now_ns();
    psd_status status = host_run(&r, &op, text);
    cr_expect(status == PSD_ERR_PEER_FAILED || status == PSD_ERR_LINK, "%d: %s", status, text);
    cr_expect_lt(psd_now_ns() - before, 5 * PSD_NS_PER_S);
    cr_expect_not_null(strstr(text, "rank 0 lost rank 1"), "%s", text);
    cr_expect_eq(atomic_load(&r.broken), 1);
    host_rank_close(&r);
    int exit_status = 0;
    cr_assert_eq(waitpid(child, &exit_status, 0), child);
    cr_assert(WIFSIGNALED(exit_status));
    munmap(page, sizeof(*page));
}

PSD_TEST(host_fail, a_killed_peer_is_noticed_over_shared_memory)
{
    killed_peer("shm");
}

PSD_TEST(host_fail, a_killed_peer_is_noticed_over_tcp)
{
    killed_peer("tcp");
}

/* The child of a_stopped_peer: stops in the middle of receiving, and must not take what it finds afterwards for
 * the message. */
static void receive_stopped(shared_page *page, const host_ranks *all, int64_t bytes)
{
    host_rank r;
    void *data = calloc(1, (size_t)bytes);
    if (!bring_up(&r, all, page, 1))
        _exit(1);
    psd_request *receive = host_irecv(&r, PSD_U8, data, bytes, 0, 0);
    raise(SIGSTOP);
    _exit(host_finish(&r, &receive, NULL) != PSD_OK ? 0 : 1);
}

PSD_TEST(host_fail, a_stopped_peer_does_not_keep_an_aborted_send_nor_read_its_memory_later)
{
    enum { BYTES = 8 << 20 };
    host_ranks all = {.size = 2, .transport = "shm", .eager_limit = 65536};
    shared_page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(page, MAP_FAILED);
    memset(page, 0, sizeof(*page));
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        receive_stopped(page, &all, BYTES);
    host_rank r;
    int state = 0;
    void *data = NULL;
    cr_assert(bring_up(&r, &all, page, 0));
    cr_assert_eq(host->mem_alloc(r.backend, BYTES, &data), PSD_OK, "memory that the receiver reads");
    cr_assert_eq(waitpid(child, &state, WUNTRACED), child);
    cr_assert(WIFSTOPPED(state));
    psd_request *send = host_isend(&r, PSD_U8, data, BYTES, 1, 0);
    host->group_abort(r.group, PSD_ERR_ABORTED, "enough");
    cr_expect_eq(host_finish(&r, &send, NULL), PSD_ERR_ABORTED);
    memset(data, 1, BYTES);
    cr_assert_eq(kill(child, SIGCONT), 0);
    cr_assert_eq(waitpid(child, &state, 0), child);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    host->mem_free(r.backend, data, BYTES);
    host_rank_close(&r);
    munmap(page, sizeof(*page));
}
