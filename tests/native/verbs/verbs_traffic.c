/* Programs that post requests one by one or in lists, and poll. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verbs_driver.h"

/* Every opcode, `rounds` times. */
void traffic(int rounds)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,      IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV,      IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 0), *b = make_qp(IBV_QPT_RC, NULL, 1);
    pair(a, b);
    uint64_t id = 1;
    for (int round = 0; round < rounds; round++) {
        receives(b, 1000 + 4 * (uint64_t)round, 4);
        for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++, id++) {
            bool atomic = opcodes[i] == IBV_WR_ATOMIC_CMP_AND_SWP ||
                          opcodes[i] == IBV_WR_ATOMIC_FETCH_AND_ADD;
            int sges = opcodes[i] == IBV_WR_LOCAL_INV ? 0 : atomic ? 1 : 1 + round % 3;
            CHECK(!post(a, opcodes[i], id, sges, atomic ? 8 : 10 + (uint32_t)round,
                        IBV_SEND_SIGNALED | (i ? 0 : IBV_SEND_INLINE)));
        }
        CHECK(drain(cq) == 13);
    }
    CHECK(!post(b, IBV_WR_RDMA_WRITE, 9999, 1, 5, 0)); /* signaled by sq_sig_all */
    CHECK(drain(cq) == 1 && drain(cq) == 0);
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

void shared(int unused)
{
    (void)unused;
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 64}};
    struct ibv_srq *srq = ibv_create_srq(pd, &attr);
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 1), *b = make_qp(IBV_QPT_RC, srq, 1),
                  *c = make_qp(IBV_QPT_RC, NULL, 1), *d = make_qp(IBV_QPT_RC, srq, 1);
    pair(a, b);
    pair(c, d);
    for (uint64_t i = 0; i < 6; i++) {
        struct ibv_recv_wr wr = {.wr_id = 500 + i}, *bad;
        CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
    }
    for (uint64_t i = 0; i < 6; i++)
        CHECK(!post(i % 3 ? a : c, IBV_WR_SEND, i, 1, 100 + (uint32_t)i, 0));
    CHECK(drain(cq) == 12);
    CHECK(!ibv_destroy_qp(b) && !ibv_destroy_qp(d) && !ibv_destroy_srq(srq));
}

/* 10 requests of which the 4th and the 10th are signaled, twice. */
void unsignaled(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 0), *b = make_qp(IBV_QPT_RC, NULL, 0);
    pair(a, b);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 1; i <= 10; i++)
            CHECK(!post(a, IBV_WR_RDMA_WRITE, i == 4 || i == 10 ? i : 0, 1, 8,
                        i == 4 || i == 10 ? IBV_SEND_SIGNALED : 0));
        CHECK(drain(cq) == 2);
    }
}

/* A key that does not exist: the third request fails, what follows is flushed, and the peer's
 * receives when it is told to end. */
void errors(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 0), *b = make_qp(IBV_QPT_RC, NULL, 0);
    pair(a, b);
    receives(b, 700, 3);
    CHECK(!post(a, IBV_WR_SEND, 1, 1, 8, IBV_SEND_SIGNALED));
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 2, 1, 8, 0));
    struct ibv_send_wr bad_key = {.wr_id = 3, .opcode = IBV_WR_RDMA_READ}, *bad;
    bad_key.wr.rdma.rkey = 0xbad00;
    CHECK(!ibv_post_send(a, &bad_key, &bad));
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 4, 1, 8, 0));
    CHECK(!post(a, IBV_WR_SEND, 5, 1, 8, IBV_SEND_SIGNALED));
    to_state(b, IBV_QPS_ERR);
    CHECK(drain(cq) == 7); /* 1, its arrival, 3, 4, 5, two receives */
}

/* A list of which the provider takes a part: the queue holds 128. */
void refused(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 0), *b = make_qp(IBV_QPT_RC, NULL, 0);
    struct ibv_send_wr list[100], *bad = NULL;
    struct ibv_sge sge = {(uintptr_t)memory, 16, mr->lkey};
    pair(a, b);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++) {
            list[i] = (struct ibv_send_wr){.wr_id = (uint64_t)(round * 100 + i),
                                           .next = i < 99 ? &list[i + 1] : NULL,
                                           .sg_list = &sge,
                                           .num_sge = 1,
                                           .opcode = i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                                           .send_flags = IBV_SEND_SIGNALED};
            list[i].wr.rdma.remote_addr = (uintptr_t)memory;
            list[i].wr.rdma.rkey = mr->rkey;
        }
        int result = ibv_post_send(a, list, &bad);
        CHECK(round == 1 ? result == ENOMEM && bad == &list[28] : !result);
        if (round == 1)
            CHECK(drain(cq) == 128);
    }
    CHECK(drain(cq) == 100);
    struct ibv_qp *c = make_qp(IBV_QPT_RC, NULL, 0);
    CHECK(post(c, IBV_WR_RDMA_WRITE, 1, 1, 8, 0) == EINVAL);
}

