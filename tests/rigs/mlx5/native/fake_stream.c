/* Streams of the stand-in: each has a thread that does in order what was enqueued. */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 256 };

struct task {
    struct task *next;
    struct fake_function function; /* without a kernel: a copy, or nothing */
    unsigned blocks, threads;
    void *to;
    const void *from;
    size_t size;
    unsigned char argument[];
};
struct stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct task *first, **last;
    uint64_t enqueued, done;
    unsigned number;
    bool ends;
};
struct event {
    struct stream *stream;
    uint64_t at;
};
static struct stream *streams[STREAMS];
static struct stream *otherwise; /* the NULL stream */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;

static void *stream_run(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->ends)
            pthread_cond_wait(&stream->changed, &stream->lock);
        struct task *task = stream->first;
        if (!task)
            break;
        stream->first = task->next;
        if (!stream->first)
            stream->last = &stream->first;
        pthread_mutex_unlock(&stream->lock);
        if (task->function.call)
            fake_kernel_run(&task->function, task->argument, task->blocks, task->threads,
                            stream->number);
        else if (task->size)
            memcpy(task->to, task->from, task->size);
        free(task);
        pthread_mutex_lock(&stream->lock);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

int cuStreamCreate(void **out, unsigned flags)
{
    struct stream *stream = fake_context() ? calloc(1, sizeof(*stream)) : NULL;
    (void)flags;
    if (!stream)
        return CU_INVALID_CONTEXT;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->last = &stream->first;
    if (pthread_create(&stream->thread, NULL, stream_run, stream)) {
        free(stream);
        return CU_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&streams_lock);
    for (unsigned i = 0; i < STREAMS; i++)
        if (!streams[i]) {
            stream->number = i + 1;
            streams[i] = stream;
            break;
        }
    pthread_mutex_unlock(&streams_lock);
    *out = stream;
    return CU_OK;
}

int cuStreamCreateWithPriority(void **out, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(out, flags);
}

/* What is enqueued is still done. */
int cuStreamDestroy_v2(void *handle)
{
    struct stream *stream = handle;
    pthread_mutex_lock(&streams_lock);
    for (int i = 0; i < STREAMS; i++)
        if (streams[i] == stream)
            streams[i] = NULL;
    pthread_mutex_unlock(&streams_lock);
    pthread_mutex_lock(&stream->lock);
    stream->ends = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    free(stream);
    return CU_OK;
}

/* The null handle and the two legacy ones are one stream. */
static struct stream *stream_of(void *handle)
{
    if ((uintptr_t)handle > 2)
        return handle;
    void *made = NULL;
    if (!otherwise && !cuStreamCreate(&made, 0))
        otherwise = made;
    return otherwise;
}

static int enqueue(void *handle, struct task *task)
{
    struct stream *stream = fake_context() ? stream_of(handle) : NULL;
    if (!stream || !task) {
        free(task);
        return task ? CU_INVALID_CONTEXT : CU_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&stream->lock);
    *stream->last = task;
    stream->last = &task->next;
    stream->enqueued++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return CU_OK;
}

static int wait_for(struct stream *stream, uint64_t at, bool all)
{
    if (!stream)
        return CU_OK;
    pthread_mutex_lock(&stream->lock);
    if (all)
        at = stream->enqueued;
    while (stream->done < at)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    return CU_OK;
}

static int ask(struct stream *stream, uint64_t at, bool all)
{
    if (!stream)
        return CU_OK;
    pthread_mutex_lock(&stream->lock);
    bool ready = stream->done >= (all ? stream->enqueued : at);
    pthread_mutex_unlock(&stream->lock);
    return ready ? CU_OK : CU_NOT_READY;
}

int cuStreamSynchronize(void *stream)
{
    return fake_context() ? wait_for(stream_of(stream), 0, true) : CU_INVALID_CONTEXT;
}

int cuStreamQuery(void *stream)
{
    return ask(stream_of(stream), 0, true);
}

int cuCtxSynchronize(void)
{
    for (int i = 0; i < STREAMS; i++)
        wait_for(streams[i], 0, true);
    return fake_context() ? CU_OK : CU_INVALID_CONTEXT;
}

int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = fake_context() ? calloc(1, sizeof(struct event)) : NULL;
    return *event ? CU_OK : CU_INVALID_CONTEXT;
}

int cuEventDestroy_v2(void *event)
{
    free(event);
    return CU_OK;
}

int cuEventRecord(void *handle, void *stream)
{
    struct event *event = handle;
    int result = enqueue(stream, calloc(1, sizeof(struct task)));
    if (!result) {
        event->stream = stream_of(stream);
        event->at = event->stream->enqueued;
    }
    return result;
}

int cuEventQuery(void *handle)
{
    struct event *event = handle;
    return ask(event->stream, event->at, false);
}

int cuEventSynchronize(void *handle)
{
    struct event *event = handle;
    return wait_for(event->stream, event->at, false);
}

static int copy(void *to, const void *from, size_t size, void *stream)
{
    struct task *task = calloc(1, sizeof(*task));
    if (task) {
        task->to = to;
        task->from = from;
        task->size = size;
    }
    return enqueue(stream, task);
}

int cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t size, void *stream)
{
    return copy(to, (const void *)(uintptr_t)from, size, stream);
}

int cuMemcpyHtoDAsync_v2(cu_pointer to, const void *from, size_t size, void *stream)
{
    return copy((void *)(uintptr_t)to, from, size, stream);
}

int cuMemcpyDtoDAsync_v2(cu_pointer to, cu_pointer from, size_t size, void *stream)
{
    return copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size, stream);
}

int cuMemcpyDtoH_v2(void *to, cu_pointer from, size_t size)
{
    int result = cuMemcpyDtoHAsync_v2(to, from, size, NULL);
    return result ? result : cuStreamSynchronize(NULL);
}

int cuMemcpyHtoD_v2(cu_pointer to, const void *from, size_t size)
{
    int result = cuMemcpyHtoDAsync_v2(to, from, size, NULL);
    return result ? result : cuStreamSynchronize(NULL);
}

int cuMemsetD8_v2(cu_pointer to, unsigned char value, size_t size)
{
    if (!fake_context())
        return CU_INVALID_CONTEXT;
    memset((void *)(uintptr_t)to, value, size);
    return CU_OK;
}

int cuLaunchKernel(void *handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra)
{
    const struct fake_function *function = handle;
    struct task *task = calloc(1, sizeof(*task) + function->bytes);
    (void)shared;
    if (!task || extra) {
        free(task);
        return CU_INVALID_VALUE;
    }
    task->function = *function;
    task->blocks = gx * gy * gz;
    task->threads = bx * by * bz;
    memcpy(task->argument, params[0], function->bytes);
    return enqueue(stream, task);
}
