/* Memory windows: each time one is bound, until it is bound anew, invalidated or freed, is a
 * `memory` object of its own.
 *
 * A window is known by its handle and, as what invalidates it names only this, by its key. Both
 * lead to the same object; the key's entry is there as long as the object lives. */
#include "verbs.h"

/* The handle of a key: no address has the two highest bits. */
static const void *key_of(const struct st_verbs_context *context, uint32_t rkey)
{
    return (const void *)(uintptr_t)(3ull << 62 | (uint64_t)context->index << 36 |
                                     (uint64_t)rkey << 4);
}

static void *pack(uint32_t rkey, uint32_t id)
{
    return (void *)(uintptr_t)((uint64_t)rkey << 32 | id);
}

static void key_ended(struct st_verbs_context *context, uint32_t rkey)
{
    struct st_verbs_ending ending = st_verbs_ending(key_of(context, rkey));
    st_verbs_ended("memory", NULL, &ending, 0);
}

/* What a window is bound to; `ending` is empty where that has ended by its key. */
struct life {
    const void *key;
    void *packed;
    struct st_verbs_ending ending;
};

static struct life take(struct st_verbs_context *context, const struct ibv_mw *mw)
{
    struct life life = {.packed = st_verbs_take(ST_VERBS_COLD, mw)};
    uint64_t packed = (uintptr_t)life.packed;
    life.key = key_of(context, (uint32_t)(packed >> 32));
    if (packed && (uintptr_t)st_verbs_find(ST_VERBS_COLD, life.key) == (uint32_t)packed)
        life.ending = st_verbs_ending(life.key);
    return life;
}

static void describe(uint32_t id, struct st_verbs_context *context, struct ibv_mw *mw,
                     uint32_t rkey, uint64_t address, uint64_t length, uint32_t access)
{
    struct st_object o;
    uint32_t pd = st_verbs_pd(mw->pd, context);
    st_object_begin(&o, "memory", id);
    st_object_str(&o, "layer", "verbs");
    st_object_str(&o, "kind", "window");
    st_object_u64(&o, "device", context->device);
    st_object_u64(&o, "pd", pd);
    st_object_u64(&o, "address", address);
    st_object_u64(&o, "length_bytes", length);
    st_object_u64(&o, "key", rkey);
    st_object_u64(&o, "access", access);
    if (access & IBV_ACCESS_ZERO_BASED)
        st_object_u64(&o, "iova", 0);
    st_object_end(&o);
}

void st_verbs_window_bound(struct st_verbs_context *context, struct ibv_mw *mw, uint32_t rkey,
                           uint64_t address, uint64_t length, uint32_t access)
{
    int saved = errno;
    struct life before = take(context, mw);
    st_verbs_ended("memory", before.key, &before.ending, 0);
    if (length) {
        uint32_t id = st_object_id();
        key_ended(context, rkey); /* of a window that was freed behind our back */
        describe(id, context, mw, rkey, address, length, access);
        st_verbs_put(ST_VERBS_COLD, key_of(context, rkey), (void *)(uintptr_t)id);
        st_verbs_put(ST_VERBS_COLD, mw, pack(rkey, id));
    }
    errno = saved;
}

void st_verbs_window_invalidated(struct st_verbs_context *context, uint32_t rkey)
{
    key_ended(context, rkey);
}

int st_verbs_dealloc_mw(struct ibv_mw *mw)
{
    ST_VERBS_ENTER_TABLE(mw->context, ENOSYS)
    struct life before = take(context, mw);
    int result = context->ops.dealloc_mw(mw);
    st_verbs_ended("memory", before.key, &before.ending, result);
    if (before.packed && result)
        st_verbs_put(ST_VERBS_COLD, mw, before.packed);
    return result;
}
