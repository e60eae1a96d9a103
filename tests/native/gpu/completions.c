/* Completion queues of the NIC, and cases of them. The NIC tells each element that it writes. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "repeat.h"

enum { ELEMENT = 64, SIGNALED = 0x08, ERROR = 13, REMOTE_ACCESS = 0x13, FLUSHED = 0x05 };
enum { VENDOR = 0x88, STANDS_MS = 40 };
enum { PACED = 1, LONG = 2 };

struct cq *next_cq;
static uint64_t fails_at = UINT64_MAX; /* the request's index; those behind it are flushed */
static bool held; /* the NIC writes no elements */

/* --- the NIC ------------------------------------------------------------------------------------ */

static void write_element(struct cq *cq, uint32_t qpn, uint16_t counter, uint8_t opcode,
                          uint8_t syndrome)
{
    uint64_t entries = 1ull << cq->log_size, last;
    uint64_t at = cq->collapsed ? 0 : cq->produced & (entries - 1);
    uint8_t bytes[ELEMENT] = {0}, *to = cq->bytes + (at + 1) * cq->stride - ELEMENT;
    uint8_t owner = cq->collapsed ? 0 : cq->produced >> cq->log_size & 1;
    bytes[54] = syndrome ? VENDOR : 0;
    bytes[55] = syndrome;
    bytes[56] = opcode;
    for (int i = 0; i < 3; i++)
        bytes[57 + i] = (uint8_t)(qpn >> (16 - 8 * i));
    bytes[60] = (uint8_t)(counter >> 8);
    bytes[61] = (uint8_t)counter;
    bytes[63] = (uint8_t)((syndrome ? ERROR : 0) << 4 | owner);
    memcpy(&last, bytes + 56, sizeof(last));
    memcpy(to, bytes, 56);
    __atomic_store_n((uint64_t *)(to + 56), last, __ATOMIC_RELEASE);
    cq->produced++;
}

void complete(struct queue *q, uint64_t from, uint64_t to)
{
    for (uint64_t index = from; index < to && !__atomic_load_n(&held, __ATOMIC_ACQUIRE);) {
        const uint8_t *slot = q->ring + index % q->slots * 64;
        uint64_t fails = __atomic_load_n(&fails_at, __ATOMIC_ACQUIRE);
        uint8_t syndrome = index < fails ? 0 : index == fails ? REMOTE_ACCESS : FLUSHED;
        if (syndrome || slot[11] & SIGNALED) {
            printf("cqe %u %lu %u %u\n", q->object, index, slot[3], syndrome);
            write_element(q->cq, q->qpn, (uint16_t)index, slot[3], syndrome);
        }
        index += ((slot[7] & 63) + 3) / 4;
    }
}

/* --- the program --------------------------------------------------------------------------------- */

static void clean(struct cq *cq)
{
    memset(cq->bytes, 0xff, (size_t)cq->stride << (cq->collapsed ? 0 : cq->log_size));
}

/* In the GPU's memory, behind the rings, where there is one. */
static struct cq *make_cq(uint32_t log_size, bool collapsed, uint32_t stride)
{
    static struct cq cqs[8];
    static uint32_t count;
    struct cq *cq = &cqs[count];
    *cq = (struct cq){.log_size = log_size, .collapsed = collapsed, .stride = stride};
    cq->bytes = gpu_ring ? (uint8_t *)cuda_to - 8 * PAGE + 64 * count : memory(4 * PAGE);
    clean(cq);
    cq->read = st_gpu_cq_add(&(struct st_gpu_cq_new){
        .at = (uintptr_t)cq->bytes, .log_size = log_size, .stride = stride, .collapsed = collapsed});
    if (!cq->read)
        fail("the completion queue was not taken");
    count++;
    next_cq = cq;
    return cq;
}

/* Until nothing is outstanding of which the tracer knows. */
static void settle(const struct queue *q)
{
    time_t until = time(NULL) + 20;
    await(&qp_of(q)->copied, q->posted);
    await(&qp_of(q)->recorded, q->posted);
    while (__atomic_load_n(&st_cqes_listed, __ATOMIC_ACQUIRE)) {
        sched_yield();
        if (time(NULL) > until)
            fail("completions were not seen");
    }
}

static void post_and_ring(struct queue *q, uint32_t kind, uint32_t number)
{
    post(q, kind, number);
    ring_bell(q, 0);
    await(&q->consumed, q->posted);
}

/* WQEs of all kinds, some with a completion: as fast as they go, or each seen before the next. */
static void many_kinds(const uint32_t n[6])
{
    struct cq *cq = make_cq(n[2], n[3], n[4] & LONG ? 128 : 64);
    struct queue *q = make_queue(n[0], 0, true);
    for (uint32_t i = 0; i < n[1]; i++) {
        post(q, (i + i / wqe_kinds) % wqe_kinds, i);
        if (i % 3 == 0 || n[4] & PACED || q->posted - q->consumed + 8 > room(q))
            ring_bell(q, 0);
        if (n[4] & PACED) {
            await(&q->consumed, q->posted);
            settle(q);
        }
    }
    ring_bell(q, 0);
    await(&q->consumed, q->posted);
    finish(q);
    st_gpu_cq_remove(cq->read);
}

/* One request fails, all behind it are flushed. */
static void failing(const uint32_t n[6])
{
    make_cq(6, n[0], 64);
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t i = 0; i < 20; i++) {
        if (i == 7)
            __atomic_store_n(&fails_at, q->posted, __ATOMIC_RELEASE);
        post_and_ring(q, 1, i);
        if (i == 7)
            settle(q);
    }
    finish(q);
}

