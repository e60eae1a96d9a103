/* The copier's reading of completions, where the NIC writes them: while something is outstanding,
 * at most once a millisecond, and a bounded number of elements. Layout of a completion queue
 * element (CQE): mlx5 PRM; rdma-core providers/mlx5/mlx5dv.h, struct mlx5_cqe64. */
#include <string.h>

#include "repeater.h"

#define TICK_US 1000u
#define LAST_MS 50u
#define PARTS 64u        /* completion queues read at a time, */
#define ELEMENTS_MOST 512u /* and elements of one of them */
#define GAP_BYTES 256u   /* between two that are read in one copy, */
#define RANGE_BYTES 4096u /* which is at most so large */
#define ROUNDS 64u       /* of the last look at a queue */
#define AGAIN 4u         /* readings of an element that changes */
#define EARLY 3u         /* looks at one that is ahead of what was forwarded */
#define RUNGS 128u
#define MEMOS 4096u
#define CQE_BYTES 64u

enum { AT_VENDOR = 54, AT_SYNDROME = 55, AT_OPCODE = 56, AT_QPN = 57, AT_COUNTER = 60, AT_OWN = 63 };
enum { REQUESTER = 0, REQUESTER_ERROR = 13, INVALID = 15 };
enum { SEND_QUEUE = 1, OPCODE_UNKNOWN = 127 };

uint32_t st_cqes_asked, st_cqes_listed;
uint64_t st_cqes_looks;

/* Of a queue pair: how far it has come. */
struct progress {
    uint32_t life;
    bool listed;
    uint64_t next;     /* all before this index have completed */
    uint64_t known;    /* before this index it is known which requests ask for a completion, */
    uint64_t signaled; /* the last of which ends before this one */
    uint64_t rung;     /* doorbells */
    struct {
        uint64_t end, t_tsc;
    } rungs[RUNGS];
};
static struct progress progresses[ST_GPU_QPS];
static struct st_gpu_qp *listed[ST_GPU_QPS]; /* something may be outstanding */
static uint32_t turn, asked, round_number;
static uint64_t tick_tsc;

/* What is read of one completion queue. */
static struct part {
    struct st_gpu_cq *cq;
    uint64_t from, at; /* at: in the source's buffer */
    uint32_t count;
    bool done;
} parts[PARTS];
static uint32_t part_count;

/* --- queue pairs ------------------------------------------------------------------------------- */

static struct progress *progress_of(const struct st_gpu_qp *qp)
{
    struct progress *p = &progresses[qp - st_gpu_qps];
    if (p->life != qp->life) {
        bool is_listed = p->listed;
        memset(p, 0, sizeof(*p));
        p->listed = is_listed;
        p->life = qp->life;
    }
    return p;
}

void st_cqes_rung(struct st_gpu_qp *qp, uint64_t index, uint64_t t_tsc)
{
    if (!qp->made.cq || !qp->ring)
        return;
    struct progress *p = progress_of(qp);
    p->rungs[p->rung % RUNGS].end = index;
    p->rungs[p->rung++ % RUNGS].t_tsc = t_tsc;
    if (!p->listed) {
        p->listed = true;
        listed[st_cqes_listed] = qp;
        ST_STORE(&st_cqes_listed, st_cqes_listed + 1);
    }
}

void st_cqes_expect(struct st_gpu_qp *qp, uint64_t index, uint64_t signaled)
{
    if (!qp->made.cq)
        return;
    struct progress *p = progress_of(qp);
    p->known = index;
    if (signaled)
        p->signaled = signaled;
}

/* The doorbell that announced an index; 0: too many came since. */
static uint64_t posted_tsc(const struct progress *p, uint64_t index)
{
    uint64_t t_tsc = 0;
    for (uint32_t i = 1; i <= RUNGS && i <= p->rung; i++) {
        uint64_t at = (p->rung - i) % RUNGS;
        if (p->rungs[at].end <= index)
            return t_tsc;
        t_tsc = p->rungs[at].t_tsc;
    }
    return p->rung <= RUNGS ? t_tsc : 0;
}

static bool is_alive(const struct st_gpu_qp *qp)
{
    uint32_t state = ST_LOAD(&qp->state);
    return state == ST_ACTIVE || state == ST_ENDING;
}

static bool is_open(const struct st_gpu_qp *qp)
{
    const struct st_gpu_cq *cq = is_alive(qp) ? qp->made.cq : NULL;
    if (!cq || cq->failed || ST_LOAD(&cq->state) != ST_ACTIVE)
        return false;
    const struct progress *p = progress_of(qp);
    return qp->taken > p->known || p->signaled > p->next;
}

static bool is_named(const struct st_gpu_qp *qp, const struct st_gpu_cq *cq, uint32_t qpn)
{
    return is_alive(qp) && qp->made.cq == cq && qp->made.qpn == qpn;
}

