/* The program: queue pairs, WQEs in their rings, doorbells; and the NIC that takes what arrives in
 * the real registers. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "repeat.h"

#define RECORD_BYTES 64 /* from one to the next */

struct queue queues[QUEUES];
uint32_t queue_count;
uint8_t *reals, *gpu_ring;
bool greedy;
uint16_t left_over;
bool record_told = true;
bool ring_slots_told = true;

static uint64_t gpu_used;

_Noreturn void fail(const char *what)
{
    fprintf(stderr, "driver: %s\n", what);
    _exit(3);
}

/* --- the NIC ------------------------------------------------------------------------------------ */

bool by_record;

static uint64_t be(uint64_t value, int first, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | (value >> 8 * (first + i) & 255);
    return v;
}

static void nic_take(uint64_t value)
{
    uint32_t qpn = (uint32_t)be(value, 4, 3), segments = be(value, 7, 1) & 63;
    uint16_t index = (uint16_t)(be(value, 1, 2) + (segments + 3) / 4);
    for (uint32_t i = 0; i < queue_count; i++) {
        struct queue *q = &queues[i];
        if (q->qpn != qpn)
            continue;
        if (by_record)
            index = (uint16_t)__builtin_bswap32(__atomic_load_n(q->record + 1, __ATOMIC_ACQUIRE));
        uint16_t more = (uint16_t)(index - (uint16_t)q->consumed);
        if (more > 32768) /* the older one of two halves, seen later */
            continue;
        if (q->consumed + more > __atomic_load_n(&q->posted, __ATOMIC_ACQUIRE))
            fail("the NIC was told of a WQE that was not posted");
        if (q->cq)
            complete(q, q->consumed, q->consumed + more);
        __atomic_store_n(&q->consumed, q->consumed + more, __ATOMIC_RELEASE);
    }
}

void *nic_run(void *nothing)
{
    for (;;) {
        bool any = false;
        for (uint32_t i = 0; i < __atomic_load_n(&queue_count, __ATOMIC_ACQUIRE); i++)
            for (int half = 0; half < 2; half++) {
                volatile uint64_t *word = (void *)((uintptr_t)queues[i].real ^ (half ? 0x100 : 0));
                uint64_t value = *word ? __atomic_exchange_n(word, 0, __ATOMIC_ACQ_REL) : 0;
                if (!value)
                    continue;
                nic_take(value);
                any = true;
            }
        if (!any)
            sched_yield();
    }
    return nothing;
}

/* --- the program --------------------------------------------------------------------------------- */

void *memory(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail("no memory");
    return p;
}

/* What a record says when it is first looked at is of an earlier life. The tracer lets the program
 * go on when that look has not come in 200 ms, as on a machine that is too busy: it counts that,
 * and what the program has announced by then is no news. */
static _Noreturn void fail_late(void)
{
    for (uint32_t i = 0; i < queue_count; i++)
        if (queues[i].is_late)
            fail("waited in vain: the copier first looked at a doorbell record too late");
    fail("waited in vain");
}

void await(const uint64_t *counter, uint64_t least)
{
    time_t until = time(NULL) + 20;
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < least) {
        sched_yield();
        if (time(NULL) > until)
            fail_late();
    }
}

void make_gpu(void)
{
    gpu_ring = memory(GPU_BYTES);
    cuda_from = (uintptr_t)gpu_ring;
    cuda_to = cuda_from + GPU_BYTES;
}

static void make_memory(struct queue *q)
{
    if (!gpu_ring) {
        q->ring = memory(q->slots * 64u);
        q->record = memory(PAGE);
        return;
    }
    q->ring = gpu_ring + gpu_used;
    q->record = (void *)(cuda_to - PAGE + queue_count * RECORD_BYTES);
    gpu_used += q->slots * 64u;
    if (gpu_used > GPU_BYTES - PAGE || queue_count >= PAGE / RECORD_BYTES)
        fail("the GPU's memory is full");
}

struct queue *make_queue_at(uint32_t slots, int vector, volatile uint64_t *real)
{
    struct queue *q = &queues[queue_count];
    *q = (struct queue){.slots = slots,
                        .vector = vector,
                        .qpn = 0x4000 + queue_count,
                        .cq = next_cq,
                        .object = st_object_id(),
                        .real = real};
    make_memory(q);
    q->record[1] = __builtin_bswap32(left_over);
    q->shadow = st_register_shadow((void *)real);
    if (!q->shadow)
        q->shadow = st_register_add((void *)real, 7);
    if (!q->shadow || real_of((void *)q->shadow) != q->real)
        fail("no shadow");
    if (((uintptr_t)q->shadow ^ (uintptr_t)q->real) & (PAGE - 1))
        fail("the shadow lies at another offset");
    struct st_gpu_qp_new new = {.qpn = q->qpn,
                                .object = q->object,
                                .shadow = (void *)q->shadow,
                                .sq = (uintptr_t)q->ring,
                                .sq_slots = ring_slots_told ? slots : 0,
                                .dbrec = record_told ? (uintptr_t)(q->record + 1) : 0,
                                .has_av = vector != 0,
                                .prefix = {0xfe, 0x80},
                                .cq = next_cq ? next_cq->read : NULL};
    if (!st_gpu_qp_add(&new))
        fail("the queue pair was not taken");
    q->is_late = !__atomic_load_n(&qp_of(q)->looked, __ATOMIC_ACQUIRE);
    __atomic_store_n(&queue_count, queue_count + 1, __ATOMIC_RELEASE);
    return q;
}

