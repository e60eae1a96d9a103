/* Programs in which the library refuses, or is asked for what a shim may not know. */
#include <stddef.h>
#include <sys/mman.h>

#include "fake_control.h"
#include "verbs_driver.h"

static struct ibv_qp *dying;

/* Ends in EBUSY; by then the program goes on, in another thread or this one. */
static int go_on_and_refuse(void)
{
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(dying);
    fake_refusal = NULL;
    ibv_wr_start(ex);
    ex->wr_id = 2;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory);
    ibv_wr_set_sge(ex, 0, 0, 8);
    CHECK(!ibv_wr_complete(ex));
    CHECK(!post(dying, IBV_WR_RDMA_WRITE, 3, 1, 8, IBV_SEND_SIGNALED));
    struct ibv_poll_cq_attr none = {0};
    struct ibv_cq_ex *from = (struct ibv_cq_ex *)cq;
    CHECK(!ibv_start_poll(from, &none) && !ibv_next_poll(from));
    ibv_end_poll(from);
    return EBUSY;
}

/* Both destroyed in vain, each with traffic meanwhile. */
void refusals(int unused)
{
    (void)unused;
    struct ibv_cq_init_attr_ex attr = {.cqe = 64};
    struct ibv_cq *plain = cq;
    cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &attr));
    dying = make_extended(IBV_QPT_RC);
    pair(dying, dying);
    CHECK(ibv_qp_to_qp_ex(dying));
    fake_refusal = go_on_and_refuse;
    CHECK(ibv_destroy_qp(dying) == EBUSY);
    fake_refusal = go_on_and_refuse;
    CHECK(ibv_destroy_cq(cq) == EBUSY);
    CHECK(!ibv_destroy_qp(dying) && !ibv_destroy_cq(cq));
    cq = plain;
}

/* Queues made with the structure of an older header, which is shorter, and of a newer one. */
void structures(int unused)
{
    (void)unused;
    size_t older = offsetof(struct ibv_cq_init_attr_ex, flags);
    struct {
        struct ibv_cq_init_attr_ex attr;
        uint32_t more;
    } newer = {{.cqe = 16, .comp_mask = FAKE_NEWER_BIT}, FAKE_NEWER_VALUE};
    uint8_t *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && !mprotect(pages + 4096, 4096, PROT_NONE));
    struct ibv_cq_init_attr_ex *attr = (void *)(pages + 4096 - older);
    attr->cqe = 16; /* all else is 0 */
    struct ibv_cq_ex *one = ibv_create_cq_ex(context, attr);
    struct ibv_cq_ex *two = ibv_create_cq_ex(context, &newer.attr);
    CHECK(one && two && !attr->wc_flags);
    CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(one)) && !ibv_destroy_cq(ibv_cq_ex_to_cq(two)));
}

/* Requests of a kind that came after the shim; those of ibv_post_send are seen all the same. */
void unknown_ops(int unused)
{
    (void)unused;
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = SENDS},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | 1ull << 40};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    pair(qp, qp);
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = 0;
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory);
    ibv_wr_set_sge(ex, 0, 0, 8);
    CHECK(!ibv_wr_complete(ex));
    CHECK(!ibv_destroy_qp(qp));
}

/* Two unsignaled writes of one wr_id, the second of which fails: nothing tells which it was. */
void ambiguous(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 0), *b = make_qp(IBV_QPT_RC, NULL, 0);
    struct ibv_send_wr bad_key = {.wr_id = 7, .opcode = IBV_WR_RDMA_READ}, *bad;
    pair(a, b);
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 7, 1, 8, 0));
    CHECK(!ibv_post_send(a, &bad_key, &bad) && drain(cq) == 1);
}

void failing_polls(int unused)
{
    (void)unused;
    struct ibv_wc wc;
    for (int i = 0; i < 3; i++)
        CHECK(ibv_poll_cq(cq, -1, &wc) == -EINVAL);
    CHECK(!ibv_poll_cq(cq, 1, &wc));
}
