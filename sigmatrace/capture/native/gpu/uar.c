/* Registers: the program gets a shadow in the place of the real one where its doorbells can be
 * repeated safely.
 *
 * Two threads that get the same register for the first time at once may get two shadows of it:
 * both lead to it, and doorbells name their queue pairs. */
#define _GNU_SOURCE
#include <string.h>

#include "hooks.h"

#define UARS 4096u
#define PAGE_MASK (~(uintptr_t)0xfff)
#define NC_DEDICATED 0x80000000u

static struct st_uar uars[UARS];
static uint32_t used, serial; /* those beyond `used` have never been */

static struct st_uar *claim(void)
{
    struct st_uar *uar = st_slot_claim(uars, UARS, sizeof(uars[0]), &used);
    if (uar)
        uar->serial = __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED);
    return uar;
}

#define EACH_UAR(u)                                                                                \
    (struct st_uar *u = uars; u < uars + __atomic_load_n(&used, __ATOMIC_ACQUIRE); u++)            \
        if (st_slot_is(&u->slot, ST_SLOT_READY))

static const char *kind_of(uint32_t flags)
{
    switch (flags) {
    case MLX5DV_UAR_ALLOC_TYPE_BF:
        return "bf";
    case MLX5DV_UAR_ALLOC_TYPE_NC:
        return "nc";
    case NC_DEDICATED:
        return "nc_dedicated";
    default:
        return "";
    }
}

/* Why a register is passed through, and what to do about it. */
enum why { SAFE, NO_LAYER, NO_RECORDING, NO_CUDA, NO_ROOM };
static const char *const reasons[] = {
    [NO_LAYER] = "layer cuda is not chosen",
    [NO_RECORDING] = "recording is off",
    [NO_CUDA] = "the CUDA driver is not called through the wrappers",
    [NO_ROOM] = "no room for a shadow, or no thread to repeat it",
};
static const char *const remedies[] = {
    [NO_LAYER] = " (--layers gpu is both)",
    [NO_RECORDING] = " when they are made",
    [NO_CUDA] = " before they are made (a program without a GPU needs nothing)",
    [NO_ROOM] = "",
};

static enum why why_not(void)
{
    return !st_cuda_on       ? NO_LAYER
           : !st_recording() ? NO_RECORDING
           : !st_cuda_seen() ? NO_CUDA
                             : SAFE;
}

static void count_unseen(void)
{
    st_lost("gpu: register whose doorbells are not seen", 1);
}

static void say_passed(enum why why)
{
    static bool said[sizeof(reasons) / sizeof(reasons[0])];
    count_unseen();
    st_warn_once(&said[why],
                 "registers of the NIC are passed through, their doorbells are not seen: %s%s",
                 reasons[why], remedies[why]);
}

static void describe(const struct st_uar *uar, const char *kind, enum why why)
{
    struct st_object o;
    st_object_begin(&o, "mlx5_uar", uar->object);
    if (uar->real)
        st_object_u64(&o, "page_id", uar->page_id);
    if (*kind)
        st_object_str(&o, "kind", kind);
    st_object_u64(&o, "real", (uintptr_t)uar->at);
    if (uar->shadow)
        st_object_u64(&o, "shadow", (uintptr_t)uar->shadow);
    else
        st_object_str(&o, "passed_through", reasons[why]);
    st_object_end(&o);
}

/* Finds or makes its shadow, and describes it unless another user has; READY afterwards. */
static void dress(struct st_uar *uar, const char *kind)
{
    enum why why = why_not();
    if (why == SAFE && (uar->shadow = st_register_shadow(uar->at)))
        for EACH_UAR(other)
            if (other->shadow == uar->shadow)
                uar->object = other->object;
    bool is_new = !uar->object;
    if (is_new)
        uar->object = st_object_id();
    if (why == SAFE && !uar->shadow && !(uar->shadow = st_register_add((void *)(uintptr_t)uar->at,
                                                                       uar->object)))
        why = NO_ROOM;
    if (is_new)
        describe(uar, kind, why);
    if (why != SAFE)
        say_passed(why);
    if (uar->real) {
        uar->given = *uar->real;
        uar->given.reg_addr = uar->shadow;
    }
    st_slot_set(&uar->slot, ST_SLOT_READY);
}

