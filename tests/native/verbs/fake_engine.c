/* The loopback: a request is carried out at once, in memory, between queue pairs of the process. */
#include <errno.h>
#include <string.h>

#include "fake_ibverbs.h"

#define UNDEFINED 0x5a5a5a5a /* where the API defines nothing */

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static void complete(struct ibv_cq *to, const struct ibv_wc *wc, uint64_t sent_to)
{
    struct fake_cq *cq = (struct fake_cq *)to;
    cq->wcs[cq->in % FAKE_DEPTH] = *wc;
    cq->sent_to[cq->in++ % FAKE_DEPTH] = sent_to;
}

static void failed(struct fake_qp *qp, struct ibv_cq *cq, uint64_t wr_id,
                   enum ibv_wc_status status, uint64_t sent_to)
{
    struct ibv_wc wc;
    memset(&wc, 0x5a, sizeof(wc));
    wc.wr_id = wr_id;
    wc.status = status;
    wc.qp_num = qp->ex.qp_base.qp_num;
    complete(cq, &wc, sent_to);
}

void fake_flush(struct fake_qp *qp)
{
    struct ibv_qp *base = &qp->ex.qp_base;
    base->state = IBV_QPS_ERR;
    for (; qp->receives.out != qp->receives.in; qp->receives.out++)
        failed(qp, base->recv_cq, qp->receives.entries[qp->receives.out % FAKE_DEPTH].wr_id,
               IBV_WC_WR_FLUSH_ERR, 0);
}

static uint64_t bytes_of(const struct ibv_send_wr *wr)
{
    uint64_t bytes = 0;
    for (int i = 0; i < wr->num_sge; i++)
        bytes += wr->sg_list[i].length;
    return bytes;
}

