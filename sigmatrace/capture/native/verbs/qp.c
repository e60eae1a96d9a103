/* Queue pairs: created, taken in, destroyed. */
#include "verbs.h"

static struct st_verbs_qp qps[ST_VERBS_QPS];
static struct st_verbs_pool pool;

/* What the creating call was told. */
struct creation {
    enum ibv_qp_type type;
    struct ibv_cq *send_cq, *receive_cq;
    struct ibv_srq *srq;
    struct ibv_pd *pd;
    struct ibv_xrcd *xrcd;
    uint32_t max_send, max_receive;
    bool signal_all;
    uint64_t send_ops;
};

/* Both ways to it, or none. */
static bool publish(struct ibv_qp *qp, struct st_verbs_qp *state)
{
    const void *number = st_verbs_number(state->context, state->qpn);
    if (!st_verbs_put(ST_VERBS_NUMBERS, number, state))
        return false;
    if (st_verbs_put(ST_VERBS_HOT, qp, state))
        return true;
    st_verbs_remove(ST_VERBS_NUMBERS, number, state);
    return false;
}

static struct st_verbs_qp *created(struct ibv_qp *qp, struct st_verbs_context *context,
                                   const struct creation *how)
{
    int saved = errno;
    struct st_verbs_qp *state = st_verbs_state(qps, &pool, ST_VERBS_QPS, sizeof(qps[0]));
    if (!state) {
        errno = saved;
        return NULL;
    }
    *state = (struct st_verbs_qp){
        .taken = 1,
        .handle = qp,
        .context = context,
        .post_send = context->ops.post_send,
        .post_recv = context->ops.post_recv,
        .qpn = qp->qp_num,
        .type = how->type,
        .pd = st_verbs_pd(how->pd, context),
        .xrcd = st_verbs_xrcd(how->xrcd, context),
        .addressed = how->type == IBV_QPT_UD || how->type == IBV_QPT_XRC_SEND,
        .datagram = how->type == IBV_QPT_UD,
        .signal_all = how->signal_all,
        .send_ops = how->send_ops,
        .max_send = how->max_send,
        .max_receive = how->max_receive,
        .send_cq = how->send_cq ? st_verbs_cq_of(how->send_cq) : NULL,
        .receive_cq = how->receive_cq ? st_verbs_cq_of(how->receive_cq) : NULL,
        .srq = how->srq ? st_verbs_find(ST_VERBS_HOT, how->srq) : NULL,
        .shared_receive = how->srq || how->type == IBV_QPT_XRC_RECV,
        .send = state->send,
        .receive = state->receive};
    st_verbs_connection_begin(state, qp->state);
    if (!publish(qp, state)) {
        st_verbs_connection_end(state, st_now());
        st_verbs_state_give(state, &pool);
        state = NULL;
    }
    errno = saved;
    return state;
}

static struct st_verbs_qp *adopt(struct ibv_qp *qp, struct st_verbs_context *context)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    int saved = errno;
    struct creation how = {.type = qp->qp_type,
                           .send_cq = qp->send_cq,
                           .receive_cq = qp->recv_cq,
                           .srq = qp->srq,
                           .pd = qp->pd};
    if (pool.full) { /* also the next of its requests comes here */
        st_lost("verbs: more objects at once than can be traced", 1);
        return NULL;
    }
    if (!context->library->ibv_query_qp(qp, &attr, IBV_QP_CAP, &init)) {
        how.max_send = init.cap.max_send_wr;
        how.max_receive = init.cap.max_recv_wr;
        how.signal_all = init.sq_sig_all;
    }
    errno = saved;
    return created(qp, context, &how);
}

struct st_verbs_qp *st_verbs_qp_adopt(struct ibv_qp *qp)
{
    struct st_verbs_qp *state = st_verbs_qp_of(qp);
    struct st_verbs_context *context =
        state ? NULL : st_verbs_find(ST_VERBS_HOT, qp->context);
    if (!context || !st_verbs_make_begin(ST_VERBS_MAKE_QP, qp))
        return state;
    state = st_verbs_qp_of(qp);
    if (!state)
        state = adopt(qp, context);
    st_verbs_make_end(ST_VERBS_MAKE_QP, qp);
    return state;
}

