/* The copier's reading of completion queues: while something is outstanding, at most once a
 * millisecond, and a bounded number of queues and elements. */
#include <string.h>

#include "cqe.h"

#define TICK_US 1000u
#define LAST_MS 50u
#define PARTS 64u          /* completion queues read at a time, */
#define ELEMENTS_MOST 512u /* and elements of one of them */
#define GAP_BYTES 256u     /* between two that are read in one copy, */
#define RANGE_BYTES 4096u  /* which is at most so large */
#define ROUNDS 64u         /* of the last look at a queue */
#define AGAIN 4u           /* readings of an element that changes */
#define EARLY 3u           /* looks at one that is ahead of what was forwarded */

uint32_t st_cqes_asked;
uint64_t st_cqes_looks;

static uint32_t turn, asked, round_number;
static uint64_t tick_tsc;

/* What is read of one completion queue. */
static struct part {
    struct st_gpu_cq *cq;
    uint64_t from, at; /* at: in the source's buffer */
    uint32_t count;
    bool done;
    bool asked; /* before it is read: who asks meanwhile asks for another reading */
} parts[PARTS];
static uint32_t part_count;

/* --- reading ---------------------------------------------------------------------------------- */

/* The longer form has 64 other bytes in front. */
static uint64_t place_of(const struct st_gpu_cq *cq, uint64_t slot)
{
    return cq->made.at + (slot + 1) * cq->made.stride - ST_CQE_BYTES;
}

static uint64_t size_of(const struct st_gpu_cq *cq, uint64_t count)
{
    return (count - 1) * cq->made.stride + ST_CQE_BYTES;
}

/* Of a ring, up to its end, and about as much as there was lately. */
static void add_part(struct st_gpu_cq *cq)
{
    struct part *part = &parts[part_count++];
    uint64_t entries = 1ull << cq->made.log_size, first = 0, count = 1;
    if (!cq->made.collapsed) {
        first = cq->taken & (entries - 1);
        count = cq->window < entries - first ? cq->window : entries - first;
    }
    *part = (struct part){.cq = cq, .from = place_of(cq, first), .count = (uint32_t)count,
                          .asked = ST_LOAD(&cq->asked)};
    __atomic_store_n(&cq->reading, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&cq->state, __ATOMIC_SEQ_CST) != ST_ACTIVE || !ST_LOAD(&cq->source))
        part->count = 0;
}

/* How many parts from this one on lie close together: they are copied as one. */
static uint32_t range_from(uint32_t first, uint64_t *size)
{
    uint64_t end = parts[first].from + size_of(parts[first].cq, parts[first].count);
    uint32_t next = first + 1;
    for (; next < part_count && parts[next].count; next++) {
        const struct part *part = &parts[next];
        uint64_t its_end = part->from + size_of(part->cq, part->count);
        if (part->cq->source != parts[first].cq->source ||
            part->cq->made.umem != parts[first].cq->made.umem || part->from < end ||
            part->from - end > GAP_BYTES || its_end - parts[first].from > RANGE_BYTES)
            break;
        end = its_end;
    }
    *size = end - parts[first].from;
    return next;
}

static void start(void)
{
    for (uint32_t i = 0, next; i < part_count; i = next) {
        next = i + 1;
        if (!parts[i].count)
            continue;
        uint64_t size, from = parts[i].from;
        struct st_source *source = parts[i].cq->source;
        next = range_from(i, &size);
        uint64_t at = st_source_room(source, size);
        bool done = at != UINT64_MAX && st_source_start(source, at, from, size);
        for (uint32_t k = i; k < next; k++) {
            parts[k].at = at + (parts[k].from - from);
            parts[k].done = done;
            if (at == UINT64_MAX)
                parts[k].count = 0; /* no room: at the next look */
        }
    }
}

/* Now, into another place of the buffer; NULL: it cannot be read. */
static const uint8_t *read_now(const struct st_gpu_cq *cq, uint64_t slot, uint64_t count)
{
    uint64_t size = size_of(cq, count), at = st_source_room(cq->source, size);
    bool done = at != UINT64_MAX &&
                st_source_start(cq->source, at, place_of(cq, slot), size) &&
                st_source_wait(cq->source);
    return done ? st_source_data(cq->source, at) : NULL;
}

/* --- elements --------------------------------------------------------------------------------- */

static uint64_t word_of(const uint8_t *cqe)
{
    uint64_t word;
    memcpy(&word, cqe + ST_CQE_WORD, sizeof(word));
    return word;
}

