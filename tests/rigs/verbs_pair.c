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
 *     posted to the queue pair's own queue */
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
    for (int i = 0; i < 2; i++) {
        struct ibv_cq_init_attr_ex attr = {.cqe = 256};
        attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM;
        struct ibv_cq_ex *more = extended ? ibv_create_cq_ex(device, &attr) : NULL;
        cqs[i] = more ? ibv_cq_ex_to_cq(more) : ibv_create_cq(device, 256, NULL, NULL, 0);
        check(!extended == !more, "ibv_create_cq_ex");
    }
    check(pd && mr && cqs[0] && cqs[1], "resources");
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
                               IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
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

/* --- requests and completions ----------------------------------------------------------------- */

/* Adds a request to the list that post() posts; it may be changed before. */
static struct ibv_send_wr *add(struct link *l, int opcode, uint32_t size, int flags)
{
    struct ibv_send_wr *wr = &list[listed];
    sges[listed][0] = (struct ibv_sge){(uintptr_t)memory, size, mr->lkey};
    *wr = (struct ibv_send_wr){.wr_id = (unsigned)next_id++, .sg_list = sges[listed],
                               .num_sge = 1, .opcode = (enum ibv_wr_opcode)opcode,
                               .send_flags = (unsigned)flags};
    if (opcode == WRITE_IMM || opcode == SEND_IMM)
        wr->imm_data = htonl(0xA0000000u + (unsigned)wr->wr_id);
    if (opcode == SWAP || opcode == ADD) {
        wr->wr.atomic.remote_addr = l->other.address;
        wr->wr.atomic.rkey = l->other.rkey;
    } else if (l->ah) {
        wr->wr.ud.ah = l->ah;
        wr->wr.ud.remote_qpn = l->other.qpn;
        wr->wr.ud.remote_qkey = QKEY;
    } else if (opcode != SEND && opcode != SEND_IMM) {
        wr->wr.rdma.remote_addr = l->other.address + 64u * (unsigned)listed;
        wr->wr.rdma.rkey = l->other.rkey;
    }
    listed++;
    return wr;
}

static void print_sent(const struct link *l, const struct ibv_send_wr *wr)
{
    int opcode = wr->opcode;
    bool atomic = opcode == SWAP || opcode == ADD;
    bool one_sided = opcode == WRITE || opcode == WRITE_IMM || opcode == READ;
    uint64_t size = 0, address = atomic ? wr->wr.atomic.remote_addr : 0;
    uint32_t rkey = atomic ? wr->wr.atomic.rkey : 0;
    for (int i = 0; i < wr->num_sge; i++)
        size += wr->sg_list[i].length;
    if (one_sided) {
        address = wr->wr.rdma.remote_addr;
        rkey = wr->wr.rdma.rkey;
    }
    printf("sent %s %u %d %u %llu %d %llu %llu %u %u %d %d\n", phase, l->mine.qpn, l->life,
           l->other.qpn, (unsigned long long)wr->wr_id, opcode, (unsigned long long)size,
           (unsigned long long)address, rkey, ntohl(wr->imm_data),
           (wr->send_flags & SIGNALED) != 0, wr->num_sge);
}

