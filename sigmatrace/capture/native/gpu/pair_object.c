/* A queue pair made by DEVX: its objects, one for each connection, and when it is followed. */
#define _GNU_SOURCE
#include <string.h>

#include "hooks.h"
#include "mailbox.h"

#define DEFAULT_PORT 1u
#define SUBNET_BYTES 8u

static const char *service_name(uint32_t type)
{
    static const char *const names[] = {[ST_RC] = "rc",   [ST_UC] = "uc",   [ST_UD] = "ud",
                                        [ST_XRC] = "xrc", [ST_DCI] = "dci", [ST_DCT] = "dct"};
    const char *name = type < sizeof(names) / sizeof(names[0]) ? names[type] : NULL;
    return name ? name : "other";
}

/* --- what the NIC says --------------------------------------------------------------------------- */

static bool query_port(const struct st_devx_pair *pair, struct ibv_port_attr *attr)
{
    uint8_t port = (uint8_t)(pair->port ? pair->port : DEFAULT_PORT);
    struct verbs_context *extended = verbs_get_ctx_op(pair->context, query_port);
    memset(attr, 0, sizeof(*attr));
    if (extended)
        return !extended->query_port(pair->context, port, attr, sizeof(*attr));
    return pair->library->ibv_query_port &&
           !pair->library->ibv_query_port(pair->context, port, (void *)attr);
}

static bool query_gid(const struct st_devx_pair *pair, int index, union ibv_gid *gid)
{
    uint8_t port = (uint8_t)(pair->port ? pair->port : DEFAULT_PORT);
    return pair->library->ibv_query_gid &&
           !pair->library->ibv_query_gid(pair->context, port, index, gid);
}

/* The subnet in which the port's LIDs hold. */
static bool query_prefix(const struct st_devx_pair *pair, uint8_t prefix[SUBNET_BYTES])
{
    struct ibv_port_attr attr;
    union ibv_gid gid;
    if (!query_port(pair, &attr) || attr.link_layer == IBV_LINK_LAYER_ETHERNET ||
        !query_gid(pair, 0, &gid))
        return false;
    memcpy(prefix, gid.raw, SUBNET_BYTES);
    return true;
}

/* --- objects ---------------------------------------------------------------------------------------- */

static void describe(struct st_devx_pair *pair)
{
    struct st_object o;
    st_object_begin(&o, "mlx5_qp", pair->object);
    st_object_u64(&o, "qpn", pair->qpn);
    st_object_str(&o, "qp_type", service_name(pair->type));
    if (pair->uar_object)
        st_object_u64(&o, "uar", pair->uar_object);
    if (pair->umem)
        st_object_u64(&o, "umem", pair->umem);
    st_object_u64(&o, "umem_offset", pair->umem_offset);
    st_object_u64(&o, "log_sq_size", pair->log_sq_size);
    st_object_u64(&o, "cqn_snd", pair->cqn_snd);
    st_object_u64(&o, "cqn_rcv", pair->cqn_rcv);
    if (pair->dbr_umem)
        st_object_u64(&o, "dbr_umem", pair->dbr_umem);
    st_object_u64(&o, "dbr_offset", pair->dbr_offset);
    st_object_str(&o, "state", pair->state);
    st_object_end(&o);
    pair->described = true;
}

static void close(struct st_devx_pair *pair, uint64_t t_tsc)
{
    struct st_object o;
    if (pair->described) {
        st_object_begin(&o, "mlx5_qp", pair->object);
        st_object_u64(&o, "doorbells", pair->totals.doorbells);
        st_object_u64(&o, "slots", pair->totals.slots);
        st_object_u64(&o, "invalid_slots", pair->totals.invalid_slots);
        st_object_u64(&o, "uncopied_slots", pair->totals.uncopied_slots);
        st_object_u64(&o, "closed_tsc", t_tsc);
        st_object_end(&o);
    }
    pair->described = false;
    memset(&pair->totals, 0, sizeof(pair->totals));
}

