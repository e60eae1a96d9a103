/* Level-synchronous breadth-first search, one persistent kernel a rank. Vertices of other ranks go
 * to their inboxes; between levels are two barriers, by FETCH_ADDs to a word of each other rank. */
#include "bfs.h"
#include "pair_queue.h"

#define BFS_PATIENCE_NS 100000000000u

struct worker {
    const struct pair_args *args;
    struct bfs *bfs;
    struct pair_qp *qps; /* the k-th leads to the k-th rank after this one */
    uint32_t me, all, peers;
    uint64_t meetings, heap, sent[BFS_PEERS];
};

DEV int gave_up(const struct worker *worker)
{
    for (uint32_t k = 0; k < worker->peers; k++)
        if (failed(&worker->qps[k]))
            return 1;
    return 0;
}

/* Waits for a word to be at least so much. */
DEV void await(const struct worker *worker, uint64_t at, uint64_t least)
{
    uint64_t begin = dev_now_ns();
    while (dev_load64(at) < least && !gave_up(worker)) {
        for (uint32_t k = 0; k < worker->peers; k++)
            completed(&worker->qps[k]);
        if (dev_now_ns() - begin > BFS_PATIENCE_NS)
            *(volatile uint32_t *)&worker->qps[0].error = 1;
        dev_pause();
    }
    dev_fence();
}

/* All threads of this rank. */
DEV void together(struct worker *worker)
{
    dev_fence();
    dev_add64(&worker->bfs->meetings, 1);
    worker->meetings++;
    await(worker, (uint64_t)(uintptr_t)&worker->bfs->meetings, worker->meetings * worker->all);
}

DEV void count(const struct worker *worker, uint32_t level, uint32_t k, uint32_t use,
               uint64_t bytes)
{
    struct bfs_peer *to = &worker->bfs->level[level].to[k];
    dev_add64(&to->count[use], 1);
    dev_add64(&to->bytes[use], bytes);
}

/* Posts a FETCH_ADD to a word of another rank's heap, whose old value comes to `landing`. */
DEV uint64_t add_post(const struct worker *worker, uint32_t k, uint64_t word, uint64_t value,
                      uint64_t landing)
{
    struct pair_qp *qp = &worker->qps[k];
    struct wqe wqe;
    wqe_begin(&wqe, qp, 1);
    put_remote(&wqe, qp, word);
    put64(&wqe, value);
    put64(&wqe, 0);
    put_data(&wqe, 8, qp->lkey, landing);
    return post(worker->args, qp, &wqe, OP_ADD, 0, 0);
}

DEV uint64_t landing_of(const struct worker *worker)
{
    return worker->heap + BFS_LANDINGS + 8 * (uint64_t)worker->me;
}

/* Reserves places in another's inbox, and writes staged vertices to them. */
DEV void ids_send(const struct worker *worker, uint32_t level, uint32_t k, uint64_t from,
                  uint32_t ids)
{
    struct pair_qp *qp = &worker->qps[k];
    uint32_t dialect = worker->args->dialect;
    uint64_t end = add_post(worker, k, BFS_TAIL, ids, landing_of(worker));
    struct wqe wqe;
    count(worker, level, k, BFS_RESERVE, 8);
    ring(qp, dialect);
    wait_for(qp, end, dialect);
    wqe_begin(&wqe, qp, 1);
    put_remote(&wqe, qp, worker->bfs->inbox + 4 * dev_load64(landing_of(worker)));
    put_data(&wqe, 4 * ids, qp->lkey,
             worker->heap + worker->bfs->out + 4 * ((uint64_t)k * worker->bfs->part + from));
    end = post(worker->args, qp, &wqe, OP_WRITE, 0, 0);
    count(worker, level, k, BFS_IDS, 4 * (uint64_t)ids);
    ring(qp, dialect);
    wait_for(qp, end, dialect);
}

DEV void staged_send(struct worker *worker, uint32_t level)
{
    uint32_t batch = worker->bfs->batch;
    for (uint32_t i = 0; i < worker->peers; i++) {
        uint32_t k = (worker->me + i) % worker->peers;
        uint64_t end = dev_load64((uint64_t)(uintptr_t)&worker->bfs->staged[k]);
        uint64_t from = worker->sent[k] + (uint64_t)worker->me * batch;
        for (; from < end && !gave_up(worker); from += (uint64_t)worker->all * batch)
            ids_send(worker, level, k, from, end - from < batch ? (uint32_t)(end - from) : batch);
        worker->sent[k] = end;
    }
}

