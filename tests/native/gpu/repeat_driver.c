/* The cases: `repeat_driver CASE NUMBERS...`; what each does is at its function. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu/repeater.h"
#include "repeat.h"

#define QUEUES 1024
#define PAGE 4096
#define PATIENT_US 10000000u /* on a busy machine the copier may stand still by chance */

struct st_gpu_config st_gpu_config = {.batch = 128};

struct queue {
    uint8_t *ring;
    uint32_t *record; /* doorbell record */
    volatile uint64_t *shadow, *real;
    uint32_t qpn, object, slots, half;
    int vector;
    uint64_t posted, consumed; /* index; consumed: by the NIC */
};
static struct queue queues[QUEUES];
static uint32_t queue_count;
static uint8_t *reals; /* registers of the NIC: a page for each */

_Noreturn void fail(const char *what)
{
    fprintf(stderr, "driver: %s\n", what);
    _exit(3);
}

/* --- the NIC ------------------------------------------------------------------------------------ */

static uint64_t nic_last[QUEUES][2];

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
        uint16_t more = (uint16_t)(index - (uint16_t)q->consumed);
        if (more > 32768) /* the older one of two halves, seen later */
            continue;
        if (q->consumed + more > __atomic_load_n(&q->posted, __ATOMIC_ACQUIRE))
            fail("the NIC was told of a WQE that was not posted");
        __atomic_store_n(&q->consumed, q->consumed + more, __ATOMIC_RELEASE);
    }
}

static void *nic_run(void *nothing)
{
    for (;;) {
        bool any = false;
        for (uint32_t i = 0; i < __atomic_load_n(&queue_count, __ATOMIC_ACQUIRE); i++)
            for (int half = 0; half < 2; half++) {
                volatile uint64_t *word = (void *)((uintptr_t)queues[i].real ^ (half ? 0x100 : 0));
                uint64_t value = *word;
                if (value == nic_last[i][half])
                    continue;
                nic_last[i][half] = value;
                nic_take(value);
                any = true;
            }
        if (!any)
            sched_yield();
    }
    return nothing;
}

/* --- the program --------------------------------------------------------------------------------- */

static void *memory(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail("no memory");
    return p;
}

static void await(const uint64_t *counter, uint64_t least)
{
    time_t until = time(NULL) + 20;
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < least) {
        sched_yield();
        if (time(NULL) > until)
            fail("waited in vain");
    }
}

static uint8_t *gpu_ring; /* where the next ring is to be, if not in the host's memory */

static void make_gpu(void)
{
    gpu_ring = memory(PAGE);
    cuda_from = (uintptr_t)gpu_ring;
    cuda_to = cuda_from + PAGE;
}

/* `own`: a register of its own, else that of the first one. */
static struct queue *make_queue(uint32_t slots, int vector, bool own)
{
    struct queue *q = &queues[queue_count];
    *q = (struct queue){.slots = slots,
                        .vector = vector,
                        .qpn = 0x4000 + queue_count,
                        .object = st_object_id(),
                        .ring = gpu_ring ? gpu_ring : memory(slots * 64u),
                        .record = memory(PAGE)};
    q->real = own ? (void *)(reals + queue_count * PAGE + 0x800) : queues[0].real;
    q->shadow = own ? st_register_add((void *)q->real, 7) : st_register_shadow((void *)q->real);
    if (!q->shadow || st_register_real((void *)q->shadow) != q->real)
        fail("no shadow");
    if (((uintptr_t)q->shadow ^ (uintptr_t)q->real) & (PAGE - 1))
        fail("the shadow lies at another offset");
    struct st_gpu_qp_new new = {.qpn = q->qpn,
                                .object = q->object,
                                .shadow = (void *)q->shadow,
                                .sq = (uintptr_t)q->ring,
                                .sq_slots = slots,
                                .dbrec = (uintptr_t)(q->record + 1),
                                .has_av = vector != 0,
                                .prefix = {0xfe, 0x80}};
    if (!st_gpu_qp_add(&new))
        fail("the queue pair was not taken");
    __atomic_store_n(&queue_count, queue_count + 1, __ATOMIC_RELEASE);
    return q;
}

