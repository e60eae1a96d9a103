/* libmlx5.so.1 of the emulated device. */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#include "nic.h"
#include "verbs_objects.h"

enum { BF_BYTES = 0x100 };

struct mlx5dv_devx_obj {
    enum nic_kind kind;
    uint32_t number;
};

NIC_API bool mlx5dv_is_supported(struct ibv_device *device)
{
    return !strncmp(device->name, "mlx5", 4);
}

NIC_API int mlx5dv_query_device(struct ibv_context *context, struct mlx5dv_context *attributes)
{
    (void)context;
    attributes->version = 0;
    attributes->flags = 0;
    attributes->comp_mask = 0;
    return 0;
}

NIC_API struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags)
{
    struct mlx5dv_devx_uar *uar = calloc(1, sizeof(*uar));
    (void)context;
    if (!uar)
        return NULL;
    uar->reg_addr = nic_uar_add(flags, &uar->page_id);
    if (!uar->reg_addr) {
        free(uar);
        return NULL;
    }
    uar->base_addr = (void *)((uintptr_t)uar->reg_addr & ~(uintptr_t)(NIC_PAGE - 1));
    uar->mmap_off = (off_t)uar->page_id * NIC_PAGE;
    return uar;
}

NIC_API void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *uar)
{
    nic_uar_remove(uar->reg_addr);
    free(uar);
}

static struct mlx5dv_devx_umem *umem_make(void *at, uint64_t size, int fd)
{
    struct mlx5dv_devx_umem *umem = calloc(1, sizeof(*umem));
    if (!umem)
        return NULL;
    /* Of a dmabuf, the address is the offset in it. */
    umem->umem_id = fd < 0 ? nic_umem_add(at, size, -1, 0)
                           : nic_umem_add(NULL, size, fd, (uint64_t)(uintptr_t)at);
    if (!umem->umem_id) {
        free(umem);
        return NULL;
    }
    return umem;
}

NIC_API struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *at,
                                                      size_t size, uint32_t access)
{
    (void)context;
    (void)access;
    return umem_make(at, size, -1);
}

NIC_API struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *context,
                                                         struct mlx5dv_devx_umem_in *in)
{
    (void)context;
    return umem_make(in->addr, in->size,
                     in->comp_mask & MLX5DV_UMEM_MASK_DMABUF ? in->dmabuf_fd : -1);
}

NIC_API int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem)
{
    nic_umem_remove(umem->umem_id);
    free(umem);
    return 0;
}

NIC_API struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in,
                                                       size_t in_size, void *out, size_t out_size)
{
    struct mlx5dv_devx_obj *object = calloc(1, sizeof(*object));
    (void)context;
    if (!object)
        return NULL;
    if (!nic_command(in, in_size, out, out_size, &object->kind, &object->number)) {
        free(object);
        return NULL;
    }
    return object;
}

static int command(const void *in, size_t in_size, void *out, size_t out_size)
{
    enum nic_kind kind;
    uint32_t number;
    return nic_command(in, in_size, out, out_size, &kind, &number) ? 0 : errno;
}

NIC_API int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *object, const void *in, size_t in_size,
                                   void *out, size_t out_size)
{
    (void)object;
    return command(in, in_size, out, out_size);
}

NIC_API int mlx5dv_devx_obj_query(struct mlx5dv_devx_obj *object, const void *in, size_t in_size,
                                  void *out, size_t out_size)
{
    (void)object;
    return command(in, in_size, out, out_size);
}

NIC_API int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *object)
{
    nic_object_destroy(object->kind, object->number);
    free(object);
    return 0;
}

NIC_API int mlx5dv_devx_general_cmd(struct ibv_context *context, const void *in, size_t in_size,
                                    void *out, size_t out_size)
{
    (void)context;
    return command(in, in_size, out, out_size);
}

NIC_API int mlx5dv_devx_query_eqn(struct ibv_context *context, uint32_t vector, uint32_t *eqn)
{
    (void)context;
    *eqn = vector;
    return vector ? EINVAL : 0;
}

