/* A libmlx5 (and what libibverbs tells of a port) that does nothing but hand out what is asked for,
 * and remembers it. Each success sets errno to a number of its own, as a library may. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake_ring.h"

#define FAKE_API __attribute__((visibility("default")))
#define NC_DEDICATED 0x80000000u
#define ERRNO_OF_SUCCESS 77
#define PAGES 16 /* that are taken back */
#undef ibv_query_port

struct mlx5dv_devx_obj {
    uint32_t number;
};

FAKE_API int fake_fail;      /* the next call that can fail does, with this error */
FAKE_API int fake_freed;     /* registers */
FAKE_API int fake_old_calls; /* of init_obj, by its old version */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *all_pages[PAGES];
static uint32_t pages, umems, objects = 0x500;
static uint8_t *dedicated;
static int dedicated_left;
static struct mlx5dv_devx_uar *singleton;

static int failing(void)
{
    errno = ERRNO_OF_SUCCESS;
    int error = fake_fail;
    fake_fail = 0;
    if (error)
        errno = error;
    return error;
}

static uint8_t *page(void)
{
    uint8_t *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages < PAGES)
        all_pages[pages] = made;
    pages++;
    return made;
}

static struct mlx5dv_devx_uar *uar_at(uint8_t *base, int half)
{
    struct mlx5dv_devx_uar *uar = calloc(1, sizeof(*uar));
    *uar = (struct mlx5dv_devx_uar){base + 0x800 + half * 0x100, base, 7 + pages, 0x1000, 0};
    return uar;
}

FAKE_API struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags)
{
    (void)context;
    struct mlx5dv_devx_uar *uar;
    if (failing())
        return NULL;
    pthread_mutex_lock(&lock);
    if (flags == MLX5DV_UAR_ALLOC_TYPE_NC) {
        uar = singleton = singleton ? singleton : uar_at(page(), 0);
    } else if (flags == NC_DEDICATED) {
        if (!dedicated_left) {
            dedicated = page();
            dedicated_left = 4;
        }
        uar = uar_at(dedicated, 4 - dedicated_left--);
    } else {
        uar = uar_at(page(), 0);
    }
    pthread_mutex_unlock(&lock);
    return uar;
}

FAKE_API void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *uar)
{
    if ((uintptr_t)uar->reg_addr - (uintptr_t)uar->base_addr > 4096)
        fprintf(stderr, "driver: a register came back that was never given\n");
    __atomic_add_fetch(&fake_freed, 1, __ATOMIC_RELAXED);
    if (uar != singleton)
        free(uar);
}

FAKE_API int mlx5dv_devx_uar_export_dmabuf_fd(struct mlx5dv_devx_uar *uar)
{
    if ((uintptr_t)uar->reg_addr - (uintptr_t)uar->base_addr > 4096)
        fprintf(stderr, "driver: a register is exported that was never given\n");
    return failing() ? -1 : memfd_create("register", 0);
}

static struct mlx5dv_devx_umem *umem_make(void)
{
    struct mlx5dv_devx_umem *umem = calloc(1, sizeof(*umem));
    umem->umem_id = 100 + __atomic_fetch_add(&umems, 1, __ATOMIC_RELAXED);
    return umem;
}

FAKE_API struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *at,
                                                       size_t size, uint32_t access)
{
    (void)context, (void)at, (void)size, (void)access;
    return failing() ? NULL : umem_make();
}

FAKE_API struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *context,
                                                          struct mlx5dv_devx_umem_in *in)
{
    (void)context, (void)in;
    return failing() ? NULL : umem_make();
}

FAKE_API int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem)
{
    int error = failing();
    if (!error)
        free(umem);
    return error;
}

FAKE_API struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in,
                                                        size_t in_size, void *out, size_t out_size)
{
    (void)context, (void)in, (void)in_size;
    if (failing())
        return NULL;
    struct mlx5dv_devx_obj *object = calloc(1, sizeof(*object));
    object->number = __atomic_fetch_add(&objects, 1, __ATOMIC_RELAXED);
    memset(out, 0, out_size);
    ((uint8_t *)out)[0x0a] = (uint8_t)(object->number >> 8);
    ((uint8_t *)out)[0x0b] = (uint8_t)object->number;
    return object;
}

FAKE_API int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *object, const void *in, size_t in_size,
                                    void *out, size_t out_size)
{
    (void)object, (void)in, (void)in_size, (void)out, (void)out_size;
    return failing();
}

FAKE_API int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *object)
{
    int error = failing();
    if (!error)
        free(object);
    return error;
}

/* Of all queue pairs that it makes itself. */
FAKE_API uint8_t fake_bf_page[8192] __attribute__((aligned(4096)));

