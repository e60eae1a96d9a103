/* Extended queue pairs: requests that are put together by calls (ibv_wr_*) between ibv_wr_start
 * and ibv_wr_complete.
 *
 * The provider holds its lock from start to complete, so a batch belongs to one thread. It is
 * noted in a piece of memory that the thread takes at start and gives back when all is recorded,
 * after the lock is gone: the next thread's batch is in another piece. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sys/mman.h>

#include "verbs.h"

/* The functions of struct ibv_qp_ex that are wrapped; wr_atomic_write, which older libraries do
 * not have, only where it was asked for. */
#define FUNCTIONS(X)                                                                               \
    X(wr_atomic_cmp_swp) X(wr_atomic_fetch_add) X(wr_bind_mw) X(wr_local_inv) X(wr_rdma_read)      \
    X(wr_rdma_write) X(wr_rdma_write_imm) X(wr_send) X(wr_send_imm) X(wr_send_inv) X(wr_send_tso)  \
    X(wr_set_ud_addr) X(wr_set_xrc_srqn) X(wr_set_inline_data) X(wr_set_inline_data_list)          \
    X(wr_set_sge) X(wr_set_sge_list) X(wr_start) X(wr_complete) X(wr_abort)
/* What a queue pair may be asked to offer. Another kind of request would take a position that is not
 * counted here. */
#define KNOWN_OPS                                                                                  \
    ((uint64_t)(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |                   \
                IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |    \
                IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |          \
                IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV | \
                IBV_QP_EX_WITH_TSO | IBV_QP_EX_WITH_ATOMIC_WRITE))

#define BATCHES 512u
#define FIRST_ROOM 64u

struct batch {
    uint32_t taken;
    uint32_t count, room;
    struct st_verbs_wr *wrs;
};
static struct batch batches[BATCHES];
static struct st_verbs_pool batch_pool;
static __thread uint32_t batch_last; /* 1 + the one that this thread had before */

struct st_verbs_extended {
    uint32_t taken;
    struct batch *batch; /* between start and complete */
#define FIELD(name) __typeof__(((struct ibv_qp_ex *)0)->name) name;
    FUNCTIONS(FIELD)
    FIELD(wr_atomic_write)
#undef FIELD
};
static struct st_verbs_extended extended[ST_VERBS_QPS];
static struct st_verbs_pool pool;

static struct batch *take_batch(void)
{
    uint32_t no = 0;
    struct batch *batch = batch_last ? &batches[batch_last - 1] : NULL;
    if (!batch || !__atomic_compare_exchange_n(&batch->taken, &no, 1, false, __ATOMIC_ACQUIRE,
                                               __ATOMIC_RELAXED))
        batch = st_verbs_state(batches, &batch_pool, BATCHES, sizeof(batches[0]));
    if (batch) {
        batch_last = (uint32_t)(batch - batches) + 1;
        batch->count = 0;
    }
    return batch;
}

static void give_batch(struct batch *batch)
{
    st_verbs_state_give(batch, &batch_pool);
}

static __attribute__((noinline, cold)) bool grow(struct batch *batch)
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

/* What is written when a request cannot be noted. */
static __thread struct st_verbs_wr nowhere;

static struct st_verbs_wr *add(struct st_verbs_qp *qp, struct ibv_qp_ex *handle, uint8_t opcode)
{
    struct batch *batch = qp->extended->batch;
    if (!batch || (ST_UNLIKELY(batch->count == batch->room) && !grow(batch))) {
        st_lost("verbs: requests of a batch without memory", 1);
        return &nowhere;
    }
    struct st_verbs_wr *wr = &batch->wrs[batch->count++];
    *wr = (struct st_verbs_wr){.wr_id = handle->wr_id,
                               .opcode = opcode,
                               .flags = (uint8_t)handle->wr_flags};
    if (qp->signal_all)
        wr->flags |= IBV_SEND_SIGNALED;
    return wr;
}

static struct st_verbs_wr *last(struct st_verbs_qp *qp)
{
    struct batch *batch = qp->extended->batch;
    return batch && batch->count ? &batch->wrs[batch->count - 1] : &nowhere;
}

static inline struct st_verbs_qp *state_of(struct ibv_qp_ex *handle)
{
    return st_verbs_qp_of(&handle->qp_base);
}

/* A wrapper: the provider's own function, then what is noted. */
#define NOTE(name, parameters, arguments, ...)                                                     \
    static void name parameters                                                                    \
    {                                                                                              \
        struct st_verbs_qp *qp = state_of(handle);                                                 \
        if (ST_UNLIKELY(!qp))                                                                      \
            return;                                                                                \
        qp->extended->name arguments;                                                              \
        __VA_ARGS__                                                                                \
    }

