/* What the verbs shim adds to a call, in ns, over a library that does nothing.
 * usage: verbs_cost ROUNDS EVENTS NAME... */
#include <infiniband/verbs.h>
#include <x86intrin.h>

#include "batches.h"

#define LIST 16u

static struct ibv_qp *qp;
static struct ibv_cq *cq, *idle;

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

static const struct way ways[] = {
    {"tsc", tsc},
    {"post", post},
    {"post_list", post_list},
    {"post_and_poll", post_and_poll},
    {"poll_empty", poll_empty},
#ifdef WITH_LTTNG
    {"lttng", lttng},
#endif
    {NULL, NULL}};

int main(int argc, char **argv)
{
    const struct bench bench = {begin, NULL, ways};
    return run_bench(&bench, argc, argv);
}
