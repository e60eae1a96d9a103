/* libibverbs.so.1 without hardware: the real interface and version nodes, one device "fake0", and
 * a loopback between the queue pairs of the process. It calls itself through the PLT where the real
 * library does, and has the compatibility function of IBVERBS_1.0 that programs of old are bound to. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fake_control.h"
#include "fake_ibverbs.h"

#define QPS 4096u

static struct fake_device device = {.base = {.node_type = IBV_NODE_CA,
                                             .transport_type = IBV_TRANSPORT_IB,
                                             .name = "uverbs0"}};
static struct fake_qp *qps[QPS];
static uint32_t next_qp = 0x11;
int (*fake_refusal)(void);
static struct verbs_context *spare; /* the address of a closed context comes again */

struct fake_qp *fake_qp_of(uint32_t number)
{
    return qps[number % QPS];
}

struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(2, sizeof(*list));
    strcpy(device.base.name, "fake0");
    list[0] = &device.base;
    if (count)
        *count = 1;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *of)
{
    return of->name;
}

__be64 ibv_get_device_guid(struct ibv_device *of)
{
    static const uint8_t guid[8] = {0x02, 0, 0, 0xff, 0xfe, 0, 0, 1};
    __be64 value;
    (void)of;
    memcpy(&value, guid, 8);
    return value;
}

static struct ibv_pd *alloc_parent_domain(struct ibv_context *,
                                          struct ibv_parent_domain_init_attr *);
static struct ibv_qp *create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *);
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *, struct ibv_cq_init_attr_ex *);
static int query_port(struct ibv_context *, uint8_t, struct ibv_port_attr *, size_t);

struct ibv_context *fake_open(struct ibv_device *of)
{
    struct verbs_context *context = spare ? spare : malloc(sizeof(*context));
    spare = NULL;
    memset(context, 0, sizeof(*context));
    context->sz = sizeof(*context);
    context->query_port = query_port;
    context->create_qp_ex = create_qp_ex;
    context->create_cq_ex = create_cq_ex;
    context->alloc_parent_domain = alloc_parent_domain;
    fake_extend_memory(context);
    fake_extend_shared(context);
    context->context.device = of;
    context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context->context.ops.post_send = fake_post_send;
    context->context.ops.post_recv = fake_post_recv;
    context->context.ops.post_srq_recv = fake_post_srq_recv;
    context->context.ops.poll_cq = fake_poll_cq;
    return &context->context;
}

struct ibv_context *ibv_open_device(struct ibv_device *of)
{
    return fake_open(of);
}

/* As in the real library: what is bound to 1.0 gets another structure, made of the new one. */
struct old_context {
    struct ibv_device *device;
    struct ibv_context *real;
};
struct old_context *open_device_1_0(struct ibv_device *of);
struct old_context *open_device_1_0(struct ibv_device *of)
{
    struct old_context *old = calloc(1, sizeof(*old));
    old->device = of;
    old->real = ibv_open_device(of);
    return old;
}
__asm__(".symver open_device_1_0, ibv_open_device@IBVERBS_1.0");

int ibv_close_device(struct ibv_context *context)
{
    free(spare);
    spare = (void *)((uint8_t *)context - offsetof(struct verbs_context, context));
    return 0;
}

struct ibv_context *ibv_import_device(int fd)
{
    (void)fd;
    return NULL;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    memset(attr, 0, sizeof(*attr));
    attr->vendor_id = 0x1234;
    attr->vendor_part_id = 77;
    attr->phys_port_cnt = 1;
    return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                      size_t size)
{
    struct ibv_port_attr full = {.state = IBV_PORT_ACTIVE,
                                 .active_mtu = IBV_MTU_1024,
                                 .gid_tbl_len = 4,
                                 .lid = 9,
                                 .active_width = 2,
                                 .active_speed = 32,
                                 .link_layer = IBV_LINK_LAYER_ETHERNET};
    (void)context;
    memcpy(attr, &full, size < sizeof(full) ? size : sizeof(full));
    return port == 1 ? 0 : EINVAL;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    return query_port(context, port, (void *)attr, 48);
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    (void)context;
    memset(gid, 0, sizeof(*gid));
    if (port != 1 || index > 3)
        return -1;
    if (index < 2) {
        gid->raw[0] = index ? 0 : 0xfe;
        gid->raw[1] = index ? 0 : 0x80;
        gid->raw[15] = (uint8_t)(1 + index);
    }
    return 0;
}

struct ibv_pd *fake_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    pd->context = context;
    return pd;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    return fake_alloc_pd(context);
}

static struct ibv_pd *alloc_parent_domain(struct ibv_context *context,
                                          struct ibv_parent_domain_init_attr *attr)
{
    (void)attr;
    return ibv_alloc_pd(context);
}

struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    pd->context = context;
    pd->handle = handle;
    return pd;
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
    free(pd);
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));
    channel->context = context;
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    if (channel->refcnt)
        return EBUSY;
    free(channel);
    return 0;
}

static struct ibv_cq *made_cq(struct ibv_context *context, int cqe, void *cq_context,
                              struct ibv_comp_channel *channel)
{
    struct fake_cq *cq = calloc(1, sizeof(*cq));
    cq->ex.context = context;
    cq->ex.cq_context = cq_context;
    cq->ex.channel = channel;
    if (channel)
        channel->refcnt++;
    cq->ex.cqe = cqe;
    return (struct ibv_cq *)&cq->ex;
}

struct ibv_cq *fake_create_cq(struct ibv_context *context)
{
    return made_cq(context, 64, NULL, NULL);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    (void)vector;
    return made_cq(context, cqe, cq_context, channel);
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context,
                                      struct ibv_cq_init_attr_ex *attr)
{
    uint32_t newer;
    memcpy(&newer, attr + 1, attr->comp_mask & FAKE_NEWER_BIT ? sizeof(newer) : 0);
    if (attr->comp_mask & FAKE_NEWER_BIT && newer != FAKE_NEWER_VALUE)
        abort(); /* was given another structure than the program's */
    struct ibv_cq *cq = made_cq(context, (int)attr->cqe, attr->cq_context, attr->channel);
    fake_extend_cq((struct fake_cq *)cq, attr->wc_flags);
    return (struct ibv_cq_ex *)cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
    int refused = fake_refusal ? fake_refusal() : 0;
    if (refused)
        return refused;
    if (cq->channel)
        cq->channel->refcnt--;
    free(cq);
    return 0;
}

static struct ibv_qp *made(struct ibv_context *context, struct ibv_pd *pd,
                           const struct ibv_qp_init_attr *attr)
{
    struct fake_qp *qp = calloc(1, sizeof(*qp));
    struct ibv_qp *base = &qp->ex.qp_base;
    base->context = context;
    base->pd = pd;
    base->send_cq = attr->send_cq;
    base->recv_cq = attr->recv_cq;
    base->srq = attr->srq;
    base->qp_type = attr->qp_type;
    base->qp_num = next_qp++;
    qp->max_send = attr->cap.max_send_wr;
    qp->signal_all = attr->sq_sig_all != 0;
    qps[base->qp_num % QPS] = qp;
    return base;
}

struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    return made(pd->context, pd, attr);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    return fake_create_qp(pd, attr);
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    struct ibv_qp *qp = made(context, attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL,
                             (struct ibv_qp_init_attr *)attr);
    if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        fake_extend_qp((struct fake_qp *)qp);
    return qp;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    return ((struct fake_qp *)qp)->extended ? (struct ibv_qp_ex *)qp : NULL;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    if (mask & IBV_QP_DEST_QPN)
        qp->destination = attr->dest_qp_num;
    if (mask & IBV_QP_STATE) {
        base->state = attr->qp_state;
        if (attr->qp_state == IBV_QPS_RESET)
            qp->receives.in = qp->receives.out = qp->posted = qp->freed = 0;
        if (attr->qp_state == IBV_QPS_ERR)
            fake_flush(qp);
    }
    return 0;
}

int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    (void)mask;
    memset(attr, 0, sizeof(*attr));
    memset(init, 0, sizeof(*init));
    attr->qp_state = base->state;
    init->sq_sig_all = qp->signal_all;
    init->cap.max_send_wr = qp->max_send;
    init->cap.max_recv_wr = FAKE_DEPTH;
    return 0;
}

/* Asked for before the first transition; only the lower half of the options is accepted. */
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    if (qp->state != IBV_QPS_RESET)
        return EINVAL;
    ((struct fake_qp *)qp)->ece = *ece;
    ((struct fake_qp *)qp)->ece.options &= 0xffff;
    return 0;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    *ece = ((struct fake_qp *)qp)->ece;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
    int refused = fake_refusal ? fake_refusal() : 0;
    if (refused)
        return refused;
    qps[qp->qp_num % QPS] = NULL;
    free(qp);
    return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct fake_ah *ah = calloc(1, sizeof(*ah));
    (void)attr;
    ah->base.context = pd->context;
    ah->base.pd = pd;
    return &ah->base;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                     uint8_t port)
{
    struct ibv_ah_attr attr = {.port_num = port, .is_global = 1, .dlid = wc->slid};
    attr.grh.dgid = grh->sgid;
    attr.grh.sgid_index = 1;
    return ibv_create_ah(pd, &attr);
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
    free(ah);
    return 0;
}
