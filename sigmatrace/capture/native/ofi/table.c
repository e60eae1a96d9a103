/* Tables of functions: swapped for a copy, or patched in place. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ofi.h"

/* Every table of libfabric begins with its own size; one outside of this is not a table. */
#define OFI_TABLE_MIN (2 * sizeof(size_t))
#define OFI_TABLE_MAX 2048u

static bool table_size(const void *ops, size_t *size)
{
    if (!ops)
        return false;
    *size = *(const size_t *)ops;
    return *size >= OFI_TABLE_MIN && *size <= OFI_TABLE_MAX;
}

static void swap_in(struct ofi_swap *swap, void *owner)
{
    const void *original = *swap->place;
    if (swap->table && swap->table->original == original) {
        *swap->place = swap->table->ops;
        return;
    }
    size_t size;
    if (!table_size(original, &size))
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
    *swap->place = table->ops;
}

static void swap_out(struct ofi_swap *swap)
{
    if (!swap->table || *swap->place == swap->table->original)
        return;
    if (*swap->place == swap->table->ops)
        *swap->place = (void *)swap->table->original;
    else
        st_lost("functions of an object exchanged by its provider", 1);
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

void ofi_swaps_out(struct ofi_swaps *swaps)
{
    for (size_t i = 0; i < swaps->count; i++)
        swap_out(&swaps->swap[i]);
}

int ofi_swaps_close(struct ofi_swaps *swaps, struct fid *fid)
{
    ofi_swaps_out(swaps);
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

/* --- in place ------------------------------------------------------------------------------- */

struct patched {
    struct patched *next;
    const void *ops;
    void *original; /* a copy of the table as it was */
};
static struct patched *patched_first;

/* Protection of the page at `address` in this process, -1 when it is not mapped. */
static int page_protection(const void *address)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return -1;
    char line[512], rights[5];
    unsigned long from, to;
    int protection = -1;
    while (protection < 0 && fgets(line, sizeof(line), maps))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 &&
            (unsigned long)address >= from && (unsigned long)address < to)
            protection = (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0) |
                         (rights[2] == 'x' ? PROT_EXEC : 0);
    fclose(maps);
    return protection;
}

static const struct patched *patched_find(const void *ops)
{
    const struct patched *p = __atomic_load_n(&patched_first, __ATOMIC_ACQUIRE);
    while (p && p->ops != ops)
        p = p->next;
    return p;
}

/* Newest first: a table that came back at an address of one that is gone is found first. */
static bool patched_remember(const void *ops, size_t size)
{
    struct patched *p = malloc(sizeof(*p));
    void *copy = malloc(size);
    if (!p || !copy) {
        free(p);
        free(copy);
        return false;
    }
    memcpy(copy, ops, size);
    *p = (struct patched){.ops = ops, .original = copy};
    p->next = __atomic_load_n(&patched_first, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&patched_first, &p->next, p, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        continue;
    return true;
}

static bool table_write(void *ops, size_t size, void (*install)(void *ops))
{
    const size_t page = 4096;
    int protection = page_protection(ops);
    char *from = (char *)((uintptr_t)ops & ~(page - 1));
    size_t length = (size_t)((char *)ops + size - from);
    bool locked = protection >= 0 && !(protection & PROT_WRITE);
    if (protection < 0 || (locked && mprotect(from, length, PROT_READ | PROT_WRITE)))
        return false;
    install(ops);
    if (locked)
        mprotect(from, length, protection);
    return true;
}

bool ofi_table_patch(void *ops, size_t marker_offset, void *marker, void (*install)(void *ops))
{
    static bool warned;
    size_t size;
    int kept = errno;
    if (!table_size(ops, &size) || marker_offset + sizeof(void *) > size)
        return false;
    if (*(void **)((char *)ops + marker_offset) == marker)
        return true;
    bool done = patched_remember(ops, size) && table_write(ops, size, install);
    if (!done) {
        st_warn_once(&warned, "cannot write a table of functions of libfabric: not recorded");
        st_lost("table of functions cannot be written", 1);
    }
    errno = kept;
    return done;
}

const void *ofi_table_original(const void *ops)
{
    const struct patched *p = patched_find(ops);
    return p ? p->original : NULL;
}
