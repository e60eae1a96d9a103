/* Completion queues whose memory can be read: made, and ended. */
#define _GNU_SOURCE
#include "repeater.h"

#define READ_MS 200u /* the copier may wait for a CPU */

struct st_gpu_cq st_gpu_cqs[ST_GPU_CQS];
uint32_t st_gpu_cqs_used;

static uint32_t turn;

/* As late as possible the same one again: a queue pair may still name it. */
static struct st_gpu_cq *claim(void)
{
    for (uint32_t i = 0; i < ST_GPU_CQS; i++) {
        uint32_t at = ST_ADD(&turn, 1) % ST_GPU_CQS;
        if (!st_swap_state(&st_gpu_cqs[at].state, ST_FREE, ST_MAKING))
            continue;
        uint32_t used = ST_LOAD(&st_gpu_cqs_used);
        while (used < at + 1 &&
               !__atomic_compare_exchange_n(&st_gpu_cqs_used, &used, at + 1, false,
                                            __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            ;
        return &st_gpu_cqs[at];
    }
    st_lost("gpu: completion queue beyond the number that can be read", 1);
    return NULL;
}

struct st_gpu_cq *st_gpu_cq_add(const struct st_gpu_cq_new *new)
{
    struct st_gpu_cq *cq = claim();
    if (!cq)
        return NULL;
    cq->made = *new;
    cq->source = NULL;
    cq->asked = cq->round = cq->early = 0;
    cq->failed = false;
    cq->window = ST_CQES_LEAST;
    cq->taken = cq->word = 0;
    ST_STORE(&cq->state, ST_ACTIVE);
    return cq;
}

bool st_gpu_cq_look(struct st_gpu_cq *cq)
{
    if (ST_LOAD(&cq->state) != ST_ACTIVE || !ST_LOAD(&cq->source))
        return false;
    ST_STORE(&cq->asked, 1);
    ST_ADD(&st_cqes_asked, 1);
    if (st_repeater_wait(&cq->asked, 1, READ_MS))
        return true;
    st_lost("gpu: completion queue that was not looked at in time", 1);
    return false;
}

/* What is there when a queue pair begins is none of its completions. Of a ring, what was read is
 * known; of the one element of a collapsed queue, the copier takes note now. */
bool st_gpu_cq_begin(struct st_gpu_cq *cq)
{
    if (!cq || ST_LOAD(&cq->state) != ST_ACTIVE || st_mode() != ST_MODE_FULL)
        return false;
    if (!ST_LOAD(&cq->source))
        ST_STORE(&cq->source, st_source_of(cq->made.at));
    return ST_LOAD(&cq->source) && (!cq->made.collapsed || st_gpu_cq_look(cq));
}

/* The copier: `reading`, then the state; here: the state, then `reading`. One that is being read for
 * too long is never used again. */
void st_gpu_cq_remove(struct st_gpu_cq *cq)
{
    if (!st_swap_state(&cq->state, ST_ACTIVE, ST_ENDING))
        return;
    uint64_t until = st_now() + READ_MS * 1000 * st_tsc_per_us;
    while (st_repeater_here() && __atomic_load_n(&cq->reading, __ATOMIC_SEQ_CST)) {
        if (st_now() > until) {
            st_lost("gpu: completion queue that was read to its end", 1);
            return;
        }
        st_nap(20);
    }
    ST_STORE(&cq->state, ST_FREE);
}
