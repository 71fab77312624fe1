/* The jobs of the tests of this folder: a program that uses psd as a user's would.
 *
 *     ranks all_reduce BYTES ROUNDS   of the whole world, f32, every element compared
 *     ranks groups                    groups of ranks of one host, of different hosts and mixed ones
 *     ranks pairs SECONDS             each rank with the next one, at the same time, a thread for each pair; what
 *                                     becomes of each pair is printed
 *     ranks linger                    goes on until something fails
 *     ranks fail RANK                 the same, but that rank exits with status 7
 *     ranks stay                      the same, but keeps its context when something has failed, until it is killed
 *
 * Exit status 0 if all is right, 1 if a call failed (the sentence is printed) or a result is wrong, 2 usage.
 */
#include <psd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAIR_COUNT ((int64_t)1 << 20) /* elements; 4 MiB: a cut comes in mid-transfer */

typedef struct pair {
    psd_ctx *ctx;
    psd_group group;
    int32_t ranks[2];
    double seconds;
    long rounds;
    psd_status status;
    char text[1024];
} pair;

static int report(const char *what)
{
    printf("%s: %s\n", what, psd_last_error());
    return 1;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pause_ms(long ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

/* Exact in f32 for any sum of up to 16 ranks. */
static float element(int32_t rank, int64_t i)
{
    return (float)(i % 1021 + 1) * (float)(rank + 1);
}

/* One all_reduce of a group whose ranks are, in the world, `members`: PSD_ERR_INTERNAL if a sum is wrong. */
static psd_status reduce_once(psd_ctx *ctx, psd_group group, const int32_t *members, int32_t size,
                              int64_t count, float *data)
{
    float factor = 0;
    int32_t rank = psd_rank(ctx);
    psd_tensor t = psd_tensor_1d(data, count, PSD_F32, "sum");
    for (int64_t i = 0; i < count; i++)
        data[i] = element(rank, i);
    psd_status status = psd_all_reduce(ctx, group, &t, &t, PSD_SUM, NULL);
    if (status != PSD_OK)
        return status;
    for (int32_t m = 0; m < size; m++)
        factor += (float)(members[m] + 1);
    for (int64_t i = 0; i < count; i++)
        if (data[i] != (float)(i % 1021 + 1) * factor) {
            printf("rank %d: element %lld is %g\n", rank, (long long)i, (double)data[i]);
            return PSD_ERR_INTERNAL;
        }
    return PSD_OK;
}

static void all_ranks(psd_ctx *ctx, int32_t *members)
{
    for (int32_t r = 0; r < psd_world_size(ctx); r++)
        members[r] = r;
}

static int do_all_reduce(psd_ctx *ctx, int64_t bytes, long rounds)
{
    int32_t members[64];
    int64_t count = bytes / 4;
    float *data = malloc((size_t)(count > 0 ? count : 1) * sizeof *data);
    psd_status status = data == NULL ? PSD_ERR_NOMEM : PSD_OK;
    all_ranks(ctx, members);
    for (long i = 0; i < rounds && status == PSD_OK; i++)
        status = reduce_once(ctx, PSD_WORLD, members, psd_world_size(ctx), count, data);
    free(data);
    if (status != PSD_OK)
        return report("all_reduce failed");
    printf("rank %d local %d of %d: %ld all_reduce of %lld bytes right\n", psd_rank(ctx), psd_local_rank(ctx),
           psd_world_size(ctx), rounds, (long long)bytes);
    return 0;
}

/* This rank's part in a group of those world ranks; true if all is right, or this rank is not in it. */
static bool try_group(psd_ctx *ctx, const int32_t *members, int32_t size)
{
    static float data[100000];
    static const int64_t counts[] = {1, 1000, 100000};
    psd_group group;
    bool is_member = false;
    for (int32_t m = 0; m < size; m++)
        is_member = is_member || members[m] == psd_rank(ctx);
    if (!is_member)
        return true;
    psd_status status = psd_group_new(ctx, members, size, &group);
    if (status != PSD_OK)
        return report("group_new failed") == 0;
    for (int i = 0; i < 3 && status == PSD_OK; i++)
        status = reduce_once(ctx, group, members, size, counts[i], data);
    if (status == PSD_OK)
        status = psd_group_destroy(ctx, group);
    return status == PSD_OK || report("a group failed") == 0;
}

/* Ranks 2i and 2i+1 are on one host. */
static int do_groups(psd_ctx *ctx)
{
    int32_t world = psd_world_size(ctx);
    int32_t members[64];
    bool ok = true;
    for (int32_t r = 0; r + 1 < world; r++) /* neighbours: on one host and not, in turn */
        ok = try_group(ctx, (const int32_t[]){r, r + 1}, 2) && ok;
    for (int32_t first = 0; first < 2; first++) { /* one rank of each host */
        for (int32_t r = first; r < world; r += 2)
            members[r / 2] = r;
        ok = try_group(ctx, members, world / 2) && ok;
    }
    for (int32_t r = 0; r < world; r++) /* all, in another order */
        members[r] = world - 1 - r;
    ok = try_group(ctx, members, world) && ok;
    ok = try_group(ctx, members, world - 1) && ok; /* pairs, and one alone on its host */
    if (ok)
        printf("rank %d: groups right\n", psd_rank(ctx));
    return ok ? 0 : 1;
}

/* Both ranks stop after the same round: the first element is how many want to. */
static void *run_pair(void *argument)
{
    pair *p = argument;
    double until = seconds_now() + p->seconds;
    float want = 0;
    float *data = malloc((size_t)PAIR_COUNT * sizeof *data);
    psd_tensor t = psd_tensor_1d(&want, 1, PSD_F32, "stop");
    p->status = data == NULL ? PSD_ERR_NOMEM : PSD_OK;
    while (p->status == PSD_OK) {
        p->status = reduce_once(p->ctx, p->group, p->ranks, 2, PAIR_COUNT, data);
        if (p->status != PSD_OK)
            break;
        p->rounds++;
        want = seconds_now() >= until ? 1 : 0;
        p->status = psd_all_reduce(p->ctx, p->group, &t, &t, PSD_SUM, NULL);
        if (want > 0)
            break;
    }
    if (p->status != PSD_OK)
        snprintf(p->text, sizeof p->text, "%s", psd_last_error());
    free(data);
    if (p->status != PSD_OK)
        printf("pair %d,%d failed: %s\n", p->ranks[0], p->ranks[1], p->text);
    else
        printf("pair %d,%d went on: %ld rounds right\n", p->ranks[0], p->ranks[1], p->rounds);
    return NULL;
}

/* The exit status is 0 whatever became of the pairs. */
static int do_pairs(psd_ctx *ctx, double seconds)
{
    pair pairs[2];
    pthread_t threads[2];
    int count = 0;
    int32_t world = psd_world_size(ctx);
    for (int32_t r = 0; r < world; r++) {
        pair p = {.ctx = ctx, .ranks = {r, (r + 1) % world}, .seconds = seconds};
        if (psd_rank(ctx) != p.ranks[0] && psd_rank(ctx) != p.ranks[1])
            continue;
        if (psd_group_new(ctx, p.ranks, 2, &p.group) != PSD_OK)
            return report("group_new failed");
        pairs[count++] = p;
    }
    printf("rank %d: pairs run\n", psd_rank(ctx));
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run_pair, &pairs[i]) != 0)
            return 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

static int do_linger(psd_ctx *ctx, int32_t failing, bool stays)
{
    int32_t members[64];
    float data[1000];
    psd_status status = PSD_OK;
    all_ranks(ctx, members);
    printf("rank %d is here, process %d\n", psd_rank(ctx), (int)getpid());
    while (status == PSD_OK) {
        if (psd_rank(ctx) == failing)
            exit(7);
        status = reduce_once(ctx, PSD_WORLD, members, psd_world_size(ctx), 1000, data);
        pause_ms(20);
    }
    int result = report("ended");
    while (stays)
        pause();
    return result;
}

/* "16M", or -1. */
static int64_t parse_bytes(const char *text)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*end == 'K' || *end == 'M')
        value <<= *end++ == 'K' ? 10 : 20;
    return *end == '\0' && value >= 4 ? value : -1;
}

