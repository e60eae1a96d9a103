/* Memory regions and windows: which keys reach which addresses. */
#include <stdlib.h>

#include "fake_ibverbs.h"

#define SPANS 1024u
#define FAKE_MOST (1ull << 40)

/* What a key reaches; keys that differ in the lowest byte alone are those of one window. */
static struct span {
    uint32_t rkey;
    uint64_t start, length;
} spans[SPANS];
static uint32_t next_key = 1;

static uint32_t new_key(void)
{
    return next_key++ << 8 | 1;
}

static struct span *span_of(uint32_t rkey)
{
    return &spans[(rkey >> 8) % SPANS];
}

bool fake_reaches(uint32_t rkey, uint64_t address, uint64_t bytes)
{
    const struct span *span = span_of(rkey);
    return rkey && span->rkey == rkey && address >= span->start &&
           address + bytes <= span->start + span->length;
}

void fake_bind(const struct ibv_send_wr *wr)
{
    const struct ibv_mw_bind_info *info = &wr->bind_mw.bind_info;
    uint64_t start = info->mw_access_flags & IBV_ACCESS_ZERO_BASED ? 0 : info->addr;
    *span_of(wr->bind_mw.rkey) = (struct span){wr->bind_mw.rkey, start, info->length};
}

void fake_invalidate(uint32_t rkey)
{
    if (span_of(rkey)->rkey == rkey)
        *span_of(rkey) = (struct span){0, 0, 0};
}

static struct ibv_mr *registered(struct ibv_pd *pd, void *address, size_t length, uint64_t start)
{
    struct ibv_mr *mr = calloc(1, sizeof(*mr));
    *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length};
    mr->lkey = new_key();
    mr->rkey = mr->lkey;
    *span_of(mr->rkey) = (struct span){mr->rkey, start, length};
    return mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned int access)
{
    (void)access;
    return registered(pd, address, length, iova);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                               int access)
{
    return ibv_reg_mr_iova2(pd, address, length, iova, (unsigned)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access)
{
    (void)offset, (void)fd, (void)access;
    return registered(pd, NULL, length, iova);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address, size_t length,
                 int access)
{
    (void)access;
    if (length > FAKE_MOST) { /* after the old place was given up */
        fake_invalidate(mr->rkey);
        return IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW;
    }
    if (flags & IBV_REREG_MR_CHANGE_PD)
        mr->pd = pd;
    if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
        mr->addr = address;
        mr->length = length;
        *span_of(mr->rkey) = (struct span){mr->rkey, (uintptr_t)address, length};
    }
    return 0;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    fake_invalidate(mr->rkey);
    free(mr);
    return 0;
}

static struct ibv_mr *alloc_null_mr(struct ibv_pd *pd)
{
    return registered(pd, NULL, 0, 0);
}

static struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
                                size_t length, unsigned int access)
{
    (void)dm, (void)offset, (void)access;
    return registered(pd, NULL, length, 0);
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    struct ibv_mw *mw = calloc(1, sizeof(*mw));
    *mw = (struct ibv_mw){.context = pd->context, .pd = pd, .rkey = new_key(), .type = type};
    return mw;
}

static int dealloc_mw(struct ibv_mw *mw)
{
    fake_invalidate(mw->rkey);
    free(mw);
    return 0;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    struct ibv_send_wr wr = {.wr_id = bind->wr_id,
                             .opcode = IBV_WR_BIND_MW,
                             .send_flags = bind->send_flags,
                             .bind_mw = {mw, ibv_inc_rkey(mw->rkey), bind->bind_info}},
                       *bad;
    int result = fake_post_send(qp, &wr, &bad);
    if (!result)
        mw->rkey = wr.bind_mw.rkey;
    return result;
}

void fake_extend_memory(struct verbs_context *context)
{
    context->alloc_null_mr = alloc_null_mr;
    context->reg_dm_mr = reg_dm_mr;
    context->context.ops.alloc_mw = alloc_mw;
    context->context.ops.dealloc_mw = dealloc_mw;
    context->context.ops.bind_mw = bind_mw;
}