NOTE(wr_rdma_write, (struct ibv_qp_ex * handle, uint32_t rkey, uint64_t raddr),
     (handle, rkey, raddr), {
         struct st_verbs_wr *wr = add(qp, handle, IBV_WR_RDMA_WRITE);
         wr->rkey = rkey;
         wr->raddr = raddr;
     })
NOTE(wr_rdma_write_imm, (struct ibv_qp_ex * handle, uint32_t rkey, uint64_t raddr, __be32 imm),
     (handle, rkey, raddr, imm), {
         struct st_verbs_wr *wr = add(qp, handle, IBV_WR_RDMA_WRITE_WITH_IMM);
         wr->rkey = rkey;
         wr->raddr = raddr;
         wr->imm = ntohl(imm);
     })
NOTE(wr_rdma_read, (struct ibv_qp_ex * handle, uint32_t rkey, uint64_t raddr),
     (handle, rkey, raddr), {
         struct st_verbs_wr *wr = add(qp, handle, IBV_WR_RDMA_READ);
         wr->rkey = rkey;
         wr->raddr = raddr;
     })
NOTE(wr_atomic_write,
     (struct ibv_qp_ex * handle, uint32_t rkey, uint64_t raddr, const void *value),
     (handle, rkey, raddr, value), {
         struct st_verbs_wr *wr = add(qp, handle, IBV_WR_ATOMIC_WRITE);
         wr->rkey = rkey;
         wr->raddr = raddr;
         wr->size = 8;
     })
NOTE(wr_atomic_cmp_swp,
     (struct ibv_qp_ex * handle, uint32_t rkey, uint64_t raddr, uint64_t compare, uint64_t swap),
     (handle, rkey, raddr, compare, swap), {
         struct st_verbs_wr *wr = add(qp, handle, IBV_WR_ATOMIC_CMP_AND_SWP);
         wr->rkey = rkey;
         wr->raddr = raddr;
     })
NOTE(wr_atomic_fetch_add,
     (struct ibv_qp_ex * handle, uint32_t rkey, uint64_t raddr, uint64_t value),
     (handle, rkey, raddr, value), {
         struct st_verbs_wr *wr = add(qp, handle, IBV_WR_ATOMIC_FETCH_AND_ADD);
         wr->rkey = rkey;
         wr->raddr = raddr;
     })
NOTE(wr_bind_mw,
     (struct ibv_qp_ex * handle, struct ibv_mw *mw, uint32_t rkey,
      const struct ibv_mw_bind_info *info),
     (handle, mw, rkey, info), {
         struct st_verbs_wr *wr = add(qp, handle, IBV_WR_BIND_MW);
         wr->rkey = rkey;
         wr->raddr = info->addr;
         wr->mw = mw;
         wr->length = info->length;
         wr->access = info->mw_access_flags;
     })
NOTE(wr_local_inv, (struct ibv_qp_ex * handle, uint32_t rkey), (handle, rkey),
     { add(qp, handle, IBV_WR_LOCAL_INV)->imm = rkey; })
NOTE(wr_send, (struct ibv_qp_ex * handle), (handle), { add(qp, handle, IBV_WR_SEND); })
NOTE(wr_send_imm, (struct ibv_qp_ex * handle, __be32 imm), (handle, imm),
     { add(qp, handle, IBV_WR_SEND_WITH_IMM)->imm = ntohl(imm); })
NOTE(wr_send_inv, (struct ibv_qp_ex * handle, uint32_t rkey), (handle, rkey),
     { add(qp, handle, IBV_WR_SEND_WITH_INV)->imm = rkey; })
NOTE(wr_send_tso, (struct ibv_qp_ex * handle, void *header, uint16_t bytes, uint16_t mss),
     (handle, header, bytes, mss), { add(qp, handle, IBV_WR_TSO)->size = bytes; })

