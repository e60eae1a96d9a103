/* Slots of handles: where they are kept, and how they are found. */
#include "ucx.h"

#include <string.h>

struct st_handle_table ucx_handles;
static struct ucx_pool pool = {.size = sizeof(struct ucx_slot)};

struct ucx_slot *ucx_slot_new(enum ucx_slot_type type)
{
    struct ucx_slot *slot = ucx_pool_take(&pool);
    if (!slot) {
        st_lost("ucx: no memory for a handle", 1);
        return NULL;
    }
    *slot = (struct ucx_slot){.type = (uint8_t)type};
    return slot;
}

void ucx_slot_free(struct ucx_slot *slot)
{
    __atomic_store_n(&slot->parent, NULL, __ATOMIC_RELAXED);
    slot->next = NULL;
    ucx_pool_give(&pool, slot);
}

bool ucx_slot_publish(struct ucx_slot *slot, const void *handle)
{
    struct ucx_slot *old = ucx_slot_take(handle);
    if (old)
        ucx_slot_free(old);
    slot->handle = handle;
    if (st_handle_publish(&ucx_handles, handle, slot))
        return true;
    st_lost("ucx: table of handles full", 1);
    ucx_slot_free(slot);
    return false;
}

struct ucx_slot *ucx_slot_take(const void *handle)
{
    struct ucx_slot *slot = ucx_slot_find(handle);
    return slot && st_handle_remove(&ucx_handles, handle, slot) ? slot : NULL;
}

void ucx_slot_close(const void *handle, const char *type)
{
    struct ucx_slot *slot = ucx_slot_take(handle);
    if (!slot)
        return;
    st_object_closed(type, slot->id, st_now());
    ucx_slot_free(slot);
}

void ucx_slot_orphans(const struct ucx_slot *parent, const char *type)
{
    for (struct ucx_chunk *c = ucx_pool_chunks(&pool); c; c = c->next)
        for (uint32_t i = 0; i < c->count; i++) {
            struct ucx_slot *slot = ucx_pool_at(&pool, c, i);
            if (__atomic_load_n(&slot->parent, __ATOMIC_RELAXED) != parent ||
                !st_handle_remove(&ucx_handles, slot->handle, slot))
                continue;
            if (slot->type != UCX_SLOT_ROUTE)
                st_object_closed(type, slot->id, st_now());
            ucx_slot_free(slot);
        }
}
