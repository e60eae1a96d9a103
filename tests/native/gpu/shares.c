/* Cases of registers that are shared, of pages that are, and of what the copier keeps waiting. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "repeat.h"

/* --- doorbells that are overwritten ------------------------------------------------------------------ */

/* Two queue pairs ring on one register, the second at once after the first. */
static void shared(uint32_t count)
{
    struct queue *a = make_queue(2048, 0, true), *b = make_queue(2048, 0, false);
    for (uint32_t n = 0; n < count; n++) {
        post(a, 1, 2 * n);
        post(b, 4, 2 * n + 1);
        ring_bell(a, 0);
        ring_bell(b, 0);
        if (n % 8 == 0)
            sched_yield();
    }
    /* The last doorbell of the first may have been overwritten: the NIC, which polls, may not see
     * what is made of its record. */
    await(&qp_of(a)->forwarded, a->posted);
    await(&qp_of(b)->forwarded, b->posted);
    finish(b);
    finish(a);
    if (!st_register_remove((void *)a->shadow) || real_of((void *)a->shadow) != a->real)
        fail("the register went with its first user");
    if (!st_register_remove((void *)a->shadow) || real_of((void *)a->shadow))
        fail("the register did not go");
}

/* The doorbell of the first queue pair never shows, as the other's came at once after it. (The
 * other's are at the alternate half, so that the NIC here, which polls, misses none.) */
static void blind(void)
{
    record_told = false;
    struct queue *a = make_queue(64, 0, true);
    record_told = true;
    struct queue *b = make_queue(64, 0, false), *c = make_queue(64, 0, true);
    finish(a);
    finish(b);
    finish(c);
}

static void overwritten(void)
{
    struct queue *a = make_queue(64, 0, true), *b = make_queue(64, 0, false);
    post(a, 1, 1);
    write_record(a);
    b->half = 0x100;
    post(b, 4, 2);
    ring_bell(b, 0);
    await(&qp_of(a)->forwarded, a->posted); /* the NIC may miss it if both are made of records */
    await(&qp_of(b)->forwarded, b->posted);
    finish(a);
    finish(b);
}

/* Two registers of one page. Nobody can tell from a new queue pair on which of them it rings. */

/* The first rings on the second's register, which overwrites it there at once. */
static void guessed(void)
{
    struct queue *a = make_queue_at(64, 0, register_of_page(0));
    struct queue *b = make_queue_at(64, 0, register_of_page(1));
    post(a, 1, 1);
    write_record(a);
    post(b, 4, 2);
    ring_bell(b, 0);
    await(&qp_of(a)->forwarded, a->posted);
    await(&qp_of(b)->forwarded, b->posted);
    finish(a);
    finish(b);
}

static void ring_at(struct queue *q, volatile uint64_t *shadow)
{
    post(q, 1, 1);
    write_record(q);
    *shadow = doorbell(q, 0);
    await(&qp_of(q)->forwarded, q->posted);
}

/* The first rings on both, and is then overwritten where it rang before the last time. */
static void roams(void)
{
    struct queue *a = make_queue_at(64, 0, register_of_page(0));
    struct queue *b = make_queue_at(64, 0, register_of_page(1));
    ring_at(a, a->shadow);
    ring_at(b, b->shadow);
    ring_at(a, b->shadow);
    ring_at(a, a->shadow);
    post(a, 1, 2);
    write_record(a);
    ring_at(b, b->shadow);
    await(&qp_of(a)->forwarded, a->posted);
    finish(a);
    finish(b);
}

/* One that nobody knows overwrites the doorbell. */
static void stranger(void)
{
    struct queue *q = make_queue(64, 0, true);
    uint64_t value = __builtin_bswap32(1u << 8) | (uint64_t)__builtin_bswap32(0x9999u << 8) << 32;
    post(q, 1, 1);
    write_record(q);
    store(q, value);
    printf("nobody %lu\n", value);
    await(&qp_of(q)->forwarded, q->posted);
    finish(q);
}

/* The same, while the copier stands still for longer than the making of a queue pair waits for its
 * first look at the record. */
static void tardy(void)
{
    struct queue *held = make_held();
    stand_still(held);
    struct queue *q = make_queue(64, 0, true);
    post(q, 1, 1);
    write_record(q);
    store(q, __builtin_bswap32(1u << 8) | (uint64_t)__builtin_bswap32(0x9999u << 8) << 32);
    go_on();
    await(&qp_of(q)->forwarded, q->posted);
    finish(q);
    finish(held);
}

/* --- doorbell records that are no news ----------------------------------------------------------------- */

static void look_often(void)
{
    await(&st_records_rounds, __atomic_load_n(&st_records_rounds, __ATOMIC_ACQUIRE) + 20);
}

/* A record still says what it said in a former life (of the queue pair, or of the memory). */
static void former(void)
{
    struct st_gpu_qp_totals totals;
    struct queue *a = make_queue(64, 0, true);
    left_over = 7;
    struct queue *b = make_queue(64, 0, false);
    for (uint32_t n = 0; n < 5; n++)
        post(a, 1, n);
    ring_bell(a, 0);
    await(&qp_of(a)->copied, 5);
    uint32_t next = st_object_id();
    st_gpu_qp_restart((void *)a->shadow, a->qpn, next, &totals);
    print_totals(a, &totals);
    a->object = next;
    a->posted = a->consumed = 0;
    look_often();
    printf("made %lu %lu\n", qp_of(a)->doorbells, qp_of(b)->doorbells);
    for (uint32_t n = 0; n < 3; n++)
        post(b, 1, n);
    write_record(b); /* overwritten by the first's */
    post(a, 4, 1);
    ring_bell(a, 0);
    await(&qp_of(a)->forwarded, a->posted);
    await(&qp_of(b)->forwarded, b->posted);
    finish(a);
    finish(b);
}

