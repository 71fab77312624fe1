/* Data-parallel training of a network whose layers are large enough that moving gradients matters: as
 * torch.nn.parallel.DistributedDataParallel, each layer's gradients are a bucket, and its all_reduce starts as soon as
 * the backward pass has made them, while the layers below are still being computed.
 *
 * Linear layers with ReLU between them, softmax and cross-entropy, SGD; the matrix products are a BLAS's (cblas.h).
 * Every worker has 64 rows of its own in every iteration. Measured, in runs that take turns, each of 100 iterations:
 *   alone      worker 0 computes, without exchange, while the others sleep
 *   together   all compute, without exchange
 *   in step    the same with a barrier in each iteration: what waiting for the slower one costs without any data
 *   transfer   the all_reduces alone
 *   overlap    all compute and exchange as above
 *   after      the same with one all_reduce after the backward pass
 * Afterwards all workers must have the same parameters, bit by bit, and the losses must be those of one process that has
 * all the rows.
 *
 *     OPENBLAS_NUM_THREADS=1 psrun --standalone -n 2 -- ddp_mlp [--layers 784,512,512,10] [--runs 11]
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include <psd.h>
#include <stdio.h>

#ifdef HAVE_CBLAS
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Every psd call returns a status; the sentence of a failure is psd_last_error(). */
#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        if ((call) != PSD_OK) {                                                                              \
            fprintf(stderr, "%s\n", psd_last_error());                                                       \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum { BATCH = 64, ITERATIONS = 100, MAX_LAYERS = 8, MAX_RUNS = 101, CHECKED = 20 };

static const float RATE = 0.001f;

typedef enum mode { COMPUTE, IN_STEP, TRANSFER, OVERLAP, AFTER } mode;

typedef struct network {
    int layers;
    int widths[MAX_LAYERS + 1];
    size_t begins[MAX_LAYERS + 1]; /* of each layer's weights, then biases, in params and grads; the end */
    int rows;
    int rows_of_all; /* workers: the sum of their gradients is then that of the mean loss */
    float *params;
    float *grads;
    float *values[MAX_LAYERS + 1]; /* rows * width: the input, then each layer's output */
    float *errors[MAX_LAYERS + 1]; /* derivatives by those */
    float *ones;                   /* rows */
    int *labels;
} network;

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void *memory(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (p == NULL) {
        fprintf(stderr, "ddp_mlp: out of memory\n");
        exit(1);
    }
    return p;
}

/* The same numbers in [-1, 1) on every worker: a linear congruential generator. */
static float uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1;
}

/* ------------------------------------------------------------------------------------------------ network */

/* `params` and `grads` have begins[layers] elements each. */
static void make_network(network *n, const int *widths, int layers, int rows, int rows_of_all)
{
    *n = (network){.layers = layers, .rows = rows, .rows_of_all = rows_of_all};
    for (int l = 0; l <= layers; l++) {
        size_t width = (size_t)widths[l], count = (size_t)rows * width;
        n->widths[l] = widths[l];
        n->values[l] = memory(count * sizeof(float));
        n->errors[l] = memory(count * sizeof(float));
        if (l < layers)
            n->begins[l + 1] = n->begins[l] + (width + 1) * (size_t)widths[l + 1];
    }
    n->ones = memory((size_t)rows * sizeof(float));
    n->labels = memory((size_t)rows * sizeof(int));
    for (int i = 0; i < rows; i++)
        n->ones[i] = 1;
}

static void free_network(network *n)
{
    for (int l = 0; l <= n->layers; l++) {
        free(n->values[l]);
        free(n->errors[l]);
    }
    free(n->ones);
    free(n->labels);
}

/* As torch.nn.Linear begins. */
static void reset_params(network *n)
{
    uint32_t state = 1;
    for (int l = 0; l < n->layers; l++) {
        float bound = 1 / sqrtf((float)n->widths[l]);
        for (size_t i = n->begins[l]; i < n->begins[l + 1]; i++)
            n->params[i] = bound * uniform(&state);
    }
}

