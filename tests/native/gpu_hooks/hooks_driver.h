/* The driver's ways to libmlx5 and CUDA, and those of its cases that take more than a call. */
#ifndef HOOKS_DRIVER_H
#define HOOKS_DRIVER_H

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>

#define MANY 64
#define WAIT_S 5

int cuInit(unsigned flags);
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags);
int cuMemHostUnregister(void *at);
int cuMemHostGetDevicePointer_v2(uint64_t *out, void *at, unsigned flags);
int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t size, int type,
                                  unsigned long long flags);
int cuCtxDestroy_v2(void *context);
int cuDevicePrimaryCtxReset_v2(int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);

#define MLX5(X)                                                                                    \
    X(mlx5dv_init_obj, "MLX5_1.2") X(mlx5dv_create_qp, "MLX5_1.3")                                 \
    X(ibv_modify_qp, "IBVERBS_1.1") X(ibv_destroy_qp, "IBVERBS_1.1")                               \
    X(ibv_close_device, "IBVERBS_1.1")                                                             \
    X(mlx5dv_devx_uar_export_dmabuf_fd, "MLX5_1.26") X(mlx5dv_devx_alloc_uar, "MLX5_1.7")          \
    X(mlx5dv_devx_free_uar, "MLX5_1.7") X(mlx5dv_devx_umem_reg, "MLX5_1.7")                        \
    X(mlx5dv_devx_umem_reg_ex, "MLX5_1.19") X(mlx5dv_devx_umem_dereg, "MLX5_1.7")                  \
    X(mlx5dv_devx_obj_create, "MLX5_1.7") X(mlx5dv_devx_obj_modify, "MLX5_1.7")                    \
    X(mlx5dv_devx_obj_destroy, "MLX5_1.7")
/* Newer than the header. */
int mlx5dv_devx_uar_export_dmabuf_fd(struct mlx5dv_devx_uar *uar);
#define CUDA(X)                                                                                    \
    X(cuInit, NULL) X(cuMemHostRegister_v2, NULL) X(cuMemHostUnregister, NULL)                     \
    X(cuMemHostGetDevicePointer_v2, NULL) X(cuMemGetHandleForAddressRange, NULL)                   \
    X(cuCtxDestroy_v2, NULL) X(cuDevicePrimaryCtxReset_v2, NULL)                                   \
    X(cuDevicePrimaryCtxRelease_v2, NULL)                                                          \
    X(cuGetProcAddress, NULL) X(cuGetProcAddress_v2, NULL)

extern struct api {
#define MEMBER(name, version) __typeof__(name) *name;
    MLX5(MEMBER) CUDA(MEMBER)
#undef MEMBER
} api;
extern void *mlx5, *cuda;
extern struct ibv_context context;

void die(const char *what) __attribute__((noreturn));
/* A variable of the fake's. */
int *fake(void *library, const char *name);
/* The fake's registers are at the real base, at the same place of the page. */
volatile uint64_t *real_of(const struct mlx5dv_devx_uar *uar);
int arrives(volatile uint64_t *real, uint64_t value);

/* What NVSHMEM does before all else. */
void probe(void);
/* In each thread a life of a register and a queue pair, again and again: commands to create it and
 * to make it ready, without the numbers. */
struct commands {
    uint8_t create[272], to_init[272];
    size_t create_size, to_init_size;
    int rounds;
};
void run_threads(int count, struct commands *commands);
/* Looks a function of CUDA up, and tells whose it is. */
void ask(const char *name, int version, int abi);
void init_obj(int old, unsigned number);

/* Queue pairs that libmlx5 makes (verbs_cases.c). Of a type, or of DC by mlx5dv_create_qp. */
struct line {
    const char *word;
    long long a, b;
    char hex[2048];
};
void do_pair(const struct line *line);
void do_dc(const struct line *line);
void do_ready(const struct line *line);
void do_modify_qp(const struct line *line);
void do_destroy_qp(const struct line *line);
void do_look(const struct line *line);
void do_pair_put(const struct line *line);
void do_pair_record(const struct line *line);
void do_pair_ring(const struct line *line);
void do_pair_end(const struct line *line);
void do_close(const struct line *line);
size_t unhex(const char *text, uint8_t *out);
/* A child ends what there is, and asks for more. */
int in_a_child(struct mlx5dv_devx_obj *pair, struct mlx5dv_devx_uar *uar);

#endif
