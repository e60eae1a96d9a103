/* Registers and their shadows. A shadow is one page of shared memory, so that a fork does not part
 * the program's page from ours; it stays with its state, and is used again. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "repeater.h"

#define PAGE (ST_PAGE_MASK + 1)
#define PAGES 4096u
#define END_MS 1000u

struct st_register st_registers[ST_REGISTERS];
uint32_t st_registers_used;

static uint32_t turn; /* taken in turn: a late store meets a page that rests */

/* By address: pages that meet here count as one, so some doorbell records are read needlessly. */
static struct st_page pages[PAGES];

static struct st_page *page_of(const void *real)
{
    return &pages[((uint64_t)(uintptr_t)real / PAGE * 0x9e3779b97f4a7c15u) >> 32 & (PAGES - 1)];
}

static bool make_page(struct st_register *one)
{
    if (one->page) {
        memset(one->page, 0, PAGE);
        return true;
    }
    int saved = errno;
    void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (p == MAP_FAILED)
        return false;
    one->page = p;
    return true;
}

void *st_register_add(void *real, uint32_t uar)
{
    if (!st_repeater_start())
        return NULL;
    struct st_register *one = st_state_claim(st_registers, ST_REGISTERS, sizeof(*one),
                                             &st_registers_used, &turn);
    if (!one) {
        st_lost("gpu: register beyond the number that can be repeated", 1);
        return NULL;
    }
    if (!make_page(one)) {
        ST_STORE(&one->state, ST_FREE);
        return NULL;
    }
    one->uar = uar;
    one->users = 1;
    one->qps = 0;
    one->alternates = one->strangers = one->blind = false;
    one->recent = NULL;
    one->seen_first = one->seen_count = 0;
    one->until_tsc = 0;
    one->real = real;
    one->of = page_of(real);
    one->shadow = (volatile uint64_t *)(one->page + ((uintptr_t)real & ST_PAGE_MASK));
    ST_STORE(&one->state, ST_ACTIVE);
    ST_ADD(&st_attention, 1);
    return (void *)(uintptr_t)one->shadow;
}

void *st_register_shadow(const void *real)
{
    for (uint32_t i = 0; i < ST_LOAD(&st_registers_used); i++) {
        struct st_register *one = &st_registers[i];
        if (ST_LOAD(&one->state) != ST_ACTIVE || one->real != real)
            continue;
        uint32_t users = ST_LOAD(&one->users);
        while (users && !__atomic_compare_exchange_n(&one->users, &users, users + 1, false,
                                                     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            ;
        if (users)
            return (void *)(uintptr_t)one->shadow;
    }
    return NULL;
}

struct st_register *st_register_of(const void *shadow)
{
    for (uint32_t i = 0; shadow && i < ST_LOAD(&st_registers_used); i++)
        if (ST_LOAD(&st_registers[i].state) == ST_ACTIVE && st_registers[i].shadow == shadow)
            return &st_registers[i];
    return NULL;
}

struct st_register *st_register_beside(const void *real)
{
    for (uint32_t i = 0; i < ST_LOAD(&st_registers_used); i++)
        if (ST_LOAD(&st_registers[i].state) == ST_ACTIVE &&
            ((uintptr_t)st_registers[i].real ^ (uintptr_t)real) <= ST_PAGE_MASK)
            return &st_registers[i];
    return NULL;
}

static bool has_ended(const void *one)
{
    return ST_LOAD(&((const struct st_register *)one)->state) != ST_ENDING;
}

static bool end(struct st_register *one)
{
    if (!st_swap_state(&one->state, ST_ACTIVE, ST_ENDING) || !st_repeater_here())
        return true;
    ST_ADD(&st_attention, 1);
    if (!st_repeater_wait(&st_sweeper_beat, has_ended, one, END_MS) &&
        st_swap_state(&one->state, ST_ENDING, ST_ABANDONED)) {
        st_lost("gpu: register whose last doorbells may not have been seen", 1);
        return false;
    }
    ST_STORE(&one->state, ST_FREE);
    return true;
}

bool st_register_remove(const void *shadow)
{
    struct st_register *one = st_register_of(shadow);
    return !one || __atomic_sub_fetch(&one->users, 1, __ATOMIC_SEQ_CST) || end(one);
}

bool st_register_end(const void *shadow)
{
    struct st_register *one = st_register_of(shadow);
    return !one || end(one);
}
