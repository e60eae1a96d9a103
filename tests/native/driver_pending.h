/* A command of the driver: the map of what is pending, alone and with four threads. */
#ifndef DRIVER_PENDING_H
#define DRIVER_PENDING_H
#include <sched.h>

#include "driver.h"

/* Two threads put, two take: every value comes out once. */
static uint64_t taken_sum, taken_count;
static char contexts[4096];

static void *job_put(void *p)
{
    struct job *job = p;
    for (long i = 0; i < job->n; i++) {
        struct st_pending value = {.size_bytes = (uint64_t)i + 1, .tag = ~(uint64_t)(i + 1)};
        while (!st_pending_put(&contexts[i % 64 + job->number % 2 * 64], &value))
            sched_yield();
    }
    return NULL;
}

static void *job_take(void *p)
{
    struct job *job = p;
    for (long i = 0; i < job->n; i++) {
        struct st_pending value, seen;
        const void *context = &contexts[i % 64 + job->number % 2 * 64];
        while (!st_pending_take(context, &value))
            sched_yield();
        if (value.tag != ~value.size_bytes)
            fail("torn value");
        if (st_pending_peek(context, &seen) && seen.tag != ~seen.size_bytes)
            fail("torn peek");
        __atomic_fetch_add(&taken_sum, value.size_bytes, __ATOMIC_RELAXED);
        __atomic_fetch_add(&taken_count, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *job_pending(void *p)
{
    struct job *job = p;
    return job->number < 2 ? job_put(p) : job_take(p);
}

static void pending(long n)
{
    struct st_pending value = {0};
    for (int i = 0; i < 500; i++) { /* one context many times: oldest first */
        value.order = (uint32_t)i;
        if (!st_pending_put(contexts, &value))
            fail("no room");
    }
    for (int i = 0; i < 500; i++) {
        if (!st_pending_peek(contexts, &value) || value.order != (uint32_t)i)
            fail("peek out of order");
        if (!st_pending_take(contexts, &value) || value.order != (uint32_t)i)
            fail("out of order");
    }
    if (st_pending_take(contexts, &value) || st_pending_put(NULL, &value))
        fail("found nothing's value");
    run_threads(4, n, job_pending, false);
    for (long i = 0; i < n; i++) /* many contexts at once, beyond the first level */
        if (!st_pending_put((void *)(0x10000 + i * 64), &value))
            fail("no room for many");
    for (long i = 0; i < n; i++)
        if (!st_pending_take((void *)(0x10000 + i * 64), &value))
            fail("one of many is missing");
    printf("{\"sum\": %llu, \"count\": %llu}\n", (unsigned long long)taken_sum,
           (unsigned long long)taken_count);
}
#endif
