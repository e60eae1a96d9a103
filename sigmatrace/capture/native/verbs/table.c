/* States by handle: open addressing, lock-free, of fixed size. A handle is added and removed by
 * one thread (the library's own rule for it), so only different handles compete for a slot. */
#include "verbs.h"

enum { SLOT_FREE, SLOT_REMOVED, SLOT_BUSY };

#define HOT_BITS 17
#define COLD_BITS 18
static struct st_verbs_slot hot[1u << HOT_BITS], cold[1u << COLD_BITS]; /* untouched pages: free */
struct st_verbs_table st_verbs_hot = {HOT_BITS, hot}, st_verbs_cold = {COLD_BITS, cold};

static struct st_verbs_slot *slot_of(const struct st_verbs_table *table, uint64_t key)
{
    for (uint32_t i = 0; i < ST_VERBS_PROBES; i++) {
        struct st_verbs_slot *slot = st_verbs_slot_at(table, key, i);
        uint64_t there = __atomic_load_n(&slot->key, __ATOMIC_ACQUIRE);
        if (there == key)
            return slot;
        if (there == SLOT_FREE)
            return NULL;
    }
    return NULL;
}

void *st_verbs_search(const struct st_verbs_table *table, uint64_t key)
{
    struct st_verbs_slot *slot = slot_of(table, key);
    return slot ? slot->value : NULL;
}

bool st_verbs_put(const struct st_verbs_table *table, uint64_t key, void *value)
{
    struct st_verbs_slot *old = slot_of(table, key);
    if (old) {
        __atomic_store_n(&old->value, value, __ATOMIC_RELEASE);
        return true;
    }
    for (uint32_t i = 0; i < ST_VERBS_PROBES; i++) {
        struct st_verbs_slot *slot = st_verbs_slot_at(table, key, i);
        uint64_t there = __atomic_load_n(&slot->key, __ATOMIC_ACQUIRE);
        if (there > SLOT_REMOVED ||
            !__atomic_compare_exchange_n(&slot->key, &there, SLOT_BUSY, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        slot->value = value;
        __atomic_store_n(&slot->key, key, __ATOMIC_RELEASE);
        return true;
    }
    st_lost("verbs: table of handles full", 1);
    return false;
}

void *st_verbs_take(const struct st_verbs_table *table, uint64_t key)
{
    struct st_verbs_slot *slot = slot_of(table, key);
    if (!slot)
        return NULL;
    void *value = slot->value;
    __atomic_store_n(&slot->key, SLOT_REMOVED, __ATOMIC_RELEASE);
    return value;
}

void *st_verbs_state(void *array, uint32_t *turn, uint32_t count, size_t size)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = __atomic_fetch_add(turn, 1, __ATOMIC_RELAXED) % count, no = 0;
        uint8_t *state = (uint8_t *)array + at * size;
        if (__atomic_compare_exchange_n((uint32_t *)state, &no, 1, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return state;
    }
    st_lost("verbs: more objects at once than can be traced", 1);
    return NULL;
}
