/* Memory that the NIC may read and write: where rings, doorbell records and completion queues are. */
#define _GNU_SOURCE
#include "hooks.h"

#define UMEMS (1u << 14)

static struct st_umem umems[UMEMS];
static uint32_t used; /* those beyond have never been */

#define EACH_UMEM(u)                                                                               \
    (struct st_umem *u = umems; u < umems + __atomic_load_n(&used, __ATOMIC_ACQUIRE); u++)         \
        if (st_slot_is(&u->slot, ST_SLOT_READY))

const struct st_umem *st_umem_of(const struct ibv_context *context, uint32_t id)
{
    for EACH_UMEM(umem)
        if (umem->id == id && umem->context == context)
            return umem;
    return NULL;
}

static void describe(const struct st_umem *umem, uint32_t access, int fd)
{
    struct st_object o;
    struct st_cuda_memory memory;
    st_object_begin(&o, "mlx5_umem", umem->object);
    st_object_u64(&o, "umem_id", umem->id);
    st_object_u64(&o, "address", umem->address);
    st_object_u64(&o, "size_bytes", umem->size_bytes);
    st_object_u64(&o, "access", access);
    if (fd >= 0)
        st_object_u64(&o, "dmabuf_fd", (uint32_t)fd);
    if (umem->address && st_cuda_memory(umem->address, &memory) && memory.device)
        st_object_u64(&o, "gpu", memory.gpu);
    st_object_end(&o);
}

static void registered(const struct mlx5dv_devx_umem *handle, const struct ibv_context *context,
                       const struct mlx5dv_devx_umem_in *in)
{
    int saved = errno;
    struct st_umem *umem = st_slot_claim(umems, UMEMS, sizeof(umems[0]), &used);
    if (umem) {
        bool dmabuf = in->comp_mask & MLX5DV_UMEM_MASK_DMABUF;
        uint64_t base = 0, size_bytes = 0;
        umem->object = st_object_id();
        umem->id = handle->umem_id;
        umem->context = context;
        umem->handle = handle;
        umem->size_bytes = in->size;
        /* Of a dmabuf, the address is the offset in it. */
        if (!dmabuf)
            umem->address = (uintptr_t)in->addr;
        else if (st_cuda_dmabuf(in->dmabuf_fd, &base, &size_bytes))
            umem->address = base + (uintptr_t)in->addr;
        describe(umem, in->access, dmabuf ? in->dmabuf_fd : -1);
        if (umem->address && st_cuda_on)
            st_source_prepare(umem->address);
        st_slot_set(&umem->slot, ST_SLOT_READY);
    }
    errno = saved;
}

ST_API struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *addr,
                                                     size_t size, uint32_t access)
{
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_devx_umem_reg) {
        errno = ENOSYS;
        return NULL;
    }
    if (st_mlx5dv_on && !st_mlx5_inside)
        st_mlx5_seen(library);
    st_mlx5_inside++;
    struct mlx5dv_devx_umem *umem = library->mlx5dv_devx_umem_reg(context, addr, size, access);
    st_mlx5_inside--;
    if (umem && st_mlx5dv_on && !st_mlx5_inside)
        registered(umem, context,
                   &(struct mlx5dv_devx_umem_in){.addr = addr, .size = size, .access = access});
    return umem;
}

ST_API struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *context,
                                                        struct mlx5dv_devx_umem_in *in)
{
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_devx_umem_reg_ex) {
        errno = ENOSYS;
        return NULL;
    }
    if (st_mlx5dv_on && !st_mlx5_inside)
        st_mlx5_seen(library);
    st_mlx5_inside++;
    struct mlx5dv_devx_umem *umem = library->mlx5dv_devx_umem_reg_ex(context, in);
    st_mlx5_inside--;
    if (umem && st_mlx5dv_on && !st_mlx5_inside)
        registered(umem, context, in);
    return umem;
}

static struct st_umem *take(const struct mlx5dv_devx_umem *handle)
{
    for EACH_UMEM(umem)
        if (umem->handle == handle &&
            st_slot_swap(&umem->slot, ST_SLOT_READY, ST_SLOT_ENDING))
            return umem;
    return NULL;
}

void st_umems_close(const struct ibv_context *context)
{
    for EACH_UMEM(umem) {
        if (umem->context != context || !st_slot_swap(&umem->slot, ST_SLOT_READY, ST_SLOT_ENDING))
            continue;
        st_object_closed("mlx5_umem", umem->object, st_now());
        st_slot_set(&umem->slot, ST_SLOT_FREE);
    }
}

ST_API int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *handle)
{
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_devx_umem_dereg)
        return ENOSYS;
    /* Before the call: the handle may come again at once. */
    struct st_umem *umem = st_mlx5_inside ? NULL : take(handle);
    uint64_t t_tsc = st_now();
    st_mlx5_inside++;
    int result = library->mlx5dv_devx_umem_dereg(handle);
    st_mlx5_inside--;
    int saved = errno;
    if (umem && !result)
        st_object_closed("mlx5_umem", umem->object, t_tsc);
    if (umem)
        st_slot_set(&umem->slot, result ? ST_SLOT_READY : ST_SLOT_FREE);
    errno = saved;
    return result;
}
