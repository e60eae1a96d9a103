/* Programs over the in-process libibverbs, one for each argument. Each does a known number of
 * things; the tests know them, too. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "driver: %s:%d: %s\n", __FILE__, __LINE__, #condition);                \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)
#define SENDS 128u

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[8192];

static void open_all(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
    CHECK(pd && cq && mr);
}

static void close_all(void)
{
    CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(context));
}

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_srq *srq, int signal_all)
{
    struct ibv_qp_init_attr attr = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .srq = srq,
                                    .cap = {.max_send_wr = SENDS, .max_recv_wr = 2048},
                                    .qp_type = type,
                                    .sq_sig_all = signal_all};
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    CHECK(qp);
    return qp;
}

static void to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX));
}

static void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state, .sq_psn = 7};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (state == IBV_QPS_RTS ? IBV_QP_SQ_PSN : 0)));
}

static void connect_to(struct ibv_qp *qp, uint32_t number)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = number, .rq_psn = 7};
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    attr.ah_attr.grh.dgid.raw[15] = 2;
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
    to_state(qp, IBV_QPS_RTS);
}

static void pair(struct ibv_qp *a, struct ibv_qp *b)
{
    to_init(a);
    to_init(b);
    connect_to(a, b->qp_num);
    connect_to(b, a->qp_num);
}

static void receives(struct ibv_qp *qp, uint64_t first, int count)
{
    struct ibv_sge sge = {(uintptr_t)memory, 4096, mr->lkey};
    for (int i = 0; i < count; i++) {
        struct ibv_recv_wr wr = {.wr_id = first + (uint64_t)i, .sg_list = &sge, .num_sge = 1},
                           *bad;
        CHECK(!ibv_post_recv(qp, &wr, &bad));
    }
}

/* One request with `sges` elements of `bytes` each. */
static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t wr_id, int sges,
                uint32_t bytes, unsigned int flags)
{
    struct ibv_sge list[8];
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = list,
                             .num_sge = sges,
                             .opcode = opcode,
                             .send_flags = flags},
                       *bad;
    for (int i = 0; i < sges; i++)
        list[i] = (struct ibv_sge){(uintptr_t)memory, bytes, mr->lkey};
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)memory + 64;
        wr.wr.atomic.rkey = mr->rkey;
    } else if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_READ ||
               opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        wr.wr.rdma.remote_addr = (uintptr_t)memory + 128;
        wr.wr.rdma.rkey = mr->rkey;
    }
    if (opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_LOCAL_INV)
        wr.invalidate_rkey = 0x777;
    else
        wr.imm_data = htonl(0xabcd0000u + (uint32_t)wr_id);
    return ibv_post_send(qp, &wr, &bad);
}

static int drain(struct ibv_cq *from)
{
    struct ibv_wc wc[7];
    int got, all = 0;
    while ((got = ibv_poll_cq(from, 7, wc)) > 0)
        all += got;
    CHECK(!got);
    return all;
}

/* Every opcode, `rounds` times. */
static void traffic(int rounds)
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

static void shared(void)
{
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
static void unsignaled(void)
{
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
static void errors(void)
{
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
static void refused(void)
{
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

/* One queue pair, connected three times. */
static void again(void)
{
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

static void threads(int count)
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

static void forked(void)
{
    struct ibv_qp *a = make_qp(IBV_QPT_RC, NULL, 1), *b = make_qp(IBV_QPT_RC, NULL, 1);
    pair(a, b);
    for (uint64_t i = 0; i < 5; i++)
        CHECK(!post(a, IBV_WR_RDMA_WRITE, i, 1, 8, 0));
    drain(cq);
    pid_t child = fork();
    for (uint64_t i = 0; i < (child ? 3 : 2); i++)
        CHECK(!post(a, IBV_WR_RDMA_WRITE, 100 + i, 1, 8, 0));
    drain(cq);
    if (!child)
        exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status);
}

static void extended(void)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = SENDS, .max_recv_wr = 2048},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE};
    struct ibv_qp *a = ibv_create_qp_ex(context, &attr), *b = make_qp(IBV_QPT_RC, NULL, 0);
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

static void extended_polling(void)
{
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

static void datagrams(void)
{
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

static void regions(void)
{
    struct ibv_mr *more[4];
    more[0] = ibv_reg_mr_iova(pd, memory, 100, 0x5000, 0);
    more[1] = ibv_reg_dmabuf_mr(pd, 0, 200, 0x7000, 11, IBV_ACCESS_LOCAL_WRITE);
    more[2] = ibv_reg_mr(pd, memory, 300, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(!ibv_rereg_mr(more[2], IBV_REREG_MR_CHANGE_TRANSLATION, pd, memory + 50, 400, 0));
    for (int i = 0; i < 3; i++)
        CHECK(more[i] && !ibv_dereg_mr(more[i]));
}

static void binding(void)
{
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

static void polls(int count)
{
    struct ibv_wc wc;
    for (int i = 0; i < count; i++)
        CHECK(!ibv_poll_cq(cq, 1, &wc));
}

/* Where a program of old is bound. */
void *old_open(struct ibv_device *device);
__asm__(".symver old_open, ibv_open_device@IBVERBS_1.0");

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int n = argc > 2 ? atoi(argv[2]) : 1;
    if (!strcmp(what, "old")) {
        struct ibv_device **list = ibv_get_device_list(NULL);
        struct {
            struct ibv_device *device;
            struct ibv_context *real;
        } *old = old_open(list[0]);
        CHECK(old && old->device == list[0] && old->real->device == list[0]);
        return 0;
    }
    open_all();
    errno = 4242;
    if (!strcmp(what, "traffic"))
        traffic(n);
    else if (!strcmp(what, "srq"))
        shared();
    else if (!strcmp(what, "unsignaled"))
        unsignaled();
    else if (!strcmp(what, "errors"))
        errors();
    else if (!strcmp(what, "refused"))
        refused();
    else if (!strcmp(what, "again"))
        again();
    else if (!strcmp(what, "threads"))
        threads(n);
    else if (!strcmp(what, "fork"))
        forked();
    else if (!strcmp(what, "extended"))
        extended();
    else if (!strcmp(what, "extended_polling"))
        extended_polling();
    else if (!strcmp(what, "datagrams"))
        datagrams();
    else if (!strcmp(what, "regions"))
        regions();
    else if (!strcmp(what, "binding"))
        binding();
    else if (!strcmp(what, "polls"))
        polls(n);
    else if (!strcmp(what, "reopen"))
        for (int i = 0; i < n; i++) {
            traffic(1);
            close_all();
            open_all();
        }
    else
        CHECK(!"a known program");
    if (errno != 4242)
        fprintf(stderr, "driver: errno became %d\n", errno);
    close_all();
    return 0;
}
