/* Programs over the in-process libibverbs, one for each argument. Each does a known number of
 * things; the tests know them, too. */
#include "verbs_client.h"
#include "verbs_driver.h"

struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_cq *cq;
struct ibv_mr *mr;
char memory[MEMORY];

void open_all(void)
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

void close_all(void)
{
    CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(context));
}

struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_srq *srq, int signal_all)
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

struct ibv_qp *make_extended(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = SENDS, .max_recv_wr = 2048},
        .qp_type = type,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
    CHECK(qp);
    return qp;
}

void to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX));
}

void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state, .sq_psn = 7};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (state == IBV_QPS_RTS ? IBV_QP_SQ_PSN : 0)));
}

void connect_to(struct ibv_qp *qp, uint32_t number)
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

void pair(struct ibv_qp *a, struct ibv_qp *b)
{
    to_init(a);
    to_init(b);
    connect_to(a, b->qp_num);
    connect_to(b, a->qp_num);
}

void receives(struct ibv_qp *qp, uint64_t first, int count)
{
    struct ibv_sge sge = {(uintptr_t)memory, 4096, mr->lkey};
    for (int i = 0; i < count; i++) {
        struct ibv_recv_wr wr = {.wr_id = first + (uint64_t)i, .sg_list = &sge, .num_sge = 1},
                           *bad;
        CHECK(!ibv_post_recv(qp, &wr, &bad));
    }
}

int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t wr_id, int sges,
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

int drain(struct ibv_cq *from)
{
    struct ibv_wc wc[7];
    int got, all = 0;
    while ((got = ibv_poll_cq(from, 7, wc)) > 0)
        all += got;
    CHECK(!got);
    return all;
}

static const struct {
    const char *name;
    void (*run)(int n);
} programs[] = {
#define ROW(name, function) {name, function},
    PROGRAMS(ROW)
#undef ROW
};

/* Where a program of old is bound. */
void *old_open(struct ibv_device *device);
__asm__(".symver old_open, ibv_open_device@IBVERBS_1.0");

static int old(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct {
        struct ibv_device *device;
        struct ibv_context *real;
    } *opened = old_open(list[0]);
    CHECK(opened && opened->device == list[0] && opened->real->device == list[0]);
    /* This one has no newer version: it gets the context of old. */
    struct ibv_comp_channel *channel = ibv_create_comp_channel((void *)opened);
    CHECK(channel && channel->context == (void *)opened && !ibv_destroy_comp_channel(channel));
    /* Its other calls are made of those on the context of today. */
    static const struct client client = {
#define CLIENT_ROW(name) .name = name,
        CLIENT_FUNCTIONS(CLIENT_ROW)
#undef CLIENT_ROW
    };
    CHECK(!client_write(&client, opened->real) && !ibv_close_device(opened->real));
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int n = argc > 2 ? atoi(argv[2]) : 1;
    bool known = false;
    if (!strcmp(what, "old"))
        return old();
    if (!strcmp(what, "opened_at_once")) {
        opened_at_once();
        return 0;
    }
    open_all();
    errno = 4242;
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
        if (!strcmp(what, programs[i].name)) {
            programs[i].run(n);
            known = true;
        }
    CHECK(known);
    if (errno != 4242)
        fprintf(stderr, "driver: errno became %d\n", errno);
    close_all();
    return 0;
}
