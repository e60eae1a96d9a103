/* Queue pairs of DC that libmlx5 makes. That one is an initiator (DCI) is told here alone. A target
 * (DCT) has no send queue: what counts is its number, which the address vectors of its peers name.
 *
 * libmlx5 knows that number when libibverbs' ibv_modify_qp has made the target ready. Where that call
 * is not seen (another shim's wrapper stands before ours), it is looked up with the next ones that
 * are, at last when the process ends: by the kernel, as the target may have been destroyed. */
#define _GNU_SOURCE
#include "hooks.h"

#define DC_QPS 4096u

struct dc {
    uint32_t slot;
    uint32_t object;   /* of a target */
    uint32_t numbered; /* a target: its number is told */
    bool is_target;
    const struct ibv_qp *handle;
    const struct ibv_context *context;
};

static struct dc all[DC_QPS];
static uint32_t used;    /* those beyond have never been */
static uint32_t pending; /* targets whose number is not told */

#define EACH_DC(d)                                                                                 \
    (struct dc *d = all; d < all + __atomic_load_n(&used, __ATOMIC_ACQUIRE); d++)                  \
        if (st_slot_is(&d->slot, ST_SLOT_READY))

/* False: it is no more, or cannot be read. */
static bool read(const struct dc *dc, struct ibv_qp *qp)
{
    return st_peek(qp, (uintptr_t)dc->handle, sizeof(*qp)) && qp->context == dc->context &&
           qp->qp_type == IBV_QPT_DRIVER;
}

static void number(struct dc *dc)
{
    struct ibv_qp qp;
    for (int i = 0; i < 2; i++) /* the state comes after the number: once it is seen, both are there */
        if (!read(dc, &qp) || qp.state != IBV_QPS_RTR)
            return;
    if (__atomic_exchange_n(&dc->numbered, 1, __ATOMIC_ACQ_REL))
        return;
    __atomic_sub_fetch(&pending, 1, __ATOMIC_RELAXED);
    struct st_object o;
    st_object_begin(&o, "mlx5_qp", dc->object);
    st_object_u64(&o, "qpn", qp.qp_num);
    st_object_str(&o, "state", "rtr");
    st_object_end(&o);
}

void st_dc_look(void)
{
    if (!__atomic_load_n(&pending, __ATOMIC_ACQUIRE))
        return;
    for EACH_DC(dc)
        if (dc->is_target && !__atomic_load_n(&dc->numbered, __ATOMIC_ACQUIRE))
            number(dc);
}

static void forked(void)
{
    pending = 0; /* they are the parent's */
    for EACH_DC(dc)
        dc->numbered = 1;
}

__attribute__((constructor)) static void start(void)
{
    if (st_layer_on(ST_LAYER_MLX5DV))
        st_on_child(forked);
}

static void count_unnamed(void)
{
    st_lost("gpu: DC target whose number was never seen", 1);
}

/* Those that never became ready have none. */
__attribute__((destructor)) static void end(void)
{
    struct ibv_qp qp;
    st_dc_look();
    if (!__atomic_load_n(&pending, __ATOMIC_RELAXED))
        return;
    for EACH_DC(dc)
        if (dc->is_target && !dc->numbered && !read(dc, &qp))
            count_unnamed();
}

bool st_dc_is_initiator(const struct ibv_qp *qp)
{
    for EACH_DC(dc)
        if (dc->handle == qp)
            return !dc->is_target;
    return false;
}

void st_dc_forget(const struct ibv_qp *qp, bool looked)
{
    for EACH_DC(dc) {
        if (dc->handle != qp || !st_slot_swap(&dc->slot, ST_SLOT_READY, ST_SLOT_ENDING))
            continue;
        if (dc->is_target)
            st_object_closed("mlx5_qp", dc->object, st_now());
        if (dc->is_target && !dc->numbered) {
            __atomic_sub_fetch(&pending, 1, __ATOMIC_RELAXED);
            if (!looked)
                count_unnamed();
        }
        st_slot_set(&dc->slot, ST_SLOT_FREE);
    }
}

static void describe(const struct dc *dc, const struct st_port *port, uint64_t key)
{
    struct st_object o;
    st_object_begin(&o, "mlx5_qp", dc->object);
    st_object_str(&o, "qp_type", "dct");
    st_object_str(&o, "state", "reset");
    if (key)
        st_object_u64(&o, "dc_access_key", key);
    st_port_put(&o, port); /* now: the device may be closed when the number is known */
    st_gpu_qp_totals_put(&o, &(struct st_gpu_qp_totals){0});
    st_object_end(&o);
}

static void created(const struct ibv_qp *qp, struct ibv_context *context,
                    struct st_mlx5_library *library, const struct mlx5dv_dc_init_attr *how)
{
    st_dc_forget(qp, false); /* a former one, whose end was not seen */
    struct dc *dc = st_slot_claim(all, DC_QPS, sizeof(all[0]), &used);
    if (!dc)
        return;
    dc->handle = qp;
    dc->context = context;
    dc->is_target = how->dc_type == MLX5DV_DCTYPE_DCT;
    if (dc->is_target) {
        struct st_port port = st_port_only(context, library);
        dc->object = st_object_id();
        describe(dc, &port, how->dct_access_key);
        __atomic_add_fetch(&pending, 1, __ATOMIC_RELEASE);
    }
    st_slot_set(&dc->slot, ST_SLOT_READY);
}

ST_API struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context,
                                       struct ibv_qp_init_attr_ex *attr,
                                       struct mlx5dv_qp_init_attr *more)
{
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_create_qp) {
        errno = ENOSYS;
        return NULL;
    }
    st_mlx5_inside++;
    struct ibv_qp *qp = library->mlx5dv_create_qp(context, attr, more);
    st_mlx5_inside--;
    if (!qp || !st_mlx5dv_on || st_mlx5_inside || !more ||
        !(more->comp_mask & MLX5DV_QP_INIT_ATTR_MASK_DC))
        return qp;
    int saved = errno;
    st_mlx5_seen(library);
    st_dc_look();
    created(qp, context, library, &more->dc_init_attr);
    errno = saved;
    return qp;
}
