/* Queue pairs that the verbs create, in memory of the host: programs reach their queues by
 * mlx5dv_init_obj. They are made by the same commands of the firmware as those of DEVX. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nic.h"
#include "verbs_objects.h"

enum { MAILBOX = 272, OUT = 16, CREATE_CQ = 0x400, CREATE_QP = 0x500, KIND_BF = 0, SERVICE_DCI = 5 };
enum { SHARED_REGISTERS = 16 };

static void put(uint8_t *in, size_t at, unsigned bytes, uint64_t value)
{
    while (bytes--) {
        in[at + bytes] = (uint8_t)value;
        value >>= 8;
    }
}

static uint32_t log2_up(uint32_t value)
{
    uint32_t log = 0;
    while (1u << log < value)
        log++;
    return log;
}

static uint8_t *buffer_make(uint64_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

NIC_API struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *user,
                                     struct ibv_comp_channel *channel, int vector)
{
    uint8_t in[MAILBOX] = {0}, out[OUT];
    enum nic_kind kind;
    struct nic_verbs_cq *cq = calloc(1, sizeof(*cq));
    uint32_t log_size = log2_up(entries > 0 ? (uint32_t)entries : 1);
    (void)vector;
    if (!cq)
        return NULL;
    cq->entries = 1u << log_size;
    cq->buffer = buffer_make((uint64_t)cq->entries * NIC_SLOT);
    if (!cq->buffer)
        goto failed;
    memset(cq->buffer, 0xff, (size_t)cq->entries * NIC_SLOT);
    cq->umem = nic_umem_add(cq->buffer, (uint64_t)cq->entries * NIC_SLOT, -1, 0);
    put(in, 0x00, 2, CREATE_CQ);
    put(in, 0x1c, 1, log_size);
    put(in, 0x58, 4, cq->umem);
    in[0x5c] = 0x80;
    if (!cq->umem || !nic_command(in, sizeof(in), out, sizeof(out), &kind, &cq->cqn))
        goto failed;
    cq->cq = (struct ibv_cq){.context = context, .channel = channel, .cq_context = user,
                             .handle = cq->cqn, .cqe = (int)cq->entries - 1};
    return &cq->cq;
failed:
    free(cq);
    return NULL;
}

NIC_API int ibv_destroy_cq(struct ibv_cq *cq)
{
    struct nic_verbs_cq *mine = (void *)cq;
    nic_object_destroy(NIC_CQ_OBJECT, mine->cqn);
    nic_umem_remove(mine->umem);
    munmap(mine->buffer, (size_t)mine->entries * NIC_SLOT);
    free(mine);
    return 0;
}

NIC_API struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    static atomic_uint numbers = 0x20;
    struct nic_verbs_srq *srq = calloc(1, sizeof(*srq));
    if (!srq)
        return NULL;
    srq->srq = (struct ibv_srq){.context = pd->context, .srq_context = attr->srq_context, .pd = pd};
    srq->srqn = atomic_fetch_add(&numbers, 1);
    return &srq->srq;
}

NIC_API int ibv_destroy_srq(struct ibv_srq *srq)
{
    free((struct nic_verbs_srq *)(void *)srq);
    return 0;
}

/* A register of its own or, as of a context with many queue pairs, one of MLX5EMU_QP_REGISTERS that
 * all share. */
static uint8_t *register_of(struct nic_verbs_qp *qp, uint32_t *page)
{
    static struct {
        uint8_t *at;
        uint32_t page;
    } shared[SHARED_REGISTERS];
    static uint32_t turn;
    const char *text = getenv("MLX5EMU_QP_REGISTERS");
    uint32_t count = text ? (uint32_t)strtoul(text, NULL, 10) % (SHARED_REGISTERS + 1) : 0;
    if (!count) {
        qp->owns_register = true;
        return nic_uar_add(KIND_BF, page);
    }
    uint32_t i = turn++ % count;
    if (!shared[i].at)
        shared[i].at = nic_uar_add(KIND_BF, &shared[i].page);
    *page = shared[i].page;
    return shared[i].at;
}

