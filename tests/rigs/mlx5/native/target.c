/* The other end of an operation: checks what is asked, touches its own memory, and answers. */
#include "nic.h"

#include <string.h>

enum { WRITE = 0x08, WRITE_IMM = 0x09, SEND = 0x0a, SEND_IMM = 0x0b, READ = 0x10 };
enum { ADD = 0x12, MASKED_ADD = 0x15 };
enum { CQE_WRITE_IMM = 1, CQE_SEND = 2, CQE_SEND_IMM = 3, CQE_SEND_INVAL = 4 };

static struct nic_qp *destination(const struct nic_request *request)
{
    struct nic_qp *qp = nic_qp_find(request->to_qpn);
    if (!qp || qp->is_dct != request->is_dc)
        return NULL;
    if (qp->is_dct)
        return qp->dc_key == request->dc_key ? qp : NULL;
    bool connected = qp->state == NIC_RTR || qp->state == NIC_RTS;
    bool from_peer = qp->remote_lid == request->from && qp->remote_qpn == request->from_qpn;
    return connected && from_peer ? qp : NULL;
}

/* The next receive that the program posted; false: none. */
static bool receive_take(struct nic_qp *qp)
{
    uint8_t record[4];
    if (!qp->rq_slots)
        return false;
    nic_memory_read(qp->record, qp->record_at, record, sizeof(record));
    uint16_t posted = (uint16_t)(record[2] << 8 | record[3]);
    if (posted == (uint16_t)qp->received)
        return false;
    uint64_t at = qp->rq_at + (qp->received & (qp->rq_slots - 1)) * qp->rq_stride;
    nic_memory_read(qp->queue, at, qp->receive.raw, qp->rq_stride);
    nic_receive_decode(&qp->receive, qp->rq_stride);
    qp->receive.index = (uint16_t)qp->received++;
    return true;
}

static void receive_complete(struct nic_qp *qp, const struct nic_request *request)
{
    struct nic_completion completion = {.counter = qp->receive.index,
                                        .qpn = qp->qpn,
                                        .bytes = (uint32_t)request->total,
                                        .imm = request->imm};
    completion.opcode = request->opcode == WRITE_IMM  ? CQE_WRITE_IMM
                        : request->opcode == SEND     ? CQE_SEND
                        : request->opcode == SEND_IMM ? CQE_SEND_IMM
                                                      : CQE_SEND_INVAL;
    qp->counts.received++;
    nic_cq_write(qp->cqn_receive, &completion);
}

static uint64_t add_bounded(uint64_t old, uint64_t value, uint64_t boundary)
{
    uint64_t sum = 0, carry = 0;
    for (int bit = 0; bit < 64; bit++) {
        uint64_t total = (old >> bit & 1) + (value >> bit & 1) + carry;
        sum |= (total & 1) << bit;
        carry = boundary >> bit & 1 ? 0 : total >> 1;
    }
    return sum;
}

static uint64_t atomic_result(const struct nic_request *request, uint64_t old)
{
    uint64_t compared = (old ^ request->compare) & request->compare_mask;
    if (request->opcode == ADD || request->opcode == MASKED_ADD)
        return add_bounded(old, request->add_or_swap, request->compare);
    return compared ? old
                    : (old & ~request->swap_mask) | (request->add_or_swap & request->swap_mask);
}

/* The operand is in the target's byte order; the answer of 4 bytes is big-endian, that of 8 not. */
static uint32_t atomic_do(const struct nic_request *request, struct nic_answer *answer,
                          uint8_t *back)
{
    uint32_t width = request->operand_bytes;
    const struct nic_memory *memory =
        nic_mkey_check(request->rkey, request->raddr, width, NIC_REMOTE_ATOMIC);
    if (request->raddr % width)
        return NIC_REMOTE_INVALID;
    if (!memory)
        return NIC_REMOTE_ACCESS;
    uint64_t old = 0;
    nic_memory_read(memory, request->raddr - memory->iova, &old, width);
    uint64_t new = atomic_result(request, old);
    nic_memory_write(memory, request->raddr - memory->iova, &new, width);
    if (width == 4)
        old = __builtin_bswap32((uint32_t)old);
    memcpy(back, &old, width);
    answer->size = width;
    return NIC_OK;
}

static uint32_t data_do(const struct nic_request *request, const uint8_t *payload,
                        struct nic_answer *answer, uint8_t *back)
{
    bool reads = request->opcode == READ;
    const struct nic_memory *memory = NULL;
    if (request->total) {
        memory = nic_mkey_check(request->rkey, request->raddr, request->total,
                                reads ? NIC_REMOTE_READ : NIC_REMOTE_WRITE);
        if (!memory)
            return NIC_REMOTE_ACCESS;
    }
    uint64_t at = memory ? request->raddr + request->offset - memory->iova : 0;
    if (reads && memory) {
        nic_memory_read(memory, at, back, request->size);
        answer->size = request->size;
    } else if (memory) {
        nic_memory_write(memory, at, payload, request->size);
    }
    return NIC_OK;
}

static uint32_t message_do(struct nic_qp *qp, const struct nic_request *request,
                           const uint8_t *payload, struct nic_answer *answer, uint8_t *back)
{
    bool last = request->offset + request->size >= request->total;
    bool is_send = request->opcode != WRITE_IMM;
    if (!request->offset && !receive_take(qp))
        return NIC_NOT_READY;
    if (is_send && request->total > qp->receive.bytes)
        return NIC_REMOTE_INVALID;
    uint8_t bytes[NIC_CHUNK];
    uint32_t syndrome = NIC_OK;
    memcpy(bytes, payload, request->size);
    if (!is_send)
        syndrome = data_do(request, payload, answer, back);
    else if (!nic_segments_move(&qp->receive, request->offset, bytes, request->size, true))
        syndrome = NIC_REMOTE_ACCESS;
    if (!syndrome && last)
        receive_complete(qp, request);
    return syndrome;
}

void nic_serve(const struct nic_request *request, const uint8_t *payload,
               struct nic_answer *answer, uint8_t *back)
{
    struct nic_qp *qp = destination(request);
    *answer = (struct nic_answer){.to_qpn = request->from_qpn};
    if (!qp)
        answer->syndrome = NIC_RETRY_EXCEEDED;
    else if (request->operand_bytes)
        answer->syndrome = atomic_do(request, answer, back);
    else if (request->opcode == WRITE || request->opcode == READ)
        answer->syndrome = data_do(request, payload, answer, back);
    else
        answer->syndrome = message_do(qp, request, payload, answer, back);
}
