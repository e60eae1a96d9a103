/* What is outstanding on a queue, mode full: the position and the time of a completion's request.
 *
 * A queue completes in the order of its positions, and a successful completion of the send queue
 * is that of the next signaled request; so the one that is expected is nearly always the one that
 * comes. `wr_id` is compared all the same: where several threads post or poll, neighbours may have
 * been numbered in the other order, and the right one is then looked for. It is not there any more
 * when a thread was kept from recording what it had polled while others went once around the ring;
 * that completion is recorded without a position. */
#define _GNU_SOURCE
#include "verbs.h"

#include <sys/mman.h>

#define LEAST 64u
#define MOST (1u << 20)

/* Twice as many as the queue holds: some providers free an entry before its completion is polled. */
static uint32_t room_for(uint32_t size)
{
    uint32_t room = LEAST;
    while (room < 2 * size && room < MOST)
        room *= 2;
    return room;
}

/* Positions begin at 0 again: what a former user left there must not be taken for written down. In
 * memory that is still zero, that is the first one alone. */
static void forget(struct st_verbs_queue *queue, uint32_t former)
{
    uint32_t used = former <= queue->mask ? former : queue->mask + 1;
    queue->requests[0].position = ST_NO_POSITION;
    for (uint32_t i = 1; i < used; i++)
        queue->requests[i].position = ST_NO_POSITION;
}

void st_verbs_queue_begin(struct st_verbs_queue *queue, uint32_t size)
{
    uint32_t room = room_for(size < MOST ? size : MOST);
    uint32_t former = queue->posted;
    int saved = errno;
    /* A smaller one that a former queue pair used here stays mapped: a late reader may be in it. */
    if (st_verbs_full && (!queue->requests || queue->mask + 1 < room)) {
        void *p = mmap(NULL, room * sizeof(*queue->requests), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            static struct st_verbs_request none[LEAST];
            st_lost("verbs: no memory for outstanding requests", 1);
            p = none;
            room = LEAST;
        }
        queue->requests = p;
        queue->mask = room - 1;
    }
    if (queue->requests)
        forget(queue, former);
    queue->owner = 0;
    queue->posted = queue->cursor = 0;
    queue->failing = false;
    errno = saved;
}

