/* A 64-128-10 network (ReLU, softmax cross-entropy) on the handwritten digits, in plain C: what digits_train
 * (with psd) and digits_reference (without) share. Nothing here knows psd.
 *
 * Parameters, activations and gradients are f32; sums over the images of a batch are kept in double and
 * rounded once, so that it hardly matters into how many parts a batch is cut. */
#ifndef DIGITS_NET_H
#define DIGITS_NET_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NET_IN = 64,
    NET_HIDDEN = 128,
    NET_OUT = 10,
    NET_W1 = NET_HIDDEN * NET_IN,
    NET_W2 = NET_OUT * NET_HIDDEN,
    NET_PARAMS = NET_W1 + NET_HIDDEN + NET_W2 + NET_OUT,
    DIGITS = 1797,
    DIGITS_TEST = 359, /* every fifth image is held out */
    DIGITS_TRAIN = DIGITS - DIGITS_TEST,
    BATCH = 64, /* images in one step, over all trainers */
    STEPS = DIGITS_TRAIN / BATCH,
    EPOCHS = 60,
};

#define LEARNING_RATE 0.02
#define MOMENTUM      0.9

/* One value per parameter, in the order w1 (128 x 64), b1, w2 (10 x 128), b2. */
typedef struct net {
    float w1[NET_W1];
    float b1[NET_HIDDEN];
    float w2[NET_W2];
    float b2[NET_OUT];
} net;

typedef struct digit {
    float pixel[NET_IN]; /* 0 to 1 */
    int label;
} digit;

typedef struct digits {
    digit train[DIGITS_TRAIN];
    digit test[DIGITS_TEST];
} digits;

/* One line of the CSV file: 64 pixels of 0 to 16, and the digit. */
static inline bool digit_parse(const char *line, digit *out)
{
    for (int i = 0; i <= NET_IN; i++) {
        char *end;
        long value = strtol(line, &end, 10);
        long most = i < NET_IN ? 16 : NET_OUT - 1;
        if (end == line || value < 0 || value > most || (i < NET_IN && *end != ','))
            return false;
        if (i < NET_IN)
            out->pixel[i] = (float)value / 16.0f;
        else
            out->label = (int)value;
        line = end + 1;
    }
    return true;
}

static inline bool digits_read(FILE *file, const char *path, digits *out)
{
    char line[512];
    for (int i = 0, train = 0, test = 0; i < DIGITS; i++) {
        digit *to = i % 5 == 4 ? &out->test[test++] : &out->train[train++];
        if (fgets(line, sizeof(line), file) == NULL || !digit_parse(line, to)) {
            fprintf(stderr, "%s: line %d is not an image of the digits set\n", path, i + 1);
            return false;
        }
    }
    return true;
}

/* NULL, with a message, when the file is not there or not the digits. free() the result. */
static inline digits *digits_load(const char *path)
{
    digits *set = calloc(1, sizeof(*set));
    FILE *file = fopen(path, "r");
    if (file == NULL)
        perror(path);
    if (set == NULL || file == NULL || !digits_read(file, path, set)) {
        free(set);
        set = NULL;
    }
    if (file != NULL)
        fclose(file);
    return set;
}

/* splitmix64: the same numbers everywhere. */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Uniform in [-limit, limit]. */
static inline void fill_uniform(float *out, int count, double limit, uint64_t *state)
{
    for (int i = 0; i < count; i++)
        out[i] = (float)(((double)(random_next(state) >> 11) * 0x1p-52 - 1.0) * limit);
}

/* He's initialisation for the layer before the ReLU, Glorot's for the last; biases zero. */
static inline void net_init(net *n)
{
    uint64_t state = 1;
    memset(n, 0, sizeof(*n));
    fill_uniform(n->w1, NET_W1, sqrt(6.0 / NET_IN), &state);
    fill_uniform(n->w2, NET_W2, sqrt(6.0 / (NET_HIDDEN + NET_OUT)), &state);
}