static void put_path(struct st_object *o, const struct st_devx_pair *pair, const uint8_t *in,
                     size_t in_size)
{
    static const uint8_t none[ST_GID_BYTES];
    struct ibv_port_attr attr;
    union ibv_gid gid;
    uint8_t prefix[SUBNET_BYTES];
    const uint8_t *remote = in_size >= ST_QP_RGID_AT + ST_GID_BYTES ? in + ST_QP_RGID_AT : none;
    uint64_t dlid = st_mailbox(in, in_size, ST_QP_RLID);
    bool has_port = query_port(pair, &attr), has_gid = memcmp(remote, none, ST_GID_BYTES) != 0;
    /* LIDs, unless the packets carry GIDs: on Ethernet, or with a global route header. */
    if (has_gid && ((has_port && attr.link_layer == IBV_LINK_LAYER_ETHERNET) || !dlid ||
                    st_mailbox(in, in_size, ST_QP_GRH))) {
        if (query_gid(pair, (int)st_mailbox(in, in_size, ST_QP_SRC_ADDR_INDEX), &gid))
            st_object_bin(o, "sgid", gid.raw, sizeof(gid.raw));
        st_object_bin(o, "dgid", remote, ST_GID_BYTES);
        return;
    }
    if (has_port)
        st_object_u64(o, "slid", attr.lid);
    st_object_u64(o, "dlid", dlid);
    if (query_prefix(pair, prefix))
        st_object_bin(o, "prefix", prefix, sizeof(prefix));
}

/* Whom a datagram's queue pair is, as others name it. */
static void put_self(struct st_object *o, const struct st_devx_pair *pair)
{
    struct ibv_port_attr attr;
    union ibv_gid gid;
    uint8_t prefix[SUBNET_BYTES];
    bool has_port = query_port(pair, &attr);
    if (has_port && attr.link_layer != IBV_LINK_LAYER_ETHERNET && attr.lid) {
        st_object_u64(o, "slid", attr.lid);
        if (query_prefix(pair, prefix))
            st_object_bin(o, "prefix", prefix, sizeof(prefix));
    } else if (query_gid(pair, 0, &gid)) {
        st_object_bin(o, "sgid", gid.raw, sizeof(gid.raw));
    }
}

/* --- life --------------------------------------------------------------------------------------------- */

static bool has_av(const struct st_devx_pair *pair)
{
    return pair->type == ST_DCI || pair->type == ST_UD;
}

static void locate(struct st_devx_pair *pair, const uint8_t *in, size_t in_size)
{
    const struct st_umem *ring = NULL, *record = NULL;
    if (st_mailbox(in, in_size, ST_QP_WQ_UMEM_VALID))
        ring = st_umem_of(pair->context, (uint32_t)st_mailbox(in, in_size, ST_QP_WQ_UMEM_ID));
    if (st_mailbox(in, in_size, ST_QP_DBR_UMEM_VALID))
        record = st_umem_of(pair->context, (uint32_t)st_mailbox(in, in_size, ST_QP_DBR_UMEM_ID));
    pair->umem_offset = st_mailbox(in, in_size, ST_QP_WQ_UMEM_OFFSET);
    pair->dbr_offset = st_mailbox(in, in_size, ST_QP_DBR_ADDR);
    pair->log_sq_size = (uint32_t)st_mailbox(in, in_size, ST_QP_LOG_SQ_SIZE);
    uint64_t before = 0; /* the receive queue comes first */
    if (!st_mailbox(in, in_size, ST_QP_RQ_TYPE))
        before = 16ull << (st_mailbox(in, in_size, ST_QP_LOG_RQ_SIZE) +
                           st_mailbox(in, in_size, ST_QP_LOG_RQ_STRIDE));
    uint32_t slots = st_mailbox(in, in_size, ST_QP_NO_SQ) ? 0 : 1u << pair->log_sq_size;
    uint64_t at = pair->umem_offset + before, size = (uint64_t)slots * ST_GPU_SLOT_BYTES;
    pair->umem = ring ? ring->object : 0;
    pair->dbr_umem = record ? record->object : 0;
    if (ring && ring->address && at <= ring->size_bytes && size <= ring->size_bytes - at) {
        pair->sq = ring->address + at;
        pair->sq_slots = slots;
    }
    if (record && record->address && pair->dbr_offset + 8 <= record->size_bytes)
        pair->dbrec = record->address + pair->dbr_offset + 4; /* the first four: the receive queue's */
}

