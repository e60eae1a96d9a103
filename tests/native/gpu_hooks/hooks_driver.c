/* Carries out the lines of its input, and tells of each: a program over libmlx5 and CUDA. It
 * reaches them by link symbols (LINKED), or by dlsym or dlvsym, as its argument says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "hooks_driver.h"

struct api api;
void *mlx5, *cuda;
struct ibv_context context;

static struct commands commands;
static struct mlx5dv_devx_uar *uars[MANY];
static struct mlx5dv_devx_umem *umems[MANY];
static struct mlx5dv_devx_obj *objects[MANY];
static uint8_t *memories[MANY];
static int uar_count, umem_count, object_count, dmabuf = -1;

void die(const char *what)
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

int *fake(void *library, const char *name)
{
    int *found = dlsym(library, name);
    if (!found)
        die(name);
    return found;
}

volatile uint64_t *real_of(const struct mlx5dv_devx_uar *uar)
{
    return (void *)((uintptr_t)uar->base_addr | ((uintptr_t)uar->reg_addr & 0xfff));
}

int arrives(volatile uint64_t *real, uint64_t value)
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

size_t unhex(const char *text, uint8_t *out)
{
    size_t n = strlen(text) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        out[i] = (uint8_t)byte;
    }
    return n;
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

static void do_init(const struct line *line)
{
    (void)line;
    printf("%d", api.cuInit(0));
}

static void do_uar(const struct line *line)
{
    struct mlx5dv_devx_uar *uar = api.mlx5dv_devx_alloc_uar(&context, (uint32_t)line->a);
    int error = errno;
    uars[uar_count++] = uar;
    printf("{\"errno\": %d, \"reg\": %llu, \"base\": %llu, \"page\": %u}", error,
           uar ? (unsigned long long)(uintptr_t)uar->reg_addr : 0,
           uar ? (unsigned long long)(uintptr_t)uar->base_addr : 0, uar ? uar->page_id : 0);
}

static void do_free(const struct line *line)
{
    api.mlx5dv_devx_free_uar(uars[line->a]);
    printf("%d", *fake(mlx5, "fake_freed"));
}

static void do_export(const struct line *line)
{
    int fd = api.mlx5dv_devx_uar_export_dmabuf_fd(uars[line->a]), error = errno;
    printf("{\"fd\": %d, \"errno\": %d}", fd, error);
}

static void do_ports(const struct line *line)
{
    *fake(mlx5, "fake_ports") = (int)line->a;
    printf("0");
}

/* Of a register, of the place on its page where doorbells need no record, or of other memory. */
static void do_register(const struct line *line)
{
    uint8_t in[1024];
    void *at = line->a >= 0 ? uars[line->a]->reg_addr : (void *)in;
    if (!strcmp(line->hex, "base"))
        at = (uint8_t *)uars[line->a]->base_addr + 0x600;
    int result = api.cuMemHostRegister_v2(at, 8, (unsigned)line->b);
    printf("{\"result\": %d, \"flags\": %d}", result, *fake(cuda, "fake_flags"));
}

/* In the GPU, or the host's. */
static void do_umem(const struct line *line)
{
    size_t size = (size_t)line->a;
    uint8_t *at = line->b ? (uint8_t *)fake(cuda, "fake_gpu") : aligned_alloc(4096, size);
    memories[umem_count] = at;
    umems[umem_count] = api.mlx5dv_devx_umem_reg(&context, at, size, 7);
    printf("{\"errno\": %d, \"made\": %d, \"at\": %llu}", errno, umems[umem_count] != NULL,
           (unsigned long long)(uintptr_t)at);
    umem_count++;
}

/* Of the GPU's memory from `a` on, or of another file. */
static void do_dmabuf(const struct line *line)
{
    uint64_t at = (uintptr_t)fake(cuda, "fake_gpu") + (uint64_t)line->a;
    if (dmabuf >= 0)
        close(dmabuf);
    int made = -1;
    if (line->a < 0)
        made = memfd_create("other", 0);
    else if (api.cuMemGetHandleForAddressRange(&made, at, 4096, 1, 0))
        die("handle");
    dmabuf = made;
    struct mlx5dv_devx_umem_in ex = {.addr = (void *)(uintptr_t)line->b,
                                     .size = 4096,
                                     .comp_mask = MLX5DV_UMEM_MASK_DMABUF,
                                     .dmabuf_fd = made};
    umems[umem_count++] = api.mlx5dv_devx_umem_reg_ex(&context, &ex);
    printf("{\"fd\": %d, \"at\": %llu}", made, line->a < 0 ? 0 : (unsigned long long)at);
}

static void do_dereg(const struct line *line)
{
    int result = api.mlx5dv_devx_umem_dereg(umems[line->a]);
    printf("{\"result\": %d, \"errno\": %d}", result, errno);
}

static void do_create(const struct line *line)
{
    uint8_t in[1024], out[16];
    size_t size = unhex(line->hex, in);
    objects[object_count] = api.mlx5dv_devx_obj_create(&context, in, size, out, sizeof(out));
    printf("{\"errno\": %d, \"made\": %d}", errno, objects[object_count] != NULL);
    object_count++;
}

