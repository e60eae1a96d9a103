/* Programs about what queue pairs work with: domains, channels, memory, windows. */
#include "verbs_driver.h"

void regions(int unused)
{
    (void)unused;
    struct ibv_dm dm = {.context = context};
    struct ibv_pd *other = ibv_alloc_pd(context);
    struct ibv_mr *more[4], *broken;
    more[0] = ibv_reg_mr_iova(pd, memory, 100, 0x5000, 0);
    more[1] = ibv_reg_dmabuf_mr(pd, 0, 200, 0x7000, 11, IBV_ACCESS_LOCAL_WRITE);
    more[2] = ibv_reg_mr(pd, memory, 300, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(!ibv_rereg_mr(more[2], IBV_REREG_MR_CHANGE_TRANSLATION, pd, memory + 50, 400, 0));
    more[3] = ibv_alloc_null_mr(pd);
    struct ibv_mr *on_device = ibv_reg_dm_mr(pd, &dm, 16, 500, IBV_ACCESS_ZERO_BASED);
    /* Other rights and another domain at the same place: still the same region. */
    CHECK(!ibv_rereg_mr(more[0], IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD, other, NULL, 0,
                        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE));
    broken = ibv_reg_mr(pd, memory, 600, 0); /* a change that fails half way: it is none any more */
    CHECK(ibv_rereg_mr(broken, IBV_REREG_MR_CHANGE_TRANSLATION, pd, memory, SIZE_MAX, 0));
    for (int i = 0; i < 4; i++)
        CHECK(more[i] && !ibv_dereg_mr(more[i]));
    CHECK(on_device && !ibv_dereg_mr(on_device) && !ibv_dealloc_pd(other));
}

void domains(int unused)
{
    (void)unused;
    struct ibv_parent_domain_init_attr within = {.pd = pd};
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &within);
    struct ibv_pd *imported = ibv_import_pd(context, 7);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq_init_attr_ex attr = {.cqe = 64, .channel = channel};
    struct ibv_cq *one = ibv_create_cq(context, 32, NULL, channel, 0);
    struct ibv_cq *two = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &attr));
    struct ibv_mr *there = ibv_reg_mr(imported, memory, 16, 0);
    struct ibv_wc arrived = {.slid = 5};
    struct ibv_grh grh = {.sgid.raw[15] = 3};
    struct ibv_ah *ah = ibv_create_ah_from_wc(parent, &arrived, &grh, 1);
    CHECK(parent && channel && one && two && there && ah);
    CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
    CHECK(!ibv_destroy_ah(ah) && !ibv_dereg_mr(there));
    ibv_unimport_pd(imported);
    CHECK(!ibv_dealloc_pd(parent) && !ibv_destroy_cq(one) && !ibv_destroy_cq(two));
    CHECK(!ibv_destroy_comp_channel(channel));
}

/* Enhanced connection establishment, twice on one queue pair; the second connection breaks. */
void negotiated(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 1), *b = make_qp(IBV_QPT_RC, NULL, 1);
    for (uint32_t round = 1; round <= 2; round++) {
        struct ibv_ece ece = {.vendor_id = 0x15b3, .options = 0x70000 + round, .comp_mask = round};
        struct ibv_qp_attr attr = {.path_mtu = IBV_MTU_4096,
                                   .timeout = 14,
                                   .retry_cnt = 7,
                                   .rnr_retry = 6,
                                   .min_rnr_timer = 12,
                                   .max_rd_atomic = 16,
                                   .max_dest_rd_atomic = 15,
                                   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
        struct ibv_qp_init_attr init;
        CHECK(!ibv_set_ece(a, &ece));
        pair(a, b);
        CHECK(ibv_set_ece(a, &ece) == EINVAL); /* too late: not recorded */
        CHECK(!ibv_query_ece(a, &ece) && ece.options == round);
        CHECK(!ibv_modify_qp(a, &attr,
                             IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                 IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC |
                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ACCESS_FLAGS));
        if (round == 2) {
            struct ibv_send_wr bad_key = {.wr_id = 3, .opcode = IBV_WR_RDMA_READ}, *bad;
            CHECK(!ibv_post_send(a, &bad_key, &bad) && drain(cq) == 1);
        }
        CHECK(!ibv_query_qp(a, &attr, IBV_QP_STATE, &init));
        CHECK(attr.qp_state == (round == 2 ? IBV_QPS_ERR : IBV_QPS_RTS));
        if (round == 2)
            break;
        to_state(a, IBV_QPS_RESET);
        to_state(b, IBV_QPS_RESET);
        CHECK(!ibv_query_qp(a, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RESET);
    }
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

void binding(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 0), *b = make_qp(IBV_QPT_RC, NULL, 0);
    struct ibv_mw mw = {.context = context, .pd = pd, .rkey = 0x99, .type = IBV_MW_TYPE_1};
    struct ibv_mw_bind bind = {.wr_id = 8,
                               .send_flags = IBV_SEND_SIGNALED,
                               .bind_info = {.mr = mr, .addr = (uintptr_t)memory, .length = 64}};
    pair(a, b);
    CHECK(!ibv_bind_mw(a, &mw, &bind));
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 9, 1, 8, IBV_SEND_SIGNALED));
    CHECK(drain(cq) == 2);
}

