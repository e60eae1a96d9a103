/* The verbs layer: requests, from the call that posts them to the completion that retires them. */
#ifndef ST_VERBS_REQUESTS_H
#define ST_VERBS_REQUESTS_H

#include "verbs.h"

/* --- outstanding.c --------------------------------------------------------------------------------- */

/* Room for what may be outstanding; forgets what was. */
void st_verbs_queue_begin(struct st_verbs_queue *queue, uint32_t size);

/* Takes the positions of `count` requests that are about to be posted. */
static inline uint32_t st_verbs_positions(struct st_verbs_queue *queue, uint32_t count)
{
    return __atomic_fetch_add(&queue->posted, count, __ATOMIC_RELAXED);
}

static inline void st_verbs_outstanding(struct st_verbs_queue *queue, uint32_t position,
                                        uint64_t t_tsc, uint64_t wr_id, uint8_t opcode,
                                        bool signaled)
{
    struct st_verbs_request *r = &queue->requests[position & queue->mask];
    /* Others may look for theirs here: until its position is there, it is not written down. */
    __atomic_store_n(&r->position, ST_NO_POSITION, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    r->wr_id = wr_id;
    r->t_tsc = t_tsc;
    r->opcode = opcode;
    r->signaled = signaled;
    r->done = false;
    __atomic_store_n(&r->position, position, __ATOMIC_RELEASE);
}

/* The provider took only `accepted` of `count` requests from `position` on. */
void st_verbs_refused(struct st_verbs_queue *queue, uint32_t position, uint32_t count,
                      uint32_t accepted);

struct st_verbs_match {
    uint32_t position, first;
    uint64_t posted_tsc;
    uint8_t opcode;
};
#define ST_VERBS_NO_MATCH {ST_NO_POSITION, ST_NO_POSITION, 0, ST_OPCODE_RECEIVE}
/* Finds the request of a completion and retires it; false when it cannot be told which it is
 * (`match` then says "not known"). `several`: threads post or poll at once, so that numbers and
 * completions may come in another order. */
bool st_verbs_retire(struct st_verbs_queue *queue, uint64_t wr_id, bool failed, bool several,
                     struct st_verbs_match *match);
/* May a request of this wr_id be the next one that completes? */
bool st_verbs_expects(struct st_verbs_queue *queue, uint64_t wr_id, bool several);

/* Which wr_ids were ever posted to a shared receive queue, of which completions come in any order:
 * a bit for each class of them. None of a class was: certain. */
#define ST_VERBS_SHARED_BITS 16
static inline uint64_t *st_verbs_shared_word(const struct st_verbs_srq *srq, uint64_t wr_id,
                                             uint64_t *bit)
{
    uint64_t hash = wr_id * 0x9E3779B97F4A7C15ull >> (64 - ST_VERBS_SHARED_BITS);
    *bit = 1ull << (hash & 63);
    return &srq->seen[hash >> 6];
}

static inline void st_verbs_shared_put(struct st_verbs_srq *srq, uint64_t wr_id)
{
    uint64_t bit, *word = st_verbs_shared_word(srq, wr_id, &bit);
    if (srq->seen && !(__atomic_load_n(word, __ATOMIC_RELAXED) & bit))
        __atomic_fetch_or(word, bit, __ATOMIC_RELEASE);
}

static inline bool st_verbs_shared_has(const struct st_verbs_srq *srq, uint64_t wr_id)
{
    uint64_t bit, *word = st_verbs_shared_word(srq, wr_id, &bit);
    return !srq->seen || __atomic_load_n(word, __ATOMIC_ACQUIRE) & bit;
}

/* --- batch.c: requests, read before the provider sees them ------------------------------------------ */

/* A request, however it was posted, in our own memory: the program may use its own anew as soon as
 * the request has completed, and another thread may learn of that before the call that posted it
 * returns. For receives, `wr_id`, `size`, `sges` and `address` alone. */
struct st_verbs_wr {
    const void *address; /* of the program's request: compared, never followed */
    uint64_t wr_id, raddr, size;
    const struct ibv_mw *mw; /* IBV_WR_BIND_MW: likewise */
    uint64_t length;         /* IBV_WR_BIND_MW */
    uint32_t access, pd;     /* likewise; `pd`: object id */
    uint32_t ah;             /* datagrams: object id */
    uint32_t rkey, imm;
    uint32_t number; /* of the receiver: datagrams, its queue pair; XRC, its shared queue */
    uint32_t sges;
    uint8_t opcode, flags; /* flags: enum ibv_send_flags */
};
/* Requests of one call. A thread has one of its own, as long as it takes one at a time. */
struct st_verbs_batch {
    uint32_t taken;
    uint32_t count, room;
    uint32_t missing; /* beyond them, for want of memory: the last ones of the call */
    struct st_verbs_wr *wrs;
};
/* An empty one; NULL: none is left. */
struct st_verbs_batch *st_verbs_batch_take(void);
void st_verbs_batch_give(struct st_verbs_batch *batch);
bool st_verbs_batch_grow(struct st_verbs_batch *batch);
/* Room for one more; NULL, and counted: there is none (any more). */
static inline struct st_verbs_wr *st_verbs_batch_add(struct st_verbs_batch *batch)
{
    if (ST_LIKELY(batch && !batch->missing &&
                  (batch->count < batch->room || st_verbs_batch_grow(batch))))
        return &batch->wrs[batch->count++];
    if (batch)
        batch->missing++;
    st_lost("verbs: requests of a batch without memory", 1);
    return NULL;
}
/* How many of `count` requests were accepted, when `refused` is the first one that was not. */
uint32_t st_verbs_batch_accepted(const struct st_verbs_batch *batch, uint32_t count,
                                 const void *refused);

/* --- send.c ---------------------------------------------------------------------------------------- */

/* What is equal for all requests of one call. */
struct st_verbs_post {
    struct st_verbs_qp *qp;
    uint64_t t_tsc;
    enum st_verbs_call call;
    uint8_t depth, flags; /* flags of the op record */
};
/* Records a request that was accepted. */
void st_verbs_posted(const struct st_verbs_post *post, const struct st_verbs_wr *wr,
                     uint32_t position);
/* ibv_wc_opcode of a request's completion, or ST_OPCODE_UNKNOWN. */
uint8_t st_verbs_wc_opcode(uint8_t wr_opcode);

/* --- window.c ---------------------------------------------------------------------------------------- */

/* A window is bound, as the request says; to nothing where its `length` is 0. */
void st_verbs_window_bound(struct st_verbs_context *context, const struct st_verbs_wr *wr);
void st_verbs_window_invalidated(struct st_verbs_context *context, uint32_t rkey);

#endif
