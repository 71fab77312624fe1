#include "server/compile.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct job {
    struct job *next;
    psd_plan_inputs inputs;
    psd_compiled result;
} job;

typedef struct queue {
    job *head;
    job **tail;
} queue;

struct psd_compiler {
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t wake;
    queue todo;
    queue done;
    bool stopping;
    int fd;
};

static void push(queue *q, job *item)
{
    item->next = NULL;
    *q->tail = item;
    q->tail = &item->next;
}

static job *pop(queue *q)
{
    job *item = q->head;
    if (item == NULL)
        return NULL;
    q->head = item->next;
    if (q->head == NULL)
        q->tail = &q->head;
    return item;
}

/* Compiles a plan and has it proven. */
static void compile(const psd_plan_inputs *inputs, psd_compiled *out)
{
    out->status = psd_plan_compile(inputs, &out->steps, out->text, sizeof(out->text));
    if (out->status != PSD_OK)
        return;
    out->status = psd_plan_check(&out->steps, out->text, sizeof(out->text));
    if (out->status != PSD_OK) {
        free(out->steps.steps);
        out->steps = (psd_plan_steps){0};
    }
}

static void *work(void *arg)
{
    psd_compiler *compiler = arg;
    pthread_mutex_lock(&compiler->lock);
    while (!compiler->stopping) {
        job *item = pop(&compiler->todo);
        if (item == NULL) {
            pthread_cond_wait(&compiler->wake, &compiler->lock);
            continue;
        }
        pthread_mutex_unlock(&compiler->lock);
        compile(&item->inputs, &item->result);
        pthread_mutex_lock(&compiler->lock);
        push(&compiler->done, item);
        uint64_t one = 1;
        /* Fails only when the counter is full, and then the descriptor is readable anyway. */
        ssize_t written = write(compiler->fd, &one, sizeof(one));
        (void)written;
    }
    pthread_mutex_unlock(&compiler->lock);
    return NULL;
}

/* The helper takes no signals: the loop reads them. */
static int start_thread(psd_compiler *compiler)
{
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&compiler->thread, NULL, work, compiler);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

psd_status psd_compiler_start(psd_compiler **out)
{
    psd_status status = PSD_ERR_NOMEM;
    psd_compiler *compiler = calloc(1, sizeof(*compiler));
    if (compiler == NULL)
        return PSD_ERR_NOMEM;
    compiler->todo.tail = &compiler->todo.head;
    compiler->done.tail = &compiler->done.head;
    compiler->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (compiler->fd < 0) {
        status = PSD_ERR_IO;
        goto free_compiler;
    }
    if (pthread_mutex_init(&compiler->lock, NULL) != 0)
        goto close_fd;
    if (pthread_cond_init(&compiler->wake, NULL) != 0)
        goto destroy_lock;
    if (start_thread(compiler) != 0)
        goto destroy_wake;
    *out = compiler;
    return PSD_OK;
destroy_wake:
    pthread_cond_destroy(&compiler->wake);
destroy_lock:
    pthread_mutex_destroy(&compiler->lock);
close_fd:
    close(compiler->fd);
free_compiler:
    free(compiler);
    return status;
}

static void drop_all(queue *q)
{
    for (job *item = pop(q); item != NULL; item = pop(q)) {
        free(item->result.steps.steps);
        free(item);
    }
}

void psd_compiler_stop(psd_compiler *compiler)
{
    if (compiler == NULL)
        return;
    pthread_mutex_lock(&compiler->lock);
    compiler->stopping = true;
    pthread_cond_signal(&compiler->wake);
    pthread_mutex_unlock(&compiler->lock);
    pthread_join(compiler->thread, NULL);
    drop_all(&compiler->todo);
    drop_all(&compiler->done);
    pthread_cond_destroy(&compiler->wake);
    pthread_mutex_destroy(&compiler->lock);
    close(compiler->fd);
    free(compiler);
}

int psd_compiler_fd(const psd_compiler *compiler)
{
    return compiler->fd;
}

psd_status psd_compiler_submit(psd_compiler *compiler, uint32_t plan, const psd_plan_inputs *inputs)
{
    job *item = calloc(1, sizeof(*item));
    if (item == NULL)
        return PSD_ERR_NOMEM;
    item->inputs = *inputs;
    item->result.plan = plan;
    pthread_mutex_lock(&compiler->lock);
    push(&compiler->todo, item);
    pthread_cond_signal(&compiler->wake);
    pthread_mutex_unlock(&compiler->lock);
    return PSD_OK;
}

psd_status psd_compiler_take(psd_compiler *compiler, psd_compiled *out)
{
    pthread_mutex_lock(&compiler->lock);
    job *item = pop(&compiler->done);
    if (item == NULL) {
        uint64_t count = 0;
        /* Emptied under the lock: a result pushed later makes it readable again. */
        ssize_t got = read(compiler->fd, &count, sizeof(count));
        (void)got;
    }
    pthread_mutex_unlock(&compiler->lock);
    if (item == NULL)
        return PSD_AGAIN;
    *out = item->result;
    free(item);
    return PSD_OK;
}