/* Of a request whose size is not that of its data. */
static inline bool fixed_size(const struct st_verbs_wr *wr)
{
    return wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

NOTE(wr_set_ud_addr,
     (struct ibv_qp_ex * handle, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey),
     (handle, ah, qpn, qkey), {
         last(qp)->ah = ah;
         last(qp)->number = qpn;
     })
NOTE(wr_set_xrc_srqn, (struct ibv_qp_ex * handle, uint32_t srqn), (handle, srqn),
     { last(qp)->number = srqn; })
NOTE(wr_set_sge, (struct ibv_qp_ex * handle, uint32_t lkey, uint64_t address, uint32_t length),
     (handle, lkey, address, length), {
         struct st_verbs_wr *wr = last(qp);
         wr->sges = 1;
         wr->size += length;
     })
NOTE(wr_set_sge_list, (struct ibv_qp_ex * handle, size_t count, const struct ibv_sge *list),
     (handle, count, list), {
         struct st_verbs_wr *wr = last(qp);
         wr->sges = (uint32_t)count;
         for (size_t i = 0; i < count; i++)
             wr->size += list[i].length;
     })
NOTE(wr_set_inline_data, (struct ibv_qp_ex * handle, void *data, size_t length),
     (handle, data, length), {
         struct st_verbs_wr *wr = last(qp);
         wr->flags |= IBV_SEND_INLINE;
         wr->sges = 1;
         wr->size += length;
     })
NOTE(wr_set_inline_data_list,
     (struct ibv_qp_ex * handle, size_t count, const struct ibv_data_buf *list),
     (handle, count, list), {
         struct st_verbs_wr *wr = last(qp);
         wr->flags |= IBV_SEND_INLINE;
         wr->sges = (uint32_t)count;
         for (size_t i = 0; i < count; i++)
             wr->size += list[i].length;
     })
NOTE(wr_start, (struct ibv_qp_ex * handle), (handle), { qp->extended->batch = take_batch(); })
/* The batch is taken away before the provider gives its lock back. */
static void wr_abort(struct ibv_qp_ex *handle)
{
    struct st_verbs_qp *qp = state_of(handle);
    if (ST_UNLIKELY(!qp))
        return;
    struct batch *batch = qp->extended->batch;
    qp->extended->batch = NULL;
    qp->extended->wr_abort(handle);
    if (batch)
        give_batch(batch);
}

static void keep(struct st_verbs_qp *qp, const struct batch *batch, uint32_t position,
                 uint64_t t_tsc)
{
    for (uint32_t i = 0; i < batch->count; i++)
        st_verbs_outstanding(&qp->send, position + i, t_tsc, batch->wrs[i].wr_id,
                             batch->wrs[i].opcode, batch->wrs[i].flags & IBV_SEND_SIGNALED);
}

static int wr_complete(struct ibv_qp_ex *handle)
{
    struct st_verbs_qp *qp = state_of(handle);
    if (ST_UNLIKELY(!qp))
        return EINVAL;
    struct batch *batch = qp->extended->batch;
    qp->extended->batch = NULL;
    if (ST_UNLIKELY(!batch))
        return qp->extended->wr_complete(handle);
    struct st_verbs_post post = {.qp = qp, .t_tsc = st_verbs_now(), .call = ST_CALL_WR_COMPLETE};
    uint32_t count = batch->count;
    st_verbs_claim(&qp->send.owner);
    uint32_t position = st_verbs_positions(&qp->send, count);
    if (st_verbs_full)
        keep(qp, batch, position, post.t_tsc);
    int result = qp->extended->wr_complete(handle);
    if (ST_UNLIKELY(result)) {
        st_verbs_refused(&qp->send, position, count, 0);
        count = 0;
    }
    post.depth = st_nesting;
    post.flags = st_owner_several(&qp->send.owner) ? ST_ORDER_UNCERTAIN : 0;
    for (uint32_t i = 0; i < count; i++) {
        struct st_verbs_wr *wr = &batch->wrs[i];
        if (fixed_size(wr))
            wr->size = 8;
        st_verbs_posted(&post, wr, position + i);
    }
    give_batch(batch);
    return result;
}

static void extend(struct ibv_qp_ex *qp, struct st_verbs_qp *state)
{
    if (state->send_ops & ~KNOWN_OPS) {
        st_lost("verbs: queue pair that offers requests of a kind that is not known", 1);
        return;
    }
    struct st_verbs_extended *e =
        st_verbs_state(extended, &pool, ST_VERBS_QPS, sizeof(extended[0]));
    if (!e)
        return;
    *e = (struct st_verbs_extended){.taken = 1};
#define KEEP(name) e->name = qp->name;
    FUNCTIONS(KEEP)
#undef KEEP
    state->extended = e;
#define WRAP(name)                                                                                 \
    if (e->name)                                                                                   \
        qp->name = name;
    FUNCTIONS(WRAP)
    if (state->send_ops & IBV_QP_EX_WITH_ATOMIC_WRITE) {
        e->wr_atomic_write = qp->wr_atomic_write;
        WRAP(wr_atomic_write)
    }
#undef WRAP
}

void st_verbs_qp_extend(struct ibv_qp_ex *qp, struct st_verbs_qp *state)
{
    if (qp->wr_start == wr_start || !st_verbs_make_begin(ST_VERBS_MAKE_EXTENDED, qp))
        return;
    if (!state->extended)
        extend(qp, state);
    st_verbs_make_end(ST_VERBS_MAKE_EXTENDED, qp);
}

void st_verbs_qp_unextend(struct st_verbs_qp *state)
{
    if (state->extended)
        st_verbs_state_give(state->extended, &pool);
    state->extended = NULL;
}
