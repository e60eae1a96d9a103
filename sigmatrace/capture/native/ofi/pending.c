/* Posted operations by context. The core's map holds one operation for a context: the oldest.
 * Programs may give the same context, often NULL, to many: the younger ones wait in a log here,
 * in the order in which they were posted, and move up when the one before them is done. */
#include "ofi.h"

#define DUPLICATES 16384u /* a power of two; untouched pages of the log cost nothing */

/* state: 2 * turn + 1 while slot `turn` of the log is filled; anything else: not that one. */
struct duplicate {
    uint64_t state;
    const void *key;
    struct st_pending value;
};
static struct duplicate duplicates[DUPLICATES];
static uint64_t duplicates_head, duplicates_tail;

static const void *pending_key(uint16_t space, enum ofi_direction direction, const void *context)
{
    /* User addresses have 47 bits: the rest tells queues and directions apart, and keeps away
     * from the keys of other layers. */
    uint64_t above = (uint64_t)space << 48 | (uint64_t)direction << 63;
    return (const void *)((uintptr_t)context ^ above);
}

static struct duplicate *slot_of(uint64_t turn) { return &duplicates[turn & (DUPLICATES - 1)]; }

static bool slot_filled(uint64_t turn)
{
    return __atomic_load_n(&slot_of(turn)->state, __ATOMIC_ACQUIRE) == 2 * turn + 1;
}

/* False when another thread was quicker. */
static bool slot_empty(uint64_t turn)
{
    uint64_t filled = 2 * turn + 1;
    return __atomic_compare_exchange_n(&slot_of(turn)->state, &filled, 2 * turn + 2, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void tail_advance(void)
{
    uint64_t tail = __atomic_load_n(&duplicates_tail, __ATOMIC_ACQUIRE);
    while (__atomic_load_n(&slot_of(tail)->state, __ATOMIC_ACQUIRE) == 2 * tail + 2)
        if (__atomic_compare_exchange_n(&duplicates_tail, &tail, tail + 1, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            tail++;
}

static bool duplicate_push(const void *key, const struct st_pending *value, uint64_t *slot)
{
    uint64_t turn = __atomic_load_n(&duplicates_head, __ATOMIC_RELAXED);
    do {
        if (turn - __atomic_load_n(&duplicates_tail, __ATOMIC_ACQUIRE) >= DUPLICATES) {
            st_lost("too many posted operations share their context", 1);
            return false;
        }
    } while (!__atomic_compare_exchange_n(&duplicates_head, &turn, turn + 1, false,
                                          __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    struct duplicate *entry = slot_of(turn);
    entry->key = key;
    entry->value = *value;
    entry->value.flags |= OFI_PENDING_SHARED;
    __atomic_store_n(&entry->state, 2 * turn + 1, __ATOMIC_RELEASE);
    *slot = turn;
    return true;
}

static bool duplicate_take(const void *key, struct st_pending *value)
{
    uint64_t head = __atomic_load_n(&duplicates_head, __ATOMIC_ACQUIRE);
    uint64_t turn = __atomic_load_n(&duplicates_tail, __ATOMIC_ACQUIRE);
    for (; turn != head; turn++) {
        if (!slot_filled(turn) || slot_of(turn)->key != key)
            continue;
        *value = slot_of(turn)->value;
        if (!slot_empty(turn))
            continue;
        tail_advance();
        return true;
    }
    return false;
}

static bool duplicates_any(void)
{
    return __atomic_load_n(&duplicates_head, __ATOMIC_ACQUIRE) !=
           __atomic_load_n(&duplicates_tail, __ATOMIC_ACQUIRE);
}

bool ofi_pending_put(uint16_t space, enum ofi_direction direction, const void *context,
                     const struct st_pending *value, uint64_t *slot)
{
    const void *key = pending_key(space, direction, context);
    struct st_pending older;
    *slot = OFI_SLOT_NONE;
    if (st_pending_peek(key, &older))
        return duplicate_push(key, value, slot);
    return st_pending_put(key, value);
}

bool ofi_pending_take(uint16_t space, enum ofi_direction direction, const void *context,
                      struct st_pending *value)
{
    const void *key = pending_key(space, direction, context);
    struct st_pending next;
    bool found = st_pending_take(key, value);
    if (!duplicates_any())
        return found;
    if (!found)
        return duplicate_take(key, value);
    if (duplicate_take(key, &next)) {
        value->flags |= OFI_PENDING_SHARED;
        st_pending_put(key, &next);
    }
    return true;
}

bool ofi_pending_peek(uint16_t space, enum ofi_direction direction, const void *context,
                      struct st_pending *value)
{
    return st_pending_peek(pending_key(space, direction, context), value);
}

void ofi_pending_undo(uint16_t space, enum ofi_direction direction, const void *context,
                      uint64_t slot)
{
    struct st_pending value;
    if (slot == OFI_SLOT_NONE)
        ofi_pending_take(space, direction, context, &value);
    else if (slot_empty(slot))
        tail_advance();
}

void ofi_pending_forget(uint32_t object)
{
    st_pending_forget(object);
    uint64_t head = __atomic_load_n(&duplicates_head, __ATOMIC_ACQUIRE);
    uint64_t turn = __atomic_load_n(&duplicates_tail, __ATOMIC_ACQUIRE);
    for (; turn != head; turn++)
        if (slot_filled(turn) && slot_of(turn)->value.object == object)
            slot_empty(turn);
    tail_advance();
}