struct queue *make_queue(uint32_t slots, int vector, bool own)
{
    return make_queue_at(slots, vector,
                         own ? (void *)(reals + queue_count * PAGE + 0x800) : queues[0].real);
}

uint32_t room(const struct queue *q)
{
    return greedy ? q->slots : q->slots / 2;
}

static uint64_t last_index; /* the control index of the WQE posted last */

void post(struct queue *q, uint32_t kind, uint32_t number)
{
    uint8_t bytes[MOST_BYTES];
    struct posted told =
        wqe_build(bytes, kind, number, q->qpn, (uint16_t)q->posted, q->vector);
    if (q->posted + told.slots > room(q))
        await(&q->consumed, q->posted + told.slots - room(q));
    for (uint32_t i = 0; i < told.slots; i++)
        memcpy(q->ring + (q->posted + i) % q->slots * 64, bytes + 64 * i, 64);
    printf("wqe %u %lu %u %u %u %lu %lu %u %u %u %u %u %u %d\n", q->object, q->posted, told.slots,
           told.opcode, told.op, told.size, told.raddr, told.rkey, told.imm, told.sges,
           told.signaled, told.qpn, told.lid, told.gid);
    last_index = q->posted;
    __atomic_store_n(&q->posted, q->posted + told.slots, __ATOMIC_RELEASE);
}

void write_record(struct queue *q)
{
    __atomic_store_n(q->record + 1, __builtin_bswap32((uint16_t)q->posted), __ATOMIC_RELEASE);
}

uint64_t doorbell(struct queue *q, int dialect)
{
    uint64_t value;
    if (dialect)
        memcpy(&value, q->ring + last_index % q->slots * 64, 8);
    else
        value = __builtin_bswap32((uint32_t)(uint16_t)q->posted << 8) |
                (uint64_t)__builtin_bswap32(q->qpn << 8) << 32;
    return value;
}

void store(struct queue *q, uint64_t value)
{
    *(volatile uint64_t *)((uintptr_t)q->shadow ^ q->half) = value;
}

void ring_bell(struct queue *q, int dialect)
{
    write_record(q);
    store(q, doorbell(q, dialect));
}

const struct st_gpu_qp *qp_of(const struct queue *q)
{
    for (uint32_t i = 0; i < st_gpu_qps_used; i++)
        if (st_gpu_qps[i].stream.object == q->object)
            return &st_gpu_qps[i];
    fail("a queue pair that is not there");
}

void print_totals(const struct queue *q, const struct st_gpu_qp_totals *totals)
{
    printf("totals %u %lu %lu %lu %lu\n", q->object, totals->doorbells, totals->slots,
           totals->invalid_slots, totals->uncopied_slots);
}

void finish(struct queue *q)
{
    struct st_gpu_qp_totals totals;
    if (!cuda_closed)
        await(&qp_of(q)->copied, q->posted);
    st_gpu_qp_remove((void *)q->shadow, q->qpn, &totals);
    print_totals(q, &totals);
}

void *real_of(const void *shadow)
{
    struct st_register *one = st_register_of(shadow);
    return one ? (void *)(uintptr_t)one->real : NULL;
}

volatile uint64_t *register_of_page(uint32_t n)
{
    return (void *)(reals + 0x800 + n * 0x200);
}

struct queue *make_held(void)
{
    make_gpu();
    struct queue *held = make_queue(16, 0, true);
    gpu_ring = NULL;
    return held;
}

void stand_still(struct queue *held)
{
    cuda_closed = true;
    post(held, 1, 1);
    ring_bell(held, 0);
    await(&qp_of(held)->started, held->posted);
}

void go_on(void)
{
    __atomic_store_n(&cuda_closed, false, __ATOMIC_RELEASE);
}

void ring_to_wait(struct queue *q)
{
    uint32_t hurry = __atomic_load_n(&st_hurry, __ATOMIC_ACQUIRE);
    ring_bell(q, 0);
    while (__atomic_load_n(&st_hurry, __ATOMIC_ACQUIRE) == hurry)
        sched_yield();
}

/* Some containers refuse it. */
static bool vm_refused;
ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                         const struct iovec *remote, unsigned long remotes, unsigned long flags)
{
    if (vm_refused) {
        errno = EPERM;
        return -1;
    }
    return syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
}

/* Memory that is there, and that is not any more; with both ways of reading it. */
void peeks(void)
{
    uint8_t *page = memory(PAGE), copy[8] = {0};
    memset(page, 7, PAGE);
    for (int way = 0; way < 2; way++) {
        vm_refused = way;
        bool there = st_peek(copy, (uintptr_t)page + 100, sizeof(copy)) && copy[7] == 7;
        munmap(page, PAGE);
        bool gone = !st_peek(copy, (uintptr_t)page + 100, sizeof(copy));
        printf("peek %d %d %d\n", way, there, gone);
        page = memory(PAGE);
        memset(page, 7, PAGE);
    }
}
