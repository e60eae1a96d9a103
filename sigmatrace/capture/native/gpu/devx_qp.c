/* A queue pair made by DEVX: its objects, one for each connection, and when it is followed. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "hooks.h"
#include "mailbox.h"

#define DEFAULT_PORT 1u
#define PRI_PORT (1u << 16) /* of the optional fields: the port */

static const char *service_name(uint32_t type)
{
    static const char *const names[] = {[ST_RC] = "rc",   [ST_UC] = "uc",   [ST_UD] = "ud",
                                        [ST_XRC] = "xrc", [ST_DCI] = "dci", [ST_DCT] = "dct"};
    const char *name = type < sizeof(names) / sizeof(names[0]) ? names[type] : NULL;
    return name ? name : "other";
}

/* --- objects ---------------------------------------------------------------------------------------- */

static void describe(struct st_devx_qp *qp)
{
    struct st_object o;
    st_object_begin(&o, "mlx5_qp", qp->object);
    st_object_u64(&o, "qpn", qp->qpn);
    st_object_str(&o, "qp_type", service_name(qp->type));
    if (qp->at.object)
        st_object_u64(&o, "uar", qp->at.object);
    if (qp->umem)
        st_object_u64(&o, "umem", qp->umem);
    if (qp->dbr_umem)
        st_object_u64(&o, "dbr_umem", qp->dbr_umem);
    st_qp_fields_put(&o, qp->type, qp->created, sizeof(qp->created));
    st_object_str(&o, "state", qp->state);
    st_object_end(&o);
    qp->described = true;
    qp->home = getpid();
}

static void tell_end(struct st_devx_qp *qp, uint64_t t_tsc)
{
    struct st_object o;
    if (qp->described && qp->home == getpid()) {
        st_object_begin(&o, "mlx5_qp", qp->object);
        st_gpu_qp_totals_put(&o, &qp->totals);
        st_object_u64(&o, "closed_tsc", t_tsc);
        st_object_end(&o);
    }
    qp->described = false;
    memset(&qp->totals, 0, sizeof(qp->totals));
}

static struct st_port port_of(const struct st_devx_qp *qp)
{
    return (struct st_port){qp->context, qp->library,
                            (uint8_t)(qp->port ? qp->port : DEFAULT_PORT)};
}

static void put_path(struct st_object *o, const struct st_devx_qp *qp, const uint8_t *in,
                     size_t in_size)
{
    static const uint8_t none[ST_GID_BYTES];
    struct st_port port = port_of(qp);
    struct ibv_port_attr attr;
    union ibv_gid gid;
    uint8_t prefix[ST_PREFIX_BYTES];
    const uint8_t *remote = in_size >= ST_QP_RGID_AT + ST_GID_BYTES ? in + ST_QP_RGID_AT : none;
    uint64_t dlid = st_mailbox(in, in_size, ST_QP_RLID);
    bool has_port = st_port_attr(&port, &attr), has_gid = memcmp(remote, none, ST_GID_BYTES) != 0;
    /* LIDs, unless the packets carry GIDs: on Ethernet, or with a global route header. */
    if (has_gid && ((has_port && attr.link_layer == IBV_LINK_LAYER_ETHERNET) || !dlid ||
                    st_mailbox(in, in_size, ST_QP_GRH))) {
        if (st_port_gid(&port, (int)st_mailbox(in, in_size, ST_QP_SRC_ADDR_INDEX), &gid))
            st_object_bin(o, "sgid", gid.raw, sizeof(gid.raw));
        st_object_bin(o, "dgid", remote, ST_GID_BYTES);
        return;
    }
    if (has_port)
        st_object_u64(o, "slid", attr.lid);
    st_object_u64(o, "dlid", dlid);
    if (st_port_prefix(&port, prefix))
        st_object_bin(o, "prefix", prefix, sizeof(prefix));
}

/* --- life --------------------------------------------------------------------------------------------- */

static bool has_av(const struct st_devx_qp *qp)
{
    return qp->type == ST_DCI || qp->type == ST_UD;
}

/* Others' WQEs have segments of their own: of them, doorbells alone are recorded. */
static bool decodes(const struct st_devx_qp *qp)
{
    return qp->type == ST_RC || qp->type == ST_UC || has_av(qp);
}