/* A program that has at most half of its ring outstanding overwrites nothing that is not copied:
 * the sweeper sees to that. One that uses all of it may. */
static bool greedy;

static uint32_t room(const struct queue *q)
{
    return greedy ? q->slots : q->slots / 2;
}

static uint64_t last_index; /* the control index of the WQE posted last */

static void post(struct queue *q, uint32_t kind, uint32_t number)
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

static void write_record(struct queue *q)
{
    __atomic_store_n(q->record + 1, __builtin_bswap32((uint16_t)q->posted), __ATOMIC_RELEASE);
}

/* The next free index; or the first eight bytes of the last WQE. */
static uint64_t doorbell(struct queue *q, int dialect)
{
    uint64_t value;
    if (dialect)
        memcpy(&value, q->ring + last_index % q->slots * 64, 8);
    else
        value = __builtin_bswap32((uint32_t)(uint16_t)q->posted << 8) |
                (uint64_t)__builtin_bswap32(q->qpn << 8) << 32;
    return value;
}

static void store(struct queue *q, uint64_t value)
{
    *(volatile uint64_t *)((uintptr_t)q->shadow ^ q->half) = value;
}

static void ring_bell(struct queue *q, int dialect)
{
    write_record(q);
    store(q, doorbell(q, dialect));
}

static void finish(struct queue *q)
{
    struct st_gpu_qp_totals totals;
    st_gpu_qp_remove((void *)q->shadow, q->qpn, &totals);
    printf("totals %u %lu %lu %lu %lu\n", q->object, totals.doorbells, totals.slots,
           totals.invalid_slots, totals.uncopied_slots);
}

static const struct st_pair *pair_of(const struct queue *q)
{
    for (uint32_t i = 0; i < st_pairs_used; i++)
        if (st_pairs[i].stream.object == q->object)
            return &st_pairs[i];
    fail("a queue pair that is not there");
}

/* --- cases ------------------------------------------------------------------------------------------ */

/* Many WQEs of all kinds: slots of the ring, WQEs, address vector, dialect, most WQEs a doorbell. */
static void mix(uint32_t slots, uint32_t count, int vector, int dialect, uint32_t batch)
{
    struct queue *q = make_queue(slots, vector, true);
    uint32_t open = 0;
    for (uint32_t n = 0; n < count; n++) {
        if (q->posted - q->consumed + 8 > room(q) && open) { /* no room before it rings */
            ring_bell(q, dialect);
            open = 0;
        }
        post(q, (n + n / wqe_kinds) % wqe_kinds, n);
        if (++open > n % batch) {
            ring_bell(q, dialect);
            open = 0;
        }
    }
    ring_bell(q, dialect);
    await(&q->consumed, q->posted);
    finish(q);
}

/* Doorbell, doorbell record, the same doorbell. */
static void twice(uint32_t count)
{
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t n = 0; n < count; n++) {
        post(q, 1, n);
        store(q, doorbell(q, 0));
        write_record(q);
        store(q, doorbell(q, 0));
        await(&q->consumed, q->posted);
        await(&pair_of(q)->doorbells, 2ul * n + 2); /* the NIC, which polls, sees one */
    }
    finish(q);
}

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
    await(&pair_of(a)->forwarded, a->posted);
    await(&pair_of(b)->forwarded, b->posted);
    finish(b);
    finish(a);
    if (!st_register_remove((void *)a->shadow) || st_register_real((void *)a->shadow) != a->real)
        fail("the register went with its first user");
    if (!st_register_remove((void *)a->shadow) || st_register_real((void *)a->shadow))
        fail("the register did not go");
}

/* The doorbell of the first queue pair never shows, as the other's came at once after it. (The
 * other's are at the alternate half, so that the NIC here, which polls, misses none.) */
