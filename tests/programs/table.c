/* A trainer of tables for the integration tests: table KIND. Servers are psworkers. Exit: 0 what was
 * expected, 1 not, 3 an operation failed (the sentence is printed), 4 did not join.
 *
 *   values    SGD and momentum, odd shapes, against a plain loop, bit by bit
 *   errors    wrong counts, shapes and dtypes: an error here, and the table goes on
 *   reopen    two tables at once, closed and opened again under the same name
 *   disagree  the ranks ask for different tables, then for the same
 *   room      a table too large for the servers' limit, then a small one
 *   late      one trainer comes after the others' timeout, who push again until it is there
 *   loop      pushes until something fails
 *   unclosed  leaves without closing
 *   last      ends right after its last pull of a table that is larger than what goes unasked
 */
#include <psd.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PARAMS = 4, MOST = 1000, STEPS = 7 };

static const int64_t counts[PARAMS] = {MOST, 1, 0, 35};

typedef struct values {
    float p[PARAMS][MOST];
} values;

static int failed(const char *what)
{
    printf("%s: %s\n", what, psd_last_error());
    return 3;
}

static void describe(values *v, psd_tensor *out)
{
    static const char *const names[PARAMS] = {"long", "one", "none", "matrix"};
    for (int p = 0; p < PARAMS; p++)
        out[p] = psd_tensor_1d(v->p[p], counts[p], PSD_F32, names[p]);
    out[3] = psd_tensor_nd(v->p[3], (const int64_t[]){5, 7}, 2, PSD_F32, names[3]);
}

/* Tensors like these in the memory that the backend moves, the host's or a device's. */
static psd_status alloc_like(psd_ctx *ctx, const psd_tensor *like, int count, psd_tensor *out)
{
    psd_status status = PSD_OK;
    for (int i = 0; i < count && status == PSD_OK; i++)
        status = psd_tensor_alloc(ctx, like[i].shape, like[i].ndim, like[i].dtype, like[i].name, &out[i]);
    return status;
}

static psd_status copy_all(psd_ctx *ctx, psd_tensor *to, const psd_tensor *from, int count)
{
    psd_status status = PSD_OK;
    for (int i = 0; i < count && status == PSD_OK; i++)
        status = psd_tensor_copy(ctx, &to[i], &from[i], NULL);
    return status;
}

static void free_all(psd_ctx *ctx, psd_tensor *list, int count)
{
    for (int i = 0; i < count; i++)
        psd_tensor_free(ctx, &list[i]);
}

/* Different on every rank, and not representable in a few bits, so that the order of additions shows. */
static float grad_of(int rank, int step, int p, int i)
{
    return sinf((float)(rank * 31 + step * 7 + p * 3 + i)) * (float)(1 + rank * 1000);
}

static void fill_grads(values *g, int rank, int step)
{
    for (int p = 0; p < PARAMS; p++) {
        for (int i = 0; i < counts[p]; i++)
            g->p[p][i] = grad_of(rank, step, p, i);
    }
}

/* What the servers should do, in one place. */
static void reference_step(values *w, values *velocity, const psd_table_config *c, int first, int trainers,
                           int step)
{
    for (int p = 0; p < PARAMS; p++) {
        for (int i = 0; i < counts[p]; i++) {
            float sum = grad_of(first, step, p, i);
            for (int t = 1; t < trainers; t++)
                sum += grad_of(first + t, step, p, i);
            if (c->average)
                sum /= (float)trainers;
            if (c->optimizer == PSD_OPT_MOMENTUM)
                sum = velocity->p[p][i] = (float)c->momentum * velocity->p[p][i] + sum;
            w->p[p][i] -= (float)c->lr * sum;
        }
    }
}