static void locate(struct st_devx_qp *qp, const uint8_t *in, size_t in_size)
{
    const struct st_umem *ring = NULL, *record = NULL;
    if (st_mailbox(in, in_size, ST_QP_WQ_UMEM_VALID))
        ring = st_umem_of(qp->context, (uint32_t)st_mailbox(in, in_size, ST_QP_WQ_UMEM_ID));
    if (st_mailbox(in, in_size, ST_QP_DBR_UMEM_VALID))
        record = st_umem_of(qp->context, (uint32_t)st_mailbox(in, in_size, ST_QP_DBR_UMEM_ID));
    uint64_t record_at = st_mailbox(in, in_size, ST_QP_DBR_ADDR);
    uint64_t before = 0; /* the receive queue comes first */
    if (!st_mailbox(in, in_size, ST_QP_RQ_TYPE))
        before = 16ull << (st_mailbox(in, in_size, ST_QP_LOG_RQ_SIZE) +
                           st_mailbox(in, in_size, ST_QP_LOG_RQ_STRIDE));
    uint32_t slots = st_mailbox(in, in_size, ST_QP_NO_SQ)
                         ? 0
                         : 1u << st_mailbox(in, in_size, ST_QP_LOG_SQ_SIZE);
    uint64_t at = st_mailbox(in, in_size, ST_QP_WQ_UMEM_OFFSET) + before;
    uint64_t size = (uint64_t)slots * ST_GPU_SLOT_BYTES;
    qp->umem = ring ? ring->object : 0;
    qp->dbr_umem = record ? record->object : 0;
    if (ring && ring->address && at <= ring->size_bytes && size <= ring->size_bytes - at) {
        qp->sq = ring->address + at;
        qp->sq_slots = slots;
    }
    qp->unrecorded = st_mailbox(in, in_size, ST_QP_SEND_DBR_MODE);
    if (!qp->unrecorded && record && record->address && record_at + 8 <= record->size_bytes)
        qp->dbrec = record->address + record_at + 4; /* the first four: the receive queue's */
}

/* The other place of the register's page has no shadow: what is stored there is the NIC's alone. */
static void say_without_record(const struct st_devx_qp *qp)
{
    static bool said;
    if (!qp->at.shadow || !qp->unrecorded)
        return;
    st_lost("gpu: queue pair whose doorbells are not seen: they need no doorbell record", 1);
    st_warn_once(&said, "queue pairs are rung without doorbell records (send_dbr_mode), at a place "
                        "of their register that is not watched: their doorbells are not seen; "
                        "choose another way of ringing");
}

void st_devx_qp_created(struct st_devx_qp *qp, const uint8_t *in, size_t in_size)
{
    qp->type = (uint32_t)st_mailbox(in, in_size, ST_QP_SERVICE);
    memcpy(qp->created, in, in_size < sizeof(qp->created) ? in_size : sizeof(qp->created));
    locate(qp, in, in_size);
    const struct st_devx_cq *cq =
        st_devx_cq_of(qp->context, (uint32_t)st_mailbox(in, in_size, ST_QP_CQN_SND));
    qp->cq = cq ? cq->read : NULL;
    qp->page_id = (uint32_t)st_mailbox(in, in_size, ST_QP_UAR_PAGE);
    st_uar_guess(qp->context, qp->page_id, &qp->at);
    qp->state = "reset";
    qp->object = st_object_id();
    describe(qp);
    st_dc_look();
    say_without_record(qp);
}

/* `first`: the index with which it goes on. */
static void follow(struct st_devx_qp *qp, uint64_t first)
{
    if (!st_uar_is(&qp->at)) /* its register has gone: it rings on another one of the page */
        st_uar_guess(qp->context, qp->page_id, &qp->at);
    struct st_gpu_qp_new new = {.qpn = qp->qpn,
                                .object = qp->object,
                                .shadow = qp->at.shadow,
                                .sq = qp->sq,
                                .sq_slots = qp->sq_slots,
                                .dbrec = qp->dbrec,
                                .doorbells_only = !decodes(qp),
                                .first = first,
                                .has_av = has_av(qp),
                                .cq = qp->cq};
    struct st_port port = port_of(qp);
    st_port_prefix(&port, new.prefix);
    qp->followed = new.shadow && st_gpu_qp_add(&new);
    qp->shadow = new.shadow;
    if (!qp->followed)
        st_lost("gpu: queue pair whose doorbells are not followed", 1);
}

