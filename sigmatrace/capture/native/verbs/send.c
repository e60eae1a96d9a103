/* Requests of the send queue: what they do, their channels, and the call that posts a list. */
#include <arpa/inet.h>

#include "verbs.h"

/* By enum ibv_wr_opcode: operation, channel, the opcode of its completion. */
static const struct {
    uint8_t op;
    bool message;
    uint8_t completion;
} kinds[] = {
    [IBV_WR_RDMA_WRITE] = {ST_OP_PUT, false, IBV_WC_RDMA_WRITE},
    [IBV_WR_RDMA_WRITE_WITH_IMM] = {ST_OP_PUT_DATA, true, IBV_WC_RDMA_WRITE},
    [IBV_WR_SEND] = {ST_OP_SEND, true, IBV_WC_SEND},
    [IBV_WR_SEND_WITH_IMM] = {ST_OP_SEND, true, IBV_WC_SEND},
    [IBV_WR_RDMA_READ] = {ST_OP_GET, false, IBV_WC_RDMA_READ},
    [IBV_WR_ATOMIC_CMP_AND_SWP] = {ST_OP_ATOMIC_FETCH, false, IBV_WC_COMP_SWAP},
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = {ST_OP_ATOMIC_FETCH, false, IBV_WC_FETCH_ADD},
    [IBV_WR_LOCAL_INV] = {ST_OP_INVALIDATE, false, IBV_WC_LOCAL_INV},
    [IBV_WR_BIND_MW] = {ST_OP_BIND, false, IBV_WC_BIND_MW},
    [IBV_WR_SEND_WITH_INV] = {ST_OP_SEND, true, IBV_WC_SEND},
    [IBV_WR_TSO] = {ST_OP_SEND, true, IBV_WC_TSO},
    [IBV_WR_ATOMIC_WRITE] = {ST_OP_PUT, false, IBV_WC_ATOMIC_WRITE},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

uint8_t st_verbs_wc_opcode(uint8_t wr_opcode)
{
    return wr_opcode < KINDS ? kinds[wr_opcode].completion : ST_OPCODE_UNKNOWN;
}

static __attribute__((noinline)) struct st_channel *make_channel(struct st_verbs_qp *qp,
                                                                 bool message)
{
    struct st_channel_key key = {.object = qp->id,
                                 .kind = message ? ST_KIND_MSG : ST_KIND_RMA,
                                 .dir = ST_OUT,
                                 .layer = ST_LAYER_VERBS,
                                 .peer = qp->id,
                                 .shared = true};
    struct st_channel *channel = st_channel_get(&key);
    *(message ? &qp->message : &qp->one_sided) = channel;
    return channel;
}

/* Each destination is a channel of its own: a queue pair behind an address handle, or one of the
 * shared receive queues at the other end of an XRC connection. */
static __attribute__((noinline)) struct st_channel *
addressed_channel(struct st_verbs_qp *qp, const struct ibv_ah *to, uint32_t number)
{
    uint64_t ah = qp->datagram ? (uintptr_t)st_verbs_find(ST_VERBS_COLD, to) : 0;
    struct st_channel_key key = {.object = qp->id,
                                 .kind = ST_KIND_MSG,
                                 .dir = ST_OUT,
                                 .layer = ST_LAYER_VERBS,
                                 .flags = ST_HAS_TAG,
                                 .peer = qp->datagram ? (uint32_t)ah | (uint64_t)number << 32
                                                      : qp->id,
                                 .tag = qp->datagram ? qp->qpn : number,
                                 .shared = true};
    return st_channel_get(&key);
}

static inline struct st_channel *channel_of(struct st_verbs_qp *qp, const struct st_verbs_wr *wr,
                                            bool message)
{
    if (ST_UNLIKELY(qp->addressed && message))
        return addressed_channel(qp, wr->ah, wr->number);
    struct st_channel *known = message ? qp->message : qp->one_sided;
    return ST_LIKELY(known != NULL) ? known : make_channel(qp, message);
}

/* Gives away no address of `wr`, which would put all of it into memory. */
static inline __attribute__((always_inline)) void record(const struct st_verbs_post *post,
                                                         const struct st_verbs_wr *wr,
                                                         uint32_t position)
{
    struct st_verbs_qp *qp = post->qp;
    uint8_t op = wr->opcode < KINDS ? kinds[wr->opcode].op : 0;
    if (ST_LIKELY(op)) {
        struct st_channel *channel = channel_of(qp, wr, kinds[wr->opcode].message);
        uint8_t flags = post->flags | (wr->flags & IBV_SEND_SIGNALED ? ST_SIGNALED : 0);
        if (ST_LIKELY(channel != NULL))
            st_op(post->t_tsc, wr->size, channel->id,
                  st_ordinal_next(channel, true), op,
                  st_verbs_calls[post->call], post->depth, flags, position);
        if (ST_UNLIKELY(op == ST_OP_BIND))
            st_verbs_window_bound(qp->context, wr->mw, wr->rkey, wr->raddr, wr->length, wr->access);
        else if (ST_UNLIKELY(op == ST_OP_INVALIDATE))
            st_verbs_window_invalidated(qp->context, wr->imm);
    } else {
        st_lost("verbs: request of a kind that is not known", 1);
    }
    if (st_verbs_full)
        st_request(&(struct st_request_record){.t_tsc = post->t_tsc,
                                               .wr_id = wr->wr_id,
                                               .raddr = wr->raddr,
                                               .size_bytes = (uint32_t)wr->size,
                                               .rkey = wr->rkey,
                                               .imm = wr->imm,
                                               .object = qp->id,
                                               .position = position,
                                               .opcode = wr->opcode,
                                               .sges = wr->sges > 255 ? 255 : (uint8_t)wr->sges,
                                               .flags = wr->flags,
                                               .queue = ST_QUEUE_SEND});
}

void st_verbs_posted(const struct st_verbs_post *post, const struct st_verbs_wr *wr,
                     uint32_t position)
{
    record(post, wr, position);
}

/* What the request of a list says, in the terms of st_verbs_wr. */
static inline __attribute__((always_inline)) struct st_verbs_wr
read_wr(const struct ibv_send_wr *from, const struct st_verbs_qp *qp)
{
    struct st_verbs_wr wr = {.wr_id = from->wr_id,
                             .sges = (uint32_t)from->num_sge,
                             .opcode = (uint8_t)from->opcode,
                             .flags = (uint8_t)from->send_flags};
    if (qp->signal_all)
        wr.flags |= IBV_SEND_SIGNALED;
    for (int i = 0; i < from->num_sge; i++)
        wr.size += from->sg_list[i].length;
    switch (wr.opcode) {
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        wr.imm = ntohl(from->imm_data);
        /* fall through */
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_WRITE:
        wr.raddr = from->wr.rdma.remote_addr;
        wr.rkey = from->wr.rdma.rkey;
        break;
    case IBV_WR_SEND_WITH_IMM:
        wr.imm = ntohl(from->imm_data);
        break;
    case IBV_WR_SEND_WITH_INV:
        wr.imm = from->invalidate_rkey;
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        wr.raddr = from->wr.atomic.remote_addr;
        wr.rkey = from->wr.atomic.rkey;
        wr.size = 8;
        break;
    case IBV_WR_LOCAL_INV:
        wr.imm = from->invalidate_rkey;
        wr.size = 0;
        break;
    case IBV_WR_BIND_MW:
        wr.raddr = from->bind_mw.bind_info.addr;
        wr.rkey = from->bind_mw.rkey;
        wr.size = 0;
        wr.mw = from->bind_mw.mw;
        wr.length = from->bind_mw.bind_info.length;
        wr.access = from->bind_mw.bind_info.mw_access_flags;
        break;
    case IBV_WR_TSO:
        wr.size += from->tso.hdr_sz;
        break;
    default:
        break;
    }
    if (ST_UNLIKELY(qp->addressed)) {
        if (qp->datagram)
            wr.ah = from->wr.ud.ah;
        wr.number = qp->datagram ? from->wr.ud.remote_qpn : from->qp_type.xrc.remote_srqn;
    }
    return wr;
}

static inline uint32_t count_of(const struct ibv_send_wr *wr, const struct ibv_send_wr *end)
{
    uint32_t n = 0;
    for (; wr && wr != end; wr = wr->next)
        n++;
    return n;
}

static void keep(struct st_verbs_qp *qp, const struct ibv_send_wr *wr, uint32_t count,
                 uint32_t position, uint64_t t_tsc)
{
    for (; count; count--, position++, wr = wr->next)
        st_verbs_outstanding(&qp->send, position, t_tsc, wr->wr_id, (uint8_t)wr->opcode,
                             qp->signal_all || wr->send_flags & IBV_SEND_SIGNALED);
}

int st_verbs_post_send(struct ibv_qp *handle, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct st_verbs_qp *qp = st_verbs_qp_of(handle);
    if (ST_UNLIKELY(!qp) && !(qp = st_verbs_qp_adopt(handle)))
        return ST_VERBS_PASS_ON(handle, ST_VERBS_NO_QP, post_send(handle, wr, bad), ENOSYS);
    struct ibv_send_wr *refused = wr; /* not every way out of a provider says which one */
    struct st_verbs_post post = {.qp = qp, .t_tsc = st_verbs_now(), .call = ST_CALL_POST_SEND};
    uint32_t count = ST_LIKELY(wr && !wr->next) ? 1 : count_of(wr, NULL);
    st_verbs_claim(&qp->send.owner);
    uint32_t position = st_verbs_positions(&qp->send, count), accepted = count;
    if (st_verbs_full)
        keep(qp, wr, count, position, post.t_tsc);
    int result = qp->post_send(handle, wr, &refused);
    if (ST_UNLIKELY(result)) {
        *bad = refused;
        accepted = count_of(wr, refused);
        st_verbs_refused(&qp->send, position, count, accepted);
    }
    post.depth = st_nesting;
    post.flags = st_owner_several(&qp->send.owner) ? ST_ORDER_UNCERTAIN : 0;
    for (uint32_t i = 0; i < accepted; i++, wr = wr->next) {
        struct st_verbs_wr one = read_wr(wr, qp);
        record(&post, &one, position + i);
    }
    return result;
}

/* The old way to bind a window: a request that the provider makes of it. It asks for a completion
 * as every request of the queue pair does, or as its flags say. */
int st_verbs_bind_mw(struct ibv_qp *handle, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    struct st_verbs_qp *qp = st_verbs_qp_of(handle);
    if (!qp && !(qp = st_verbs_qp_adopt(handle)))
        return ST_VERBS_PASS_ON(handle, ST_VERBS_NO_QP, bind_mw(handle, mw, bind), ENOSYS);
    struct st_verbs_post post = {.qp = qp, .t_tsc = st_verbs_now(), .call = ST_CALL_BIND_MW};
    struct st_verbs_wr wr = {.wr_id = bind->wr_id,
                             .raddr = bind->bind_info.addr,
                             .mw = mw,
                             .length = bind->bind_info.length,
                             .access = bind->bind_info.mw_access_flags,
                             .opcode = IBV_WR_BIND_MW,
                             .flags = (uint8_t)bind->send_flags};
    if (qp->signal_all)
        wr.flags |= IBV_SEND_SIGNALED;
    st_verbs_claim(&qp->send.owner);
    uint32_t position = st_verbs_positions(&qp->send, 1);
    if (st_verbs_full)
        st_verbs_outstanding(&qp->send, position, post.t_tsc, wr.wr_id, wr.opcode,
                             wr.flags & IBV_SEND_SIGNALED);
    int result = qp->context->ops.bind_mw(handle, mw, bind);
    if (result) {
        st_verbs_refused(&qp->send, position, 1, 0);
        return result;
    }
    wr.rkey = mw->rkey;
    post.depth = st_nesting;
    post.flags = st_owner_several(&qp->send.owner) ? ST_ORDER_UNCERTAIN : 0;
    record(&post, &wr, position);
    return 0;
}
