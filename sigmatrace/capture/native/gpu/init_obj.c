/* What libmlx5 tells of queue pairs that it made itself: their register gets a shadow, their ring
 * and their doorbell record are read.
 *
 * Both are libmlx5's own, which frees them in ibv_destroy_qp. Where that is not seen (another shim's
 * wrapper stands before ours), the copier, which reads by the kernel or the driver, is told no, or
 * finds what took their place, and that does not pass for a slot of this queue pair. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "hooks.h"

#define QPS 4096u

struct st_made_qp {
    uint32_t slot;
    uint32_t qpn, object;
    const void *shadow;
    const struct ibv_qp *handle;
    const struct ibv_context *context;
    const void *sq, *dbrec;
    pid_t home; /* a forked child has no part in what its parent's did */
    struct st_gpu_qp_new followed;
    struct st_gpu_qp_totals totals;
};

static struct st_made_qp all[QPS];
static uint32_t used; /* those beyond have never been */

static const char *type_name(const struct ibv_qp *qp)
{
    switch (qp->qp_type) {
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
        return st_dc_is_initiator(qp) ? "dci" : "other";
    }
}

static bool has_av(const struct ibv_qp *qp)
{
    return qp->qp_type == IBV_QPT_UD || st_dc_is_initiator(qp);
}

/* Others' WQEs have segments of their own. */
static bool decodes(const struct ibv_qp *qp, const struct mlx5dv_qp *told)
{
    return (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_UC || has_av(qp)) &&
           told->sq.stride == ST_GPU_SLOT_BYTES;
}

static struct st_made_qp *find(const void *shadow, uint32_t qpn)
{
    for (uint32_t i = 0; i < __atomic_load_n(&used, __ATOMIC_ACQUIRE); i++)
        if (st_slot_is(&all[i].slot, ST_SLOT_READY) && all[i].qpn == qpn &&
            all[i].shadow == shadow)
            return &all[i];
    return NULL;
}

static void describe(const struct st_made_qp *made, const struct st_uar *uar, const struct ibv_qp *qp,
                     const struct mlx5dv_qp *told)
{
    struct st_object o;
    struct st_port port = {qp->context, uar->library, 0};
    if (has_av(qp))
        port = st_port_only(qp->context, uar->library);
    st_object_begin(&o, "mlx5_qp", made->object);
    st_object_u64(&o, "qpn", made->qpn);
    st_object_str(&o, "qp_type", type_name(qp));
    st_object_u64(&o, "uar", uar->object);
    if (told->sq.wqe_cnt)
        st_object_u64(&o, "log_sq_size", (uint32_t)__builtin_ctz(told->sq.wqe_cnt));
    st_port_put(&o, &port);
    st_object_end(&o);
}

/* Such a register may be many queue pairs': the records tell what was overwritten before it was
 * seen. */
static void follow(struct st_made_qp *made, const struct st_uar *uar, const struct ibv_qp *qp,
                   const struct mlx5dv_qp *told)
{
    struct st_gpu_qp_new new = {.qpn = made->qpn,
                                .object = made->object,
                                .shadow = made->shadow,
                                .dbrec = told->dbrec ? (uintptr_t)&told->dbrec[MLX5_SND_DBR] : 0,
                                .doorbells_only = !decodes(qp, told),
                                .has_av = has_av(qp)};
    if (told->sq.stride == ST_GPU_SLOT_BYTES) {
        new.sq = (uintptr_t)told->sq.buf;
        new.sq_slots = told->sq.wqe_cnt;
    }
    if (new.has_av) {
        struct st_port port = st_port_only(qp->context, uar->library);
        st_port_prefix(&port, new.prefix);
    }
    made->followed = new;
    if (!st_gpu_qp_add(&new))
        st_lost("gpu: queue pair whose doorbells are not followed", 1);
}

static void leave(struct st_made_qp *made)
{
    struct st_gpu_qp_totals totals;
    st_gpu_qp_remove(made->shadow, made->qpn, &totals);
    st_qp_totals_add(&made->totals, &totals);
}

static void learn(struct st_made_qp *made, const struct st_uar *uar, const struct ibv_qp *qp,
                  const struct mlx5dv_qp *told)
{
    made->object = st_object_id();
    memset(&made->totals, 0, sizeof(made->totals));
    made->home = getpid();
    made->context = qp->context;
    made->handle = qp;
    made->sq = told->sq.buf;
    made->dbrec = told->dbrec;
    describe(made, uar, qp, told);
}

