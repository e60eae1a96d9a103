/* Address handles. */
#include "verbs.h"

static void describe(uint32_t id, uint32_t pd, struct ibv_ah_attr *attr,
                     struct st_verbs_context *context)
{
    struct st_object o;
    st_object_begin(&o, "ib_ah", id);
    st_object_u64(&o, "device", context->device);
    st_object_u64(&o, "pd", pd);
    st_object_u64(&o, "port", attr->port_num);
    if (attr->is_global)
        st_object_bin(&o, "dgid", attr->grh.dgid.raw, sizeof(attr->grh.dgid.raw));
    if (!attr->is_global || attr->dlid)
        st_object_u64(&o, "dlid", attr->dlid);
    st_object_end(&o);
}

/* ibv_create_ah_from_wc comes here as well. */
ST_API struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    ST_VERBS_ENTER(pd->context, ibv_create_ah, NULL)
    struct ibv_ah *ah = ST_VERBS_INSIDE(library->ibv_create_ah(pd, attr));
    if (ah && context) {
        int saved = errno;
        uint32_t id = st_object_id();
        describe(id, st_verbs_pd(pd, context), attr, context);
        st_verbs_put(ST_VERBS_COLD, ah, (void *)(uintptr_t)id);
        errno = saved;
    }
    return ah;
}

ST_API int ibv_destroy_ah(struct ibv_ah *ah)
{
    struct st_verbs_library *library = st_verbs_library_of(ah->context, ST_CALLER);
    if (!library)
        return ENOSYS;
    struct st_verbs_ending before = st_verbs_ending(ah);
    int result = library->ibv_destroy_ah(ah);
    st_verbs_ended("ib_ah", ah, &before, result);
    return result;
}
