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
    void *id = st_verbs_take(ST_VERBS_COLD, key_of(context, rkey));
    if (id)
        st_verbs_closed("memory", id, st_now());
}

/* Ends what a window was bound to, `packed`, unless that has ended by its key. */
static void window_ended(struct st_verbs_context *context, void *packed, uint64_t t_tsc)
{
    uint32_t rkey = (uint32_t)((uintptr_t)packed >> 32);
    void *id = (void *)(uintptr_t)(uint32_t)(uintptr_t)packed;
    if (packed && st_verbs_remove(ST_VERBS_COLD, key_of(context, rkey), id))
        st_verbs_closed("memory", id, t_tsc);
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
    window_ended(context, st_verbs_take(ST_VERBS_COLD, mw), st_now());
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
    void *packed = st_verbs_find(ST_VERBS_COLD, mw);
    uint64_t t_tsc = st_now();
    int result = context->ops.dealloc_mw(mw), saved = errno;
    if (packed && !result) {
        st_verbs_remove(ST_VERBS_COLD, mw, packed);
        window_ended(context, packed, t_tsc);
    }
    errno = saved;
    return result;
}
