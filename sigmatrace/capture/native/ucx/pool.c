/* Memory for things of one size that come and go: taken from the kernel, never given back, as
 * others may still look at what was just returned. No locks and no malloc: signal handlers take
 * from it, too. */
#define _GNU_SOURCE
#include "ucx.h"

#include <errno.h>
#include <sys/mman.h>

#define CHUNK_BYTES (64u << 10)

struct link { /* at the begin of every free element */
    struct link *next;
};

static struct link *chunk_make(struct ucx_pool *pool)
{
    int saved = errno;
    struct ucx_chunk *chunk = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (chunk == MAP_FAILED)
        return NULL;
    struct link *first = NULL;
    chunk->count = (uint32_t)((CHUNK_BYTES - sizeof(*chunk)) / pool->size);
    for (uint32_t i = chunk->count; i-- > 0;) {
        struct link *one = ucx_pool_at(pool, chunk, i);
        one->next = first;
        first = one;
    }
    chunk->next = __atomic_load_n(&pool->chunks, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&pool->chunks, &chunk->next, chunk, false,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
    return first;
}

/* The chain is taken as a whole, so no element of it can have come back meanwhile. */
void *ucx_pool_take_all(struct ucx_pool *pool)
{
    void *first = __atomic_exchange_n(&pool->spare, NULL, __ATOMIC_ACQUIRE);
    return first ? first : chunk_make(pool);
}

void *ucx_pool_take(struct ucx_pool *pool)
{
    struct link *first = ucx_pool_take_all(pool);
    if (first && first->next)
        ucx_pool_give(pool, first->next);
    return first;
}

void ucx_pool_give(struct ucx_pool *pool, void *chain)
{
    struct link *last = chain;
    void *head = NULL;
    if (__atomic_compare_exchange_n(&pool->spare, &head, chain, false, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED))
        return;
    while (last->next)
        last = last->next;
    do
        last->next = head;
    while (!__atomic_compare_exchange_n(&pool->spare, &head, chain, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED));
}
