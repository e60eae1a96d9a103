/* Chunks: framing of a fixed size right before the records, so that all goes out as one write. */
#include "msgpack.h"

const uint8_t st_record_size[ST_SCHEMA_LAST] = {
#define ST_SIZE(number, upper, label) [number] = sizeof(struct st_##label##_record),
    ST_RECORDS(ST_SIZE)
#undef ST_SIZE
};

static uint64_t direct_seq[ST_SCHEMA_LAST], direct_written[ST_SCHEMA_LAST];

/* A key as fixstr, and the marker of its value. */
static uint8_t *key(uint8_t *p, const char *name, uint8_t marker)
{
    size_t n = strlen(name);
    *p = (uint8_t)(0xa0 | n);
    memcpy(p + 1, name, n);
    p[1 + n] = marker;
    return p + 2 + n;
}

static void span(const uint8_t *records, uint32_t schema, uint32_t count, uint64_t *first,
                 uint64_t *last)
{
    size_t step = st_record_size[schema];
    *first = *last = 0;
    if (schema == ST_SCHEMA_AGGREGATE || schema == ST_SCHEMA_TARGET || !count)
        return;
    uint64_t low = UINT64_MAX, high = 0;
    for (uint32_t i = 0; i < count; i++, records += step) {
        uint64_t t; /* every timed schema begins with t_tsc */
        memcpy(&t, records, 8);
        low = t < low ? t : low;
        high = t > high ? t : high;
    }
    *first = low;
    *last = high;
}

bool st_chunk_write(const struct st_chunk *chunk, uint8_t *records)
{
    uint8_t *frame = records - ST_FRAME_BYTES, *p = frame + ST_PREFIX_BYTES;
    uint32_t bytes = chunk->count * st_record_size[chunk->schema];
    uint64_t first, last;
    span(records, chunk->schema, chunk->count, &first, &last);
    *p++ = 0x89;
    p = key(p, "schema", 0xcc);
    *p++ = (uint8_t)chunk->schema;
    p = st_be32(key(p, "thread", 0xce), chunk->thread);
    p = st_be64(key(p, "seq", 0xcf), chunk->seq);
    p = st_be32(key(p, "count", 0xce), chunk->count);
    p = st_be64(key(p, "first_tsc", 0xcf), first);
    p = st_be64(key(p, "last_tsc", 0xcf), last);
    p = st_be64(key(p, "dropped", 0xcf), chunk->dropped);
    p = key(p, "codec", 0xcc);
    *p++ = 0;
    p = st_be32(key(p, "data", 0xc6), bytes);
    st_item_prefix(frame, ST_ITEM_CHUNK, ST_FRAME_BYTES - ST_PREFIX_BYTES + bytes);
    return st_writer_append(frame, ST_FRAME_BYTES + bytes);
}

bool st_area_write(struct st_area *area)
{
    struct st_control *control = st_area_control(area);
    uint64_t seq = __atomic_load_n(&control->seq, __ATOMIC_ACQUIRE);
    uint64_t count = __atomic_load_n(&control->count, __ATOMIC_ACQUIRE);
    if (!count)
        return true;
    uint64_t unclaimed = seq;
    if (!__atomic_compare_exchange_n(&area->claimed, &unclaimed, seq + 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return false;
    struct st_chunk chunk = {.schema = control->schema,
                             .thread = control->thread,
                             .count = (uint32_t)count,
                             .seq = seq,
                             .dropped = control->dropped};
    if (!st_chunk_write(&chunk, area->base + ST_RECORDS_AT))
        return false; /* the records stay in the ring file */
    __atomic_fetch_add(&area->owner->written[chunk.schema], count, __ATOMIC_RELAXED);
    __atomic_store_n(&control->count, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&control->seq, seq + 1, __ATOMIC_RELEASE);
    return true;
}

union any_record {
#define ANY(number, upper, label) struct st_##label##_record label;
    ST_RECORDS(ANY)
#undef ANY
};

bool st_chunk_write_direct(uint32_t schema, const void *records, uint32_t count)
{
    uint8_t buffer[ST_FRAME_BYTES + ST_DIRECT_RECORDS * sizeof(union any_record)];
    struct st_chunk chunk = {.schema = schema, .count = count};
    chunk.seq = __atomic_fetch_add(&direct_seq[schema], 1, __ATOMIC_RELAXED);
    memcpy(buffer + ST_FRAME_BYTES, records, (size_t)count * st_record_size[schema]);
    if (!st_chunk_write(&chunk, buffer + ST_FRAME_BYTES))
        return false;
    __atomic_fetch_add(&direct_written[schema], count, __ATOMIC_RELAXED);
    return true;
}

uint64_t st_chunk_direct_written(uint32_t schema)
{
    return __atomic_load_n(&direct_written[schema], __ATOMIC_RELAXED);
}

void st_chunk_forked(void)
{
    memset(direct_seq, 0, sizeof(direct_seq));
    memset(direct_written, 0, sizeof(direct_written));
}
