/* The main job: trains the network of digits_net.h on handwritten digits, in parallel.
 *
 *   --mode table      a parameter server: the first ranks (role server, psworker) hold the parameters and the
 *                     optimizer; trainers push gradients and pull parameters
 *   --mode allreduce  no servers: trainers share gradients by all_reduce, and each makes the same step
 *
 *     psrun --standalone -n 2 --role server -- psworker --role server \
 *         : -n 4 --role trainer -- digits_train --servers 2
 *     psrun --standalone -n 4 -- digits_train --mode allreduce
 *
 * The network is computed in host memory; what travels is copied to and from tensors in the memory that the backend
 * moves, the host's or a GPU's. Each step's batch is shared equally, so that the mean of the trainers' gradients is the batch's. Prints the
 * mean loss and the accuracy on held-out images after each epoch; digits_reference computes the same in one
 * process.
 */
#include <psd.h>

#include "digits_net.h"

/* Every psd call returns a status; the sentence of a failure is psd_last_error(). */
#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        if ((call) != PSD_OK) {                                                                              \
            fprintf(stderr, "%s\n", psd_last_error());                                                       \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

typedef struct options {
    bool with_table;
    int servers; /* ranks 0 .. servers - 1 */
    const char *data;
    const char *losses; /* file for the losses, one a line; NULL: none */
} options;

typedef struct trainer {
    psd_ctx *ctx;
    psd_group group; /* the trainers */
    int32_t rank;    /* in it */
    int32_t count;
    psd_table table;
    net n, grad, velocity;
    psd_tensor params[4], grads[4];             /* n and grad, as tensors */
    psd_tensor moved_params[4], moved_grads[4]; /* in the memory that the backend moves */
    psd_tensor moved_loss;
} trainer;

static void describe(net *n, psd_tensor out[4])
{
    out[0] = psd_tensor_nd(n->w1, (const int64_t[]){NET_HIDDEN, NET_IN}, 2, PSD_F32, "w1");
    out[1] = psd_tensor_1d(n->b1, NET_HIDDEN, PSD_F32, "b1");
    out[2] = psd_tensor_nd(n->w2, (const int64_t[]){NET_OUT, NET_HIDDEN}, 2, PSD_F32, "w2");
    out[3] = psd_tensor_1d(n->b2, NET_OUT, PSD_F32, "b2");
}

static void alloc_like(psd_ctx *ctx, const psd_tensor host[4], psd_tensor out[4])
{
    for (int i = 0; i < 4; i++)
        CHECK(psd_tensor_alloc(ctx, host[i].shape, host[i].ndim, PSD_F32, host[i].name, &out[i]));
}

static void copy(psd_ctx *ctx, psd_tensor to[4], const psd_tensor from[4])
{
    for (int i = 0; i < 4; i++)
        CHECK(psd_tensor_copy(ctx, &to[i], &from[i], NULL));
}

static void free_all(psd_ctx *ctx, psd_tensor list[4])
{
    for (int i = 0; i < 4; i++)
        CHECK(psd_tensor_free(ctx, &list[i]));
}

/* The group of the trainers: all ranks behind the servers. */
static psd_group trainers(psd_ctx *ctx, int servers)
{
    int32_t count = psd_world_size(ctx) - servers;
    psd_group group = PSD_WORLD;
    if (servers > 0 && count > 0) {
        int32_t *ranks = malloc((size_t)count * sizeof(*ranks));
        if (ranks == NULL)
            exit((perror("digits_train"), 1));
        for (int32_t i = 0; i < count; i++)
            ranks[i] = servers + i;
        CHECK(psd_group_new(ctx, ranks, count, &group));
        free(ranks);
    }
    return group;
}

/* PyTorch's SGD with momentum, as the servers do it. */
static void update(trainer *t)
{
    for (int p = 0; p < 4; p++) {
        float *param = t->params[p].data;
        const float *grad = t->grads[p].data;
        float *velocity = p == 0   ? t->velocity.w1
                          : p == 1 ? t->velocity.b1
                          : p == 2 ? t->velocity.w2
                                   : t->velocity.b2;
        for (int64_t i = 0; i < psd_tensor_count(&t->params[p]); i++) {
            velocity[i] = (float)MOMENTUM * velocity[i] + grad[i];
            param[i] -= (float)LEARNING_RATE * velocity[i];
        }
    }
}

