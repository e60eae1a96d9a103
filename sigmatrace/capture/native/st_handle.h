/* A table from a library's handles (pointers that it gave out) to what a layer knows of them.
 *
 * Of fixed size, open addressing, no locks; every function may be called in a signal handler. The
 * values are the caller's own, and so is their memory: it must stay readable after the removal,
 * as another thread may just have found it. A handle is published and removed by one thread (the
 * libraries' own rule), so only different handles compete for an entry. Entries of removed
 * handles are taken again: addresses that an allocator hands out anew do not fill the table. */
#ifndef ST_HANDLE_H
#define ST_HANDLE_H

#include "sigmatrace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ST_HANDLE_BITS 17
#define ST_HANDLES (1u << ST_HANDLE_BITS)
#define ST_HANDLE_PROBES 256u

struct st_handle {
    uintptr_t handle; /* or ST_HANDLE_FREE and the like */
    void *value;
};
enum { ST_HANDLE_FREE, ST_HANDLE_GONE, ST_HANDLE_TAKEN };

/* All zero when empty; pages never touched cost nothing. */
struct st_handle_table {
    struct st_handle entries[ST_HANDLES];
};

static inline struct st_handle *st_handle_at(struct st_handle_table *table, uintptr_t handle,
                                             uint32_t probe)
{
    uint64_t hash = (handle >> 4) * 0x9E3779B97F4A7C15ull;
    return &table->entries[((uint32_t)(hash >> (64 - ST_HANDLE_BITS)) + probe) & (ST_HANDLES - 1)];
}

/* What was published for this handle; NULL when nothing. */
static inline void *st_handle_find(struct st_handle_table *table, const void *handle)
{
    for (uint32_t i = 0; i < ST_HANDLE_PROBES; i++) {
        struct st_handle *entry = st_handle_at(table, (uintptr_t)handle, i);
        uintptr_t there = __atomic_load_n(&entry->handle, __ATOMIC_ACQUIRE);
        if (there == ST_HANDLE_FREE)
            return NULL;
        if (there != (uintptr_t)handle)
            continue;
        void *value = __atomic_load_n(&entry->value, __ATOMIC_ACQUIRE);
        if (value)
            return value;
    }
    return NULL;
}

/* `value` is complete and not NULL; nothing else is published for the handle. False: no room. */
ST_API bool st_handle_publish(struct st_handle_table *table, const void *handle, void *value);
/* Removes exactly this value. False: it is not there (any more). */
ST_API bool st_handle_remove(struct st_handle_table *table, const void *handle, void *value);

#ifdef __cplusplus
}
#endif
#endif
