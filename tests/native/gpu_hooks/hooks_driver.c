/* Carries out the lines of its input, and tells of each: a program over libmlx5 and CUDA. It
 * reaches them by link symbols (LINKED), or by dlsym or dlvsym, as its argument says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MANY 64
#define WAIT_S 5

int cuInit(unsigned flags);
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags);
int cuMemHostUnregister(void *at);
int cuMemHostGetDevicePointer_v2(uint64_t *out, void *at, unsigned flags);
int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t size, int type,
                                  unsigned long long flags);
int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);

#define MLX5(X)                                                                                    \
    X(mlx5dv_init_obj, "MLX5_1.2") X(mlx5dv_devx_alloc_uar, "MLX5_1.7")                            \
    X(mlx5dv_devx_free_uar, "MLX5_1.7") X(mlx5dv_devx_umem_reg, "MLX5_1.7")                        \
    X(mlx5dv_devx_umem_reg_ex, "MLX5_1.19") X(mlx5dv_devx_umem_dereg, "MLX5_1.7")                  \
    X(mlx5dv_devx_obj_create, "MLX5_1.7") X(mlx5dv_devx_obj_modify, "MLX5_1.7")                    \
    X(mlx5dv_devx_obj_destroy, "MLX5_1.7")
#define CUDA(X)                                                                                    \
    X(cuInit, NULL) X(cuMemHostRegister_v2, NULL) X(cuMemHostUnregister, NULL)                     \
    X(cuMemHostGetDevicePointer_v2, NULL) X(cuMemGetHandleForAddressRange, NULL)                   \
    X(cuGetProcAddress, NULL) X(cuGetProcAddress_v2, NULL)

static struct {
#define MEMBER(name, version) __typeof__(name) *name;
    MLX5(MEMBER) CUDA(MEMBER)
} api;
static void *mlx5, *cuda;

static struct ibv_context context;
static struct mlx5dv_devx_uar *uars[MANY];
static struct mlx5dv_devx_umem *umems[MANY];
static struct mlx5dv_devx_obj *objects[MANY];
static uint8_t *memories[MANY];
static int uar_count, umem_count, object_count, dmabuf = -1;

static void die(const char *what)
{
    fprintf(stderr, "driver: %s\n", what);
    exit(1);
}

static void reach(const char *how)
{
    mlx5 = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
    cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!mlx5 || !cuda)
        die(dlerror());
    if (!strcmp(how, "link")) {
#ifdef LINKED
#define LINK(name, version) api.name = name;
        MLX5(LINK) CUDA(LINK)
#endif
        return;
    }
    int versions = !strcmp(how, "dlvsym");
#define FIND(name, version)                                                                        \
    api.name = (__typeof__(api.name))(versions ? dlvsym(mlx5, #name, version) : dlsym(mlx5, #name));
#define FIND_CUDA(name, version) api.name = (__typeof__(api.name))dlsym(cuda, #name);
    MLX5(FIND) CUDA(FIND_CUDA)
}

static int *fake(void *library, const char *name)
{
    int *found = dlsym(library, name);
    if (!found)
        die(name);
    return found;
}

/* The fake's registers are at the real base, at the same place of the page. */
static volatile uint64_t *real_of(const struct mlx5dv_devx_uar *uar)
{
    return (void *)((uintptr_t)uar->base_addr | ((uintptr_t)uar->reg_addr & 0xfff));
}

static int arrives(volatile uint64_t *real, uint64_t value)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        if (__atomic_load_n(real, __ATOMIC_ACQUIRE) == value)
            return 1;
        sched_yield();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < WAIT_S);
    return 0;
}

static size_t unhex(const char *text, uint8_t *out)
{
    size_t n = strlen(text) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        out[i] = (uint8_t)byte;
    }
    return n;
}

static const char *owner(const void *function)
{
    Dl_info info;
    const char *base;
    if (!function || !dladdr(function, &info))
        return "";
    base = strrchr(info.dli_fname, '/');
    return base ? base + 1 : info.dli_fname;
}