/* As `object`, it begins anew; 0: it goes. */
static void end(struct st_devx_qp *qp, uint32_t object)
{
    struct st_gpu_qp_totals totals;
    if (object)
        st_gpu_qp_restart(qp->shadow, qp->qpn, object, &totals);
    else
        st_gpu_qp_remove(qp->shadow, qp->qpn, &totals);
    st_qp_totals_add(&qp->totals, &totals);
    qp->followed = object;
    qp->left = !object;
}

/* RST2INIT. Only now the port is known; nothing can be rung before. */
static void begin(struct st_devx_qp *qp)
{
    if (qp->reset) {
        uint32_t object = st_object_id();
        if (qp->followed)
            end(qp, object);
        tell_end(qp, qp->reset_tsc);
        qp->object = object;
        describe(qp);
    }
    qp->reset = false;
    if (!qp->followed)
        follow(qp, 0);
}

void st_devx_qp_modified(struct st_devx_qp *qp, const uint8_t *in, size_t in_size,
                           uint64_t t_tsc)
{
    static const char *const states[] = {
        [ST_RST2INIT - ST_RST2INIT] = "init",  [ST_INIT2RTR - ST_RST2INIT] = "rtr",
        [ST_RTR2RTS - ST_RST2INIT] = "rts",    [ST_RTS2RTS - ST_RST2INIT] = "rts",
        [ST_SQERR2RTS - ST_RST2INIT] = "rts",  [ST_TO_ERROR - ST_RST2INIT] = "error",
        [ST_TO_RESET - ST_RST2INIT] = "reset", [ST_SQD2RTS - ST_RST2INIT] = "rts",
        [ST_INIT2INIT - ST_RST2INIT] = "init"};
    uint64_t command = st_mailbox(in, in_size, ST_COMMAND);
    struct st_object o;
    if (command < ST_RST2INIT || command > ST_INIT2INIT || !states[command - ST_RST2INIT])
        return;
    uint32_t port = (uint32_t)st_mailbox(in, in_size, ST_QP_PORT);
    st_dc_look();
    if (command == ST_RST2INIT) {
        qp->port = port;
        begin(qp);
    } else if (command == ST_TO_RESET && strcmp(qp->state, "reset")) {
        qp->reset = true;
        qp->reset_tsc = t_tsc;
        if (qp->followed && qp->cq)
            st_gpu_cq_look(qp->cq);
    }
    qp->state = states[command - ST_RST2INIT];
    bool moves = command == ST_INIT2INIT && st_mailbox(in, in_size, ST_QP_OPTIONAL) & PRI_PORT;
    if (moves)
        qp->port = port;
    st_object_begin(&o, "mlx5_qp", qp->object);
    st_object_str(&o, "state", qp->state);
    if (command == ST_RST2INIT || moves) {
        st_object_u64(&o, "port", port ? port : DEFAULT_PORT);
        struct st_port at = port_of(qp);
        st_object_u64(&o, "completions", qp->followed && qp->sq && qp->cq);
        if (has_av(qp))
            st_port_put(&o, &at);
    }
    st_qp_fields_put(&o, qp->type, in, in_size);
    if (command == ST_INIT2RTR && !has_av(qp)) {
        st_object_u64(&o, "dest_qpn", st_mailbox(in, in_size, ST_QP_REMOTE_QPN));
        put_path(&o, qp, in, in_size);
    }
    st_object_end(&o);
}

void st_devx_qp_leave(struct st_devx_qp *qp)
{
    if (qp->followed)
        end(qp, 0);
}

void st_devx_qp_stays(struct st_devx_qp *qp)
{
    if (qp->left)
        follow(qp, qp->totals.slots);
}

void st_devx_qp_destroyed(struct st_devx_qp *qp, uint64_t t_tsc)
{
    st_uar_leave(&qp->at);
    tell_end(qp, t_tsc);
}
