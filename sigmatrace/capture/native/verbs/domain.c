/* What memory, queues and connections belong to: protection domains, XRC domains, completion
 * channels. They have no state but the id of their object. */
#include "verbs.h"

static uint32_t made(const char *type, const void *handle, struct st_verbs_context *context,
                     uint32_t parent)
{
    int saved = errno;
    struct st_object o;
    uint32_t id = st_object_id();
    st_object_begin(&o, type, id);
    st_object_u64(&o, "device", context->device);
    if (parent)
        st_object_u64(&o, "parent", parent);
    st_object_end(&o);
    st_verbs_put(ST_VERBS_COLD, handle, (void *)(uintptr_t)id);
    errno = saved;
    return id;
}

static uint32_t known(const char *type, const void *handle, struct st_verbs_context *context)
{
    uint32_t id = handle ? (uint32_t)(uintptr_t)st_verbs_find(ST_VERBS_COLD, handle) : 0;
    if (id || !handle)
        return id;
    bool mine = st_verbs_make_begin(ST_VERBS_MAKE_OBJECT, handle);
    id = (uint32_t)(uintptr_t)st_verbs_find(ST_VERBS_COLD, handle);
    if (!id)
        id = made(type, handle, context, 0);
    if (mine)
        st_verbs_make_end(ST_VERBS_MAKE_OBJECT, handle);
    return id;
}

uint32_t st_verbs_pd(struct ibv_pd *pd, struct st_verbs_context *context)
{
    return known("ib_pd", pd, context);
}

uint32_t st_verbs_xrcd(struct ibv_xrcd *xrcd, struct st_verbs_context *context)
{
    return known("ib_xrcd", xrcd, context);
}

uint32_t st_verbs_channel(struct ibv_comp_channel *channel, struct st_verbs_context *context)
{
    return known("ib_comp_channel", channel, context);
}

ST_API struct ibv_pd *ibv_alloc_pd(struct ibv_context *handle)
{
    ST_VERBS_ENTER(handle, ibv_alloc_pd, NULL)
    struct ibv_pd *pd = ST_VERBS_INSIDE(library->ibv_alloc_pd(handle));
    if (pd && context)
        made("ib_pd", pd, context, 0);
    return pd;
}

struct ibv_pd *st_verbs_alloc_parent_domain(struct ibv_context *handle,
                                            struct ibv_parent_domain_init_attr *attr)
{
    ST_VERBS_ENTER_TABLE(handle, NULL)
    struct ibv_pd *pd = ST_VERBS_INSIDE(context->alloc_parent_domain(handle, attr));
    if (pd)
        made("ib_pd", pd, context, st_verbs_pd(attr->pd, context));
    return pd;
}

ST_API int ibv_dealloc_pd(struct ibv_pd *pd)
{
    struct st_verbs_library *library = st_verbs_library_of(pd->context, ST_CALLER);
    if (!library)
        return ENOSYS;
    struct st_verbs_ending before = st_verbs_ending(pd);
    int result = library->ibv_dealloc_pd(pd);
    st_verbs_ended("ib_pd", pd, &before, result);
    return result;
}

/* An imported one has been taken in by the first call that names it. */
ST_API void ibv_unimport_pd(struct ibv_pd *pd)
{
    struct st_verbs_library *library = st_verbs_library_of(pd->context, ST_CALLER);
    if (!library || !library->ibv_unimport_pd)
        return;
    struct st_verbs_ending before = st_verbs_ending(pd);
    library->ibv_unimport_pd(pd);
    st_verbs_ended("ib_pd", pd, &before, 0);
}

struct ibv_xrcd *st_verbs_open_xrcd(struct ibv_context *handle, struct ibv_xrcd_init_attr *attr)
{
    ST_VERBS_ENTER_TABLE(handle, NULL)
    struct ibv_xrcd *xrcd = ST_VERBS_INSIDE(context->open_xrcd(handle, attr));
    if (xrcd)
        made("ib_xrcd", xrcd, context, 0);
    return xrcd;
}

int st_verbs_close_xrcd(struct ibv_xrcd *xrcd)
{
    ST_VERBS_ENTER_TABLE(xrcd->context, ENOSYS)
    struct st_verbs_ending before = st_verbs_ending(xrcd);
    int result = context->close_xrcd(xrcd);
    st_verbs_ended("ib_xrcd", xrcd, &before, result);
    return result;
}

/* Programs of old come here as well, with a context of theirs: only known ones are looked at. */
ST_API struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *handle)
{
    struct st_verbs_context *context = st_verbs_find(ST_VERBS_HOT, handle);
    struct st_verbs_library *library = context ? context->library : st_verbs_library(ST_CALLER);
    if (!library) {
        errno = ENOSYS;
        return NULL;
    }
    struct ibv_comp_channel *channel = library->ibv_create_comp_channel(handle);
    if (channel && context)
        made("ib_comp_channel", channel, context, 0);
    return channel;
}

ST_API int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    struct st_verbs_context *context = st_verbs_find(ST_VERBS_HOT, channel->context);
    struct st_verbs_library *library = context ? context->library : st_verbs_library(ST_CALLER);
    if (!library)
        return ENOSYS;
    struct st_verbs_ending before = st_verbs_ending(channel);
    int result = library->ibv_destroy_comp_channel(channel);
    st_verbs_ended("ib_comp_channel", channel, &before, result);
    return result;
}
