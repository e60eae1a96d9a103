/* The kernels of gpu_pair. */
#include "pair_operation.h"

/* Each thread does its operations on its block's queue pair, and waits for all of them. */
KERNEL(pair_run)
{
    struct pair_qp *qps = (struct pair_qp *)(uintptr_t)args->qps;
    struct turn turn = {args, &qps[place.block % args->qp_count],
                        place.block * place.threads + place.thread, 0, 0, 0};
    uint64_t end = 0, times = args->times + 16 * (uint64_t)turn.thread;
    dev_store64(times, dev_now_ns());
    turn.base = PAIR_THREADS_AT + turn.thread * args->heap.thread_bytes;
    for (; turn.i < args->operations && !failed(turn.qp); turn.i++) {
        uint32_t kind = args->kind[turn.i % args->kinds];
        end = operate(&turn, kind);
        turn.casses += kind == PAIR_CAS;
        if ((turn.i + 1) % args->group == 0)
            ring(turn.qp, args->dialect);
        if (args->window && end >= args->window)
            wait_for(turn.qp, end - (args->window - 1), args->dialect);
    }
    ring(turn.qp, args->dialect);
    if (!args->abandon)
        wait_for(turn.qp, end, args->dialect);
    dev_store64(times + 8, dev_now_ns());
}

/* The first look for a completion comes after up to 2,047 ns, each time another: looks cost much,
 * and would otherwise round all times to the same few values. Nothing is complete so soon. */
DEV void look_later(uint32_t i)
{
    uint64_t until = dev_now_ns() + (pair_value(0, 0, i) >> 53);
    while (dev_now_ns() < until)
        ;
}

/* One thread, one operation at a time or a window full of them: how long each takes until it, or
 * the first one in the window, is complete. */
KERNEL(pair_time)
{
    struct pair_qp *qps = (struct pair_qp *)(uintptr_t)args->qps;
    struct turn turn = {args, &qps[0], 0, 0, 0, PAIR_THREADS_AT};
    uint64_t end = 0, others = args->window ? args->window - 1 : 0;
    if (place.block || place.thread)
        return;
    for (; turn.i < args->operations && !failed(turn.qp); turn.i++) {
        uint64_t begin = dev_now_ns();
        end = operate(&turn, args->kind[0]);
        ring(turn.qp, args->dialect);
        if (!others)
            look_later(turn.i);
        if (end > others)
            wait_for(turn.qp, end - others, args->dialect);
        dev_store64(args->times + 8 * (uint64_t)turn.i, dev_now_ns() - begin);
    }
    wait_for(turn.qp, end, args->dialect);
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
                look_later(i);
                for (uint32_t looks = 1; dev_load64(mine) != i; looks++) {
                    if (looks % POLLS == 0 && (completed(qp), failed(qp)))
                        return;
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
