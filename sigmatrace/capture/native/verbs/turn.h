/* Numbers that must be exact under several threads, and cheap for one.
 *
 * A locked addition costs 4 to 8 ns on the way of a request: it waits for all stores before it. So
 * the first thread to use a queue owns it and adds plainly, until a second one comes; from then on
 * all add with a lock. The hand-over is exact: the second thread says that it comes, makes every
 * thread of the process pass a memory barrier (membarrier(2)), and waits until the owner is not
 * between its look at who owns and its addition: three instructions. Where the system call does
 * not exist, all additions are locked from the beginning.
 *
 * As with st_owner_claim of the core, who has claimed a turn before the library is called knows
 * after its addition whether its number may be exchanged with a neighbour's. */
#ifndef ST_VERBS_TURN_H
#define ST_VERBS_TURN_H

#include "sigmatrace.h"

struct st_turn {
    uintptr_t owner; /* 0, the thread that is alone, or one of the two below */
    uint32_t inside; /* written by the owner, and its signal handlers */
};
#define ST_TURN_HANDING ((uintptr_t)2)

/* Its address names the calling thread. */
extern __thread char st_verbs_self;
/* Does the process have the barrier? */
extern bool st_turn_plain;

/* At the start of the process. */
void st_turn_start(void);
void st_turn_claim_slow(struct st_turn *turn);

static inline bool st_turn_own(const struct st_turn *turn)
{
    return __builtin_expect(__atomic_load_n(&turn->owner, __ATOMIC_RELAXED) ==
                                (uintptr_t)&st_verbs_self, 1);
}

/* Before the library is called. */
static inline void st_turn_claim(struct st_turn *turn)
{
    if (!st_turn_own(turn) && __atomic_load_n(&turn->owner, __ATOMIC_RELAXED) != ST_SEVERAL)
        st_turn_claim_slow(turn);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* May this thread's numbers be exchanged with another's? After they are taken. */
static inline bool st_turn_several(const struct st_turn *turn)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return !st_turn_own(turn);
}

/* Adds, returns what was there before. Each step is one instruction, whole for a signal handler
 * of this thread. */
static inline uint32_t st_turn_add(struct st_turn *turn, uint32_t *number, uint32_t n)
{
    if (__builtin_expect(st_turn_plain, 1) && st_turn_own(turn)) {
        __asm__ volatile("incl %0" : "+m"(turn->inside)::"memory");
        bool own = st_turn_own(turn);
        if (own)
            __asm__ volatile("xaddl %0, %1" : "+r"(n), "+m"(*number)::"memory");
        __asm__ volatile("decl %0" : "+m"(turn->inside)::"memory");
        if (own)
            return n;
    }
    return __atomic_fetch_add(number, n, __ATOMIC_RELAXED);
}

#endif