/* An error's bytes are not written at once: two readings must agree. */
static enum st_verdict take(struct st_gpu_cq *cq, uint64_t slot, const uint8_t *cqe, uint64_t t_tsc)
{
    struct st_completed completed;
    enum st_verdict verdict = st_cqe_judge(cq, cqe, &completed);
    if (verdict != ST_CQE_NEW)
        return verdict;
    if (cqe[ST_CQE_OWN] >> 4 == ST_CQE_REQUESTER_ERROR) {
        const uint8_t *again = read_now(cq, slot, 1);
        if (!again || memcmp(again, cqe, ST_CQE_BYTES))
            return ST_CQE_WAITS;
    }
    st_cqe_record(&completed, cqe, t_tsc);
    return verdict;
}

/* False: to be read again. What stays ahead of what was forwarded belongs to nobody. */
static bool is_settled(struct st_gpu_cq *cq, enum st_verdict verdict)
{
    if (verdict == ST_CQE_WAITS && ++cq->early < EARLY)
        return false;
    cq->early = 0;
    return true;
}

/* One that changes is read as zeros. True: look again. */
static bool take_collapsed(struct st_gpu_cq *cq, const uint8_t *cqe, uint64_t t_tsc)
{
    for (uint32_t i = 0; cqe && !word_of(cqe) && i < AGAIN; i++) {
        cqe = read_now(cq, 0, 1);
        t_tsc = st_now();
    }
    if (!cqe || !word_of(cqe) || word_of(cqe) == cq->word)
        return false;
    enum st_verdict verdict = take(cq, 0, cqe, t_tsc);
    if (!is_settled(cq, verdict))
        return true;
    cq->word = word_of(cqe);
    return verdict == ST_CQE_NEW;
}

/* --- rings ------------------------------------------------------------------------------------ */

/* Written in a lap with this owner bit? */
static bool is_of_lap(const uint8_t *cqe, uint64_t lap)
{
    return word_of(cqe) && cqe[ST_CQE_OWN] >> 4 != ST_CQE_INVALID &&
           (cqe[ST_CQE_OWN] & 1) == (lap & 1);
}

/* The element that was taken last is there no more: the ring was written all around since. */
static bool is_lapped(const struct st_gpu_cq *cq)
{
    uint64_t entries = 1ull << cq->made.log_size;
    const uint8_t *last = read_now(cq, (cq->taken - 1) & (entries - 1), 1);
    if (!last || !word_of(last))
        return false;
    return cq->taken ? word_of(last) != cq->word : is_of_lap(last, 0);
}

/* Where the lap ends that the first slot belongs to; 0: this is not known. */
static uint64_t end_of_lap(const struct st_gpu_cq *cq, uint64_t *lap)
{
    uint64_t low = 0, high = 1ull << cq->made.log_size;
    const uint8_t *cqe = read_now(cq, 0, 1);
    if (!cqe || (!is_of_lap(cqe, 0) && !is_of_lap(cqe, 1)))
        return 0;
    *lap = cqe[ST_CQE_OWN] & 1;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        cqe = read_now(cq, middle, 1);
        if (!cqe || !word_of(cqe))
            return 0;
        *(is_of_lap(cqe, *lap) ? &low : &high) = middle;
    }
    return high;
}

/* Goes on behind the newest element. It, and of other queue pairs the newest before it, say all that
 * was overwritten: older ones are not looked at. (Their index could be one of long ago.) */
static void catch_up(struct st_gpu_cq *cq)
{
    static struct st_gpu_qp *seen[ELEMENTS_MOST];
    uint64_t lap, end = end_of_lap(cq, &lap), entries = 1ull << cq->made.log_size;
    uint64_t count = end < ELEMENTS_MOST ? end : ELEMENTS_MOST;
    const uint8_t *first = end ? read_now(cq, end - count, count) : NULL;
    uint64_t t_tsc = st_now();
    uint32_t known = 0;
    if (!first || !is_of_lap(first + (count - 1) * cq->made.stride, lap))
        return; /* at the next look */
    for (uint64_t i = count; i-- > 0;) {
        const uint8_t *cqe = first + i * cq->made.stride;
        struct st_completed completed = {0};
        uint32_t k = 0;
        if (!is_of_lap(cqe, lap))
            break; /* a newer lap */
        st_cqe_judge(cq, cqe, &completed);
        while (k < known && seen[k] != completed.qp)
            k++;
        if (!completed.qp || k < known)
            continue;
        seen[known++] = completed.qp;
        take(cq, end - count + i, cqe, t_tsc);
    }
    uint64_t next = ((cq->taken >> cq->made.log_size) + 1) * entries;
    if ((next >> cq->made.log_size & 1) != lap)
        next += entries;
    cq->taken = next + end;
    cq->word = word_of(first + (count - 1) * cq->made.stride);
}

