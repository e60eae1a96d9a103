/* The kernels of gpu_pair: they post as the libraries do that start RDMA from a GPU. */
#include "pair_queue.h"

DEV uint64_t pair_value(uint32_t rank, uint32_t thread, uint32_t i)
{
    return ((uint64_t)rank << 56 | (uint64_t)thread << 32 | i) * 0x9e3779b97f4a7c15u;
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
