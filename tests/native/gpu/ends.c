/* Cases of queue pairs and processes that end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "repeat.h"

#define LATE_US 300000u

/* The queue pair goes while the copier stands still, and so does its memory. */
static void leave(void)
{
    struct queue *held = make_held();
    struct queue *q = make_queue(64, 0, true);
    cuda_closed = true;
    post(held, 1, 1);
    ring_bell(held, 0);
    await(&held->consumed, 1);
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL); /* the copier is within its copy */
    for (uint32_t n = 0; n < 10; n++)
        post(q, 1, n);
    ring_bell(q, 0);
    await(&q->consumed, q->posted);
    finish(q);
    munmap(q->ring, 64 * 64);
    munmap(q->record, PAGE);
    go_on();
    finish(held);
}

/* The queue pair goes while its slots are being copied. */
static void cut(void)
{
    make_gpu();
    struct queue *q = make_queue(64, 0, true);
    cuda_closed = true;
    for (uint32_t n = 0; n < 10; n++)
        post(q, 1, n);
    ring_bell(q, 0);
    await(&qp_of(q)->started, q->posted);
    const uint64_t *copied = &qp_of(q)->copied;
    finish(q);
    go_on();
    await(copied, q->posted);
}

/* The queue pair goes while the sweeper waits for the copier, on account of another one. */
static void late(void)
{
    struct queue *held = make_held();
    struct queue *q = make_queue(64, 0, true);
    greedy = true;
    cuda_closed = true;
    st_patience_us = LATE_US;
    for (uint32_t n = 0; n < 9; n++)
        post(held, 1, n);
    ring_to_wait(held);
    for (uint32_t n = 0; n < 10; n++)
        post(q, 1, n);
    ring_bell(q, 0);
    finish(q);
    await(&q->consumed, q->posted);
    go_on();
    await(&qp_of(held)->copied, held->posted);
    finish(held);
}

/* The only doorbell never shows, and the queue pair goes at once. */
static void unseen(void)
{
    struct queue *a = make_queue(64, 0, true), *b = make_queue(64, 0, false);
    struct st_gpu_qp_totals totals;
    for (uint32_t n = 0; n < 5; n++)
        post(a, 1, n);
    write_record(a);
    st_gpu_qp_remove((void *)a->shadow, a->qpn, &totals);
    print_totals(a, &totals);
    await(&a->consumed, a->posted);
    post(b, 1, 5);
    ring_bell(b, 0);
    finish(b);
}

/* Each life rings the same value as the one before. */
static void lives(uint32_t count)
{
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t n = 0; n < count; n++) {
        struct st_gpu_qp_totals totals;
        uint32_t next = st_object_id();
        post(q, 1, 0);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
        await(&qp_of(q)->copied, q->posted);
        st_gpu_qp_restart((void *)q->shadow, q->qpn, next, &totals);
        print_totals(q, &totals);
        q->object = next;
        q->posted = q->consumed = 0;
    }
}

/* The program's only thread ends, and no other one is left. */
static void said_at_exit(void)
{
    printf("ended 0\n");
}

static void exits(void)
{
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t n = 0; n < 10; n++)
        post(q, 1, n);
    ring_bell(q, 0);
    atexit(said_at_exit);
    pthread_exit(NULL);
}

/* `count` queue pairs of one register go while the copier stands still. */
static void stands(uint32_t count)
{
    struct timespec begin, end;
    struct queue *held = make_held();
    for (uint32_t n = 1; n <= count; n++)
        make_queue_at(16, 0, n == 1 ? held->real + 512 : queues[1].real);
    stand_still(held);
    for (uint32_t n = 1; n <= count; n++) {
        post(&queues[n], 1, n);
        ring_bell(&queues[n], 0);
        await(&qp_of(&queues[n])->forwarded, 1);
    }
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint32_t n = 1; n <= count; n++)
        finish(&queues[n]);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("ended %ld\n", (end.tv_sec - begin.tv_sec) * 1000 +
                              (end.tv_nsec - begin.tv_nsec) / 1000000);
    go_on();
    finish(held);
}

const struct test_case ends_cases[] = {
    {"leave", .run = leave},
    {"cut", .run = cut},
    {"late", .run = late},
    {"unseen", .run = unseen},
    {"lives", .run_count = lives},
    {"stands", .run_count = stands},
    {"exits", .run = exits, .alone = true},
    {0},
};
