/* What the wrappers of libmlx5 share: the real functions, and what the program made with them. */
#ifndef ST_GPU_HOOKS_H
#define ST_GPU_HOOKS_H

#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <sys/types.h>

#include "gpu.h"

#undef ibv_query_port /* the header's macro */

/* --- libmlx5.c: which copy of the library a call belongs to -------------------------------------- */

#define ST_MLX5_WRAPPED(X)                                                                         \
    X(mlx5dv_init_obj, "MLX5_1.2")                                                                 \
    X(mlx5dv_create_qp, "MLX5_1.3")                                                                \
    X(mlx5dv_devx_alloc_uar, "MLX5_1.7")                                                           \
    X(mlx5dv_devx_free_uar, "MLX5_1.7")                                                            \
    X(mlx5dv_devx_umem_reg, "MLX5_1.7")                                                            \
    X(mlx5dv_devx_umem_reg_ex, "MLX5_1.19")                                                        \
    X(mlx5dv_devx_umem_dereg, "MLX5_1.7")                                                          \
    X(mlx5dv_devx_obj_create, "MLX5_1.7")                                                          \
    X(mlx5dv_devx_obj_modify, "MLX5_1.7")                                                          \
    X(mlx5dv_devx_obj_destroy, "MLX5_1.7")                                                         \
    X(mlx5dv_devx_uar_export_dmabuf_fd, "MLX5_1.26")
#define ST_MLX5_CALLED(X)                                                                          \
    X(ibv_query_device, "IBVERBS_1.1")                                                             \
    X(ibv_query_gid, "IBVERBS_1.1")                                                                \
    X(ibv_query_port, "IBVERBS_1.1")

/* Newer than the oldest header with which this is built. */
int mlx5dv_devx_uar_export_dmabuf_fd(struct mlx5dv_devx_uar *uar);

struct st_mlx5_library {
    struct st_copy copy;
    uint32_t seen;
    __typeof__(mlx5dv_init_obj) *init_obj_1_0;
#define ST_MEMBER(name, version) __typeof__(name) *name;
    ST_MLX5_WRAPPED(ST_MEMBER)
    ST_MLX5_CALLED(ST_MEMBER)
#undef ST_MEMBER
};
/* NULL: there is no libmlx5. errno is kept. */
struct st_mlx5_library *st_mlx5_library(const void *caller);
/* Says that this copy is in use, once. (A child that is forked says itself what it inherits.) */
void st_mlx5_seen(struct st_mlx5_library *library);
/* Calls within libmlx5 itself are none of the program's. */
extern __thread uint32_t st_mlx5_inside;

/* --- states of what the program made: in arrays, never freed ------------------------------------- */

enum st_slot { ST_SLOT_FREE, ST_SLOT_TAKEN, ST_SLOT_READY, ST_SLOT_ENDING };

/* A free entry, now TAKEN and otherwise zero; entries begin with `uint32_t slot`. NULL: none. Those
 * beyond `used` have never been. */
void *st_slot_claim(void *entries, uint32_t count, size_t size, uint32_t *used);

static inline void st_slot_set(uint32_t *slot, enum st_slot to)
{
    __atomic_store_n(slot, to, __ATOMIC_RELEASE);
}

static inline bool st_slot_is(const uint32_t *slot, enum st_slot state)
{
    return __atomic_load_n(slot, __ATOMIC_ACQUIRE) == (uint32_t)state;
}

