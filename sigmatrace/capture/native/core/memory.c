/* Anonymous memory. malloc is not used: see core.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>

#include "core.h"

#define BLOCK_BYTES (64u << 10)

struct block {
    uint64_t used;
};

static struct block *current;

void *st_map(size_t size)
{
    int saved = errno;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    errno = saved;
    return p == MAP_FAILED ? NULL : p;
}

void *st_alloc(size_t size)
{
    size = (size + 63) & ~(size_t)63;
    if (size > BLOCK_BYTES / 4)
        return st_map(size);
    for (;;) {
        struct block *block = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
        if (block) {
            uint64_t at = __atomic_fetch_add(&block->used, size, __ATOMIC_RELAXED);
            if (at + size <= BLOCK_BYTES)
                return (uint8_t *)block + at;
        }
        struct block *fresh = st_map(BLOCK_BYTES);
        if (!fresh)
            return NULL;
        fresh->used = 64;
        if (!__atomic_compare_exchange_n(&current, &block, fresh, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            munmap(fresh, BLOCK_BYTES);
    }
}

void st_unmap(void *p, size_t size)
{
    int saved = errno;
    munmap(p, size);
    errno = saved;
}
