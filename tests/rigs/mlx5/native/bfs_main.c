/* gpu_bfs: breadth-first search over a graph that is dealt out to processes, as one persistent
 * kernel in each. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bfs.h"
#include "bfs_graph.h"
#include "pair_host.h"

const char usage[] =
    "gpu_bfs NAME=VALUE...: searches a graph by one persistent kernel in each process, compares\n"
    "the distances with a search of the host's, writes its own to FOLDER/distances-RANK, and\n"
    "prints as JSON what it posted in each level.\n"
    "  kernel=FILE      bfs_kernel.cubin, or bfs_kernel.so for the stand-in\n"
    "  graph=FILE       uint32_t: vertices, edges, both ends of each edge      root=V\n"
    "  batch=N          vertices of a WRITE\n"
    "  rank=R size=N folder=PATH gpus=N blocks= threads= slots= dialect= uar= memory= heap=\n"
    "                   as of gpu_pair; 2 to 4 processes, no proxy, a register for each QP\n";
static struct bfs bfs;
static uint64_t bfs_at; /* the same, for the GPU */

static void check(void)
{
    if (options.size < 2 || !options.graph)
        refuse("needs", "graph=FILE and 2 to 4 processes: size=N");
    need("batch", options.batch == 0);
    need("dialect", options.args.dialect == PAIR_PROXY);
    need("uar", options.uar == UAR_SHARED || options.uar == UAR_PLAIN);
    options.to_all = true;
    options.qps = options.args.qp_count = options.size - 1;
}

/* --- memory ---------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t value)
{
    return (value + 63) / 64 * 64;
}

/* An inbox holds whatever the others can send: each of this rank's vertices once from each. */
void heap_layout(void)
{
    uint64_t row = 4 * (uint64_t)bfs.part;
    bfs.inbox = round_up(BFS_LANDINGS + 8 * (uint64_t)options.blocks * options.threads);
    bfs.out = round_up(bfs.inbox + row * options.qps);
    setup.heap_size = bfs.out + row * options.qps;
}

void heap_fill(void)
{
    /* It is all zeros at first, and has one life. */
}

static uint64_t copied(const void *from, uint64_t size)
{
    uint64_t at = cuda_memory(size ? size : 1, IN_GPU);
    if (size)
        cuda_put(at, from, size);
    return at;
}

static void part_take(const struct graph *graph)
{
    bfs.size = options.size;
    bfs.batch = options.batch;
    bfs.part = (graph->vertices + bfs.size - 1) / bfs.size;
    bfs.first = options.rank * bfs.part;
    need("graph: too small", bfs.first >= graph->vertices || options.root >= graph->vertices);
    uint32_t rest = graph->vertices - bfs.first;
    bfs.owned = rest < bfs.part ? rest : bfs.part;
}

static void part_put(const struct graph *graph)
{
    uint32_t from = graph->rows[bfs.first], *rows = calloc(bfs.owned + 1, sizeof(*rows));
    uint32_t *ones = malloc(4 * (uint64_t)bfs.owned), *seen = calloc(graph->vertices, 4);
    need("memory", !rows || !ones || !seen);
    for (uint32_t v = 0; v <= bfs.owned; v++)
        rows[v] = graph->rows[bfs.first + v] - from;
    memset(ones, 0xff, 4 * (uint64_t)bfs.owned);
    if (options.root / bfs.part == options.rank) {
        bfs.found = 1;
        seen[options.root] = 1;
        ones[options.root - bfs.first] = 0;
    }
    bfs.rows = copied(rows, 4 * ((uint64_t)bfs.owned + 1));
    bfs.columns = copied(graph->columns + from, 4 * (uint64_t)rows[bfs.owned]);
    bfs.seen = copied(seen, 4 * (uint64_t)graph->vertices);
    bfs.distance = copied(ones, 4 * (uint64_t)bfs.owned);
    bfs.order = cuda_memory(4 * (uint64_t)bfs.owned, IN_GPU);
    cuda_put(bfs.order, &options.root, bfs.found ? 4 : 0);
    bfs_at = options.args.bfs = copied(&bfs, sizeof(bfs));
    free(rows);
    free(ones);
    free(seen);
}

