/* Completions: arrivals in all modes, each completion in mode full, empty polls as a number. */
#include <arpa/inet.h>

#include "verbs.h"

#define GRH_BYTES 40u /* before each datagram in the receiver's buffer */
#define RECEIVES 128u /* of enum ibv_wc_opcode */

/* A completion as it was polled, and the call that did. */
struct polled {
    struct st_verbs_cq *cq;
    uint64_t t_tsc;
    enum st_verbs_call call;
};

static inline bool is_arrival(const struct ibv_wc *wc)
{
    return wc->status == IBV_WC_SUCCESS &&
           (wc->opcode == IBV_WC_RECV || wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM ||
            wc->opcode == IBV_WC_TM_RECV || wc->opcode == IBV_WC_TM_NO_TAG);
}

/* A datagram's channel is that of its sender, an XRC message's that of the shared receive queue
 * that took it. */
static __attribute__((noinline)) struct st_channel *
make_channel(struct st_verbs_qp *qp, const struct st_verbs_cq *cq, const struct ibv_wc *wc)
{
    struct st_channel_key key = {.object = qp->id,
                                 .kind = ST_KIND_MSG,
                                 .dir = ST_IN,
                                 .layer = ST_LAYER_VERBS,
                                 .peer = qp->datagram ? ST_UNKNOWN_PEER : qp->id,
                                 .shared = true};
    bool xrc = qp->type == IBV_QPT_XRC_RECV;
    if (xrc && cq->xrc_mixed) {
        key.flags = ST_TAG_UNKNOWN;
    } else if (xrc || qp->datagram) {
        key.flags = ST_HAS_TAG;
        key.tag = xrc ? cq->srqn : wc->src_qp;
    }
    struct st_channel *channel = st_channel_get(&key);
    if (!xrc && !qp->datagram)
        qp->in = channel;
    return channel;
}

/* `position`: of its receive, when it is known. */
static void arrived(const struct polled *polled, struct st_verbs_qp *qp, const struct ibv_wc *wc,
                    uint32_t position)
{
    struct st_channel *channel = ST_LIKELY(qp->in != NULL) ? qp->in
                                                           : make_channel(qp, polled->cq, wc);
    uint32_t received = __atomic_fetch_add(&qp->received, 1, __ATOMIC_RELAXED);
    uint64_t size = wc->byte_len;
    if (qp->datagram && size >= GRH_BYTES)
        size -= GRH_BYTES;
    if (channel)
        st_op(polled->t_tsc, size, channel->id, st_ordinal_next(channel, true), ST_OP_RECV,
              st_verbs_calls[polled->call], st_nesting,
              st_owner_several(&polled->cq->owner) ? ST_ORDER_UNCERTAIN : 0,
              position == ST_NO_POSITION ? received : position);
    if (ST_UNLIKELY(wc->wc_flags & IBV_WC_WITH_INV))
        st_verbs_window_invalidated(qp->context, wc->invalidated_rkey);
}

/* Of which queue is it? Of an error the opcode is not defined: the queue that expects it, and
 * where both do, what the provider says all the same. */
static bool is_receive(struct st_verbs_qp *qp, const struct st_verbs_cq *cq,
                       const struct ibv_wc *wc)
{
    if (ST_LIKELY(wc->status == IBV_WC_SUCCESS)) /* a provider's own requests come last */
        return wc->opcode & RECEIVES && wc->opcode < IBV_WC_DRIVER1;
    if (qp->send_cq != qp->receive_cq)
        return qp->receive_cq == cq;
    bool sent = st_verbs_expects(&qp->send, wc->wr_id, true);
    bool received = qp->shared_receive ||
                    st_verbs_expects(&qp->receive, wc->wr_id, true);
    return sent == received ? wc->opcode & RECEIVES : received;
}

static void store(const struct polled *polled, struct st_verbs_qp *qp, const struct ibv_wc *wc,
                  bool receive, const struct st_verbs_match *match)
{
    bool failed = wc->status != IBV_WC_SUCCESS;
    struct st_cqe_record r = {.t_tsc = polled->t_tsc,
                              .posted_tsc = match->posted_tsc,
                              .wr_id = wc->wr_id,
                              .object = qp->id,
                              .position = match->position,
                              .first = match->first,
                              .status = (uint8_t)wc->status,
                              .queue = !receive             ? ST_QUEUE_SEND
                                       : qp->shared_receive ? ST_QUEUE_SHARED
                                                            : ST_QUEUE_RECV};
    if (failed) {
        r.opcode = receive ? RECEIVES : st_verbs_wc_opcode(match->opcode);
    } else {
        r.opcode = (uint8_t)((wc->opcode & (RECEIVES - 1)) | (receive ? RECEIVES : 0));
        r.flags = (uint8_t)wc->wc_flags;
        r.size_bytes = receive ? wc->byte_len : 0;
        if (wc->wc_flags & IBV_WC_WITH_IMM)
            r.imm = ntohl(wc->imm_data);
        else if (wc->wc_flags & IBV_WC_WITH_INV)
            r.imm = wc->invalidated_rkey;
    }
    st_cqe(&r);
}

