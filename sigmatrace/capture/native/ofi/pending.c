/* Posted operations by context. Programs may give one context, often NULL, to many operations
 * that are outstanding together: the map then finds the oldest, which is right as far as the
 * library completes in order. What was found in company says so. */
#include "ofi.h"

static const void *pending_key(uint16_t space, enum ofi_direction direction, const void *context)
{
    /* User addresses have 47 bits: the rest tells queues and directions apart, and keeps away
     * from the keys of other layers. */
    uint64_t above = (uint64_t)space << 48 | (uint64_t)direction << 63;
    return (const void *)((uintptr_t)context ^ above);
}

bool ofi_pending_put(uint16_t space, enum ofi_direction direction, const void *context,
                     const struct st_pending *value)
{
    const void *key = pending_key(space, direction, context);
    struct st_pending filed = *value, older;
    if (direction == OFI_RX && st_pending_peek(key, &older))
        filed.flags |= OFI_PENDING_SHARED;
    return st_pending_put(key, &filed);
}

bool ofi_pending_take(uint16_t space, enum ofi_direction direction, const void *context,
                      struct st_pending *value)
{
    const void *key = pending_key(space, direction, context);
    struct st_pending younger;
    if (!st_pending_take(key, value))
        return false;
    if (direction == OFI_RX && st_pending_peek(key, &younger))
        value->flags |= OFI_PENDING_SHARED;
    return true;
}

bool ofi_pending_peek(uint16_t space, enum ofi_direction direction, const void *context,
                      struct st_pending *value)
{
    return st_pending_peek(pending_key(space, direction, context), value);
}

void ofi_pending_undo(uint16_t space, enum ofi_direction direction, const void *context)
{
    struct st_pending value;
    st_pending_undo(pending_key(space, direction, context), &value);
}
