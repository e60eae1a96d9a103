/* Extended queue pairs and completion queues: functions in the objects themselves. */
#include <errno.h>
#include <string.h>

#include "fake_ibverbs.h"

static int start_poll(struct ibv_cq_ex *handle, struct ibv_poll_cq_attr *attr)
{
    struct fake_cq *cq = (struct fake_cq *)handle;
    (void)attr;
    if (!fake_poll_cq((struct ibv_cq *)handle, 1, &cq->now))
        return ENOENT;
    handle->wr_id = cq->now.wr_id;
    handle->status = cq->now.status;
    return 0;
}

static int next_poll(struct ibv_cq_ex *handle)
{
    return start_poll(handle, NULL);
}

static void end_poll(struct ibv_cq_ex *handle)
{
    (void)handle;
}

#define NOW(handle) (&((struct fake_cq *)(handle))->now)
static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq)
{
    return NOW(cq)->opcode;
}
static uint32_t read_byte_len(struct ibv_cq_ex *cq)
{
    return NOW(cq)->byte_len;
}
static __be32 read_imm_data(struct ibv_cq_ex *cq)
{
    return NOW(cq)->imm_data;
}
static uint32_t read_qp_num(struct ibv_cq_ex *cq)
{
    return NOW(cq)->qp_num;
}
static uint32_t read_src_qp(struct ibv_cq_ex *cq)
{
    return NOW(cq)->src_qp;
}
static unsigned int read_wc_flags(struct ibv_cq_ex *cq)
{
    return NOW(cq)->wc_flags;
}

void fake_extend_cq(struct fake_cq *cq, uint64_t wc_flags)
{
    cq->ex.start_poll = start_poll;
    cq->ex.next_poll = next_poll;
    cq->ex.end_poll = end_poll;
    cq->ex.read_opcode = read_opcode;
    cq->ex.read_wc_flags = read_wc_flags;
    /* Only what was asked for can be read, as with a real provider. */
    cq->ex.read_byte_len = wc_flags & IBV_WC_EX_WITH_BYTE_LEN ? read_byte_len : NULL;
    cq->ex.read_imm_data = wc_flags & IBV_WC_EX_WITH_IMM ? read_imm_data : NULL;
    cq->ex.read_qp_num = wc_flags & IBV_WC_EX_WITH_QP_NUM ? read_qp_num : NULL;
    cq->ex.read_src_qp = wc_flags & IBV_WC_EX_WITH_SRC_QP ? read_src_qp : NULL;
}

/* The lock is held from wr_start to wr_complete, as the providers do. */
static void wr_start(struct ibv_qp_ex *handle)
{
    pthread_mutex_lock(&fake_lock);
    ((struct fake_qp *)handle)->batched = 0;
}

static struct ibv_send_wr *add(struct ibv_qp_ex *handle, enum ibv_wr_opcode opcode)
{
    struct fake_qp *qp = (struct fake_qp *)handle;
    uint32_t at = qp->batched++ % 64;
    qp->batch[at] = (struct ibv_send_wr){.wr_id = handle->wr_id,
                                         .opcode = opcode,
                                         .send_flags = handle->wr_flags,
                                         .sg_list = qp->sges[at]};
    if (at)
        qp->batch[at - 1].next = &qp->batch[at];
    return &qp->batch[at];
}

static struct ibv_send_wr *last(struct ibv_qp_ex *handle)
{
    struct fake_qp *qp = (struct fake_qp *)handle;
    return &qp->batch[(qp->batched - 1) % 64];
}

static int wr_complete(struct ibv_qp_ex *handle)
{
    struct fake_qp *qp = (struct fake_qp *)handle;
    struct ibv_send_wr *bad;
    int result = 0;
    if (qp->posted - qp->freed + qp->batched > qp->max_send)
        result = ENOMEM;
    else if (qp->batched)
        result = fake_post_list(qp, qp->batch, &bad);
    pthread_mutex_unlock(&fake_lock);
    return result;
}

static void wr_abort(struct ibv_qp_ex *handle)
{
    (void)handle;
    pthread_mutex_unlock(&fake_lock);
}

static void rdma(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t address)
{
    struct ibv_send_wr *wr = add(qp, opcode);
    wr->wr.rdma.rkey = rkey;
    wr->wr.rdma.remote_addr = address;
}
static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address)
{
    rdma(qp, IBV_WR_RDMA_WRITE, rkey, address);
}
static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address)
{
    rdma(qp, IBV_WR_RDMA_READ, rkey, address);
}
static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, __be32 imm)
{
    rdma(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address);
    last(qp)->imm_data = imm;
}
static void wr_send(struct ibv_qp_ex *qp)
{
    add(qp, IBV_WR_SEND);
}
static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm)
{
    add(qp, IBV_WR_SEND_WITH_IMM)->imm_data = imm;
}
static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
    add(qp, IBV_WR_SEND_WITH_INV)->invalidate_rkey = rkey;
}
static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
    add(qp, IBV_WR_LOCAL_INV)->invalidate_rkey = rkey;
}
static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey,
                       const struct ibv_mw_bind_info *info)
{
    struct ibv_send_wr *wr = add(qp, IBV_WR_BIND_MW);
    wr->bind_mw.mw = mw;
    wr->bind_mw.rkey = rkey;
    wr->bind_mw.bind_info = *info;
}
static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, uint64_t n)
{
    struct ibv_send_wr *wr = add(qp, IBV_WR_ATOMIC_FETCH_AND_ADD);
    wr->wr.atomic.rkey = rkey;
    wr->wr.atomic.remote_addr = address;
    wr->wr.atomic.compare_add = n;
}
static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t address, uint32_t length)
{
    last(qp)->sg_list[0] = (struct ibv_sge){address, length, lkey};
    last(qp)->num_sge = 1;
}
static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list)
{
    memcpy(last(qp)->sg_list, list, count * sizeof(*list));
    last(qp)->num_sge = (int)count;
}
static void wr_set_inline_data(struct ibv_qp_ex *qp, void *data, size_t length)
{
    wr_set_sge(qp, 0, (uintptr_t)data, (uint32_t)length);
}
static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
    last(qp)->wr.ud.ah = ah;
    last(qp)->wr.ud.remote_qpn = qpn;
    last(qp)->wr.ud.remote_qkey = qkey;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t number)
{
    last(qp)->qp_type.xrc.remote_srqn = number;
}

void fake_extend_qp(struct fake_qp *qp)
{
    qp->extended = true;
    qp->ex.wr_start = wr_start;
    qp->ex.wr_complete = wr_complete;
    qp->ex.wr_abort = wr_abort;
    qp->ex.wr_rdma_write = wr_rdma_write;
    qp->ex.wr_rdma_read = wr_rdma_read;
    qp->ex.wr_rdma_write_imm = wr_rdma_write_imm;
    qp->ex.wr_send = wr_send;
    qp->ex.wr_send_imm = wr_send_imm;
    qp->ex.wr_atomic_fetch_add = wr_atomic_fetch_add;
    qp->ex.wr_set_sge = wr_set_sge;
    qp->ex.wr_set_sge_list = wr_set_sge_list;
    qp->ex.wr_set_inline_data = wr_set_inline_data;
    qp->ex.wr_send_inv = wr_send_inv;
    qp->ex.wr_local_inv = wr_local_inv;
    qp->ex.wr_bind_mw = wr_bind_mw;
    qp->ex.wr_set_ud_addr = wr_set_ud_addr;
    qp->ex.wr_set_xrc_srqn = wr_set_xrc_srqn;
}
