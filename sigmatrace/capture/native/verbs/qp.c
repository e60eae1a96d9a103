/* Queue pairs: created, taken in, destroyed. */
#include "requests.h"

static struct st_verbs_pool pool = {.size = sizeof(struct st_verbs_qp), .most = ST_VERBS_QPS};

/* Where a queue pair leads that was connected elsewhere. */
#define QUERIED                                                                                    \
    (IBV_QP_STATE | IBV_QP_CAP | IBV_QP_PORT | IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU)

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
    struct st_verbs_qp *state = st_verbs_state(&pool);
    if (!state) {
        st_verbs_leave_out(qp);
        errno = saved;
        return NULL;
    }
    *state = (struct st_verbs_qp){
        .taken = 1,
        .life = st_verbs_life,
        .handle = qp,
        .context = context,
        .post_send = context->ops.post_send,
        .post_recv = context->ops.post_recv,
        .qpn = qp->qp_num,
        .type = how->type,
        .pd = st_verbs_pd(how->pd, context),
        .xrcd = how->xrcd,
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
        st_verbs_leave_out(qp);
        state = NULL;
    }
    errno = saved;
    return state;
}

/* What libibverbs says of it; not every stand-in for that library can tell. */
static bool query(const struct st_verbs_library *library, struct ibv_qp *qp,
                  struct ibv_qp_attr *attr, struct ibv_qp_init_attr *init)
{
    return library->ibv_query_qp && !ST_VERBS_INSIDE(library->ibv_query_qp(qp, attr, QUERIED, init));
}

/* Of those who use it at once, one describes it, before the others go on. */
void st_verbs_qp_inherited(struct st_verbs_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = qp->now};
    struct ibv_qp_init_attr init;
    int saved = errno;
    if (!st_verbs_make_begin(ST_VERBS_MAKE_QP, qp->handle))
        return;
    if (qp->life != st_verbs_life) {
        st_verbs_context_known(qp->context->handle);
        qp->pd = st_verbs_pd(qp->handle->pd, qp->context);
        st_verbs_connection_begin(qp, qp->now);
        if (query(qp->context->library, qp->handle, &attr, &init))
            st_verbs_connection_known(qp, &attr);
        __atomic_store_n(&qp->life, st_verbs_life, __ATOMIC_RELEASE);
    }
    st_verbs_make_end(ST_VERBS_MAKE_QP, qp->handle);
    errno = saved;
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
    bool told = query(context->library, qp, &attr, &init);
    if (told) {
        how.max_send = init.cap.max_send_wr;
        how.max_receive = init.cap.max_recv_wr;
        how.signal_all = init.sq_sig_all;
    }
    errno = saved;
    struct st_verbs_qp *state = created(qp, context, &how);
    if (told && state)
        st_verbs_connection_known(state, &attr);
    errno = saved;
    return state;
}

struct st_verbs_qp *st_verbs_qp_adopt(struct ibv_qp *qp)
{
    struct st_verbs_qp *state = st_verbs_qp_of(qp);
    struct st_verbs_context *context =
        state ? NULL : st_verbs_context_known(qp->context);
    if (!context || st_verbs_left_out(qp) || !st_verbs_make_begin(ST_VERBS_MAKE_QP, qp))
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
    struct st_verbs_qp *state = context ? st_verbs_find(ST_VERBS_HOT, qp) : NULL;
    uint64_t t_tsc = st_now();
    int result = ST_VERBS_INSIDE(library->ibv_destroy_qp(qp));
    int saved = errno;
    if (state && !result) {
        st_verbs_remove(ST_VERBS_HOT, qp, state);
        st_verbs_remove(ST_VERBS_NUMBERS, st_verbs_number(context, state->qpn), state);
        if (state->life == st_verbs_life) /* else a child puts away what it inherited */
            st_verbs_connection_end(state, t_tsc);
        st_verbs_qp_unextend(state);
        st_verbs_state_give(state, &pool);
    } else if (!result) {
        st_verbs_left_out_ended(qp);
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
    struct st_verbs_qp *qp;
    for (uint32_t i = 0; (qp = st_verbs_state_at(&pool, i)); i++)
        if (qp->taken) {
            qp->received = 0;
            st_verbs_queue_begin(&qp->send, qp->max_send);
            st_verbs_queue_begin(&qp->receive, qp->max_receive);
        }
}
