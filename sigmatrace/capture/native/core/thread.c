/* Threads: attach on the first record, flush and give the areas back at the end.
 * A st_thread belongs to a kernel thread id, which only one living thread has: a later thread
 * with the same id goes on with its counts, so that (schema, thread, seq) stays unique. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"

#define BUCKETS 256u

__thread struct st_local st_local = {.generation = UINT64_MAX};

static struct st_control no_control; /* count 0 of capacity 0: full, so the slow path makes one */
static struct st_thread *buckets[BUCKETS], *all;
static pthread_key_t key;
static bool have_key;

struct st_thread *st_thread_first(void)
{
    return __atomic_load_n(&all, __ATOMIC_ACQUIRE);
}

static struct st_thread *find(uint32_t tid)
{
    struct st_thread **bucket = &buckets[tid % BUCKETS], *thread;
    for (thread = __atomic_load_n(bucket, __ATOMIC_ACQUIRE); thread; thread = thread->next)
        if (thread->tid == tid)
            return thread;
    thread = st_alloc(sizeof(*thread));
    if (!thread)
        return NULL;
    thread->tid = tid;
    for (int schema = 0; schema < ST_SCHEMA_LAST; schema++)
        thread->segments[schema].control = &no_control;
    thread->next = __atomic_load_n(bucket, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(bucket, &thread->next, thread, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
        ;
    thread->all = __atomic_load_n(&all, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&all, &thread->all, thread, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
        ;
    return thread;
}

void st_thread_describe(struct st_thread *thread)
{
    char name[16] = "";
    int saved = errno;
    prctl(PR_GET_NAME, name);
    errno = saved;
    if (thread->object && !strcmp(name, thread->name))
        return;
    if (!thread->object)
        thread->object = st_object_id();
    memcpy(thread->name, name, sizeof(name));
    struct st_object o;
    st_object_begin(&o, "thread", thread->object);
    st_object_u64(&o, "tid", thread->tid);
    st_object_str(&o, "name", name);
    st_object_end(&o);
}

static struct st_thread *attach(void)
{
    if (st_local.attaching) {
        st_lost("record in a signal handler at its thread's begin or end", 1);
        return NULL;
    }
    if (!st_process_ready())
        return NULL;
    st_local.attaching = true;
    ST_BARRIER();
    struct st_thread *thread = find((uint32_t)syscall(SYS_gettid));
    if (thread) {
        int saved = errno;
        thread->busy = 0;
        st_local.thread = thread;
        if (have_key)
            pthread_setspecific(key, thread);
        errno = saved;
        ST_BARRIER();
        st_local.generation = st_process.generation;
        st_thread_describe(thread);
    } else {
        st_process_fail("out of memory", ENOMEM);
    }
    ST_BARRIER();
    st_local.attaching = false;
    return thread;
}

struct st_thread *st_thread_self(void)
{
    if (ST_LIKELY(st_local.generation == st_page->generation))
        return st_local.thread;
    return attach();
}

struct st_thread *st_thread_known(void)
{
    bool known = st_page->alive && st_local.generation == st_process.generation;
    return known ? st_local.thread : NULL;
}

static uint64_t capacity_of(uint32_t schema)
{
    uint32_t bytes = st_config()->segment_bytes;
    uint32_t rare = 32u << 10; /* channels and marks are few */
    if ((schema == ST_SCHEMA_CHANNEL || schema == ST_SCHEMA_MARK) && bytes > rare)
        bytes = rare;
    return (bytes - (ST_RECORDS_AT - ST_PAGE)) / st_record_size[schema];
}

bool st_segment_make(struct st_thread *thread, uint32_t schema)
{
    struct st_segment *segment = &thread->segments[schema];
    uint64_t capacity = capacity_of(schema), seq = thread->seq[schema];
    struct st_area *area =
        st_area_take(schema, thread->tid, seq, st_record_size[schema], capacity);
    if (!area)
        return false;
    segment->area = area;
    segment->records = area->base + ST_RECORDS_AT;
    segment->claimed = seq;
    segment->control = (struct st_control *)area->base;
    segment->control->dropped = thread->dropped[schema];
    segment->capacity = capacity;
    return true;
}

bool st_segment_flush(struct st_thread *thread, uint32_t schema)
{
    struct st_segment *segment = &thread->segments[schema];
    struct st_control *control = segment->control;
    uint64_t seq = control->seq;
    uint64_t count = __atomic_load_n(&control->count, __ATOMIC_ACQUIRE);
    if (!count)
        return true;
    /* The thread itself and the flush at exit may both come here. */
    if (!__atomic_compare_exchange_n(&segment->claimed, &seq, seq + 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return false;
    struct st_chunk chunk = {.schema = schema,
                             .thread = thread->tid,
                             .count = (uint32_t)count,
                             .seq = seq,
                             .dropped = thread->dropped[schema]};
    if (!st_chunk_write(&chunk, segment->records))
        return false; /* the records stay in the ring file */
    thread->written[schema] += count;
    __atomic_store_n(&control->count, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&control->seq, seq + 1, __ATOMIC_RELEASE);
    return true;
}

bool st_thread_flush(struct st_thread *thread)
{
    /* Channels first: what a later chunk names is then already described. */
    bool done = st_segment_flush(thread, ST_SCHEMA_CHANNEL);
    for (uint32_t schema = 1; schema < ST_SCHEMA_LAST; schema++)
        if (!st_segment_flush(thread, schema))
            done = false;
    return done;
}

static void give_areas(struct st_thread *thread)
{
    for (int schema = 0; schema < ST_SCHEMA_LAST; schema++) {
        struct st_segment *segment = &thread->segments[schema];
        if (!segment->area || segment->control->count)
            continue;
        struct st_area *area = segment->area;
        thread->seq[schema] = segment->control->seq;
        *segment = (struct st_segment){.control = &no_control};
        st_area_give(area);
    }
}

/* End of a thread. */
static void detach(void *p)
{
    struct st_thread *thread = p;
    int saved = errno;
    if (st_thread_known() != thread || !st_process_open())
        return;
    st_thread_describe(thread);
    st_local.attaching = true;
    ST_BARRIER();
    st_local.generation = UINT64_MAX; /* a destructor that runs later attaches again */
    if (st_thread_flush(thread) & st_aggregate_flush(thread))
        give_areas(thread);
    ST_BARRIER();
    st_local.attaching = false;
    errno = saved;
}

void st_threads_init(void)
{
    have_key = !pthread_key_create(&key, detach);
}

void st_threads_forked(void)
{
    memset(buckets, 0, sizeof(buckets));
    all = NULL;
    st_local.generation = UINT64_MAX;
    st_local.thread = NULL;
    st_local.attaching = false;
}