/* One that asks for no completion fails, and is the last one. */
static void silent(const uint32_t n[6])
{
    make_cq(6, n[0], 64);
    struct queue *q = make_queue(64, 0, true);
    post_and_ring(q, 1, 1);
    settle(q);
    __atomic_store_n(&fails_at, q->posted, __ATOMIC_RELEASE);
    post_and_ring(q, 1, 0);
    finish(q);
}

/* Two queue pairs complete at one queue. */
static void together(const uint32_t n[6])
{
    make_cq(6, n[0], 64);
    struct queue *a = make_queue(64, 0, true), *b = make_queue(64, 0, true);
    for (uint32_t i = 1; i < 400; i += 2) {
        post_and_ring(a, 1, i);
        post_and_ring(b, 4, i);
    }
    finish(a);
    finish(b);
}

/* Lives of one queue pair, each of one request; what the one before left may be there still. */
static void again(const uint32_t n[6])
{
    struct cq *cq = make_cq(4, n[0], 64);
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t i = 0; i < n[2]; i++) {
        struct st_gpu_qp_totals totals;
        uint32_t next = st_object_id();
        post_and_ring(q, 1, 1);
        await(&qp_of(q)->copied, q->posted);
        if (n[1] && cq->collapsed) { /* as the program does, when it has seen it */
            settle(q);
            clean(cq);
        }
        st_gpu_qp_restart((void *)q->shadow, q->qpn, next, &totals);
        q->object = next;
        q->posted = q->consumed = 0;
    }
    held = true; /* none completes now, though an element of this index is there */
    post_and_ring(q, 1, 1);
    finish(q);
}

/* Elements that are nobody's, or say what cannot be. */
static void strays(const uint32_t n[6])
{
    struct cq *cq = make_cq(4, n[0], 64);
    struct queue *q = make_queue(64, 0, true);
    held = true;
    post_and_ring(q, 1, 1);
    post_and_ring(q, 1, 1);
    uint16_t counters[] = {0, 2, 40000, 60000};
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t looks = __atomic_load_n(&st_cqes_looks, __ATOMIC_ACQUIRE);
        write_element(cq, i ? q->qpn : 0x777, counters[i], 8, 0);
        await(&st_cqes_looks, looks + 5);
    }
    printf("cqe %u 1 8 0\n", q->object);
    write_element(cq, q->qpn, 1, 8, 0);
    finish(q);
}

/* A request that does not complete for long: how often was its queue looked at? */
static void stands(void)
{
    make_gpu();
    make_cq(0, true, 64);
    struct queue *q = make_queue(64, 0, true);
    struct timespec begin, end;
    held = true;
    post_and_ring(q, 1, 1);
    await(&qp_of(q)->copied, q->posted);
    uint32_t rounds = __atomic_load_n(&cuda_rounds, __ATOMIC_ACQUIRE);
    uint64_t looks = __atomic_load_n(&st_cqes_looks, __ATOMIC_ACQUIRE);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    await(&st_cqes_looks, looks + STANDS_MS);
    clock_gettime(CLOCK_MONOTONIC, &end);
    rounds = __atomic_load_n(&cuda_rounds, __ATOMIC_ACQUIRE) - rounds;
    printf("stood %ld %u\n",
           (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000, rounds);
    finish(q);
}

/* Eight queue pairs with something outstanding, whose queues lie side by side: copies at a look? */
static void side_by_side(void)
{
    make_gpu();
    uint8_t *rings = gpu_ring;
    for (uint32_t i = 0; i < 8; i++) {
        make_cq(0, true, 64);
        gpu_ring = rings + i * PAGE;
        make_queue(64, 0, true);
    }
    held = true;
    for (uint32_t i = 0; i < 8; i++)
        post_and_ring(&queues[i], 1, 1);
    for (uint32_t i = 0; i < 8; i++)
        await(&qp_of(&queues[i])->recorded, queues[i].posted);
    uint32_t copies = __atomic_load_n(&cuda_copies, __ATOMIC_ACQUIRE);
    uint64_t looks = __atomic_load_n(&st_cqes_looks, __ATOMIC_ACQUIRE);
    await(&st_cqes_looks, looks + 20);
    printf("copied %u\n", __atomic_load_n(&cuda_copies, __ATOMIC_ACQUIRE) - copies);
    held = false;
    for (uint32_t i = 0; i < 8; i++) {
        complete(&queues[i], 0, queues[i].posted);
        finish(&queues[i]);
    }
}

/* The queue goes, and its memory, though something is outstanding. */
static void gone(void)
{
    struct cq *cq = make_cq(4, false, 64);
    struct queue *q = make_queue(64, 0, true);
    held = true;
    post_and_ring(q, 1, 1);
    await(&qp_of(q)->copied, q->posted);
    st_gpu_cq_remove(cq->read);
    munmap(cq->bytes, 4 * PAGE);
    held = false;
    q->cq = make_cq(4, false, 64);
    post_and_ring(q, 1, 1);
    finish(q);
}

/* The process ends while the queue pair is there. */
static void stays(void)
{
    make_cq(0, true, 64);
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t i = 0; i < 9; i++)
        post_and_ring(q, 1, 1);
}

const struct test_case completions_cases[] = {
    {"complete", .run_numbers = many_kinds},
    {"failing", .run_numbers = failing},
    {"silent", .run_numbers = silent},
    {"together", .run_numbers = together},
    {"cq-again", .run_numbers = again},
    {"strays", .run_numbers = strays},
    {"cq-stands", .run = stands},
    {"beside", .run = side_by_side},
    {"gone", .run = gone},
    {"stays", .run = stays},
    {0},
};
