/* Items that are not chunks: a growing buffer, the msgpack text in it, one write. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>

#include "msgpack.h"

#define BODY_MAX (64u << 20)

static uint32_t last_id;

uint8_t *st_put_room(struct st_object *o, size_t n)
{
    if (o->failed)
        return NULL;
    if (n > BODY_MAX || o->used + n > BODY_MAX) {
        o->failed = true;
        return NULL;
    }
    if (o->used + n > o->size) {
        int saved = errno;
        size_t size = o->size * 2;
        while (size < o->used + n)
            size *= 2;
        void *p = mremap(o->buffer, o->size, size, MREMAP_MAYMOVE);
        errno = saved;
        if (p == MAP_FAILED) {
            o->failed = true;
            return NULL;
        }
        o->buffer = p;
        o->size = size;
    }
    uint8_t *p = o->buffer + o->used;
    o->used += n;
    return p;
}

/* Length of the UTF-8 sequence at p, 0 when there is none. */
static size_t utf8_length(const uint8_t *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    size_t length = p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] >= 0xf5 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    bool surrogate = p[0] == 0xed && p[1] >= 0xa0;
    bool beyond = p[0] == 0xf4 && p[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : length;
}

void st_put_strn(struct st_object *o, const char *text, size_t n)
{
    uint8_t *p = st_put_room(o, 5 + n);
    if (!p)
        return;
    *p = 0xdb;
    p = st_be32(p + 1, (uint32_t)n);
    for (size_t i = 0; i < n;) {
        size_t length = utf8_length((const uint8_t *)text + i, n - i);
        if (length)
            memcpy(p + i, text + i, length);
        else
            p[i] = '?';
        i += length ? length : 1;
    }
}

bool st_item_begin(struct st_object *o)
{
    memset(o, 0, sizeof(*o));
    o->size = ST_PAGE;
    o->buffer = st_map(o->size);
    o->failed = !o->buffer;
    o->used = ST_PREFIX_BYTES;
    return !o->failed;
}

void st_item_prefix(uint8_t *prefix, enum st_item kind, uint32_t body_bytes)
{
    memcpy(prefix, "\x95\xa4STRC\xce", 7);
    prefix[11] = (uint8_t)kind;
    prefix[12] = 0xce;
    st_be32(prefix + 13, body_bytes);
    st_be32(prefix + 7, st_crc32c(0, prefix + 11, (size_t)body_bytes + 6));
}

bool st_item_seal(struct st_object *o, enum st_item kind)
{
    if (o->failed)
        return false;
    st_item_prefix(o->buffer, kind, (uint32_t)(o->used - ST_PREFIX_BYTES));
    return true;
}

void st_item_free(struct st_object *o)
{
    int saved = errno;
    if (o->buffer)
        munmap(o->buffer, o->size);
    errno = saved;
    memset(o, 0, sizeof(*o));
    o->failed = true;
}

uint32_t st_object_id(void)
{
    return __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
}

void st_object_begin(struct st_object *o, const char *type, uint32_t id)
{
    memset(o, 0, sizeof(*o));
    o->failed = true;
    if (!st_process_open()) {
        st_process_refuse("object after the recording had stopped");
        return;
    }
    if (!st_local.attaching)
        st_background_start();
    if (!st_item_begin(o))
        return;
    o->count_at = o->used + 1;
    st_put_map(o, 0);
    st_object_str(o, "type", type);
    st_object_u64(o, "id", id);
    st_object_u64(o, "t_tsc", st_now());
}

void st_object_u64(struct st_object *o, const char *key, uint64_t value)
{
    if (o->failed)
        return;
    st_put_str(o, key);
    st_put_u64(o, value);
    o->fields++;
}

void st_object_str(struct st_object *o, const char *key, const char *value)
{
    if (o->failed)
        return;
    st_put_str(o, key);
    st_put_str(o, value);
    o->fields++;
}

void st_object_bin(struct st_object *o, const char *key, const void *data, size_t size)
{
    if (o->failed)
        return;
    st_put_str(o, key);
    st_put_bin(o, data, size);
    o->fields++;
}

void st_object_end(struct st_object *o)
{
    if (!o->buffer)
        return;
    if (!o->failed) {
        st_be32(o->buffer + o->count_at, o->fields);
        if (st_item_seal(o, ST_ITEM_OBJECT))
            st_writer_append(o->buffer, o->used);
    } else {
        st_lost("object too large", 1);
    }
    st_item_free(o);
}

void st_object_closed(const char *type, uint32_t id, uint64_t t_tsc)
{
    struct st_object o;
    st_object_begin(&o, type, id);
    st_object_u64(&o, "closed_tsc", t_tsc);
    st_object_end(&o);
}