/* Rows first to first + rows of the data that all workers' rows are. */
static void set_rows(network *n, int first)
{
    uint32_t state = 7;
    int width = n->widths[0];
    for (int row = 0; row < first + n->rows; row++) {
        int label = (int)((uniform(&state) + 1) / 2 * (float)n->widths[n->layers]);
        for (int i = 0; i < width; i++) {
            float x = uniform(&state);
            if (row >= first)
                n->values[0][(row - first) * width + i] = x;
        }
        if (row >= first)
            n->labels[row - first] = label;
    }
}

/* Those with a positive `by` stay, the others become 0. */
static void keep_positive(float *values, const float *by, int count)
{
    for (int i = 0; i < count; i++)
        values[i] = by[i] > 0 ? values[i] : 0;
}

/* out = in * weights^T + biases; negative ones become 0 except in the last layer. */
static void forward(network *n, int l)
{
    int in = n->widths[l], out = n->widths[l + 1];
    const float *weights = n->params + n->begins[l], *biases = weights + (size_t)in * (size_t)out;
    float *to = n->values[l + 1];
    for (int row = 0; row < n->rows; row++)
        memcpy(to + row * out, biases, (size_t)out * sizeof(float));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n->rows, out, in, 1, n->values[l], in, weights, in,
                1, to, out);
    if (l + 1 < n->layers)
        keep_positive(to, to, n->rows * out);
}

/* The mean cross-entropy of the rows. errors[layers] gets the derivatives of the mean over all workers' rows. */
static double loss(network *n)
{
    int classes = n->widths[n->layers];
    double sum = 0;
    for (int row = 0; row < n->rows; row++) {
        const float *z = n->values[n->layers] + row * classes;
        float *error = n->errors[n->layers] + row * classes, most = z[0], total = 0;
        for (int c = 1; c < classes; c++)
            most = z[c] > most ? z[c] : most;
        for (int c = 0; c < classes; c++) {
            error[c] = expf(z[c] - most);
            total += error[c]; /* at least 1, for the largest */
        }
        // cppcheck-suppress invalidFunctionArg ; there is at least one class
        sum += log((double)total) - (double)(z[n->labels[row]] - most);
        for (int c = 0; c < classes; c++)
            error[c] = (error[c] / total - (c == n->labels[row] ? 1.0f : 0.0f)) / (float)n->rows_of_all;
    }
    return sum / n->rows;
}

/* The layer's gradients, and the errors of its input unless that is the network's. */
static void backward(network *n, int l)
{
    int in = n->widths[l], out = n->widths[l + 1];
    float *weights = n->grads + n->begins[l], *biases = weights + (size_t)in * (size_t)out;
    const float *errors = n->errors[l + 1];
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, n->rows, 1, errors, out, n->values[l], in,
                0, weights, in);
    cblas_sgemv(CblasRowMajor, CblasTrans, n->rows, out, 1, errors, out, n->ones, 1, 0, biases, 1);
}

static void backward_input(network *n, int l)
{
    int in = n->widths[l], out = n->widths[l + 1];
    float *to = n->errors[l];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n->rows, in, out, 1, n->errors[l + 1], out,
                n->params + n->begins[l], in, 0, to, in);
    keep_positive(to, n->values[l], n->rows * in);
}

static void update(network *n, size_t begin, size_t end)
{
    cblas_saxpy((int)(end - begin), -RATE, n->grads + begin, 1, n->params + begin, 1);
}

/* ----------------------------------------------------------------------------------------------- training */

static psd_tensor gradients(const network *n, size_t begin, size_t end)
{
    return psd_tensor_1d(n->grads + begin, (int64_t)(end - begin), PSD_F32, "grads");
}

static void start_exchange(psd_ctx *ctx, const network *n, int l, psd_work *work)
{
    psd_tensor bucket = gradients(n, n->begins[l], n->begins[l + 1]);
    CHECK(psd_iall_reduce(ctx, PSD_WORLD, &bucket, &bucket, PSD_SUM, NULL, work));
}

