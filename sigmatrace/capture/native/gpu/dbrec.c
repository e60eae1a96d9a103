/* The copier's reading of doorbell records, the index that a queue pair last announced in memory.
 * Those of queue pairs whose doorbells others can overwrite before the sweeper sees them are read
 * after each doorbell there, and once a millisecond; one of them alone before it goes; and that of
 * each new queue pair once, as what it says until the program writes to it is of an earlier life. */
#include <string.h>

#include "repeater.h"

#define TICK_US 1000u
#define PAGES_AT_ONCE 16u /* who asks waits no longer than for these */

uint32_t st_changed, st_asked;
uint64_t st_records_rounds;

static uint64_t tick_tsc;
static uint32_t next; /* of a round that is under way; 0: none is */

/* --- reading ------------------------------------------------------------------------------------- */

/* From the first's record to the last's, on one page, as on the page. Whole words of eight bytes,
 * which the kernel does not read byte by byte. */
static bool copy(const struct st_gpu_qp *first, const struct st_gpu_qp *last, uint64_t page_at)
{
    uint64_t from = first->made.dbrec & ~7ull, to = (last->made.dbrec | 7) + 1;
    return st_source_start(first->record, page_at + (from & ST_PAGE_MASK), from, to - from);
}

static bool hold(struct st_gpu_qp *qp)
{
    __atomic_store_n(&qp->reading, 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&qp->state, __ATOMIC_SEQ_CST) == ST_ACTIVE;
}

/* Records on one page: a copy costs the same for one as for all. Where it fails, they may be of
 * several allocations: one by one. */
static void start(struct st_gpu_qp *const *qps, uint32_t count, uint64_t page_at)
{
    const struct st_gpu_qp *first = NULL, *last = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct st_gpu_qp *qp = qps[i];
        qp->record_at = UINT64_MAX;
        if (!hold(qp))
            continue;
        qp->record_at = page_at + (qp->made.dbrec & ST_PAGE_MASK);
        first = first && first->record_at <= qp->record_at ? first : qp;
        last = last && last->record_at >= qp->record_at ? last : qp;
    }
    bool done = first && copy(first, last, page_at);
    for (uint32_t i = 0; i < count; i++) {
        struct st_gpu_qp *qp = qps[i];
        if (!done && qp->record_at != UINT64_MAX && (first == last || !copy(qp, qp, page_at)))
            qp->record_at = UINT64_MAX;
        __atomic_store_n(&qp->reading, 0, __ATOMIC_SEQ_CST);
    }
}

/* Is it news, and true? */
static bool is_believed(struct st_gpu_qp *qp, uint16_t index)
{
    uint64_t forwarded = ST_LOAD(&qp->forwarded);
    uint16_t ahead = (uint16_t)(index - (uint16_t)forwarded);
    uint32_t most = qp->made.sq_slots ? qp->made.sq_slots : ST_RING_SLOTS_MAX;
    return qp->written && ahead && ahead <= most && st_ring_holds(qp, forwarded, ahead);
}

/* Tells the sweeper what the record says. False: there was no room. */
static bool tell(struct st_gpu_qp *qp)
{
    uint32_t value;
    memcpy(&value, st_source_data(qp->record, qp->record_at), sizeof(value));
    uint16_t index = (uint16_t)__builtin_bswap32(value);
    if (!qp->looked)
        qp->left_over = index;
    qp->written |= index != qp->left_over || ST_LOAD(&qp->unread);
    ST_STORE(&qp->looked, 1);
    return !is_believed(qp, index) ||
           st_queue_put(&st_to_sweeper, &(struct st_message){.qp = (uint32_t)(qp - st_gpu_qps),
                                                             .life = qp->life,
                                                             .kind = ST_RECORD,
                                                             .index16 = index});
}

/* Where there was no room, it is asked for once more. */
static void answer(struct st_gpu_qp *qp, bool told)
{
    if (ST_LOAD(&qp->asked) == ST_ANSWERING)
        ST_STORE(&qp->asked, told ? ST_READ : ST_ASKED);
    if (!told)
        ST_STORE(&st_asked, 1);
}

static void tell_all(struct st_gpu_qp *const *qps, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        answer(qps[i], qps[i]->record_at == UINT64_MAX || !st_source_wait(qps[i]->record) ||
                           tell(qps[i]));
    if (count)
        st_sources_clear();
}

/* --- which ----------------------------------------------------------------------------------------- */

static bool same_page(const struct st_gpu_qp *a, const struct st_gpu_qp *b)
{
    return a->record == b->record && (a->made.dbrec ^ b->made.dbrec) <= ST_PAGE_MASK;
}

/* Queue pairs that were made one after the other often have their records side by side. */
static void read_listed(struct st_gpu_qp *const *list, uint32_t listed)
{
    uint32_t told = 0, pages = 0;
    for (uint32_t i = 0, end; i < listed; i = end) {
        if (pages == ST_SOURCE_RECORD_PAGES) {
            tell_all(list + told, i - told);
            told = i;
            pages = 0;
        }
        for (end = i + 1; end < listed && same_page(list[i], list[end]);)
            end++;
        start(list + i, end - i,
              ST_SOURCE_SLOT_BYTES + (uint64_t)pages++ * (ST_PAGE_MASK + 1));
    }
    tell_all(list + told, listed - told);
}

static bool is_asked(struct st_gpu_qp *qp)
{
    return st_swap_state(&qp->asked, ST_ASKED, ST_ANSWERING);
}

static bool is_shared(struct st_gpu_qp *qp)
{
    struct st_register *at = ST_LOAD(&qp->at);
    return at && st_gpu_qp_shares(qp, at);
}

/* Those that are `wanted`, from this one on, up to so many pages; returns which is next; 0: none. */
static uint32_t read_some(bool (*wanted)(struct st_gpu_qp *), uint32_t from, uint32_t most)
{
    static struct st_gpu_qp *list[ST_GPU_QPS];
    uint32_t i, used = ST_LOAD(&st_gpu_qps_used), listed = 0, pages = 0;
    for (i = from; i < used; i++) {
        struct st_gpu_qp *qp = &st_gpu_qps[i];
        if (ST_LOAD(&qp->state) != ST_ACTIVE || !qp->record || !wanted(qp))
            continue;
        if ((!listed || !same_page(list[listed - 1], qp)) && pages++ == most)
            break;
        list[listed++] = qp;
    }
    read_listed(list, listed);
    return i < used ? i : 0;
}

bool st_records_due(void)
{
    return ST_LOAD(&st_asked) || next || ST_LOAD(&st_changed) ||
           st_now() - tick_tsc > TICK_US * st_tsc_per_us;
}

void st_records_look(void)
{
    if (ST_LOAD(&st_asked) && __atomic_exchange_n(&st_asked, 0, __ATOMIC_SEQ_CST)) {
        read_some(is_asked, 0, UINT32_MAX);
        return;
    }
    if (!next) {
        tick_tsc = st_now();
        __atomic_exchange_n(&st_changed, 0, __ATOMIC_SEQ_CST);
    }
    next = read_some(is_shared, next, PAGES_AT_ONCE);
    if (!next)
        ST_STORE(&st_records_rounds, st_records_rounds + 1);
}