static void build(struct ibv_qp_ex *qp, const struct link *l, const struct ibv_send_wr *wr)
{
    qp->wr_id = wr->wr_id;
    qp->wr_flags = wr->send_flags; /* the driver needs IBV_SEND_INLINE here, too */
    if (wr->opcode == IBV_WR_SEND)
        ibv_wr_send(qp);
    else if (wr->opcode == IBV_WR_SEND_WITH_IMM)
        ibv_wr_send_imm(qp, wr->imm_data);
    else if (wr->opcode == IBV_WR_RDMA_WRITE)
        ibv_wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
    else if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        ibv_wr_rdma_write_imm(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
    else if (wr->opcode == IBV_WR_RDMA_READ)
        ibv_wr_rdma_read(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
    else if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
        ibv_wr_atomic_cmp_swp(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, 0, 1);
    else
        ibv_wr_atomic_fetch_add(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, 1);
    if (l->ah)
        ibv_wr_set_ud_addr(qp, l->ah, l->other.qpn, QKEY);
    if (wr->send_flags & IBV_SEND_INLINE)
        ibv_wr_set_inline_data(qp, memory, wr->sg_list->length);
    else if (wr->num_sge > 1)
        ibv_wr_set_sge_list(qp, (size_t)wr->num_sge, wr->sg_list);
    else
        ibv_wr_set_sge(qp, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
}

static int post_extended(struct link *l, struct ibv_send_wr **bad)
{
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(l->qp);
    check(qp, "ibv_qp_to_qp_ex");
    ibv_wr_start(qp);
    build(qp, l, list);
    ibv_wr_abort(qp);
    ibv_wr_start(qp);
    for (int i = 0; i < listed; i++)
        build(qp, l, &list[i]);
    *bad = list;
    return ibv_wr_complete(qp);
}

/* Posts the list; the number of requests that were accepted. */
static int post(struct link *l)
{
    struct ibv_send_wr *bad = NULL;
    int accepted = 0;
    for (int i = 0; i + 1 < listed; i++)
        list[i].next = &list[i + 1];
    int result = extended ? post_extended(l, &bad) : ibv_post_send(l->qp, list, &bad);
    for (struct ibv_send_wr *wr = list; wr && !(result && wr == bad); wr = wr->next, accepted++)
        print_sent(l, wr);
    check(!result || bad, "the refused request is not named");
    listed = 0;
    return accepted;
}

static void print_wc(const struct ibv_wc *wc)
{
    int life = -1;
    for (int i = 0; i < 8; i++)
        if (links[i] && links[i]->mine.qpn == wc->qp_num)
            life = links[i]->life;
    bool receive = wc->wr_id & RECEIVE, good = wc->status == IBV_WC_SUCCESS;
    printf("wc %s %u %d %d %llu %d %d %u %u\n", phase, wc->qp_num, life, receive,
           (unsigned long long)wc->wr_id, wc->status, good ? (int)wc->opcode : 0,
           good && receive ? wc->byte_len : 0,
           good && wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : 0);
}

/* One completion or none: behind the last one, the driver's ibv_next_poll() skips an entry. */
static int poll_extended(struct ibv_cq_ex *cq, struct ibv_wc *wc)
{
    struct ibv_poll_cq_attr attr = {0};
    int result = ibv_start_poll(cq, &attr);
    if (result)
        return result == ENOENT ? 0 : -result;
    *wc = (struct ibv_wc){.wr_id = cq->wr_id, .status = cq->status};
    wc->qp_num = ibv_wc_read_qp_num(cq);
    if (cq->status == IBV_WC_SUCCESS) {
        wc->opcode = ibv_wc_read_opcode(cq);
        wc->byte_len = ibv_wc_read_byte_len(cq);
        wc->wc_flags = ibv_wc_read_wc_flags(cq);
        wc->imm_data = ibv_wc_read_imm_data(cq);
    }
    ibv_end_poll(cq);
    return 1;
}

/* Polls until so many completions have come. */
static void collect(int count)
{
    struct ibv_wc wc[MOST_POLLED];
    time_t end = time(NULL) + DEADLINE_S;
    for (int at = 0; count > 0; at = !at) {
        int got = extended ? poll_extended((struct ibv_cq_ex *)cqs[at], wc)
                           : ibv_poll_cq(cqs[at], MOST_POLLED, wc);
        check(got >= 0 && time(NULL) < end, "completions");
        for (int i = 0; i < got; i++)
            print_wc(&wc[i]);
        count -= got;
        check(count >= 0, "more completions than expected");
        if (!got)
            sched_yield();
    }
}

#include "verbs_phases.h" /* in one compilation: the phases are most of the program */

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
    for (int i = 0; i < 2; i++)
        check(!ibv_destroy_cq(cqs[i]), "ibv_destroy_cq");
    check(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(device), "end");
    return 0;
}