static int usage(void)
{
    fputs("usage: ranks all_reduce BYTES ROUNDS | groups | pairs SECONDS | linger | fail RANK | stay\n",
          stderr);
    return 2;
}

int main(int argc, char **argv)
{
    psd_ctx *ctx = NULL;
    int result = 2;
    const char *mode = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (psd_init(NULL, &ctx) != PSD_OK)
        return report("init failed");
    if (psd_world_size(ctx) > 64)
        result = usage();
    else if (strcmp(mode, "all_reduce") == 0 && argc == 4 && parse_bytes(argv[2]) > 0)
        result = do_all_reduce(ctx, parse_bytes(argv[2]), atol(argv[3]));
    else if (strcmp(mode, "groups") == 0 && argc == 2)
        result = do_groups(ctx);
    else if (strcmp(mode, "pairs") == 0 && argc == 3)
        result = do_pairs(ctx, atof(argv[2]));
    else if (strcmp(mode, "linger") == 0 && argc == 2)
        result = do_linger(ctx, -1, false);
    else if (strcmp(mode, "stay") == 0 && argc == 2)
        result = do_linger(ctx, -1, true);
    else if (strcmp(mode, "fail") == 0 && argc == 3)
        result = do_linger(ctx, (int32_t)atoi(argv[2]), false);
    else
        result = usage();
    if (psd_finalize(&ctx) != PSD_OK && result == 0 && strcmp(mode, "pairs") != 0)
        result = report("finalize failed");
    return result;
}