static struct st_gpu_qp *find(const struct st_gpu_cq *cq, uint32_t qpn)
{
    static uint32_t memos[MEMOS];
    uint32_t *memo = &memos[(qpn + (uint32_t)(cq - st_gpu_cqs) * 61u) % MEMOS];
    if (is_named(&st_gpu_qps[*memo], cq, qpn))
        return &st_gpu_qps[*memo];
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used); i++)
        if (is_named(&st_gpu_qps[i], cq, qpn)) {
            *memo = i;
            return &st_gpu_qps[i];
        }
    return NULL;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Of a ring, up to its end, and about as much as there was lately. */
static void add_part(struct st_gpu_cq *cq)
{
    struct part *part = &parts[part_count++];
    uint64_t entries = 1ull << cq->made.log_size, first = 0, count = 1;
    if (!cq->made.collapsed) {
        first = cq->taken & (entries - 1);
        count = cq->window < entries - first ? cq->window : entries - first;
    }
    /* The longer form has 64 other bytes in front. */
    uint64_t from = cq->made.at + (first + 1) * cq->made.stride - CQE_BYTES;
    *part = (struct part){.cq = cq, .from = from, .count = (uint32_t)count};
    __atomic_store_n(&cq->reading, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&cq->state, __ATOMIC_SEQ_CST) != ST_ACTIVE || !ST_LOAD(&cq->source))
        part->count = 0;
}

static uint64_t size_of(const struct part *part)
{
    return (uint64_t)(part->count - 1) * part->cq->made.stride + CQE_BYTES;
}

/* How many parts from this one on lie close together: they are copied as one. */
static uint32_t range_from(uint32_t first, uint64_t *size)
{
    uint64_t end = parts[first].from + size_of(&parts[first]);
    uint32_t next = first + 1;
    for (; next < part_count && parts[next].count; next++) {
        const struct part *part = &parts[next];
        uint64_t its_end = part->from + size_of(part);
        if (part->cq->source != parts[first].cq->source || part->from < end ||
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
        }
    }
}

static const uint8_t *element(const struct part *part, uint32_t number)
{
    return st_source_data(part->cq->source, part->at + (uint64_t)number * part->cq->made.stride);
}

/* Into another place of the buffer; NULL: it cannot be read. */
static const uint8_t *read_again(const struct part *part, uint32_t number)
{
    struct st_source *source = part->cq->source;
    uint64_t at = st_source_room(source, CQE_BYTES);
    bool done = at != UINT64_MAX &&
                st_source_start(source, at, part->from + (uint64_t)number * part->cq->made.stride,
                                CQE_BYTES) &&
                st_source_wait(source);
    return done ? st_source_data(source, at) : NULL;
}

/* --- elements --------------------------------------------------------------------------------- */

static uint64_t word_of(const uint8_t *cqe)
{
    uint64_t word;
    memcpy(&word, cqe + AT_OPCODE, sizeof(word));
    return word;
}

/* enum ibv_wc_opcode of one of mlx5 */
static uint8_t wc_opcode(uint8_t opcode)
{
    static const uint8_t both[][2] = {{0x01, 0}, {0x08, 1}, {0x09, 1}, {0x0a, 0}, {0x0b, 0},
                                      {0x0e, 7}, {0x10, 2}, {0x11, 3}, {0x12, 4}, {0x14, 3},
                                      {0x15, 4}, {0x1b, 6}};
    for (uint32_t i = 0; i < sizeof(both) / sizeof(both[0]); i++)
        if (both[i][0] == opcode)
            return both[i][1];
    return OPCODE_UNKNOWN;
}

/* enum ibv_wc_status of a syndrome */
static uint8_t wc_status(uint8_t syndrome)
{
    static const uint8_t both[][2] = {{0x01, 1},  {0x02, 2},  {0x04, 4},  {0x05, 5},
                                      {0x06, 6},  {0x10, 7},  {0x11, 8},  {0x12, 9},
                                      {0x13, 10}, {0x14, 11}, {0x15, 12}, {0x16, 13},
                                      {0x22, 16}};
    for (uint32_t i = 0; i < sizeof(both) / sizeof(both[0]); i++)
        if (both[i][0] == syndrome)
            return both[i][1];
    return 21; /* IBV_WC_GENERAL_ERR */
}

static void record(const struct st_gpu_qp *qp, struct progress *p, const uint8_t *cqe,
                   uint64_t index, uint64_t t_tsc)
{
    bool failed = cqe[AT_OWN] >> 4 == REQUESTER_ERROR;
    st_cqe(&(struct st_cqe_record){
        .t_tsc = t_tsc,
        .posted_tsc = posted_tsc(p, index),
        .imm = failed ? cqe[AT_SYNDROME] | (uint32_t)cqe[AT_VENDOR] << 8 : 0,
        .object = qp->stream.object,
        .position = (uint32_t)index,
        .first = (uint32_t)p->next,
        .opcode = wc_opcode(cqe[AT_OPCODE]),
        .status = failed ? wc_status(cqe[AT_SYNDROME]) : 0,
        .flags = ST_CQE_AT_MOST,
        .queue = SEND_QUEUE});
    p->next = index + 1;
}

