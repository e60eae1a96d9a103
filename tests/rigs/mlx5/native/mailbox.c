/* Commands of the firmware, as DEVX passes them. Source of the positions: mlx5_ifc.h. */
#include "nic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum command {
    QUERY_HCA_CAP = 0x100,
    CREATE_CQ = 0x400,
    CREATE_QP = 0x500,
    RST2INIT = 0x502,
    INIT2RTR = 0x503,
    RTR2RTS = 0x504,
    RTS2RTS = 0x505,
    TO_ERROR = 0x507,
    TO_RESET = 0x50a,
    QUERY_QP = 0x50b,
    INIT2INIT = 0x50e,
};
enum { BAD_OPERATION = 0x02, BAD_PARAMETER = 0x03, BAD_RESOURCE = 0x05, LIMITS = 0x08 };
enum { CAP_GENERAL = 0, CAP_ATOMIC = 7, CAP_AT = 0x10, SERVICE_DCI = 5 };
enum { OUT_NUMBER = 0x09, IN_NUMBER = 0x09, LEAST_OUT = 16 };

static uint64_t get(const uint8_t *in, size_t at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value = value << 8 | in[at + i];
    return value;
}

static void put(uint8_t *out, size_t at, unsigned bytes, uint64_t value)
{
    while (bytes--) {
        out[at + bytes] = (uint8_t)value;
        value >>= 8;
    }
}

static uint8_t capabilities(const uint8_t *in, uint8_t *out, size_t out_size)
{
    uint8_t *cap = out + CAP_AT;
    if (out_size < CAP_AT + 0x100)
        return BAD_PARAMETER;
    switch (get(in, 0x06, 2) >> 1) {
    case CAP_GENERAL:
        cap[0x4f - CAP_AT] = 1; /* cqe_version */
        cap[0x5d - CAP_AT] = 9; /* log_bf_reg_size */
        cap[0x50 - CAP_AT] = 0x80; /* compact_address_vector */
        cap[0x57 - CAP_AT] = 1; /* rc */
        put(out, 0x3e, 2, 16); /* gid_table_size */
        put(out, 0x62, 2, NIC_WQE_BYTES);
        put(out, 0x66, 2, NIC_WQE_BYTES);
        cap[0x21 - CAP_AT] = 15; /* log_max_qp_sz */
        return 0;
    case CAP_ATOMIC:
        put(out, 0x22, 2, 0x000f); /* all four operations */
        put(out, 0x26, 2, 0x000c); /* of 4 and of 8 bytes */
        put(out, 0x2a, 2, 0x000c);
        cap[0x18 - CAP_AT] = 0x42; /* host-endian answers of 8 bytes */
        return 0;
    default:
        return BAD_PARAMETER;
    }
}

static bool umem_holds(const struct nic_umem *umem, uint64_t offset, uint64_t size)
{
    return umem && offset <= umem->memory.size && size <= umem->memory.size - offset;
}

static uint8_t cq_create(const uint8_t *in, uint32_t *number)
{
    uint32_t log_size = in[0x1c] & 0x1f;
    uint64_t offset = get(in, 0x50, 8);
    struct nic_umem *umem = nic_umem_find((uint32_t)get(in, 0x58, 4));
    if (!(in[0x5c] & 0x80) || !umem_holds(umem, offset, (uint64_t)NIC_SLOT << log_size))
        return BAD_RESOURCE;
    struct nic_cq *cq = nic_cq_new(number);
    if (!cq)
        return LIMITS;
    cq->collapsed = in[0x11] & 0x10;
    cq->log_size = log_size;
    cq->umem = &umem->memory;
    cq->offset = offset;
    return 0;
}

/* The queue's memory: the receive queue comes first. */
static uint8_t queue_set(struct nic_qp *qp, const uint8_t *in)
{
    struct nic_umem *queue = nic_umem_find((uint32_t)get(in, 0x108, 4));
    struct nic_umem *record = nic_umem_find((uint32_t)get(in, 0xfc, 4));
    uint64_t offset = get(in, 0x100, 8);
    bool has_receives = (in[0xc4] & 7) == 0;
    qp->rq_stride = has_receives ? 16u << (in[0x21] & 7) : 0;
    qp->rq_slots = has_receives ? 1u << (in[0x21] >> 3 & 0xf) : 0;
    qp->sq_slots = in[0x22] & 0x80 ? 0 : 1u << (in[0x22] >> 3 & 0xf);
    qp->rq_at = offset;
    qp->sq_at = offset + (uint64_t)qp->rq_slots * qp->rq_stride;
    qp->record_at = get(in, 0xb8, 8);
    if (!(in[0x10c] & 0x80) || !(in[0xe8] & 0x10) || !umem_holds(record, qp->record_at, 8) ||
        !umem_holds(queue, offset, qp->sq_at - offset + (uint64_t)qp->sq_slots * NIC_SLOT))
        return BAD_RESOURCE;
    qp->queue = &queue->memory;
    qp->record = &record->memory;
    return 0;
}

