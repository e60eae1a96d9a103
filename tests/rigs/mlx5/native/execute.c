/* The initiator: takes WQEs from a send queue, in order, asks the target, and completes them. */
#include "nic.h"

#include <string.h>

enum { NOP = 0x00, SEND_INVAL = 0x01, WRITE = 0x08, WRITE_IMM = 0x09, SEND = 0x0a };
enum { SEND_IMM = 0x0b, WAIT = 0x0f, READ = 0x10, DUMP = 0x23, UMR = 0x25 };
enum { CQE_REQUESTER = 0, CQE_REQUESTER_ERROR = 13, CE_ALWAYS = 2, AT_ONCE = 64 };
enum { RNR_PAUSE_NS = 20000 };
#define RNR_GIVE_UP_NS 5000000000u

static bool is_atomic(const struct nic_wqe *wqe)
{
    return wqe->operand_bytes != 0;
}

static bool brings_back(const struct nic_wqe *wqe)
{
    return wqe->opcode == READ || is_atomic(wqe);
}

bool nic_segments_move(const struct nic_wqe *wqe, uint64_t offset, uint8_t *bytes, uint32_t size,
                       bool into_memory)
{
    for (uint32_t i = 0; i < wqe->segments && size; i++) {
        const struct nic_segment *segment = &wqe->segment[i];
        if (offset >= segment->size) {
            offset -= segment->size;
            continue;
        }
        uint32_t part = segment->size - (uint32_t)offset;
        part = part < size ? part : size;
        if (segment->inlined) {
            memcpy(bytes, segment->inlined + offset, part);
        } else {
            uint64_t at = segment->at + offset;
            const struct nic_memory *memory =
                nic_mkey_check(segment->key, at, part, into_memory ? NIC_LOCAL_WRITE : 0);
            if (!memory)
                return false;
            if (into_memory)
                nic_memory_write(memory, at - memory->iova, bytes, part);
            else
                nic_memory_read(memory, at - memory->iova, bytes, part);
        }
        bytes += part;
        size -= part;
        offset = 0;
    }
    return !size;
}

/* Reads the WQE at the head, over the end of the ring. */
static bool fetch(struct nic_qp *qp)
{
    uint64_t mask = qp->sq_slots - 1, ready = qp->tail - qp->head;
    uint64_t most = NIC_WQE_BYTES / NIC_SLOT, first = qp->head & mask;
    uint64_t count = ready < most ? ready : most;
    count = count < qp->sq_slots ? count : qp->sq_slots;
    uint64_t before_end = qp->sq_slots - first < count ? qp->sq_slots - first : count;
    memset(&qp->wqe, 0, offsetof(struct nic_wqe, raw));
    nic_memory_read(qp->queue, qp->sq_at + first * NIC_SLOT, qp->wqe.raw, before_end * NIC_SLOT);
    if (count > before_end)
        nic_memory_read(qp->queue, qp->sq_at, qp->wqe.raw + before_end * NIC_SLOT,
                        (count - before_end) * NIC_SLOT);
    return nic_wqe_decode(&qp->wqe, qp->is_dc) && qp->wqe.slots <= count &&
           qp->wqe.index == (uint16_t)qp->head && qp->wqe.qpn == qp->qpn;
}

static void complete(struct nic_qp *qp, uint8_t syndrome)
{
    struct nic_wqe *wqe = &qp->wqe;
    nic_journal_wqe(qp, wqe, syndrome);
    qp->counts.slots += wqe->slots;
    if (syndrome)
        qp->counts.errors++;
    else {
        qp->counts.operations[wqe->opcode % NIC_OPCODES]++;
        qp->counts.bytes[wqe->opcode % NIC_OPCODES] += wqe->bytes;
    }
    if (syndrome || wqe->ce >= CE_ALWAYS) {
        struct nic_completion completion = {
            .opcode = syndrome ? CQE_REQUESTER_ERROR : CQE_REQUESTER,
            .syndrome = syndrome,
            .counter = (uint16_t)qp->head,
            .qpn = qp->qpn,
            .wqe_opcode = wqe->opcode,
            .bytes = brings_back(wqe) ? (uint32_t)wqe->bytes : 0};
        qp->counts.cqes++;
        nic_cq_write(qp->cqn_send, &completion);
    }
    if (syndrome)
        qp->state = NIC_ERROR;
    qp->head += wqe->slots;
    qp->busy = qp->asked = false;
}

