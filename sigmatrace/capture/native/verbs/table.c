/* States by handle, and where the states come from. */
#include "verbs.h"

struct st_handle_table st_verbs_tables[ST_VERBS_TABLES];

bool st_verbs_put(enum st_verbs_table table, const void *handle, void *value)
{
    st_verbs_take(table, handle);
    if (st_handle_publish(&st_verbs_tables[table], handle, value))
        return true;
    st_lost("verbs: table of handles full", 1);
    return false;
}

void *st_verbs_take(enum st_verbs_table table, const void *handle)
{
    void *value = st_verbs_find(table, handle);
    return value && st_handle_remove(&st_verbs_tables[table], handle, value) ? value : NULL;
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