/* The record has told of two when the doorbell of the first is seen. */
static void passed(void)
{
    struct queue *a = make_queue(64, 0, true), *b = make_queue(64, 0, false);
    post(a, 1, 1);
    uint64_t value = doorbell(a, 0);
    post(a, 1, 2);
    write_record(a);
    post(b, 1, 3);
    b->half = 0x100;
    ring_bell(b, 0);
    await(&qp_of(a)->forwarded, 2);
    store(a, value);
    while (*a->shadow)
        sched_yield();
    finish(a);
    finish(b);
}

/* --- doorbell records in the GPU's memory ------------------------------------------------------------------ */

/* How many copies it takes to look at `count` records that lie side by side. */
static void records(uint32_t count)
{
    make_gpu();
    for (uint32_t n = 0; n < count; n++)
        make_queue(16, 0, n == 0);
    uint64_t looks = __atomic_load_n(&st_records_rounds, __ATOMIC_ACQUIRE);
    uint32_t copies = __atomic_load_n(&cuda_copies, __ATOMIC_SEQ_CST);
    look_often();
    copies = __atomic_load_n(&cuda_copies, __ATOMIC_SEQ_CST) - copies;
    looks = __atomic_load_n(&st_records_rounds, __ATOMIC_ACQUIRE) - looks;
    printf("copies %u %lu\n", copies, looks);
    for (uint32_t n = 0; n < count; n++)
        finish(&queues[n]);
}

/* What lies between two records cannot be read. */
static void gap(void)
{
    make_gpu();
    cuda_gap = cuda_to - PAGE + 32;
    overwritten();
}

/* --- a copier that stands still ------------------------------------------------------------------------ */

/* What one doorbell waits for keeps back its register, not another. */
static void waits(void)
{
    struct queue *held = make_held();
    struct queue *same = make_queue(16, 0, false), *other = make_queue(16, 0, true);
    greedy = true;
    cuda_closed = true;
    for (uint32_t n = 0; n < 9; n++)
        post(held, 1, n);
    ring_to_wait(held);
    post(same, 1, 1);
    ring_bell(same, 0);
    post(other, 1, 2);
    ring_bell(other, 0);
    await(&other->consumed, 1);
    if (qp_of(held)->forwarded || qp_of(same)->forwarded)
        fail("a doorbell that had to wait was not waited for");
    go_on();
    await(&qp_of(held)->forwarded, 9);
    await(&qp_of(same)->forwarded, 1);
    finish(other);
    finish(same);
    finish(held);
}

/* An older doorbell comes to another register while a newer one waits. */
static void older(void)
{
    make_gpu();
    struct queue *q = make_queue_at(16, 0, register_of_page(0));
    struct queue *other = make_queue_at(16, 0, register_of_page(1));
    greedy = true;
    cuda_closed = true;
    post(q, 1, 0);
    uint64_t value = doorbell(q, 0), index = q->posted;
    while (q->posted <= 8)
        post(q, 1, (uint32_t)q->posted);
    ring_to_wait(q);
    *other->shadow = value;
    await(&qp_of(q)->forwarded, index);
    go_on();
    await(&qp_of(q)->forwarded, q->posted);
    ring_at(other, other->shadow);
    finish(q);
    finish(other);
}

/* More doorbells than the copier can be told of. */
static void untold(uint32_t count)
{
    struct queue *held = make_held();
    struct queue *q = make_queue(16, 0, true);
    const struct st_gpu_qp *qp = qp_of(q);
    stand_still(held);
    post(q, 1, 1);
    write_record(q);
    for (uint64_t n = 1; n <= count; n++) {
        store(q, doorbell(q, 0));
        await(&qp->doorbells, n);
    }
    go_on();
    finish(q);
    finish(held);
}

/* A ring is used a second time while nothing of its first use is copied. */
static void again(void)
{
    make_gpu();
    struct queue *q = make_queue(16, 0, true);
    greedy = true;
    cuda_closed = true;
    st_patience_us = IMPATIENT_US;
    for (uint32_t round = 1; round <= 2; round++) {
        while (q->posted < 16 * round)
            post(q, 1, (uint32_t)q->posted);
        ring_bell(q, 0);
        await(&qp_of(q)->started, 16);
        await(&q->consumed, q->posted);
    }
    go_on();
    finish(q);
}

const struct test_case shares_cases[] = {
    {"shared", .run_count = shared},
    {"blind", .run = blind},
    {"overwritten", .run = overwritten},
    {"guessed", .run = guessed},
    {"roams", .run = roams},
    {"stranger", .run = stranger},
    {"tardy", .run = tardy},
    {"former", .run = former},
    {"passed", .run = passed},
    {"records", .run_count = records},
    {"gap", .run = gap},
    {"waits", .run = waits},
    {"older", .run = older},
    {"untold", .run_count = untold},
    {"again", .run = again},
    {0},
};
