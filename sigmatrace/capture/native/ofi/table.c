/* Tables of functions that belong to one object: swapped for a copy. */
#include <stdlib.h>
#include <string.h>

#include "ofi.h"

static void place_set(struct ofi_swap *swap, const void *ops)
{
    __atomic_store_n(swap->place, (void *)ops, __ATOMIC_RELEASE);
}

static void swap_in(struct ofi_swap *swap, void *owner)
{
    const void *original = *swap->place;
    if (swap->table && original == swap->table->ops)
        return;
    if (swap->table && original == swap->table->original) {
        place_set(swap, swap->table->ops);
        return;
    }
    size_t size = ofi_table_size(original);
    if (!size)
        return;
    /* A copy of an earlier original is left to whoever may still hold it: providers exchange
     * the tables of an endpoint at most a few times in its life. */
    struct ofi_table *table = malloc(sizeof(*table) + size);
    if (!table) {
        st_lost("no memory for a table of functions", 1);
        return;
    }
    table->owner = owner;
    table->original = original;
    memcpy(table->ops, original, size);
    swap->install(table->ops);
    swap->table = table;
    place_set(swap, table->ops);
}

static bool swap_is_in(const struct ofi_swap *swap)
{
    return swap->table && *swap->place == swap->table->ops;
}

void ofi_swaps_add(struct ofi_swaps *swaps, void *place, void (*install)(void *ops))
{
    struct ofi_swap *swap = &swaps->swap[swaps->count++];
    swap->place = place;
    swap->install = install;
    swap_in(swap, swaps->owner);
}

void ofi_swaps_in(struct ofi_swaps *swaps)
{
    for (size_t i = 0; i < swaps->count; i++)
        swap_in(&swaps->swap[i], swaps->owner);
}

static void swaps_out(struct ofi_swaps *swaps)
{
    for (size_t i = 0; i < swaps->count; i++)
        if (swap_is_in(&swaps->swap[i]))
            place_set(&swaps->swap[i], swaps->swap[i].table->original);
}

void ofi_swaps_leave(const struct ofi_swaps *swaps, const void *from, void *to)
{
    for (size_t i = 0; i < swaps->count; i++) {
        const struct ofi_swap *swap = &swaps->swap[i];
        void **copied = (void **)((char *)to + ((char *)swap->place - (const char *)from));
        if (swap->table && *copied == swap->table->ops)
            *copied = (void *)swap->table->original;
    }
}

static bool swaps_exchanged(const struct ofi_swaps *swaps)
{
    for (size_t i = 0; i < swaps->count; i++)
        if (swaps->swap[i].table && !swap_is_in(&swaps->swap[i]))
            return true;
    return false;
}

int ofi_swaps_close(struct ofi_swaps *swaps, struct fid *fid)
{
    if (swaps_exchanged(swaps))
        st_lost("functions of an object exchanged by its provider", 1);
    swaps_out(swaps);
    st_enter();
    int result = fid->ops->close(fid);
    st_leave();
    if (result) {
        ofi_swaps_in(swaps);
        return result;
    }
    for (size_t i = 0; i < swaps->count; i++)
        free(swaps->swap[i].table);
    return 0;
}

void ofi_missed(void) { st_lost("call while its object was being closed", 1); }
