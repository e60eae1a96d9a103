/* Waiting for a store to a line of memory, by what the CPU has: UMWAIT (Intel), MWAITX (AMD), or
 * PAUSE. Chosen at run time; the functions are compiled for CPUs that have them. */
#include <cpuid.h>
#include <immintrin.h>
#include <x86intrin.h>

#include "repeater.h"

#define WAITPKG (1u << 5)   /* leaf 7, ECX */
#define MONITORX (1u << 29) /* leaf 0x80000001, ECX */
#define FAST_WAKE 1u        /* UMWAIT: C0.1 */
#define WITH_TIMER 2u       /* MWAITX */
#define NO_SLEEP 0xf0u      /* MWAITX: no C-state */

static bool chosen;
static enum st_monitor_way way;

enum st_monitor_way st_monitor_choose(uint32_t leaf_7_ecx, uint32_t leaf_80000001_ecx)
{
    if (leaf_7_ecx & WAITPKG)
        return ST_MONITOR_UMWAIT;
    return leaf_80000001_ecx & MONITORX ? ST_MONITOR_MWAITX : ST_MONITOR_PAUSE;
}

static void choose(void)
{
    uint32_t a, b, c, d, leaf_7 = 0, leaf_80000001 = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        leaf_7 = c;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d))
        leaf_80000001 = c;
    way = st_monitor_choose(leaf_7, leaf_80000001);
    chosen = true;
}

/* The word is read again after the monitor is armed: a store in between would wake nobody. */
__attribute__((target("waitpkg"))) static void by_umwait(const volatile uint64_t *word,
                                                         uint64_t seen, uint64_t until_tsc)
{
    _umonitor((void *)(uintptr_t)word);
    if (*word == seen)
        _umwait(FAST_WAKE, until_tsc);
}

__attribute__((target("mwaitx"))) static void by_mwaitx(const volatile uint64_t *word,
                                                        uint64_t seen, uint64_t until_tsc)
{
    uint64_t now = st_now();
    _mm_monitorx((void *)(uintptr_t)word, 0, 0);
    if (*word == seen && now < until_tsc)
        _mm_mwaitx(WITH_TIMER, NO_SLEEP, (uint32_t)(until_tsc - now));
}

bool st_monitor_has(void)
{
    if (!chosen)
        choose();
    return way != ST_MONITOR_PAUSE;
}

void st_monitor_wait(const volatile uint64_t *word, uint64_t seen, uint64_t until_tsc)
{
    if (!st_monitor_has())
        _mm_pause();
    else if (way == ST_MONITOR_UMWAIT)
        by_umwait(word, seen, until_tsc);
    else
        by_mwaitx(word, seen, until_tsc);
}
