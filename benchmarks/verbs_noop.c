/* libibverbs.so.1 that does nothing, as fast as that goes: what is left is the cost of the shim. */
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr
#undef ibv_query_port

#define DEPTH 256u /* a power of two; more than any batch */

struct queue {
    struct ibv_cq_ex base;
    uint64_t wr_ids[DEPTH];
    uint32_t in, out;
    uint32_t qp_num;
};

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct queue *queue = (struct queue *)qp->send_cq;
    (void)bad;
    for (; wr; wr = wr->next)
        queue->wr_ids[queue->in++ % DEPTH] = wr->wr_id;
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)qp, (void)wr, (void)bad;
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    struct queue *queue = (struct queue *)cq;
    int got = 0;
    if (queue->in - queue->out > DEPTH) /* of what nobody polled, the rest */
        queue->out = queue->in - DEPTH;
    for (; got < count && queue->out != queue->in; got++) {
        wc[got].wr_id = queue->wr_ids[queue->out++ % DEPTH];
        wc[got].status = IBV_WC_SUCCESS;
        wc[got].opcode = IBV_WC_RDMA_WRITE;
        wc[got].qp_num = queue->qp_num;
        wc[got].wc_flags = 0;
    }
    return got;
}

struct ibv_device **ibv_get_device_list(int *count)
{
    static struct ibv_device device = {.name = "noop0"}, *list[2] = {&device};
    if (count)
        *count = 1;
    return list;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct verbs_context *context = calloc(1, sizeof(*context));
    context->sz = sizeof(*context);
    context->context.device = device;
    context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context->context.ops.post_send = post_send;
    context->context.ops.post_recv = post_recv;
    context->context.ops.poll_cq = poll_cq;
    return &context->context;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    memset(attr, 0, sizeof(*attr));
    return 0;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
    (void)device;
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    pd->context = context;
    return pd;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    struct queue *queue = calloc(1, sizeof(*queue));
    (void)cq_context, (void)channel, (void)vector;
    queue->base.context = context;
    queue->base.cqe = cqe;
    return (struct ibv_cq *)queue;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp *qp = calloc(1, sizeof(struct ibv_qp_ex));
    qp->context = pd->context;
    qp->send_cq = attr->send_cq;
    qp->recv_cq = attr->recv_cq;
    qp->qp_type = attr->qp_type;
    qp->qp_num = 17;
    ((struct queue *)attr->send_cq)->qp_num = qp->qp_num;
    return qp;
}
