/* Two processes on two nodes that do known operations over queue pairs, and print each of them.
 *
 * Usage: verbs_pair GROUP [HOST]: without HOST the server, which waits for its client on PORT.
 * A group is one or several phases; each has queue pairs of its own. Lines, numbers in decimal:
 *   connected PHASE QPN LIFE PEER
 *   sent PHASE QPN LIFE PEER WR_ID OPCODE BYTES ADDRESS RKEY IMM SIGNALED SGES
 *     a request that the provider accepted (opcode: enum ibv_wr_opcode)
 *   wc PHASE QPN LIFE RECEIVE WR_ID STATUS OPCODE BYTES IMM
 *     a completion (RECEIVE: 1 of the receive queue; opcode: enum ibv_wc_opcode)
 *   receives PHASE QPN LIFE COUNT
 *     posted to the queue pair's own queue
 *   polls TOTAL EMPTY
 *     at the end, of all completion queues: ibv_poll_cq, ibv_start_poll, ibv_next_poll */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 18515, GID_INDEX = 1, MEMORY = 1 << 20, SLOT = 8192, SLOTS = 64, QKEY = 0x1234 };
enum { LIFE_PSNS = 100000 }; /* sequence numbers of a connection, so that the wire tells lives */
enum { RECEIVE = 1 << 16, MANY = 40, MOST = 64, MOST_POLLED = 4, DEADLINE_S = 30 };
enum { WRITE = IBV_WR_RDMA_WRITE, WRITE_IMM = IBV_WR_RDMA_WRITE_WITH_IMM, SEND = IBV_WR_SEND };
enum { SEND_IMM = IBV_WR_SEND_WITH_IMM, READ = IBV_WR_RDMA_READ, SIGNALED = IBV_SEND_SIGNALED };
enum { SWAP = IBV_WR_ATOMIC_CMP_AND_SWP, ADD = IBV_WR_ATOMIC_FETCH_AND_ADD };
enum { BIND = IBV_WR_BIND_MW, INVALIDATE = IBV_WR_LOCAL_INV, SEND_INV = IBV_WR_SEND_WITH_INV };
enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                IBV_ACCESS_REMOTE_ATOMIC };

struct end {
    union ibv_gid gid;
    uint64_t address;
    uint32_t qpn, psn, rkey;
};
struct link {
    struct ibv_qp *qp;
    enum ibv_qp_type type;
    struct end mine, other;
    struct ibv_ah *ah;
    int life, receives;
    uint8_t timeout, retries, rnr_retries, rnr_timer;
};

static bool client, extended; /* extended: queue pairs and completion queues, ibv_wr_* */
static int channel = -1;
static const char *phase;
static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_cq *cqs[2];
static struct ibv_mr *mr;
static char *memory;
static struct link *links[8];
static struct ibv_send_wr list[MOST];
static struct ibv_sge sges[MOST][MANY];
static int listed, next_id;
static unsigned polls, empty_polls;

static void check(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "verbs_pair: %s: %s: %s\n", phase, what, strerror(errno));
    exit(1);
}

/* --- the other process ------------------------------------------------------------------------ */

static bool receive_all(void *to, size_t size)
{
    return recv(channel, to, size, MSG_WAITALL) == (ssize_t)size;
}

static void exchange(const void *mine, void *other, size_t size)
{
    check(send(channel, mine, size, MSG_NOSIGNAL) == (ssize_t)size, "send");
    check(receive_all(other, size), "the other process");
}

static void meet(void)
{
    char mine = 'x', other;
    exchange(&mine, &other, 1);
}

static void connect_processes(const char *host)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int one = 1, to = socket(AF_INET, SOCK_STREAM, 0);
    if (host) {
        check(inet_pton(AF_INET, host, &address.sin_addr) == 1, "host");
        check(!connect(to, (struct sockaddr *)&address, sizeof(address)), "connect");
        channel = to;
        return;
    }
    setsockopt(to, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    check(!bind(to, (struct sockaddr *)&address, sizeof(address)) && !listen(to, 1), "listen");
    channel = accept(to, NULL, NULL);
    check(channel >= 0, "accept");
    close(to);
}

/* --- queue pairs ------------------------------------------------------------------------------ */

static struct ibv_cq *open_queue(void)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 256};
    attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM;
    struct ibv_cq_ex *more = extended ? ibv_create_cq_ex(device, &attr) : NULL;
    struct ibv_cq *cq = more ? ibv_cq_ex_to_cq(more) : ibv_create_cq(device, 256, NULL, NULL, 0);
    check(cq && !extended == !more, "ibv_create_cq");
    return cq;
}

static void open_device(void)
{
    struct ibv_device **all = ibv_get_device_list(NULL);
    check(all && all[0], "no device");
    device = ibv_open_device(all[0]);
    check(device, "ibv_open_device");
    ibv_free_device_list(all);
    memory = aligned_alloc(4096, MEMORY);
    memset(memory, 0, MEMORY);
    pd = ibv_alloc_pd(device);
    mr = ibv_reg_mr(pd, memory, MEMORY, ACCESS);
    for (int i = 0; i < 2; i++)
        cqs[i] = open_queue();
    check(pd && mr, "resources");
}