/* Of the driver's queue pairs, the DC targets and the DC initiators. */
NIC_API struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context,
                                        struct ibv_qp_init_attr_ex *attr,
                                        struct mlx5dv_qp_init_attr *driver)
{
    bool is_dc = attr->qp_type == IBV_QPT_DRIVER && driver &&
                 driver->comp_mask & MLX5DV_QP_INIT_ATTR_MASK_DC;
    bool is_dct = is_dc && driver->dc_init_attr.dc_type == MLX5DV_DCTYPE_DCT;
    struct nic_verbs_qp *qp = is_dc ? calloc(1, sizeof(*qp)) : NULL;
    if (!qp) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    qp->qp = (struct ibv_qp){.context = context, .qp_context = attr->qp_context, .pd = attr->pd,
                             .send_cq = attr->send_cq, .recv_cq = attr->recv_cq,
                             .srq = attr->srq, .qp_type = IBV_QPT_DRIVER,
                             .state = IBV_QPS_RESET};
    qp->is_dct = is_dct;
    qp->dct_key = driver->dc_init_attr.dct_access_key;
    bool good = is_dct ? attr->srq && attr->recv_cq
                       : nic_verbs_queues_make(qp, attr->send_cq, attr->recv_cq,
                                               attr->cap.max_send_wr, true);
    if (!good) {
        free(qp);
        errno = EINVAL;
        return NULL;
    }
    return &qp->qp;
}

static void qp_describe(const struct nic_verbs_qp *qp, struct mlx5dv_qp *out)
{
    uint64_t mask = out->comp_mask & MLX5DV_QP_MASK_UAR_MMAP_OFFSET;
    *out = (struct mlx5dv_qp){.dbrec = (void *)(qp->buffer + qp->record_at),
                              .sq = {qp->buffer + qp->sq_at, qp->sq_slots, NIC_SLOT},
                              .bf = {qp->register_at, BF_BYTES},
                              .comp_mask = mask};
}

static void ah_describe(const struct nic_ah *ah, struct mlx5_wqe_av *av)
{
    memset(av, 0, sizeof(*av));
    av->stat_rate_sl = ah->attr.sl;
    av->fl_mlid = ah->attr.src_path_bits & 0x7f;
    av->rlid = htobe16(ah->attr.dlid);
    if (ah->attr.is_global) {
        av->hop_limit = ah->attr.grh.hop_limit;
        av->tclass = ah->attr.grh.traffic_class;
        av->grh_gid_fl = htobe32(1u << 30 | ah->attr.grh.flow_label);
        memcpy(av->rgid, ah->attr.grh.dgid.raw, sizeof(av->rgid));
    }
}

NIC_API int mlx5dv_init_obj(struct mlx5dv_obj *object, uint64_t types)
{
    if (types & ~(uint64_t)(MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ | MLX5DV_OBJ_AH |
                            MLX5DV_OBJ_PD))
        return EOPNOTSUPP;
    if (types & MLX5DV_OBJ_PD)
        *object->pd.out = (struct mlx5dv_pd){.pdn = object->pd.in->handle};
    if (types & MLX5DV_OBJ_QP)
        qp_describe((void *)object->qp.in, object->qp.out);
    if (types & MLX5DV_OBJ_CQ) {
        struct nic_verbs_cq *cq = (void *)object->cq.in;
        *object->cq.out = (struct mlx5dv_cq){.buf = cq->buffer, .cqe_cnt = cq->entries,
                                             .cqe_size = NIC_SLOT, .cqn = cq->cqn};
    }
    if (types & MLX5DV_OBJ_SRQ)
        object->srq.out->srqn = ((struct nic_verbs_srq *)(void *)object->srq.in)->srqn;
    if (types & MLX5DV_OBJ_AH) {
        static _Thread_local struct mlx5_wqe_av vectors[64];
        static _Thread_local unsigned next;
        struct mlx5_wqe_av *av = &vectors[next++ % 64];
        ah_describe((void *)object->ah.in, av);
        *object->ah.out = (struct mlx5dv_ah){.av = av};
    }
    return 0;
}

/* The real library keeps the first one, too. */
NIC_API int init_obj_of_old(struct mlx5dv_obj *object, uint64_t types)
{
    return mlx5dv_init_obj(object, types);
}
__asm__(".symver init_obj_of_old, mlx5dv_init_obj@MLX5_1.0");
