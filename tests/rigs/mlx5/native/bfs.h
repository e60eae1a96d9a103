/* What the host's and the GPU's part of gpu_bfs share. Vertices are dealt out in equal parts, by
 * their numbers. Nothing is used twice: queues grow only, and each vertex is sent at most once. */
#ifndef BFS_H
#define BFS_H

#include "pair.h"

enum { BFS_LEVELS = 64, BFS_PEERS = 3 };
#define BFS_FAR 0xffffffffu /* the distance of what is not reached */

/* The heap, which has the same places in each process; the words have a line each. */
enum { BFS_TAIL = 0, BFS_EXCHANGED = 64, BFS_COUNTED = 128, BFS_LANDINGS = 192 };
/* In the words of barriers: how often others came, and the sum of what they told. */
enum { BFS_ARRIVALS = 40 };

/* What operations are for. */
enum bfs_use {
    BFS_RESERVE,        /* FETCH_ADD: places in another's inbox */
    BFS_IDS,            /* WRITE of vertices into them */
    BFS_AT_EXCHANGED,   /* FETCH_ADD: all that this level sends was sent before */
    BFS_AT_COUNTED,     /* FETCH_ADD: so many vertices are in the next frontier */
    BFS_USES,
};
struct bfs_peer {
    uint64_t count[BFS_USES], bytes[BFS_USES];
    uint64_t rings;     /* of the queue pair up to the level's end */
    uint64_t posted[2]; /* the clock before the doorbell of each barrier */
};
struct bfs_level {
    uint64_t frontier;
    uint64_t passed[2]; /* the clock when all others were seen to have come */
    struct bfs_peer to[BFS_PEERS];
};

/* One rank, in the memory of its GPU. */
struct bfs {
    uint64_t rows, columns; /* of its vertices: uint32_t[owned + 1], uint32_t[] */
    uint64_t seen;          /* uint32_t[] of all vertices: found, or sent to their rank */
    uint64_t distance;      /* uint32_t[owned] */
    uint64_t order;         /* uint32_t[owned]: the vertices as they were found */
    uint64_t inbox, out;    /* in the heap: uint32_t[], uint32_t[peers][part] */
    uint32_t size, part, first, owned, batch;
    uint32_t is_tsc, level_count;
    uint64_t others; /* vertices that the others found, after level 0 */
    uint64_t found, staged[BFS_PEERS]; /* ends of `order` and `out` */
    uint64_t meetings;                 /* threads that came to a meeting, over all of them */
    struct bfs_level level[BFS_LEVELS];
};

#endif
