/* Completion queues whose memory can be read: made, and ended. */
#define _GNU_SOURCE
#include "repeater.h"

#define READ_MS 200u /* the copier may wait for a CPU */

struct st_gpu_cq st_gpu_cqs[ST_GPU_CQS];
uint32_t st_gpu_cqs_used;

static uint32_t turn;

struct st_gpu_cq *st_gpu_cq_add(const struct st_gpu_cq_new *new)
{
    /* As late as possible the same one again: a queue pair may still name it. */
    struct st_gpu_cq *cq =
        st_state_claim(st_gpu_cqs, ST_GPU_CQS, sizeof(*cq), &st_gpu_cqs_used, &turn);
    if (!cq) {
        st_lost("gpu: completion queue beyond the number that can be read", 1);
        return NULL;
    }
    cq->made = *new;
    cq->source = NULL;
    cq->asked = cq->round = cq->early = 0;
    cq->failed = false;
    cq->window = ST_CQES_LEAST;
    cq->taken = cq->word = 0;
    ST_STORE(&cq->state, ST_ACTIVE);
    return cq;
}

static bool is_looked_at(const void *cq)
{
    return !ST_LOAD(&((const struct st_gpu_cq *)cq)->asked);
}

bool st_gpu_cq_look(struct st_gpu_cq *cq)
{
    if (ST_LOAD(&cq->state) != ST_ACTIVE || !ST_LOAD(&cq->source))
        return false;
    ST_STORE(&cq->asked, 1);
    ST_ADD(&st_cqes_asked, 1);
    if (st_repeater_wait(&st_copier_beat, is_looked_at, cq, READ_MS))
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

static bool is_not_read(const void *cq)
{
    return !__atomic_load_n(&((const struct st_gpu_cq *)cq)->reading, __ATOMIC_SEQ_CST);
}

/* The copier: `reading`, then the state; here: the state, then `reading`. One that is being read for
 * too long is never used again. */
void st_gpu_cq_remove(struct st_gpu_cq *cq)
{
    if (!st_swap_state(&cq->state, ST_ACTIVE, ST_ENDING))
        return;
    if (st_repeater_wait(&st_copier_beat, is_not_read, cq, READ_MS) || !st_repeater_here())
        ST_STORE(&cq->state, ST_FREE);
    else
        st_lost("gpu: completion queue that was read to its end", 1);
}