static int threads_now(void)
{
    int count = 0;
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof(line), status))
        sscanf(line, "Threads: %d", &count);
    if (status)
        fclose(status);
    return count;
}

/* What NVSHMEM does before all else. */
static void probe(void)
{
    uint64_t device;
    struct mlx5dv_devx_uar *uar = api.mlx5dv_devx_alloc_uar(&context, 0x80000000u);
    if (!uar || api.cuMemHostRegister_v2(uar->reg_addr, 8, 7) ||
        api.cuMemHostGetDevicePointer_v2(&device, uar->reg_addr, 0) ||
        api.cuMemHostUnregister(uar->reg_addr))
        die("probe");
    api.mlx5dv_devx_free_uar(uar);
}

static uint8_t create_qp[272], to_init[272];
static size_t create_size, to_init_size;

/* A life of a register and a queue pair, again and again: queue pairs are found by number. */
static void *live(void *rounds)
{
    for (int i = 0; i < *(int *)rounds; i++) {
        uint8_t in[272], out[16];
        struct mlx5dv_devx_uar *uar = api.mlx5dv_devx_alloc_uar(&context, 0);
        memcpy(in, create_qp, sizeof(in));
        in[0x26] = (uint8_t)(uar->page_id >> 8);
        in[0x27] = (uint8_t)uar->page_id;
        struct mlx5dv_devx_obj *qp =
            api.mlx5dv_devx_obj_create(&context, in, create_size, out, sizeof(out));
        memcpy(in, to_init, sizeof(in));
        memcpy(in + 9, out + 9, 3);
        if (!qp || api.mlx5dv_devx_obj_modify(qp, in, to_init_size, out, sizeof(out)))
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

static void run_threads(int count, int rounds)
{
    pthread_t threads[MANY];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, live, &rounds);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void ask(const char *name, int version, int abi)
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

static void init_obj(int old, unsigned number)
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

static int in_a_child(void)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        alarm(WAIT_S);
        int result = api.mlx5dv_devx_obj_destroy(objects[0]);
        api.mlx5dv_devx_free_uar(uars[0]);
        struct mlx5dv_devx_uar *uar = api.mlx5dv_devx_alloc_uar(&context, 0);
        _exit(result || !uar || (void *)real_of(uar) != uar->reg_addr);
    }
    waitpid(child, &status, 0);
    return status;
}

