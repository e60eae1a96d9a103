#include "bfs_graph.h"

#include <stdio.h>
#include <stdlib.h>

#include "bfs.h"
#include "pair_host.h"

static uint32_t *array(uint64_t count)
{
    uint32_t *made = calloc(count ? count : 1, sizeof(*made));
    need("memory", !made);
    return made;
}

static uint32_t *edges_read(struct graph *graph, const char *path)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    uint32_t head[2];
    need("graph", !file || fread(head, sizeof(head), 1, file) != 1);
    uint32_t *ends = array(2 * (uint64_t)head[1]);
    need("graph", fread(ends, 8, head[1], file) != head[1]);
    fclose(file);
    graph->vertices = head[0];
    graph->edges = 2 * head[1];
    return ends;
}

void graph_read(struct graph *graph, const char *path)
{
    uint32_t *ends = edges_read(graph, path);
    graph->rows = array((uint64_t)graph->vertices + 2);
    graph->columns = array(graph->edges);
    for (uint32_t i = 0; i < graph->edges; i++) {
        need("graph", ends[i] >= graph->vertices);
        graph->rows[ends[i] + 2]++;
    }
    for (uint32_t v = 2; v < graph->vertices + 2; v++)
        graph->rows[v] += graph->rows[v - 1];
    /* While it is filled, the next row's begin stands for a row's end. */
    for (uint32_t i = 0; i < graph->edges; i++)
        graph->columns[graph->rows[ends[i] + 1]++] = ends[i ^ 1];
    free(ends);
}

void graph_free(struct graph *graph)
{
    free(graph->rows);
    free(graph->columns);
}

uint32_t *graph_search(const struct graph *graph, uint32_t root)
{
    uint32_t *distance = array(graph->vertices), *order = array(graph->vertices), found = 0;
    for (uint32_t v = 0; v < graph->vertices; v++)
        distance[v] = BFS_FAR;
    distance[root] = 0;
    order[found++] = root;
    for (uint32_t i = 0; i < found; i++)
        for (uint32_t e = graph->rows[order[i]]; e < graph->rows[order[i] + 1]; e++) {
            uint32_t next = graph->columns[e];
            if (distance[next] != BFS_FAR)
                continue;
            distance[next] = distance[order[i]] + 1;
            order[found++] = next;
        }
    free(order);
    return distance;
}