static void overwritten(void)
{
    struct queue *a = make_queue(64, 0, true), *b = make_queue(64, 0, false);
    post(a, 1, 1);
    write_record(a);
    b->half = 0x100;
    post(b, 4, 2);
    ring_bell(b, 0);
    await(&a->consumed, 1);
    await(&b->consumed, 1);
    finish(a);
    finish(b);
}

/* Doorbells at the address and at its alternate half in turn. */
static void alternate(uint32_t count)
{
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t n = 0; n < count; n++) {
        post(q, 1, n);
        ring_bell(q, 1);
        q->half ^= 0x100;
        if (n % 3 == 2)
            await(&q->consumed, q->posted);
    }
    await(&q->consumed, q->posted);
    finish(q);
}

/* Every second doorbell is a store of the whole WQE. */
static void blueflame(uint32_t count)
{
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t n = 0; n < count; n++) {
        post(q, 1, n);
        write_record(q);
        if (n % 2) /* the last bytes first, as the order within such a store is nobody's */
            memcpy((uint8_t *)q->shadow + 8, q->ring + (q->posted - 1) % q->slots * 64 + 8, 56);
        store(q, doorbell(q, 1));
        await(&q->consumed, q->posted);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL); /* it is looked at afterwards */
    }
    finish(q);
}

/* Copies do not end while the program posts `count` WQEs into a ring of 16. */
static void stall(uint32_t count)
{
    make_gpu();
    struct queue *q = make_queue(16, 0, true);
    cuda_closed = true;
    for (uint32_t n = 0; n < count; n++) {
        post(q, 1, n);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
    }
    __atomic_store_n(&cuda_closed, false, __ATOMIC_RELEASE);
    for (uint32_t n = count; n < 2 * count; n++) { /* and goes on in order */
        post(q, 1, n);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
    }
    finish(q);
}

/* The queue pair goes while the copier stands still, and so does its memory. */
static void leave(void)
{
    make_gpu();
    struct queue *held = make_queue(16, 0, true);
    gpu_ring = NULL;
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
    __atomic_store_n(&cuda_closed, false, __ATOMIC_RELEASE);
    finish(held);
}

/* Registers and queue pairs come and go at the same addresses, with the same numbers; a queue pair
 * is reset and counts from 0 again; what rings afterwards is nobody's, but rings. */
static void reuse(uint32_t count)
{
    for (uint32_t n = 0; n < count; n++) {
        queue_count = 0;
        memset((void *)reals, 0, PAGE);
        memset(nic_last, 0, sizeof(nic_last));
        struct queue *q = make_queue(64, 0, true);
        for (uint32_t i = 0; i <= n; i++)
            post(q, 1, i);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
        struct st_gpu_qp_totals totals;
        uint32_t next = st_object_id();
        st_gpu_qp_restart((void *)q->shadow, q->qpn, next, &totals);
        printf("totals %u %lu %lu %lu %lu\n", q->object, totals.doorbells, totals.slots,
               totals.invalid_slots, totals.uncopied_slots);
        q->object = next;
        q->posted = q->consumed = 0;
        for (uint32_t i = 0; i < n + 2; i++)
            post(q, 4, i);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
        finish(q);
        post(q, 0, 0);
        store(q, doorbell(q, 0));
        printf("nobody %lu\n", doorbell(q, 0));
        if (!st_register_remove((void *)q->shadow))
            fail("the register did not go");
        if (*q->real != doorbell(q, 0))
            fail("the last sweep came too late");
        store(q, 1);
        if (st_register_real((void *)q->shadow))
            fail("a register that has gone");
    }
}

/* Queue pairs, each with its register; threads that post to all of them. */
static uint32_t many_count, many_each;

static void *many_run(void *which)
{
    for (uint32_t n = 0; n < many_each; n++)
        for (uint32_t i = (uint32_t)(uintptr_t)which; i < many_count; i += 2) {
            post(&queues[i], n % 2 ? 1 : 9, n);
            ring_bell(&queues[i], 0);
        }
    return NULL;
}