static void carry_out(char *line)
{
    char word[32] = "", hex[2048] = "";
    long long a = 0, b = 0;
    uint8_t in[1024], out[16];
    sscanf(line, "%31s %lli %lli %2047s", word, &a, &b, hex);
    errno = 0;
#define IS(text) (!strcmp(word, text))
    if (IS("init")) {
        printf("%d", api.cuInit(0));
    } else if (IS("uar")) {
        struct mlx5dv_devx_uar *uar = api.mlx5dv_devx_alloc_uar(&context, (uint32_t)a);
        int error = errno;
        uars[uar_count++] = uar;
        printf("{\"errno\": %d, \"reg\": %llu, \"base\": %llu, \"page\": %u}", error,
               uar ? (unsigned long long)(uintptr_t)uar->reg_addr : 0,
               uar ? (unsigned long long)(uintptr_t)uar->base_addr : 0, uar ? uar->page_id : 0);
    } else if (IS("free")) {
        api.mlx5dv_devx_free_uar(uars[a]);
        printf("%d", *fake(mlx5, "fake_freed"));
    } else if (IS("register")) { /* of a register, or of other memory */
        void *at = a >= 0 ? uars[a]->reg_addr : (void *)in;
        int result = api.cuMemHostRegister_v2(at, 8, (unsigned)b);
        printf("{\"result\": %d, \"flags\": %d}", result, *fake(cuda, "fake_flags"));
    } else if (IS("umem")) { /* in the GPU, or the host's */
        memories[umem_count] = b ? (uint8_t *)fake(cuda, "fake_gpu") : aligned_alloc(4096, (size_t)a);
        umems[umem_count] = api.mlx5dv_devx_umem_reg(&context, memories[umem_count], (size_t)a, 7);
        printf("{\"errno\": %d, \"made\": %d, \"at\": %llu}", errno, umems[umem_count] != NULL,
               (unsigned long long)(uintptr_t)memories[umem_count]);
        umem_count++;
    } else if (IS("dmabuf")) { /* of the GPU's memory from `a` on, or of another file */
        uint64_t at = (uintptr_t)fake(cuda, "fake_gpu") + (uint64_t)a;
        if (dmabuf >= 0)
            close(dmabuf);
        int made = -1;
        if (a < 0)
            made = memfd_create("other", 0);
        else if (api.cuMemGetHandleForAddressRange(&made, at, 4096, 1, 0))
            die("handle");
        dmabuf = made;
        struct mlx5dv_devx_umem_in ex = {.addr = (void *)(uintptr_t)b,
                                         .size = 4096,
                                         .comp_mask = MLX5DV_UMEM_MASK_DMABUF,
                                         .dmabuf_fd = made};
        umems[umem_count++] = api.mlx5dv_devx_umem_reg_ex(&context, &ex);
        printf("{\"fd\": %d, \"at\": %llu}", made, a < 0 ? 0 : (unsigned long long)at);
    } else if (IS("dereg")) {
        int result = api.mlx5dv_devx_umem_dereg(umems[a]);
        printf("{\"result\": %d, \"errno\": %d}", result, errno);
    } else if (IS("create")) {
        size_t size = unhex(hex, in);
        objects[object_count] = api.mlx5dv_devx_obj_create(&context, in, size, out, sizeof(out));
        printf("{\"errno\": %d, \"made\": %d}", errno, objects[object_count] != NULL);
        object_count++;
    } else if (IS("template")) {
        create_size = a ? create_size : unhex(hex, create_qp);
        to_init_size = a ? unhex(hex, to_init) : to_init_size;
        printf("0");
    } else if (IS("modify")) {
        size_t size = unhex(hex, in);
        int result = api.mlx5dv_devx_obj_modify(objects[a], in, size, out, sizeof(out));
        printf("{\"result\": %d, \"errno\": %d}", result, errno);
    } else if (IS("destroy")) {
        int result = api.mlx5dv_devx_obj_destroy(objects[a]);
        printf("{\"result\": %d, \"errno\": %d}", result, errno);
    } else if (IS("put")) { /* into a umem's memory */
        size_t size = unhex(hex, in);
        memcpy(memories[a] + b, in, size);
        printf("%zu", size);
    } else if (IS("ring") || IS("store")) {
        *(volatile uint64_t *)uars[a]->reg_addr = (uint64_t)b;
        printf("%d", IS("ring") ? arrives(real_of(uars[a]), (uint64_t)b) : 1);
    } else if (IS("fail")) {
        *fake(mlx5, "fake_fail") = (int)a;
        printf("0");
    } else if (IS("probe")) {
        probe();
        int before = threads_now();
        for (long long i = 1; i < a; i++)
            probe();
        printf("{\"before\": %d, \"after\": %d, \"freed\": %d, \"flags\": %d}", before,
               threads_now(), *fake(mlx5, "fake_freed"), *fake(cuda, "fake_flags"));
    } else if (IS("threads")) {
        run_threads((int)a, (int)b);
        printf("%d", *fake(mlx5, "fake_freed"));
    } else if (IS("ask")) {
        ask(hex, (int)a, (int)b);
    } else if (IS("init_obj")) {
        init_obj((int)a, (unsigned)b);
    } else if (IS("fork")) { /* the child ends what there is, and asks for more */
        printf("%d", in_a_child());
    } else if (IS("sleep")) {
        usleep((useconds_t)a * 1000);
        printf("0");
    } else {
        die(word);
    }
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t room = 0;
    const char *comma = "[";
    reach(argc > 1 ? argv[1] : "link");
    while (getline(&line, &room, stdin) > 0) {
        printf("%s", comma);
        carry_out(line);
        comma = ", ";
    }
    printf("]\n");
    free(line);
    return 0;
}
