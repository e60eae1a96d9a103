/* Receives that are posted, mode full. */
#include "verbs.h"

static uint32_t count_of(const struct ibv_recv_wr *wr, const struct ibv_recv_wr *end)
{
    uint32_t n = 0;
    for (; wr && wr != end; wr = wr->next)
        n++;
    return n;
}

static void record(const struct ibv_recv_wr *wr, uint32_t count, uint32_t position, uint64_t t_tsc,
                   uint32_t object, enum st_queue queue)
{
    for (; count; count--, position++, wr = wr->next) {
        uint64_t size = 0;
        for (int i = 0; i < wr->num_sge; i++)
            size += wr->sg_list[i].length;
        st_request(&(struct st_request_record){
            .t_tsc = t_tsc,
            .wr_id = wr->wr_id,
            .size_bytes = size > UINT32_MAX ? UINT32_MAX : (uint32_t)size,
            .object = object,
            .position = position,
            .opcode = ST_OPCODE_RECEIVE,
            .sges = wr->num_sge > 255 ? 255 : (uint8_t)wr->num_sge,
            .queue = queue});
    }
}

int st_verbs_post_recv(struct ibv_qp *handle, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct st_verbs_qp *qp = st_verbs_qp_of(handle);
    if (ST_UNLIKELY(!qp) && !(qp = st_verbs_qp_adopt(handle)))
        return ST_VERBS_PASS_ON(handle, ST_VERBS_NO_QP, post_recv(handle, wr, bad), ENOSYS);
    struct ibv_recv_wr *refused = wr;
    uint64_t t_tsc = st_now();
    uint32_t count = count_of(wr, NULL), accepted = count;
    st_verbs_claim(&qp->receive.owner);
    uint32_t position = st_verbs_positions(&qp->receive, count), at = position;
    for (struct ibv_recv_wr *one = wr; one; one = one->next)
        st_verbs_outstanding(&qp->receive, at++, t_tsc, one->wr_id, ST_OPCODE_RECEIVE, true);
    int result = qp->post_recv(handle, wr, &refused);
    if (ST_UNLIKELY(result)) {
        *bad = refused;
        accepted = count_of(wr, refused);
        st_verbs_refused(&qp->receive, position, count, accepted);
    }
    record(wr, accepted, position, t_tsc, qp->id, ST_QUEUE_RECV);
    return result;
}

int st_verbs_post_srq_recv(struct ibv_srq *handle, struct ibv_recv_wr *wr,
                           struct ibv_recv_wr **bad)
{
    struct st_verbs_srq *srq = st_verbs_find(ST_VERBS_HOT, handle);
    if (ST_UNLIKELY(!srq))
        return ST_VERBS_PASS_ON(handle, "verbs: receives of a shared queue that is not known",
                                post_srq_recv(handle, wr, bad), ENOSYS);
    uint64_t t_tsc = st_now();
    struct ibv_recv_wr *refused = wr;
    int result = srq->post_srq_recv(handle, wr, &refused);
    if (result)
        *bad = refused;
    uint32_t accepted = count_of(wr, result ? refused : NULL);
    uint32_t position = __atomic_fetch_add(&srq->posted, accepted, __ATOMIC_RELAXED);
    record(wr, accepted, position, t_tsc, srq->id, ST_QUEUE_SHARED);
    return result;
}
