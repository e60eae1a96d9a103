/* Queue pairs: created, connected, connected anew, destroyed. One object for each connection. */
#include <pthread.h>
#include <string.h>

#include "verbs.h"

#define QPS (1u << 16)

static struct st_verbs_qp qps[QPS];
static uint32_t turn;

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

static const char *type_name(enum ibv_qp_type type)
{
    switch (type) {
    case IBV_QPT_RC:
        return "rc";
    case IBV_QPT_UC:
        return "uc";
    case IBV_QPT_UD:
        return "ud";
    case IBV_QPT_XRC_SEND:
        return "xrc_send";
    case IBV_QPT_XRC_RECV:
        return "xrc_recv";
    case IBV_QPT_RAW_PACKET:
        return "raw";
    default:
        return "driver";
    }
}

static const char *state_name(enum ibv_qp_state state)
{
    static const char *const names[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "error"};
    return (unsigned)state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

static void begin_connection(struct st_verbs_qp *state, enum ibv_qp_state now)
{
    struct st_object o;
    __atomic_store_n(&state->id, st_object_id(), __ATOMIC_RELAXED);
    state->message = state->one_sided = state->in = NULL;
    state->received = 0;
    state->ended = false;
    state->now = now;
    st_verbs_queue_begin(&state->send, state->max_send);
    st_verbs_queue_begin(&state->receive, state->max_receive);
    st_object_begin(&o, "ib_qp", state->id);
    st_object_u64(&o, "device", state->context->device);
    st_object_u64(&o, "qpn", state->qpn);
    st_object_str(&o, "qp_type", type_name(state->type));
    st_object_u64(&o, "sq_sig_all", state->signal_all);
    if (state->pd)
        st_object_u64(&o, "pd", state->pd);
    if (state->xrcd)
        st_object_u64(&o, "xrcd", state->xrcd);
    if (state->send_cq)
        st_object_u64(&o, "send_cq", state->send_cq->id);
    if (state->receive_cq)
        st_object_u64(&o, "recv_cq", state->receive_cq->id);
    if (state->srq)
        st_object_u64(&o, "srq", state->srq->id);
    st_object_str(&o, "state", state_name(now));
    st_object_end(&o);
}

/* `t_tsc`: before the call that ended it, as the number may be given to another at once. */
static void end_connection(struct st_verbs_qp *state, uint64_t t_tsc)
{
    struct st_object o;
    if (!state->ended) {
        st_object_begin(&o, "ib_qp", state->id);
        st_object_u64(&o, "closed_tsc", t_tsc);
        st_object_end(&o);
    }
    state->ended = true;
    state->begun = false;
}

static struct st_verbs_qp *created(struct ibv_qp *qp, struct st_verbs_context *context,
                                   const struct creation *how)
{
    int saved = errno;
    struct st_verbs_qp *state = st_verbs_state(qps, &turn, QPS, sizeof(qps[0]));
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
    begin_connection(state, qp->state);
    st_verbs_put(ST_VERBS_HOT, qp, state);
    st_verbs_put(ST_VERBS_HOT, st_verbs_number(context, state->qpn), state);
    errno = saved;
    return state;
}

struct st_verbs_qp *st_verbs_qp_adopt(struct ibv_qp *qp)
{
    struct st_verbs_qp *state = st_verbs_qp_of(qp);
    if (state)
        return state;
    struct st_verbs_context *context = st_verbs_find(ST_VERBS_HOT, qp->context);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    if (!context)
        return NULL;
    int saved = errno;
    struct creation how = {.type = qp->qp_type,
                           .send_cq = qp->send_cq,
                           .receive_cq = qp->recv_cq,
                           .srq = qp->srq,
                           .pd = qp->pd};
    if (!context->library->ibv_query_qp(qp, &attr, IBV_QP_CAP, &init)) {
        how.max_send = init.cap.max_send_wr;
        how.max_receive = init.cap.max_recv_wr;
        how.signal_all = init.sq_sig_all;
    }
    errno = saved;
    return created(qp, context, &how);
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

static void put_gid(struct st_object *o, struct st_verbs_qp *state, const char *key, int index)
{
    union ibv_gid gid;
    if (!state->context->library->ibv_query_gid(state->context->handle, state->port, index, &gid))
        st_object_bin(o, key, gid.raw, sizeof(gid.raw));
}

/* Where a connected queue pair leads, from its transition to RTR. */
static void put_path(struct st_object *o, struct st_verbs_qp *state,
                     const struct ibv_ah_attr *attr)
{
    st_object_u64(o, "sl", attr->sl);
    if (attr->is_global) {
        put_gid(o, state, "sgid", attr->grh.sgid_index);
        st_object_bin(o, "dgid", attr->grh.dgid.raw, sizeof(attr->grh.dgid.raw));
        st_object_u64(o, "traffic_class", attr->grh.traffic_class);
        st_object_u64(o, "hop_limit", attr->grh.hop_limit);
    } else {
        st_object_u64(o, "slid", st_verbs_lid(state->context, state->port));
        st_object_u64(o, "dlid", attr->dlid);
    }
}

/* Attributes of a transition that are recorded as they are. */
static const struct {
    int mask;
    const char *key;
    size_t at, size;
} attributes[] = {
#define ST_ROW(mask, key, member)                                                                  \
    {mask, key, offsetof(struct ibv_qp_attr, member), sizeof(((struct ibv_qp_attr *)0)->member)}
    ST_ROW(IBV_QP_DEST_QPN, "dest_qpn", dest_qp_num),
    ST_ROW(IBV_QP_SQ_PSN, "sq_psn", sq_psn),
    ST_ROW(IBV_QP_RQ_PSN, "rq_psn", rq_psn),
    ST_ROW(IBV_QP_PKEY_INDEX, "pkey_index", pkey_index),
    ST_ROW(IBV_QP_QKEY, "qkey", qkey),
    ST_ROW(IBV_QP_ACCESS_FLAGS, "access", qp_access_flags),
    ST_ROW(IBV_QP_TIMEOUT, "timeout", timeout),
    ST_ROW(IBV_QP_RETRY_CNT, "retry_cnt", retry_cnt),
    ST_ROW(IBV_QP_RNR_RETRY, "rnr_retry", rnr_retry),
    ST_ROW(IBV_QP_MIN_RNR_TIMER, "min_rnr_timer", min_rnr_timer),
    ST_ROW(IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", max_rd_atomic),
    ST_ROW(IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", max_dest_rd_atomic),
#undef ST_ROW
};

static void modified(struct st_verbs_qp *state, const struct ibv_qp_attr *attr, int mask)
{
    struct st_object o;
    st_object_begin(&o, "ib_qp", state->id);
    if (mask & IBV_QP_STATE) {
        state->now = attr->qp_state;
        st_object_str(&o, "state", state_name(attr->qp_state));
    }
    if (mask & IBV_QP_PORT) {
        state->port = attr->port_num;
        st_object_u64(&o, "port", attr->port_num);
        if (state->datagram)
            put_gid(&o, state, "sgid", 0);
    }
    if (mask & IBV_QP_AV)
        put_path(&o, state, &attr->ah_attr);
    if (mask & IBV_QP_PATH_MTU)
        st_object_u64(&o, "path_mtu_bytes", 128u << attr->path_mtu);
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        uint64_t value = 0;
        memcpy(&value, (const uint8_t *)attr + attributes[i].at, attributes[i].size);
        if (mask & attributes[i].mask)
            st_object_u64(&o, attributes[i].key, value);
    }
    st_object_end(&o);
}

ST_API int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    ST_VERBS_ENTER(qp->context, ibv_modify_qp, ENOSYS)
    struct st_verbs_qp *state = context ? st_verbs_qp_adopt(qp) : NULL;
    int saved = errno;
    /* Before the call: receives may be posted, and may complete, as soon as it returns. */
    if (state && state->ended && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_INIT)
        begin_connection(state, IBV_QPS_RESET);
    errno = saved;
    uint64_t t_tsc = st_now();
    int result = ST_VERBS_INSIDE(library->ibv_modify_qp(qp, attr, mask));
    saved = errno;
    if (state && !result && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET) {
        if (state->begun)
            end_connection(state, t_tsc);
    } else if (state && !result) {
        if (mask & IBV_QP_STATE)
            state->begun = true;
        modified(state, attr, mask);
    }
    errno = saved;
    return result;
}

/* A queue pair enters the states of error by itself: here the program learns of it. */
ST_API int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                        struct ibv_qp_init_attr *init)
{
    ST_VERBS_ENTER(qp->context, ibv_query_qp, ENOSYS)
    int result = ST_VERBS_INSIDE(library->ibv_query_qp(qp, attr, mask, init));
    struct st_verbs_qp *state = context && !result ? st_verbs_qp_of(qp) : NULL;
    int saved = errno;
    if (state && !state->ended && mask & IBV_QP_STATE && attr->qp_state != state->now)
        modified(state, attr, IBV_QP_STATE);
    errno = saved;
    return result;
}

static void put_ece(struct st_verbs_qp *state, const struct ibv_ece *ece)
{
    int saved = errno;
    struct st_object o;
    st_object_begin(&o, "ib_qp", state->id);
    st_object_u64(&o, "ece_vendor_id", ece->vendor_id);
    st_object_u64(&o, "ece_options", ece->options);
    st_object_u64(&o, "ece_comp_mask", ece->comp_mask);
    st_object_end(&o);
    errno = saved;
}

/* What the program asks for, of the connection that it is about to make. */
ST_API int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    ST_VERBS_ENTER(qp->context, ibv_set_ece, ENOSYS)
    int result = ST_VERBS_INSIDE(library->ibv_set_ece(qp, ece));
    struct st_verbs_qp *state = context && !result ? st_verbs_qp_adopt(qp) : NULL;
    if (state && state->ended)
        begin_connection(state, IBV_QPS_RESET);
    if (state)
        put_ece(state, ece);
    return result;
}

