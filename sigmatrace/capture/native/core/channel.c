/* Channels: an insert-only hash table without locks. A slot is published by one 16-byte
 * exchange of (hash, id, ordinal 0), so that it is never seen half filled. A key is looked for
 * in a window of one level, then in the next, larger level; as slots are never freed, the first
 * free slot on the way ends the search. Keys are told apart by a 64-bit hash alone: with a
 * million channels, two of them meet with a probability of 3e-8. */
#include <string.h>

#include "core.h"

#define LEVELS 5u
#define FIRST_LEVEL 4096u
#define WINDOW 8u
#define POISON UINT64_MAX
#define FLAGS(flags) ((uint64_t)(flags) << 56)
#define TAG_FLAGS FLAGS(ST_HAS_TAG | ST_HAS_DATA | ST_TAG_UNKNOWN)

struct level {
    struct st_channel_record *records; /* beside the slots; t_tsc is stored last */
    uint64_t mask;
    struct st_channel slots[] __attribute__((aligned(64)));
};

_Static_assert(sizeof(struct st_channel) == 16, "published by one exchange");

static struct level *levels[LEVELS];
static uint32_t next_id;

static uint64_t capacity_of(uint32_t level)
{
    return (uint64_t)FIRST_LEVEL << (3 * level);
}

static struct level *make_level(struct level **at, uint64_t capacity)
{
    size_t size = sizeof(struct level) + capacity * sizeof(struct st_channel);
    struct level *level = st_map(size), *none = NULL;
    if (!level)
        return NULL;
    level->records = st_map(capacity * sizeof(struct st_channel_record));
    level->mask = capacity - 1;
    if (level->records && __atomic_compare_exchange_n(at, &none, level, false, __ATOMIC_ACQ_REL,
                                                      __ATOMIC_ACQUIRE))
        return level;
    if (level->records)
        st_unmap(level->records, capacity * sizeof(struct st_channel_record));
    st_unmap(level, size);
    return none;
}

/* A key as it comes in registers; `kind` holds object, kind, dir, layer and flags. */
struct key {
    uint64_t kind, peer, tag, data;
    bool shared;
};

static inline uint64_t hash_of(uint64_t kind, uint64_t peer, uint64_t tag, uint64_t data)
{
    uint64_t name = st_fold(peer ^ 0x2d358dccaa6c78a5u, tag ^ 0x8bb84b93962eacc9u);
    uint64_t hash = st_fold(name ^ kind, data ^ 0x4b33a62ed433d4a3u);
    return hash && hash != POISON ? hash : 1;
}

static void describe(struct st_channel_record *record, const struct key *key, uint32_t id)
{
    struct st_channel_record filled = {.t_tsc = 0,
                                       .peer = key->peer,
                                       .tag = key->tag,
                                       .data = key->data,
                                       .id = id,
                                       .object = (uint32_t)key->kind,
                                       .kind = (uint8_t)(key->kind >> 32),
                                       .dir = (uint8_t)(key->kind >> 40),
                                       .layer = (uint8_t)(key->kind >> 48),
                                       .flags = (uint8_t)(key->kind >> 56),
                                       .thread_shared = key->shared};
    *record = filled;
    ST_BARRIER();
    record->t_tsc = st_now();
    st_channel_store(record);
}

/* Takes the free slot; NULL when another thread was faster. */
static struct st_channel *insert(struct level *level, uint64_t at, uint64_t hash,
                                 const struct key *key)
{
    struct st_channel *slot = &level->slots[at];
    uint32_t id = __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED);
    if (st_publish16(slot, hash, id)) {
        describe(&level->records[at], key, id);
        return slot;
    }
    uint32_t after = id + 1; /* give the id back, unless another was taken since */
    __atomic_compare_exchange_n(&next_id, &after, id, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return NULL;
}

static __attribute__((noinline)) struct st_channel *
look_up(const struct key *key, uint32_t limit, bool *failed)
{
    uint64_t hash = hash_of(key->kind, key->peer, key->tag, key->data);
    for (uint32_t l = 0; l < LEVELS; l++) {
        struct level *level = __atomic_load_n(&levels[l], __ATOMIC_ACQUIRE);
        if (ST_UNLIKELY(!level))
            level = make_level(&levels[l], capacity_of(l));
        if (ST_UNLIKELY(!level)) {
            *failed = true;
            return NULL;
        }
        for (uint64_t i = 0; i < WINDOW; i++) {
            uint64_t at = (hash + i) & level->mask;
            struct st_channel *slot = &level->slots[at];
            uint64_t there = __atomic_load_n(&slot->hash, __ATOMIC_ACQUIRE);
            if (ST_LIKELY(there == hash))
                return slot;
            if (there)
                continue;
            if (__atomic_load_n(&next_id, __ATOMIC_RELAXED) >= limit)
                return NULL;
            struct st_channel *mine = insert(level, at, hash, key);
            if (mine)
                return mine;
            i--; /* look again at what came here */
        }
    }
    return NULL;
}

