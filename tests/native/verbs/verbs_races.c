/* Programs of threads that meet in the shim, and of contexts that it did not see opened. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_control.h"
#include "verbs_driver.h"

#undef ibv_reg_mr

static pthread_barrier_t together;
static struct ibv_pd *domain;
static struct ibv_qp *queue_pair;

static void *register_memory(void *p)
{
    pthread_barrier_wait(&together);
    *(struct ibv_mr **)p = ibv_reg_mr(domain, memory, sizeof(memory), 0);
    return NULL;
}

static void *post_write(void *wr_id)
{
    pthread_barrier_wait(&together);
    CHECK(!post(queue_pair, IBV_WR_RDMA_WRITE, (uintptr_t)wr_id, 1, 8, IBV_SEND_SIGNALED));
    return NULL;
}

static void two(void *(*run)(void *), void *first, void *second)
{
    pthread_t threads[2];
    CHECK(!pthread_create(&threads[0], NULL, run, first));
    CHECK(!pthread_create(&threads[1], NULL, run, second));
    CHECK(!pthread_join(threads[0], NULL) && !pthread_join(threads[1], NULL));
}

/* As mlx5dv_open_device does: `times` contexts are opened behind the shim's back. The first calls
 * that name one, and then its queue pair, come from two threads at once. */
void behind(int times)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_cq *shared = cq;
    CHECK(!pthread_barrier_init(&together, NULL, 2));
    for (int i = 0; i < times; i++) {
        struct ibv_mr *regions[2];
        struct ibv_context *hidden = fake_open(list[0]);
        domain = fake_alloc_pd(hidden);
        cq = fake_create_cq(hidden);
        struct ibv_qp_init_attr init = {.send_cq = cq,
                                        .recv_cq = cq,
                                        .cap = {.max_send_wr = SENDS},
                                        .qp_type = IBV_QPT_RC};
        queue_pair = fake_create_qp(domain, &init);
        two(register_memory, &regions[0], &regions[1]);
        CHECK(regions[0] && regions[1]);
        pair(queue_pair, queue_pair);
        two(post_write, (void *)1, (void *)2);
        CHECK(drain(cq) == 2);
        CHECK(!ibv_destroy_qp(queue_pair) && !ibv_destroy_cq(cq));
        CHECK(!ibv_dereg_mr(regions[0]) && !ibv_dereg_mr(regions[1]) && !ibv_dealloc_pd(domain));
        CHECK(!ibv_close_device(hidden));
    }
    cq = shared;
    ibv_free_device_list(list);
}

static void *open_device(void *device)
{
    pthread_barrier_wait(&together);
    CHECK(ibv_open_device(device));
    return NULL;
}

/* Called before any device is open. */
void opened_at_once(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(!pthread_barrier_init(&together, NULL, 2));
    two(open_device, list[0], list[0]);
}

/* A request that lies across two pages: what says how many there are in a list is on the first one,
 * what it does on the second, which the thread that reads it finds locked. */
static uint8_t *pages;
static sem_t taken, go_on;

static void wait_in_fault(int signal, siginfo_t *info, void *context)
{
    int saved = errno;
    (void)signal, (void)context;
    if ((uint8_t *)info->si_addr < pages || (uint8_t *)info->si_addr >= pages + 8192)
        _exit(9);
    sem_post(&taken);
    while (sem_wait(&go_on))
        ;
    mprotect(pages + 4096, 4096, PROT_READ | PROT_WRITE);
    errno = saved;
}

static void *post_locked(void *wr)
{
    struct ibv_send_wr *bad;
    CHECK(!ibv_post_send(queue_pair, wr, &bad));
    return NULL;
}

/* A thread has taken position 0 and not yet written it down when the request of position 1 is posted
 * and completed; then it goes on. */
void late(int unused)
{
    (void)unused;
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct sigaction action = {.sa_sigaction = wait_in_fault, .sa_flags = SA_SIGINFO}, before;
    pthread_t thread;
    queue_pair = make_qp(IBV_QPT_RC, NULL, 0);
    pair(queue_pair, queue_pair);
    pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && !sem_init(&taken, 0, 0) && !sem_init(&go_on, 0, 0));
    struct ibv_send_wr *wr = (void *)(pages + 4096 - offsetof(struct ibv_send_wr, sg_list));
    *wr = (struct ibv_send_wr){.wr_id = 100,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .send_flags = IBV_SEND_SIGNALED,
                               .wr.rdma = {(uintptr_t)memory, mr->rkey}};
    CHECK(!mprotect(pages + 4096, 4096, PROT_NONE) && !sigaction(SIGSEGV, &action, &before));
    CHECK(!pthread_create(&thread, NULL, post_locked, wr));
    CHECK(!sem_wait(&taken));
    CHECK(!post(queue_pair, IBV_WR_RDMA_WRITE, 101, 1, 8, IBV_SEND_SIGNALED));
    CHECK(drain(cq) == 1);
    CHECK(!sem_post(&go_on) && !pthread_join(thread, NULL));
    CHECK(!sigaction(SIGSEGV, &before, NULL));
    CHECK(drain(cq) == 1);
    CHECK(!ibv_destroy_qp(queue_pair));
}