ST_API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    ST_VERBS_ENTER(pd->context, ibv_create_qp, NULL)
    struct ibv_qp *qp = ST_VERBS_INSIDE(library->ibv_create_qp(pd, attr));
    if (qp && context)
        created(qp, context,
                &(struct creation){.type = attr->qp_type,
                                   .send_cq = attr->send_cq,
                                   .receive_cq = attr->recv_cq,
                                   .srq = attr->srq,
                                   .pd = pd,
                                   .max_send = attr->cap.max_send_wr,
                                   .max_receive = attr->cap.max_recv_wr,
                                   .signal_all = attr->sq_sig_all != 0});
    return qp;
}

struct ibv_qp *st_verbs_create_qp_ex(struct ibv_context *handle, struct ibv_qp_init_attr_ex *attr)
{
    ST_VERBS_ENTER_TABLE(handle, NULL)
    struct ibv_qp *qp = ST_VERBS_INSIDE(context->create_qp_ex(handle, attr));
#define ST_TOLD(bit, member) (attr->comp_mask & IBV_QP_INIT_ATTR_##bit ? attr->member : 0)
    if (qp)
        created(qp, context,
                &(struct creation){.type = attr->qp_type,
                                   .send_cq = attr->send_cq,
                                   .receive_cq = attr->recv_cq,
                                   .srq = attr->srq,
                                   .pd = ST_TOLD(PD, pd),
                                   .xrcd = ST_TOLD(XRCD, xrcd),
                                   .max_send = attr->cap.max_send_wr,
                                   .max_receive = attr->cap.max_recv_wr,
                                   .signal_all = attr->sq_sig_all != 0,
                                   .send_ops = ST_TOLD(SEND_OPS_FLAGS, send_ops_flags)});
#undef ST_TOLD
    return qp;
}

/* An XRC queue pair that another process made. */
struct ibv_qp *st_verbs_open_qp(struct ibv_context *handle, struct ibv_qp_open_attr *attr)
{
    ST_VERBS_ENTER_TABLE(handle, NULL)
    struct ibv_qp *qp = ST_VERBS_INSIDE(context->open_qp(handle, attr));
    if (qp)
        created(qp, context,
                &(struct creation){
                    .type = attr->qp_type,
                    .xrcd = attr->comp_mask & IBV_QP_OPEN_ATTR_XRCD ? attr->xrcd : NULL});
    return qp;
}

ST_API int ibv_destroy_qp(struct ibv_qp *qp)
{
    ST_VERBS_ENTER(qp->context, ibv_destroy_qp, ENOSYS)
    struct st_verbs_qp *state = context ? st_verbs_qp_of(qp) : NULL;
    uint64_t t_tsc = st_now();
    int result = ST_VERBS_INSIDE(library->ibv_destroy_qp(qp));
    int saved = errno;
    if (state && !result) {
        st_verbs_remove(ST_VERBS_HOT, qp, state);
        st_verbs_remove(ST_VERBS_NUMBERS, st_verbs_number(context, state->qpn), state);
        st_verbs_connection_end(state, t_tsc);
        st_verbs_qp_unextend(state);
        st_verbs_state_give(state, &pool);
    }
    errno = saved;
    return result;
}

ST_API struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    ST_VERBS_ENTER(qp->context, ibv_qp_to_qp_ex, NULL)
    struct ibv_qp_ex *extended = library->ibv_qp_to_qp_ex(qp);
    struct st_verbs_qp *state = extended && context ? st_verbs_qp_adopt(qp) : NULL;
    if (state)
        st_verbs_qp_extend(extended, state);
    return extended;
}

void st_verbs_qps_forked(void)
{
    for (uint32_t i = 0; i < ST_VERBS_QPS && i < pool.turn; i++) {
        if (!qps[i].taken)
            continue;
        qps[i].received = 0;
        st_verbs_queue_begin(&qps[i].send, qps[i].max_send);
        st_verbs_queue_begin(&qps[i].receive, qps[i].max_receive);
    }
}