/* Tells all others, and waits until all of them have come so often; the sum of what was told. */
DEV uint64_t barrier(const struct worker *worker, uint32_t level, uint32_t use, uint64_t told)
{
    uint64_t word = use == BFS_AT_COUNTED ? BFS_COUNTED : BFS_EXCHANGED, end[BFS_PEERS];
    struct bfs_level *now = &worker->bfs->level[level];
    for (uint32_t k = 0; k < worker->peers; k++) {
        end[k] = add_post(worker, k, word, ((uint64_t)1 << BFS_ARRIVALS) + told,
                          landing_of(worker));
        count(worker, level, k, use, 8);
        now->to[k].posted[use - BFS_AT_EXCHANGED] = dev_clock();
        ring(&worker->qps[k], worker->args->dialect);
    }
    await(worker, worker->heap + word, ((level + 1) * (uint64_t)worker->peers) << BFS_ARRIVALS);
    now->passed[use - BFS_AT_EXCHANGED] = dev_clock();
    for (uint32_t k = 0; k < worker->peers; k++)
        wait_for(&worker->qps[k], end[k], worker->args->dialect);
    return dev_load64(worker->heap + word) & (((uint64_t)1 << BFS_ARRIVALS) - 1);
}

/* A vertex of this rank was found. */
DEV void visit(struct bfs *bfs, uint32_t vertex, uint32_t distance)
{
    uint64_t at = dev_add64(&bfs->found, 1);
    dev_store32(bfs->distance + 4 * (uint64_t)(vertex - bfs->first), distance);
    dev_store32(bfs->order + 4 * at, vertex);
}

DEV int is_new(const struct bfs *bfs, uint32_t vertex)
{
    return !dev_swap32((uint32_t *)(uintptr_t)(bfs->seen + 4 * (uint64_t)vertex), 1);
}

DEV void neighbour(const struct worker *worker, uint32_t vertex, uint32_t distance)
{
    struct bfs *bfs = worker->bfs;
    uint32_t owner = vertex / bfs->part, rank = worker->args->rank;
    if (!is_new(bfs, vertex))
        return;
    if (owner == rank) {
        visit(bfs, vertex, distance);
        return;
    }
    uint32_t k = (owner + bfs->size - rank) % bfs->size - 1;
    uint64_t at = (uint64_t)k * bfs->part + dev_add64(&bfs->staged[k], 1);
    dev_store32(worker->heap + bfs->out + 4 * at, vertex);
}

DEV void expand(const struct worker *worker, uint64_t from, uint64_t to, uint32_t level)
{
    const struct bfs *bfs = worker->bfs;
    for (uint64_t i = from + worker->me; i < to; i += worker->all) {
        uint64_t row = dev_load32(bfs->order + 4 * i) - bfs->first;
        uint32_t end = dev_load32(bfs->rows + 4 * row + 4);
        for (uint32_t edge = dev_load32(bfs->rows + 4 * row); edge < end; edge++)
            neighbour(worker, dev_load32(bfs->columns + 4 * (uint64_t)edge), level + 1);
    }
}

DEV void inbox_take(const struct worker *worker, uint64_t from, uint64_t to, uint32_t level)
{
    struct bfs *bfs = worker->bfs;
    for (uint64_t i = from + worker->me; i < to; i += worker->all) {
        uint32_t vertex = dev_load32(worker->heap + bfs->inbox + 4 * i);
        if (is_new(bfs, vertex))
            visit(bfs, vertex, level + 1);
    }
}

/* What one thread does for the rank at the end of a level. */
DEV void level_close(const struct worker *worker, uint32_t level, uint64_t frontier, uint64_t next)
{
    struct bfs *bfs = worker->bfs;
    bfs->level[level].frontier = frontier;
    bfs->level_count = level + 1;
    uint64_t sum = barrier(worker, level, BFS_AT_COUNTED, next);
    for (uint32_t k = 0; k < worker->peers; k++)
        bfs->level[level].to[k].rings = worker->qps[k].rings;
    bfs->others = sum;
}

KERNEL(bfs_run)
{
    struct bfs *bfs = (struct bfs *)(uintptr_t)args->bfs;
    struct pair_qp *qps = (struct pair_qp *)(uintptr_t)args->qps;
    struct worker worker = {args, bfs, qps, place.block * place.threads + place.thread,
                            place.blocks * place.threads, bfs->size - 1, 0, qps[0].local, {0}};
    uint64_t from = 0, to = bfs->found, taken = 0, before = 0;
    together(&worker);
    for (uint32_t level = 0; level < BFS_LEVELS && !gave_up(&worker); level++) {
        expand(&worker, from, to, level);
        together(&worker);
        staged_send(&worker, level);
        together(&worker);
        if (!worker.me)
            barrier(&worker, level, BFS_AT_EXCHANGED, 0);
        together(&worker);
        uint64_t tail = dev_load64(worker.heap + BFS_TAIL);
        inbox_take(&worker, taken, tail, level);
        together(&worker);
        uint64_t found = dev_load64((uint64_t)(uintptr_t)&bfs->found);
        if (!worker.me)
            level_close(&worker, level, to - from, found - to);
        together(&worker);
        uint64_t others = dev_load64((uint64_t)(uintptr_t)&bfs->others);
        if (found == to && others == before)
            break;
        before = others;
        taken = tail;
        from = to;
        to = found;
    }
    bfs->is_tsc = DEV_CLOCK_IS_TSC;
}