bool st_uar_is(const struct st_uar_guess *guess)
{
    return guess->uar && st_slot_is(&guess->uar->slot, ST_SLOT_READY) &&
           __atomic_load_n(&guess->uar->serial, __ATOMIC_ACQUIRE) == guess->serial;
}

void st_uar_leave(const struct st_uar_guess *guess)
{
    if (st_uar_is(guess))
        __atomic_sub_fetch(&guess->uar->qps, 1, __ATOMIC_RELAXED);
}

static struct st_uar *likeliest(const struct ibv_context *context, uint32_t page_id)
{
    struct st_uar *best = NULL;
    for EACH_UAR(uar) {
        if (!uar->real || uar->context != context || uar->page_id != page_id)
            continue;
        if (!best || uar->qps < best->qps ||
            (uar->qps == best->qps && uar->serial > best->serial))
            best = uar;
    }
    return best;
}

/* Another thread may free it, and the state be another one's: what was copied is of one register,
 * and of this page, if it is the same one before and after. */
bool st_uar_guess(const struct ibv_context *context, uint32_t page_id, struct st_uar_guess *guess)
{
    struct st_uar *uar;
    while ((uar = likeliest(context, page_id))) {
        guess->uar = uar;
        guess->serial = __atomic_load_n(&uar->serial, __ATOMIC_ACQUIRE);
        guess->object = uar->object;
        guess->shadow = uar->shadow;
        bool of_page = uar->context == context && uar->page_id == page_id;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!of_page || !st_uar_is(guess))
            continue;
        __atomic_add_fetch(&uar->qps, 1, __ATOMIC_RELAXED);
        return true;
    }
    memset(guess, 0, sizeof(*guess));
    return false;
}

struct st_uar *st_uar_of_register(struct ibv_context *context, struct st_mlx5_library *library,
                                  void *at)
{
    for EACH_UAR(uar)
        if (uar->at == at || (uar->shadow && uar->shadow == at))
            return uar;
    struct st_uar *uar = claim();
    if (!uar)
        return NULL;
    uar->context = context;
    uar->library = library;
    uar->at = at;
    dress(uar, "qp");
    return uar;
}

bool st_uar_shadows(const void *at, uint64_t size_bytes)
{
    uintptr_t first = (uintptr_t)at, last = size_bytes ? first + size_bytes - 1 : first;
    for EACH_UAR(uar)
        if (uar->shadow && ((uintptr_t)uar->shadow & PAGE_MASK) == (first & PAGE_MASK) &&
            (first & PAGE_MASK) == (last & PAGE_MASK))
            return true;
    return false;
}

/* The real one can be rung, too. */
static void expose(struct st_uar *uar, const char *how)
{
    struct st_object o;
    if (__atomic_exchange_n(&uar->exposed, 1, __ATOMIC_RELAXED))
        return;
    count_unseen();
    st_object_begin(&o, "mlx5_uar", uar->object);
    st_object_str(&o, "exposed", how);
    st_object_end(&o);
}

void st_uar_registered(const void *at, uint64_t size_bytes)
{
    static bool said;
    uintptr_t first = (uintptr_t)at & PAGE_MASK;
    uintptr_t last = (uintptr_t)at + (size_bytes ? size_bytes - 1 : 0);
    for EACH_UAR(uar) {
        uintptr_t page = (uintptr_t)uar->at & PAGE_MASK;
        if (!uar->shadow || page < first || page > last)
            continue;
        expose(uar, "registered with CUDA");
        st_warn_once(&said, "the page of a register of the NIC is registered with CUDA by its "
                            "base_addr: doorbells that a GPU stores there (without doorbell "
                            "records?) are not seen; choose another way of ringing");
    }
}

