/* The table of handles: what st_handle.h does not do inline. */
#include "../st_handle.h"

bool st_handle_publish(struct st_handle_table *table, const void *handle, void *value)
{
    for (uint32_t i = 0; i < ST_HANDLE_PROBES; i++) {
        struct st_handle *entry = st_handle_at(table, (uintptr_t)handle, i);
        uintptr_t there = __atomic_load_n(&entry->handle, __ATOMIC_ACQUIRE);
        if (there != ST_HANDLE_FREE && there != ST_HANDLE_GONE)
            continue;
        if (!__atomic_compare_exchange_n(&entry->handle, &there, ST_HANDLE_TAKEN, false,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        __atomic_store_n(&entry->value, value, __ATOMIC_RELEASE);
        __atomic_store_n(&entry->handle, (uintptr_t)handle, __ATOMIC_RELEASE);
        return true;
    }
    return false;
}

/* Whoever takes the value away owns the entry until it says that it is free. */
bool st_handle_remove(struct st_handle_table *table, const void *handle, void *value)
{
    for (uint32_t i = 0; i < ST_HANDLE_PROBES; i++) {
        struct st_handle *entry = st_handle_at(table, (uintptr_t)handle, i);
        uintptr_t there = __atomic_load_n(&entry->handle, __ATOMIC_ACQUIRE);
        if (there == ST_HANDLE_FREE)
            return false;
        void *expected = value;
        if (there != (uintptr_t)handle ||
            !__atomic_compare_exchange_n(&entry->value, &expected, NULL, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        __atomic_store_n(&entry->handle, ST_HANDLE_GONE, __ATOMIC_RELEASE);
        return true;
    }
    return false;
}
