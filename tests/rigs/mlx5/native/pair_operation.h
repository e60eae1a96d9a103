/* The operations of gpu_pair, as WQEs. */
#ifndef PAIR_OPERATION_H
#define PAIR_OPERATION_H

#include "pair_queue.h"

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

#endif
