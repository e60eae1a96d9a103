/* Cases of the driver's that take more than a call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooks_driver.h"

static const char *owner(const void *function)
{
    Dl_info info;
    const char *base;
    if (!function || !dladdr(function, &info))
        return "";
    base = strrchr(info.dli_fname, '/');
    return base ? base + 1 : info.dli_fname;
}

void probe(void)
{
    uint64_t device;
    struct mlx5dv_devx_uar *uar = api.mlx5dv_devx_alloc_uar(&context, 0x80000000u);
    if (!uar || api.cuMemHostRegister_v2(uar->reg_addr, 8, 7) ||
        api.cuMemHostGetDevicePointer_v2(&device, uar->reg_addr, 0) ||
        api.cuMemHostUnregister(uar->reg_addr))
        die("probe");
    api.mlx5dv_devx_free_uar(uar);
}

/* A life of a register and a queue pair, again and again: queue pairs are found by number. */
static void *live(void *given)
{
    const struct commands *commands = given;
    for (int i = 0; i < commands->rounds; i++) {
        uint8_t in[272], out[16];
        struct mlx5dv_devx_uar *uar = api.mlx5dv_devx_alloc_uar(&context, 0);
        memcpy(in, commands->create, sizeof(in));
        in[0x26] = (uint8_t)(uar->page_id >> 8);
        in[0x27] = (uint8_t)uar->page_id;
        struct mlx5dv_devx_obj *qp =
            api.mlx5dv_devx_obj_create(&context, in, commands->create_size, out, sizeof(out));
        memcpy(in, commands->to_init, sizeof(in));
        memcpy(in + 9, out + 9, 3);
        if (!qp || api.mlx5dv_devx_obj_modify(qp, in, commands->to_init_size, out, sizeof(out)))
            die("a thread's queue pair");
        *(volatile uint64_t *)uar->reg_addr = __builtin_bswap64(
            (uint64_t)0x100 << 32 | (uint64_t)in[9] << 24 | in[10] << 16 | in[11] << 8);
        if (!arrives(real_of(uar), *(volatile uint64_t *)uar->reg_addr))
            die("a thread's doorbell did not arrive");
        if (api.mlx5dv_devx_obj_destroy(qp))
            die("destroy");
        api.mlx5dv_devx_free_uar(uar);
    }
    return NULL;
}

void run_threads(int count, struct commands *commands)
{
    pthread_t threads[MANY];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, live, commands);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

void ask(const char *name, int version, int abi)
{
    void *found = NULL;
    int status;
    if (abi == 4)
        api.cuGetProcAddress(name, &found, version, 0);
    else
        api.cuGetProcAddress_v2(name, &found, version, 0, &status);
    /* The recursion: what was answered is asked itself. */
    void *again = NULL;
    if (found && !strcmp(name, "cuGetProcAddress") && version < 12000)
        ((__typeof__(api.cuGetProcAddress))found)("cuMemHostRegister", &again, 6050, 0);
    else if (found && !strcmp(name, "cuGetProcAddress"))
        ((__typeof__(api.cuGetProcAddress_v2))found)("cuMemHostRegister", &again, 6050, 0, &status);
    if (found && !strcmp(name, "cuMemHostRegister"))
        ((__typeof__(api.cuMemHostRegister_v2))found)(&found, 8, 7);
    printf("{\"owner\": \"%s\", \"again\": \"%s\", \"abi\": %d, \"same\": %d}", owner(found),
           owner(again), *fake(cuda, "fake_register_abi"),
           found == (void *)api.cuGetProcAddress);
}

void init_obj(int old, unsigned number)
{
    struct ibv_qp qp = {.context = &context, .qp_num = number, .qp_type = IBV_QPT_RC};
    struct mlx5dv_qp told = {0};
    struct mlx5dv_obj object = {.qp = {&qp, &told}};
    __typeof__(api.mlx5dv_init_obj) call = api.mlx5dv_init_obj;
#ifdef OLD
    extern int init_obj_of_old(struct mlx5dv_obj *, uint64_t);
    __asm__(".symver init_obj_of_old, mlx5dv_init_obj@MLX5_1.0");
    if (old)
        call = init_obj_of_old;
#endif
    uint8_t *page = (void *)fake(mlx5, "fake_bf_page");
    int result = call(&object, MLX5DV_OBJ_QP);
    int arrived = 0;
    if (!result) {
        uint64_t value = __builtin_bswap64(0x108ull << 32 | (uint64_t)number << 8 | 3);
        *(volatile uint64_t *)told.bf.reg = value;
        arrived = arrives((void *)(page + 0xa00), value);
    }
    printf("{\"result\": %d, \"shadow\": %d, \"low\": %u, \"arrived\": %d, \"old\": %d}", result,
           (uint8_t *)told.bf.reg != page + 0xa00, (unsigned)((uintptr_t)told.bf.reg & 0xfff),
           arrived, old ? *fake(mlx5, "fake_old_calls") : 0);
}

int in_a_child(struct mlx5dv_devx_obj *pair, struct mlx5dv_devx_uar *uar)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        alarm(WAIT_S);
        int result = api.mlx5dv_devx_obj_destroy(pair);
        api.mlx5dv_devx_free_uar(uar);
        uar = api.mlx5dv_devx_alloc_uar(&context, 0);
        _exit(result || !uar || (void *)real_of(uar) != uar->reg_addr);
    }
    waitpid(child, &status, 0);
    return status;
}
