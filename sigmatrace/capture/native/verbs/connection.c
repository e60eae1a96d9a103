/* Connections of queue pairs: begun, changed, ended. One object for each. */
#include <string.h>

#include "verbs.h"

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

/* When the state was entered, last: as a program learns of it. */
static void put_time(struct st_object *o, enum ibv_qp_state state)
{
    static const char *const keys[] = {"reset_tsc", "init_tsc", "rtr_tsc",  "rts_tsc",
                                       "sqd_tsc",   "sqe_tsc",  "error_tsc"};
    if ((unsigned)state < sizeof(keys) / sizeof(keys[0]))
        st_object_u64(o, keys[state], st_now());
}

void st_verbs_connection_begin(struct st_verbs_qp *state, enum ibv_qp_state now)
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

void st_verbs_connection_end(struct st_verbs_qp *state, uint64_t t_tsc)
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
        put_time(&o, attr->qp_state);
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
        st_verbs_connection_begin(state, IBV_QPS_RESET);
    errno = saved;
    uint64_t t_tsc = st_now();
    int result = ST_VERBS_INSIDE(library->ibv_modify_qp(qp, attr, mask));
    saved = errno;
    if (state && !result && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET) {
        if (state->begun)
            st_verbs_connection_end(state, t_tsc);
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
        st_verbs_connection_begin(state, IBV_QPS_RESET);
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
