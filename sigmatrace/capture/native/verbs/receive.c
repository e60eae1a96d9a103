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
                   uint32_t object, uint8_t queue)
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
            .opcode = UINT8_MAX,
            .sges = wr->num_sge > 255 ? 255 : (uint8_t)wr->num_sge,
            .queue = queue});
    }
}

int st_verbs_post_recv(struct ibv_qp *handle, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct st_verbs_qp *qp = st_verbs_qp_of(handle);
    if (ST_UNLIKELY(!qp) && !(qp = st_verbs_qp_adopt(handle))) {
        struct st_verbs_context *context =
            st_verbs_find(ST_VERBS_HOT, handle->context);
        st_lost("verbs: requests of a queue pair that is not known", 1);
        return context ? context->ops.post_recv(handle, wr, bad) : ENOSYS;
    }
    uint64_t t_tsc = st_now();
    uint32_t count = count_of(wr, NULL), accepted = count;
    st_verbs_claim(&qp->receive.owner);
    uint32_t position = st_verbs_positions(&qp->receive, count), at = position;
    for (struct ibv_recv_wr *one = wr; one; one = one->next)
        st_verbs_outstanding(&qp->receive, at++, t_tsc, one->wr_id, UINT8_MAX, true);
    int result = qp->post_recv(handle, wr, bad);
    if (ST_UNLIKELY(result)) {
        accepted = count_of(wr, *bad);
        st_verbs_refused(&qp->receive, position, count, accepted);
    }
    record(wr, accepted, position, t_tsc, qp->id, 2);
    return result;
}

int st_verbs_post_srq_recv(struct ibv_srq *handle, struct ibv_recv_wr *wr,
                           struct ibv_recv_wr **bad)
{
    struct st_verbs_srq *srq = st_verbs_find(ST_VERBS_HOT, handle);
    if (ST_UNLIKELY(!srq)) {
        struct st_verbs_context *context =
            st_verbs_find(ST_VERBS_HOT, handle->context);
        st_lost("verbs: receives of a shared queue that is not known", 1);
        return context ? context->ops.post_srq_recv(handle, wr, bad) : ENOSYS;
    }
    uint64_t t_tsc = st_now();
    int result = srq->post_srq_recv(handle, wr, bad);
    uint32_t accepted = count_of(wr, result ? *bad : NULL);
    uint32_t position = __atomic_fetch_add(&srq->posted, accepted, __ATOMIC_RELAXED);
    record(wr, accepted, position, t_tsc, srq->id, 3);
    return result;
}