static uint8_t qp_create(const uint8_t *in, uint32_t *number)
{
    uint32_t uar = (uint32_t)get(in, 0x25, 3);
    if (uar - NIC_UAR_BASE >= NIC_UARS || !nic.uars[uar - NIC_UAR_BASE].page)
        return BAD_RESOURCE;
    struct nic_qp *qp = nic_qp_new();
    if (!qp)
        return LIMITS;
    uint8_t status = queue_set(qp, in);
    qp->uar = uar;
    qp->is_dc = in[0x19] == SERVICE_DCI;
    qp->cqn_send = (uint32_t)get(in, 0x95, 3);
    qp->cqn_receive = (uint32_t)get(in, 0xb5, 3);
    qp->dc_key = get(in, 0xe0, 8);
    if (!status && !nic_cq_find(qp->cqn_send))
        status = BAD_RESOURCE;
    qp->used = !status;
    *number = qp->qpn;
    return status;
}

static void qp_reset(struct nic_qp *qp)
{
    nic_journal_life(qp);
    qp->state = NIC_RESET;
    qp->head = qp->tail = qp->received = qp->offset = 0;
    qp->busy = qp->asked = false;
    memset(&qp->counts, 0, sizeof(qp->counts));
}

static uint8_t qp_modify(enum command command, const uint8_t *in)
{
    struct nic_qp *qp = nic_qp_find((uint32_t)get(in, IN_NUMBER, 3));
    if (!qp)
        return BAD_RESOURCE;
    static const struct {
        enum command command;
        enum nic_state from, to;
    } steps[] = {{RST2INIT, NIC_RESET, NIC_INIT},
                 {INIT2INIT, NIC_INIT, NIC_INIT},
                 {INIT2RTR, NIC_INIT, NIC_RTR},
                 {RTR2RTS, NIC_RTR, NIC_RTS},
                 {RTS2RTS, NIC_RTS, NIC_RTS}};
    if (command == TO_RESET)
        qp_reset(qp);
    if (command == TO_ERROR)
        qp->state = NIC_ERROR;
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        if (steps[i].command == command) {
            if (qp->state != steps[i].from)
                return BAD_PARAMETER;
            qp->state = steps[i].to;
        }
    if (command == INIT2RTR && !qp->is_dc) {
        qp->remote_qpn = (uint32_t)get(in, 0x2d, 3);
        qp->remote_lid = (uint16_t)get(in, 0x36, 2);
        if (!qp->remote_lid)
            qp->remote_lid = (uint16_t)get(in, 0x4e, 2); /* the end of the GID */
    }
    return 0;
}

static uint8_t qp_query(const uint8_t *in, uint8_t *out, size_t out_size)
{
    static const uint8_t states[] = {0, 1, 2, 3, 6};
    struct nic_qp *qp = nic_qp_find((uint32_t)get(in, IN_NUMBER, 3));
    if (!qp || out_size < 0x30)
        return BAD_RESOURCE;
    out[0x18] = (uint8_t)(states[qp->state] << 4);
    put(out, 0x2d, 3, qp->remote_qpn);
    return 0;
}

static uint8_t command_run(const uint8_t *in, uint8_t *out, size_t out_size, enum nic_kind *kind,
                           uint32_t *number)
{
    uint8_t status;
    enum command command = (enum command)get(in, 0, 2);
    switch (command) {
    case QUERY_HCA_CAP:
        return capabilities(in, out, out_size);
    case CREATE_CQ:
    case CREATE_QP:
        *kind = command == CREATE_CQ ? NIC_CQ_OBJECT : NIC_QP_OBJECT;
        status = command == CREATE_CQ ? cq_create(in, number) : qp_create(in, number);
        put(out, OUT_NUMBER, 3, *number);
        return status;
    case RST2INIT:
    case INIT2RTR:
    case RTR2RTS:
    case RTS2RTS:
    case INIT2INIT:
    case TO_ERROR:
    case TO_RESET:
        return qp_modify(command, in);
    case QUERY_QP:
        return qp_query(in, out, out_size);
    }
    return BAD_OPERATION;
}

/* What is created or modified lies in a mailbox this long. */
static bool long_enough(const uint8_t *in, size_t in_size)
{
    enum command command = in_size >= 2 ? (enum command)get(in, 0, 2) : 0;
    if (command == CREATE_QP || command == CREATE_CQ)
        return in_size >= 272;
    return in_size >= (command == INIT2RTR ? 0x60 : LEAST_OUT);
}

bool nic_command(const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size,
                 enum nic_kind *kind, uint32_t *number)
{
    if (out_size < LEAST_OUT) {
        errno = EINVAL;
        return false;
    }
    memset(out, 0, out_size);
    nic_enter();
    nic_registers_poll();
    out[0] = long_enough(in, in_size) ? command_run(in, out, out_size, kind, number)
                                      : (uint8_t)BAD_PARAMETER;
    nic_leave();
    if (out[0]) {
        put(out, 4, 4, 0x1a2b3c);
        errno = EREMOTEIO;
    }
    return !out[0];
}

void nic_object_destroy(enum nic_kind kind, uint32_t number)
{
    nic_enter();
    nic_registers_poll();
    struct nic_qp *qp = kind == NIC_QP_OBJECT ? nic_qp_find(number) : NULL;
    struct nic_cq *cq = kind == NIC_CQ_OBJECT ? nic_cq_find(number) : NULL;
    if (qp) {
        nic_journal_life(qp);
        qp->used = false;
    }
    if (cq)
        cq->used = false;
    nic_leave();
}

uint32_t nic_dct_add(uint64_t dc_key)
{
    nic_enter();
    struct nic_qp *qp = nic_qp_new();
    uint32_t number = 0;
    if (qp) {
        qp->is_dct = true;
        qp->state = NIC_RTR;
        qp->dc_key = dc_key;
        number = qp->qpn;
    }
    nic_leave();
    return number;
}
