/* Requests and completions of verbs_pair.c: put together, posted, polled, and each printed. */

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
    } else if (opcode == WRITE || opcode == WRITE_IMM || opcode == READ) {
        wr->wr.rdma.remote_addr = l->other.address + 64u * (unsigned)listed;
        wr->wr.rdma.rkey = l->other.rkey;
    }
    listed++;
    return wr;
}

/* Adds a request that makes a key of the other end's (SEND_INV) or of one's own (INVALIDATE) void. */
static void add_invalidation(struct link *l, int opcode, uint32_t size, uint32_t rkey)
{
    struct ibv_send_wr *wr = add(l, opcode, size, SIGNALED);
    wr->invalidate_rkey = rkey;
    wr->num_sge = opcode == SEND_INV;
}

/* Adds a request that binds a window to a region, under a new key; the key. */
static uint32_t add_binding(struct link *l, struct ibv_mw *window, struct ibv_mw_bind_info info)
{
    struct ibv_send_wr *wr = add(l, BIND, 0, SIGNALED);
    wr->num_sge = 0;
    wr->bind_mw.mw = window;
    wr->bind_mw.rkey = ibv_inc_rkey(window->rkey);
    wr->bind_mw.bind_info = info;
    return wr->bind_mw.rkey;
}

static void print_sent(const struct link *l, const struct ibv_send_wr *wr)
{
    int opcode = wr->opcode;
    bool atomic = opcode == SWAP || opcode == ADD;
    bool voids = opcode == SEND_INV || opcode == INVALIDATE;
    bool one_sided = opcode == WRITE || opcode == WRITE_IMM || opcode == READ;
    uint64_t size = 0, address = atomic ? wr->wr.atomic.remote_addr : 0;
    uint32_t rkey = atomic ? wr->wr.atomic.rkey : 0;
    for (int i = 0; i < wr->num_sge; i++)
        size += wr->sg_list[i].length;
    if (one_sided) {
        address = wr->wr.rdma.remote_addr;
        rkey = wr->wr.rdma.rkey;
    } else if (opcode == BIND) {
        address = wr->bind_mw.bind_info.addr;
        rkey = wr->bind_mw.rkey;
    }
    printf("sent %s %u %d %u %llu %d %llu %llu %u %u %d %d\n", phase, l->mine.qpn, l->life,
           l->other.qpn, (unsigned long long)wr->wr_id, opcode, (unsigned long long)size,
           (unsigned long long)address, rkey, voids ? wr->invalidate_rkey : ntohl(wr->imm_data),
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
    else if (wr->opcode == IBV_WR_BIND_MW)
        ibv_wr_bind_mw(qp, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
    else if (wr->opcode == IBV_WR_LOCAL_INV)
        ibv_wr_local_inv(qp, wr->invalidate_rkey);
    else if (wr->opcode == IBV_WR_SEND_WITH_INV)
        ibv_wr_send_inv(qp, wr->invalidate_rkey);
    else
        ibv_wr_atomic_fetch_add(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, 1);
    if (l->ah)
        ibv_wr_set_ud_addr(qp, l->ah, l->other.qpn, QKEY);
    if (wr->send_flags & IBV_SEND_INLINE)
        ibv_wr_set_inline_data(qp, memory, wr->sg_list->length);
    else if (wr->num_sge == 1)
        ibv_wr_set_sge(qp, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
    else if (wr->num_sge)
        ibv_wr_set_sge_list(qp, (size_t)wr->num_sge, wr->sg_list);
}

static int post_extended(struct link *l, struct ibv_send_wr **bad)
{
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(l->qp);
    check(qp, "ibv_qp_to_qp_ex");
    ibv_wr_start(qp);
    for (int i = 0; i < listed; i++)
        build(qp, l, &list[i]);
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
           !good                             ? 0
           : wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data)
           : wc->wc_flags & IBV_WC_WITH_INV ? wc->invalidated_rkey
                                            : 0);
}

/* The current one. */
static struct ibv_wc read_wc(struct ibv_cq_ex *cq)
{
    struct ibv_wc wc = {.wr_id = cq->wr_id, .status = cq->status};
    wc.qp_num = ibv_wc_read_qp_num(cq);
    if (cq->status == IBV_WC_SUCCESS) {
        wc.opcode = ibv_wc_read_opcode(cq);
        wc.byte_len = ibv_wc_read_byte_len(cq);
        wc.wc_flags = ibv_wc_read_wc_flags(cq);
        if (wc.wc_flags & IBV_WC_WITH_INV)
            wc.invalidated_rkey = ibv_wc_read_invalidated_rkey(cq);
        else
            wc.imm_data = ibv_wc_read_imm_data(cq);
    }
    return wc;
}

/* Calls of ibv_poll_cq() and ibv_start_poll(). */
static int counted(int result)
{
    polls++;
    empty_polls += result != 0;
    return result;
}

/* One completion or none: behind the last one, the driver's ibv_next_poll() skips an entry. */
static int poll_extended(struct ibv_cq_ex *cq, struct ibv_wc *wc)
{
    struct ibv_poll_cq_attr attr = {0};
    int result = counted(ibv_start_poll(cq, &attr));
    if (result)
        return result == ENOENT ? 0 : -result;
    *wc = read_wc(cq);
    ibv_end_poll(cq);
    return 1;
}

/* Polls a queue once; how many completions there were. */
static int poll_some(struct ibv_cq *cq, struct ibv_wc *wc)
{
    int got;
    if (extended) {
        got = poll_extended((struct ibv_cq_ex *)cq, wc);
    } else {
        got = ibv_poll_cq(cq, MOST_POLLED, wc);
        counted(got <= 0);
    }
    check(got >= 0, "poll");
    for (int i = 0; i < got; i++)
        print_wc(&wc[i]);
    if (!got)
        sched_yield();
    return got;
}

/* Polls until so many completions have come. */
static void collect(int count)
{
    struct ibv_wc wc[MOST_POLLED];
    time_t end = time(NULL) + DEADLINE_S;
    for (int at = 0; count > 0; at = !at) {
        count -= poll_some(cqs[at], wc);
        check(time(NULL) < end, "completions");
        check(count >= 0, "more completions than expected");
    }
}
