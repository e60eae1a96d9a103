/* Cases of the driver's with queue pairs that libmlx5 makes: rings, records and numbers of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_ring.h"
#include "hooks_driver.h"

static struct ibv_qp *qps[MANY];
static struct mlx5dv_qp told[MANY];
static int count;

static struct fake_ring *ring_of(uint32_t number)
{
    struct fake_ring *rings = (void *)fake(mlx5, "fake_rings");
    return &rings[number % FAKE_RINGS];
}

static void ask_of(int i)
{
    struct mlx5dv_obj object = {.qp = {qps[i], &told[i]}};
    if (api.mlx5dv_init_obj(&object, MLX5DV_OBJ_QP))
        die("init_obj");
    printf("{\"number\": %u, \"reg\": %llu}", qps[i]->qp_num,
           (unsigned long long)(uintptr_t)told[i].bf.reg);
}

void do_pair(const struct line *line)
{
    qps[count] = calloc(1, sizeof(*qps[count]));
    *qps[count] = (struct ibv_qp){.context = &context,
                                  .qp_num = (uint32_t)line->b,
                                  .qp_type = (enum ibv_qp_type)line->a};
    ask_of(count++);
}

/* Of this type, and with a key. */
void do_dc(const struct line *line)
{
    struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_DRIVER};
    struct mlx5dv_qp_init_attr more = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC};
    more.dc_init_attr.dc_type = (enum mlx5dv_dc_type)line->a;
    more.dc_init_attr.dct_access_key = (uint64_t)line->b;
    qps[count] = api.mlx5dv_create_qp(&context, &attr, &more);
    printf("{\"errno\": %d, \"made\": %d}", errno, qps[count] != NULL);
    count++;
}

void do_ready(const struct line *line)
{
    void (*ready)(struct ibv_qp *, uint32_t) = dlsym(mlx5, "fake_ready");
    ready(qps[line->a], (uint32_t)line->b);
    printf("0");
}

void do_modify_qp(const struct line *line)
{
    struct ibv_qp_attr attr = {.qp_state = (enum ibv_qp_state)line->b};
    int result = api.ibv_modify_qp(qps[line->a], &attr, IBV_QP_STATE);
    printf("{\"result\": %d, \"errno\": %d}", result, errno);
}

void do_destroy_qp(const struct line *line)
{
    int result = api.ibv_destroy_qp(qps[line->a]);
    printf("{\"result\": %d, \"errno\": %d}", result, errno);
}

void do_look(const struct line *line)
{
    ask_of((int)line->a);
}

void do_pair_put(const struct line *line)
{
    uint8_t in[1024];
    size_t size = unhex(line->hex, in);
    memcpy(ring_of(qps[line->a]->qp_num)->slots + line->b * 64, in, size);
    printf("%zu", size);
}

void do_pair_record(const struct line *line)
{
    __atomic_store_n(&ring_of(qps[line->a]->qp_num)->records[MLX5_SND_DBR],
                     htobe32((uint32_t)line->b), __ATOMIC_RELEASE);
    printf("0");
}

/* The real register is told so; not stored: by the tracer alone. */
void do_pair_ring(const struct line *line)
{
    uint8_t *page = (void *)fake(mlx5, "fake_bf_page");
    if (strcmp(line->hex, "none"))
        *(volatile uint64_t *)told[line->a].bf.reg = (uint64_t)line->b;
    bool wait = !strcmp(line->word, "pair_ring");
    printf("%d", !wait || arrives((void *)(page + 0xa00), (uint64_t)line->b));
}

void do_pair_end(const struct line *line)
{
    void (*destroy)(struct ibv_qp *) = dlsym(mlx5, "fake_destroy");
    destroy(qps[line->a]);
    printf("0");
}

void do_close(const struct line *line)
{
    (void)line;
    int result = api.ibv_close_device(&context);
    printf("{\"result\": %d, \"errno\": %d}", result, errno);
}