static int run_values(psd_ctx *ctx, int servers, const psd_table_config *config, const char *name)
{
    static values mine, grads, expected, velocity;
    psd_tensor params[PARAMS], g[PARAMS], moved_params[PARAMS], moved_g[PARAMS];
    psd_table table;
    int trainers = psd_world_size(ctx) - servers;
    int wrong = 0;
    memset(&velocity, 0, sizeof(velocity));
    for (int p = 0; p < PARAMS; p++) {
        for (int i = 0; i < MOST; i++) {
            expected.p[p][i] = (float)(p + i);
            /* Only the lowest trainer's values count. */
            mine.p[p][i] = psd_rank(ctx) == servers ? expected.p[p][i] : -77;
        }
    }
    describe(&mine, params);
    describe(&grads, g);
    if (alloc_like(ctx, params, PARAMS, moved_params) != PSD_OK ||
        alloc_like(ctx, g, PARAMS, moved_g) != PSD_OK ||
        copy_all(ctx, moved_params, params, PARAMS) != PSD_OK)
        return failed("alloc");
    if (psd_table_open(ctx, name, moved_params, PARAMS, config, &table) != PSD_OK)
        return failed("open");
    for (int step = 0; step <= STEPS; step++) {
        if (psd_table_pull(ctx, table, moved_params, PARAMS) != PSD_OK ||
            copy_all(ctx, params, moved_params, PARAMS) != PSD_OK)
            return failed("pull");
        for (int p = 0; p < PARAMS; p++)
            wrong += memcmp(mine.p[p], expected.p[p], (size_t)counts[p] * sizeof(float)) != 0;
        fill_grads(&grads, psd_rank(ctx), step);
        if (copy_all(ctx, moved_g, g, PARAMS) != PSD_OK ||
            psd_table_push(ctx, table, moved_g, PARAMS) != PSD_OK)
            return failed("push");
        reference_step(&expected, &velocity, config, servers, trainers, step);
    }
    if (psd_table_close(ctx, table) != PSD_OK)
        return failed("close");
    free_all(ctx, moved_params, PARAMS);
    free_all(ctx, moved_g, PARAMS);
    printf("%s: %d wrong\n", name, wrong);
    return wrong == 0 ? 0 : 1;
}

static int kind_values(psd_ctx *ctx, int servers)
{
    psd_table_config config;
    psd_table_config_init(&config);
    int code = run_values(ctx, servers, &config, "sgd");
    config.average = false;
    config.lr = 1e-3;
    code = code == 0 ? run_values(ctx, servers, &config, "sum") : code;
    config.optimizer = PSD_OPT_MOMENTUM;
    config.momentum = 0.9;
    config.average = true;
    return code == 0 ? run_values(ctx, servers, &config, "momentum") : code;
}

static psd_status open_small(psd_ctx *ctx, const char *name, int64_t count, psd_table *out)
{
    static float data[64];
    psd_tensor w = psd_tensor_1d(data, count, PSD_F32, "w");
    return psd_table_open(ctx, name, &w, 1, NULL, out);
}

/* Did the call fail as it should, with this in its sentence? */
static int must_fail(psd_status got, psd_status expected, const char *says)
{
    if (got == expected && strstr(psd_last_error(), says) != NULL)
        return 0;
    printf("got status %d \"%s\", expected %d and \"%s\"\n", got, got != PSD_OK ? psd_last_error() : "",
           expected, says);
    return 1;
}

