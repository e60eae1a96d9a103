/* Objects that the program makes by commands to the firmware: queue pairs and completion queues.
 * Others pass. */
#define _GNU_SOURCE
#include "hooks.h"
#include "mailbox.h"

#define OBJECTS (1u << 14)

struct made {
    uint32_t slot;
    bool is_cq;
    const struct mlx5dv_devx_obj *handle;
    const struct ibv_context *context;
    struct st_mlx5_library *library;
    struct st_devx_qp qp;
    struct st_devx_cq cq;
};

static struct made all[OBJECTS];
static uint32_t used; /* those beyond have never been */

static struct made *find(const struct mlx5dv_devx_obj *handle)
{
    for (uint32_t i = 0; i < __atomic_load_n(&used, __ATOMIC_ACQUIRE); i++)
        if (st_slot_is(&all[i].slot, ST_SLOT_READY) && all[i].handle == handle)
            return &all[i];
    return NULL;
}

static struct made *claim(const struct mlx5dv_devx_obj *handle, struct st_mlx5_library *library)
{
    struct made *made = st_slot_claim(all, OBJECTS, sizeof(all[0]), &used);
    if (!made)
        return NULL;
    made->handle = handle;
    made->library = library;
    return made;
}

static void leave(struct made *made)
{
    if (made->is_cq)
        st_devx_cq_leave(&made->cq);
    else
        st_devx_qp_leave(&made->qp);
}

static void destroyed(struct made *made, uint64_t t_tsc)
{
    if (made->is_cq)
        st_devx_cq_destroyed(&made->cq, t_tsc);
    else
        st_devx_qp_destroyed(&made->qp, t_tsc);
}

static void close_all(const struct ibv_context *context, bool cqs)
{
    for (uint32_t i = 0; i < __atomic_load_n(&used, __ATOMIC_ACQUIRE); i++) {
        struct made *made = &all[i];
        if (!st_slot_is(&made->slot, ST_SLOT_READY) || made->context != context ||
            made->is_cq != cqs || !st_slot_swap(&made->slot, ST_SLOT_READY, ST_SLOT_ENDING))
            continue;
        leave(made);
        destroyed(made, st_now());
        st_slot_set(&made->slot, ST_SLOT_FREE);
    }
}

void st_devx_close(const struct ibv_context *context)
{
    close_all(context, false); /* whose last completions are still read */
    close_all(context, true);
}

const struct st_devx_cq *st_devx_cq_of(const struct ibv_context *context, uint32_t number)
{
    for (uint32_t i = 0; i < __atomic_load_n(&used, __ATOMIC_ACQUIRE); i++) {
        const struct made *made = &all[i];
        if (st_slot_is(&made->slot, ST_SLOT_READY) && made->is_cq && made->cq.number == number &&
            made->cq.context == context)
            return &made->cq;
    }
    return NULL;
}

static void created(const struct mlx5dv_devx_obj *handle, struct ibv_context *context,
                    struct st_mlx5_library *library, const uint8_t *in, size_t in_size,
                    uint32_t number)
{
    uint64_t command = st_mailbox(in, in_size, ST_COMMAND);
    if (command != ST_CREATE_QP && command != ST_CREATE_CQ)
        return;
    int saved = errno;
    st_mlx5_seen(library);
    struct made *made = claim(handle, library);
    if (made)
        made->context = context;
    if (made && command == ST_CREATE_CQ) {
        made->is_cq = true;
        made->cq.number = number;
        made->cq.context = context;
        st_devx_cq_created(&made->cq, in, in_size);
    } else if (made) {
        made->qp.qpn = number;
        made->qp.context = context;
        made->qp.library = library;
        st_devx_qp_created(&made->qp, in, in_size);
    }
    if (made)
        st_slot_set(&made->slot, ST_SLOT_READY);
    errno = saved;
}

ST_API struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in,
                                                      size_t in_size, void *out, size_t out_size)
{
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_devx_obj_create) {
        errno = ENOSYS;
        return NULL;
    }
    st_mlx5_inside++;
    struct mlx5dv_devx_obj *object =
        library->mlx5dv_devx_obj_create(context, in, in_size, out, out_size);
    st_mlx5_inside--;
    if (object && st_mlx5dv_on && !st_mlx5_inside)
        created(object, context, library, in, in_size,
                (uint32_t)st_mailbox(out, out_size, ST_NUMBER));
    return object;
}

ST_API int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *object, const void *in, size_t in_size,
                                  void *out, size_t out_size)
{
    struct made *made = st_mlx5_inside ? NULL : find(object);
    struct st_mlx5_library *library = made ? made->library : st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_devx_obj_modify)
        return ENOSYS;
    uint64_t t_tsc = st_now();
    st_mlx5_inside++;
    int result = library->mlx5dv_devx_obj_modify(object, in, in_size, out, out_size);
    st_mlx5_inside--;
    int saved = errno;
    if (made && !made->is_cq && !result &&
        st_mailbox(in, in_size, ST_NUMBER) == made->qp.qpn)
        st_devx_qp_modified(&made->qp, in, in_size, t_tsc);
    errno = saved;
    return result;
}

ST_API int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *object)
{
    struct made *made = st_mlx5_inside ? NULL : find(object);
    struct st_mlx5_library *library = made ? made->library : st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_devx_obj_destroy)
        return ENOSYS;
    /* Before the call: handle and number may come again at once. */
    if (made && !st_slot_swap(&made->slot, ST_SLOT_READY, ST_SLOT_ENDING))
        made = NULL;
    int saved = errno;
    uint64_t t_tsc = st_now();
    if (made)
        leave(made);
    errno = saved;
    st_mlx5_inside++;
    int result = library->mlx5dv_devx_obj_destroy(object);
    st_mlx5_inside--;
    saved = errno;
    if (made && !result)
        destroyed(made, t_tsc);
    else if (made && !made->is_cq)
        st_devx_qp_stays(&made->qp);
    if (made)
        st_slot_set(&made->slot, result ? ST_SLOT_READY : ST_SLOT_FREE);
    errno = saved;
    return result;
}
