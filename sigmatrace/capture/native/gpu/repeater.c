/* The two threads: their start, with the first register, and the end of the process. In a forked
 * child there are none: nothing is waited for there, and no register gets a shadow. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "repeater.h"

#define CALIBRATION_US 300u
#define DRAIN_MS 200u
#define AT_ONCE 100u /* looks, before a wait sleeps: most take some microseconds */

uint64_t st_tsc_per_us = 1000;
uint32_t st_attention;
struct st_messages st_to_copier, st_to_sweeper;

static uint32_t state; /* FREE, MAKING, ACTIVE; ENDED: a thread could not be started */
static pid_t home;

void st_nap(uint32_t us)
{
    int saved = errno;
    nanosleep(&(struct timespec){.tv_nsec = us * 1000l}, NULL);
    errno = saved;
}

static uint64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* For time limits alone: a per cent is good enough. */
static void calibrate(void)
{
    uint64_t ns = monotonic_ns(), tsc = st_now();
    st_nap(CALIBRATION_US);
    uint64_t ticks = st_now() - tsc;
    ns = monotonic_ns() - ns;
    if (ns && ticks * 1000 / ns)
        st_tsc_per_us = ticks * 1000 / ns;
}

static bool create(void *(*run)(void *), int cpu)
{
    static bool said;
    pthread_t thread;
    cpu_set_t set;
    if (!st_own_thread_make(run, &thread))
        return false;
    CPU_ZERO(&set);
    if (cpu != ST_ANY_CPU) {
        CPU_SET(cpu, &set);
        if (pthread_setaffinity_np(thread, sizeof(set), &set))
            st_warn_once(&said, "SIGMATRACE_POLL_CPUS: a thread could not be bound to CPU %d", cpu);
    }
    return true;
}

bool st_repeater_here(void)
{
    return ST_LOAD(&state) == ST_ACTIVE && getpid() == home;
}

bool st_repeater_start(void)
{
    int saved = errno;
    if (st_swap_state(&state, ST_FREE, ST_MAKING)) {
        home = getpid();
        calibrate();
        /* The copier first: alone, it harms nobody. */
        bool made = create(st_copier_run, st_gpu_config.cpus[1]) &&
                    create(st_sweeper_run, st_gpu_config.cpus[0]);
        ST_STORE(&state, made ? ST_ACTIVE : ST_ENDED);
    }
    for (int i = 0; ST_LOAD(&state) == ST_MAKING && i < 1000; i++)
        st_nap(50); /* another thread starts them just now */
    bool here = st_repeater_here();
    errno = saved;
    return here;
}

bool st_repeater_wait(struct st_beat *thread, bool (*done)(const void *), const void *what,
                      uint32_t ms)
{
    uint64_t until = monotonic_ns() + ms * 1000000ull;
    bool stands = ST_LOAD(&thread->vain) == ST_LOAD(&thread->rounds) + 1;
    for (uint32_t i = 0; !done(what); i++) {
        if (stands || !st_repeater_here())
            return false;
        if (monotonic_ns() > until) {
            ST_STORE(&thread->vain, ST_LOAD(&thread->rounds) + 1);
            return false;
        }
        if (i < AT_ONCE)
            sched_yield();
        else
            st_nap(20);
    }
    return true;
}

void *st_state_claim(void *states, uint32_t count, size_t size, uint32_t *used, uint32_t *turn)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = ST_ADD(turn, 1) % count, now = ST_LOAD(used);
        uint8_t *state = (uint8_t *)states + at * size;
        if (!st_swap_state((uint32_t *)(void *)state, ST_FREE, ST_MAKING))
            continue;
        while (now < at + 1 && !__atomic_compare_exchange_n(used, &now, at + 1, false,
                                                            __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            ;
        return state;
    }
    return NULL;
}

/* What was rung before the program's end is recorded before the recording ends, and queue pairs that
 * were not destroyed tell their totals; the threads go on forwarding. */
__attribute__((destructor)) static void drain(void)
{
    if (!st_repeater_here())
        return;
    uint64_t until = monotonic_ns() + DRAIN_MS * 1000000ull, beat = ST_LOAD(&st_sweeper_beat.rounds);
    while ((ST_LOAD(&st_sweeper_beat.rounds) < beat + 2 || ST_LOAD(&st_sweeper_waits)) &&
           monotonic_ns() < until)
        st_nap(20);
    ST_ADD(&st_hurry, 1);
    while (ST_LOAD(&st_copier_done) < ST_LOAD(&st_to_copier.in) && monotonic_ns() < until)
        st_nap(20);
    st_cqes_finish();
    st_gpu_qps_end(st_now() + DRAIN_MS * 1000 * st_tsc_per_us);
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used); i++) {
        struct st_gpu_qp *qp = &st_gpu_qps[i];
        uint64_t told = ST_LOAD(&qp->recorded) + ST_LOAD(&qp->missing);
        uint64_t forwarded = ST_LOAD(&qp->forwarded) - qp->made.first;
        if (ST_LOAD(&qp->state) >= ST_ACTIVE && qp->ring && forwarded > told)
            st_lost("gpu: slots not recorded before the end of the process", forwarded - told);
    }
}