static void completed(const struct polled *polled, const struct ibv_wc *wc)
{
    struct st_verbs_match match = ST_VERBS_NO_MATCH;
    struct st_verbs_qp *qp =
        st_verbs_find(ST_VERBS_NUMBERS, st_verbs_number(polled->cq->context, wc->qp_num));
    if (ST_UNLIKELY(!qp)) {
        st_lost("verbs: completion of a queue pair that is not known", 1);
        return;
    }
    if (!st_verbs_full) {
        arrived(polled, qp, wc, ST_NO_POSITION);
        return;
    }
    bool receive = is_receive(qp, polled->cq, wc), failed = wc->status != IBV_WC_SUCCESS;
    if (!receive || !qp->shared_receive)
        st_verbs_retire(receive ? &qp->receive : &qp->send, wc->wr_id, failed,
                        st_owner_several(&polled->cq->owner) ||
                            st_owner_several(receive ? &qp->receive.owner : &qp->send.owner),
                        &match);
    if (is_arrival(wc))
        arrived(polled, qp, wc, match.position);
    store(polled, qp, wc, receive, &match);
}

/* One poll. The first thread, while it is alone, adds to a number that is
 * its own, by one instruction that a signal handler cannot split. */
static inline void count_poll(struct st_verbs_cq *cq, enum st_verbs_poll what)
{
    if (!st_verbs_full)
        return;
    if (ST_LIKELY(__atomic_load_n(&cq->owner, __ATOMIC_RELAXED) == (uintptr_t)&st_verbs_self))
        __asm__ volatile("incq %0" : "+m"(cq->polls[what]));
    else
        __atomic_fetch_add(&cq->further[what], 1, __ATOMIC_RELAXED);
}

static __attribute__((noinline)) int polled_some(struct st_verbs_cq *cq, const struct ibv_wc *wc,
                                                 int count)
{
    struct polled polled = {.cq = cq, .call = ST_CALL_POLL_CQ};
    int saved = errno;
    for (int i = 0; i < count; i++) {
        if (!st_verbs_full && !is_arrival(&wc[i]))
            continue;
        if (!polled.t_tsc)
            polled.t_tsc = st_verbs_now();
        completed(&polled, &wc[i]);
    }
    errno = saved;
    return count;
}

int st_verbs_poll_cq(struct ibv_cq *handle, int count, struct ibv_wc *wc)
{
    struct st_verbs_cq *cq = st_verbs_find(ST_VERBS_HOT, handle);
    if (ST_UNLIKELY(!cq) && !(cq = st_verbs_cq_of(handle)))
        return ST_VERBS_PASS_ON(handle, "verbs: polls of a completion queue that is not known",
                                poll_cq(handle, count, wc), -ENOSYS);
    st_verbs_claim(&cq->owner);
    int got = cq->poll_cq(handle, count, wc);
    if (ST_LIKELY(!got)) {
        count_poll(cq, ST_VERBS_POLL_EMPTY);
        return 0;
    }
    count_poll(cq, got > 0 ? ST_VERBS_POLL_SOME : ST_VERBS_POLL_FAILED);
    return got > 0 ? polled_some(cq, wc, got) : got;
}

/* The current completion of an extended queue. */
static void polled_one(struct st_verbs_cq *cq, struct ibv_cq_ex *handle, enum st_verbs_call call)
{
    int saved = errno;
    struct polled polled = {.cq = cq, .call = call};
    struct ibv_wc wc = {.wr_id = handle->wr_id, .status = handle->status};
    if (wc.status == IBV_WC_SUCCESS)
        wc.opcode = handle->read_opcode(handle);
    if (st_verbs_full || is_arrival(&wc)) {
        polled.t_tsc = st_verbs_now();
        wc.qp_num = handle->read_qp_num(handle);
        if (wc.status == IBV_WC_SUCCESS) {
            wc.byte_len = handle->read_byte_len ? handle->read_byte_len(handle) : 0;
            wc.wc_flags = handle->read_wc_flags(handle);
            wc.src_qp = handle->read_src_qp ? handle->read_src_qp(handle) : 0;
            if (handle->read_imm_data && wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV))
                wc.imm_data = handle->read_imm_data(handle);
        }
        completed(&polled, &wc);
    }
    errno = saved;
}

static int start_poll(struct ibv_cq_ex *handle, struct ibv_poll_cq_attr *attr)
{
    struct st_verbs_cq *cq = st_verbs_find(ST_VERBS_HOT, handle);
    if (ST_UNLIKELY(!cq))
        return ENOSYS;
    st_verbs_claim(&cq->owner);
    int result = cq->start_poll(handle, attr);
    count_poll(cq, !result            ? ST_VERBS_POLL_SOME
                   : result == ENOENT ? ST_VERBS_POLL_EMPTY
                                      : ST_VERBS_POLL_FAILED);
    if (!result)
        polled_one(cq, handle, ST_CALL_START_POLL);
    return result;
}

static int next_poll(struct ibv_cq_ex *handle)
{
    struct st_verbs_cq *cq = st_verbs_find(ST_VERBS_HOT, handle);
    if (ST_UNLIKELY(!cq))
        return ENOSYS;
    int result = cq->next_poll(handle);
    if (!result)
        polled_one(cq, handle, ST_CALL_NEXT_POLL);
    else if (result != ENOENT) /* that is the end of what start_poll began */
        count_poll(cq, ST_VERBS_POLL_FAILED);
    return result;
}

void st_verbs_cq_extend(struct ibv_cq_ex *cq, struct st_verbs_cq *state)
{
    if (!cq->start_poll || !cq->next_poll)
        return; /* made for ibv_poll_cq alone */
    if (!cq->read_qp_num) {
        st_lost("verbs: completion queue that does not name queue pairs", 1);
        return;
    }
    state->start_poll = cq->start_poll;
    state->next_poll = cq->next_poll;
    cq->start_poll = start_poll;
    cq->next_poll = next_poll;
}
