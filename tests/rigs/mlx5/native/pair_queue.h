/* Send queues as the libraries have them that start RDMA from a GPU: WQEs, doorbells, completions. */
#ifndef PAIR_QUEUE_H
#define PAIR_QUEUE_H

#include "pair_device.h"

enum { OP_NOP = 0x00, OP_WRITE = 0x08, OP_IMM = 0x09, OP_SEND = 0x0a, OP_READ = 0x10 };
enum { OP_CAS = 0x11, OP_ADD = 0x12, OP_MASKED_CAS = 0x14, OP_MASKED_ADD = 0x15, OP_DUMP = 0x23 };
enum { OP_UNKNOWN = 0x3e };
enum { OPERAND_4 = 0x08, OPERAND_8 = 0x09, WITH_CQE = 0x08, ERROR_CQE = 13 };
enum { POLLS = 64 }; /* of the completion alone; then what others did is looked at, too */

struct wqe {
    uint32_t word[PAIR_WORDS];
    uint32_t words;
    uint64_t bytes;
};

DEV uint64_t pair_value(uint32_t rank, uint32_t thread, uint32_t i)
{
    return ((uint64_t)rank << 56 | (uint64_t)thread << 32 | i) * 0x9e3779b97f4a7c15u;
}

DEV void put32(struct wqe *wqe, uint32_t value)
{
    wqe->word[wqe->words++] = big32(value);
}
DEV void put64(struct wqe *wqe, uint64_t value)
{
    put32(wqe, (uint32_t)(value >> 32));
    put32(wqe, (uint32_t)value);
}
DEV void put_data(struct wqe *wqe, uint32_t size, uint32_t key, uint64_t at)
{
    put32(wqe, size);
    put32(wqe, key);
    put64(wqe, at);
    wqe->bytes += size;
}

DEV void wqe_begin(struct wqe *wqe, const struct pair_qp *qp, int has_av)
{
    wqe->words = 4;
    wqe->bytes = 0;
    for (uint32_t i = 0; has_av && i < qp->av_words; i++)
        wqe->word[wqe->words++] = qp->av[i];
}
DEV void put_remote(struct wqe *wqe, const struct pair_qp *qp, uint64_t offset)
{
    put64(wqe, qp->remote + offset);
    put32(wqe, qp->rkey);
    put32(wqe, 0);
}
DEV void put_inline(struct wqe *wqe, uint32_t size, uint64_t value)
{
    put32(wqe, 0x80000000u | size);
    for (uint32_t i = 0; i < size; i += 8) {
        wqe->word[wqe->words++] = (uint32_t)(value + i);
        wqe->word[wqe->words++] = (uint32_t)((value + i) >> 32);
    }
    wqe->words = (wqe->words + 3) / 4 * 4; /* the padding holds whatever was there */
    wqe->bytes += size;
}

/* --- the queue, in the manner of NVSHMEM: reserve, fill, say what is ready, ring ------------- */

/* How many slots are done with: of a collapsed queue, the last completed WQE's index and one. */
DEV uint64_t completed_by(struct pair_qp *qp, uint64_t end)
{
    uint32_t own = (uint32_t)(end >> 56);
    uint16_t next = (uint16_t)((end >> 32 & 0xff) << 8 | (end >> 40 & 0xff)) + 1;
    if (own >> 4 == ERROR_CQE)
        *(volatile uint32_t *)&qp->error = 1;
    dev_fence();
    uint64_t rung = dev_load64((uint64_t)(uintptr_t)&qp->rung);
    return rung - (uint16_t)(rung - next);
}

DEV uint64_t completed(struct pair_qp *qp)
{
    return completed_by(qp, dev_load64(qp->cq + 56));
}

DEV int failed(struct pair_qp *qp)
{
    return *(volatile uint32_t *)&qp->error != 0;
}

DEV void ring_record(struct pair_qp *qp, uint32_t value)
{
    dev_fence();
    dev_store32(qp->record, big32(value));
    dev_fence();
}

DEV uint64_t next_free_value(const struct pair_qp *qp, uint64_t next, uint32_t mask)
{
    uint32_t first = big32(((uint32_t)next & mask) << 8);
    uint32_t second = big32(qp->qpn << 8);
    return (uint64_t)second << 32 | first;
}

/* The last slot is always a WQE of its own. */
DEV uint64_t last_slot(const struct pair_qp *qp, uint64_t next)
{
    return qp->sq + ((next - 1) & (qp->slots - 1)) * PAIR_SLOT;
}

