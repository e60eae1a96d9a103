/* A small msgpack encoder into a st_object's growing buffer. Sizes of strings and integers are
 * chosen short where the format page leaves the choice. */
#ifndef ST_MSGPACK_H
#define ST_MSGPACK_H

#include <string.h>

#include "core.h"

#define ST_PREFIX_BYTES 17u

ST_HIDDEN uint8_t *st_put_room(struct st_object *o, size_t n);

/* Fixed-width stores, big-endian. */
static inline uint8_t *st_be32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
    return p + 4;
}

static inline uint8_t *st_be64(uint8_t *p, uint64_t v)
{
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
    return p + 8;
}

static inline void st_put_byte(struct st_object *o, uint8_t v)
{
    uint8_t *p = st_put_room(o, 1);
    if (p)
        *p = v;
}

static inline void st_put_u64(struct st_object *o, uint64_t v)
{
    uint8_t *p = st_put_room(o, v < 128 ? 1 : 9);
    if (!p)
        return;
    if (v < 128) {
        *p = (uint8_t)v;
    } else {
        *p = 0xcf;
        st_be64(p + 1, v);
    }
}

static inline void st_put_int(struct st_object *o, int64_t v)
{
    if (v >= 0) {
        st_put_u64(o, (uint64_t)v);
        return;
    }
    uint8_t *p = st_put_room(o, 9);
    if (!p)
        return;
    *p = 0xd3;
    st_be64(p + 1, (uint64_t)v);
}

static inline void st_put_sized(struct st_object *o, uint8_t marker, const void *data, size_t n)
{
    uint8_t *p = st_put_room(o, 5 + n);
    if (!p)
        return;
    *p = marker;
    p = st_be32(p + 1, (uint32_t)n);
    if (n)
        memcpy(p, data, n);
}

static inline void st_put_bin(struct st_object *o, const void *data, size_t n)
{
    st_put_sized(o, 0xc6, data, n);
}

/* Text: str when it is UTF-8 (msgpack asks for it), else with its bad bytes replaced. */
ST_HIDDEN void st_put_strn(struct st_object *o, const char *text, size_t n);

static inline void st_put_str(struct st_object *o, const char *text)
{
    st_put_strn(o, text ? text : "", text ? strlen(text) : 0);
}

static inline void st_put_map(struct st_object *o, uint32_t n)
{
    uint8_t *p = st_put_room(o, 5);
    if (!p)
        return;
    *p = 0xdf;
    st_be32(p + 1, n);
}

static inline void st_put_array(struct st_object *o, uint32_t n)
{
    uint8_t *p = st_put_room(o, 5);
    if (!p)
        return;
    *p = 0xdd;
    st_be32(p + 1, n);
}

/* Item framing: begin leaves room for the prefix, seal fills it in. */
ST_HIDDEN bool st_item_begin(struct st_object *o);
ST_HIDDEN bool st_item_seal(struct st_object *o, enum st_item kind);
ST_HIDDEN void st_item_free(struct st_object *o);
/* Fills the 17 bytes before `body`. */
ST_HIDDEN void st_item_prefix(uint8_t *prefix, enum st_item kind, uint32_t body_bytes);

#endif
