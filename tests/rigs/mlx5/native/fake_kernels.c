/* Kernels of the stand-in: threads of the host; and what is kept of those that have ended. */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { STACK = 262144 };

struct worker {
    const struct fake_function *function;
    const void *argument;
    struct fake_thread self;
    pthread_t thread;
};
struct kept {
    struct kept *next;
    struct fake_kernel_run run;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *first, **last = &first;
static bool keeps;
static uint32_t number;

uint64_t fake_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void fake_kernels_keep(void)
{
    pthread_mutex_lock(&lock);
    keeps = true;
    pthread_mutex_unlock(&lock);
}

bool fake_kernel_take(struct fake_kernel_run *run)
{
    pthread_mutex_lock(&lock);
    struct kept *oldest = first;
    if (oldest) {
        *run = oldest->run;
        first = oldest->next;
        if (!first)
            last = &first;
    }
    pthread_mutex_unlock(&lock);
    free(oldest);
    return oldest != NULL;
}

static void keep(const struct fake_kernel_run *run)
{
    pthread_mutex_lock(&lock);
    struct kept *kept = keeps ? calloc(1, sizeof(*kept)) : NULL;
    if (kept) {
        kept->run = *run;
        kept->run.number = ++number;
        *last = kept;
        last = &kept->next;
    }
    pthread_mutex_unlock(&lock);
}

static void *worker_run(void *argument)
{
    struct worker *worker = argument;
    worker->function->call(&worker->self, worker->argument);
    return NULL;
}

void fake_kernel_run(const struct fake_function *function, const void *argument, unsigned blocks,
                     unsigned threads, unsigned stream)
{
    unsigned count = blocks * threads;
    struct worker *workers = calloc(count, sizeof(*workers));
    struct fake_kernel_run run = {.name = function->name, .blocks = blocks, .threads = threads,
                                  .stream = stream, .begin_ns = fake_now_ns()};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    for (unsigned i = 0; workers && i < count; i++) {
        workers[i].function = function;
        workers[i].argument = argument;
        workers[i].self = (struct fake_thread){i / threads, blocks, i % threads, threads};
        if (pthread_create(&workers[i].thread, &attributes, worker_run, &workers[i])) {
            fputs("fake cuda: no thread for the kernel\n", stderr);
            _exit(3);
        }
    }
    for (unsigned i = 0; workers && i < count; i++)
        pthread_join(workers[i].thread, NULL);
    run.end_ns = fake_now_ns();
    keep(&run);
    pthread_attr_destroy(&attributes);
    free(workers);
}
