/* Ids of names: a text is written once as a `name` object. Insert-only, without locks. */
#include <string.h>

#include "core.h"

#define SLOTS 16384u
#define WINDOW 64u

struct slot {
    uint64_t hash;
    uint32_t id, unused;
} __attribute__((aligned(16)));

static struct slot *slots;

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0x2d358dccaa6c78a5u;
    size_t n = strlen(text);
    for (size_t at = 0; at < n; at += 8) {
        uint64_t word = 0;
        memcpy(&word, text + at, n - at < 8 ? n - at : 8);
        hash = st_fold(hash ^ word, 0x8bb84b93962eacc9u + at);
    }
    hash = st_fold(hash ^ n, 0x4b33a62ed433d4a3u);
    return hash ? hash : 1;
}

static struct slot *table(void)
{
    struct slot *there = __atomic_load_n(&slots, __ATOMIC_ACQUIRE), *fresh;
    if (there)
        return there;
    fresh = st_map(SLOTS * sizeof(struct slot));
    if (!fresh || __atomic_compare_exchange_n(&slots, &there, fresh, false, __ATOMIC_ACQ_REL,
                                              __ATOMIC_ACQUIRE))
        return fresh;
    st_unmap(fresh, SLOTS * sizeof(struct slot));
    return there;
}

static uint32_t describe(uint32_t id, const char *text)
{
    struct st_object o;
    st_object_begin(&o, "name", id);
    st_object_str(&o, "name", text);
    st_object_end(&o);
    return id;
}

uint32_t st_name(const char *text)
{
    if (!text || !st_recording())
        return 0;
    struct slot *all = table();
    uint64_t hash = hash_of(text);
    for (uint32_t i = 0; all && i < WINDOW; i++) {
        struct slot *slot = &all[(hash + i) % SLOTS];
        uint64_t there = __atomic_load_n(&slot->hash, __ATOMIC_ACQUIRE);
        if (there == hash)
            return slot->id;
        if (there)
            continue;
        uint32_t id = st_object_id();
        if (st_publish16(slot, hash, id))
            return describe(id, text);
        i--; /* another thread was faster: look at what it put here */
    }
    st_lost("name: no room", 1);
    return 0;
}

/* The child describes its names anew: they are in its parent's file. */
void st_names_forked(void)
{
    slots = NULL;
}
