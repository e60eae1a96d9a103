/* XRC: one connection to a process that has several shared receive queues. */
#include "verbs_driver.h"

static struct ibv_srq *shared_queue(struct ibv_xrcd *xrcd, struct ibv_cq *to, uint32_t *number)
{
    struct ibv_srq_init_attr_ex attr = {.attr = {.max_wr = 64},
                                        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                                                     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
                                        .srq_type = IBV_SRQT_XRC,
                                        .pd = pd,
                                        .xrcd = xrcd,
                                        .cq = to};
    struct ibv_srq *srq = ibv_create_srq_ex(context, &attr);
    CHECK(srq && !ibv_get_srq_num(srq, number));
    for (uint64_t i = 0; i < 8; i++) {
        struct ibv_recv_wr wr = {.wr_id = 100 * *number + i}, *bad;
        CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
    }
    return srq;
}

static void send_to(struct ibv_qp *qp, uint32_t number, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)memory, bytes, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .qp_type.xrc.remote_srqn = number},
                       *bad;
    CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* `mixed`: a third shared queue completes where the second does. Else the two have a completion
 * queue each, which are read in another order than the messages came in. */
void xrc(int mixed)
{
    struct ibv_xrcd_init_attr domain = {.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1};
    struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
    struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_XRC_RECV,
                                       .comp_mask = IBV_QP_INIT_ATTR_XRCD,
                                       .xrcd = xrcd};
    struct ibv_cq *cqs[2];
    struct ibv_srq *srqs[3];
    uint32_t numbers[3];
    for (int i = 0; i < 2; i++) {
        cqs[i] = ibv_create_cq(context, 64, NULL, NULL, 0);
        srqs[i] = shared_queue(xrcd, cqs[i], &numbers[i]);
    }
    if (mixed)
        srqs[2] = shared_queue(xrcd, cqs[1], &numbers[2]);
    struct ibv_qp *in = ibv_create_qp_ex(context, &attr), *out = make_extended(IBV_QPT_XRC_SEND);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(out);
    pair(in, out);
    for (uint32_t i = 0; i < 6; i++)
        send_to(out, numbers[i % (mixed ? 3 : 2)], 10 + i);
    ibv_wr_start(ex);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(ex);
    ibv_wr_set_xrc_srqn(ex, numbers[1]);
    ibv_wr_set_sge(ex, 0, 0, 77);
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory);
    ibv_wr_set_xrc_srqn(ex, numbers[0]);
    ibv_wr_set_sge(ex, 0, 0, 5);
    CHECK(!ibv_wr_complete(ex));
    CHECK(drain(cqs[1]) == (mixed ? 5 : 4) && drain(cqs[0]) == (mixed ? 2 : 3) && drain(cq) == 8);
    CHECK(!ibv_destroy_qp(in) && !ibv_destroy_qp(out));
    for (int i = 0; i < (mixed ? 3 : 2); i++)
        CHECK(!ibv_destroy_srq(srqs[i]));
    CHECK(!ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]) && !ibv_close_xrcd(xrcd));
}
