/* Receives that are posted, mode full. */
#include "requests.h"

static void read_wr(struct st_verbs_wr *wr, const struct ibv_recv_wr *from)
{
    *wr = (struct st_verbs_wr){.address = from,
                               .wr_id = from->wr_id,
                               .sges = (uint32_t)from->num_sge,
                               .opcode = ST_OPCODE_RECEIVE};
    for (int i = 0; i < from->num_sge; i++)
        wr->size += from->sg_list[i].length;
}

/* Receives of a call, read before it: one alone needs no memory but the caller's. */
struct receives {
    struct st_verbs_wr one;
    struct st_verbs_batch alone, *batch; /* NULL: there is no memory */
    uint32_t count;
};

static void receives_read(struct receives *r, const struct ibv_recv_wr *from)
{
    r->alone = (struct st_verbs_batch){.room = 1, .wrs = &r->one};
    r->batch = from && from->next ? st_verbs_batch_take() : &r->alone;
    for (r->count = 0; from; from = from->next, r->count++) {
        struct st_verbs_wr *wr = st_verbs_batch_add(r->batch);
        if (ST_LIKELY(wr != NULL))
            read_wr(wr, from);
    }
}

static uint32_t noted(const struct receives *r)
{
    return ST_LIKELY(r->batch != NULL) ? r->batch->count : 0;
}

/* Records the first `accepted` ones, and gives their memory back. */
static void receives_end(struct receives *r, uint32_t accepted, uint32_t position, uint64_t t_tsc,
                         uint32_t object, enum st_queue queue)
{
    for (uint32_t i = 0; i < noted(r) && i < accepted; i++) {
        const struct st_verbs_wr *wr = &r->batch->wrs[i];
        st_request(&(struct st_request_record){
            .t_tsc = t_tsc,
            .wr_id = wr->wr_id,
            .size_bytes = wr->size > UINT32_MAX ? UINT32_MAX : (uint32_t)wr->size,
            .object = object,
            .position = position + i,
            .opcode = ST_OPCODE_RECEIVE,
            .sges = wr->sges > 255 ? 255 : (uint8_t)wr->sges,
            .queue = queue});
    }
    if (r->batch != &r->alone)
        st_verbs_batch_give(r->batch);
}

int st_verbs_post_recv(struct ibv_qp *handle, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct st_verbs_qp *qp = st_verbs_qp_of(handle);
    if (ST_UNLIKELY(!qp) && !(qp = st_verbs_qp_adopt(handle)))
        return ST_VERBS_PASS_ON(handle, ST_VERBS_NO_QP, post_recv(handle, wr, bad), ENOSYS);
    struct ibv_recv_wr *refused = wr;
    struct receives r;
    uint64_t t_tsc = st_now();
    st_verbs_claim(&qp->receive.owner);
    receives_read(&r, wr);
    uint32_t position = st_verbs_positions(&qp->receive, r.count), accepted = r.count;
    for (uint32_t i = 0; i < noted(&r); i++)
        st_verbs_outstanding(&qp->receive, position + i, t_tsc, r.batch->wrs[i].wr_id,
                             ST_OPCODE_RECEIVE, true);
    int result = qp->post_recv(handle, wr, bad ? &refused : NULL);
    if (ST_UNLIKELY(result)) {
        if (bad)
            *bad = refused;
        accepted = st_verbs_batch_accepted(r.batch, r.count, refused);
        st_verbs_refused(&qp->receive, position, r.count, accepted);
    }
    receives_end(&r, accepted, position, t_tsc, qp->id, ST_QUEUE_RECV);
    return result;
}

int st_verbs_post_srq_recv(struct ibv_srq *handle, struct ibv_recv_wr *wr,
                           struct ibv_recv_wr **bad)
{
    struct st_verbs_srq *srq = st_verbs_find(ST_VERBS_HOT, handle);
    if (ST_UNLIKELY(!srq))
        return ST_VERBS_PASS_ON(handle, "verbs: receives of a shared queue that is not known",
                                post_srq_recv(handle, wr, bad), ENOSYS);
    struct ibv_recv_wr *refused = wr;
    struct receives r;
    uint64_t t_tsc = st_now();
    receives_read(&r, wr);
    for (uint32_t i = 0; i < noted(&r); i++)
        st_verbs_shared_put(srq, r.batch->wrs[i].wr_id);
    int result = srq->post_srq_recv(handle, wr, bad ? &refused : NULL);
    uint32_t accepted = r.count;
    if (ST_UNLIKELY(result)) {
        if (bad)
            *bad = refused;
        accepted = st_verbs_batch_accepted(r.batch, r.count, refused);
    }
    uint32_t position = __atomic_fetch_add(&srq->posted, accepted, __ATOMIC_RELAXED);
    receives_end(&r, accepted, position, t_tsc, st_verbs_srq_id(srq), ST_QUEUE_SHARED);
    return result;
}