/* True: look again. */
static bool take_ring(const struct part *part, uint64_t t_tsc)
{
    struct st_gpu_cq *cq = part->cq;
    uint64_t before = cq->taken, entries = 1ull << cq->made.log_size;
    for (uint32_t i = 0; i < part->count; i++) {
        const uint8_t *cqe =
            st_source_data(cq->source, part->at + (uint64_t)i * cq->made.stride);
        if (!is_of_lap(cqe, cq->taken >> cq->made.log_size))
            break;
        enum st_verdict verdict = take(cq, cq->taken & (entries - 1), cqe, t_tsc);
        if (!is_settled(cq, verdict))
            return true;
        cq->taken++;
        cq->word = word_of(cqe);
        if (verdict == ST_CQE_STRAY || verdict == ST_CQE_WAITS)
            st_lost("gpu: completion that fits no request", 1);
    }
    uint64_t count = cq->taken - before;
    if (!count && is_lapped(cq))
        catch_up(cq);
    if (count == cq->window && cq->window < ELEMENTS_MOST)
        cq->window *= 2;
    else if (count < cq->window / 4 && cq->window > ST_CQES_LEAST)
        cq->window /= 2;
    return cq->taken != before;
}

/* Reads the parts. True: look again. */
static bool read_parts(void)
{
    bool any = false;
    start();
    for (uint32_t i = 0; i < part_count; i++)
        if (parts[i].count && !(parts[i].done && st_source_wait(parts[i].cq->source))) {
            parts[i].count = 0;
            parts[i].cq->failed = true;
            st_lost("gpu: completion queue that can no longer be read", 1);
        }
    uint64_t t_tsc = st_now();
    for (uint32_t i = 0; i < part_count; i++) {
        struct st_gpu_cq *cq = parts[i].cq;
        if (parts[i].count && cq->made.collapsed)
            any |= take_collapsed(cq, st_source_data(cq->source, parts[i].at), t_tsc);
        else if (parts[i].count)
            any |= take_ring(&parts[i], t_tsc);
        __atomic_store_n(&cq->reading, 0, __ATOMIC_SEQ_CST);
        if (parts[i].asked)
            ST_STORE(&cq->asked, 0);
    }
    if (part_count)
        st_sources_clear();
    part_count = 0;
    return any;
}

/* --- looks ------------------------------------------------------------------------------------- */

static void add_asked(void)
{
    uint32_t now = ST_LOAD(&st_cqes_asked);
    if (now == asked)
        return;
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_cqs_used); i++)
        if (ST_LOAD(&st_gpu_cqs[i].asked)) {
            if (part_count == PARTS)
                return; /* the others at the next look */
            st_gpu_cqs[i].round = round_number;
            add_part(&st_gpu_cqs[i]);
        }
    asked = now;
}

/* The completion queues of those listed, in turn. */
static void add_listed(void)
{
    uint32_t i = 0, first = turn;
    for (; i < st_cqes_listed && part_count < PARTS; i++) {
        struct st_gpu_cq *cq = st_cqes_list[(first + i) % st_cqes_listed]->made.cq;
        if (cq->round == round_number)
            continue;
        cq->round = round_number;
        add_part(cq);
    }
    turn = st_cqes_listed ? (first + i) % st_cqes_listed : 0;
}

bool st_cqes_due(void)
{
    return ST_LOAD(&st_cqes_asked) != asked ||
           (st_cqes_listed && st_now() - tick_tsc > TICK_US * st_tsc_per_us);
}

void st_cqes_look(void)
{
    tick_tsc = st_now();
    round_number++;
    add_asked();
    st_cqes_drop_closed();
    add_listed();
    read_parts();
    ST_STORE(&st_cqes_looks, st_cqes_looks + 1);
}

void st_cqes_look_last(struct st_gpu_qp *qp)
{
    if (ST_LOAD(&qp->state) >= ST_ABANDONED && qp->made.cq)
        st_lost("gpu: queue pair whose last completions were not seen", 1);
    /* Once in any case: a request that asks for no completion has one when it fails. */
    for (uint32_t i = 0; i < ROUNDS && (!i || st_cqes_open(qp)); i++) {
        if (!qp->made.cq || !qp->taken || qp->made.cq->failed)
            return;
        add_part(qp->made.cq);
        if (!read_parts())
            return;
    }
}

void st_cqes_finish(void)
{
    uint64_t wanted = ST_LOAD(&st_cqes_looks) + 2; /* one may be on its way already */
    uint64_t until = st_now() + LAST_MS * 1000 * st_tsc_per_us;
    while (ST_LOAD(&st_cqes_listed) && ST_LOAD(&st_cqes_looks) < wanted && st_now() < until)
        st_nap(20);
}
