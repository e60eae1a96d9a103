/* Remote memory access. */
#include "ofi.h"

static ssize_t rma_read(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t peer,
                        uint64_t addr, uint64_t key, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    const struct fi_rma_iov target = {addr, len, key};
    struct ofi_out out = {.name = OFI_CALL_fi_read, .op = ST_OP_GET, .kind = ST_KIND_RMA,
                          .peer = peer, .size_bytes = len, .context = context,
                          .targets = &target, .target_count = 1};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->read(fid, buf, len, desc, peer, addr, key, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
                         fi_addr_t peer, uint64_t addr, uint64_t key, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    const struct fi_rma_iov target = {addr, ofi_iov_bytes(iov, count), key};
    struct ofi_out out = {.name = OFI_CALL_fi_readv, .op = ST_OP_GET, .kind = ST_KIND_RMA,
                          .peer = peer, .size_bytes = target.len, .context = context,
                          .targets = &target, .target_count = 1};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->readv(fid, iov, desc, count, peer, addr, key, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_readmsg, .op = ST_OP_GET, .kind = ST_KIND_RMA,
                          .peer = msg->addr,
                          .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count),
                          .context = msg->context, .flags = flags & ~FI_REMOTE_CQ_DATA,
                          .has_flags = true, .targets = msg->rma_iov,
                          .target_count = msg->rma_iov_count};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->readmsg(fid, msg, flags);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t rma_write(struct fid_ep *fid, const void *buf, size_t len, void *desc,
                         fi_addr_t peer, uint64_t addr, uint64_t key, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    const struct fi_rma_iov target = {addr, len, key};
    struct ofi_out out = {.name = OFI_CALL_fi_write, .op = ST_OP_PUT, .kind = ST_KIND_RMA,
                          .peer = peer, .size_bytes = len, .context = context,
                          .targets = &target, .target_count = 1};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->write(fid, buf, len, desc, peer, addr, key, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
                          fi_addr_t peer, uint64_t addr, uint64_t key, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    const struct fi_rma_iov target = {addr, ofi_iov_bytes(iov, count), key};
    struct ofi_out out = {.name = OFI_CALL_fi_writev, .op = ST_OP_PUT, .kind = ST_KIND_RMA,
                          .peer = peer, .size_bytes = target.len, .context = context,
                          .targets = &target, .target_count = 1};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->writev(fid, iov, desc, count, peer, addr, key, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_writemsg, .op = ST_OP_PUT, .kind = ST_KIND_RMA,
                          .peer = msg->addr, .data = msg->data,
                          .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count),
                          .context = msg->context, .flags = flags, .has_flags = true,
                          .targets = msg->rma_iov, .target_count = msg->rma_iov_count};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->writemsg(fid, msg, flags);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t rma_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t peer,
                          uint64_t addr, uint64_t key)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    const struct fi_rma_iov target = {addr, len, key};
    struct ofi_out out = {.name = OFI_CALL_fi_inject_write, .op = ST_OP_PUT, .kind = ST_KIND_RMA,
                          .peer = peer, .size_bytes = len, .record_flags = ST_INLINE,
                          .targets = &target, .target_count = 1};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->inject(fid, buf, len, peer, addr, key);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t rma_writedata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
                             uint64_t data, fi_addr_t peer, uint64_t addr, uint64_t key,
                             void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    const struct fi_rma_iov target = {addr, len, key};
    struct ofi_out out = {.name = OFI_CALL_fi_writedata, .op = ST_OP_PUT, .kind = ST_KIND_RMA,
                          .channel_flags = ST_HAS_DATA, .peer = peer, .data = data,
                          .size_bytes = len, .context = context,
                          .targets = &target, .target_count = 1};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->writedata(fid, buf, len, desc, data, peer, addr, key, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t rma_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
                              fi_addr_t peer, uint64_t addr, uint64_t key)
{
    const struct ofi_table *table = ofi_table_of(fid->rma);
    const struct fi_ops_rma *inner = table->original;
    const struct fi_rma_iov target = {addr, len, key};
    struct ofi_out out = {.name = OFI_CALL_fi_inject_writedata, .op = ST_OP_PUT,
                          .kind = ST_KIND_RMA, .channel_flags = ST_HAS_DATA, .peer = peer,
                          .data = data, .size_bytes = len, .record_flags = ST_INLINE,
                          .targets = &target, .target_count = 1};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->injectdata(fid, buf, len, data, peer, addr, key);
    ofi_out_end(&call, &out, result);
    return result;
}

void ofi_rma_install(void *ops)
{
    struct fi_ops_rma *table = ops;
    OFI_INSTALL(table, read, rma_read);
    OFI_INSTALL(table, readv, rma_readv);
    OFI_INSTALL(table, readmsg, rma_readmsg);
    OFI_INSTALL(table, write, rma_write);
    OFI_INSTALL(table, writev, rma_writev);
    OFI_INSTALL(table, writemsg, rma_writemsg);
    OFI_INSTALL(table, inject, rma_inject);
    OFI_INSTALL(table, writedata, rma_writedata);
    OFI_INSTALL(table, injectdata, rma_injectdata);
}
