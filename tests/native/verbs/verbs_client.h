/* The least that a client does: one signaled write, to a queue pair connected to itself, and its
 * completion. The functions are those that the client was given, however it came to them. */
#ifndef VERBS_CLIENT_H
#define VERBS_CLIENT_H

#include <infiniband/verbs.h>
#include <stdint.h>

#undef ibv_reg_mr

#define CLIENT_FUNCTIONS(X)                                                                        \
    X(ibv_alloc_pd) X(ibv_dealloc_pd) X(ibv_reg_mr) X(ibv_dereg_mr) X(ibv_create_cq)               \
    X(ibv_destroy_cq) X(ibv_create_qp) X(ibv_modify_qp) X(ibv_destroy_qp)
struct client {
#define FIELD(name) __typeof__(&name) name;
    CLIENT_FUNCTIONS(FIELD)
#undef FIELD
};

static int client_write(const struct client *c, struct ibv_context *context)
{
    static char memory[64];
    struct ibv_pd *pd = c->ibv_alloc_pd(context);
    struct ibv_mr *mr = c->ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq *cq = c->ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4}};
    struct ibv_qp *qp = c->ibv_create_qp(pd, &init);
    if (!qp || !mr)
        return 1;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .dest_qp_num = qp->qp_num};
    struct ibv_sge sge = {(uintptr_t)memory, 24, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 6,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)memory, mr->rkey}},
                       *bad;
    struct ibv_wc wc;
    if (c->ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN) ||
        ibv_post_send(qp, &wr, &bad) || ibv_poll_cq(cq, 1, &wc) != 1 || wc.status)
        return 2;
    return c->ibv_destroy_qp(qp) || c->ibv_destroy_cq(cq) || c->ibv_dereg_mr(mr) ||
           c->ibv_dealloc_pd(pd);
}

#endif
