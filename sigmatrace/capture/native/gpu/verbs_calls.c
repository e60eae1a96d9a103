/* Functions of libibverbs: one makes a DC target ready, one ends queue pairs that libmlx5 made, one
 * all that was made of a device.
 * Where the shim of layer verbs is there too, its wrappers come next. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "hooks.h"

#define VERSION "IBVERBS_1.1"

static const struct st_interposed wrappers[] = {
    {"ibv_modify_qp", VERSION, (void *)ibv_modify_qp},
    {"ibv_destroy_qp", VERSION, (void *)ibv_destroy_qp},
    {"ibv_close_device", VERSION, (void *)ibv_close_device},
    {NULL, NULL, NULL}};

__attribute__((constructor)) static void start(void)
{
    if (st_layer_on(ST_LAYER_MLX5DV))
        st_interpose("libibverbs", wrappers);
}

static void *next(const char *name, const void *caller)
{
    int saved = errno;
    void *shim = dlopen("libsigmatrace_verbs.so", RTLD_LAZY | RTLD_NOLOAD);
    void *found = shim ? st_dlsym(shim, name) : NULL;
    if (shim)
        dlclose(shim);
    if (!found)
        found = st_copy_look_up(caller, "libibverbs.so.1", name, VERSION);
    if (!found)
        found = st_copy_look_up(caller, "libibverbs.so.1", name, NULL);
    errno = saved;
    return found;
}

ST_API int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    __typeof__(ibv_modify_qp) *real;
    *(void **)&real = next("ibv_modify_qp", ST_GPU_CALLER);
    if (!real)
        return errno = ENOSYS;
    int result = real(qp, attr, mask), saved = errno;
    if (st_mlx5dv_on && !result && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RTR)
        st_dc_look();
    errno = saved;
    return result;
}

ST_API int ibv_destroy_qp(struct ibv_qp *qp)
{
    __typeof__(ibv_destroy_qp) *real;
    *(void **)&real = next("ibv_destroy_qp", ST_GPU_CALLER);
    if (!real)
        return errno = ENOSYS;
    if (!st_mlx5dv_on)
        return real(qp);
    /* Before the call: its memory goes, and its handle and number may come again at once. */
    int saved = errno;
    uint64_t t_tsc = st_now();
    struct st_made_qp *made = st_made_qp_leave(qp);
    st_dc_look();
    errno = saved;
    int result = real(qp);
    saved = errno;
    if (made)
        st_made_qp_destroyed(made, result ? 0 : t_tsc);
    if (!result)
        st_dc_forget(qp, true);
    errno = saved;
    return result;
}

ST_API int ibv_close_device(struct ibv_context *context)
{
    __typeof__(ibv_close_device) *real;
    *(void **)&real = next("ibv_close_device", ST_GPU_CALLER);
    if (!real)
        return errno = ENOSYS;
    if (!st_mlx5dv_on)
        return real(context);
    /* Before the call, which unmaps the registers and frees the rings of those that were not
     * destroyed. (That of libmlx5 does not fail.) */
    int saved = errno;
    st_devx_close(context);
    st_made_qps_close(context);
    st_umems_close(context);
    bool free = st_uars_close(context);
    errno = saved;
    return free ? real(context) : 0;
}
