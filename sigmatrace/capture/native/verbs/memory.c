/* Registered memory and address handles. */
#include <errno.h>

#include "verbs.h"

struct registration {
    struct ibv_mr *mr;
    uint64_t address, length, iova;
    int access, dmabuf; /* dmabuf: -1 none */
    bool has_iova;
};

static void registered(const struct registration *r, struct st_verbs_context *context)
{
    int saved = errno;
    struct st_object o;
    uint32_t id = st_object_id();
    st_object_begin(&o, "memory", id);
    st_object_str(&o, "layer", "verbs");
    st_object_u64(&o, "device", context->device);
    st_object_u64(&o, "address", r->address);
    st_object_u64(&o, "length_bytes", r->length);
    st_object_u64(&o, "key", r->mr->rkey);
    st_object_u64(&o, "lkey", r->mr->lkey);
    st_object_u64(&o, "access", (unsigned)r->access);
    if (r->has_iova)
        st_object_u64(&o, "iova", r->iova);
    if (r->dmabuf >= 0)
        st_object_u64(&o, "dmabuf_fd", (unsigned)r->dmabuf);
    st_object_end(&o);
    st_verbs_put(ST_VERBS_COLD, r->mr, (void *)(uintptr_t)id);
    errno = saved;
}

/* Taken before the library is called, as address and keys may come again at once. */
struct ending {
    void *id;
    uint64_t t_tsc;
};

static struct ending ending(const void *handle)
{
    return (struct ending){st_verbs_take(ST_VERBS_COLD, handle), st_now()};
}

static void ended(const char *type, const void *handle, const struct ending *ending, int result)
{
    int saved = errno;
    struct st_object o;
    if (ending->id && result) {
        st_verbs_put(ST_VERBS_COLD, handle, ending->id);
    } else if (ending->id) {
        st_object_begin(&o, type, (uint32_t)(uintptr_t)ending->id);
        st_object_u64(&o, "closed_tsc", ending->t_tsc);
        st_object_end(&o);
    }
    errno = saved;
}

/* The call, passed on, and recorded unless libibverbs makes it itself. */
#define ST_REGISTER(name, pd, call, ...)                                                           \
    struct st_verbs_context *context = st_verbs_context_of((pd)->context, ST_CALLER);              \
    struct st_verbs_library *library = context ? context->library : st_verbs_library(ST_CALLER);   \
    if (!library || !library->name) {                                                              \
        errno = ENOSYS;                                                                            \
        return NULL;                                                                               \
    }                                                                                              \
    st_verbs_inside++;                                                                             \
    struct ibv_mr *mr = library->name call;                                                        \
    st_verbs_inside--;                                                                             \
    if (mr && context && !st_verbs_inside)                                                         \
        registered(&(struct registration){.mr = mr, .access = (int)access, __VA_ARGS__}, context); \
    return mr;

ST_API struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    ST_REGISTER(ibv_reg_mr, pd, (pd, address, length, access), .address = (uintptr_t)address,
                .length = length, .dmabuf = -1)
}

ST_API struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length,
                                      uint64_t iova, int access)
{
    ST_REGISTER(ibv_reg_mr_iova, pd, (pd, address, length, iova, access),
                .address = (uintptr_t)address, .length = length, .iova = iova, .has_iova = true,
                .dmabuf = -1)
}

ST_API struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
                                       uint64_t iova, unsigned int access)
{
    ST_REGISTER(ibv_reg_mr_iova2, pd, (pd, address, length, iova, access),
                .address = (uintptr_t)address, .length = length, .iova = iova,
                .has_iova = iova != (uintptr_t)address, .dmabuf = -1)
}

ST_API struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access)
{
    ST_REGISTER(ibv_reg_dmabuf_mr, pd, (pd, offset, length, iova, fd, access), .address = iova,
                .length = length, .iova = iova, .has_iova = true, .dmabuf = fd)
}

struct ibv_mr *st_verbs_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
                                  size_t length, unsigned int access)
{
    struct st_verbs_context *context = st_verbs_find(ST_VERBS_HOT, pd->context);
    if (!context) {
        errno = ENOSYS;
        return NULL;
    }
    struct ibv_mr *mr = context->reg_dm_mr(pd, dm, offset, length, access);
    if (mr) /* of the device's own memory: addressed from 0 */
        registered(&(struct registration){.mr = mr, .address = 0, .length = length,
                                          .access = (int)access, .dmabuf = -1}, context);
    return mr;
}

ST_API int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address,
                        size_t length, int access)
{
    struct st_verbs_context *context = st_verbs_context_of(mr->context, ST_CALLER);
    struct st_verbs_library *library = context ? context->library : st_verbs_library(ST_CALLER);
    if (!library)
        return ENOSYS;
    struct ending before = ending(mr);
    st_verbs_inside++;
    int result = library->ibv_rereg_mr(mr, flags, pd, address, length, access);
    st_verbs_inside--;
    ended("memory", mr, &before, result);
    if (!result && context) /* it has other keys, or is elsewhere: a new object */
        registered(&(struct registration){.mr = mr, .address = (uintptr_t)mr->addr,
                                          .length = mr->length, .access = access, .dmabuf = -1},
                   context);
    return result;
}

ST_API int ibv_dereg_mr(struct ibv_mr *mr)
{
    struct st_verbs_library *library = st_verbs_library_of(mr->context, ST_CALLER);
    if (!library)
        return ENOSYS;
    struct ending before = ending(mr);
    int result = library->ibv_dereg_mr(mr);
    ended("memory", mr, &before, result);
    return result;
}

static void describe_ah(uint32_t id, struct ibv_ah_attr *attr, struct st_verbs_context *context)
{
    struct st_object o;
    union ibv_gid gid;
    st_object_begin(&o, "ib_ah", id);
    st_object_u64(&o, "device", context->device);
    st_object_u64(&o, "port", attr->port_num);
    int index = attr->is_global ? attr->grh.sgid_index : 0;
    if (!context->library->ibv_query_gid(context->handle, attr->port_num, index, &gid))
        st_object_bin(&o, "sgid", gid.raw, sizeof(gid.raw));
    if (attr->is_global)
        st_object_bin(&o, "dgid", attr->grh.dgid.raw, sizeof(attr->grh.dgid.raw));
    if (!attr->is_global || attr->dlid)
        st_object_u64(&o, "dlid", attr->dlid);
    st_object_end(&o);
}

ST_API struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct st_verbs_context *context = st_verbs_context_of(pd->context, ST_CALLER);
    struct st_verbs_library *library = context ? context->library : st_verbs_library(ST_CALLER);
    if (!library) {
        errno = ENOSYS;
        return NULL;
    }
    struct ibv_ah *ah = library->ibv_create_ah(pd, attr);
    if (ah && context) {
        int saved = errno;
        uint32_t id = st_object_id();
        describe_ah(id, attr, context);
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
    struct ending before = ending(ah);
    int result = library->ibv_destroy_ah(ah);
    ended("ib_ah", ah, &before, result);
    return result;
}