/* More channels than wanted: without tag and data, then without peer and object. */
static __attribute__((noinline, cold)) struct st_channel *overflow(const struct key *key,
                                                                    bool *failed)
{
    static bool warned;
    struct key less = {.peer = key->peer, .shared = true};
    uint32_t limit = st_config()->max_channels;
    st_warn_once(&warned, "more than %u channels (SIGMATRACE_MAX_CHANNELS): tags are left out",
                 limit);
    less.kind = (key->kind & ~TAG_FLAGS) | FLAGS(ST_OVERFLOW);
    struct st_channel *channel = look_up(&less, 2 * limit, failed);
    if (channel || *failed)
        return channel;
    less.peer = ST_UNKNOWN_PEER;
    less.kind = FLAGS(ST_OVERFLOW);
    return look_up(&less, UINT32_MAX, failed);
}

static __attribute__((noinline)) struct st_channel *find_slow(uint64_t kind, uint64_t peer,
                                                              uint64_t tag, uint64_t data,
                                                              bool shared)
{
    bool failed = false;
    if (ST_UNLIKELY(!st_generation()) && !st_process_ready()) {
        st_process_refuse("operation after the recording had stopped");
        return NULL;
    }
    uint64_t keep = st_process.keep_tags;
    struct key key = {kind & (keep | ~TAG_FLAGS), peer, tag & keep, data & keep, shared};
    struct st_channel *channel = look_up(&key, st_config()->max_channels, &failed);
    if (ST_LIKELY(channel != NULL))
        return channel;
    channel = failed ? NULL : overflow(&key, &failed);
    if (!channel)
        st_process_fail("out of memory for channels", 12);
    return channel;
}

/* The first place of the first level; all else is left to a call at the end, so that no register
 * has to be saved here. */
struct st_channel *st_channel_find(uint64_t kind, uint64_t peer, uint64_t tag, uint64_t data,
                                   bool shared)
{
    struct level *first = __atomic_load_n(&levels[0], __ATOMIC_ACQUIRE);
    if (ST_UNLIKELY(!st_generation() || !first))
        return find_slow(kind, peer, tag, data, shared);
    uint64_t keep = st_process.keep_tags;
    uint64_t hash = hash_of(kind & (keep | ~TAG_FLAGS), peer, tag & keep, data & keep);
    struct st_channel *likely = &first->slots[hash & first->mask];
    if (ST_LIKELY(__atomic_load_n(&likely->hash, __ATOMIC_ACQUIRE) == hash))
        return likely;
    return find_slow(kind, peer, tag, data, shared);
}

/* In a child: the same channels, counted from 0. One that another thread was making while the
 * process forked has no description; nobody knows it yet, and nobody shall find it. */
void st_channels_forked(void)
{
    for (uint32_t l = 0; l < LEVELS && levels[l]; l++)
        for (uint64_t i = 0; i <= levels[l]->mask; i++) {
            struct st_channel *slot = &levels[l]->slots[i];
            if (slot->hash && !levels[l]->records[i].t_tsc)
                slot->hash = POISON;
            else if (slot->hash)
                slot->ordinal = 0;
        }
}

void st_channels_emit(void)
{
    struct st_channel_record batch[ST_DIRECT_RECORDS];
    uint32_t n = 0;
    for (uint32_t l = 0; l < LEVELS && levels[l]; l++)
        for (uint64_t i = 0; i <= levels[l]->mask; i++) {
            if (!levels[l]->slots[i].hash || levels[l]->slots[i].hash == POISON)
                continue;
            batch[n++] = levels[l]->records[i];
            if (n == ST_DIRECT_RECORDS) {
                st_chunk_write_direct(ST_SCHEMA_CHANNEL, batch, n);
                n = 0;
            }
        }
    if (n)
        st_chunk_write_direct(ST_SCHEMA_CHANNEL, batch, n);
}
