/* What libmlx5 tells of objects that it made itself: the register of a queue pair gets a shadow.
 *
 * Of such a queue pair doorbells alone are recorded: its ring belongs to libmlx5, which frees it
 * when the queue pair is destroyed, by a function of libibverbs that is not seen here. */
#define _GNU_SOURCE
#include <string.h>

#include "hooks.h"

#define PAIRS 4096u

struct pair {
    uint32_t slot;
    uint32_t qpn, object;
    const void *shadow;
    const struct ibv_qp *handle;
};

static struct pair pairs[PAIRS];
static uint32_t used; /* those beyond have never been */

static const char *type_name(enum ibv_qp_type type)
{
    switch (type) {
    case IBV_QPT_RC:
        return "rc";
    case IBV_QPT_UC:
        return "uc";
    case IBV_QPT_UD:
        return "ud";
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
        return "xrc";
    default:
        return "other";
    }
}

static struct pair *find(const void *shadow, uint32_t qpn)
{
    for (uint32_t i = 0; i < __atomic_load_n(&used, __ATOMIC_ACQUIRE); i++)
        if (st_slot_is(&pairs[i].slot, ST_SLOT_READY) && pairs[i].qpn == qpn &&
            pairs[i].shadow == shadow)
            return &pairs[i];
    return NULL;
}

static void describe(const struct pair *pair, const struct st_uar *uar, const struct ibv_qp *qp,
                     const struct mlx5dv_qp *told)
{
    struct st_object o;
    st_object_begin(&o, "mlx5_qp", pair->object);
    st_object_u64(&o, "qpn", pair->qpn);
    st_object_str(&o, "qp_type", type_name(qp->qp_type));
    st_object_u64(&o, "uar", uar->object);
    if (told->sq.wqe_cnt)
        st_object_u64(&o, "log_sq_size", (uint32_t)__builtin_ctz(told->sq.wqe_cnt));
    st_object_end(&o);
}

static void describe_new(struct pair *pair, const struct st_uar *uar, const struct ibv_qp *qp,
                         const struct mlx5dv_qp *told)
{
    pair->object = st_object_id();
    pair->handle = qp;
    describe(pair, uar, qp, told);
}

/* Such a register may be many queue pairs': the records tell what was overwritten before it was
 * seen. They are read by the kernel, which says no once libmlx5 has freed them. */
static void follow(const struct pair *pair, const struct mlx5dv_qp *told)
{
    uint64_t dbrec = told->dbrec ? (uintptr_t)&told->dbrec[MLX5_SND_DBR] : 0;
    st_gpu_qp_add(&(struct st_gpu_qp_new){
        .qpn = pair->qpn, .object = pair->object, .shadow = pair->shadow, .dbrec = dbrec});
}

/* Asked once more, or another queue pair to which the number was given again. */
static void look_again(struct pair *pair, const struct st_uar *uar, const struct ibv_qp *qp,
                       const struct mlx5dv_qp *told)
{
    struct st_gpu_qp_totals totals;
    uint32_t former = pair->object;
    if (pair->handle == qp)
        return;
    describe_new(pair, uar, qp, told);
    st_gpu_qp_remove(pair->shadow, pair->qpn, &totals);
    st_object_closed("mlx5_qp", former);
    follow(pair, told);
}

static void met(const struct st_uar *uar, const struct ibv_qp *qp, const struct mlx5dv_qp *told)
{
    struct pair *pair = find(uar->shadow, qp->qp_num);
    if (pair) {
        look_again(pair, uar, qp, told);
        return;
    }
    pair = st_slot_claim(pairs, PAIRS, sizeof(pairs[0]), &used);
    if (!pair)
        return;
    pair->qpn = qp->qp_num;
    pair->shadow = uar->shadow;
    describe_new(pair, uar, qp, told);
    follow(pair, told);
    st_slot_set(&pair->slot, ST_SLOT_READY);
}

static void replace(const struct ibv_qp *qp, struct mlx5dv_qp *told,
                    struct st_mlx5_library *library)
{
    int saved = errno;
    struct st_uar *uar =
        told->bf.reg ? st_uar_of_register(qp->context, library, told->bf.reg) : NULL;
    if (uar && uar->shadow) {
        told->bf.reg = uar->shadow;
        met(uar, qp, told);
    }
    errno = saved;
}

static int init(struct st_mlx5_library *library, __typeof__(mlx5dv_init_obj) *real,
                struct mlx5dv_obj *object, uint64_t types)
{
    if (!real)
        return ENOSYS;
    st_mlx5_inside++;
    int result = real(object, types);
    st_mlx5_inside--;
    if (!result && types & MLX5DV_OBJ_QP && st_mlx5dv_on && !st_mlx5_inside) {
        st_mlx5_seen(library);
        replace(object->qp.in, object->qp.out, library);
    }
    return result;
}

ST_API int mlx5dv_init_obj(struct mlx5dv_obj *object, uint64_t types)
{
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    return init(library, library ? library->mlx5dv_init_obj : NULL, object, types);
}

/* Of programs that were linked long ago. */
ST_API int st_init_obj_1_0(struct mlx5dv_obj *object, uint64_t types)
{
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    __typeof__(mlx5dv_init_obj) *real = library ? library->init_obj_1_0 : NULL;
    return init(library, real ? real : library ? library->mlx5dv_init_obj : NULL, object, types);
}
__asm__(".symver st_init_obj_1_0, mlx5dv_init_obj@MLX5_1.0");