static bool arrives(const struct ibv_send_wr *wr)
{
    return wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM ||
           wr->opcode == IBV_WR_SEND_WITH_INV || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static enum ibv_wc_status deliver(struct fake_qp *from, const struct ibv_send_wr *wr)
{
    bool datagram = from->ex.qp_base.qp_type == IBV_QPT_UD;
    struct fake_qp *to = fake_qp_of(datagram ? wr->wr.ud.remote_qpn : from->destination);
    if (!to || to->ex.qp_base.state == IBV_QPS_ERR)
        return datagram ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR;
    bool xrc = from->ex.qp_base.qp_type == IBV_QPT_XRC_SEND;
    struct fake_srq *srq = xrc ? fake_srq_of(wr->qp_type.xrc.remote_srqn)
                               : (struct fake_srq *)to->ex.qp_base.srq;
    struct fake_receives *receives = srq ? &srq->receives : &to->receives;
    if (receives->in == receives->out)
        return datagram ? IBV_WC_SUCCESS : IBV_WC_RNR_RETRY_EXC_ERR;
    struct ibv_wc wc = {.wr_id = receives->entries[receives->out++ % FAKE_DEPTH].wr_id,
                        .opcode = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM
                                      ? IBV_WC_RECV_RDMA_WITH_IMM
                                      : IBV_WC_RECV,
                        .byte_len = (uint32_t)bytes_of(wr) + (datagram ? 40 : 0),
                        .qp_num = to->ex.qp_base.qp_num,
                        .src_qp = datagram ? from->ex.qp_base.qp_num : 0};
    if (wr->opcode == IBV_WR_SEND_WITH_INV) {
        wc.wc_flags = IBV_WC_WITH_INV;
        wc.invalidated_rkey = wr->invalidate_rkey;
        fake_invalidate(wr->invalidate_rkey);
    } else if (wr->opcode != IBV_WR_SEND) {
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = wr->imm_data;
    }
    complete(xrc ? srq->cq : to->ex.qp_base.recv_cq, &wc, 0);
    return IBV_WC_SUCCESS;
}

static enum ibv_wc_status carry_out(struct fake_qp *qp, const struct ibv_send_wr *wr,
                                    enum ibv_wc_opcode *opcode)
{
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    bool there = true;
    switch (wr->opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        *opcode = IBV_WC_RDMA_WRITE;
        there = fake_reaches(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, bytes_of(wr));
        break;
    case IBV_WR_RDMA_READ:
        *opcode = IBV_WC_RDMA_READ;
        there = fake_reaches(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, bytes_of(wr));
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        *opcode = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD;
        there = fake_reaches(wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, 8);
        break;
    case IBV_WR_LOCAL_INV:
        *opcode = IBV_WC_LOCAL_INV;
        fake_invalidate(wr->invalidate_rkey);
        break;
    case IBV_WR_BIND_MW:
        *opcode = IBV_WC_BIND_MW;
        fake_bind(wr);
        break;
    default:
        *opcode = IBV_WC_SEND;
    }
    if (!there)
        status = IBV_WC_REM_ACCESS_ERR;
    else if (arrives(wr))
        status = deliver(qp, wr);
    return status;
}

static void post_one(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    struct ibv_qp *base = &qp->ex.qp_base;
    uint64_t sent_to = ++qp->posted;
    if (base->state == IBV_QPS_ERR) {
        failed(qp, base->send_cq, wr->wr_id, IBV_WC_WR_FLUSH_ERR, sent_to);
        return;
    }
    struct ibv_wc wc = {.wr_id = wr->wr_id, .qp_num = base->qp_num, .byte_len = UNDEFINED};
    wc.status = carry_out(qp, wr, &wc.opcode);
    if (wc.status != IBV_WC_SUCCESS) {
        failed(qp, base->send_cq, wr->wr_id, wc.status, sent_to);
        fake_flush(qp);
    } else if (qp->signal_all || wr->send_flags & IBV_SEND_SIGNALED) {
        complete(base->send_cq, &wc, sent_to);
    }
}

int fake_post_list(struct fake_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    for (; wr; wr = wr->next) {
        bool ready = qp->ex.qp_base.state == IBV_QPS_RTS || qp->ex.qp_base.state == IBV_QPS_ERR;
        if (!ready)
            return EINVAL; /* as some providers do it, without a word which one */
        if (qp->posted - qp->freed >= qp->max_send) {
            *bad = wr;
            return ENOMEM;
        }
        post_one(qp, wr);
    }
    return 0;
}

int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    pthread_mutex_lock(&fake_lock);
    int result = fake_post_list((struct fake_qp *)qp, wr, bad);
    pthread_mutex_unlock(&fake_lock);
    return result;
}

static int post_receives(struct fake_receives *receives, struct ibv_recv_wr *wr,
                         struct ibv_recv_wr **bad)
{
    int result = 0;
    pthread_mutex_lock(&fake_lock);
    for (; wr && !result; wr = wr->next) {
        if (receives->in - receives->out >= FAKE_DEPTH) {
            *bad = wr;
            result = ENOMEM;
        } else {
            receives->entries[receives->in++ % FAKE_DEPTH] = (struct fake_receive){wr->wr_id, 0};
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return post_receives(&((struct fake_qp *)qp)->receives, wr, bad);
}

int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return post_receives(&((struct fake_srq *)srq)->receives, wr, bad);
}

int fake_poll_cq(struct ibv_cq *handle, int count, struct ibv_wc *wc)
{
    struct fake_cq *cq = (struct fake_cq *)handle;
    int got = 0;
    if (count < 0)
        return -EINVAL;
    pthread_mutex_lock(&fake_lock);
    for (; got < count && cq->out != cq->in; got++, cq->out++) {
        wc[got] = cq->wcs[cq->out % FAKE_DEPTH];
        struct fake_qp *qp = fake_qp_of(wc[got].qp_num);
        if (qp && cq->sent_to[cq->out % FAKE_DEPTH])
            qp->freed = cq->sent_to[cq->out % FAKE_DEPTH];
    }
    pthread_mutex_unlock(&fake_lock);
    return got;
}
