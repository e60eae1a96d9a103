/* States by handle, and where the states come from. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "verbs.h"

struct st_handle_table st_verbs_tables[ST_VERBS_TABLES];

#define WORDS 64u
#define PATIENCE 1000u
#define NAP_NS 50000

static uint32_t making[ST_VERBS_MAKINGS][WORDS];

_Static_assert(ST_VERBS_CONTEXTS + ST_VERBS_QPS + ST_VERBS_CQS + ST_VERBS_SRQS <= ST_HANDLES / 4 * 3,
               "the tables have room for all states");

static uint32_t *word_of(enum st_verbs_making what, const void *handle)
{
    return &making[what][((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15ull >> 58];
}

bool st_verbs_make_begin(enum st_verbs_making what, const void *handle)
{
    int saved = errno;
    bool mine = false;
    for (uint32_t i = 0; !mine && i < PATIENCE; i++) {
        if (i)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        mine = !__atomic_exchange_n(word_of(what, handle), 1, __ATOMIC_ACQUIRE);
    }
    errno = saved;
    return mine;
}

void st_verbs_make_end(enum st_verbs_making what, const void *handle)
{
    __atomic_store_n(word_of(what, handle), 0, __ATOMIC_RELEASE);
}

void st_verbs_makings_forked(void)
{
    memset(making, 0, sizeof(making)); /* of threads that are not here */
}

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
    return value && st_verbs_remove(table, handle, value) ? value : NULL;
}

struct st_verbs_ending st_verbs_ending(const void *handle)
{
    return (struct st_verbs_ending){st_verbs_find(ST_VERBS_COLD, handle), st_now()};
}

void st_verbs_ended(const char *type, const void *handle, const struct st_verbs_ending *ending,
                    int result)
{
    int saved = errno;
    if (ending->id && !result) {
        st_verbs_remove(ST_VERBS_COLD, handle, ending->id);
        st_verbs_closed(type, ending->id, ending->t_tsc);
    }
    errno = saved;
}

void st_verbs_closed(const char *type, const void *id, uint64_t t_tsc)
{
    struct st_object o;
    st_object_begin(&o, type, (uint32_t)(uintptr_t)id);
    st_object_u64(&o, "closed_tsc", t_tsc);
    st_object_end(&o);
}

void *st_verbs_state(void *array, struct st_verbs_pool *pool, uint32_t count, size_t size)
{
    for (uint32_t i = 0; i < count && !__atomic_load_n(&pool->full, __ATOMIC_ACQUIRE); i++) {
        uint32_t at = __atomic_fetch_add(&pool->turn, 1, __ATOMIC_RELAXED) % count, no = 0;
        uint8_t *state = (uint8_t *)array + at * size;
        if (__atomic_compare_exchange_n((uint32_t *)state, &no, 1, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return state;
    }
    __atomic_store_n(&pool->full, true, __ATOMIC_RELEASE);
    st_lost("verbs: more objects at once than can be traced", 1);
    return NULL;
}

void st_verbs_state_give(void *state, struct st_verbs_pool *pool)
{
    __atomic_store_n((uint32_t *)state, 0, __ATOMIC_RELEASE);
    if (ST_UNLIKELY(__atomic_load_n(&pool->full, __ATOMIC_ACQUIRE)))
        __atomic_store_n(&pool->full, false, __ATOMIC_RELEASE);
}