extern void st_stop(void) __attribute__((weak));
extern void st_start(void) __attribute__((weak));

/* Four requests, of which one is posted while the recording is stopped; all completions are seen. */
void paused(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 1), *b = make_qp(IBV_QPT_RC, NULL, 1);
    CHECK(st_stop && st_start);
    pair(a, b);
    for (uint64_t i = 0; i < 4; i++) {
        if (i == 2)
            st_stop();
        CHECK(!post(a, IBV_WR_RDMA_WRITE, i, 1, 8, 0));
        if (i == 2)
            st_start();
    }
    CHECK(drain(cq) == 4);
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

/* One queue pair, connected three times. */
void again(int unused)
{
    (void)unused;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 1), *b = make_qp(IBV_QPT_RC, NULL, 1);
    for (uint64_t round = 0; round < 3; round++) {
        pair(a, b);
        receives(b, 10 * round, 5);
        for (uint64_t i = 0; i < 3 + round; i++)
            CHECK(!post(a, IBV_WR_SEND, i, 1, 8, 0));
        drain(cq);
        to_state(a, IBV_QPS_RESET);
        to_state(b, IBV_QPS_RESET);
    }
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

struct posting {
    struct ibv_qp *qp;
    int count;
    uint64_t first;
};

static void *post_many(void *p)
{
    struct posting *job = p;
    for (int i = 0; i < job->count; i++) {
        int result;
        do {
            result = post(job->qp, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
                          job->first + (uint64_t)i, 1, 8, IBV_SEND_SIGNALED);
            CHECK(result == 0 || result == ENOMEM);
            drain(cq);
        } while (result);
    }
    return NULL;
}

void threads(int count)
{
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 0), *b = make_qp(IBV_QPT_RC, NULL, 0);
    pthread_t others[2];
    struct posting jobs[2];
    pair(a, b);
    for (int i = 0; i < 4; i++)
        receives(b, (uint64_t)i * 1000, count / 4);
    for (int i = 0; i < 2; i++) {
        jobs[i] = (struct posting){.qp = a, .count = count, .first = 100000 * (uint64_t)(i + 1)};
        CHECK(!pthread_create(&others[i], NULL, post_many, &jobs[i]));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(others[i], NULL);
    drain(cq);
}

void forked(int unused)
{
    (void)unused;
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 64}};
    struct ibv_srq *srq = ibv_create_srq(pd, &attr);
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad;
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 1), *b = make_qp(IBV_QPT_RC, NULL, 1);
    pair(a, b);
    for (uint64_t i = 0; i < 5; i++)
        CHECK(!post(a, IBV_WR_RDMA_WRITE, i, 1, 8, 0));
    for (int i = 0; i < 2; i++)
        CHECK(!ibv_post_srq_recv(srq, &receive, &bad));
    drain(cq);
    pid_t child = fork();
    CHECK(!ibv_post_srq_recv(srq, &receive, &bad));
    for (uint64_t i = 0; i < (child ? 3 : 2); i++)
        CHECK(!post(a, IBV_WR_RDMA_WRITE, 100 + i, 1, 8, 0));
    drain(cq);
    if (!child)
        exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status);
}

void datagrams(int unused)
{
    (void)unused;
    struct ibv_ah_attr where = {.port_num = 1, .is_global = 1};
    struct ibv_qp *a = make_qp(IBV_QPT_UD, NULL, 1), *b = make_qp(IBV_QPT_UD, NULL, 1),
                  *c = make_qp(IBV_QPT_UD, NULL, 1);
    struct ibv_qp *all[] = {a, b, c};
    where.grh.dgid.raw[15] = 2;
    struct ibv_ah *ah = ibv_create_ah(pd, &where);
    struct ibv_sge sge = {(uintptr_t)memory, 33, mr->lkey};
    for (int i = 0; i < 3; i++) {
        to_init(all[i]);
        to_state(all[i], IBV_QPS_RTR);
        to_state(all[i], IBV_QPS_RTS);
    }
    receives(c, 60, 8);
    for (uint64_t i = 0; i < 6; i++) {
        struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND},
                           *bad;
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = c->qp_num;
        CHECK(!ibv_post_send(i < 4 ? a : b, &wr, &bad));
    }
    CHECK(drain(cq) == 12);
    CHECK(!ibv_destroy_ah(ah));
}

void polls(int count)
{
    struct ibv_wc wc;
    for (int i = 0; i < count; i++)
        CHECK(!ibv_poll_cq(cq, 1, &wc));
}

void reopen(int times)
{
    for (int i = 0; i < times; i++) {
        traffic(1);
        close_all();
        open_all();
    }
}
