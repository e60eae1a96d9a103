/* Completions of a queue pair: which request an element of a completion queue (CQE) tells of, and how
 * far the queue pair has come. Layout: mlx5 PRM; rdma-core providers/mlx5/mlx5dv.h, struct mlx5_cqe64. */
#include <string.h>

#include "cqe.h"

#define RUNGS 512u
#define MEMOS 4096u

enum { AT_VENDOR = 54, AT_SYNDROME = 55, AT_OPCODE = 56, AT_QPN = 57, AT_COUNTER = 60 };
enum { REQUESTER = 0, SEND_QUEUE = 1, OPCODE_UNKNOWN = 127 };

uint32_t st_cqes_listed;
struct st_gpu_qp *st_cqes_list[ST_GPU_QPS];

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
/* --- queue pairs ------------------------------------------------------------------------------- */

static struct progress *progress_of(const struct st_gpu_qp *qp)
{
    struct progress *p = &progresses[qp - st_gpu_qps];
    if (p->life != qp->life) {
        bool is_listed = p->listed;
        memset(p, 0, sizeof(*p));
        p->listed = is_listed;
        p->life = qp->life;
        p->next = p->known = qp->made.first;
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
        st_cqes_list[st_cqes_listed] = qp;
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

/* The doorbell that announced an index: the first one that ends behind it. 0: not known, or too many
 * came since. */
static uint64_t posted_tsc(const struct progress *p, uint64_t index)
{
    uint64_t oldest = p->rung > RUNGS ? p->rung - RUNGS : 0, low = oldest, high = p->rung;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (p->rungs[middle % RUNGS].end > index)
            high = middle;
        else
            low = middle + 1;
    }
    return low == p->rung || (low == oldest && oldest) ? 0 : p->rungs[low % RUNGS].t_tsc;
}

static bool is_alive(const struct st_gpu_qp *qp)
{
    uint32_t state = ST_LOAD(&qp->state);
    return state == ST_ACTIVE || state == ST_ENDING;
}

bool st_cqes_open(const struct st_gpu_qp *qp)
{
    const struct st_gpu_cq *cq = is_alive(qp) ? qp->made.cq : NULL;
    if (!cq || cq->failed || ST_LOAD(&cq->state) != ST_ACTIVE)
        return false;
    const struct progress *p = progress_of(qp);
    return qp->taken > p->known || p->signaled > p->next;
}

/* Queue pairs of which all has completed are no longer listed. */
void st_cqes_drop_closed(void)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < st_cqes_listed; i++) {
        struct st_gpu_qp *qp = st_cqes_list[i];
        if (st_cqes_open(qp))
            st_cqes_list[kept++] = qp;
        else
            progresses[qp - st_gpu_qps].listed = false;
    }
    ST_STORE(&st_cqes_listed, kept);
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

/* --- elements --------------------------------------------------------------------------------- */

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

enum st_verdict st_cqe_judge(const struct st_gpu_cq *cq, const uint8_t *cqe,
                             struct st_completed *completed)
{
    uint32_t qpn = (uint32_t)cqe[AT_QPN] << 16 | (uint32_t)cqe[AT_QPN + 1] << 8 | cqe[AT_QPN + 2];
    uint16_t counter = (uint16_t)(cqe[AT_COUNTER] << 8 | cqe[AT_COUNTER + 1]);
    uint8_t kind = cqe[ST_CQE_OWN] >> 4;
    if (kind != REQUESTER && kind != ST_CQE_REQUESTER_ERROR)
        return ST_CQE_OLD; /* of a receive, or none */
    struct st_gpu_qp *qp = find(cq, qpn);
    if (!qp)
        return ST_CQE_STRAY;
    /* No more can be outstanding than a ring holds, so the index is the last one before this end. */
    uint64_t end = ST_LOAD(&qp->forwarded);
    uint16_t back = (uint16_t)((uint16_t)end - counter);
    if (!back || back > ST_RING_SLOTS_MAX || back > end)
        return ST_CQE_WAITS;
    *completed = (struct st_completed){qp, end - back};
    return end - back < progress_of(qp)->next ? ST_CQE_OLD : ST_CQE_NEW;
}

void st_cqe_record(const struct st_completed *completed, const uint8_t *cqe, uint64_t t_tsc)
{
    struct progress *p = progress_of(completed->qp);
    bool failed = cqe[ST_CQE_OWN] >> 4 == ST_CQE_REQUESTER_ERROR;
    st_cqe(&(struct st_cqe_record){
        .t_tsc = t_tsc,
        .posted_tsc = posted_tsc(p, completed->index),
        .imm = failed ? cqe[AT_SYNDROME] | (uint32_t)cqe[AT_VENDOR] << 8 : 0,
        .object = completed->qp->stream.object,
        .position = (uint32_t)completed->index,
        .first = (uint32_t)p->next,
        .opcode = wc_opcode(cqe[AT_OPCODE]),
        .status = failed ? wc_status(cqe[AT_SYNDROME]) : 0,
        .flags = ST_CQE_AT_MOST,
        .queue = SEND_QUEUE});
    p->next = completed->index + 1;
}
