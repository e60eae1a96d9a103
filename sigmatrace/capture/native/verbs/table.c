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

struct st_verbs_ending st_verbs_ending(const void *handle)
{
    return (struct st_verbs_ending){st_verbs_take(ST_VERBS_COLD, handle), st_now()};
}

void st_verbs_ended(const char *type, const void *handle, const struct st_verbs_ending *ending,
                    int result)
{
    int saved = errno;
    struct st_object o;
    if (ending->id && result) {
        st_verbs_put(ST_VERBS_COLD, handle, ending->id);
    } else if (ending->id) {
        st_object_begin(&o, type, (uint32_t)(uintptr_t)ending->id);
        st_object_u64(&o, "closed_tsc", ending->t_tsc);
        st_object_end(&o);
    }
    errno = saved;
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
