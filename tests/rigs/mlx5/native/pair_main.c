/* gpu_pair: posts RDMA from a GPU's kernels, in the manner of several libraries, verifies all
 * memory and prints as JSON what it posted. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pair_host.h"

const char usage[] =
    "gpu_pair NAME=VALUE...: posts RDMA from a GPU's kernels, verifies all memory, and prints as\n"
    "JSON what it posted.\n"
    "  kernel=FILE      pair_kernel.cubin, or pair_kernel.so for the stand-in\n"
    "  ops=N            of each thread            bytes=N        of a WRITE, READ or SEND\n"
    "  mix=A,B,...      write read inline long add cas swap8 xor8 add4 swap4 imm send dump\n"
    "  dialect=         nvshmem doca rdma rocshmem blueflame proxy\n"
    "  uar=             own shared plain bf       memory=        gpu dmabuf host (of the rings)\n"
    "                   mirrored: send queues in the GPU, and for the NIC in the host\n"
    "  heap=            gpu dmabuf host, of the data (default: gpu, or dmabuf as the rings)\n"
    "  qps=N blocks=N threads=N slots=N group=N   (group: operations behind one doorbell)\n"
    "  dci=1 av=long    address vectors           make=verbs     queue pairs of libibverbs, or\n"
    "                                             of mlx5dv_create_qp; else of DEVX\n"
    "  mode=            run time pingpong         warmup=N       operations left out of the times\n"
    "  window=N         slots outstanding at most\n"
    "  fault=           remote_key local_key bounds index number opcode: every WQE is wrong\n"
    "  receives=1       the senders have receive queues, too, which come first in their memory\n"
    "  lives=N          queue pairs are reset and connected again   rounds=N   all is made anew\n"
    "  each=1           each round takes one of the mix\n"
    "  abandon=1        queue pairs are destroyed with operations outstanding; no verification\n"
    "  rank=R size=N folder=PATH                  several processes; folder: where they meet\n"
    "  gpus=N                                     that they share: rank R has R modulo N\n";
static atomic_bool proxy_ends;
static struct pair_args mix; /* of all rounds */

/* Rings for the GPU, as NVSHMEM's CPU handler does: the index's bits 16-23 in the first byte. */
static void proxy_ring(const struct pair_qp *qp, uint64_t next)
{
    uint32_t record = htobe32((uint32_t)next & 0xffff);
    uint32_t value[2] = {htobe32((uint32_t)(next << 8)), htobe32(qp->qpn << 8)};
    uint64_t both;
    memcpy(&both, value, sizeof(both));
    cuda_put(qp->record, &record, sizeof(record));
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store((_Atomic uint64_t *)(uintptr_t)qp->db, both);
}

static void *proxy_run(void *argument)
{
    struct pair_qp *qps = argument;
    uint64_t rung[MOST_QPS] = {0};
    cuda_enter();
    while (!atomic_load(&proxy_ends)) {
        bool worked = false;
        for (uint32_t k = 0; k < options.qps; k++) {
            uint64_t next = atomic_load((_Atomic uint64_t *)(uintptr_t)qps[k].proxy);
            if (next == rung[k])
                continue;
            proxy_ring(&qps[k], next);
            rung[k] = next;
            worked = true;
        }
        if (!worked)
            sched_yield();
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void times_print(void)
{
    uint32_t count = options.args.operations, from = options.warmup < count ? options.warmup : 0;
    uint64_t *times = malloc(count * sizeof(*times));
    need("memory", !times);
    cuda_get(times, options.args.times, count * sizeof(*times));
    qsort(times + from, count - from, sizeof(*times), by_value);
    printf(", \"ns\": {");
    static const unsigned shares[] = {50, 90, 99};
    for (size_t i = 0; i < sizeof(shares) / sizeof(*shares); i++)
        printf("%s\"p%u\": %" PRIu64, i ? ", " : "", shares[i],
               times[from + (uint64_t)(count - from - 1) * shares[i] / 100]);
    printf("}");
    free(times);
}

/* From the first thread's begin to the last one's end. */
static void span_print(void)
{
    uint32_t count = options.blocks * options.threads;
    uint64_t *times = malloc(count * 2 * sizeof(*times)), begin = UINT64_MAX, end = 0;
    need("memory", !times);
    cuda_get(times, options.args.times, count * 2 * sizeof(*times));
    for (uint32_t i = 0; i < count; i++) {
        begin = times[2 * i] < begin ? times[2 * i] : begin;
        end = times[2 * i + 1] > end ? times[2 * i + 1] : end;
    }
    printf(", \"gpu_ns\": %" PRIu64, end - begin);
    free(times);
}

static void report(const struct pair_qp *qps, uint64_t wrong, uint64_t run_ns)
{
    printf("{\"rank\": %u, \"lid\": %u, \"remote_lid\": %u, \"wrong\": %" PRIu64
           ", \"run_ns\": %" PRIu64,
           options.rank, setup.mine.lid, setup_to(0)->lid, wrong, run_ns);
    printf(", \"mode\": \"%s\", \"kind\": \"%s\"", mode_names[options.mode],
           kind_names[options.args.kind[0]]);
    if (options.mode == RUN)
        span_print();
    else
        times_print();
    queues_print(qps);
    printf("}\n");
}

static uint64_t kernels_run(struct pair_qp *qps)
{
    static const char *const names[] = {"pair_run", "pair_time", "pair_pingpong"};
    bool has_proxy = options.args.dialect == PAIR_PROXY;
    pthread_t proxy;
    options.args.qps = setup.qps;
    uint64_t threads = options.blocks * options.threads, operations = options.args.operations;
    uint64_t times = operations > 2 * threads ? operations : 2 * threads;
    options.args.times = cuda_memory(times * 8, IN_GPU);
    if (has_proxy)
        need("pthread_create", pthread_create(&proxy, NULL, proxy_run, qps));
    bool many = options.mode == RUN;
    uint64_t took = cuda_run(names[options.mode], &options.args, many ? options.blocks : 1,
                             many ? options.threads : 1);
    if (has_proxy) {
        atomic_store(&proxy_ends, true);
        pthread_join(proxy, NULL);
    }
    return took;
}

/* One life of the queue pairs: all operations, and what came of them. */
static uint64_t life_run(struct pair_qp *qps, uint64_t *took)
{
    cuda_get(qps, setup.qps, options.qps * sizeof(*qps));
    *took += kernels_run(qps);
    if (!options.args.abandon)
        meet("done");
    cuda_get(qps, setup.qps, options.qps * sizeof(*qps));
    if (options.args.abandon)
        return 0;
    uint64_t wrong = options.mode == PINGPONG ? 0 : heap_verify(qps);
    /* The other end may still be asked. */
    meet("verified");
    return wrong;
}

static uint64_t round_run(void)
{
    static struct pair_qp qps[MOST_QPS];
    uint64_t wrong, took = 0;
    setup_open();
    setup_queues();
    setup_connect();
    wrong = life_run(qps, &took);
    for (uint32_t i = 1; i < options.lives; i++) {
        setup_again();
        wrong += life_run(qps, &took);
    }
    setup_close();
    report(qps, wrong, took);
    return wrong;
}

int main(int count, char **texts)
{
    uint64_t wrong = 0;
    options_read(count, texts);
    mix = options.args;
    cuda_start();
    for (uint32_t i = 0; i < options.rounds; i++) {
        if (options.each) {
            options.args.kinds = 1;
            options.args.kind[0] = mix.kind[i % mix.kinds];
        }
        wrong += round_run();
    }
    return wrong ? 1 : 0;
}
