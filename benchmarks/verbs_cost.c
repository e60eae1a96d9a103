/* What the verbs shim adds to a call, in ns: batches of every way in turn over a library that
 * does nothing. Prints "NAME CLOCK NS NS ..." for each way and clock: wall, and the processor time
 * of the thread.
 * usage: verbs_cost ROUNDS EVENTS NAME... */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>

#ifdef WITH_LTTNG
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "record_cost.h"
#endif

#define LIST 16u

static struct ibv_qp *qp;
static struct ibv_cq *cq, *idle;
static volatile uint64_t sink;

enum { WALL, THREAD, CLOCKS };
static const char *const clock_names[CLOCKS] = {"wall", "thread"};

static double clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void begin(void)
{
    struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 256, NULL, NULL, 0);
    idle = ibv_create_cq(context, 256, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = 256, .max_recv_wr = 256},
                                    .qp_type = IBV_QPT_RC};
    qp = ibv_create_qp(pd, &attr);
}

static void tsc(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        sink = __rdtsc();
}

static void post(uint64_t n)
{
    struct ibv_sge sge = {0x1000, 4096, 1};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    for (uint64_t i = 0; i < n; i++) {
        wr.wr_id = i;
        wr.wr.rdma.remote_addr = i;
        wr.send_flags = IBV_SEND_SIGNALED;
        sink = (uint64_t)ibv_post_send(qp, &wr, &bad);
    }
}

static void drain(void)
{
    struct ibv_wc wc[LIST];
    while (ibv_poll_cq(cq, LIST, wc) > 0)
        ;
}

/* Requests one by one; their completions 16 at a time: one event is one of either. */
static void post_and_poll(uint64_t n)
{
    drain();
    for (uint64_t i = 0; i < n; i += 2 * LIST) {
        struct ibv_wc wc[LIST];
        post(LIST);
        sink = (uint64_t)ibv_poll_cq(cq, LIST, wc);
    }
}

static void post_list(uint64_t n)
{
    struct ibv_sge sge = {0x1000, 4096, 1};
    struct ibv_send_wr list[LIST], *bad;
    for (uint64_t i = 0; i < LIST; i++)
        list[i] = (struct ibv_send_wr){.wr_id = i,
                                       .next = i + 1 < LIST ? &list[i + 1] : NULL,
                                       .sg_list = &sge,
                                       .num_sge = 1,
                                       .opcode = IBV_WR_SEND,
                                       .send_flags = IBV_SEND_SIGNALED};
    for (uint64_t i = 0; i < n; i += LIST)
        sink = (uint64_t)ibv_post_send(qp, list, &bad);
}

static void poll_empty(uint64_t n)
{
    struct ibv_wc wc;
    for (uint64_t i = 0; i < n; i++)
        sink = (uint64_t)ibv_poll_cq(idle, 1, &wc);
}

#ifdef WITH_LTTNG
/* A tracepoint before each request, with the payload of an `op` record. */
static void lttng(uint64_t n)
{
    struct ibv_sge sge = {0x1000, 4096, 1};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    for (uint64_t i = 0; i < n; i++) {
        wr.wr_id = i;
        lttng_ust_tracepoint(sigmatrace_bench, op, __rdtsc(), 4096, 0, (uint32_t)i, 1, 0);
        sink = (uint64_t)ibv_post_send(qp, &wr, &bad);
    }
}
#endif

static const struct {
    const char *name;
    void (*run)(uint64_t n);
} ways[] = {{"tsc", tsc},
            {"post", post},
            {"post_list", post_list},
            {"post_and_poll", post_and_poll},
            {"poll_empty", poll_empty},
#ifdef WITH_LTTNG
            {"lttng", lttng},
#endif
};

static int find(const char *name)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        if (!strcmp(ways[i].name, name))
            return (int)i;
    fprintf(stderr, "verbs_cost: no way is called %s\n", name);
    exit(2);
}

static void batch(int way, uint64_t events, double times[CLOCKS])
{
    double thread = clock_ns(CLOCK_THREAD_CPUTIME_ID), wall = clock_ns(CLOCK_MONOTONIC);
    ways[way].run(events);
    times[WALL] = (clock_ns(CLOCK_MONOTONIC) - wall) / (double)events;
    times[THREAD] = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - thread) / (double)events;
}

int main(int argc, char **argv)
{
    int rounds = argc > 3 ? atoi(argv[1]) : 0, names = argc - 3;
    uint64_t events = argc > 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (rounds < 1 || !events)
        return 2;
    begin();
    double(*times)[CLOCKS] = calloc((size_t)(rounds * names), sizeof(*times)), warm[CLOCKS];
    for (int round = -1; round < rounds; round++) /* round -1 warms up */
        for (int i = 0; i < names; i++)
            batch(find(argv[3 + i]), events, round < 0 ? warm : times[i * rounds + round]);
    for (int i = 0; i < names; i++)
        for (int clock = 0; clock < CLOCKS; clock++) {
            printf("%s %s", argv[3 + i], clock_names[clock]);
            for (int round = 0; round < rounds; round++)
                printf(" %.3f", times[i * rounds + round][clock]);
            printf("\n");
        }
    free(times);
    return 0;
}
