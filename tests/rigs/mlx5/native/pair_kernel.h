/* The kernels of gpu_pair: they post as the libraries do that start RDMA from a GPU. */
#include "pair_device.h"

enum { OP_NOP = 0x00, OP_WRITE = 0x08, OP_IMM = 0x09, OP_SEND = 0x0a, OP_READ = 0x10 };
enum { OP_CAS = 0x11, OP_ADD = 0x12, OP_MASKED_CAS = 0x14, OP_MASKED_ADD = 0x15, OP_DUMP = 0x23 };
enum { OP_UNKNOWN = 0x3e };
enum { OPERAND_4 = 0x08, OPERAND_8 = 0x09, WITH_CQE = 0x08, ERROR_CQE = 13 };

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

/* --- the queue, in the manner of NVSHMEM: reserve, fill, say what is ready, ring ------------- */

/* How many slots are done with: of a collapsed queue, the last completed WQE's index and one. */
DEV uint64_t completed(struct pair_qp *qp)
{
    uint64_t end = dev_load64(qp->cq + 56);
    uint32_t own = (uint32_t)(end >> 56);
    uint16_t next = (uint16_t)((end >> 32 & 0xff) << 8 | (end >> 40 & 0xff)) + 1;
    if (own >> 4 == ERROR_CQE)
        *(volatile uint32_t *)&qp->error = 1;
    dev_fence();
    uint64_t rung = dev_load64((uint64_t)(uintptr_t)&qp->rung);
    return rung - (uint16_t)(rung - next);
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
    while (!failed(qp) && (int64_t)(completed(qp) - until) < 0) {
        if (dev_load64((uint64_t)(uintptr_t)&qp->rung) < until)
            ring(qp, dialect);
        dev_pause();
    }
}