void st_devx_pair_created(struct st_devx_pair *pair, const uint8_t *in, size_t in_size)
{
    pair->type = (uint32_t)st_mailbox(in, in_size, ST_QP_SERVICE);
    pair->cqn_snd = (uint32_t)st_mailbox(in, in_size, ST_QP_CQN_SND);
    pair->cqn_rcv = (uint32_t)st_mailbox(in, in_size, ST_QP_CQN_RCV);
    locate(pair, in, in_size);
    pair->uar = st_uar_of_page(pair->context, (uint32_t)st_mailbox(in, in_size, ST_QP_UAR_PAGE));
    if (pair->uar) {
        pair->uar_object = pair->uar->object;
        pair->uar_serial = pair->uar->serial;
        pair->shadow = pair->uar->shadow;
        __atomic_add_fetch(&pair->uar->pairs, 1, __ATOMIC_RELAXED);
    }
    pair->state = "reset";
    pair->object = st_object_id();
    describe(pair);
}

static void follow(struct st_devx_pair *pair)
{
    struct st_gpu_qp_new new = {.qpn = pair->qpn,
                                .object = pair->object,
                                .shadow = pair->shadow,
                                .sq = pair->sq,
                                .sq_slots = pair->sq_slots,
                                .dbrec = pair->dbrec,
                                .has_av = has_av(pair)};
    if (!pair->shadow)
        return;
    query_prefix(pair, new.prefix);
    pair->followed = st_gpu_qp_add(&new);
    if (!pair->followed)
        st_lost("gpu: queue pair whose doorbells are not followed", 1);
}

/* RST2INIT. Only now the port is known; nothing can be rung before. */
static void begin(struct st_devx_pair *pair)
{
    if (pair->reset) {
        uint32_t object = st_object_id();
        if (pair->followed)
            st_gpu_qp_restart(pair->shadow, pair->qpn, object, &pair->totals);
        close(pair, pair->reset_tsc);
        pair->object = object;
        describe(pair);
    }
    pair->reset = false;
    if (!pair->followed)
        follow(pair);
}

void st_devx_pair_modified(struct st_devx_pair *pair, const uint8_t *in, size_t in_size,
                           uint64_t t_tsc)
{
    static const char *const states[] = {
        [ST_RST2INIT - ST_RST2INIT] = "init",  [ST_INIT2RTR - ST_RST2INIT] = "rtr",
        [ST_RTR2RTS - ST_RST2INIT] = "rts",    [ST_RTS2RTS - ST_RST2INIT] = "rts",
        [ST_SQERR2RTS - ST_RST2INIT] = "rts",  [ST_TO_ERROR - ST_RST2INIT] = "error",
        [ST_TO_RESET - ST_RST2INIT] = "reset"};
    uint64_t command = st_mailbox(in, in_size, ST_COMMAND);
    struct st_object o;
    if (command < ST_RST2INIT || command > ST_TO_RESET || !states[command - ST_RST2INIT])
        return;
    uint32_t port = (uint32_t)st_mailbox(in, in_size, ST_QP_PORT);
    if (command == ST_RST2INIT) {
        pair->port = port;
        begin(pair);
    } else if (command == ST_TO_RESET && strcmp(pair->state, "reset")) {
        pair->reset = true;
        pair->reset_tsc = t_tsc;
    }
    pair->state = states[command - ST_RST2INIT];
    st_object_begin(&o, "mlx5_qp", pair->object);
    st_object_str(&o, "state", pair->state);
    if (command == ST_RST2INIT) {
        st_object_u64(&o, "port", port ? port : DEFAULT_PORT);
        if (has_av(pair))
            put_self(&o, pair);
    }
    if (command == ST_INIT2RTR && !has_av(pair)) {
        st_object_u64(&o, "dest_qpn", st_mailbox(in, in_size, ST_QP_REMOTE_QPN));
        put_path(&o, pair, in, in_size);
    }
    st_object_end(&o);
}

void st_devx_pair_leave(struct st_devx_pair *pair)
{
    if (pair->followed)
        st_gpu_qp_remove(pair->shadow, pair->qpn, &pair->totals);
    pair->followed = false;
}

void st_devx_pair_destroyed(struct st_devx_pair *pair, uint64_t t_tsc)
{
    /* Its register may have been freed, and the state be another one's by now. */
    if (pair->uar && pair->uar->serial == pair->uar_serial)
        __atomic_sub_fetch(&pair->uar->pairs, 1, __ATOMIC_RELAXED);
    close(pair, t_tsc);
}
