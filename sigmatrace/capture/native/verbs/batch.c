/* Requests of one call, in memory of our own that grows and is kept. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "requests.h"

#define BATCHES 512u
#define FIRST_ROOM 64u

static struct st_verbs_pool pool = {.size = sizeof(struct st_verbs_batch), .most = BATCHES};
static __thread struct st_verbs_batch *last; /* the one that this thread had before */

struct st_verbs_batch *st_verbs_batch_take(void)
{
    uint32_t no = 0;
    struct st_verbs_batch *batch = last;
    if (!batch || !__atomic_compare_exchange_n(&batch->taken, &no, 1, false, __ATOMIC_ACQUIRE,
                                               __ATOMIC_RELAXED))
        batch = st_verbs_state(&pool);
    if (batch) {
        last = batch;
        batch->count = batch->missing = 0;
    }
    return batch;
}

/* It stays the thread's own, so it still counts as used. */
void st_verbs_batch_give(struct st_verbs_batch *batch)
{
    if (!batch)
        return;
    __atomic_store_n(&batch->taken, 0, __ATOMIC_RELEASE);
    if (ST_UNLIKELY(__atomic_load_n(&pool.full, __ATOMIC_ACQUIRE)))
        __atomic_store_n(&pool.full, false, __ATOMIC_RELEASE);
}

__attribute__((noinline, cold)) bool st_verbs_batch_grow(struct st_verbs_batch *batch)
{
    int saved = errno;
    uint32_t room = batch->room ? 2 * batch->room : FIRST_ROOM;
    void *p = batch->wrs ? mremap(batch->wrs, batch->room * sizeof(*batch->wrs),
                                  room * sizeof(*batch->wrs), MREMAP_MAYMOVE)
                         : mmap(NULL, room * sizeof(*batch->wrs), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (p == MAP_FAILED)
        return false;
    batch->wrs = p;
    batch->room = room;
    return true;
}

uint32_t st_verbs_batch_accepted(const struct st_verbs_batch *batch, uint32_t count,
                                 const void *refused)
{
    for (uint32_t i = 0; batch && i < batch->count; i++)
        if (batch->wrs[i].address == refused)
            return i;
    return count;
}
