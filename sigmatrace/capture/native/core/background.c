/* The writer: a thread of this process that writes out the segments that others have filled.
 * A full segment lies in a slot until somebody takes it out: the writer, a thread that flushes,
 * or the end of the process. When all slots stay taken for a moment, threads write their segments
 * themselves, so nothing is lost and memory is bounded. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define SLOTS 32u
#define STACK_BYTES (1u << 20) /* the program's exit handlers may run on it: is_last */
/* Naps of 50 us. The writer gets a while alone: two that write at once only wait, on their
 * processors, for each other's lock of the file. */
#define ALONE 40
#define PATIENCE 7000 /* for others that write; a nap takes up to 150 us: about a second */

enum { NEVER, IDLE, STARTED, ENDED };

static struct st_area *slots[SLOTS];
static uint32_t next_in, next_out; /* where to look first */
static uint32_t calls;             /* hand-overs so far: what the writer sleeps on */
static uint32_t asleep;
static int state = IDLE;
static uint32_t own, ending; /* threads of ours; one of them ends the process */
static bool kept; /* a segment could not be written: it is in the ring file only */

static void nap(void)
{
    int saved = errno;
    /* By hand: the library's function would let this thread be cancelled here. */
    syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 50000}, NULL);
    errno = saved;
}

static bool take_one(void)
{
    uint32_t first = __atomic_load_n(&next_out, __ATOMIC_RELAXED);
    for (uint32_t i = first; i != first + SLOTS; i++) {
        struct st_area **slot = &slots[i % SLOTS];
        struct st_area *area = __atomic_load_n(slot, __ATOMIC_RELAXED);
        if (!area || !(area = __atomic_exchange_n(slot, NULL, __ATOMIC_ACQ_REL)))
            continue;
        __atomic_store_n(&next_out, i + 1, __ATOMIC_RELAXED);
        struct st_thread *owner = area->owner;
        if (st_area_write(area))
            st_area_give(area);
        else
            __atomic_store_n(&kept, true, __ATOMIC_RELAXED);
        __atomic_fetch_sub(&owner->handed, 1, __ATOMIC_RELEASE);
        return true;
    }
    return false;
}

/* Has the program ended its first thread by pthread_exit, and all others too? Then the process
 * would have ended with the last of them, and it is for a thread of ours to do that. */
static bool is_last(void)
{
    char text[512];
    unsigned long threads = 0;
    char state = 0;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *after = strrchr(text, ')'); /* the name before it may hold anything */
    if (!after || sscanf(after + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d"
                                    " %*d %*d %lu", &state, &threads) != 2)
        return false;
    return state == 'Z' && threads <= 1 + __atomic_load_n(&own, __ATOMIC_SEQ_CST);
}

void st_own_thread(void)
{
    __atomic_fetch_add(&own, 1, __ATOMIC_SEQ_CST);
}

void st_own_thread_ends(void)
{
    if (is_last() && !__atomic_exchange_n(&ending, 1, __ATOMIC_SEQ_CST))
        exit(0);
}

static void *work(void *nothing)
{
    st_own_thread();
    prctl(PR_SET_NAME, "sigmatrace");
    /* It does not interrupt the thread that wakes it, whatever the program's own priority. */
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    for (;;) {
        uint32_t seen = __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
        if (take_one())
            continue;
        __atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &calls, FUTEX_WAIT_PRIVATE, seen, &(struct timespec){.tv_sec = 1}, NULL,
                0);
        __atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
        st_own_thread_ends();
    }
    return nothing;
}

/* A program that is bound to one processor has none to spare for a writer. */
static bool one_processor(void)
{
    cpu_set_t set;
    return !sched_getaffinity(0, sizeof(set), &set) && CPU_COUNT(&set) == 1;
}

bool st_own_thread_make(void *(*run)(void *), unsigned long *thread)
{
    pthread_attr_t attributes;
    sigset_t all, old;
    if (pthread_attr_init(&attributes))
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    sigfillset(&all); /* the program's signals are for its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(thread, &attributes, run, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return !error;
}

void st_background_start(void)
{
    int idle = IDLE, never = NEVER;
    if (__atomic_load_n(&state, __ATOMIC_RELAXED) != IDLE)
        return;
    int saved = errno;
    pthread_t thread;
    bool wanted = st_config()->mode != ST_MODE_AGGREGATE && !st_config()->write_inline;
    /* NEVER until it runs: threads then write inline. */
    if (__atomic_compare_exchange_n(&state, &idle, NEVER, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED) &&
        wanted && !one_processor() && st_own_thread_make(work, &thread))
        __atomic_compare_exchange_n(&state, &never, STARTED, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED);
    errno = saved;
}

bool st_background_runs(void)
{
    return __atomic_load_n(&state, __ATOMIC_SEQ_CST) == STARTED;
}

bool st_background_put(struct st_area *area)
{
    uint32_t at = __atomic_fetch_add(&next_in, 1, __ATOMIC_RELAXED) % SLOTS;
    struct st_area *none = NULL;
    for (int naps = 0; !__atomic_compare_exchange_n(&slots[at], &none, area, false,
                                                    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
         naps++, none = NULL) {
        if (naps == ALONE || !st_background_runs())
            return false;
        nap();
    }
    __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST)) {
        int saved = errno;
        syscall(SYS_futex, &calls, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        errno = saved;
    }
    if (!st_background_runs()) /* the process ended meanwhile, and may have looked already */
        while (take_one())
            ;
    return true;
}

bool st_background_wait(struct st_thread *thread, int *naps)
{
    for (; *naps < PATIENCE && __atomic_load_n(&thread->handed, __ATOMIC_ACQUIRE); ++*naps)
        if (*naps < ALONE || !take_one())
            nap();
    return !__atomic_load_n(&thread->handed, __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&kept, __ATOMIC_RELAXED);
}

void st_background_end(void)
{
    __atomic_store_n(&state, ENDED, __ATOMIC_SEQ_CST);
}

void st_background_forked(bool may_start)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        slots[i] = NULL;
    next_in = next_out = asleep = own = ending = 0;
    kept = false;
    state = may_start ? IDLE : NEVER;
}