DEV void slots_write(struct pair_qp *qp, uint64_t first, const uint32_t *words, uint32_t slots)
{
    for (uint32_t i = 0; i < slots * (PAIR_SLOT / 8); i++) {
        uint64_t at = (first * PAIR_SLOT + i * 8) & ((uint64_t)qp->slots * PAIR_SLOT - 1);
        dev_store64(qp->sq + at, (uint64_t)words[2 * i + 1] << 32 | words[2 * i]);
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

/* --- operations ------------------------------------------------------------------------------ */

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

struct turn {
    const struct pair_args *args;
    struct pair_qp *qp;
    uint32_t thread, i, casses; /* CAS operations before this one */
    uint64_t base;              /* of the thread's part of the heap */
};

DEV uint32_t put_atomic(struct wqe *wqe, const struct turn *turn, uint32_t kind, uint32_t *opmod)
{
    uint64_t cell = turn->base + turn->args->heap.cells + (kind - PAIR_CAS) * 8;
    uint64_t value = pair_value(turn->args->rank, turn->thread, turn->i);
    uint32_t width = kind == PAIR_ADD4 || kind == PAIR_SWAP4 ? 4 : 8, opcode;
    put_remote(wqe, turn->qp, kind == PAIR_ADD ? PAIR_COUNTER : cell);
    *opmod = kind <= PAIR_CAS ? 0 : width == 4 ? OPERAND_4 : OPERAND_8;
    switch (kind) {
    case PAIR_ADD:
        put64(wqe, 1);
        put64(wqe, 0);
        opcode = OP_ADD;
        break;
    case PAIR_CAS:
        put64(wqe, turn->casses + 1);
        put64(wqe, turn->casses);
        opcode = OP_CAS;
        break;
    case PAIR_SWAP8:
        put64(wqe, value);
        put64(wqe, 0);
        put64(wqe, ~(uint64_t)0);
        put64(wqe, 0);
        opcode = OP_MASKED_CAS;
        break;
    case PAIR_XOR8:
        put64(wqe, value);
        put64(wqe, ~(uint64_t)0);
        opcode = OP_MASKED_ADD;
        break;
    case PAIR_ADD4:
        put32(wqe, 1);
        put32(wqe, 0);
        put64(wqe, 0);
        opcode = OP_MASKED_ADD;
        break;
    default:
        put32(wqe, (uint32_t)value);
        put32(wqe, 0);
        put32(wqe, 0xffff0000u);
        put32(wqe, 0);
        opcode = OP_MASKED_CAS;
    }
    put_data(wqe, width, turn->qp->lkey,
             turn->qp->local + turn->base + turn->args->heap.fetched + (uint64_t)turn->i * 8);
    return opcode;
}

DEV uint64_t operate(const struct turn *turn, uint32_t kind)
{
    const struct pair_args *args = turn->args;
    struct pair_qp *qp = turn->qp;
    const struct pair_heap *heap = &args->heap;
    uint64_t place = turn->i % PAIR_PLACES, local = qp->local + turn->base;
    uint64_t part = place * args->bytes;
    uint32_t opcode = OP_WRITE, opmod = 0, imm = kind == PAIR_IMM ? turn->i : 0;
    struct wqe wqe;
    wqe_begin(&wqe, qp, kind != PAIR_DUMP);
    switch (kind) {
    case PAIR_WRITE:
    case PAIR_IMM:
        put_remote(&wqe, qp, turn->base + heap->target + part);
        put_data(&wqe, args->bytes, qp->lkey, local + heap->source + part);
        opcode = kind == PAIR_IMM ? OP_IMM : OP_WRITE;
        break;
    case PAIR_READ:
        put_remote(&wqe, qp, turn->base + heap->read_from + part);
        put_data(&wqe, args->bytes, qp->lkey, local + heap->read_to + part);
        opcode = OP_READ;
        break;
    case PAIR_INLINE:
        put_remote(&wqe, qp, turn->base + heap->inlined + place * 8);
        put_inline(&wqe, 8, pair_value(args->rank, turn->thread, turn->i));
        break;
    case PAIR_LONG:
        put_remote(&wqe, qp, turn->base + heap->longs + place * PAIR_LONG_BYTES);
        put_inline(&wqe, PAIR_LONG_BYTES, pair_value(args->rank, turn->thread, turn->i));
        break;
    case PAIR_SEND:
        put_data(&wqe, args->bytes, qp->lkey, local + heap->source + part);
        opcode = OP_SEND;
        break;
    case PAIR_DUMP:
        put_data(&wqe, 1, qp->lkey, local + heap->source);
        opcode = OP_DUMP;
        break;
    default:
        opcode = put_atomic(&wqe, turn, kind, &opmod);
    }
    return post(args, qp, &wqe, opcode, opmod, imm);
}

/* Each thread does its operations on its block's queue pair, and waits for all of them. */
KERNEL(pair_run)
{
    struct pair_qp *qps = (struct pair_qp *)(uintptr_t)args->qps;
    struct turn turn = {args, &qps[place.block % args->qp_count],
                        place.block * place.threads + place.thread, 0, 0, 0};
    uint64_t end = 0;
    turn.base = PAIR_THREADS_AT + turn.thread * args->heap.thread_bytes;
    for (; turn.i < args->operations && !failed(turn.qp); turn.i++) {
        uint32_t kind = args->kind[turn.i % args->kinds];
        end = operate(&turn, kind);
        turn.casses += kind == PAIR_CAS;
        if ((turn.i + 1) % args->group == 0)
            ring(turn.qp, args->dialect);
    }
    ring(turn.qp, args->dialect);
    wait_for(turn.qp, end, args->dialect);
}

/* One thread, one operation at a time: how long each takes until it is complete. */
KERNEL(pair_time)
{
    struct pair_qp *qps = (struct pair_qp *)(uintptr_t)args->qps;
    struct turn turn = {args, &qps[0], 0, 0, 0, PAIR_THREADS_AT};
    if (place.block || place.thread)
        return;
    for (; turn.i < args->operations && !failed(turn.qp); turn.i++) {
        uint64_t begin = dev_now_ns();
        uint64_t end = operate(&turn, args->kind[0]);
        ring(turn.qp, args->dialect);
        wait_for(turn.qp, end, args->dialect);
        dev_store64(args->times + 8 * (uint64_t)turn.i, dev_now_ns() - begin);
    }
}

/* Two processes in turns: an inline WRITE to the other's cell, which the other waits for. */
KERNEL(pair_pingpong)
{
    struct pair_qp *qps = (struct pair_qp *)(uintptr_t)args->qps;
    struct pair_qp *qp = &qps[0];
    if (place.block || place.thread)
        return;
    for (uint32_t i = 1; i <= args->operations && !failed(qp); i++) {
        uint64_t begin = dev_now_ns(), mine = qp->local + PAIR_THREADS_AT + args->heap.inlined;
        for (uint32_t half = 0; half < 2; half++) {
            if (half != args->rank) {
                while (dev_load64(mine) != i && !failed(qp)) {
                    completed(qp);
                    dev_pause();
                }
                continue;
            }
            struct wqe wqe;
            wqe_begin(&wqe, qp, 1);
            put_remote(&wqe, qp, PAIR_THREADS_AT + args->heap.inlined);
            put_inline(&wqe, 8, i);
            post(args, qp, &wqe, OP_WRITE, 0, 0);
            ring(qp, args->dialect);
        }
        dev_store64(args->times + 8 * (uint64_t)(i - 1), dev_now_ns() - begin);
    }
    wait_for(qp, dev_load64((uint64_t)(uintptr_t)&qp->reserved), args->dialect);
}
