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
    if (ST_LIKELY(st_local.generation == st_generation()))
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

static void use(struct st_segment *segment, struct st_area *area, uint64_t capacity)
{
    __atomic_store_n(&segment->area, area, __ATOMIC_RELEASE);
    segment->records = area->base + ST_RECORDS_AT;
    segment->control = st_area_control(area);
    segment->capacity = capacity;
}

bool st_segment_make(struct st_thread *thread, uint32_t schema)
{
    uint64_t capacity = capacity_of(schema);
    struct st_area *area = st_area_take(thread, schema, thread->seq[schema], capacity, false);
    if (area)
        use(&thread->segments[schema], area, capacity);
    return area != NULL;
}

bool st_segment_hand_over(struct st_thread *thread, uint32_t schema)
{
    struct st_segment *segment = &thread->segments[schema];
    struct st_area *full = segment->area;
    if (!st_background_runs())
        return false;
    uint64_t seq = segment->control->seq + 1, capacity = segment->capacity;
    struct st_area *fresh = st_area_take(thread, schema, seq, capacity, true);
    if (!fresh)
        return false;
    __atomic_fetch_add(&thread->handed, 1, __ATOMIC_SEQ_CST); /* before nothing leads to it */
    use(segment, fresh, capacity);
    if (st_background_put(full))
        return true;
    use(segment, full, capacity);
    st_area_give(fresh);
    bool done = st_area_write(full);
    __atomic_fetch_sub(&thread->handed, 1, __ATOMIC_RELEASE); /* the exit waits until here */
    return done;
}

bool st_segment_flush(struct st_thread *thread, uint32_t schema)
{
    struct st_area *area = __atomic_load_n(&thread->segments[schema].area, __ATOMIC_ACQUIRE);
    return !area || st_area_write(area);
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