static void tell_end(const struct st_made_qp *made, uint64_t t_tsc)
{
    struct st_object o;
    if (made->home != getpid())
        return;
    st_object_begin(&o, "mlx5_qp", made->object);
    st_gpu_qp_totals_put(&o, &made->totals);
    st_object_u64(&o, "closed_tsc", t_tsc);
    st_object_end(&o);
}

/* Nothing was posted since it was made: not known (false) where the record is a GPU's. */
static bool is_fresh(const struct mlx5dv_qp *told)
{
    uint32_t index = 1;
    return told->dbrec && st_peek(&index, (uintptr_t)&told->dbrec[MLX5_SND_DBR], sizeof(index)) && !index;
}

/* Asked once more, or another queue pair to which the number was given again; all else may be equal
 * then, but its record begins anew. */
static void look_again(struct st_made_qp *made, const struct st_uar *uar, const struct ibv_qp *qp,
                       const struct mlx5dv_qp *told)
{
    bool same = made->handle == qp && made->sq == told->sq.buf && made->dbrec == told->dbrec;
    if (same && !is_fresh(told))
        return;
    leave(made);
    if (!same || made->totals.doorbells) {
        tell_end(made, st_now());
        learn(made, uar, qp, told);
    }
    follow(made, uar, qp, told);
}

static void met(const struct st_uar *uar, const struct ibv_qp *qp, const struct mlx5dv_qp *told)
{
    struct st_made_qp *made = find(uar->shadow, qp->qp_num);
    if (made) {
        look_again(made, uar, qp, told);
        return;
    }
    made = st_slot_claim(all, QPS, sizeof(all[0]), &used);
    if (!made)
        return;
    made->qpn = qp->qp_num;
    made->shadow = uar->shadow;
    learn(made, uar, qp, told);
    follow(made, uar, qp, told);
    st_slot_set(&made->slot, ST_SLOT_READY);
}

struct st_made_qp *st_made_qp_leave(const struct ibv_qp *qp)
{
    for (uint32_t i = 0; i < __atomic_load_n(&used, __ATOMIC_ACQUIRE); i++) {
        struct st_made_qp *made = &all[i];
        if (!st_slot_is(&made->slot, ST_SLOT_READY) || made->handle != qp ||
            made->qpn != qp->qp_num ||
            !st_slot_swap(&made->slot, ST_SLOT_READY, ST_SLOT_ENDING))
            continue;
        leave(made);
        return made;
    }
    return NULL;
}

void st_made_qps_close(const struct ibv_context *context)
{
    for (uint32_t i = 0; i < __atomic_load_n(&used, __ATOMIC_ACQUIRE); i++) {
        struct st_made_qp *made = &all[i];
        if (!st_slot_is(&made->slot, ST_SLOT_READY) || made->context != context ||
            !st_slot_swap(&made->slot, ST_SLOT_READY, ST_SLOT_ENDING))
            continue;
        leave(made);
        st_made_qp_destroyed(made, st_now());
    }
}

void st_made_qp_destroyed(struct st_made_qp *made, uint64_t t_tsc)
{
    if (t_tsc) {
        tell_end(made, t_tsc);
    } else {
        made->followed.first = made->totals.slots;
        if (!st_gpu_qp_add(&made->followed))
            st_lost("gpu: queue pair whose doorbells are not followed", 1);
    }
    st_slot_set(&made->slot, t_tsc ? ST_SLOT_FREE : ST_SLOT_READY);
}

static void replace(const struct ibv_qp *qp, struct mlx5dv_qp *told,
                    struct st_mlx5_library *library)
{
    int saved = errno;
    struct st_uar *uar =
        told->bf.reg ? st_uar_of_register(qp->context, library, told->bf.reg) : NULL;
    /* Another thread may free it, and the state be another one's. */
    struct st_uar here = {0};
    if (uar)
        here = *uar;
    if (here.shadow && st_uar_is(&(struct st_uar_guess){.uar = uar, .serial = here.serial})) {
        told->bf.reg = here.shadow;
        met(&here, qp, told);
    } else if (here.shadow) {
        st_lost("gpu: queue pair whose doorbells are not followed", 1);
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
        st_dc_look();
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