FAKE_API struct fake_ring fake_rings[FAKE_RINGS]; /* by the last bits of their number */

static struct fake_ring *ring_of(uint32_t number)
{
    struct fake_ring *ring = &fake_rings[number % FAKE_RINGS];
    if (!ring->slots)
        ring->slots = mmap(NULL, FAKE_RING_SLOTS * 64, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return ring;
}

/* By a way that no shim sees. */
FAKE_API void fake_destroy(struct ibv_qp *qp)
{
    struct fake_ring *ring = &fake_rings[qp->qp_num % FAKE_RINGS];
    if (ring->slots)
        munmap(ring->slots, FAKE_RING_SLOTS * 64);
    memset(ring, 0, sizeof(*ring));
    free(qp);
}

/* As the real one: of a target, the number comes when it is made ready, before its state. */
FAKE_API struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context,
                                         struct ibv_qp_init_attr_ex *attr,
                                         struct mlx5dv_qp_init_attr *more)
{
    if (failing())
        return NULL;
    struct ibv_qp *qp = calloc(1, sizeof(*qp));
    bool is_target = more && more->dc_init_attr.dc_type == MLX5DV_DCTYPE_DCT;
    *qp = (struct ibv_qp){.context = context, .qp_type = attr->qp_type, .state = IBV_QPS_RESET};
    if (!is_target)
        qp->qp_num = __atomic_fetch_add(&objects, 1, __ATOMIC_RELAXED);
    return qp;
}

FAKE_API void fake_ready(struct ibv_qp *qp, uint32_t number)
{
    qp->qp_num = number;
    __atomic_store_n(&qp->state, IBV_QPS_RTR, __ATOMIC_RELEASE);
}

FAKE_API int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    int error = failing();
    if (!error && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RTR)
        fake_ready(qp, __atomic_fetch_add(&objects, 1, __ATOMIC_RELAXED));
    return error;
}

FAKE_API int ibv_destroy_qp(struct ibv_qp *qp)
{
    int error = failing();
    if (!error)
        fake_destroy(qp);
    return error;
}

/* As the real one: no register is there any more. */
FAKE_API int ibv_close_device(struct ibv_context *context)
{
    (void)context;
    errno = ERRNO_OF_SUCCESS;
    for (uint32_t i = 0; i < pages && i < PAGES; i++)
        munmap(all_pages[i], 4096);
    mprotect(fake_bf_page, sizeof(fake_bf_page), PROT_NONE);
    return 0;
}

static int init(struct mlx5dv_obj *object, uint64_t types)
{
    int error = failing();
    if (!error && types & MLX5DV_OBJ_QP) {
        object->qp.out->bf.reg = fake_bf_page + 0xa00;
        object->qp.out->bf.size = 0x100;
        struct fake_ring *ring = ring_of(object->qp.in->qp_num);
        object->qp.out->sq.buf = ring->slots;
        object->qp.out->sq.wqe_cnt = FAKE_RING_SLOTS;
        object->qp.out->sq.stride = 64;
        object->qp.out->dbrec = ring->records;
    }
    return error;
}

FAKE_API int fake_init_new(struct mlx5dv_obj *object, uint64_t types)
{
    return init(object, types);
}

FAKE_API int fake_init_old(struct mlx5dv_obj *object, uint64_t types)
{
    fake_old_calls++;
    return init(object, types);
}
#ifdef VERSIONS
__asm__(".symver fake_init_new, mlx5dv_init_obj@@MLX5_1.2");
__asm__(".symver fake_init_old, mlx5dv_init_obj@MLX5_1.0");
#else
FAKE_API int mlx5dv_init_obj(struct mlx5dv_obj *object, uint64_t types)
{
    return init(object, types);
}
#endif

FAKE_API int fake_ports = 1;

FAKE_API int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    memset(attr, 0, sizeof(*attr));
    attr->phys_port_cnt = (uint8_t)fake_ports;
    return 0;
}

FAKE_API int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    (void)context;
    memset(gid, 0, sizeof(*gid));
    memset(gid->raw, 0xfe, 1);
    gid->raw[7] = port;
    gid->raw[15] = (uint8_t)index;
    return 0;
}

/* As old as the exported function: shorter than today's structure. Port 1 has LIDs, port 2 has not. */
FAKE_API int ibv_query_port(struct ibv_context *context, uint8_t port,
                            struct _compat_ibv_port_attr *attr)
{
    struct ibv_port_attr now = {.lid = (uint16_t)(port == 1 ? 0x31 : 0),
                                .link_layer = port == 1 ? IBV_LINK_LAYER_INFINIBAND
                                                        : IBV_LINK_LAYER_ETHERNET};
    (void)context;
    memcpy(attr, &now, 48);
    return 0;
}
