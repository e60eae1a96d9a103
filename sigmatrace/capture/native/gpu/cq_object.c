/* A completion queue made by DEVX: its object, and where its elements are. */
#include "hooks.h"
#include "mailbox.h"

#define LINE_BYTES 64u
#define LOG_SIZE_MOST 22u /* of what a NIC makes */

static const struct st_umem *umem_of(const struct ibv_context *context, const uint8_t *in,
                                     size_t in_size, enum st_field_name valid,
                                     enum st_field_name id)
{
    return st_mailbox(in, in_size, valid)
               ? st_umem_of(context, (uint32_t)st_mailbox(in, in_size, id))
               : NULL;
}

static void describe(const struct st_devx_cq *cq, const uint8_t *in, size_t in_size,
                     const struct st_umem *umem, uint32_t stride)
{
    struct st_object o;
    const struct st_umem *record =
        umem_of(cq->context, in, in_size, ST_CQ_DBR_UMEM_VALID, ST_CQ_DBR_UMEM_ID);
    st_object_begin(&o, "mlx5_cq", cq->object);
    st_object_u64(&o, "cqn", cq->number);
    if (umem)
        st_object_u64(&o, "umem", umem->object);
    st_object_u64(&o, "umem_offset", st_mailbox(in, in_size, ST_CQ_UMEM_OFFSET));
    st_object_u64(&o, "log_size", st_mailbox(in, in_size, ST_CQ_LOG_SIZE));
    st_object_u64(&o, "cqe_bytes", stride);
    st_object_u64(&o, "collapsed", st_mailbox(in, in_size, ST_CQ_COLLAPSED));
    st_object_u64(&o, "overrun_ignored", st_mailbox(in, in_size, ST_CQ_OVERRUN_IGNORED));
    st_object_u64(&o, "uar_page", st_mailbox(in, in_size, ST_CQ_UAR_PAGE));
    st_object_u64(&o, "eqn", st_mailbox(in, in_size, ST_CQ_EQN));
    st_object_u64(&o, "log_page_size", st_mailbox(in, in_size, ST_CQ_LOG_PAGE_SIZE));
    if (record)
        st_object_u64(&o, "dbr_umem", record->object);
    st_object_u64(&o, "dbr_offset", st_mailbox(in, in_size, ST_CQ_DBR_ADDR));
    st_object_end(&o);
}

void st_devx_cq_created(struct st_devx_cq *cq, const uint8_t *in, size_t in_size)
{
    const struct st_umem *umem =
        umem_of(cq->context, in, in_size, ST_CQ_UMEM_VALID, ST_CQ_UMEM_ID);
    uint64_t offset = st_mailbox(in, in_size, ST_CQ_UMEM_OFFSET);
    struct st_gpu_cq_new new = {.log_size = (uint32_t)st_mailbox(in, in_size, ST_CQ_LOG_SIZE),
                                .stride = LINE_BYTES,
                                .collapsed = st_mailbox(in, in_size, ST_CQ_COLLAPSED)};
    if (st_mailbox(in, in_size, ST_CQ_CQE_SIZE))
        new.stride *= 2;
    cq->object = st_object_id();
    describe(cq, in, in_size, umem, new.stride);
    /* Of a collapsed one, there may be no memory for others. */
    uint64_t size = (uint64_t)new.stride << (new.collapsed ? 0 : new.log_size);
    if (!umem || !umem->address || new.log_size > LOG_SIZE_MOST || offset > umem->size_bytes ||
        size > umem->size_bytes - offset || (umem->address + offset) % LINE_BYTES)
        return;
    new.at = umem->address + offset;
    new.umem = umem->object;
    cq->read = st_gpu_cq_add(&new);
}

void st_devx_cq_leave(struct st_devx_cq *cq)
{
    if (cq->read)
        st_gpu_cq_remove(cq->read);
    cq->read = NULL;
}

void st_devx_cq_destroyed(const struct st_devx_cq *cq, uint64_t t_tsc)
{
    st_object_closed("mlx5_cq", cq->object, t_tsc);
}