static inline bool st_slot_swap(uint32_t *slot, uint32_t from, enum st_slot to)
{
    return __atomic_compare_exchange_n(slot, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* --- uar.c ----------------------------------------------------------------------------------------- */

struct st_uar {
    uint32_t slot;
    uint32_t object;
    uint32_t page_id;
    uint32_t serial;               /* later ones are greater */
    uint32_t qps;                /* queue pairs that were taken to it */
    uint32_t exposed;              /* the real one can be rung by another way: it was said */
    struct ibv_context *context;
    struct mlx5dv_devx_uar *real;  /* NULL: of a queue pair that libmlx5 made */
    const void *at;                /* the real register */
    void *shadow;                  /* NULL: passed through */
    struct st_mlx5_library *library;
    struct mlx5dv_devx_uar given;  /* what the program holds, when there is a shadow */
};
/* What a queue pair needs to know of a register, which may be freed at any time. */
struct st_uar_guess {
    struct st_uar *uar;
    uint32_t object, serial;
    const void *shadow;
};
/* The register of a page that a new queue pair most probably rings: the page has several, and its
 * number is all that the queue pair is told. The last one of those with the fewest queue pairs,
 * which has one more now. False: there is none. */
bool st_uar_guess(const struct ibv_context *context, uint32_t page_id, struct st_uar_guess *guess);
/* It has one less, unless it is another one by now. */
void st_uar_leave(const struct st_uar_guess *guess);
/* Is it the same one, and still there? */
bool st_uar_is(const struct st_uar_guess *guess);
/* That of a queue pair which libmlx5 made, known already or made now; NULL: no room. */
struct st_uar *st_uar_of_register(struct ibv_context *context, struct st_mlx5_library *library,
                                  void *at);
/* Before a device is closed: nothing is stored to its registers any more. False: the sweeper did
 * not answer, and the device must stay open. */
bool st_uars_close(const struct ibv_context *context);

/* --- umem.c ---------------------------------------------------------------------------------------- */

struct st_umem {
    uint32_t slot;
    uint32_t object, id;
    uint64_t address, size_bytes; /* 0: not known */
    const struct ibv_context *context;
    const struct mlx5dv_devx_umem *handle;
};
/* Its device is closed. */
void st_umems_close(const struct ibv_context *context);
const struct st_umem *st_umem_of(const struct ibv_context *context, uint32_t id);

/* --- port.c: a port of the NIC ------------------------------------------------------------------ */

#define ST_PREFIX_BYTES 8u

struct st_port {
    struct ibv_context *context;
    struct st_mlx5_library *library;
    uint8_t number; /* 0: not known */
};
bool st_port_attr(const struct st_port *port, struct ibv_port_attr *attr);
bool st_port_gid(const struct st_port *port, int index, union ibv_gid *gid);
/* The subnet in which its LIDs hold; false: it has none. */
bool st_port_prefix(const struct st_port *port, uint8_t prefix[ST_PREFIX_BYTES]);
/* Whom a queue pair without a peer is, as others name it. */
void st_port_put(struct st_object *o, const struct st_port *port);
/* That of a device which has one alone. */
struct st_port st_port_only(struct ibv_context *context, struct st_mlx5_library *library);

/* --- create_qp.c: DC of libmlx5 ------------------------------------------------------------------ */

/* Looks for the numbers of targets. */
void st_dc_look(void);
bool st_dc_is_initiator(const struct ibv_qp *qp);
/* It was destroyed; st_dc_look came just before, or not. */
void st_dc_forget(const struct ibv_qp *qp, bool looked);

/* --- init_obj.c: a queue pair that libmlx5 made -------------------------------------------------- */

struct st_made_qp;
/* Before it is destroyed: what was rung is forwarded and copied. NULL: it is not known. */
struct st_made_qp *st_made_qp_leave(const struct ibv_qp *qp);
/* It was destroyed, at this time; 0: it was not, and is followed again. */
void st_made_qp_destroyed(struct st_made_qp *made, uint64_t t_tsc);
/* Before a device is closed. */
void st_made_qps_close(const struct ibv_context *context);

/* --- qp_fields.c --------------------------------------------------------------------------------- */

/* A queue pair that went on although it was to end has several. */
void st_qp_totals_add(struct st_gpu_qp_totals *totals, const struct st_gpu_qp_totals *more);

/* What a command that makes or changes a queue pair of this service says of it. */
void st_qp_fields_put(struct st_object *o, uint32_t service, const uint8_t *in, size_t in_size);
/* --- cq_object.c: a completion queue made by DEVX ------------------------------------------------- */

struct st_devx_cq {
    uint32_t object, number;
    const struct ibv_context *context;
    struct st_gpu_cq *read; /* NULL: its memory cannot be read */
};
/* From a successful CREATE_CQ. */
void st_devx_cq_created(struct st_devx_cq *cq, const uint8_t *in, size_t in_size);
/* Before it is destroyed: its memory is not read any more. */
void st_devx_cq_leave(struct st_devx_cq *cq);
/* It was destroyed. */
void st_devx_cq_destroyed(const struct st_devx_cq *cq, uint64_t t_tsc);
/* devx.c: that of a number; NULL: not known. */
const struct st_devx_cq *st_devx_cq_of(const struct ibv_context *context, uint32_t number);

/* --- devx.c: objects made by DEVX ----------------------------------------------------------------- */

/* Before a device is closed. */
void st_devx_close(const struct ibv_context *context);

/* --- devx_qp.c: a queue pair made by DEVX, and its objects --------------------------------------- */

#define ST_CREATE_QP_BYTES 272u

struct st_devx_qp {
    uint32_t object, qpn, type;
    bool described;  /* its object has been written */
    bool followed;   /* the sweeper knows it */
    bool unrecorded; /* its doorbells need no record: that says nothing */
    bool reset;      /* it was reset after it had been in use: its next life is a new object */
    bool left;       /* it was followed until it was to be destroyed */
    uint64_t reset_tsc;
    const char *state;
    const void *shadow; /* where it was followed at first */
    struct st_uar_guess at;
    uint32_t page_id;
    pid_t home;      /* a forked child has no part in what its parent's did */
    struct ibv_context *context;
    struct st_mlx5_library *library;
    uint32_t umem, dbr_umem, port;
    uint8_t created[ST_CREATE_QP_BYTES]; /* the command that made it: each life is described by it */
    uint64_t sq, dbrec; /* addresses; 0: not known */
    uint32_t sq_slots;
    struct st_gpu_cq *cq; /* of its sends; NULL: cannot be read */
    struct st_gpu_qp_totals totals;
};
/* From a successful CREATE_QP. */
void st_devx_qp_created(struct st_devx_qp *qp, const uint8_t *in, size_t in_size);
/* From a successful command that modified it. */
void st_devx_qp_modified(struct st_devx_qp *qp, const uint8_t *in, size_t in_size,
                           uint64_t t_tsc);
/* Before it is destroyed: what was rung is forwarded and copied, then it is forgotten. */
void st_devx_qp_leave(struct st_devx_qp *qp);
/* It was not destroyed: it is followed again. */
void st_devx_qp_stays(struct st_devx_qp *qp);
/* It was destroyed. */
void st_devx_qp_destroyed(struct st_devx_qp *qp, uint64_t t_tsc);

#endif