/* A write of 8 bytes by this key; it must reach its target. */
static void reach(struct ibv_qp *qp, uint32_t rkey, uint64_t address)
{
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = address, .rkey = rkey}},
                       *bad;
    struct ibv_wc wc;
    CHECK(!ibv_post_send(qp, &wr, &bad) && ibv_poll_cq(cq, 1, &wc) == 1);
    CHECK(wc.status == IBV_WC_SUCCESS);
}

static struct ibv_mw_bind_info part(uint32_t begin, uint32_t length, unsigned int more)
{
    return (struct ibv_mw_bind_info){.mr = mr,
                                     .addr = (uintptr_t)memory + begin,
                                     .length = length,
                                     .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | more};
}

static void first_type(struct ibv_qp *owner, struct ibv_qp *user)
{
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = part(0, 64, 0)};
    CHECK(!ibv_bind_mw(owner, mw, &bind) && drain(cq) == 1);
    reach(user, mw->rkey, (uintptr_t)memory + 56);
    bind.bind_info = part(1024, 32, 0);
    CHECK(!ibv_bind_mw(owner, mw, &bind) && drain(cq) == 1);
    reach(user, mw->rkey, (uintptr_t)memory + 1024);
    bind.bind_info = (struct ibv_mw_bind_info){.mr = NULL}; /* nothing any more */
    CHECK(!ibv_bind_mw(owner, mw, &bind) && drain(cq) == 1);
    CHECK(!ibv_dealloc_mw(mw));
}

/* Bound by either way to post, and invalidated by either end, by either way. */
static void second_type(struct ibv_qp *owner, struct ibv_qp *user)
{
    struct ibv_qp_ex *own = ibv_qp_to_qp_ex(owner), *use = ibv_qp_to_qp_ex(user);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW,
                               .send_flags = IBV_SEND_SIGNALED,
                               .bind_mw = {mw, ibv_inc_rkey(mw->rkey), part(2048, 128, 0)}},
                       *bad;
    struct ibv_send_wr end = {.opcode = IBV_WR_LOCAL_INV,
                              .send_flags = IBV_SEND_SIGNALED,
                              .invalidate_rkey = bind.bind_mw.rkey};
    CHECK(!ibv_post_send(owner, &bind, &bad) && drain(cq) == 1);
    reach(user, bind.bind_mw.rkey, (uintptr_t)memory + 2048);
    CHECK(!ibv_post_send(owner, &end, &bad) && drain(cq) == 1);
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t key = bind.bind_mw.rkey = ibv_inc_rkey(bind.bind_mw.rkey);
        struct ibv_mw_bind_info info = part(4096 + 256 * round, 256, IBV_ACCESS_ZERO_BASED);
        ibv_wr_start(own);
        own->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_bind_mw(own, mw, key, &info);
        CHECK(!ibv_wr_complete(own) && drain(cq) == 1);
        reach(user, key, 16);
        receives(owner, 50 + round, 1);
        ibv_wr_start(round ? own : use);
        use->wr_flags = IBV_SEND_SIGNALED;
        if (round == 0)
            ibv_wr_send_inv(use, key);
        else if (round == 1)
            ibv_wr_local_inv(own, key);
        CHECK(!ibv_wr_complete(round ? own : use) && drain(cq) == (round ? 1 - (int)round / 2 : 2));
    }
    CHECK(!ibv_dealloc_mw(mw));
}

void windows(int unused)
{
    (void)unused;
    struct ibv_qp *owner = make_extended(IBV_QPT_RC), *user = make_extended(IBV_QPT_RC);
    pair(owner, user);
    first_type(owner, user);
    second_type(owner, user);
    CHECK(!ibv_destroy_qp(owner) && !ibv_destroy_qp(user));
}