/* One epoch; the mean loss over all trainers. */
static double train_epoch(trainer *t, const digits *set, int epoch, bool with_table)
{
    static int order[DIGITS_TRAIN];
    const int share = BATCH / t->count;
    double loss = 0;
    digits_shuffle(epoch, order);
    for (int step = 0; step < STEPS; step++) {
        loss += net_gradient(&t->n, set, order + step * BATCH + t->rank * share, share, &t->grad);
        copy(t->ctx, t->moved_grads, t->grads);
        if (with_table) {
            CHECK(psd_table_push(t->ctx, t->table, t->moved_grads, 4));
            CHECK(psd_table_pull(t->ctx, t->table, t->moved_params, 4));
            copy(t->ctx, t->params, t->moved_params);
        } else {
            CHECK(psd_all_reduce_coalesced(t->ctx, t->group, t->moved_grads, 4, PSD_AVG, 0, NULL));
            copy(t->ctx, t->grads, t->moved_grads);
            update(t);
        }
    }
    psd_tensor sum = psd_tensor_1d(&loss, 1, PSD_F64, "loss");
    CHECK(psd_tensor_copy(t->ctx, &t->moved_loss, &sum, NULL));
    CHECK(psd_all_reduce(t->ctx, t->group, &t->moved_loss, &t->moved_loss, PSD_SUM, NULL));
    CHECK(psd_tensor_copy(t->ctx, &sum, &t->moved_loss, NULL));
    return loss / (STEPS * BATCH);
}

static double train(trainer *t, const digits *set, const options *o, FILE *losses)
{
    double accuracy = 0;
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        double loss = train_epoch(t, set, epoch, o->with_table);
        accuracy = net_accuracy(&t->n, set);
        if (t->rank != 0)
            continue;
        printf("epoch %d/%d loss %.6f accuracy %.4f\n", epoch, EPOCHS, loss, accuracy);
        fflush(stdout);
        if (losses != NULL)
            fprintf(losses, "%.17g\n", loss);
    }
    return accuracy;
}

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.with_table = true, .data = "worker/examples/data/digits.csv"};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--mode") == 0 &&
            (strcmp(value, "table") == 0 || strcmp(value, "allreduce") == 0))
            o->with_table = strcmp(value, "table") == 0;
        else if (strcmp(argv[i], "--servers") == 0)
            o->servers = atoi(value);
        else if (strcmp(argv[i], "--data") == 0)
            o->data = value;
        else if (strcmp(argv[i], "--losses") == 0)
            o->losses = value;
        else
            return false;
    }
    return argc % 2 == 1 && o->servers >= 0;
}

int main(int argc, char **argv)
{
    static trainer t;
    options o;
    if (!parse(argc, argv, &o))
        return fprintf(stderr, "usage: digits_train [--mode table|allreduce] [--servers N] [--data FILE] "
                               "[--losses FILE]\n"),
               2;
    digits *set = digits_load(o.data);
    if (set == NULL)
        return 1;
    CHECK(psd_init(NULL, &t.ctx));
    t.group = trainers(t.ctx, o.servers);
    CHECK(psd_group_rank(t.ctx, t.group, &t.rank));
    CHECK(psd_group_size(t.ctx, t.group, &t.count));
    if (BATCH % t.count != 0)
        return fprintf(stderr, "digits_train: a batch of %d cannot be shared by %d trainers\n", BATCH,
                       t.count),
               1;
    FILE *losses = o.losses != NULL && t.rank == 0 ? fopen(o.losses, "w") : NULL;
    if (o.losses != NULL && t.rank == 0 && losses == NULL)
        return perror(o.losses), 1;

    net_init(&t.n);
    describe(&t.n, t.params);
    describe(&t.grad, t.grads);
    alloc_like(t.ctx, t.params, t.moved_params);
    alloc_like(t.ctx, t.grads, t.moved_grads);
    CHECK(psd_tensor_alloc(t.ctx, (const int64_t[]){1}, 1, PSD_F64, "loss", &t.moved_loss));
    copy(t.ctx, t.moved_params, t.params);
    if (o.with_table) {
        psd_table_config config;
        psd_table_config_init(&config);
        config.optimizer = PSD_OPT_MOMENTUM;
        config.lr = LEARNING_RATE;
        config.momentum = MOMENTUM;
        CHECK(psd_table_open(t.ctx, "digits", t.moved_params, 4, &config, &t.table));
    }
    double accuracy = train(&t, set, &o, losses);
    if (o.with_table)
        CHECK(psd_table_close(t.ctx, t.table));
    if (t.rank == 0)
        printf("digits_train: accuracy=%.4f\n", accuracy);
    free(set);
    free_all(t.ctx, t.moved_params);
    free_all(t.ctx, t.moved_grads);
    CHECK(psd_tensor_free(t.ctx, &t.moved_loss));
    CHECK(psd_finalize(&t.ctx));
    if (losses != NULL && fclose(losses) != 0)
        return perror(o.losses), 1;
    return accuracy >= 0.96 ? 0 : 1;
}
