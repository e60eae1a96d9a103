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

#include "repeat.h"

#define PATIENT_US 10000000u /* on a busy machine the copier may stand still by chance */

struct st_gpu_config st_gpu_config = {.batch = 128};

/* --- cases ------------------------------------------------------------------------------------------ */

/* Many WQEs of all kinds: slots of the ring, WQEs, address vector, dialect, most WQEs a doorbell;
 * then 1 to have the ring in the GPU's memory. */
static void mix(const uint32_t numbers[6])
{
    uint32_t count = numbers[1], batch = numbers[4], open = 0;
    int dialect = (int)numbers[3];
    struct queue *q = make_queue(numbers[0], (int)numbers[2], true);
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

/* WQEs of one slot, rung for when half of the ring is full: slots of the ring, WQEs. A ring of one
 * slot has no half: the sweeper sees to it that it is copied before the NIC may have it. */
static void wraps(const uint32_t numbers[6])
{
    struct queue *q = make_queue(numbers[0], 0, true);
    uint32_t together = numbers[0] / 2 ? numbers[0] / 2 : 1;
    greedy = numbers[0] == 1;
    for (uint32_t n = 0; n < numbers[1]; n++) {
        post(q, 1, 3 * n); /* every third one has one segment of data */
        if (q->posted % together == 0 || n + 1 == numbers[1])
            ring_bell(q, 0);
    }
    await(&q->consumed, q->posted);
    finish(q);
}

/* Doorbell, doorbell record, the same doorbell: seen apart, or as they come. */
static void twice(const uint32_t numbers[6])
{
    uint32_t count = numbers[0];
    bool apart = numbers[1];
    by_record = true;
    struct queue *q = make_queue(64, 0, true);
    for (uint32_t n = 0; n < count; n++) {
        post(q, 1, n);
        store(q, doorbell(q, 0));
        if (apart)
            await(&qp_of(q)->doorbells, 2ul * n + 1);
        write_record(q);
        store(q, doorbell(q, 0));
        await(&q->consumed, q->posted);
        if (apart) /* or the next one overwrites it */
            await(&qp_of(q)->doorbells, 2ul * n + 2);
    }
    finish(q);
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
    st_patience_us = IMPATIENT_US;
    for (uint32_t n = 0; n < count; n++) {
        post(q, 1, n);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
    }
    st_patience_us = PATIENT_US;
    __atomic_store_n(&cuda_closed, false, __ATOMIC_RELEASE);
    for (uint32_t n = count; n < 2 * count; n++) { /* and goes on in order */
        post(q, 1, n);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
    }
    finish(q);
}

/* While copies do not end, WQEs of `count` slots are rung for, one by one: less than half a ring. */
static void behind(uint32_t count)
{
    make_gpu();
    struct queue *q = make_queue(512, 0, true);
    uint32_t before = cuda_rounds;
    cuda_closed = true;
    for (uint32_t n = 0; q->posted < count; n++) {
        post(q, 1, n);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
    }
    __atomic_store_n(&cuda_closed, false, __ATOMIC_RELEASE);
    await(&qp_of(q)->copied, q->posted);
    finish(q);
    printf("rounds %u\n", cuda_rounds - before);
}

/* Registers and queue pairs come and go at the same addresses, with the same numbers; a queue pair
 * is reset and counts from 0 again; what rings afterwards is nobody's, but rings. */
static void reuse(uint32_t count)
{
    for (uint32_t n = 0; n < count; n++) {
        queue_count = 0;
        memset((void *)reals, 0, PAGE);
        struct queue *q = make_queue(64, 0, true);
        for (uint32_t i = 0; i <= n; i++)
            post(q, 1, i);
        ring_bell(q, 0);
        await(&q->consumed, q->posted);
        struct st_gpu_qp_totals totals;
        uint32_t next = st_object_id();
        await(&qp_of(q)->copied, q->posted);
        st_gpu_qp_restart((void *)q->shadow, q->qpn, next, &totals);
        print_totals(q, &totals);
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
        await(&q->consumed, q->posted); /* the last sweep saw it */
        store(q, 1);
        if (real_of((void *)q->shadow))
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

static void many(const uint32_t numbers[6])
{
    pthread_t threads[2];
    uint32_t count = many_count = numbers[0];
    many_each = numbers[1];
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

/* Bytes that are nearly WQEs, up to the end of the readable memory. */
static void fuzz(uint32_t count)
{
    uint8_t *pages = memory(2 * PAGE), bytes[MOST_BYTES];
    uint64_t seed = 88172645463325252ull;
    uint32_t valid = 0;
    if (mprotect(pages + PAGE, PAGE, PROT_NONE))
        fail("mprotect");
    for (uint32_t n = 0; n < count; n++) {
        struct st_wqe wqe;
        int vector = (int)(n % 3);
        struct posted told = wqe_build(bytes, n % wqe_kinds, n, 0x4000, (uint16_t)n, vector);
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        uint32_t available = seed % 4 ? told.slots : 1 + (uint32_t)(seed >> 8) % told.slots;
        uint8_t *slots = memcpy(pages + PAGE - 64 * available, bytes, 64 * available);
        if (seed % 3)
            slots[(seed >> 16) % (64 * available)] ^= (uint8_t)(seed >> 32);
        uint32_t taken = st_wqe_decode(slots, available, (uint16_t)n, 0x4000, vector != 0, &wqe);
        if (taken > available || wqe.sges > 64 || (taken && taken != wqe.slots))
            fail("a WQE that is larger than its memory");
        if (available == told.slots && !(seed % 3) && (!taken || wqe.size_bytes != told.size))
            fail("a WQE that is not what was built");
        valid += taken != 0;
    }
    printf("valid %u\n", valid);
}

/* By what a CPU that says so would wait: leaf 7 and leaf 0x80000001; then whether this one can. */
static void monitor(void)
{
    volatile uint64_t word = 1;
    uint32_t umwait = 1u << 5, mwaitx = 1u << 29;
    st_monitor_wait(&word, 1, st_now());
    st_monitor_wait(&word, 2, UINT64_MAX); /* it has changed before */
    printf("monitor %d %d %d %d %d\n", st_monitor_choose(0, 0), st_monitor_choose(umwait, 0),
           st_monitor_choose(0, mwaitx), st_monitor_choose(umwait, mwaitx), st_monitor_has());
}

static const struct test_case own_cases[] = {
    {"mix", .run_numbers = mix},
    {"wraps", .run_numbers = wraps},
    {"twice", .run_numbers = twice},
    {"alternate", .run_count = alternate},
    {"blueflame", .run_count = blueflame},
    {"stall", .run_count = stall},
    {"behind", .run_count = behind},
    {"reuse", .run_count = reuse},
    {"many", .run_numbers = many},
    {"open", .run_count = leave_open},
    {"peeks", .run = peeks},
    {"forks", .run = forks},
    {"fuzz", .run_count = fuzz, .alone = true},
    {"monitor", .run = monitor, .alone = true},
    {0},
};

static const struct test_case *case_named(const char *name)
{
    const struct test_case *all[] = {own_cases, ends_cases, shares_cases, lives_cases,
                                     completions_cases};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (const struct test_case *one = all[i]; one->name; one++)
            if (!strcmp(one->name, name))
                return one;
    fail("no such case");
}

int main(int argc, char **argv)
{
    uint32_t n[6] = {0};
    const char *order = getenv("ORDER");
    const struct test_case *one = case_named(argc > 1 ? argv[1] : "");
    pthread_t nic;
    for (int i = 2; i < argc && i < 8; i++)
        n[i - 2] = (uint32_t)strtoul(argv[i], NULL, 10);
    st_gpu_config.order = order ? (enum st_doorbell_order)atoi(order) : ST_FORWARD_FIRST;
    st_patience_us = PATIENT_US;
    reals = memory(QUEUES * PAGE);
    st_library_seen(ST_LAYER_MLX5DV, "repeat_driver", "1", "/", "symbol");
    if (!one->alone)
        pthread_create(&nic, NULL, nic_run, NULL);
    if (n[5])
        make_gpu();
    if (one->run)
        one->run();
    else if (one->run_count)
        one->run_count(n[0]);
    else
        one->run_numbers(n);
    return 0;
}
