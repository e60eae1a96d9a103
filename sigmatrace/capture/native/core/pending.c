/* Pending operations by the application's context pointer: open addressing without locks.
 * A context may be pending several times (programs reuse one pointer): the oldest is taken
 * first. How far from its home a key was ever put is kept for each group of slots, so that a
 * search is as short as it can be. */
#include "core.h"

#define GROUP 8u      /* slots in a cache line of keys */
#define PROBES 1024u  /* slots at most, from the home group */
#define LEVELS 2u
#define FREE 0u
#define TAKEN 1u /* being filled or emptied */

struct level {
    uint64_t mask;
    uint64_t *keys;
    struct slot {
        struct st_pending value;
        uint32_t version; /* grows when the slot is filled */
        uint64_t order;
    } *slots;
    uint16_t *reach; /* of each home group: slots to look at */
};

static const uint64_t capacities[LEVELS] = {1u << 14, 1u << 20};
static struct level *levels[LEVELS];
static uint64_t order;

static struct level *make_level(uint32_t l)
{
    uint64_t n = capacities[l];
    size_t keys = n * sizeof(uint64_t), slots = n * sizeof(struct slot);
    size_t reach = n / GROUP * sizeof(uint16_t), all = ST_PAGE + keys + slots + reach;
    uint8_t *p = st_map(all);
    struct level *level = (struct level *)p, *none = NULL;
    if (!p)
        return NULL;
    level->mask = n - 1;
    level->keys = (uint64_t *)(p + ST_PAGE);
    level->slots = (struct slot *)(p + ST_PAGE + keys);
    level->reach = (uint16_t *)(p + ST_PAGE + keys + slots);
    if (__atomic_compare_exchange_n(&levels[l], &none, level, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return level;
    st_unmap(p, all);
    return none;
}

static uint64_t home_of(const struct level *level, uint64_t key)
{
    return st_fold(key, 0x9e3779b97f4a7c15u) & level->mask & ~(uint64_t)(GROUP - 1);
}

static void extend_reach(struct level *level, uint64_t home, uint16_t to)
{
    uint16_t *reach = &level->reach[home / GROUP], now = __atomic_load_n(reach, __ATOMIC_RELAXED);
    while (now < to && !__atomic_compare_exchange_n(reach, &now, to, false, __ATOMIC_SEQ_CST,
                                                    __ATOMIC_RELAXED))
        ;
}

static bool put(struct level *level, uint64_t key, const struct st_pending *value)
{
    uint64_t home = home_of(level, key);
    for (uint32_t i = 0; i < PROBES; i++) {
        uint64_t at = (home + i) & level->mask, none = FREE;
        if (__atomic_load_n(&level->keys[at], __ATOMIC_RELAXED) != FREE ||
            !__atomic_compare_exchange_n(&level->keys[at], &none, TAKEN, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        struct slot *slot = &level->slots[at];
        __atomic_store_n(&slot->version, slot->version + 1, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        slot->value = *value;
        slot->order = __atomic_fetch_add(&order, 1, __ATOMIC_RELAXED);
        extend_reach(level, home, (uint16_t)(i + 1));
        __atomic_store_n(&level->keys[at], key, __ATOMIC_RELEASE);
        return true;
    }
    return false;
}

static uint64_t key_of(const void *context)
{
    return (uint64_t)(uintptr_t)context;
}

bool st_pending_put(const void *context, const struct st_pending *value)
{
    uint64_t key = key_of(context);
    if (!st_recording())
        return false;
    if (key > TAKEN)
        for (uint32_t l = 0; l < LEVELS; l++) {
            struct level *level = __atomic_load_n(&levels[l], __ATOMIC_ACQUIRE);
            if (!level)
                level = make_level(l);
            if (level && put(level, key, value))
                return true;
        }
    st_lost(key > TAKEN ? "pending operation: no room" : "pending operation: no context", 1);
    return false;
}

/* The oldest slot with this key, or the newest. */
static struct level *find(uint64_t key, bool newest, uint64_t *found)
{
    struct level *where = NULL;
    uint64_t flip = newest ? UINT64_MAX : 0, oldest = UINT64_MAX;
    for (uint32_t l = 0; l < LEVELS; l++) {
        struct level *level = __atomic_load_n(&levels[l], __ATOMIC_ACQUIRE);
        if (!level)
            break;
        uint64_t home = home_of(level, key);
        uint32_t reach = __atomic_load_n(&level->reach[home / GROUP], __ATOMIC_ACQUIRE);
        for (uint32_t i = 0; i < reach; i++) {
            uint64_t at = (home + i) & level->mask;
            if (__atomic_load_n(&level->keys[at], __ATOMIC_ACQUIRE) != key ||
                (level->slots[at].order ^ flip) >= oldest)
                continue;
            oldest = level->slots[at].order ^ flip;
            *found = at;
            where = level;
        }
    }
    return where;
}

static bool take(const void *context, bool newest, struct st_pending *value)
{
    uint64_t key = key_of(context), at;
    struct level *level;
    while (key > TAKEN && (level = find(key, newest, &at))) {
        uint64_t there = key;
        if (!__atomic_compare_exchange_n(&level->keys[at], &there, TAKEN, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue; /* another thread took it: look again */
        *value = level->slots[at].value;
        __atomic_store_n(&level->keys[at], FREE, __ATOMIC_RELEASE);
        return true;
    }
    return false;
}

bool st_pending_take(const void *context, struct st_pending *value)
{
    return take(context, false, value);
}

bool st_pending_undo(const void *context, struct st_pending *value)
{
    return take(context, true, value);
}

void st_pending_forget(uint32_t object)
{
    for (uint32_t l = 0; l < LEVELS; l++) {
        struct level *level = __atomic_load_n(&levels[l], __ATOMIC_ACQUIRE);
        for (uint64_t at = 0; level && at <= level->mask; at++) {
            uint64_t key = __atomic_load_n(&level->keys[at], __ATOMIC_ACQUIRE);
            if (key > TAKEN && level->slots[at].value.object == object &&
                __atomic_compare_exchange_n(&level->keys[at], &key, TAKEN, false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
                __atomic_store_n(&level->keys[at], FREE, __ATOMIC_RELEASE);
        }
    }
}

bool st_pending_peek(const void *context, struct st_pending *value)
{
    uint64_t key = key_of(context), at;
    struct level *level;
    while (key > TAKEN && (level = find(key, false, &at))) {
        struct slot *slot = &level->slots[at];
        uint32_t version = __atomic_load_n(&slot->version, __ATOMIC_ACQUIRE);
        *value = slot->value;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&slot->version, __ATOMIC_RELAXED) == version &&
            __atomic_load_n(&level->keys[at], __ATOMIC_RELAXED) == key)
            return true; /* not taken and filled again meanwhile */
    }
    return false;
}

void st_pending_forked(void)
{
    for (uint32_t l = 0; l < LEVELS; l++)
        levels[l] = NULL;
}