/* `split`: receives complete on a queue of their own. */
static void create(struct link *l, enum ibv_qp_type type, struct ibv_srq *srq, bool split)
{
    *l = (struct link){.type = type, .timeout = 14, .retries = 7, .rnr_retries = 7};
    l->rnr_timer = 12;
    struct ibv_qp_cap cap = {SLOTS, srq ? 0 : SLOTS, 4, srq ? 0 : 1, 64};
    struct ibv_qp_init_attr attr = {NULL, cqs[0], cqs[split], srq, cap, type, 0};
    struct ibv_qp_init_attr_ex more = {
        .send_cq = cqs[0], .recv_cq = cqs[split], .srq = srq, .cap = cap, .qp_type = type,
        .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS};
    more.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if (type != IBV_QPT_UD)
        more.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    if (type == IBV_QPT_RC)
        more.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                               IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_BIND_MW |
                               IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;
    l->qp = extended ? ibv_create_qp_ex(device, &more) : ibv_create_qp(pd, &attr);
    check(l->qp, "ibv_create_qp");
    for (struct link **at = links;; at++)
        if (!*at) {
            *at = l;
            break;
        }
    l->mine.address = (uintptr_t)memory;
    l->mine.rkey = mr->rkey;
    l->mine.qpn = l->qp->qp_num;
    check(!ibv_query_gid(device, 1, GID_INDEX, &l->mine.gid), "ibv_query_gid");
}

static void receive_into(struct link *l, struct ibv_srq *srq, int count)
{
    for (int i = 0; i < count; i++) {
        struct ibv_sge sge = {(uintptr_t)memory + (size_t)(SLOTS + i) * SLOT, SLOT, mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = (unsigned)(RECEIVE | i), .sg_list = &sge, .num_sge = 1};
        struct ibv_recv_wr *bad;
        check(!(srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(l->qp, &wr, &bad)),
              "receive");
    }
    if (l && count)
        printf("receives %s %u %d %d\n", phase, l->mine.qpn, l->life, count);
}

static void modify(struct link *l, struct ibv_qp_attr attr, int mask)
{
    check(!ibv_modify_qp(l->qp, &attr, mask | IBV_QP_STATE), "ibv_modify_qp");
}

/* Connects to what the other process connects at the same time, with so many receives posted. */
static void connect_link(struct link *l, int receives)
{
    bool datagram = l->type == IBV_QPT_UD, reliable = l->type == IBV_QPT_RC;
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    init.qp_access_flags = ACCESS;
    int access = datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    modify(l, init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | access);
    receive_into(l, NULL, receives);
    l->mine.psn = 1000 + LIFE_PSNS * (uint32_t)l->life;
    exchange(&l->mine, &l->other, sizeof(l->mine));
    struct ibv_ah_attr path = {.is_global = 1, .port_num = 1};
    path.grh = (struct ibv_global_route){l->other.gid, 0, GID_INDEX, 64, 0};
    struct ibv_qp_attr ready = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = l->other.qpn, .rq_psn = l->other.psn,
                                .max_dest_rd_atomic = 8, .min_rnr_timer = l->rnr_timer,
                                .ah_attr = path};
    struct ibv_qp_attr go = {.qp_state = IBV_QPS_RTS, .sq_psn = l->mine.psn, .max_rd_atomic = 8,
                             .timeout = l->timeout, .retry_cnt = l->retries,
                             .rnr_retry = l->rnr_retries};
    int connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    int responds = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    modify(l, ready, datagram ? 0 : connected | (reliable ? responds : 0));
    modify(l, go, IBV_QP_SQ_PSN | (reliable ? retries : 0));
    if (datagram)
        check((l->ah = ibv_create_ah(pd, &path)), "ibv_create_ah");
    printf("connected %s %u %d %u\n", phase, l->mine.qpn, l->life, l->other.qpn);
    meet();
}

static void destroy(struct link *l)
{
    check(!ibv_destroy_qp(l->qp), "ibv_destroy_qp");
    if (l->ah)
        ibv_destroy_ah(l->ah);
    for (int i = 0; i < 8; i++)
        if (links[i] == l)
            links[i] = NULL;
}

#include "verbs_requests.h" /* in one compilation: it and the phases are most of the program */
#include "verbs_phases.h"

int main(int argc, char **argv)
{
    phase = "begin";
    check(argc == 2 || argc == 3, "arguments");
    client = argc == 3;
    extended = !strcmp(argv[1], "extended");
    open_device(); /* first: when a process is killed, its device is closed before its socket */
    connect_processes(argc == 3 ? argv[2] : NULL);
    check(run_group(argv[1]), "there is no such group");
    meet();
    printf("polls %u %u\n", polls, empty_polls);
    for (int i = 0; i < 2; i++)
        check(!ibv_destroy_cq(cqs[i]), "ibv_destroy_cq");
    check(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(device), "end");
    return 0;
}
