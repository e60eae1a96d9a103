/* The table of handles: open addressing, lock-free, of fixed size.
 *
 * A handle is added and removed by one thread (the library's own rule for it), so only
 * different handles compete for a slot. Removed slots are taken again, so addresses that
 * the allocator hands out anew do not fill the table. */
#include "ucx.h"

#define SLOT_BITS 17
#define SLOTS (1u << SLOT_BITS)
#define PROBES 256u

enum { SLOT_EMPTY, SLOT_BUSY, SLOT_LIVE, SLOT_DEAD };

static struct ucx_slot table[SLOTS]; /* pages never touched cost nothing */

static inline struct ucx_slot *at(const void *handle, uint32_t probe)
{
    uint64_t h = ((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15ull;
    return &table[((uint32_t)(h >> (64 - SLOT_BITS)) + probe) & (SLOTS - 1)];
}

struct ucx_slot *ucx_slot_find(const void *handle)
{
    for (uint32_t i = 0; i < PROBES; i++) {
        struct ucx_slot *slot = at(handle, i);
        uint32_t state = __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
        if (state == SLOT_EMPTY)
            return NULL;
        if (state == SLOT_LIVE && slot->handle == handle)
            return slot;
    }
    return NULL;
}

struct ucx_slot *ucx_slot_claim(const void *handle, enum ucx_slot_type type)
{
    struct ucx_slot *old = ucx_slot_find(handle);
    if (old)
        ucx_slot_remove(old);
    for (uint32_t i = 0; i < PROBES; i++) {
        struct ucx_slot *slot = at(handle, i);
        uint32_t state = __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
        if (state != SLOT_EMPTY && state != SLOT_DEAD)
            continue;
        if (!__atomic_compare_exchange_n(&slot->state, &state, SLOT_BUSY, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        *slot = (struct ucx_slot){.handle = handle, .state = SLOT_BUSY, .type = (uint8_t)type};
        return slot;
    }
    st_lost("ucx: table of handles full", 1);
    return NULL;
}

void ucx_slot_publish(struct ucx_slot *slot)
{
    __atomic_store_n(&slot->state, SLOT_LIVE, __ATOMIC_RELEASE);
}

void ucx_slot_remove(struct ucx_slot *slot)
{
    __atomic_store_n(&slot->state, SLOT_DEAD, __ATOMIC_RELEASE);
}