/* One part of the message; false: it must be tried again later. */
static bool ask(struct nic_qp *qp)
{
    static uint8_t payload[NIC_CHUNK], back[NIC_CHUNK];
    struct nic_wqe *wqe = &qp->wqe;
    uint64_t rest = wqe->bytes - qp->offset;
    struct nic_request request = {.opcode = wqe->opcode,
                                  .operand_bytes = wqe->operand_bytes,
                                  .is_dc = wqe->has_av,
                                  .from = (uint16_t)nic.lid,
                                  .from_qpn = qp->qpn,
                                  .to_qpn = wqe->has_av ? wqe->dct : qp->remote_qpn,
                                  .rkey = wqe->rkey,
                                  .imm = wqe->imm,
                                  .size = (uint32_t)(rest < NIC_CHUNK ? rest : NIC_CHUNK),
                                  .dc_key = wqe->dc_key,
                                  .raddr = wqe->raddr,
                                  .total = wqe->bytes,
                                  .offset = qp->offset,
                                  .add_or_swap = wqe->add_or_swap,
                                  .compare = wqe->compare,
                                  .swap_mask = wqe->swap_mask,
                                  .compare_mask = wqe->compare_mask};
    uint32_t lid = wqe->has_av ? wqe->rlid : qp->remote_lid;
    if (!brings_back(wqe) && !nic_segments_move(wqe, qp->offset, payload, request.size, false)) {
        complete(qp, NIC_LOCAL_PROTECTION);
        return true;
    }
    if (lid != nic.lid) {
        qp->asked = nic_fabric_ask(lid, &request, payload);
        return qp->asked;
    }
    struct nic_answer answer = {0};
    qp->asked = true;
    nic_serve(&request, payload, &answer, back);
    nic_qp_answer(qp, &answer, back);
    return !qp->retry_ns;
}

/* What needs no other end is done at once. */
static bool is_alone(const struct nic_wqe *wqe)
{
    return wqe->opcode == NOP || wqe->opcode == WAIT || wqe->opcode == DUMP || wqe->opcode == UMR;
}

static bool is_known(const struct nic_wqe *wqe)
{
    return is_atomic(wqe) || wqe->opcode == READ || wqe->opcode == WRITE ||
           wqe->opcode == WRITE_IMM || wqe->opcode == SEND || wqe->opcode == SEND_IMM ||
           wqe->opcode == SEND_INVAL || is_alone(wqe);
}

/* What the answer will be written to must be allowed before anything is asked. */
static bool may_bring_back(const struct nic_wqe *wqe)
{
    for (uint32_t i = 0; i < wqe->segments; i++)
        if (wqe->segment[i].inlined || !nic_mkey_check(wqe->segment[i].key, wqe->segment[i].at,
                                                       wqe->segment[i].size, NIC_LOCAL_WRITE))
            return false;
    return true;
}

static void begin(struct nic_qp *qp)
{
    struct nic_wqe *wqe = &qp->wqe;
    bool sensible = fetch(qp);
    if (!wqe->slots)
        wqe->slots = 1;
    qp->busy = true;
    qp->offset = qp->retry_ns = qp->first_try_ns = 0;
    if (qp->state == NIC_ERROR)
        complete(qp, NIC_FLUSHED);
    else if (!sensible || !is_known(wqe))
        complete(qp, NIC_QP_OP);
    else if (is_alone(wqe))
        complete(qp, NIC_OK);
    else if (is_atomic(wqe) && wqe->bytes != wqe->operand_bytes)
        complete(qp, NIC_LENGTH);
    else if (brings_back(wqe) && !may_bring_back(wqe))
        complete(qp, NIC_LOCAL_PROTECTION);
}

void nic_qp_answer(struct nic_qp *qp, const struct nic_answer *answer, const uint8_t *payload)
{
    struct nic_wqe *wqe = &qp->wqe;
    uint64_t now = nic_now_ns();
    if (!qp->busy || !qp->asked)
        return; /* of an earlier life */
    qp->asked = false;
    qp->retry_ns = 0;
    if (answer->syndrome == NIC_NOT_READY) {
        if (!qp->first_try_ns)
            qp->first_try_ns = now;
        qp->retry_ns = now + RNR_PAUSE_NS;
        if (now - qp->first_try_ns > RNR_GIVE_UP_NS)
            complete(qp, NIC_RNR_EXCEEDED);
        return;
    }
    if (answer->syndrome) {
        complete(qp, (uint8_t)answer->syndrome);
        return;
    }
    if (brings_back(wqe)) {
        uint8_t bytes[NIC_CHUNK];
        memcpy(bytes, payload, answer->size);
        if (!nic_segments_move(wqe, qp->offset, bytes, answer->size, true)) {
            complete(qp, NIC_LOCAL_PROTECTION);
            return;
        }
        qp->offset += answer->size;
    } else {
        uint64_t rest = wqe->bytes - qp->offset;
        qp->offset += rest < NIC_CHUNK ? rest : NIC_CHUNK;
    }
    if (qp->offset >= wqe->bytes)
        complete(qp, NIC_OK);
}

bool nic_qp_step(struct nic_qp *qp)
{
    bool worked = false;
    for (int i = 0; i < AT_ONCE; i++) {
        if (qp->busy && qp->asked)
            break;
        if (qp->busy && qp->retry_ns && nic_now_ns() < qp->retry_ns)
            break;
        if (!qp->busy && qp->head == qp->tail)
            break;
        worked = true;
        if (!qp->busy)
            begin(qp);
        if (qp->busy && !ask(qp))
            break;
    }
    return worked;
}