ST_API struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags)
{
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_devx_alloc_uar) {
        errno = ENOSYS;
        return NULL;
    }
    st_mlx5_inside++;
    struct mlx5dv_devx_uar *real = library->mlx5dv_devx_alloc_uar(context, flags);
    st_mlx5_inside--;
    if (!real || st_mlx5_inside || !st_mlx5dv_on)
        return real;
    int saved = errno;
    st_mlx5_seen(library);
    struct st_uar *uar = claim();
    if (uar) {
        uar->context = context;
        uar->library = library;
        uar->real = real;
        uar->at = real->reg_addr;
        uar->page_id = real->page_id;
        dress(uar, kind_of(flags));
    }
    errno = saved;
    return uar && uar->shadow ? &uar->given : real;
}

/* The state behind what the program holds, now ENDING; NULL: it is none of ours. */
static struct st_uar *take(const struct mlx5dv_devx_uar *held)
{
    for EACH_UAR(uar)
        if ((uar->shadow ? &uar->given : uar->real) == held && uar->real &&
            st_slot_swap(&uar->slot, ST_SLOT_READY, ST_SLOT_ENDING))
            return uar;
    return NULL;
}

static bool is_shared(const struct st_uar *uar)
{
    for EACH_UAR(other)
        if (other->object == uar->object)
            return true;
    return false;
}

static void tell_closed(const struct st_uar *uar, uint64_t t_tsc)
{
    if (!is_shared(uar))
        st_object_closed("mlx5_uar", uar->object, t_tsc);
}

bool st_uars_close(const struct ibv_context *context)
{
    bool all = true;
    for EACH_UAR(uar) {
        if (uar->context != context || !st_slot_swap(&uar->slot, ST_SLOT_READY, ST_SLOT_ENDING))
            continue;
        all &= !uar->shadow || st_register_end(uar->shadow);
        tell_closed(uar, st_now());
        st_slot_set(&uar->slot, ST_SLOT_FREE);
    }
    return all;
}

ST_API void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *held)
{
    struct st_uar *uar = held ? take(held) : NULL;
    struct st_mlx5_library *library = uar ? uar->library : st_mlx5_library(ST_GPU_CALLER);
    int saved = errno;
    uint64_t t_tsc = st_now();
    /* When the sweeper may still store to the real one, that stays. */
    bool free = !uar || !uar->shadow || st_register_remove(uar->shadow);
    errno = saved;
    if (free && library && library->mlx5dv_devx_free_uar) {
        st_mlx5_inside++;
        library->mlx5dv_devx_free_uar(uar ? uar->real : held);
        st_mlx5_inside--;
    }
    if (!uar)
        return;
    saved = errno;
    tell_closed(uar, t_tsc);
    st_slot_set(&uar->slot, ST_SLOT_FREE);
    errno = saved;
}

/* libmlx5 finds its own state around what it gave out. */
ST_API int mlx5dv_devx_uar_export_dmabuf_fd(struct mlx5dv_devx_uar *held)
{
    static bool said;
    struct st_mlx5_library *library = st_mlx5_library(ST_GPU_CALLER);
    if (!library || !library->mlx5dv_devx_uar_export_dmabuf_fd) {
        errno = ENOSYS;
        return -1;
    }
    for EACH_UAR(uar) {
        if (!uar->shadow || &uar->given != held)
            continue;
        int fd = library->mlx5dv_devx_uar_export_dmabuf_fd(uar->real), saved = errno;
        if (fd >= 0) {
            expose(uar, "exported as dmabuf");
            st_warn_once(&said, "a register of the NIC is exported as dmabuf: doorbells that are "
                                "stored by way of it are not seen; let the program register it "
                                "with CUDA by its address");
        }
        errno = saved;
        return fd;
    }
    return library->mlx5dv_devx_uar_export_dmabuf_fd(held);
}
