/* Threads that hand addresses around and publish them as handles, each with a value of its own.
 *
 * usage: handle_driver threads  many threads, few addresses
 *        handle_driver full     until there is no room
 *
 * Says how often the table was wrong, and (full) how many handles it took. */
#include "st_handle.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ADDRESSES = 6, ROUNDS = 50000, STEP = 64 };

static struct st_handle_table table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the library's allocator */
static char memory[ADDRESSES * STEP];
static void *spare[ADDRESSES];
static int spares;
static long wrong;

static void *allocate(void)
{
    pthread_mutex_lock(&lock);
    void *address = spares ? spare[--spares] : NULL;
    pthread_mutex_unlock(&lock);
    return address;
}

static void release(void *address)
{
    pthread_mutex_lock(&lock);
    spare[spares++] = address;
    pthread_mutex_unlock(&lock);
}

static void *work(void *own)
{
    int values[2] = {0, 0};
    long bad = 0;
    for (int i = 0; i < ROUNDS; i++) {
        void *handle = allocate(), *value = &values[i % 2], *other = &values[(i + 1) % 2];
        if (!handle)
            continue;
        bad += st_handle_find(&table, handle) != NULL;
        bad += !st_handle_publish(&table, handle, value);
        bad += st_handle_find(&table, handle) != value;
        bad += st_handle_remove(&table, handle, other); /* exactly what was published */
        bad += !st_handle_remove(&table, handle, value);
        bad += st_handle_remove(&table, handle, value);
        release(handle);
    }
    __atomic_fetch_add(&wrong, bad, __ATOMIC_RELAXED);
    return own;
}

static void threads(void)
{
    pthread_t ids[THREADS];
    for (int i = 0; i < ADDRESSES; i++)
        release(memory + i * STEP);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&ids[i], NULL, work, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    printf("{\"wrong\": %ld}\n", wrong);
}

static void full(void)
{
    static char values[2 * ST_HANDLES];
    size_t taken = 0, found = 0, removed = 0;
    while (st_handle_publish(&table, (void *)((taken + 1) * STEP), &values[taken]))
        taken++;
    for (size_t i = 0; i < taken; i++)
        found += st_handle_find(&table, (void *)((i + 1) * STEP)) == &values[i];
    for (size_t i = 0; i < taken; i++)
        removed += st_handle_remove(&table, (void *)((i + 1) * STEP), &values[i]);
    bool again = st_handle_publish(&table, (void *)((taken + 1) * STEP), values);
    printf("{\"taken\": %zu, \"found\": %zu, \"removed\": %zu, \"again\": %d}\n", taken, found,
           removed, again);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    if (!strcmp(argv[1], "threads"))
        threads();
    else
        full();
    return 0;
}
