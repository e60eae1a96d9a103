/* Programs of extended queue pairs (ibv_wr_*) and completion queues (ibv_start_poll). */
#include <pthread.h>

#include "verbs_driver.h"

void extended(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_extended(IBV_QPT_RC), *b = make_qp(IBV_QPT_RC, NULL, 0);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a);
    struct ibv_sge list[3] = {{0, 10, 0}, {0, 20, 0}, {0, 30, 0}};
    CHECK(ex && !ibv_qp_to_qp_ex(b));
    pair(a, b);
    receives(b, 300, 8);
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = 0;
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + 8);
    ibv_wr_set_sge_list(ex, 3, list);
    ex->wr_id = 2;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send_imm(ex, htonl(0x11223344));
    ibv_wr_set_inline_data(ex, memory, 17);
    ex->wr_id = 3;
    ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)memory, 1);
    ibv_wr_set_sge(ex, 0, (uintptr_t)memory, 8);
    CHECK(!ibv_wr_complete(ex));
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_sge(ex, 0, 0, 99);
    ibv_wr_abort(ex);
    CHECK(!post(a, IBV_WR_RDMA_READ, 4, 1, 50, IBV_SEND_SIGNALED));
    CHECK(drain(cq) == 4);
    for (int i = 0; i < 2; i++) { /* the second batch is too much */
        ibv_wr_start(ex);
        for (uint64_t j = 0; j < 64; j++) {
            ex->wr_id = 1000 + j;
            ex->wr_flags = 0;
            ibv_wr_rdma_read(ex, mr->rkey, (uintptr_t)memory);
            ibv_wr_set_sge(ex, 0, 0, 1);
        }
        CHECK(ibv_wr_complete(ex) == 0);
    }
    ibv_wr_start(ex);
    ex->wr_id = 5000;
    ibv_wr_rdma_read(ex, mr->rkey, (uintptr_t)memory);
    CHECK(ibv_wr_complete(ex) == ENOMEM);
    CHECK(!ibv_destroy_qp(a));
}

void extended_polling(int unused)
{
    (void)unused;
    struct ibv_cq_init_attr_ex attr = {.cqe = 64}; /* asks for nothing */
    struct ibv_poll_cq_attr none = {0};
    struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &attr);
    struct ibv_cq *plain = cq;
    CHECK(ex);
    cq = ibv_cq_ex_to_cq(ex);
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 1), *b = make_qp(IBV_QPT_RC, NULL, 1);
    pair(a, b);
    receives(b, 40, 4);
    CHECK(ibv_start_poll(ex, &none) == ENOENT);
    for (uint64_t i = 0; i < 4; i++)
        CHECK(!post(a, i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM, i, 1, 30, 0));
    CHECK(!ibv_start_poll(ex, &none));
    for (int i = 1; i < 8; i++)
        CHECK(!ibv_next_poll(ex));
    CHECK(ibv_next_poll(ex) == ENOENT);
    ibv_end_poll(ex);
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq));
    cq = plain;
}

struct posting {
    struct ibv_qp *qp;
    int count;
    uint64_t first;
};

/* Batches of a write and a write with immediate, taken whole or not at all. */
static void *post_batches(void *p)
{
    struct posting *job = p;
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(job->qp);
    for (int i = 0; i < job->count; i += 2) {
        int result;
        do {
            ibv_wr_start(ex);
            ex->wr_flags = IBV_SEND_SIGNALED;
            ex->wr_id = job->first + (uint64_t)i;
            ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory);
            ibv_wr_set_sge(ex, 0, 0, 8);
            ex->wr_id = job->first + (uint64_t)i + 1;
            ibv_wr_rdma_write_imm(ex, mr->rkey, (uintptr_t)memory, htonl((uint32_t)i));
            ibv_wr_set_sge(ex, 0, 0, 8);
            result = ibv_wr_complete(ex);
            CHECK(result == 0 || result == ENOMEM);
            drain(cq);
        } while (result);
    }
    return NULL;
}

void extended_threads(int count)
{
    struct ibv_qp *a = make_extended(IBV_QPT_RC), *b = make_qp(IBV_QPT_RC, NULL, 0);
    pthread_t others[2];
    struct posting jobs[2];
    pair(a, b);
    CHECK(ibv_qp_to_qp_ex(a));
    for (int i = 0; i < 4; i++)
        receives(b, (uint64_t)i * 1000, count / 4);
    for (int i = 0; i < 2; i++) {
        jobs[i] = (struct posting){.qp = a, .count = count, .first = 100000 * (uint64_t)(i + 1)};
        CHECK(!pthread_create(&others[i], NULL, post_batches, &jobs[i]));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(others[i], NULL);
    drain(cq);
}