bool nic_verbs_queues_make(struct nic_verbs_qp *qp, const struct ibv_cq *send,
                           const struct ibv_cq *receive, uint32_t slots, bool is_dci)
{
    uint8_t in[MAILBOX] = {0}, out[OUT];
    enum nic_kind kind;
    uint32_t log_size = log2_up(slots > 4 ? slots : 4), uar;
    qp->sq_slots = 1u << log_size;
    qp->sq_at = 0;
    qp->record_at = (uint64_t)qp->sq_slots * NIC_SLOT;
    qp->size = qp->record_at + NIC_SLOT;
    qp->buffer = buffer_make(qp->size);
    qp->register_at = register_of(qp, &uar);
    if (!qp->buffer || !qp->register_at)
        return false;
    qp->umem = nic_umem_add(qp->buffer, qp->size, -1, 0);
    put(in, 0x00, 2, CREATE_QP);
    in[0x19] = is_dci ? SERVICE_DCI : 0;
    put(in, 0x22, 1, log_size << 3);
    put(in, 0x25, 3, uar);
    put(in, 0x95, 3, ((const struct nic_verbs_cq *)(const void *)send)->cqn);
    put(in, 0xb5, 3, ((const struct nic_verbs_cq *)(const void *)receive)->cqn);
    put(in, 0xb8, 8, qp->record_at);
    in[0xc4] = 3; /* no receive queue */
    in[0xe8] = 0x10;
    put(in, 0xfc, 4, qp->umem);
    put(in, 0x108, 4, qp->umem);
    in[0x10c] = 0x80;
    return qp->umem && nic_command(in, sizeof(in), out, sizeof(out), &kind, &qp->qp.qp_num);
}

NIC_API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct nic_verbs_qp *qp = calloc(1, sizeof(*qp));
    if (!qp)
        return NULL;
    qp->qp = (struct ibv_qp){.context = pd->context, .qp_context = attr->qp_context, .pd = pd,
                             .send_cq = attr->send_cq, .recv_cq = attr->recv_cq,
                             .qp_type = attr->qp_type, .state = IBV_QPS_RESET};
    if (attr->qp_type != IBV_QPT_RC ||
        !nic_verbs_queues_make(qp, attr->send_cq, attr->recv_cq, attr->cap.max_send_wr, false)) {
        free(qp);
        errno = EINVAL;
        return NULL;
    }
    return &qp->qp;
}

/* A DC target exists in the firmware, and has a number, only when it is ready to receive. */
static int dct_modify(struct nic_verbs_qp *qp, enum ibv_qp_state state, int mask)
{
    int init = IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    int ready = IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU;
    bool begins = qp->qp.state == IBV_QPS_RESET && state == IBV_QPS_INIT && (mask & init) == init;
    bool readies = qp->qp.state == IBV_QPS_INIT && state == IBV_QPS_RTR && (mask & ready) == ready;
    if (readies)
        qp->qp.qp_num = nic_dct_add(qp->dct_key);
    if (!begins && !(readies && qp->qp.qp_num))
        return EINVAL;
    qp->qp.state = state;
    return 0;
}

/* The commands that the driver would give. */
NIC_API int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    static const uint16_t commands[] = {[IBV_QPS_RESET] = 0x50a, [IBV_QPS_INIT] = 0x502,
                                        [IBV_QPS_RTR] = 0x503,   [IBV_QPS_RTS] = 0x504,
                                        [IBV_QPS_ERR] = 0x507};
    struct nic_verbs_qp *mine = (void *)qp;
    uint8_t in[MAILBOX] = {0}, out[OUT];
    enum nic_kind kind;
    uint32_t number;
    if (!(mask & IBV_QP_STATE))
        return 0;
    if (mine->is_dct)
        return dct_modify(mine, attr->qp_state, mask);
    put(in, 0x00, 2, (unsigned)attr->qp_state <= IBV_QPS_ERR ? commands[attr->qp_state] : 0);
    put(in, 0x09, 3, qp->qp_num);
    put(in, 0x2d, 3, attr->dest_qp_num);
    put(in, 0x36, 2, attr->ah_attr.dlid);
    if (attr->ah_attr.is_global)
        memcpy(in + 0x40, attr->ah_attr.grh.dgid.raw, 16);
    if (!nic_command(in, sizeof(in), out, sizeof(out), &kind, &number))
        return EINVAL;
    qp->state = attr->qp_state;
    return 0;
}

NIC_API int ibv_destroy_qp(struct ibv_qp *qp)
{
    struct nic_verbs_qp *mine = (void *)qp;
    nic_object_destroy(NIC_QP_OBJECT, qp->qp_num);
    if (mine->buffer) {
        nic_umem_remove(mine->umem);
        if (mine->owns_register)
            nic_uar_remove(mine->register_at);
        munmap(mine->buffer, mine->size);
    }
    free(mine);
    return 0;
}