static void do_template(const struct line *line)
{
    if (line->a)
        commands.to_init_size = unhex(line->hex, commands.to_init);
    else
        commands.create_size = unhex(line->hex, commands.create);
    printf("0");
}

static void do_modify(const struct line *line)
{
    uint8_t in[1024], out[16];
    size_t size = unhex(line->hex, in);
    int result = api.mlx5dv_devx_obj_modify(objects[line->a], in, size, out, sizeof(out));
    printf("{\"result\": %d, \"errno\": %d}", result, errno);
}

static void do_destroy(const struct line *line)
{
    int result = api.mlx5dv_devx_obj_destroy(objects[line->a]);
    printf("{\"result\": %d, \"errno\": %d}", result, errno);
}

/* Into a umem's memory. */
static void do_put(const struct line *line)
{
    uint8_t in[1024];
    size_t size = unhex(line->hex, in);
    memcpy(memories[line->a] + line->b, in, size);
    printf("%zu", size);
}

static void do_ring(const struct line *line)
{
    *(volatile uint64_t *)uars[line->a]->reg_addr = (uint64_t)line->b;
    bool wait = !strcmp(line->word, "ring");
    printf("%d", !wait || arrives(real_of(uars[line->a]), (uint64_t)line->b));
}

static void do_fail(const struct line *line)
{
    *fake(mlx5, "fake_fail") = (int)line->a;
    printf("0");
}

static void do_probe(const struct line *line)
{
    probe();
    int before = threads_now();
    for (long long i = 1; i < line->a; i++)
        probe();
    printf("{\"before\": %d, \"after\": %d, \"freed\": %d, \"flags\": %d}", before,
           threads_now(), *fake(mlx5, "fake_freed"), *fake(cuda, "fake_flags"));
}

static void do_threads(const struct line *line)
{
    commands.rounds = (int)line->b;
    run_threads((int)line->a, &commands);
    printf("%d", *fake(mlx5, "fake_freed"));
}

static void do_ask(const struct line *line)
{
    ask(line->hex, (int)line->a, (int)line->b);
}

static void do_init_obj(const struct line *line)
{
    init_obj((int)line->a, (unsigned)line->b);
}

static void do_fork(const struct line *line)
{
    (void)line;
    printf("%d", in_a_child(objects[0], uars[0]));
}

/* A variable of the fake CUDA's: "kernel", "life", "current", "devices", ... */
static void do_cuda(const struct line *line)
{
    char name[64];
    snprintf(name, sizeof(name), "fake_%.40s", line->hex);
    *fake(cuda, name) = (int)line->a;
    printf("0");
}

/* Until a variable of the fake CUDA's has this value. */
static void do_await(const struct line *line)
{
    char name[64];
    snprintf(name, sizeof(name), "fake_%.40s", line->hex);
    const int *value = fake(cuda, name);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        sched_yield();
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begin.tv_sec > WAIT_S)
            die(name);
    } while (__atomic_load_n(value, __ATOMIC_SEQ_CST) != (int)line->a);
    printf("0");
}

static void do_end(const struct line *line)
{
    int result = !strcmp(line->hex, "destroy") ? api.cuCtxDestroy_v2(fake(cuda, "fake_context"))
                 : !strcmp(line->hex, "reset") ? api.cuDevicePrimaryCtxReset_v2(0)
                                               : api.cuDevicePrimaryCtxRelease_v2(0);
    printf("%d", result);
}

static void do_sleep(const struct line *line)
{
    usleep((useconds_t)line->a * 1000);
    printf("0");
}

static const struct {
    const char *word;
    void (*run)(const struct line *);
} words[] = {
    {"init", do_init},
    {"uar", do_uar},
    {"free", do_free},
    {"register", do_register},
    {"umem", do_umem},
    {"dmabuf", do_dmabuf},
    {"dereg", do_dereg},
    {"create", do_create},
    {"template", do_template},
    {"modify", do_modify},
    {"destroy", do_destroy},
    {"put", do_put},
    {"ring", do_ring},
    {"store", do_ring},
    {"fail", do_fail},
    {"probe", do_probe},
    {"threads", do_threads},
    {"ask", do_ask},
    {"init_obj", do_init_obj},
    {"export", do_export},
    {"ports", do_ports},
    {"pair", do_pair},
    {"dc", do_dc},
    {"ready", do_ready},
    {"modify_qp", do_modify_qp},
    {"destroy_qp", do_destroy_qp},
    {"look", do_look},
    {"pair_put", do_pair_put},
    {"pair_record", do_pair_record},
    {"pair_ring", do_pair_ring},
    {"pair_store", do_pair_ring},
    {"pair_end", do_pair_end},
    {"close", do_close},
    {"fork", do_fork},
    {"sleep", do_sleep},
    {"cuda", do_cuda},
    {"await", do_await},
    {"end", do_end},
};

static void carry_out(const char *text)
{
    char word[32] = "";
    struct line line = {.word = word};
    sscanf(text, "%31s %lli %lli %2047s", word, &line.a, &line.b, line.hex);
    errno = 0;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strcmp(words[i].word, word)) {
            words[i].run(&line);
            return;
        }
    die(word);
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
