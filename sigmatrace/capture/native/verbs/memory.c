/* Registered memory. */
#include "verbs.h"

struct registration {
    struct ibv_mr *mr;
    struct ibv_pd *pd;
    const char *kind; /* NULL: the process's own memory */
    uint64_t address, length, iova;
    int access, dmabuf; /* -1: not known; none */
    bool has_iova;
};

/* What a region's handle leads to: its object and, as a change need not name them, its rights. */
static void *pack(uint32_t id, int access)
{
    return (void *)(uintptr_t)((uint64_t)(uint32_t)access << 32 | id);
}

static int access_of(const void *packed)
{
    return (int)(uint32_t)((uintptr_t)packed >> 32);
}

static void registered(const struct registration *r, struct st_verbs_context *context)
{
    int saved = errno;
    struct st_object o;
    uint32_t id = st_object_id(), pd = st_verbs_pd(r->pd, context);
    st_object_begin(&o, "memory", id);
    st_object_str(&o, "layer", "verbs");
    if (r->kind)
        st_object_str(&o, "kind", r->kind);
    st_object_u64(&o, "device", context->device);
    st_object_u64(&o, "pd", pd);
    st_object_u64(&o, "address", r->address);
    st_object_u64(&o, "length_bytes", r->length);
    st_object_u64(&o, "key", r->mr->rkey);
    st_object_u64(&o, "lkey", r->mr->lkey);
    if (r->access >= 0)
        st_object_u64(&o, "access", (unsigned)r->access);
    if (r->has_iova)
        st_object_u64(&o, "iova", r->iova);
    if (r->dmabuf >= 0)
        st_object_u64(&o, "dmabuf_fd", (unsigned)r->dmabuf);
    st_object_end(&o);
    st_verbs_put(ST_VERBS_COLD, r->mr, pack(id, r->access));
    errno = saved;
}

/* The call, passed on and recorded. */
#define ST_REGISTER(name, call, ...)                                                               \
    ST_VERBS_ENTER(pd->context, name, NULL)                                                        \
    struct ibv_mr *mr = ST_VERBS_INSIDE(library->name call);                                       \
    if (mr && context)                                                                             \
        registered(&(struct registration){.mr = mr, .pd = pd, .access = (int)access, __VA_ARGS__}, \
                   context);                                                                       \
    return mr;

ST_API struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    ST_REGISTER(ibv_reg_mr, (pd, address, length, access), .address = (uintptr_t)address,
                .length = length, .dmabuf = -1)
}

ST_API struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length,
                                      uint64_t iova, int access)
{
    ST_REGISTER(ibv_reg_mr_iova, (pd, address, length, iova, access),
                .address = (uintptr_t)address, .length = length, .iova = iova, .has_iova = true,
                .dmabuf = -1)
}

ST_API struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
                                       uint64_t iova, unsigned int access)
{
    ST_REGISTER(ibv_reg_mr_iova2, (pd, address, length, iova, access),
                .address = (uintptr_t)address, .length = length, .iova = iova,
                .has_iova = iova != (uintptr_t)address, .dmabuf = -1)
}

ST_API struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access)
{
    ST_REGISTER(ibv_reg_dmabuf_mr, (pd, offset, length, iova, fd, access), .address = iova,
                .length = length, .iova = iova, .has_iova = true, .dmabuf = fd)
}

struct ibv_mr *st_verbs_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
                                  size_t length, unsigned int access)
{
    ST_VERBS_ENTER_TABLE(pd->context, NULL)
    struct ibv_mr *mr = ST_VERBS_INSIDE(context->reg_dm_mr(pd, dm, offset, length, access));
    if (mr) /* addressed from 0 */
        registered(&(struct registration){.mr = mr, .pd = pd, .kind = "device", .length = length,
                                          .access = (int)access, .dmabuf = -1}, context);
    return mr;
}

/* Of no memory: reads give zeros, writes go nowhere. */
struct ibv_mr *st_verbs_alloc_null_mr(struct ibv_pd *pd)
{
    ST_VERBS_ENTER_TABLE(pd->context, NULL)
    struct ibv_mr *mr = ST_VERBS_INSIDE(context->alloc_null_mr(pd));
    if (mr)
        registered(&(struct registration){.mr = mr, .pd = pd, .kind = "null", .dmabuf = -1},
                   context);
    return mr;
}

/* It stays where it was: the same object, with what may have changed. */
static void changed(struct ibv_mr *mr, const struct st_verbs_ending *same, int access,
                    struct st_verbs_context *context)
{
    int saved = errno;
    struct st_object o;
    uint32_t id = (uint32_t)(uintptr_t)same->id, pd = st_verbs_pd(mr->pd, context);
    st_object_begin(&o, "memory", id);
    st_object_u64(&o, "pd", pd);
    st_object_u64(&o, "key", mr->rkey);
    st_object_u64(&o, "lkey", mr->lkey);
    if (access >= 0)
        st_object_u64(&o, "access", (unsigned)access);
    st_object_end(&o);
    st_verbs_put(ST_VERBS_COLD, mr, pack(id, access));
    errno = saved;
}

/* Errors that leave the region as it was; with IBV_REREG_MR_ERR_DO_FORK_OLD it is the new one, with
 * others it is none. */
static bool is_unchanged(int result)
{
    return result == IBV_REREG_MR_ERR_INPUT || result == IBV_REREG_MR_ERR_DONT_FORK_NEW;
}

ST_API int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address,
                        size_t length, int access)
{
    ST_VERBS_ENTER(mr->context, ibv_rereg_mr, ENOSYS)
    struct st_verbs_ending before = st_verbs_ending(mr);
    int result = ST_VERBS_INSIDE(library->ibv_rereg_mr(mr, flags, pd, address, length, access));
    bool good = !result || result == IBV_REREG_MR_ERR_DO_FORK_OLD;
    if (is_unchanged(result))
        return result;
    if (!(flags & IBV_REREG_MR_CHANGE_ACCESS))
        access = before.id ? access_of(before.id) : -1;
    if (good && before.id && context && !(flags & IBV_REREG_MR_CHANGE_TRANSLATION)) {
        changed(mr, &before, access, context);
        return result;
    }
    st_verbs_ended("memory", mr, &before, 0);
    if (good && context) /* elsewhere: a new object; the keys reach it by its address */
        registered(&(struct registration){.mr = mr, .pd = mr->pd, .address = (uintptr_t)mr->addr,
                                          .length = mr->length, .access = access, .dmabuf = -1},
                   context);
    return result;
}

ST_API int ibv_dereg_mr(struct ibv_mr *mr)
{
    struct st_verbs_library *library = st_verbs_library_of(mr->context, ST_CALLER);
    if (!library)
        return ENOSYS;
    struct st_verbs_ending before = st_verbs_ending(mr);
    int result = library->ibv_dereg_mr(mr);
    st_verbs_ended("memory", mr, &before, result);
    return result;
}
