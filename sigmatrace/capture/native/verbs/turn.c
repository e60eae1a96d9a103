/* The hand-over of a queue from one thread to several. */
#define _GNU_SOURCE
#include "turn.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATIENCE 100000 /* looks, with the processor given away in between */

bool st_turn_plain;
__thread char st_verbs_self;

static bool barrier(int command)
{
    int saved = errno;
    bool done = !syscall(SYS_membarrier, command, 0, 0);
    errno = saved;
    return done;
}

void st_turn_start(void)
{
    st_turn_plain = barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

static void wait_while(const uint32_t *inside, const uintptr_t *owner)
{
    for (int i = 0; i < PATIENCE; i++) {
        if (inside ? !__atomic_load_n(inside, __ATOMIC_ACQUIRE)
                   : __atomic_load_n(owner, __ATOMIC_ACQUIRE) != ST_TURN_HANDING)
            return;
        if (i < 100)
            __builtin_ia32_pause();
        else
            sched_yield();
    }
    /* A thread that is held at this very instruction, by a debugger or a signal handler. */
    st_lost("verbs: numbers at a change of threads may repeat", 1);
}

static void hand_over(struct st_turn *turn)
{
    if (st_turn_plain) {
        if (!barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED))
            st_lost("verbs: numbers at a change of threads may repeat", 1);
        wait_while(&turn->inside, NULL);
    }
    __atomic_store_n(&turn->owner, ST_SEVERAL, __ATOMIC_RELEASE);
}

void st_turn_claim_slow(struct st_turn *turn)
{
    uintptr_t now = 0;
    if (__atomic_compare_exchange_n(&turn->owner, &now, (uintptr_t)&st_verbs_self, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return;
    while (now != ST_SEVERAL && now != ST_TURN_HANDING)
        if (__atomic_compare_exchange_n(&turn->owner, &now, ST_TURN_HANDING, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)) {
            hand_over(turn);
            return;
        }
    if (now == ST_TURN_HANDING)
        wait_while(NULL, &turn->owner);
}
