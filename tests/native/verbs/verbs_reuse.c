/* Programs whose requests are gone when the call that posted them returns: another thread has seen
 * their completions, and has given back their memory and what they named. */
#include <sys/mman.h>

#include "fake_control.h"
#include "verbs_driver.h"

#define LIST 70
#define BYTES 65536u

static struct requests {
    struct ibv_send_wr sends[LIST];
    struct ibv_recv_wr receives[LIST];
    struct ibv_sge sges[LIST];
    struct ibv_mw mw;
    struct ibv_mw_bind bind;
} *requests;
static struct ibv_ah *handle;

static void gone(void)
{
    if (handle)
        CHECK(!ibv_destroy_ah(handle));
    handle = NULL;
    CHECK(!mprotect(requests, BYTES, PROT_NONE));
}

/* `count` requests, or receives, of wr_id `first` and so on, of 10, 11, ... bytes. */
static void fill(int count, uint64_t first)
{
    CHECK(!mprotect(requests, BYTES, PROT_READ | PROT_WRITE));
    for (int i = 0; i < count; i++) {
        bool more = i + 1 < count;
        requests->sges[i] = (struct ibv_sge){(uintptr_t)memory, 10 + (uint32_t)i, mr->lkey};
        requests->sends[i] = (struct ibv_send_wr){.wr_id = first + (uint64_t)i,
                                                  .next = more ? &requests->sends[i + 1] : NULL,
                                                  .sg_list = &requests->sges[i],
                                                  .num_sge = 1,
                                                  .opcode = IBV_WR_RDMA_WRITE};
        requests->sends[i].wr.rdma.remote_addr = (uintptr_t)memory + (uint64_t)i;
        requests->sends[i].wr.rdma.rkey = mr->rkey;
        requests->receives[i] =
            (struct ibv_recv_wr){.wr_id = first + (uint64_t)i,
                                 .next = more ? &requests->receives[i + 1] : NULL,
                                 .sg_list = &requests->sges[i],
                                 .num_sge = 1};
    }
}

static void post_writes(struct ibv_qp *qp)
{
    struct ibv_send_wr *bad = NULL;
    fill(1, 100);
    CHECK(!ibv_post_send(qp, requests->sends, &bad));
    fill(LIST, 200);
    CHECK(!ibv_post_send(qp, requests->sends, &bad));
    fill(LIST, 300); /* the queue holds SENDS */
    CHECK(ibv_post_send(qp, requests->sends, &bad) == ENOMEM);
    CHECK(bad == &requests->sends[SENDS - 1 - LIST] && drain(cq) == (int)SENDS);
}

static void post_receives(struct ibv_qp *qp, struct ibv_srq *srq)
{
    struct ibv_recv_wr *bad;
    for (int shared = 0; shared < 2; shared++)
        for (int count = 1; count <= LIST; count += LIST - 1) {
            fill(count, 1000);
            CHECK(!(shared ? ibv_post_srq_recv(srq, requests->receives, &bad)
                           : ibv_post_recv(qp, requests->receives, &bad)));
        }
}

static void bind_windows(struct ibv_qp *qp)
{
    struct ibv_send_wr *bad;
    struct ibv_mw_bind_info info = {.mr = mr, .addr = (uintptr_t)memory, .length = 32};
    struct ibv_mw window = {.context = context, .pd = pd, .rkey = 0x9901, .type = IBV_MW_TYPE_2};
    fill(1, 500);
    requests->mw = window;
    requests->sends[0].opcode = IBV_WR_BIND_MW;
    requests->sends[0].bind_mw.mw = &requests->mw;
    requests->sends[0].bind_mw.rkey = 0x9902;
    requests->sends[0].bind_mw.bind_info = info;
    CHECK(!ibv_post_send(qp, requests->sends, &bad));
    fill(0, 0);
    window.type = IBV_MW_TYPE_1; /* the provider notes the new key there, at its end */
    requests->bind = (struct ibv_mw_bind){.wr_id = 501, .bind_info = info};
    CHECK(!ibv_bind_mw(qp, &window, &requests->bind) && drain(cq) == 2);
}

static void send_datagrams(void)
{
    struct ibv_qp *from = make_qp(IBV_QPT_UD, NULL, 1);
    struct ibv_ah_attr where = {.port_num = 1, .is_global = 1};
    struct ibv_send_wr *bad;
    to_init(from);
    to_state(from, IBV_QPS_RTS);
    for (int count = 1; count < 3; count++) {
        handle = ibv_create_ah(pd, &where);
        fill(count, 600);
        for (int i = 0; i < count; i++) {
            requests->sends[i].opcode = IBV_WR_SEND;
            requests->sends[i].wr.ud.ah = handle;
            requests->sends[i].wr.ud.remote_qpn = 0x77;
        }
        CHECK(!ibv_post_send(from, requests->sends, &bad) && drain(cq) == count);
    }
}

void reused(int unused)
{
    (void)unused;
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 128}};
    struct ibv_qp *qp = make_qp(IBV_QPT_RC, NULL, 1);
    requests = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(requests != MAP_FAILED && sizeof(*requests) <= BYTES);
    pair(qp, qp);
    fake_doorbell = gone;
    post_writes(qp);
    post_receives(qp, ibv_create_srq(pd, &attr));
    bind_windows(qp);
    send_datagrams();
    fake_doorbell = NULL;
}
