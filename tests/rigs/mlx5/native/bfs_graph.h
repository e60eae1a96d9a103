/* Graphs on the host, and the search that is to be trusted. */
#ifndef BFS_GRAPH_H
#define BFS_GRAPH_H

#include <stdint.h>

/* Neighbours of each vertex, one row behind the other. */
struct graph {
    uint32_t vertices, edges; /* each edge has two directions, which both count */
    uint32_t *rows, *columns; /* rows: [vertices + 1] */
};

/* From a file of uint32_t: vertices, edges, both ends of each edge. */
void graph_read(struct graph *graph, const char *path);
void graph_free(struct graph *graph);
/* Distances of all vertices, BFS_FAR where there is no path; to be freed. */
uint32_t *graph_search(const struct graph *graph, uint32_t root);

#endif