/* One iteration; the loss of this worker's rows. */
static double iterate(psd_ctx *ctx, network *n, mode how)
{
    psd_work works[MAX_LAYERS];
    for (int l = 0; how != TRANSFER && l < n->layers; l++)
        forward(n, l);
    double value = how == TRANSFER ? 0 : loss(n);
    for (int l = n->layers; l-- > 0;) {
        if (how != TRANSFER)
            backward(n, l);
        if (how == OVERLAP || how == TRANSFER)
            start_exchange(ctx, n, l, &works[l]);
        if (how != TRANSFER && l > 0)
            backward_input(n, l);
    }
    if (how == IN_STEP)
        CHECK(psd_barrier(ctx, PSD_WORLD, NULL));
    if (how == AFTER) {
        psd_tensor all = gradients(n, 0, n->begins[n->layers]);
        CHECK(psd_all_reduce(ctx, PSD_WORLD, &all, &all, PSD_SUM, NULL));
    }
    for (int l = n->layers; l-- > 0;) {
        if (how == OVERLAP || how == TRANSFER)
            CHECK(psd_wait(ctx, works[l], 0));
        if (how != TRANSFER)
            update(n, n->begins[l], n->begins[l + 1]);
    }
    return value;
}

/* Milliseconds of the slowest worker for all iterations; -1 where this worker had nothing to do. */
static double train(psd_ctx *ctx, network *n, mode how, bool takes_part)
{
    CHECK(psd_barrier(ctx, PSD_WORLD, NULL));
    double begun = now();
    for (int i = 0; takes_part && i < ITERATIONS; i++)
        (void)iterate(ctx, n, how);
    double ms = takes_part ? (now() - begun) * 1e3 : -1;
    psd_tensor slowest = psd_tensor_1d(&ms, 1, PSD_F64, "ms");
    CHECK(psd_all_reduce(ctx, PSD_WORLD, &slowest, &slowest, PSD_MAX, NULL));
    return ms;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median; prints it with the least and the greatest. */
static double report(const char *what, double *ms, int runs, bool speaks)
{
    qsort(ms, (size_t)runs, sizeof *ms, by_value);
    double median = runs % 2 ? ms[runs / 2] : (ms[runs / 2 - 1] + ms[runs / 2]) / 2;
    if (speaks)
        printf("| %s | %.1f [%.1f-%.1f] |\n", what, median, ms[0], ms[runs - 1]);
    return median;
}

static void measure(psd_ctx *ctx, network *n, int runs)
{
    enum { MODES = 6 };
    static const char *const names[MODES] = {"alone", "together", "in step", "transfer", "overlap", "after"};
    static const mode modes[MODES] = {COMPUTE, COMPUTE, IN_STEP, TRANSFER, OVERLAP, AFTER};
    static double ms[MODES][MAX_RUNS];
    double medians[MODES];
    int speaks = psd_rank(ctx) == 0;
    for (int run = -1; run < runs; run++) /* the first warms */
        for (int m = 0; m < MODES; m++) {
            reset_params(n);
            double took = train(ctx, n, modes[m], m > 0 || speaks);
            if (run >= 0)
                ms[m][run] = took;
        }
    if (speaks)
        printf("| %d iterations, %d workers, %zu bytes of gradients | ms, median [least-greatest] "
               "|\n|---|---|\n",
               ITERATIONS, psd_world_size(ctx), n->begins[n->layers] * sizeof(float));
    for (int m = 0; m < MODES; m++)
        medians[m] = report(names[m], ms[m], runs, speaks);
    double larger = medians[0] > medians[3] ? medians[0] : medians[3];
    if (speaks)
        printf("ddp_mlp: over the larger of alone and transfer: overlap %.2f, after %.2f, in step %.2f, "
               "together %.2f\n",
               medians[4] / larger, medians[5] / larger, medians[2] / larger, medians[1] / larger);
}

/* ------------------------------------------------------------------------------------------------- checks */

/* Are all workers' parameters the same bits? */
static bool are_identical(psd_ctx *ctx, const network *n)
{
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
    int32_t world = psd_world_size(ctx);
    const unsigned char *bytes = (const unsigned char *)n->params;
    for (size_t i = 0; i < n->begins[n->layers] * sizeof(float); i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    uint64_t *all = memory((size_t)world * sizeof *all);
    psd_tensor mine = psd_tensor_1d(&hash, 1, PSD_U64, "hash"),
               every = psd_tensor_1d(all, world, PSD_U64, "hashes");
    CHECK(psd_all_gather(ctx, PSD_WORLD, &mine, &every, NULL));
    bool same = true;
    for (int32_t i = 0; i < world; i++)
        same = same && all[i] == hash;
    free(all);
    return same;
}

/* The largest difference between the mean of the workers' losses and the loss of one process with all rows. */
static double compare_losses(psd_ctx *ctx, network *n, mode how, bool *same)
{
    network whole;
    double worst = 0;
    int32_t world = psd_world_size(ctx);
    make_network(&whole, n->widths, n->layers, world * BATCH, world * BATCH);
    whole.params = memory(n->begins[n->layers] * sizeof(float));
    whole.grads = memory(n->begins[n->layers] * sizeof(float));
    set_rows(&whole, 0);
    reset_params(&whole);
    reset_params(n);
    for (int i = 0; i < CHECKED; i++) {
        double mine = iterate(ctx, n, how), one = iterate(ctx, &whole, COMPUTE);
        psd_tensor mean = psd_tensor_1d(&mine, 1, PSD_F64, "loss");
        CHECK(psd_all_reduce(ctx, PSD_WORLD, &mean, &mean, PSD_AVG, NULL));
        worst = fabs(mine - one) > worst ? fabs(mine - one) : worst;
    }
    *same = are_identical(ctx, n);
    free(whole.params);
    free(whole.grads);
    free_network(&whole);
    return worst;
}

static int check(psd_ctx *ctx, network *n)
{
    int wrong = 0;
    for (mode how = OVERLAP; how <= AFTER; how++) {
        bool same = false;
        double difference = compare_losses(ctx, n, how, &same);
        if (psd_rank(ctx) == 0)
            printf("ddp_mlp: %s: workers=%d identical=%s loss_diff=%.1e\n",
                   how == OVERLAP ? "overlap" : "after", psd_world_size(ctx), same ? "yes" : "NO",
                   difference);
        wrong |= !same || !(difference < 1e-5);
    }
    return wrong;
}

/* "784,512,512,10"; the number of layers, or 0. */
static int parse_layers(const char *text, int *widths)
{
    int count = 0;
    for (char *end = NULL; count <= MAX_LAYERS; text = end + 1) {
        long width = strtol(text, &end, 10);
        if (end == text || width < 1 || width > 65536 || (*end != ',' && *end != '\0'))
            return 0;
        widths[count++] = (int)width;
        if (*end == '\0')
            return count - 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    psd_ctx *ctx = NULL;
    int widths[MAX_LAYERS + 1], layers = parse_layers("784,512,512,10", widths), runs = 11;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--layers") == 0)
            layers = parse_layers(value, widths);
        else
            runs = strcmp(argv[i], "--runs") == 0 ? atoi(value) : -1;
    }
    if (layers == 0 || runs < 0 || runs > MAX_RUNS)
        return fprintf(stderr, "usage: ddp_mlp [--layers IN,...,OUT] [--runs 0 to %d]\n", MAX_RUNS), 2;
    CHECK(psd_init(NULL, &ctx));
    network n;
    psd_tensor grads;
    make_network(&n, widths, layers, BATCH, psd_world_size(ctx) * BATCH);
    int64_t count = (int64_t)n.begins[layers];
    CHECK(psd_tensor_alloc(ctx, &count, 1, PSD_F32, "grads", &grads));
    n.grads = grads.data;
    n.params = memory((size_t)count * sizeof(float));
    set_rows(&n, psd_rank(ctx) * BATCH);
    int wrong = check(ctx, &n);
    if (wrong == 0 && runs > 0)
        measure(ctx, &n, runs);
    CHECK(psd_tensor_free(ctx, &grads));
    free(n.params);
    free_network(&n);
    CHECK(psd_finalize(&ctx));
    return wrong;
}

#else

int main(void)
{
    printf("skip: ddp_mlp was built without a BLAS (Debian: libopenblas-dev)\n");
    return 0;
}

#endif
