/* Mode aggregate: a hash table of rows in the thread's own areas. A level that is full is
 * followed by a larger one; rows never move, so that the ring file is right at any instant. */
#include <string.h>
#include <sys/mman.h>

#include "core.h"

#define FIRST_ROWS 4096u
#define LAST_ROWS (256u << 10)
#define WINDOW 8u
#define SPREAD 0x9e3779b9u /* 2^32 over the golden ratio */

/* channel, op, size_bits, depth and flags as one number; never 0, because op is not. */
static inline uint64_t *key_of(struct st_aggregate_record *row)
{
    return (uint64_t *)((uint8_t *)row + offsetof(struct st_aggregate_record, channel));
}

_Static_assert(offsetof(struct st_aggregate_record, channel) % 8 == 0 &&
                   sizeof(struct st_aggregate_record) % 8 == 0,
               "the key is one word");

/* Of `what`: op, depth, and of the flags the one that tells rows apart. */
#define KEPT (0xff00ffu | (uint32_t)ST_NESTED << 24)

/* Those are where they are in `what`, the class of the size (format.md 2.5) between them. Unknown
 * sizes are 0. */
static inline uint64_t key_to(uint64_t size_bytes, uint32_t channel, uint64_t what)
{
    uint32_t bits = 0;
    if (ST_LIKELY(size_bytes))
        bits = 64 - (uint32_t)__builtin_clzll(size_bytes);
    else if (what & (uint64_t)ST_SIZE_UNKNOWN << 24)
        bits = ST_SIZE_BITS_UNKNOWN;
    return channel | (uint64_t)(((uint32_t)what & KEPT) | bits << 8) << 32;
}

static struct st_rows *add_level(struct st_thread *thread)
{
    if (thread->level_count == ST_AGGREGATE_LEVELS)
        return NULL;
    struct st_rows *level = &thread->levels[thread->level_count];
    uint64_t capacity = FIRST_ROWS;
    for (uint32_t i = 0; i < thread->level_count && capacity < LAST_ROWS; i++)
        capacity *= 8;
    struct st_area *area =
        st_area_take(thread, ST_SCHEMA_AGGREGATE, thread->seq[ST_SCHEMA_AGGREGATE], capacity,
                     false);
    if (!area)
        return NULL;
    memset(area->base + ST_RECORDS_AT, 0, capacity * sizeof(struct st_aggregate_record));
    thread->seq[ST_SCHEMA_AGGREGATE]++;
    *level = (struct st_rows){(void *)(area->base + ST_RECORDS_AT), capacity - 1, area};
    st_area_control(area)->count = capacity;
    __atomic_store_n(&thread->level_count, thread->level_count + 1, __ATOMIC_RELEASE);
    return level;
}

/* Ids of channels are dense: neighbours get rows side by side, each its own. For each operation,
 * class of sizes, depth and flag such a series begins elsewhere, spread over the whole table. */
static inline uint64_t home_of(uint64_t key, uint64_t mask)
{
    uint64_t turn = (uint32_t)(key >> 32) * SPREAD;
    return (key + (turn * (mask + 1) >> 32)) & mask;
}

static struct st_aggregate_record *find_in(struct st_rows *level, uint64_t key)
{
    uint64_t home = home_of(key, level->mask);
    for (uint64_t i = 0; i < WINDOW; i++) {
        struct st_aggregate_record *row = &level->rows[(home + i) & level->mask];
        uint64_t *word = key_of(row);
        if (*word == key)
            return row;
        if (!*word) {
            *word = key;
            return row;
        }
    }
    return NULL;
}

static inline void add(struct st_aggregate_record *row, uint64_t size_bytes)
{
    row->size_bytes += size_bytes;
    ST_BARRIER(); /* two additions: as one of vectors they are slower */
    row->count++;
}

static __attribute__((noinline)) void add_slow(uint64_t size_bytes, uint64_t key)
{
    struct st_thread *thread = st_thread_self();
    struct st_aggregate_record *row = NULL;
    if (!thread) {
        st_process_refuse("operation after the recording had stopped");
        return;
    }
    if (thread->busy) {
        thread->dropped[ST_SCHEMA_AGGREGATE]++;
        return;
    }
    thread->busy = 1;
    ST_BARRIER();
    for (uint32_t i = 0; i < thread->level_count && !row; i++)
        row = find_in(&thread->levels[i], key);
    struct st_rows *level = row ? NULL : add_level(thread);
    if (level)
        row = find_in(level, key);
    if (row)
        add(row, size_bytes);
    else
        thread->dropped[ST_SCHEMA_AGGREGATE]++;
    ST_BARRIER();
    thread->busy = 0;
}

void st_aggregate_add(uint64_t size_bytes, uint32_t channel, uint64_t what)
{
    uint64_t key = key_to(size_bytes, channel, what);
    struct st_thread *thread = st_local.thread;
    if (ST_UNLIKELY(st_local.generation != st_generation() || thread->busy ||
                    !thread->level_count)) {
        add_slow(size_bytes, key);
        return;
    }
    struct st_aggregate_record *row = &thread->levels[0].rows[home_of(key, FIRST_ROWS - 1)];
    thread->busy = 1;
    ST_BARRIER();
    bool found = *key_of(row) == key;
    if (ST_LIKELY(found))
        add(row, size_bytes);
    ST_BARRIER();
    thread->busy = 0;
    if (ST_UNLIKELY(!found))
        add_slow(size_bytes, key);
}

/* Writes the rows that are in use, and empties the level. */
static bool write_level(struct st_thread *thread, struct st_rows *level)
{
    struct st_control *control = st_area_control(level->area);
    size_t size = ST_FRAME_BYTES + (level->mask + 1) * sizeof(struct st_aggregate_record);
    uint8_t *buffer = st_map(size);
    if (!buffer)
        return false;
    struct st_chunk chunk = {.schema = ST_SCHEMA_AGGREGATE,
                             .thread = thread->tid,
                             .seq = control->seq,
                             .dropped = thread->dropped[ST_SCHEMA_AGGREGATE]};
    uint8_t *to = buffer + ST_FRAME_BYTES;
    for (uint64_t i = 0; i <= level->mask; i++)
        if (level->rows[i].count) {
            memcpy(to, &level->rows[i], sizeof(level->rows[i]));
            to += sizeof(level->rows[i]);
            chunk.count++;
        }
    bool done = st_chunk_write(&chunk, buffer + ST_FRAME_BYTES);
    if (done) {
        thread->written[ST_SCHEMA_AGGREGATE] += chunk.count;
        control->count = 0;
    }
    munmap(buffer, size);
    return done;
}

bool st_aggregate_flush(struct st_thread *thread)
{
    /* The thread's end and the process's end may both come here: one takes the levels. */
    uint32_t levels = __atomic_exchange_n(&thread->level_count, 0, __ATOMIC_ACQ_REL);
    bool done = true;
    for (uint32_t i = 0; i < levels; i++) {
        if (!write_level(thread, &thread->levels[i]))
            done = false;
        else
            st_area_give(thread->levels[i].area);
    }
    return done;
}
