/* What gpu_pair makes by libibverbs and the verbs of libmlx5: queue pairs, DC targets, addresses. */
#include <string.h>

#include "pair_host.h"

#define DC_KEY 0x1122334455667788u

/* The DC target of this process. It gets its number when it becomes ready to receive. */
void verbs_dct_make(void)
{
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_cq *cq = ibv_create_cq(setup.context, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_DRIVER, .pd = setup.pd, .send_cq = cq,
                                       .recv_cq = cq, .comp_mask = IBV_QP_INIT_ATTR_PD,
                                       .srq = ibv_create_srq(setup.pd, &srq)};
    struct mlx5dv_qp_init_attr driver = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
                                         .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCT,
                                                          .dct_access_key = DC_KEY}};
    struct ibv_qp *dct = mlx5dv_create_qp(setup.context, &attr, &driver);
    need("mlx5dv_create_qp", !dct);
    struct ibv_qp_attr how = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS,
                              .path_mtu = IBV_MTU_4096, .min_rnr_timer = 12,
                              .ah_attr = {.port_num = 1, .is_global = 1, .grh.hop_limit = 64}};
    need("modify_qp", ibv_modify_qp(dct, &how, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                                   IBV_QP_ACCESS_FLAGS));
    how.qp_state = IBV_QPS_RTR;
    need("modify_qp", ibv_modify_qp(dct, &how, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                                   IBV_QP_MIN_RNR_TIMER));
    need("number of the DC target", !dct->qp_num);
    setup.mine.dct = dct->qp_num;
    setup.mine.dc_key = DC_KEY;
}

static struct ibv_qp *dci_make(const struct ibv_qp_init_attr *like)
{
    struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_DRIVER, .pd = setup.pd,
                                       .send_cq = like->send_cq, .recv_cq = like->recv_cq,
                                       .cap = like->cap, .comp_mask = IBV_QP_INIT_ATTR_PD};
    struct mlx5dv_qp_init_attr driver = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
                                         .dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI};
    return mlx5dv_create_qp(setup.context, &attr, &driver);
}

void verbs_qp_make(struct queue *queue)
{
    struct ibv_cq *cq = ibv_create_cq(setup.context, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = options.slots}};
    struct mlx5dv_qp qp = {0};
    struct mlx5dv_cq found = {0};
    need("create_cq", !cq);
    queue->verbs = options.dci ? dci_make(&attr) : ibv_create_qp(setup.pd, &attr);
    need("create_qp", !queue->verbs);
    struct mlx5dv_obj object = {.qp = {queue->verbs, &qp}, .cq = {cq, &found}};
    need("init_obj", mlx5dv_init_obj(&object, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ));
    need("ring", qp.sq.wqe_cnt != options.slots);
    queue->qpn = queue->verbs->qp_num;
    queue->sq = cuda_register_memory(qp.sq.buf, (size_t)qp.sq.wqe_cnt * qp.sq.stride);
    queue->record = cuda_register_memory(qp.dbrec, RECORD_BYTES) + SEND_RECORD;
    queue->cq_at = cuda_register_memory(found.buf, CQ_BYTES);
    queue->db = cuda_register(qp.bf.reg, 2 * (size_t)qp.bf.size);
}

void verbs_qp_connect(struct queue *queue, const struct end *peer, uint32_t remote_qpn)
{
    static const enum ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
    struct ibv_qp_attr attr = {.dest_qp_num = remote_qpn, .port_num = 1,
                               .ah_attr = {.dlid = (uint16_t)peer->lid, .port_num = 1,
                                           .grh.dgid = peer->gid, .is_global = 1}};
    for (int i = 0; i < 3; i++) {
        int peers = options.dci ? 0 : IBV_QP_DEST_QPN | IBV_QP_AV;
        attr.qp_state = states[i];
        need("modify_qp", ibv_modify_qp(queue->verbs, &attr, IBV_QP_STATE | IBV_QP_PORT | peers));
    }
}

void verbs_av_make(struct pair_qp *qp, const struct end *peer)
{
    struct ibv_ah_attr attr = {.dlid = (uint16_t)peer->lid, .is_global = 1, .port_num = 1,
                               .grh = {.dgid = peer->gid}};
    struct ibv_ah *ah = ibv_create_ah(setup.pd, &attr);
    struct mlx5dv_ah found = {0};
    struct mlx5dv_obj object = {.ah = {ah, &found}};
    need("create_ah", !ah);
    need("init_obj", mlx5dv_init_obj(&object, MLX5DV_OBJ_AH));
    struct mlx5_wqe_av av = *found.av;
    av.key.dc_key = htobe64(peer->dc_key);
    av.dqp_dct = htobe32(peer->dct | (options.long_av ? MLX5_EXTENDED_UD_AV : 0));
    qp->av_words = options.long_av ? 12 : 4;
    memcpy(qp->av, &av, qp->av_words * 4);
    ibv_destroy_ah(ah);
}