DEV void ring_as(struct pair_qp *qp, uint32_t dialect, uint64_t next)
{
    uint64_t last = last_slot(qp, next);
    switch (dialect) {
    case PAIR_DOCA:
        dev_fence();
        dev_store64(qp->db, next_free_value(qp, next, 0xffffff));
        ring_record(qp, (uint32_t)next & 0xffff);
        dev_store64(qp->db, next_free_value(qp, next, 0xffffff));
        break;
    case PAIR_RDMA:
        ring_record(qp, (uint32_t)next & 0xffff);
        dev_store64(qp->db, dev_load64(last));
        break;
    case PAIR_ROCSHMEM:
        ring_record(qp, (uint32_t)next);
        dev_store64(qp->db, dev_load64(last));
        qp->db ^= 0x100;
        break;
    case PAIR_BLUEFLAME:
        dev_fence();
        for (int i = 7; i >= 0; i--)
            dev_store64(qp->db + 8 * i, dev_load64(last + 8 * i));
        ring_record(qp, (uint32_t)next & 0xffff);
        dev_store64(qp->db, next_free_value(qp, next, 0xffff));
        break;
    case PAIR_PROXY:
        dev_fence();
        dev_max64_system((uint64_t *)(uintptr_t)qp->proxy, next);
        break;
    default:
        ring_record(qp, (uint32_t)next & 0xffff);
        dev_store64(qp->db, next_free_value(qp, next, 0xffff));
    }
}

/* Announces what is ready. */
DEV void ring(struct pair_qp *qp, uint32_t dialect)
{
    while (dev_swap32(&qp->lock, 1))
        dev_pause();
    dev_fence();
    uint64_t next = dev_load64((uint64_t)(uintptr_t)&qp->ready);
    if (next > qp->rung) {
        dev_store64((uint64_t)(uintptr_t)&qp->rung, next);
        qp->rings++;
        ring_as(qp, dialect, next);
    }
    dev_fence();
    dev_swap32(&qp->lock, 0);
}

DEV void wait_for(struct pair_qp *qp, uint64_t until, uint32_t dialect)
{
    uint64_t seen = dev_load64(qp->cq + 56);
    while (!failed(qp) && (int64_t)(completed_by(qp, seen) - until) < 0) {
        uint64_t now = seen;
        if (dev_load64((uint64_t)(uintptr_t)&qp->rung) < until)
            ring(qp, dialect);
        for (uint32_t i = 0; i < POLLS && now == seen; i++) {
            now = dev_load64(qp->cq + 56);
            dev_pause();
        }
        seen = now;
    }
}

DEV void slots_write(struct pair_qp *qp, uint64_t first, const uint32_t *words, uint32_t slots)
{
    for (uint32_t i = 0; i < slots * (PAIR_SLOT / 8); i++) {
        uint64_t at = (first * PAIR_SLOT + i * 8) & ((uint64_t)qp->slots * PAIR_SLOT - 1);
        uint64_t both = (uint64_t)words[2 * i + 1] << 32 | words[2 * i];
        dev_store64(qp->sq + at, both);
        if (qp->mirror)
            dev_store64(qp->mirror + at, both);
    }
}

/* Posts a WQE; after one of several slots comes a NOP, so that the last slot is a WQE's first. */
DEV uint64_t post(const struct pair_args *args, struct pair_qp *qp, struct wqe *wqe,
                  uint32_t opcode, uint32_t opmod, uint32_t imm)
{
    uint32_t fault = args->fault, dialect = args->dialect;
    uint32_t slots = (wqe->words * 4 + PAIR_SLOT - 1) / PAIR_SLOT, total = slots + (slots > 1);
    uint64_t first = dev_add64(&qp->reserved, total);
    if (first + total > qp->slots)
        wait_for(qp, first + total - qp->slots, dialect);
    for (uint32_t i = wqe->words; i < slots * 16; i++)
        wqe->word[i] = 0;
    uint32_t index = (uint32_t)first + (fault == PAIR_INDEX);
    wqe->word[0] = big32(opmod << 24 | (index & 0xffff) << 8 |
                         (fault == PAIR_OPCODE ? OP_UNKNOWN : opcode));
    wqe->word[1] = big32((qp->qpn + (fault == PAIR_NUMBER)) << 8 | (wqe->words + 3) / 4);
    wqe->word[2] = big32(WITH_CQE);
    wqe->word[3] = big32(imm);
    slots_write(qp, first, wqe->word, slots);
    if (slots > 1) {
        uint32_t nop[16] = {0};
        nop[0] = big32((((uint32_t)first + slots) & 0xffff) << 8 | OP_NOP);
        nop[1] = big32(qp->qpn << 8 | 1);
        nop[2] = big32(WITH_CQE);
        slots_write(qp, first + slots, nop, 1);
        dev_add64(&qp->operations[OP_NOP], 1);
    }
    dev_add64(&qp->operations[opcode], 1);
    dev_add64(&qp->bytes[opcode], wqe->bytes);
    dev_fence();
    while (dev_load64((uint64_t)(uintptr_t)&qp->ready) != first && !failed(qp))
        dev_pause();
    dev_store64((uint64_t)(uintptr_t)&qp->ready, first + total);
    dev_fence();
    return first + total;
}

#endif
