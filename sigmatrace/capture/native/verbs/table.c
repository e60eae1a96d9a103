/* States by handle, and where the states come from. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "verbs.h"

struct st_handle_table st_verbs_hot;
struct st_handle_table *st_verbs_others[ST_VERBS_TABLES];

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

static void *map(size_t bytes)
{
    int saved = errno;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    return p == MAP_FAILED ? NULL : p;
}

/* Whoever maps it first. */
static void *map_at(void **place, size_t bytes)
{
    void *there = __atomic_load_n(place, __ATOMIC_ACQUIRE), *fresh = there ? NULL : map(bytes);
    if (fresh && !__atomic_compare_exchange_n(place, &there, fresh, false, __ATOMIC_ACQ_REL,
                                              __ATOMIC_ACQUIRE))
        munmap(fresh, bytes);
    return there ? there : fresh;
}

bool st_verbs_put(enum st_verbs_table table, const void *handle, void *value)
{
    st_verbs_take(table, handle);
    struct st_handle_table *in = st_verbs_table(table);
    if (!in)
        in = map_at((void **)&st_verbs_others[table], sizeof(*in));
    if (in && st_handle_publish(in, handle, value))
        return true;
    st_lost("verbs: table of handles full", 1);
    return false;
}

void *st_verbs_take(enum st_verbs_table table, const void *handle)
{
    void *value = st_verbs_find(table, handle);
    return value && st_verbs_remove(table, handle, value) ? value : NULL;
}

static char left_out; /* its address is the value */

void st_verbs_leave_out(const void *handle)
{
    st_verbs_put(ST_VERBS_COLD, handle, &left_out);
}

bool st_verbs_left_out(const void *handle)
{
    return st_verbs_find(ST_VERBS_COLD, handle) == &left_out;
}

void st_verbs_left_out_ended(const void *handle)
{
    st_verbs_remove(ST_VERBS_COLD, handle, &left_out);
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

/* A piece more, or another thread's; false: there is none. */
static bool grow(struct st_verbs_pool *pool, uint32_t mapped)
{
    if (mapped >= pool->most)
        return false;
    void **place = (void **)&pool->pieces[mapped / ST_VERBS_PIECE];
    if (!map_at(place, (size_t)ST_VERBS_PIECE * pool->size))
        return false;
    __atomic_compare_exchange_n(&pool->mapped, &mapped, mapped + ST_VERBS_PIECE, false,
                                __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return true;
}

void *st_verbs_state(struct st_verbs_pool *pool)
{
    bool full = __atomic_load_n(&pool->full, __ATOMIC_ACQUIRE);
    uint32_t mapped = __atomic_load_n(&pool->mapped, __ATOMIC_ACQUIRE);
    if (!full && 2 * __atomic_load_n(&pool->used, __ATOMIC_RELAXED) >= mapped &&
        grow(pool, mapped))
        mapped = __atomic_load_n(&pool->mapped, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < mapped && !full; i++) {
        uint32_t at = __atomic_fetch_add(&pool->turn, 1, __ATOMIC_RELAXED) % mapped, no = 0;
        uint32_t *state = st_verbs_state_at(pool, at);
        if (!__atomic_compare_exchange_n(state, &no, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        __atomic_fetch_add(&pool->used, 1, __ATOMIC_RELAXED);
        return state;
    }
    __atomic_store_n(&pool->full, true, __ATOMIC_RELEASE);
    st_lost("verbs: more objects at once than can be traced", 1);
    return NULL;
}

void st_verbs_state_give(void *state, struct st_verbs_pool *pool)
{
    __atomic_store_n((uint32_t *)state, 0, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&pool->used, 1, __ATOMIC_RELAXED);
    if (ST_UNLIKELY(__atomic_load_n(&pool->full, __ATOMIC_ACQUIRE)))
        __atomic_store_n(&pool->full, false, __ATOMIC_RELEASE);
}