void st_verbs_refused(struct st_verbs_queue *queue, uint32_t position, uint32_t count,
                      uint32_t accepted)
{
    uint32_t end = position + count;
    for (uint32_t i = accepted; queue->requests && i < count; i++)
        __atomic_store_n(&queue->requests[(position + i) & queue->mask].position, ST_NO_POSITION,
                         __ATOMIC_RELEASE);
    if (__atomic_compare_exchange_n(&queue->posted, &end, position + accepted, false,
                                    __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        return;
    st_lost("verbs: position of a refused request", count - accepted);
    for (uint32_t i = accepted; queue->requests && i < count; i++) { /* nobody waits for them */
        struct st_verbs_request *r = &queue->requests[(position + i) & queue->mask];
        r->done = true;
        __atomic_store_n(&r->position, position + i, __ATOMIC_RELEASE);
    }
}

static inline struct st_verbs_request *outstanding(struct st_verbs_queue *queue, uint32_t position)
{
    struct st_verbs_request *r = &queue->requests[position & queue->mask];
    bool written = __atomic_load_n(&r->position, __ATOMIC_ACQUIRE) == position;
    return written && !__atomic_load_n(&r->done, __ATOMIC_ACQUIRE) ? r : NULL;
}

/* The first position that can still be in the ring. */
static inline uint32_t oldest(const struct st_verbs_queue *queue, uint32_t posted)
{
    uint32_t outstanding = posted - queue->cursor;
    return outstanding > queue->mask ? posted - queue->mask - 1 : queue->cursor;
}

/* Makes it this completion's; false when another thread was faster. */
static inline bool take(struct st_verbs_request *r, bool several, struct st_verbs_match *match)
{
    *match = (struct st_verbs_match){r->position, r->position, r->t_tsc, r->opcode};
    if (ST_UNLIKELY(several))
        return !__atomic_exchange_n(&r->done, true, __ATOMIC_ACQ_REL);
    r->done = true;
    return true;
}

/* The first outstanding one of this wr_id. */
static __attribute__((noinline, cold)) struct st_verbs_request *
search(struct st_verbs_queue *queue, uint64_t wr_id, bool failed)
{
    uint32_t posted = __atomic_load_n(&queue->posted, __ATOMIC_ACQUIRE);
    for (uint32_t p = oldest(queue, posted); p != posted; p++) {
        struct st_verbs_request *r = outstanding(queue, p);
        if (r && r->wr_id == wr_id && (failed || r->signaled))
            return r;
    }
    return NULL;
}

/* The unsignaled ones before it retire with it. */
static uint32_t retire_before(struct st_verbs_queue *queue, uint32_t position)
{
    while (position != queue->cursor) {
        struct st_verbs_request *r = outstanding(queue, position - 1);
        if (!r || r->signaled)
            break;
        r->done = true;
        position--;
    }
    return position;
}

/* Of a request that failed, nobody says whether it was signaled: it is one of those up to the
 * next signaled one. NULL when several of them have this wr_id. */
static struct st_verbs_request *failed_one(struct st_verbs_queue *queue, uint64_t wr_id)
{
    uint32_t posted = __atomic_load_n(&queue->posted, __ATOMIC_ACQUIRE);
    struct st_verbs_request *one = NULL;
    for (uint32_t p = oldest(queue, posted); p != posted; p++) {
        struct st_verbs_request *r = outstanding(queue, p);
        if (!r)
            continue;
        if (r->wr_id == wr_id) {
            if (queue->failing)
                return r;
            if (one)
                return NULL;
            one = r;
        }
        if (r->signaled || queue->failing)
            break;
    }
    return one;
}

static __attribute__((noinline, cold)) bool retire_failed(struct st_verbs_queue *queue,
                                                          uint64_t wr_id, bool several,
                                                          struct st_verbs_match *match)
{
    struct st_verbs_request *r = failed_one(queue, wr_id);
    if (!r && several)
        r = search(queue, wr_id, true);
    if (!r || !take(r, several, match))
        return false;
    match->first = several ? retire_before(queue, match->position) : queue->cursor;
    if (!several) {
        queue->cursor = match->position + 1;
        queue->failing = true;
    }
    return true;
}

/* Not the expected one. One thread alone sees completions in order: what is missing before this
 * one was never seen. Of several, each may be late with its own. */
static __attribute__((noinline, cold)) bool retire_other(struct st_verbs_queue *queue,
                                                         uint64_t wr_id, bool several,
                                                         struct st_verbs_match *match)
{
    struct st_verbs_request *r;
    do {
        r = search(queue, wr_id, false);
        if (!r)
            return false;
    } while (!take(r, several, match));
    match->first = several ? retire_before(queue, match->position) : queue->cursor;
    if (!several)
        __atomic_store_n(&queue->cursor, match->position + 1, __ATOMIC_RELAXED);
    return true;
}

static bool retire(struct st_verbs_queue *queue, uint64_t wr_id, bool several,
                   struct st_verbs_match *match)
{
    uint32_t posted = __atomic_load_n(&queue->posted, __ATOMIC_ACQUIRE), first = queue->cursor;
    bool gap = false; /* a position that another thread has taken, and not yet written down */
    queue->failing = false;
    for (uint32_t p = oldest(queue, posted); p != posted; p++) {
        struct st_verbs_request *r = &queue->requests[p & queue->mask];
        if (ST_UNLIKELY(__atomic_load_n(&r->position, __ATOMIC_ACQUIRE) != p)) {
            gap = true;
        } else if (ST_UNLIKELY(__atomic_load_n(&r->done, __ATOMIC_ACQUIRE))) {
            if (!gap && first == p) /* it came out of order before */
                first = p + 1;
        } else if (r->signaled) {
            if (ST_UNLIKELY(gap || r->wr_id != wr_id) || !take(r, several, match))
                break;
            match->first = first;
            __atomic_store_n(&queue->cursor, p + 1, __ATOMIC_RELAXED);
            return true;
        }
    }
    return retire_other(queue, wr_id, several, match);
}

bool st_verbs_retire(struct st_verbs_queue *queue, uint64_t wr_id, bool failed, bool several,
                     struct st_verbs_match *match)
{
    bool known = ST_UNLIKELY(failed) ? retire_failed(queue, wr_id, several, match)
                                     : retire(queue, wr_id, several, match);
    if (ST_UNLIKELY(!known)) {
        *match = (struct st_verbs_match)ST_VERBS_NO_MATCH;
        st_lost("verbs: completion whose request is not known", 1);
    }
    return known;
}

bool st_verbs_expects(struct st_verbs_queue *queue, uint64_t wr_id, bool failed)
{
    return failed ? failed_one(queue, wr_id) != NULL : search(queue, wr_id, false) != NULL;
}