/* The order of the training images in an epoch: the first STEPS * BATCH are used, BATCH in each step. */
static inline void digits_shuffle(int epoch, int order[DIGITS_TRAIN])
{
    uint64_t state = 1000 + (uint64_t)epoch;
    for (int i = 0; i < DIGITS_TRAIN; i++)
        order[i] = i;
    for (int i = DIGITS_TRAIN - 1; i > 0; i--) {
        int j = (int)(random_next(&state) % (uint64_t)(i + 1));
        int swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

static inline void net_forward(const net *n, const digit *x, float hidden[NET_HIDDEN], float logit[NET_OUT])
{
    for (int h = 0; h < NET_HIDDEN; h++) {
        float sum = n->b1[h];
        for (int i = 0; i < NET_IN; i++)
            sum += n->w1[h * NET_IN + i] * x->pixel[i];
        hidden[h] = sum > 0 ? sum : 0;
    }
    for (int o = 0; o < NET_OUT; o++) {
        float sum = n->b2[o];
        for (int h = 0; h < NET_HIDDEN; h++)
            sum += n->w2[o * NET_HIDDEN + h] * hidden[h];
        logit[o] = sum;
    }
}

/* Softmax cross-entropy of one image; writes the loss's gradient by the logits. */
static inline double net_loss(const float logit[NET_OUT], int label, float by_logit[NET_OUT])
{
    float most = logit[0];
    double sum = 0;
    for (int o = 1; o < NET_OUT; o++)
        most = logit[o] > most ? logit[o] : most;
    for (int o = 0; o < NET_OUT; o++)
        sum += exp((double)(logit[o] - most));
    for (int o = 0; o < NET_OUT; o++)
        by_logit[o] = (float)(exp((double)(logit[o] - most)) / sum) - (o == label ? 1.0f : 0.0f);
    return log(sum) - (double)(logit[label] - most);
}

/* Adds the gradient of one image's loss to `sum`, which has the parameters' order; returns the loss. */
static inline double net_backward(const net *n, const digit *x, double sum[NET_PARAMS])
{
    double *w1 = sum, *b1 = w1 + NET_W1, *w2 = b1 + NET_HIDDEN, *b2 = w2 + NET_W2;
    float hidden[NET_HIDDEN], logit[NET_OUT], by_logit[NET_OUT];
    net_forward(n, x, hidden, logit);
    double loss = net_loss(logit, x->label, by_logit);
    for (int o = 0; o < NET_OUT; o++) {
        b2[o] += (double)by_logit[o];
        for (int h = 0; h < NET_HIDDEN; h++)
            w2[o * NET_HIDDEN + h] += (double)(by_logit[o] * hidden[h]);
    }
    for (int h = 0; h < NET_HIDDEN; h++) {
        if (hidden[h] <= 0)
            continue;
        float by_hidden = 0;
        for (int o = 0; o < NET_OUT; o++)
            by_hidden += by_logit[o] * n->w2[o * NET_HIDDEN + h];
        b1[h] += (double)by_hidden;
        for (int i = 0; i < NET_IN; i++)
            w1[h * NET_IN + i] += (double)(by_hidden * x->pixel[i]);
    }
    return loss;
}

/* The mean gradient of `count` images, picked by `order`, into `grad`; returns the sum of their losses. */
static inline double net_gradient(const net *n, const digits *set, const int *order, int count, net *grad)
{
    static double sum[NET_PARAMS];
    float *out[] = {grad->w1, grad->b1, grad->w2, grad->b2};
    const int counts[] = {NET_W1, NET_HIDDEN, NET_W2, NET_OUT};
    double loss = 0;
    memset(sum, 0, sizeof(sum));
    for (int i = 0; i < count; i++)
        loss += net_backward(n, &set->train[order[i]], sum);
    const double *from = sum;
    for (int p = 0; p < 4; p++) {
        for (int i = 0; i < counts[p]; i++)
            out[p][i] = (float)(*from++ / count);
    }
    return loss;
}

/* The share of the held-out images that the network names right. */
static inline double net_accuracy(const net *n, const digits *set)
{
    int right = 0;
    for (int t = 0; t < DIGITS_TEST; t++) {
        float hidden[NET_HIDDEN], logit[NET_OUT];
        int best = 0;
        net_forward(n, &set->test[t], hidden, logit);
        for (int o = 1; o < NET_OUT; o++)
            best = logit[o] > logit[best] ? o : best;
        right += best == set->test[t].label;
    }
    return (double)right / DIGITS_TEST;
}

#endif
