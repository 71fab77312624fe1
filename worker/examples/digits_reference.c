/* The reference for digits_train: the same network, data and steps in a plain loop over the whole batch, in
 * one process, without psd. Prints each epoch's mean loss and the accuracy on held-out images.
 *
 *     digits_reference [--data FILE] [--losses FILE]
 */
#include "digits_net.h"

/* PyTorch's SGD with momentum: v = momentum * v + g; p -= lr * v. */
static void update(float *param, float *velocity, const float *grad, int count)
{
    for (int i = 0; i < count; i++) {
        velocity[i] = (float)MOMENTUM * velocity[i] + grad[i];
        param[i] -= (float)LEARNING_RATE * velocity[i];
    }
}

static double train_epoch(const digits *set, int epoch, net *n, net *velocity)
{
    static net grad;
    static int order[DIGITS_TRAIN];
    double loss = 0;
    digits_shuffle(epoch, order);
    for (int step = 0; step < STEPS; step++) {
        loss += net_gradient(n, set, order + step * BATCH, BATCH, &grad);
        update(n->w1, velocity->w1, grad.w1, NET_W1);
        update(n->b1, velocity->b1, grad.b1, NET_HIDDEN);
        update(n->w2, velocity->w2, grad.w2, NET_W2);
        update(n->b2, velocity->b2, grad.b2, NET_OUT);
    }
    return loss / (STEPS * BATCH);
}

int main(int argc, char **argv)
{
    static net n, velocity;
    const char *data = "worker/examples/data/digits.csv";
    const char *losses = NULL;
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--data") == 0 && i + 1 < argc)
            data = argv[i + 1];
        else if (strcmp(argv[i], "--losses") == 0 && i + 1 < argc)
            losses = argv[i + 1];
        else
            return fprintf(stderr, "usage: digits_reference [--data FILE] [--losses FILE]\n"), 2;
    }
    digits *set = digits_load(data);
    FILE *file = losses != NULL ? fopen(losses, "w") : NULL;
    if (losses != NULL && file == NULL)
        perror(losses);
    if (set == NULL || (losses != NULL && file == NULL)) {
        free(set);
        return 1;
    }
    net_init(&n);
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        double loss = train_epoch(set, epoch, &n, &velocity);
        printf("epoch %d/%d loss %.6f accuracy %.4f\n", epoch, EPOCHS, loss, net_accuracy(&n, set));
        fflush(stdout);
        if (file != NULL)
            fprintf(file, "%.17g\n", loss);
    }
    printf("digits_reference: accuracy=%.4f\n", net_accuracy(&n, set));
    free(set);
    return file != NULL && fclose(file) != 0 ? (perror(losses), 1) : 0;
}