/* What is in force. */
ST_API int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    ST_VERBS_ENTER(qp->context, ibv_query_ece, ENOSYS)
    int result = ST_VERBS_INSIDE(library->ibv_query_ece(qp, ece));
    struct st_verbs_qp *state = context && !result ? st_verbs_qp_adopt(qp) : NULL;
    if (state && !state->ended)
        put_ece(state, ece);
    return result;
}

ST_API int ibv_destroy_qp(struct ibv_qp *qp)
{
    ST_VERBS_ENTER(qp->context, ibv_destroy_qp, ENOSYS)
    struct st_verbs_qp *state = context ? st_verbs_take(ST_VERBS_HOT, qp) : NULL;
    if (state)
        st_verbs_take(ST_VERBS_HOT, st_verbs_number(context, state->qpn));
    uint64_t t_tsc = st_now();
    int result = ST_VERBS_INSIDE(library->ibv_destroy_qp(qp));
    int saved = errno;
    if (state && result) {
        st_verbs_put(ST_VERBS_HOT, qp, state);
        st_verbs_put(ST_VERBS_HOT, st_verbs_number(context, state->qpn), state);
    } else if (state) {
        end_connection(state, t_tsc);
        st_verbs_qp_unextend(state);
        __atomic_store_n(&state->taken, 0, __ATOMIC_RELEASE);
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

/* In a child everything is counted from 0, as the core does with its channels. */
static void forked(void)
{
    for (uint32_t i = 0; i < QPS && i < turn; i++) {
        if (!qps[i].taken)
            continue;
        qps[i].received = 0;
        st_verbs_queue_begin(&qps[i].send, qps[i].max_send);
        st_verbs_queue_begin(&qps[i].receive, qps[i].max_receive);
    }
}

__attribute__((constructor)) static void start(void)
{
    if (st_layer_on(ST_LAYER_VERBS))
        pthread_atfork(NULL, NULL, forked);
}
