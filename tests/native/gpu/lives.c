/* Cases of doorbell records that are not true, and of queue pairs that outlive their registers. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "repeat.h"

#define LOOKS 20
#define TWO_SLOTS 2 /* the number of such a WQE of kind 1 */

static void look_often(void)
{
    await(&st_records_rounds, __atomic_load_n(&st_records_rounds, __ATOMIC_ACQUIRE) + LOOKS);
}

static void print_made(const struct queue *q)
{
    printf("made %lu\n", qp_of(q)->doorbells);
}

/* --- doorbell records that are not true --------------------------------------------------------- */

static void say(struct queue *q, uint32_t index)
{
    __atomic_store_n(q->record + 1, __builtin_bswap32(index), __ATOMIC_RELEASE);
}

/* The record tells of slots that hold no WQE, or not whole ones, or those of an earlier lap. */
static void untrue(void)
{
    struct queue *a = make_queue(16, 0, true), *b = make_queue(64, 0, false);
    say(a, 3);
    look_often();
    print_made(a);
    post(a, 1, TWO_SLOTS);
    say(a, 1);
    look_often();
    print_made(a);
    for (uint32_t n = 1; n < 10; n++) {
        ring_bell(a, 0);
        await(&a->consumed, a->posted);
        post(a, 1, TWO_SLOTS);
    }
    ring_bell(a, 0);
    await(&a->consumed, a->posted);
    say(a, (uint32_t)a->posted + 8);
    uint64_t before = qp_of(a)->forwarded;
    look_often();
    printf("made %lu\n", qp_of(a)->forwarded - before);
    finish(a);
    finish(b);
}

/* A NIC that needs no records: they are never written; 0 is ahead when the index nears 65536. */
static void unwritten(void)
{
    struct queue *a = make_queue(64, 0, true), *b = make_queue(64, 0, false);
    uint64_t rung = 0;
    while (a->posted < 65536 - 8) {
        post(a, 1, 1);
        if (a->posted < rung + 16)
            continue;
        store(a, doorbell(a, 0));
        rung = a->posted;
        await(&a->consumed, rung);
    }
    store(a, doorbell(a, 0));
    await(&a->consumed, a->posted);
    uint64_t before = qp_of(a)->forwarded;
    while (a->posted < 65536)
        post(a, 1, 1);
    look_often();
    printf("made %lu\n", qp_of(a)->forwarded - before);
    store(a, doorbell(a, 0));
    await(&a->consumed, a->posted);
    finish(a);
    finish(b);
}

/* Where the ring is not known, the record is all there is. */
static void unknown_ring(void)
{
    ring_slots_told = false;
    struct queue *a = make_queue(64, 0, true), *b = make_queue(64, 0, false);
    post(a, 1, 1);
    write_record(a);
    await(&qp_of(a)->forwarded, a->posted);
    finish(a);
    finish(b);
}

/* --- queue pairs and registers ------------------------------------------------------------------ */

/* Its register goes, it is reset, and rings on another one that the page gets. */
static void homeless(void)
{
    struct queue *q = make_queue_at(64, 0, register_of_page(0));
    const void *first = (void *)q->shadow;
    struct st_gpu_qp_totals totals;
    uint32_t next = st_object_id();
    post(q, 1, 0);
    ring_bell(q, 0);
    await(&qp_of(q)->copied, q->posted);
    await(&q->consumed, q->posted);
    st_register_remove(first);
    st_gpu_qp_restart(first, q->qpn, next, &totals);
    print_totals(q, &totals);
    q->object = next;
    q->posted = q->consumed = 0;
    q->real = register_of_page(1);
    q->shadow = st_register_add((void *)q->real, 7);
    post(q, 4, 1);
    ring_bell(q, 0);
    await(&q->consumed, q->posted);
    await(&qp_of(q)->copied, q->posted);
    st_gpu_qp_remove(first, q->qpn, &totals);
    print_totals(q, &totals);
}

/* The register on which the first was guessed to ring goes; on the other one it is overwritten. */
static void moved(void)
{
    struct queue *a = make_queue_at(64, 0, register_of_page(0));
    struct queue *b = make_queue_at(64, 0, register_of_page(1));
    st_register_remove((void *)a->shadow);
    post(a, 1, 1);
    write_record(a);
    post(b, 4, 2);
    ring_bell(b, 0);
    await(&qp_of(a)->forwarded, a->posted);
    await(&qp_of(b)->forwarded, b->posted);
    finish(a);
    finish(b);
}

/* Each one that ends has its own record read, not all of them. */
static void many_end(uint32_t count)
{
    for (uint32_t n = 0; n < count; n++)
        make_queue(16, 0, n == 0);
    uint64_t rounds = __atomic_load_n(&st_records_rounds, __ATOMIC_ACQUIRE);
    for (uint32_t n = 0; n < count; n++)
        finish(&queues[n]);
    printf("rounds %lu\n", __atomic_load_n(&st_records_rounds, __ATOMIC_ACQUIRE) - rounds);
}

/* The process ends after a ring that could not be read. */
static void torn(void)
{
    struct queue *q = make_queue(64, 0, true);
    post(q, 1, 1);
    uint64_t value = doorbell(q, 0);
    write_record(q);
    munmap(q->ring, 64 * 64);
    store(q, value);
    await(&q->consumed, q->posted);
    await(&qp_of(q)->missing, q->posted);
}

const struct test_case lives_cases[] = {
    {"untrue", .run = untrue},
    {"unwritten", .run = unwritten},
    {"unknown_ring", .run = unknown_ring},
    {"homeless", .run = homeless},
    {"moved", .run = moved},
    {"many_end", .run_count = many_end},
    {"torn", .run = torn},
    {0},
};
