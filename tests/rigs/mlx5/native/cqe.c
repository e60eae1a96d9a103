/* Completion queue elements: the last eight bytes of one make it valid, and are stored last. */
#include "nic.h"

#include <string.h>

enum { AT_IMM = 36, AT_BYTES = 44, AT_VENDOR = 54, AT_SYNDROME = 55, AT_QPN = 56, AT_COUNTER = 60 };
enum { AT_OWNER = 63, VALID_AT = 56, VENDOR_SYNDROME = 0x88 };

static void put(uint8_t *at, unsigned bytes, uint64_t value)
{
    while (bytes--) {
        at[bytes] = (uint8_t)value;
        value >>= 8;
    }
}

void nic_cq_write(uint32_t cqn, const struct nic_completion *completion)
{
    struct nic_cq *cq = nic_cq_find(cqn);
    if (!cq)
        return;
    uint8_t cqe[NIC_SLOT] = {0};
    uint64_t entries = (uint64_t)1 << cq->log_size;
    uint64_t at = cq->collapsed ? 0 : cq->produced & (entries - 1);
    uint8_t owner = cq->collapsed ? 0 : !!(cq->produced & entries);
    put(cqe + AT_IMM, 4, completion->imm);
    put(cqe + AT_BYTES, 4, completion->bytes);
    if (completion->syndrome) {
        cqe[AT_VENDOR] = VENDOR_SYNDROME;
        cqe[AT_SYNDROME] = completion->syndrome;
    }
    put(cqe + AT_QPN, 4, completion->wqe_opcode << 24 | completion->qpn);
    put(cqe + AT_COUNTER, 2, completion->counter);
    cqe[AT_OWNER] = (uint8_t)(completion->opcode << 4 | owner);
    uint64_t offset = cq->offset + at * NIC_SLOT;
    /* Of a collapsed queue only the end is looked at; each copy to a GPU costs much. */
    if (!cq->umem->device || !cq->collapsed || completion->syndrome)
        nic_memory_write(cq->umem, offset, cqe, VALID_AT);
    atomic_thread_fence(memory_order_release);
    nic_memory_write(cq->umem, offset + VALID_AT, cqe + VALID_AT, NIC_SLOT - VALID_AT);
    cq->produced++;
}
