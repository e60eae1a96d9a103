/* What the processes tell each other: a file for each rank and stage. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pair_host.h"

enum { PATH = 4096, PAUSE_NS = 2000000, PATIENCE = 30000 };

static void path_of(char *path, const char *stage, uint32_t rank, const char *suffix)
{
    snprintf(path, PATH, "%s/%s-%u%s", options.folder, stage, rank, suffix);
}

static void publish(const char *stage, const void *mine, size_t size)
{
    char path[PATH], draft[PATH];
    path_of(path, stage, options.rank, "");
    path_of(draft, stage, options.rank, ".draft");
    FILE *file = fopen(draft, "wb");
    if (!file || fwrite(mine, 1, size, file) != size || fclose(file) || rename(draft, path))
        fail("exchange", 0);
}

static void receive(const char *stage, uint32_t rank, void *other, size_t size)
{
    char path[PATH];
    FILE *file = NULL;
    path_of(path, stage, rank, "");
    for (int i = 0; i < PATIENCE && !file; i++) {
        file = fopen(path, "rb");
        if (!file)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    if (!file || fread(other, 1, size, file) != size)
        fail("exchange: no word from the other rank", (long)rank);
    fclose(file);
}

void exchange(const char *stage, const void *mine, size_t size, void *next, void *previous)
{
    static unsigned meetings; /* all ranks have the same ones in the same order */
    uint32_t count = options.size;
    char name[64];
    snprintf(name, sizeof(name), "%u-%s", meetings++, stage);
    if (count == 1) {
        memcpy(next, mine, size);
        memcpy(previous, mine, size);
        return;
    }
    publish(name, mine, size);
    receive(name, (options.rank + 1) % count, next, size);
    receive(name, (options.rank + count - 1) % count, previous, size);
}