static void many(uint32_t count, uint32_t each)
{
    pthread_t threads[2];
    many_count = count;
    many_each = each;
    for (uint32_t i = 0; i < count; i++)
        make_queue(16, 0, true);
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, many_run, (void *)i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < count; i++)
        await(&queues[i].consumed, queues[i].posted);
    for (uint32_t i = 0; i < count; i++)
        finish(&queues[i]);
}

/* Ends while the queue pair is there: what was rung is recorded. */
static void leave_open(uint32_t count)
{
    struct queue *q = make_queue(1024, 0, true);
    for (uint32_t n = 0; n < count; n++) {
        post(q, 1, n);
        ring_bell(q, 0);
    }
    await(&q->consumed, q->posted);
}

/* A child has no threads: nothing hangs there, and the parent goes on. */
static void forks(void)
{
    struct queue *q = make_queue(64, 0, true);
    post(q, 1, 0);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        struct st_gpu_qp_totals totals;
        bool none = !st_register_add(reals + PAGE + 0x800, 1);
        st_gpu_qp_remove((void *)q->shadow, q->qpn, &totals);
        st_register_remove((void *)q->shadow);
        _exit(none ? 0 : 4);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status)
        fail("the child");
    ring_bell(q, 0);
    await(&q->consumed, 1);
    finish(q);
}

/* From the store to the forward, in nanoseconds; this thread is the NIC. */
static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void latency(uint32_t count)
{
    uint64_t *ticks = memory(count * 8ul), tsc = st_tsc();
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    struct queue *q = make_queue(1024, 0, true);
    for (uint32_t n = 0; n < count; n++) {
        post(q, 1, n);
        q->consumed = q->posted;
        write_record(q);
        uint64_t value = doorbell(q, 0), t = st_tsc();
        store(q, value);
        while (*q->real != value)
            _mm_pause();
        ticks[n] = st_tsc() - t;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    double per = ns / (double)(st_tsc() - tsc);
    finish(q);
    qsort(ticks, count, sizeof(*ticks), by_size);
    fprintf(stderr, "latency p50 %.0f p90 %.0f p99 %.0f ns\n", (double)ticks[count / 2] * per,
            (double)ticks[count * 9ul / 10] * per, (double)ticks[count * 99ul / 100] * per);
}

int main(int argc, char **argv)
{
    uint32_t n[6] = {0};
    const char *order = getenv("ORDER"), *name = argc > 1 ? argv[1] : "";
    pthread_t nic;
    for (int i = 2; i < argc && i < 8; i++)
        n[i - 2] = (uint32_t)strtoul(argv[i], NULL, 10);
    st_gpu_config.order = order ? (enum st_doorbell_order)atoi(order) : ST_FORWARD_FIRST;
    if (strcmp(name, "stall"))
        st_patience_us = PATIENT_US;
    reals = memory(QUEUES * PAGE);
    st_library_seen(ST_LAYER_MLX5DV, "repeat_driver", "1", "/", "symbol");
    if (!strcmp(name, "latency")) {
        latency(n[0]);
        return 0;
    }
    pthread_create(&nic, NULL, nic_run, NULL);
    if (!strcmp(name, "mix"))
        greedy = n[5], mix(n[0], n[1], (int)n[2], (int)n[3], n[4]);
    else if (!strcmp(name, "twice"))
        twice(n[0]);
    else if (!strcmp(name, "shared"))
        shared(n[0]);
    else if (!strcmp(name, "overwritten"))
        overwritten();
    else if (!strcmp(name, "alternate"))
        alternate(n[0]);
    else if (!strcmp(name, "blueflame"))
        blueflame(n[0]);
    else if (!strcmp(name, "stall"))
        stall(n[0]);
    else if (!strcmp(name, "leave"))
        leave();
    else if (!strcmp(name, "reuse"))
        reuse(n[0]);
    else if (!strcmp(name, "many"))
        many(n[0], n[1]);
    else if (!strcmp(name, "open"))
        leave_open(n[0]);
    else if (!strcmp(name, "forks"))
        forks();
    else
        fail("no such case");
    return 0;
}