/* OLD: nothing new in it. WAITS: to be read again at the next look. STRAY: fits nothing. */
enum verdict { OLD, NEW, WAITS, STRAY };

static enum verdict judge(const struct part *part, uint32_t number, const uint8_t *cqe,
                          uint64_t t_tsc)
{
    uint32_t qpn = (uint32_t)cqe[AT_QPN] << 16 | (uint32_t)cqe[AT_QPN + 1] << 8 | cqe[AT_QPN + 2];
    uint16_t counter = (uint16_t)(cqe[AT_COUNTER] << 8 | cqe[AT_COUNTER + 1]);
    uint8_t kind = cqe[AT_OWN] >> 4;
    if (kind != REQUESTER && kind != REQUESTER_ERROR)
        return OLD; /* of a receive, or none */
    struct st_gpu_qp *qp = find(part->cq, qpn);
    if (!qp)
        return STRAY;
    struct progress *p = progress_of(qp);
    uint16_t ahead = (uint16_t)(counter - (uint16_t)p->next);
    if (ahead >= ST_RING_SLOTS_MAX)
        return OLD;
    if (p->next + ahead >= ST_LOAD(&qp->forwarded))
        return WAITS;
    if (kind == REQUESTER_ERROR) { /* its bytes are not written at once */
        const uint8_t *again = read_again(part, number);
        if (!again || memcmp(again, cqe, CQE_BYTES))
            return WAITS;
    }
    record(qp, p, cqe, p->next + ahead, t_tsc);
    return NEW;
}

/* False: to be read again. What stays ahead of what was forwarded belongs to nobody. */
static bool is_settled(struct st_gpu_cq *cq, enum verdict verdict)
{
    if (verdict == WAITS && ++cq->early < EARLY)
        return false;
    cq->early = 0;
    return true;
}

/* One that changes is read as zeros. True: look again. */
static bool take_collapsed(const struct part *part, uint64_t t_tsc)
{
    struct st_gpu_cq *cq = part->cq;
    const uint8_t *cqe = element(part, 0);
    for (uint32_t i = 0; cqe && !word_of(cqe) && i < AGAIN; i++)
        cqe = read_again(part, 0);
    t_tsc = cqe == element(part, 0) ? t_tsc : st_now();
    if (!cqe || !word_of(cqe) || word_of(cqe) == cq->word)
        return false;
    enum verdict verdict = judge(part, 0, cqe, t_tsc);
    if (!is_settled(cq, verdict))
        return true;
    cq->word = word_of(cqe);
    return verdict == NEW;
}

static bool take_ring(const struct part *part, uint64_t t_tsc)
{
    struct st_gpu_cq *cq = part->cq;
    uint64_t before = cq->taken;
    for (uint32_t i = 0; i < part->count; i++) {
        const uint8_t *cqe = element(part, i);
        uint8_t own = cqe[AT_OWN];
        if (own >> 4 == INVALID || (own & 1) != (cq->taken >> cq->made.log_size & 1) ||
            !word_of(cqe))
            break;
        enum verdict verdict = judge(part, i, cqe, t_tsc);
        if (!is_settled(cq, verdict))
            return true;
        cq->taken++;
        if (verdict == STRAY || verdict == WAITS)
            st_lost("gpu: completion that fits no request", 1);
    }
    uint64_t count = cq->taken - before;
    if (count == cq->window && cq->window < ELEMENTS_MOST)
        cq->window *= 2;
    else if (count < cq->window / 4 && cq->window > ST_CQES_LEAST)
        cq->window /= 2;
    return count != 0;
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
        if (parts[i].count)
            any |= cq->made.collapsed ? take_collapsed(&parts[i], t_tsc)
                                      : take_ring(&parts[i], t_tsc);
        __atomic_store_n(&cq->reading, 0, __ATOMIC_SEQ_CST);
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

/* Queue pairs of which all has completed are no longer listed. */
static void drop_closed(void)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < st_cqes_listed; i++) {
        if (is_open(listed[i]))
            listed[kept++] = listed[i];
        else
            progresses[listed[i] - st_gpu_qps].listed = false;
    }
    ST_STORE(&st_cqes_listed, kept);
}

/* The completion queues of those listed, in turn. */
static void add_listed(void)
{
    uint32_t i = 0, first = turn;
    for (; i < st_cqes_listed && part_count < PARTS; i++) {
        struct st_gpu_cq *cq = listed[(first + i) % st_cqes_listed]->made.cq;
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
    drop_closed();
    add_listed();
    read_parts();
    ST_STORE(&st_cqes_looks, st_cqes_looks + 1);
}

void st_cqes_look_last(struct st_gpu_qp *qp)
{
    for (uint32_t i = 0; i < ROUNDS && is_open(qp); i++) {
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