static int wrong_optimizers(psd_ctx *ctx, const psd_tensor *params)
{
    static const struct {
        double lr;
        double momentum;
        const char *says;
    } list[] = {
        {-1, 0, "lr is -1"},        {NAN, 0, "lr nan"},
        {INFINITY, 0, "lr inf"},    {0.1, -0.5, "momentum is -0.5"},
        {0.1, 1, "momentum is 1;"}, {0.1, NAN, "momentum nan"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        psd_table table;
        psd_table_config config;
        psd_table_config_init(&config);
        config.lr = list[i].lr;
        config.momentum = list[i].momentum;
        wrong +=
            must_fail(psd_table_open(ctx, "w", params, PARAMS, &config, &table), PSD_ERR_INVAL, list[i].says);
    }
    return wrong;
}

static int kind_errors(psd_ctx *ctx, int servers)
{
    static values v, g;
    psd_tensor params[PARAMS], grads[PARAMS], bad[PARAMS];
    psd_table table;
    char rank[32];
    (void)servers;
    snprintf(rank, sizeof(rank), "rank %d", psd_rank(ctx));
    describe(&v, params);
    describe(&g, grads);
    int wrong =
        must_fail(psd_table_open(ctx, "no/name", params, PARAMS, NULL, &table), PSD_ERR_INVAL, "no/name");
    wrong += must_fail(psd_table_open(ctx, "w", params, 0, NULL, &table), PSD_ERR_INVAL, "count is 0");
    params[1].dtype = PSD_F64;
    wrong += must_fail(psd_table_open(ctx, "w", params, PARAMS, NULL, &table), PSD_ERR_UNSUPPORTED,
                       "\"one\" is f64");
    wrong += must_fail(psd_table_open(ctx, "w", params, PARAMS, NULL, &table), PSD_ERR_UNSUPPORTED,
                       "tables hold f32 parameters");
    params[1].dtype = PSD_F32;
    const char *name = params[1].name;
    params[1].name = params[3].name;
    wrong += must_fail(psd_table_open(ctx, "w", params, PARAMS, NULL, &table), PSD_ERR_INVAL,
                       "two parameters are named \"matrix\"");
    params[1].name = NULL;
    wrong += must_fail(psd_table_open(ctx, "w", params, PARAMS, NULL, &table), PSD_ERR_INVAL,
                       "parameter 1 has no name");
    params[1].name = name;
    wrong += wrong_optimizers(ctx, params);
    if (psd_table_open(ctx, "w", params, PARAMS, NULL, &table) != PSD_OK)
        return failed("open");
    wrong += must_fail(psd_table_push(ctx, table, grads, 3), PSD_ERR_INVAL, "got 3 gradients, expected 4");
    memcpy(bad, grads, sizeof(bad));
    bad[3].shape[0] = 7;
    bad[3].shape[1] = 5;
    wrong += must_fail(psd_table_push(ctx, table, bad, PARAMS), PSD_ERR_INVAL,
                       "\"matrix\" has shape [7, 5], expected [5, 7]");
    wrong += must_fail(psd_table_push(ctx, table, bad, PARAMS), PSD_ERR_INVAL, rank);
    memcpy(bad, grads, sizeof(bad));
    bad[0].dtype = PSD_I32;
    wrong +=
        must_fail(psd_table_pull(ctx, table, bad, PARAMS), PSD_ERR_INVAL, "\"long\" is i32, expected f32");
    bad[0] = grads[0];
    bad[0].data = NULL;
    wrong += must_fail(psd_table_push(ctx, table, bad, PARAMS), PSD_ERR_INVAL, "\"long\" has no data");
    if (psd_table_push(ctx, table, grads, PARAMS) != PSD_OK ||
        psd_table_pull(ctx, table, params, PARAMS) != PSD_OK || psd_table_close(ctx, table) != PSD_OK)
        return failed("after the errors");
    wrong += must_fail(psd_table_push(ctx, table, grads, PARAMS), PSD_ERR_STALE, "closed");
    wrong += must_fail(psd_table_close(ctx, table), PSD_ERR_STALE, "closed");
    wrong += must_fail(psd_serve(ctx), PSD_ERR_INVAL, "role");
    printf("errors: %d wrong\n", wrong);
    return wrong == 0 ? 0 : 1;
}

static int kind_reopen(psd_ctx *ctx, int servers)
{
    float x[3] = {0}, one[3] = {1, 1, 1};
    psd_tensor t = psd_tensor_1d(x, 3, PSD_F32, "w");
    psd_tensor g = psd_tensor_1d(one, 3, PSD_F32, "g");
    (void)servers;
    for (int round = 0; round < 3; round++) {
        psd_table a, b, again;
        if (open_small(ctx, "a", 3, &a) != PSD_OK || open_small(ctx, "b", 3, &b) != PSD_OK)
            return failed("open");
        if (must_fail(open_small(ctx, "a", 3, &again), PSD_ERR_EXISTS, "exists") != 0)
            return 1;
        for (int step = 0; step < 3; step++) {
            if (psd_table_push(ctx, b, &g, 1) != PSD_OK || psd_table_push(ctx, a, &g, 1) != PSD_OK ||
                psd_table_push(ctx, b, &g, 1) != PSD_OK)
                return failed("push");
        }
        if (psd_table_close(ctx, a) != PSD_OK || psd_table_pull(ctx, b, &t, 1) != PSD_OK)
            return failed("pull");
        if (fabsf(x[2] + 0.06f) > 1e-6f)
            return printf("w is %g after 6 steps of 0.01\n", (double)x[2]), 1;
        if (psd_table_close(ctx, b) != PSD_OK)
            return failed("close");
    }
    printf("reopen: 0 wrong\n");
    return 0;
}

static int kind_disagree(psd_ctx *ctx, int servers)
{
    psd_table table;
    psd_status status = open_small(ctx, "w", psd_rank(ctx) == servers ? 8 : 9, &table);
    int wrong = must_fail(status, PSD_ERR_MISMATCH, "disagree on table w");
    psd_status then = open_small(ctx, "w2", 8, &table);
    if (then != PSD_OK || psd_table_close(ctx, table) != PSD_OK)
        return failed("open");
    printf("disagree: %d wrong\n", wrong);
    return wrong == 0 ? 0 : 1;
}

static int kind_room(psd_ctx *ctx, int servers)
{
    psd_table table;
    const int64_t count = 8 << 20;
    float *data = calloc((size_t)count, sizeof(*data));
    psd_tensor w = psd_tensor_1d(data, count, PSD_F32, "w");
    (void)servers;
    if (data == NULL)
        return 1;
    psd_status status = psd_table_open(ctx, "large", &w, 1, NULL, &table);
    int wrong = must_fail(status, PSD_ERR_LIMIT, "no room for table large");
    free(data);
    if (open_small(ctx, "small", 8, &table) != PSD_OK || psd_table_close(ctx, table) != PSD_OK)
        return failed("small");
    printf("room: %d wrong\n", wrong);
    return wrong == 0 ? 0 : 1;
}

/* The last trainer computes for longer than an operation may take. */
static void be_slow(void)
{
    struct timespec left = {.tv_sec = 2, .tv_nsec = 500000000};
    while (nanosleep(&left, &left) != 0)
        continue;
}

static int kind_late(psd_ctx *ctx, int servers)
{
    float x[8] = {0}, g[8];
    psd_tensor w = psd_tensor_1d(x, 8, PSD_F32, "w"), grad = psd_tensor_1d(g, 8, PSD_F32, "w");
    psd_table table;
    int timeouts = 0;
    (void)servers;
    if (open_small(ctx, "w", 8, &table) != PSD_OK)
        return failed("open");
    int is_last = psd_rank(ctx) == psd_world_size(ctx) - 1;
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 8; i++)
            g[i] = 100;
        if (is_last && step == 1)
            be_slow();
        psd_status status = psd_table_push(ctx, table, &grad, 1);
        while (status == PSD_ERR_TIMEOUT) {
            timeouts++;
            if (must_fail(psd_table_pull(ctx, table, &w, 1), PSD_ERR_INVAL, "push again first") != 0)
                return 1;
            for (int i = 0; i < 8; i++)
                g[i] = -7; /* what is pushed was copied the first time */
            status = psd_table_push(ctx, table, &grad, 1);
        }
        if (status != PSD_OK || psd_table_pull(ctx, table, &w, 1) != PSD_OK)
            return failed("push or pull");
    }
    int wrong = x[7] != -2.0f || (timeouts == 0) != is_last;
    if (psd_table_close(ctx, table) != PSD_OK)
        return failed("close");
    printf("late: %d wrong (w is %g, %d timeouts)\n", wrong, (double)x[7], timeouts);
    return wrong == 0 ? 0 : 1;
}

