/* Tables of functions that objects share: patched in place, by any number of threads at once.
 *
 * No thread waits for another one: each does the whole work. That is right because the copy of
 * a table is known to all before the first of them changes the table, and because they all
 * write the same. */
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
#define OFI_TABLE_WORDS (OFI_TABLE_MAX / sizeof(size_t))

struct patched {
    struct patched *next;
    const void *ops;
    size_t words;
    size_t original[OFI_TABLE_WORDS], changed[OFI_TABLE_WORDS]; /* copies of the table */
};
static struct patched *patched_first;

size_t ofi_table_size(const void *ops)
{
    size_t size = ops ? *(const size_t *)ops : 0;
    return size >= OFI_TABLE_MIN && size <= OFI_TABLE_MAX ? size : 0;
}

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

/* Newest first: a table that came back at the address of one that is gone is found first. */
static const struct patched *patched_find(const struct patched *first, const void *ops)
{
    const struct patched *p = first;
    while (p && p->ops != ops)
        p = p->next;
    return p;
}

/* Was `now` seen of the table that is known, with any part of the change done already? */
static bool patched_same(const struct patched *known, const size_t *now, size_t words)
{
    if (!known || known->words != words)
        return false;
    for (size_t i = 0; i < words; i++)
        if (now[i] != known->original[i] && now[i] != known->changed[i])
            return false;
    return true;
}

/* `now`, without functions of ours: the provider has written a table of its own anew. */
static void patched_fill(struct patched *made, const struct patched *known, const size_t *now,
                         const size_t *changed)
{
    for (size_t i = 0; i < made->words; i++) {
        bool ours = known && i < known->words && now[i] == known->changed[i];
        made->original[i] = ours ? known->original[i] : now[i];
        made->changed[i] = changed[i];
    }
}

/* Makes `now`, a copy of the table, known unless it is. Nobody changes a table that is not
 * known: so a copy is of the unchanged table when, after it was made, it was not known yet, and
 * the exchange of the first one says that this has stayed so. */
static bool patched_remember(const void *ops, const size_t *now, const size_t *changed,
                             size_t words)
{
    struct patched *first = __atomic_load_n(&patched_first, __ATOMIC_ACQUIRE), *made = NULL;
    do {
        const struct patched *known = patched_find(first, ops);
        if (patched_same(known, now, words)) {
            free(made);
            return true;
        }
        if (!made && !(made = malloc(sizeof(*made))))
            return false;
        made->next = first;
        made->ops = ops;
        made->words = words;
        patched_fill(made, known, now, changed);
    } while (!__atomic_compare_exchange_n(&patched_first, &first, made, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    return true;
}

/* A page that was made writable stays so: another thread may be writing to it still. */
static bool table_write(void *ops, size_t size, void (*install)(void *ops))
{
    const size_t page = 4096;
    int protection = page_protection(ops);
    char *from = (char *)((uintptr_t)ops & ~(page - 1));
    size_t length = (size_t)((char *)ops + size - from);
    if (protection < 0)
        return false;
    if (!(protection & PROT_WRITE) && mprotect(from, length, protection | PROT_WRITE))
        return false;
    install(ops);
    return true;
}

bool ofi_table_patch(void *ops, void (*install)(void *ops))
{
    static bool warned;
    size_t now[OFI_TABLE_WORDS], changed[OFI_TABLE_WORDS];
    size_t words = ofi_table_size(ops) / sizeof(size_t);
    int kept = errno;
    if (!words)
        return false;
    for (size_t i = 0; i < words; i++) /* function by function, as others write them */
        now[i] = __atomic_load_n((size_t *)ops + i, __ATOMIC_ACQUIRE);
    memcpy(changed, now, words * sizeof(*now));
    install(changed);
    if (!memcmp(now, changed, words * sizeof(*now)))
        return true;
    bool done = patched_remember(ops, now, changed, words) &&
                table_write(ops, words * sizeof(size_t), install);
    if (!done) {
        st_warn_once(&warned, "cannot write a table of functions of libfabric: not recorded");
        st_lost("table of functions cannot be written", 1);
    }
    errno = kept;
    return done;
}

const void *ofi_table_original(const void *ops)
{
    const struct patched *p =
        patched_find(__atomic_load_n(&patched_first, __ATOMIC_ACQUIRE), ops);
    return p ? p->original : NULL;
}