/* --- what came of it ------------------------------------------------------------------------- */

static uint64_t verify(const struct graph *graph)
{
    uint32_t *right = graph_search(graph, options.root), *is = malloc(4 * (uint64_t)bfs.owned);
    char path[4096];
    uint64_t wrong = 0;
    need("memory", !is);
    cuda_get(is, bfs.distance, 4 * (uint64_t)bfs.owned);
    for (uint32_t v = 0; v < bfs.owned; v++)
        wrong += is[v] != right[bfs.first + v];
    snprintf(path, sizeof(path), "%s/distances-%u", options.folder, options.rank);
    FILE *file = fopen(path, "wb");
    need(path, !file || fwrite(is, 4, bfs.owned, file) != bfs.owned || fclose(file));
    free(right);
    free(is);
    return wrong;
}

static void peer_print(uint32_t level, uint32_t k)
{
    static const char *const uses[] = {"reserve", "ids", "exchanged", "counted"};
    const struct bfs_peer *to = &bfs.level[level].to[k];
    uint64_t before = level ? bfs.level[level - 1].to[k].rings : 0;
    printf("%s{\"rank\": %u, \"rings\": %" PRIu64 ", \"posted\": [%" PRIu64 ", %" PRIu64 "]",
           k ? ", " : "", (options.rank + 1 + k) % options.size, to->rings - before,
           to->posted[0], to->posted[1]);
    for (int use = 0; use < BFS_USES; use++)
        printf(", \"%s\": {\"count\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", uses[use],
               to->count[use], to->bytes[use]);
    printf("}");
}

static void levels_print(void)
{
    printf(", \"levels\": [");
    for (uint32_t level = 0; level < bfs.level_count; level++) {
        const struct bfs_level *now = &bfs.level[level];
        printf("%s{\"frontier\": %" PRIu64 ", \"passed\": [%" PRIu64 ", %" PRIu64 "], \"to\": [",
               level ? ", " : "", now->frontier, now->passed[0], now->passed[1]);
        for (uint32_t k = 0; k < options.qps; k++)
            peer_print(level, k);
        printf("]}");
    }
    printf("]");
}

static void report(const struct pair_qp *qps, uint64_t wrong, uint64_t run_ns)
{
    printf("{\"rank\": %u, \"wrong\": %" PRIu64 ", \"run_ns\": %" PRIu64 ", \"found\": %" PRIu64
           ", \"clock\": \"%s\", \"exchanged\": %" PRIu64 ", \"counted\": %" PRIu64,
           options.rank, wrong, run_ns, bfs.found, bfs.is_tsc ? "tsc" : "ns",
           setup.heap + BFS_EXCHANGED, setup.heap + BFS_COUNTED);
    levels_print();
    queues_print(qps);
    printf("}\n");
}

int main(int count, char **texts)
{
    static struct pair_qp qps[MOST_QPS];
    struct graph graph;
    options_read(count, texts);
    check();
    graph_read(&graph, options.graph);
    part_take(&graph);
    cuda_start();
    setup_open();
    setup_queues();
    setup_connect();
    options.args.qps = setup.qps;
    part_put(&graph);
    uint64_t took = cuda_run("bfs_run", &options.args, options.blocks, options.threads);
    cuda_get(&bfs, bfs_at, sizeof(bfs));
    cuda_get(qps, setup.qps, options.qps * sizeof(*qps));
    uint64_t wrong = verify(&graph);
    for (uint32_t k = 0; k < options.qps; k++)
        wrong += qps[k].error;
    /* The other ends may still be asked. */
    meet("verified");
    report(qps, wrong, took);
    setup_close();
    graph_free(&graph);
    return wrong ? 1 : 0;
}