static int kind_loop(psd_ctx *ctx, int servers)
{
    float one[8] = {1};
    psd_tensor g = psd_tensor_1d(one, 8, PSD_F32, "w");
    psd_table table;
    (void)servers;
    if (open_small(ctx, "w", 8, &table) != PSD_OK)
        return failed("open");
    printf("rank %d ready\n", psd_rank(ctx));
    for (;;) {
        if (psd_table_push(ctx, table, &g, 1) != PSD_OK)
            return failed("push");
        if (psd_table_pull(ctx, table, &g, 1) != PSD_OK)
            return failed("pull");
    }
}

static int kind_unclosed(psd_ctx *ctx, int servers)
{
    psd_table table;
    (void)servers;
    return open_small(ctx, "w", 8, &table) == PSD_OK ? 0 : failed("open");
}

static int kind_last(psd_ctx *ctx, int servers)
{
    static float data[33000];
    psd_tensor p = psd_tensor_1d(data, 33000, PSD_F32, "p");
    psd_table table;
    psd_status status = psd_table_open(ctx, "last", &p, 1, NULL, &table);
    (void)servers;
    for (int i = 0; i < 3 && status == PSD_OK; i++) {
        status = psd_table_push(ctx, table, &p, 1);
        if (status == PSD_OK)
            status = psd_table_pull(ctx, table, &p, 1);
    }
    if (status == PSD_OK)
        status = psd_table_close(ctx, table);
    if (status != PSD_OK)
        return failed("last");
    printf("last: done\n");
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(psd_ctx *ctx, int servers);
    } kinds[] = {{"values", kind_values},     {"errors", kind_errors}, {"reopen", kind_reopen},
                 {"disagree", kind_disagree}, {"room", kind_room},     {"loop", kind_loop},
                 {"unclosed", kind_unclosed}, {"late", kind_late},     {"last", kind_last}};
    psd_ctx *ctx = NULL;
    int code = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (psd_init(NULL, &ctx) != PSD_OK)
        return printf("did not join: %s\n", psd_last_error()), 4;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]) && argc == 3; k++) {
        if (strcmp(argv[1], kinds[k].name) == 0)
            code = kinds[k].run(ctx, atoi(argv[2]));
    }
    psd_finalize(&ctx);
    return code;
}
